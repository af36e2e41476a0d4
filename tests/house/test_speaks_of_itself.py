# The repository speaks of itself: no folder of a machine that it was made on, no host but those that anybody may
# know, no package index, and nothing that looks like a key.

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .package import ROOT

HOSTS = re.compile(r"\bhttps?://(?:[^\s/@\"'`]*@)?((?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,})")
KNOWN_HOSTS = re.compile(
    r"(.+\.)?example(\.com|\.org|\.net)?|.+\.(example|invalid|test)"
    r"|www\.apache\.org|www\.w3\.org|keepachangelog\.com|huggingface\.co|github\.com"
    r"|(?:docs\.)?mlcommons\.org|in-toto\.io|slsa\.dev|schema\.org|purl\.org"
)
FOREIGN = {
    "a folder of one machine": re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/"),
    "a package index": re.compile(
        r"--(?:extra-)?index-url|--trusted-host|\b(?:artifactory|devpi|nexus)\b", re.IGNORECASE
    ),
    "a key": re.compile(r"\b(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9]{32,}|ghp_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16})\b"),
}


def list_texts() -> list[Path]:
    """Return the text files of the repository, tracked or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes() and path != Path(__file__)]


@pytest.mark.parametrize("what", FOREIGN)
def test_no_trace_of_where_it_was_made(what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in list_texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FOREIGN[what].search(line)
    ]
    assert found == []


def test_no_host_that_is_not_for_everybody() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {host}"
        for path in list_texts()
        for host in HOSTS.findall(path.read_text(encoding="utf-8"))
        if not KNOWN_HOSTS.fullmatch(host)
    }
    assert found == set()

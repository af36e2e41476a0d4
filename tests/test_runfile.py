# A run file: what it may say, and what of it may go into a log.

from __future__ import annotations

from pathlib import Path

import pytest

from loadshape.runfile import RunFile

HEADERS = [
    ('x-key = "a secret"', 'x-key = "***"'),
    ("x-key = 'a secret'", "x-key = '***'"),
    ('x-key = "a secret", x-empty = ""', 'x-key = "***", x-empty = ""'),
    ('x-key = "a \\u0073ecret"', None),  # written so that it cannot be found: then nothing is kept
    ('x-key = """a secret"""', None),
]


@pytest.mark.parametrize(("given", "kept"), HEADERS)
def test_the_values_of_headers_do_not_go_into_the_log(given: str, kept: str | None, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[replay]\ngrace_s = 3\n[target]\nheaders = {{ {given} }}\n")
    run = RunFile.load(path)
    assert (run.target.headers["x-key"], run.replay.grace_s) == ("a secret", 3)
    assert "secret" not in run.replay.verbatim
    if kept is not None:
        assert run.replay.verbatim == f"[replay]\ngrace_s = 3\n[target]\nheaders = {{ {kept} }}\n"


def test_a_text_without_headers_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("# why\n[replay]\nspin_us = 0\n")
    assert RunFile.load(path).replay.verbatim == path.read_text()

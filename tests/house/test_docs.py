# Documentation is executed.
#
# Every page's python blocks run in order, in one namespace and a folder of their own, against the embedded
# endpoint. What a page opens without having made it is taken from the run of the quickstart. Times are shortened as
# docs/quickstart.md says. A block that is not to run says so, with a reason:  <!-- not run: why -->

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invention import invent_text

from loadshape import cli
from loadshape.cli import app
from loadshape.endpoint import Script, running

from .generate import MISSING, ROOT, list_pages, refresh
from .package import read_modules

BLOCK = re.compile(r"(<!-- not run: .+ -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
OPENED = re.compile(r"""open\("([\w.-]+)"\)""")
MADE = re.compile(r"""(?:write\(|log=)"([\w.-]+)\"""")
ENDPOINT = "http://127.0.0.1:8000/v1"
SHORTER = {
    "duration_s=300": "duration_s=3",
    "at_s=120": "at_s=1",
    "for_s=5)": "for_s=0.2)",
    "warmup_s=30": "warmup_s=1",
    "--duration 60s": "--duration 3s",
    "--warmup 10s": "--warmup 1s",
}

PAGES = list_pages()
QUICKSTART = ROOT / "docs" / "quickstart.md"
COMMANDS = [name for name in app.resolved_commands() if not name.startswith("-")]


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read_blocks(page: Path, language: str, *, run: bool = True) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for mark, tongue, text in found if tongue == language and not (run and mark)]


def read_commands(page: Path, change: Callable[[str], str] = str) -> Iterator[list[str]]:
    for block in read_blocks(page, "sh"):
        for line in change(block).replace("\\\n", " ").splitlines():
            if line.startswith("loadshape ") and "..." not in line:
                yield shlex.split(line, comments=True)[1:]


PROGRAMS = [page for page in PAGES if read_blocks(page, "python")]


@pytest.mark.parametrize("page", PAGES, ids=name_page)
class TestEveryPage:
    def test_its_generated_parts_are_fresh(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8")
        assert refresh(text) == text, "run: python tests/house/generate.py"

    def test_its_tables_have_a_meaning_for_every_row(self, page: Path) -> None:
        lines = page.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.endswith(f"| {MISSING} |")] == []

    def test_its_links_lead_somewhere(self, page: Path) -> None:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            path, _, anchor = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert ROOT in (target, *target.parents), link
            assert not anchor or anchor in list_anchors(target), link

    def test_its_commands_parse(self, page: Path) -> None:
        for tokens in read_commands(page):
            app.parse_args(tokens, exit_on_error=False, print_error=False)
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for block in read_blocks(page, "sh"):
            for target in re.findall(r"^make (\w+)", block, re.MULTILINE):
                assert f"\n{target}:" in makefile, target

    def test_its_python_compiles(self, page: Path) -> None:
        for block in read_blocks(page, "python", run=False):
            compile(block, str(page), "exec")


def list_anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_can_be_found() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in LINK.findall(index) if "://" not in link}
    lost = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "index.md" and page not in linked]
    assert lost == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_help_and_a_place_in_the_docs(command: str) -> None:
    module, _, function = cli.COMMANDS[command][0].partition(":")
    docstring = getattr(importlib.import_module(f"loadshape.cli.{module}"), function).__doc__
    assert docstring.splitlines()[0] == cli.COMMANDS[command][1] == app[command].help.splitlines()[0]
    assert f"\n## {command}\n" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_first_pages_are_short() -> None:
    limits = {"README.md": 170, "ARCHITECTURE.md": 170, "CONTRIBUTING.md": 60}
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in limits}
    assert {name: lines for name, lines in lengths.items() if lines > limits[name]} == {}


def test_the_snippets_of_the_readme_are_those_of_the_quickstart() -> None:
    first = ["\n".join(block.splitlines()[:4]) for block in read_blocks(ROOT / "README.md", "python")]
    assert len(first) == 4
    quickstart = QUICKSTART.read_text(encoding="utf-8")
    assert [block for block in first[:3] if block.splitlines()[0] not in quickstart] == []


@pytest.mark.parametrize("name", [name for name, module in read_modules().items() if ">>> " in module.text])
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running(Script(ttft_s=0.02, itl_s=0.002), model="tiny") as url:
        yield url


@pytest.fixture(scope="module")
def shell(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands of the quickstart were run."""
    folder = tmp_path_factory.mktemp("shell")
    furnish(folder)
    program = Path(sys.executable).with_name("loadshape")
    for tokens in read_commands(QUICKSTART, shorten(endpoint)):
        if tokens[0] == "simulate":  # it is running already
            continue
        done = subprocess.run([program, *tokens], cwd=folder, capture_output=True, text=True)
        judged = tokens[0] in ("replay", "report") and done.returncode == 3  # this machine may be busy
        assert judged or done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_quickstart_runs_in_the_shell(shell: Path) -> None:
    assert {"chats.fixture", "rush.trace", "a.log", "a.html"} <= {path.name for path in shell.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("page", PROGRAMS, ids=name_page)
def test_its_python_runs(
    page: Path, endpoint: str, shell: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(tmp_path)
    text = page.read_text(encoding="utf-8")
    for name in set(OPENED.findall(text)) - set(MADE.findall(text)):
        (source,) = shell.glob(f"*{Path(name).suffix}")
        shutil.copytree(source, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in read_blocks(page, "python"):
        exec(compile(shorten(endpoint)(block), str(page), "exec"), namespace)


def furnish(folder: Path) -> None:
    """Put into an empty folder what a clone and a user's disk would have."""
    rows = [write_row(number, invent_text(number, 3 + number * 7 % 40)) for number in range(60)]
    rows.append(write_row(60, "Please write to ada@example.com about the garden."))
    (folder / "chats.json").write_text(json.dumps(rows), encoding="utf-8")
    for name in ("sanitizers", "traces"):
        (folder / name).symlink_to(ROOT / name)


def write_row(number: int, ask: str) -> dict[str, object]:
    answer = invent_text(number + 1000, 5 + number * 13 % 100)
    turns = [{"from": "human", "value": ask}, {"from": "gpt", "value": answer}]
    return {"id": f"talk{number:03d}_0", "conversations": turns}


def shorten(endpoint: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        return text.replace(ENDPOINT, endpoint)

    return change

# What reaches a person when a command fails: one line and an exit code, whatever it was.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadshape import cli
from loadshape.cli import playing
from loadshape.errors import InputError, MissingExtra, WorkerLost, require

ENDS = [
    (InputError("a.toml: rate: wrong"), 2, "a.toml: rate: wrong"),
    (WorkerLost("worker 1"), 3, "worker 1"),
    (FileNotFoundError(2, "No such file", "a.log"), 2, "a.log: No such file"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (RecursionError("too deep"), 70, "a defect of loadshape: RecursionError: too deep"),
]


def fail(problem: BaseException) -> Any:
    """Return a command that fails."""

    def command(_tokens: list[str]) -> int:
        raise problem

    return command


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["replay", "t", "--ray", "--nodes", "2"], ["replay", "t", "--ray=auto", "--nodes", "2"]),
        (["doctor", "--ray"], ["doctor", "--ray=auto"]),
        (["doctor", "--ray", "10.0.0.1:6379"], ["doctor", "--ray", "10.0.0.1:6379"]),
        (["doctor", "--ray=10.0.0.1:6379"], ["doctor", "--ray=10.0.0.1:6379"]),
    ],
)
def test_ray_may_stand_without_an_address(given: list[str], passed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["loadshape", *given])
    monkeypatch.setattr(cli, "app", lambda tokens: heard.append(tokens))
    assert cli.main() == 0
    assert heard == [passed]


@pytest.mark.parametrize(("problem", "code", "told"), ENDS)
def test_a_failure_is_one_line(
    problem: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", fail(problem))
    assert cli.main() == code
    output, errors = capsys.readouterr()
    assert (output, errors.count("\n")) == ("", 1)
    assert errors.startswith(f"loadshape: {told}")


def test_a_developer_may_ask_for_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADSHAPE_TRACEBACK", "1")
    monkeypatch.setattr(cli, "app", fail(RecursionError()))
    with pytest.raises(RecursionError):
        cli.main()


@pytest.mark.parametrize(("ended", "code"), [("complete", 0), ("stopped: why", 0), ("interrupted", 130)])
def test_a_demo_that_was_interrupted_says_so(
    ended: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = SimpleNamespace(log=SimpleNamespace(manifest=SimpleNamespace(ended=ended)))
    monkeypatch.setattr(playing, "run_demo", lambda *_: summary)
    monkeypatch.setattr(playing, "render", lambda *_: "")
    assert playing.demo(output=tmp_path) == code


IMPATIENT = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "cyclopts":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
from loadshape.cli import main
"""


def test_ctrl_c_in_the_first_moment_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", IMPATIENT], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "loadshape: interrupted\n")


def test_a_missing_extra_is_told_for_a_clone_and_for_elsewhere() -> None:
    message = (
        r"extra report: in a clone of loadshape, pip install '\.\[report\]'; elsewhere, .*'loadshape-llm\[report\]'"
    )
    with pytest.raises(MissingExtra, match=message):
        require("no_such_module_of_ours", "report")

# What reaches a person when a command fails: one line and an exit code, whatever it was.

from __future__ import annotations

from typing import Any

import pytest

from loadshape import cli
from loadshape.errors import InputError, WorkerLost

ENDS = [
    (InputError("a.toml: rate: wrong"), 2, "a.toml: rate: wrong"),
    (WorkerLost("worker 1"), 3, "worker 1"),
    (FileNotFoundError(2, "No such file", "a.log"), 2, "a.log: No such file"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (RecursionError("too deep"), 70, "a defect of loadshape: RecursionError: too deep"),
]


def fail(problem: BaseException) -> Any:
    """Return a command that fails."""

    def command() -> int:
        raise problem

    return command


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

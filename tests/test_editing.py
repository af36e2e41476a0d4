"""The command `edit`: steps in words become calls of the algebra, and slips are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadshape import algebra
from loadshape.cli.editing import edit
from loadshape.errors import InputError
from loadshape.trace import Trace
from traces import open_loop


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return open_loop(100, 50).write(tmp_path / "rush.trace")


def run(path: Path, *steps: str) -> Trace:
    assert edit(path, *steps, output=path.with_name("out.trace"), seed=3, force=True) == 0
    return Trace.open(path.with_name("out.trace"))


def test_steps_are_done_from_left_to_right(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace.open(path)
    assert run(path, "window:1s,3s").digest == algebra.window(trace, 1, 3).digest
    both = run(path, "window:500 ms,0.05min", "scale:2.5,method=replicate,jitter=100ms", "thin:0.5,by=session")
    inner = algebra.scale(algebra.window(trace, 0.5, 3), 2.5, method="replicate", jitter_s=0.1, seed=3)
    assert both.digest == algebra.thin(inner, 0.5, seed=3).digest
    told = capsys.readouterr().out
    assert "operation: thin" in told
    assert "method: replicate" in told


def test_other_traces_are_named_by_their_paths(path: Path) -> None:
    trace = Trace.open(path)
    assert run(path, f"superpose:{path},{path}").digest == algebra.superpose(trace, trace, trace).digest
    assert run(path, f"splice:{path},at=2s").digest == algebra.splice(trace, trace, at_s=2).digest
    assert run(path, "shift:1min", "shift:-30s", "repeat:2,gap=1s").manifest.requests == 200


def test_the_arrivals_before_are_told_as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(path, "scale:2,method=warp", output=path.with_name("out.trace"), json=True)
    told = json.loads(capsys.readouterr().out)["derivation"]
    (before,) = told["of"].values()
    assert (told["operation"], told["method"], told["factor"]) == ("scale", "warp", 2.0)
    assert before["rate_hz"] == pytest.approx(20, rel=0.02)
    assert before["dispersion"]["0.1 s"] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("", "step: expected one of window, thin"),
        ("thinn:0.5", "step: expected one of .* found 'thinn'; did you mean 'thin'"),
        ("thin:half", "thin:half: keep: expected a number, found 'half'"),
        ("thin:0.5,bye=tenant", "thin:0.5,bye=tenant: bye: expected one of keep, by, seed, found 'bye'"),
        ("thin", "thin: expected thin:KEEP,BY; missing a required argument: 'keep'"),
        ("scale:2", "scale:2: expected scale:FACTOR,METHOD,JITTER; missing a required argument: 'method'"),
        ("scale:2,method=fast", "method: expected one of warp, superpose, replicate, found 'fast'"),
        ("window:1s", "window:1s: expected window:START,END,SESSIONS; missing a required argument: 'end_s'"),
        ("window:1s,2 parsecs", "window:1s,2 parsecs: end: unknown unit 'parsecs'"),
        ("repeat:1,2s,3s", "repeat:1,2s,3s: expected repeat:TIMES,GAP; got an unexpected"),
    ],
)
def test_a_slip_is_refused(path: Path, step: str, told: str) -> None:
    with pytest.raises(InputError, match=f"^{told}"):
        run(path, step)
    assert not path.with_name("out.trace").exists()

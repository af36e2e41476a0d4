# What is told while something takes long, where nobody looks on: lines, and how long it will take.

from __future__ import annotations

import pytest

from loadshape import progress
from loadshape.progress import Teller

CASES = {
    # what: (total, [(at, done)], last line)
    "no total": (None, [(0, 1), (10, 5)], "sanitize: 5"),
    "half is done": (10, [(0, 1), (8, 5)], "sanitize: 5, about 10.0 s left"),
    "what was there before says nothing of the pace": (1000, [(0, 900), (10, 910)], "sanitize: 910, about 90.0 s left"),
    "more than expected": (10, [(0, 1), (8, 12)], "sanitize: 12"),
    "nothing yet": (10, [(6, 1)], "sanitize: 1"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_time_that_is_left(case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    total, updates, last = CASES[case]
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Teller().task("sanitize", total) as task:
        for now[0], done in updates:
            task.update(done)
    assert capsys.readouterr().err.splitlines()[-1].strip() == last

"""Searches: from a list of trials to the next one, and an interval that holds the boundary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.errors import InputError
from loadshape.search import Result, Search, Step, Trial, choose_next


def play(search: Search, answer: Callable[[Step], str], at_most: int = 200) -> Result:
    trials: list[Trial] = []
    while isinstance(step := choose_next(search, trials), Step):
        assert len(trials) < at_most, trials
        assert search.lowest <= step.level <= search.highest
        assert search.trial_s <= step.length_s <= search.longest_s
        trials.append(Trial(step.level, step.length_s, answer(step)))
    return step


def met_below(boundary: float) -> Callable[[Step], str]:
    return lambda step: "met" if step.level <= boundary else "missed"


def test_it_widens_narrows_and_confirms() -> None:
    reasons: list[str] = []

    def answer(step: Step) -> str:
        reasons.append(step.reason)
        return "met" if step.level <= 37 else "missed"

    found = play(Search(first=4, lowest=1, highest=1000), answer)
    assert reasons[:5] == ["widen"] * 5  # 4, 8, 16, 32, 64
    assert "narrow" in reasons
    assert reasons[-1] in ("confirm", "narrow")
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= 37 < found.upper <= found.lower * 1.05


def test_trials_grow_towards_the_boundary() -> None:
    found = play(Search(first=8, lowest=1, highest=100), met_below(37))
    lengths = [trial.length_s for trial in found.trials]
    assert lengths[0] == 30
    assert max(lengths) == 120
    assert any(trial.level == found.lower and trial.length_s == 120 for trial in found.trials)


def test_it_says_so_when_even_the_lowest_is_too_much() -> None:
    found = play(Search(first=4, lowest=1, highest=100), met_below(0))
    assert (found.lower, found.upper) == (None, 1.0)


def test_it_stops_at_the_ceiling() -> None:
    found = play(Search(first=4, lowest=1, highest=20), met_below(99))
    assert (found.lower, found.upper) == (20.0, None)
    assert "highest" in found.reason


def test_an_unsure_level_is_repeated_and_then_not_kept() -> None:
    found = play(Search(first=8, lowest=1, highest=64), lambda step: "unsure" if step.level > 8 else "met")
    tried = [trial.level for trial in found.trials]
    assert tried.count(16.0) == 3
    assert found.lower == 8.0 or found.upper is not None
    assert all(trial.status != "met" for trial in found.trials if trial.level > 8)


def test_a_bound_that_does_not_last_is_no_bound() -> None:
    """30 is kept for short trials only."""
    found = play(
        Search(first=30, lowest=1, highest=100),
        lambda step: "met" if step.level <= (40 if step.length_s < 100 else 20) else "missed",
    )
    assert found.lower is not None
    assert found.lower <= 20


def test_users_are_whole() -> None:
    found = play(Search(first=1, lowest=1, highest=64, whole=True), met_below(11.5))
    assert (found.lower, found.upper) == (11.0, 12.0)


@pytest.mark.parametrize(
    "bounds",
    [
        {"first": 1, "lowest": 2, "highest": 4},
        {"first": 5, "lowest": 2, "highest": 4},
        {"first": 0, "lowest": 0, "highest": 4},
        {"first": 2, "lowest": 1, "highest": 4, "precision": 0},
        {"first": 2, "lowest": 1, "highest": 4, "trial_s": 60, "longest_s": 30},
        {"first": 2, "lowest": 1, "highest": 4, "repeats": 0},
    ],
)
def test_bounds_that_cannot_be_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(InputError, match="search: expected"):
        Search(**bounds)  # type: ignore[arg-type]


@settings(max_examples=200)
@given(
    st.floats(0.5, 2000.0),
    st.floats(1.0, 1000.0),
    st.floats(0.01, 0.3),
    st.booleans(),
)
def test_the_interval_holds_the_boundary(boundary: float, first: float, precision: float, whole: bool) -> None:
    search = Search(first=float(round(first)), lowest=1, highest=1000, precision=precision, whole=whole)
    found = play(search, met_below(boundary))
    assert len(found.trials) <= search.most_trials
    assert found.lower is None or found.lower <= boundary
    assert found.upper is None or found.upper > boundary
    if found.lower is not None and found.upper is not None:
        assert found.upper / found.lower <= 1 + precision + 1e-3 or (whole and found.upper - found.lower == 1)


@given(st.integers(0, 10_000))
def test_a_noisy_server_ends_the_search_too(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def answer(step: Step) -> str:
        kept = step.level * rng.normal(1.0, 0.05) < 40
        return "unsure" if abs(step.level / 40 - 1) < 0.03 else "met" if kept else "missed"

    found = play(Search(first=8, lowest=1, highest=500), answer)
    assert found.lower is None or found.lower < 60

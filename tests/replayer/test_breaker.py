# When the breaker opens: a table of runs, a second a cell.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.log import Outcome
from loadshape.replayer.breaker import LEAST, WINDOW_S, Breaker
from loadshape.units import NS_PER_S

GOOD, BAD = Outcome.ok, Outcome.http_error


def play(*seconds: tuple[int, int]) -> Breaker:
    """Return a breaker that has heard of (good, bad) ends in each of these seconds."""
    breaker = Breaker()
    for second, (good, bad) in enumerate(seconds):
        for outcome, count in ((GOOD, good), (BAD, bad)):
            for _ in range(count):
                breaker.note(outcome, second * NS_PER_S)
    return breaker


def now(second: float) -> int:
    return int(second * NS_PER_S)


def test_a_quiet_run_never_opens_it() -> None:
    assert not Breaker().is_open(now(100))
    assert not play(*[(100, 0)] * 30).is_open(now(30))


def test_all_fail_from_the_start() -> None:
    breaker = play(*[(0, 5)] * WINDOW_S)
    assert not breaker.is_open(now(WINDOW_S - 0.001))
    assert breaker.is_open(now(WINDOW_S))


@pytest.mark.parametrize(("good", "bad", "opens"), [(5, 5, False), (5, 6, True), (6, 5, False), (0, 1, True)])
def test_more_than_half(good: int, bad: int, opens: bool) -> None:
    assert play(*[(good, bad)] * (WINDOW_S + 1)).is_open(now(WINDOW_S)) is opens


def test_a_burst_of_failures_among_many_good_ones() -> None:
    assert not play(*[(10, 0)] * 9, (0, 89), (10, 0)).is_open(now(WINDOW_S))
    assert play(*[(10, 0)] * 9, (0, 110), (10, 0)).is_open(now(WINDOW_S))


def test_a_server_that_dies_late() -> None:
    breaker = play(*[(10, 0)] * 20, *[(0, 10)] * 6)
    assert breaker.is_open(now(25))  # 60 bad against 40 good: the older ones have left the window
    assert not play(*[(10, 0)] * 20, *[(0, 10)] * 5).is_open(now(24))


def test_what_is_over_is_forgotten() -> None:
    breaker = play(*[(0, 10)] * 11)
    assert breaker.is_open(now(11))
    assert not breaker.is_open(now(10 + 2 * WINDOW_S))
    breaker.note(GOOD, now(1000))
    assert not breaker.is_open(now(1000))


def test_few_ends_say_little() -> None:
    assert not play((0, 1), *[(0, 0)] * 8, (0, LEAST - 3), (0, 1)).is_open(now(WINDOW_S))


@pytest.mark.parametrize("outcome", [Outcome.cancelled, Outcome.not_sent, Outcome.not_reached])
def test_what_we_decided_ourselves_is_no_failure(outcome: Outcome) -> None:
    breaker = Breaker()
    for second in range(20):
        for _ in range(10):
            breaker.note(outcome, now(second))
    assert not breaker.is_open(now(20))


@given(st.lists(st.tuples(st.integers(0, 40 * NS_PER_S), st.booleans()), max_size=80), st.integers(0, 60))
def test_it_is_the_share_of_the_last_ten_seconds(ends: list[tuple[int, bool]], second: int) -> None:
    breaker = Breaker()
    heard = sorted(end for end in ends if end[0] <= second * NS_PER_S)
    for at_ns, good in heard:
        breaker.note(GOOD if good else BAD, at_ns)
    recent = [good for at_ns, good in heard if at_ns // NS_PER_S > second - WINDOW_S]
    is_long = bool(heard) and now(second) - heard[0][0] >= WINDOW_S * NS_PER_S
    expected = is_long and len(recent) >= LEAST and recent.count(False) > len(recent) / 2
    assert breaker.is_open(now(second)) is expected

from __future__ import annotations

import itertools
import time

import pytest

from loadshape.clock import FakeClock, MonotonicClock, measure_offset_ns


def test_the_clock_is_that_of_the_whole_host() -> None:
    before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    now_ns = MonotonicClock().now_ns()
    assert before_ns <= now_ns <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def test_a_fake_clock_moves_only_when_told_to() -> None:
    clock = FakeClock(5)
    assert (clock.now_ns(), clock.now_ns()) == (5, 5)
    assert (clock.advance(3), clock.now_ns()) == (8, 8)
    assert clock.advance(0) == 8


def test_no_clock_goes_back() -> None:
    with pytest.raises(ValueError, match="cannot go back: -1 ns"):
        FakeClock().advance(-1)


def test_the_tightest_bracket_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three brackets of widths 40, 4 and 900: the second says that REALTIME is 1000 ahead of its middle.
    monkeypatch.setattr(time, "monotonic_ns", itertools.chain([0, 40, 100, 104, 200, 1100]).__next__)
    monkeypatch.setattr(time, "time_ns", iter([7000, 1102, 9000]).__next__)
    assert measure_offset_ns(3) == (1000, 4)


def test_the_offset_translates_one_clock_into_the_other() -> None:
    offset_ns, width_ns = measure_offset_ns()
    assert 0 <= width_ns < 10_000_000
    difference_ns = time.time_ns() - time.monotonic_ns() - offset_ns
    assert abs(difference_ns) < 1_000_000_000  # a busy machine, not a wrong one

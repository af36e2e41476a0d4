"""Intervals: what they cover, and what they say when there is nothing to say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.interval import (
    Interval,
    bound_difference,
    bound_mean,
    bound_quantile,
    bound_ratio,
    bound_runs,
    count_effective,
    student,
)
from loadshape.stats import Floats


@pytest.mark.parametrize(
    ("freedom", "confidence", "expected"),
    [(1, 0.95, 12.706), (4, 0.95, 2.776), (30, 0.95, 2.042), (9, 0.99, 3.250), (1e7, 0.95, 1.960)],
)
def test_student_is_that_of_the_tables(freedom: float, confidence: float, expected: float) -> None:
    assert student(freedom, confidence) == pytest.approx(expected, abs=0.001)


def test_independent_values_count_in_full() -> None:
    values = np.random.default_rng(1).random(4000)
    assert 3000 < count_effective(values) <= 4000


def test_values_that_repeat_count_once() -> None:
    values = np.repeat(np.random.default_rng(1).random(400), 10)
    assert 300 < count_effective(values) < 600


def test_a_constant_has_all_its_values_and_no_width() -> None:
    assert count_effective(np.ones(50)) == 50
    assert bound_mean(np.ones(50)) == (1.0, 1.0, 50.0)


def test_few_values_have_no_interval() -> None:
    assert bound_quantile(np.arange(9.0), 0.5) is None
    assert bound_mean(np.arange(9.0)) is None
    assert bound_runs([1.0]) is None
    assert bound_runs([1.0, math.inf]) is None


def test_a_tail_beyond_the_last_value_has_no_bound() -> None:
    found = bound_quantile(np.random.default_rng(1).random(120), 0.99)
    assert found is not None
    assert math.isinf(found.high)


def test_failures_may_stand_among_the_values() -> None:
    found = bound_quantile(np.r_[np.random.default_rng(1).random(900), np.full(100, np.inf)], 0.95)
    assert found is not None
    assert math.isinf(found.high)


def test_widths_of_two_figures_are_added_in_quadrature() -> None:
    before, after = (10.0, Interval(7.0, 14.0, 50.0)), (20.0, Interval(16.0, 23.0, 30.0))
    assert bound_difference(before, after) == Interval(10 - math.hypot(4, 4), 10 + math.hypot(3, 3), 30.0)


def test_a_ratio_is_bounded_over_logarithms() -> None:
    found = bound_ratio((2.0, Interval(1.0, 4.0, 9.0)), (8.0, Interval(4.0, math.inf, 9.0)))
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(4 / 2 ** math.sqrt(2)), math.inf)
    assert bound_ratio((2.0, Interval(0.0, 4.0, 9.0)), (8.0, Interval(4.0, 9.0, 9.0))) is None


def test_runs_are_bounded_over_their_logarithms() -> None:
    found = bound_runs([0.1, 0.1, 0.4, 0.4])
    assert found is not None
    assert found.low > 0
    assert math.sqrt(found.low * found.high) == pytest.approx(0.2)


def wait(rng: np.random.Generator) -> Floats:
    """Sojourn times of an M/M/1 queue at 80 % of its capacity, exponential with a mean of 5."""
    service, gaps = rng.exponential(1.0, 9000), rng.exponential(1.25, 9000)
    steps = np.r_[0.0, np.cumsum(service[:-1] - gaps[1:])]
    return np.asarray((steps - np.minimum.accumulate(steps) + service)[4000:], np.float64)


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_the_interval_of_a_queue_covers_its_percentile(q: float) -> None:
    """Intervals for independent values cover a quarter of the time."""
    rng, hits = np.random.default_rng(7), 0
    for _ in range(60):
        found = bound_quantile(wait(rng), q)
        hits += found is not None and found.low <= -math.log(1 - q) / 0.2 <= found.high
    assert hits >= 49  # 60 of 95 % are 57; of 82 % they would be 49


def test_the_interval_of_a_queue_covers_its_mean() -> None:
    """With as many degrees of freedom as there are effective values it would cover it in 87 % of the runs."""
    rng = np.random.default_rng(7)
    found = [it for it in (bound_mean(wait(rng)) for _ in range(100)) if it is not None]
    assert sum(it.low <= 5.0 <= it.high for it in found) >= 90


@given(st.lists(st.floats(0.001, 1000.0), min_size=10, max_size=300), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_an_interval_holds_its_quantile(values: list[float], q: float) -> None:
    found = bound_quantile(np.array(values), q)
    assert found is not None
    assert found.low <= np.quantile(values, q, method="inverted_cdf") <= found.high
    assert 0 < found.effective <= len(values)

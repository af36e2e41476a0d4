# Approximate, but by how much is known: a sixteenth. And it adds up, which is what it is for.

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.histogram import SMALLEST_NS, Histogram, find_bounds_ns

DURATIONS = st.integers(SMALLEST_NS, 10**13)


def count(values_ns: list[int]) -> Histogram:
    seen = Histogram()
    for value_ns in values_ns:
        seen.add(value_ns)
    return seen


@pytest.mark.parametrize(
    ("value_ns", "bounds_ns"),
    [
        (-5, (16, 17)),
        (0, (16, 17)),
        (16, (16, 17)),
        (31, (31, 32)),
        (32, (32, 34)),
        (33, (32, 34)),
        (1000, (992, 1024)),
    ],
)
def test_a_bucket_holds_its_value(value_ns: int, bounds_ns: tuple[int, int]) -> None:
    (number,) = count([value_ns]).counts
    assert find_bounds_ns(number) == bounds_ns


def test_nothing_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None
    assert (len(Histogram()), Histogram().sum_s()) == (0, 0)


def test_counts_below_a_limit_are_cumulative() -> None:
    seen = count([1_000_000, 5_000_000, 5_000_000, 90_000_000])
    assert [seen.count_below(limit_s) for limit_s in (0.0005, 0.002, 0.01, 1.0)] == [0, 1, 3, 4]
    assert seen.sum_s() == pytest.approx(0.101, rel=0.07)


@given(st.lists(DURATIONS, min_size=1, max_size=60), st.floats(0, 0.999))
def test_a_quantile_is_right_to_a_sixteenth(values_ns: list[int], q: float) -> None:
    exact_ns = np.quantile(values_ns, q, method="inverted_cdf")
    assert count(values_ns).quantile(q) == pytest.approx(exact_ns / 1e9, rel=1 / 16)


@given(st.lists(DURATIONS), st.lists(DURATIONS))
def test_what_came_later_is_the_difference_and_both_add_up(early_ns: list[int], late_ns: list[int]) -> None:
    whole = count(early_ns + late_ns)
    assert whole.since(count(early_ns)).counts == count(late_ns).counts
    assert count(early_ns).counts + count(late_ns).counts == whole.counts

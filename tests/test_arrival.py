"""Arrival processes: what is drawn is what is declared, and the same everywhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.arrival import Arrival, Burst, Constant, Gamma, Poisson, Superposition, measure_offered_hz, superpose
from loadshape.errors import RecipeError
from loadshape.randomness import open_stream
from loadshape.stats import dispersion, variation

S = 1_000_000_000
PROCESSES = [
    Constant(rate_hz=30),
    Poisson(rate_hz=40),
    Gamma(rate_hz=40, cv=0.3),
    Gamma(rate_hz=40, cv=3),
    Burst(at_s=20, rate_hz=300, for_s=5),
    Poisson(rate_hz=40) + Burst(at_s=20, rate_hz=300, for_s=5),
]


def draw(process: Arrival, duration_s: float, seed: int = 7) -> np.ndarray[Any, Any]:
    return process.times_ns(open_stream(seed, "arrivals"), duration_s)


def poisson_bounds(mean: float, alpha: float) -> tuple[int, int]:
    """The central interval that a Poisson count of this mean leaves with probability *alpha* at most."""
    top = int(mean + 20 * math.sqrt(mean) + 20)
    logs = [n * math.log(mean) - mean - math.lgamma(n + 1) for n in range(top)]
    upto = np.cumsum(np.exp(logs))
    return int(np.searchsorted(upto, alpha / 2)), int(np.searchsorted(upto, 1 - alpha / 2))


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_times_are_sorted_whole_microseconds_inside_of_the_run(process: Arrival) -> None:
    times_ns = draw(process, 60)
    assert times_ns.dtype == np.int64
    assert (np.diff(times_ns) >= 0).all()
    assert times_ns[0] >= 0
    assert times_ns[-1] < 60 * S
    assert isinstance(process, Constant) or not (times_ns % 1000).any()


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_same_seed_same_times_and_another_seed_others(process: Arrival) -> None:
    assert np.array_equal(draw(process, 60), draw(process, 60))
    assert isinstance(process, Constant) or not np.array_equal(draw(process, 60), draw(process, 60, seed=8))


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_a_longer_run_begins_with_the_shorter_one(process: Arrival) -> None:
    long, short = draw(process, 200), draw(process, 50)
    assert np.array_equal(long[: len(short)], short)


@pytest.mark.parametrize(("rate_hz", "duration_s", "count"), [(4, 1, 4), (30, 0.1, 3), (3, 10, 30), (0.5, 3, 2)])
def test_constant_counts(rate_hz: float, duration_s: float, count: int) -> None:
    times_ns = draw(Constant(rate_hz=rate_hz), duration_s)
    assert len(times_ns) == count
    assert times_ns.tolist() == [round(k * S / rate_hz) for k in range(count)]


def test_constant_does_not_drift() -> None:
    assert draw(Constant(rate_hz=3), 3600)[-3] == 3599 * S


def test_poisson_counts_lie_in_their_exact_interval() -> None:
    low, high = poisson_bounds(40 * 100, alpha=0.001 / 100)  # 100 seeds, 0.1 % for all of them together
    counts = [len(draw(Poisson(rate_hz=40), 100, seed)) for seed in range(100)]
    assert low <= min(counts)
    assert max(counts) <= high
    low, high = poisson_bounds(40 * 100 * 100, alpha=0.001)
    assert low <= sum(counts) <= high


def test_poisson_gaps_are_exponential_and_independent() -> None:
    times_s = draw(Poisson(rate_hz=40), 1000) / S
    gaps_s = np.diff(times_s)
    ordered = np.sort(gaps_s)
    n = len(ordered)
    distance = np.abs(np.arange(1, n + 1) / n - (1 - np.exp(-40 * ordered))).max()
    assert distance < 1.95 / math.sqrt(n)  # Kolmogorov, 0.1 %
    assert abs(np.corrcoef(gaps_s[1:], gaps_s[:-1])[0, 1]) < 3.3 / math.sqrt(n)
    for window_s in (0.1, 1.0, 10.0):
        windows = 1000 / window_s
        index = dispersion(times_s, window_s, duration_s=1000)
        assert index is not None
        assert abs(index - 1) < 3.3 * math.sqrt(2 / windows)  # variance of a variance: 2 / (windows - 1)


@pytest.mark.parametrize("cv", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_gamma_has_its_rate_from_the_start_and_its_variation(cv: float) -> None:
    process = Gamma(rate_hz=20, cv=cv)
    counts = np.array([len(draw(process, 10, seed)) for seed in range(200)])
    error = counts.std(ddof=1) / math.sqrt(len(counts))
    assert abs(counts.mean() - 200) < 4 * error + 1e-9  # stationary: no bias of (cv^2 - 1) / 2 arrivals
    found = variation(np.diff(draw(process, 2000) / S))
    assert found == pytest.approx(cv, rel=0.08)


def test_gamma_speaks_of_burstiness_as_vllm_does() -> None:
    assert Gamma.of_burstiness(10, 0.25).cv == pytest.approx(2.0)
    assert Gamma(rate_hz=10, cv=2).burstiness == pytest.approx(0.25)


def test_burst_lasts_as_long_as_it_says() -> None:
    times_s = draw(Burst(at_s=20, rate_hz=300, for_s=5), 60) / S
    low, high = poisson_bounds(1500, alpha=0.001)
    assert 20 <= times_s[0] < times_s[-1] < 25
    assert low <= len(times_s) <= high
    assert len(draw(Burst(at_s=20, rate_hz=300, for_s=5), 22)) < len(times_s)  # the run ends first


def test_a_burst_after_the_end_is_refused() -> None:
    with pytest.raises(RecipeError, match="at_s: expected a number below 60, found 120"):
        draw(Burst(at_s=120, rate_hz=300, for_s=5), 60)


def test_adding_a_burst_leaves_the_other_arrivals_where_they_were() -> None:
    calm, burst = Poisson(rate_hz=40), Burst(at_s=20, rate_hz=300, for_s=5)
    alone, both = draw(calm, 60), draw(calm + burst, 60)
    assert np.isin(alone, both).all()
    added = np.setdiff1d(both, alone)
    assert ((added >= 20 * S) & (added < 25 * S)).all()


def test_superposition_is_flat_and_adds_rates() -> None:
    one, two, three = Poisson(rate_hz=1), Constant(rate_hz=2), Burst(at_s=5, rate_hz=4, for_s=1)
    total = one + two + three
    assert total == superpose(one, two, three) == superpose(one, two + three)
    assert len(total.processes) == 3
    assert [total.offered_hz(t) for t in (0, 5, 5.999, 6)] == [3, 7, 7, 3]
    assert measure_offered_hz(total, 10) == pytest.approx(3 + 4 / 10, rel=1e-3)


class Pair:
    """A process of a user's own: two requests at once, every second. No base class."""

    def offered_hz(self, t_s: float) -> float:
        return 2.0

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> np.ndarray[Any, Any]:
        return np.repeat(np.arange(math.ceil(duration_s), dtype=np.int64) * S, 2)


def test_anything_with_two_methods_is_a_process() -> None:
    assert isinstance(Pair(), Arrival)
    assert len(draw(Constant(rate_hz=1) + Pair(), 10)) == 30
    assert draw(Superposition((Pair(),)), 2).tolist() == [0, 0, S, S]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Poisson(rate_hz=0), "rate_hz"),
        (lambda: Poisson(rate_hz=-1), "rate_hz"),
        (lambda: Poisson(rate_hz=math.nan), "rate_hz"),
        (lambda: Poisson(rate_hz=math.inf), "rate_hz"),
        (lambda: Poisson(rate_hz="40"), "rate_hz"),  # type: ignore[arg-type]
        (lambda: Constant(rate_hz=2e6), "rate_hz"),
        (lambda: Gamma(rate_hz=1, cv=0), "cv"),
        (lambda: Gamma.of_burstiness(1, 0), "burstiness"),
        (lambda: Burst(at_s=-1, rate_hz=1, for_s=1), "at_s"),
        (lambda: Burst(at_s=0, rate_hz=1, for_s=0), "for_s"),
    ],
)
def test_impossible_values_are_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}: expected a number .*, found .*; "):
        make()


@settings(max_examples=25, deadline=None)
@given(
    rates=st.lists(st.floats(0.1, 200), min_size=1, max_size=4),
    duration_s=st.floats(0.5, 20),
    seed=st.integers(0, 2**32),
)
def test_counts_of_a_superposition_add_up(rates: list[float], duration_s: float, seed: int) -> None:
    processes = [Poisson(rate_hz=rate) for rate in rates]
    streams = [(root := open_stream(seed, "arrivals")), *root.spawn(len(rates) - 1)]
    parts = [process.times_ns(rng, duration_s) for process, rng in zip(processes, streams, strict=True)]
    assert np.array_equal(draw(superpose(*processes), duration_s, seed), np.sort(np.concatenate(parts)))

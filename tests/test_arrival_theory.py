"""Arrival processes against theory: rate, variation of gaps and dispersion of counts, over 100 seeds each.

The interval is that of Student's t for the mean of 100 independent runs: with 99 degrees of freedom it leaves out
the truth once in a thousand at 3.39 standard errors. Nothing is fitted: the expected values are formulas.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.arrival import (
    Arrival,
    Gamma,
    Hawkes,
    Mmpp,
    OnOff,
    Poisson,
    Rate,
    Sinusoid,
    Weibull,
    Window,
    Windows,
    expect_dispersion,
    expect_gap_cv,
    measure_offered_hz,
    superpose,
)
from loadshape.randomness import open_stream
from loadshape.stats import dispersion, variation

SEEDS = range(100)
T999 = 3.392
DURATION_S = 240.0
WINDOW_S = 6.0
STATIONARY = [
    Poisson(rate_hz=30),
    Gamma(rate_hz=30, cv=0.4),
    Gamma(rate_hz=30, cv=2),
    Weibull(rate_hz=30, cv=0.6),
    Weibull(rate_hz=30, shape=0.6),
    Mmpp(rates_hz=(10, 90), sojourns_s=(3, 1)),
    Mmpp(rates_hz=(5, 30, 100), generator=((-0.5, 0.5, 0), (0.2, -1.2, 1), (1, 1, -2))),
    OnOff(rate_hz=90, on_s=1, off_s=2),
    Hawkes(base_hz=10, branching=0.6, delay_s=0.3),
    Hawkes(base_hz=3, branching=0.9, delay_s=0.05),
    superpose(Gamma(rate_hz=15, cv=2), Poisson(rate_hz=10), OnOff(rate_hz=10, on_s=1, off_s=2)),
]
CHANGING = [
    Rate(points=((0, 0), (100, 60), (100, 5), (200, 5))),
    Rate(points=((0, 50), (60, 10)), between="hold", cv=2),
    Sinusoid(mean_hz=30, amplitude_hz=30, period_s=50),
    Windows((Window(0, 40, cv=2), Window(60, 10, cv=3, family="weibull"), Window(120, 0), Window(180, 30, cv=0.5))),
]


def draw(process: Arrival, seed: int, duration_s: float = DURATION_S) -> np.ndarray:
    return process.times_ns(open_stream(seed, "arrivals"), duration_s) / 1e9


def assert_mean(values: list[float], expected: float) -> None:
    """The mean of *values* is within its 99.9 % interval of *expected*."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    assert abs(float(np.mean(values)) - expected) <= T999 * error, (np.mean(values), expected, error)


@pytest.mark.parametrize("process", STATIONARY, ids=str)
def test_rate_variation_and_dispersion_are_those_of_theory(process: Arrival) -> None:
    runs = [draw(process, seed) for seed in SEEDS]
    assert_mean([len(run) / DURATION_S for run in runs], process.offered_hz(0))
    index = expect_dispersion(process, WINDOW_S)
    assert index is not None
    # Variance and mean are estimated apart: their ratio in one run is biased where few bursts fall into it.
    counts = np.array([np.histogram(run, bins=40, range=(0, DURATION_S))[0] for run in runs])
    mean = process.offered_hz(0) * WINDOW_S
    assert_mean([float(((row - mean) ** 2).mean()) / mean for row in counts], index)
    cv = expect_gap_cv(process)
    if cv is not None:  # of all gaps together, for the same reason; as an interval, by leaving out one run at a time
        sums = np.array([[len(gaps), gaps.sum(), (gaps**2).sum()] for gaps in map(np.diff, runs)])
        left = sums.sum(axis=0) - sums
        found = np.sqrt(left[:, 2] * left[:, 0] / left[:, 1] ** 2 - 1)
        error = math.sqrt((len(runs) - 1) * found.var())
        assert abs(found.mean() - cv) <= T999 * error, (found.mean(), cv, error)


@pytest.mark.parametrize("process", CHANGING, ids=str)
def test_a_changing_rate_is_kept_in_every_part_of_the_run(process: Arrival) -> None:
    runs = [draw(process, seed) for seed in SEEDS]
    for start_s in range(0, int(DURATION_S), 60):
        steps_s = start_s + (np.arange(600) + 0.5) / 10
        expected = math.fsum(process.offered_hz(t_s) for t_s in steps_s) / 10
        counts = [float(np.count_nonzero((run >= start_s) & (run < start_s + 60))) for run in runs]
        assert_mean(counts, expected)


@pytest.mark.parametrize("window_s", [0.01, 0.3, 5.0, 1e6])
def test_formulas_agree_where_they_meet(window_s: float) -> None:
    poisson = Mmpp(rates_hz=(20, 20), sojourns_s=(1, 2))
    assert poisson.expect_dispersion(window_s) == pytest.approx(1)
    assert poisson.expect_gap_cv() == pytest.approx(1)
    assert Hawkes(base_hz=20, branching=0, delay_s=1).expect_dispersion(window_s) == pytest.approx(1)
    # two states in closed form: 1 + 2 v / m (s t - 1 + e^-st) / (s^2 t), v: variance of the rate, s: sum of exits
    mean_hz, variance, exits_hz = 30.0, 20 * 60.0, 1 / 3 + 1.0
    expected = 1 + 2 * variance / mean_hz * (exits_hz * window_s + math.expm1(-exits_hz * window_s)) / (
        exits_hz**2 * window_s
    )
    assert Mmpp(rates_hz=(10, 90), sojourns_s=(3, 1)).expect_dispersion(window_s) == pytest.approx(expected)


def test_theory_says_nothing_where_it_has_no_formula() -> None:
    assert expect_gap_cv(Hawkes(base_hz=1, branching=0.5, delay_s=1)) is None
    assert expect_dispersion(Gamma(rate_hz=1, cv=2), 1.0) is None
    assert expect_dispersion(Sinusoid(mean_hz=1, amplitude_hz=1, period_s=9), 1.0) is None
    assert expect_dispersion(superpose(Poisson(1), Gamma(rate_hz=1, cv=2)), 1.0) is None


def test_a_renewal_process_hides_from_its_gaps_what_its_counts_show() -> None:
    calm, rush = Gamma(rate_hz=30, cv=1.05), Mmpp(rates_hz=(25, 50), sojourns_s=(40, 10))
    assert expect_gap_cv(rush) == pytest.approx(1.08, abs=0.03)  # nearly Poisson by its gaps
    assert rush.expect_dispersion(60.0) > 30  # and not at all by its counts
    assert (calm.expect_dispersion(60.0) or 0) < 1.2
    found = [index for seed in range(5) if (index := dispersion(draw(rush, seed, 3000), 60.0, duration_s=3000))]
    assert np.mean(found) > 20


@settings(max_examples=20, deadline=None)
@given(
    rates=st.lists(st.floats(0.5, 60), min_size=2, max_size=4),
    keep=st.floats(0.1, 0.9),
    seed=st.integers(0, 2**32),
)
def test_sums_and_thinnings_of_poisson_are_poisson(rates: list[float], keep: float, seed: int) -> None:
    times_s = superpose(*map(Poisson, rates)).times_ns(open_stream(seed, "arrivals"), 200.0) / 1e9
    thinned_s = times_s[open_stream(seed, "thin").random(len(times_s)) < keep]
    for found_s, mean in ((times_s, sum(rates) * 200), (thinned_s, sum(rates) * keep * 200)):
        assert abs(len(found_s) - mean) < 5 * math.sqrt(mean) + 5  # 5 standard deviations: over all examples and seeds
        index = dispersion(found_s, 1.0, duration_s=200.0)
        assert index is not None
        assert abs(index - 1) < 6 * math.sqrt(2 / 199 * (1 + 1 / (2 * mean / 200)))
        if len(found_s) > 400:
            assert variation(np.diff(found_s)) == pytest.approx(1, abs=6 / math.sqrt(len(found_s)))


@settings(max_examples=20, deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 80)), min_size=1, max_size=6),
    is_held=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_rescaling_keeps_the_integral_of_any_rate(points: list[tuple[float, float]], is_held: bool, seed: int) -> None:
    ordered = tuple(sorted(points, key=lambda point: point[0]))
    if max(rate_hz for _, rate_hz in ordered) < 1:
        return
    process = Rate(points=ordered, between="hold" if is_held else "line")
    times_s = process.times_ns(open_stream(seed, "arrivals"), 60.0) / 1e9
    mean = measure_offered_hz(process, 60.0) * 60
    assert (np.diff(times_s) >= 0).all()
    assert abs(len(times_s) - mean) < 5 * math.sqrt(mean) + 8

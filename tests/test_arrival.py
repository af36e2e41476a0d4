"""Arrival processes: what is drawn is what is declared, and the same everywhere."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape import arrival
from loadshape.arrival import (
    Arrival,
    Burst,
    Constant,
    Diurnal,
    Gamma,
    Hawkes,
    Mmpp,
    OnOff,
    Poisson,
    Rate,
    Recorded,
    Sinusoid,
    Superposition,
    Weibull,
    Window,
    Windows,
    measure_offered_hz,
    superpose,
)
from loadshape.errors import RecipeError
from loadshape.randomness import open_stream
from loadshape.stats import dispersion, variation

S = 1_000_000_000
PUBLISHED = "1e60892458ffb2832a3bde05cc61aa954311f01b3e9a4469c348b59059626d51"
PROCESSES = [
    Constant(rate_hz=30),
    Poisson(rate_hz=40),
    Gamma(rate_hz=40, cv=0.3),
    Gamma(rate_hz=40, cv=3),
    Gamma(rate_hz=40, burstiness=0.25),
    Weibull(rate_hz=40, cv=2),
    Weibull(rate_hz=40, shape=1.5),
    Mmpp(rates_hz=(10, 80, 0), sojourns_s=(8, 2, 1)),
    Mmpp(rates_hz=(10, 80), generator=((-0.1, 0.1), (0.5, -0.5))),
    OnOff(rate_hz=100, on_s=1, off_s=2),
    Hawkes(base_hz=10, branching=0.7, delay_s=0.4),
    Rate(points=((0, 10), (30, 60), (50, 0))),
    Rate(points=((0, 10), (10, 60), (30, 20)), between="hold", cv=2),
    Sinusoid(mean_hz=40, amplitude_hz=30, period_s=20, phase=0.25),
    Diurnal(mean_hz=40, weights=(1, 3, 5, 2), day_s=30, start_s=11),
    Windows((Window(0, 20), Window(10, 50, cv=3, family="weibull"), Window(30, 0), Window(40, 30, cv=0.5))),
    Windows((Window(5, 20), Window(10, 50, cv=2)), end_s=33),
    Burst(at_s=20, rate_hz=300, for_s=5),
    Poisson(rate_hz=40) + Burst(at_s=20, rate_hz=300, for_s=5),
    Mmpp(rates_hz=(10, 80), sojourns_s=(8, 2)) + Hawkes(base_hz=10, branching=0.7, delay_s=0.4),
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


def test_draws_are_those_that_were_published() -> None:
    """Another value here is another trace for the same recipe and seed, on this machine or since the last release."""
    drawn = hashlib.sha256()
    for process in PROCESSES:
        for seed in range(3):
            drawn.update(draw(process, 60, seed).tobytes())
    assert drawn.hexdigest() == PUBLISHED


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
    assert Gamma(rate_hz=10, burstiness=0.25).expect_gap_cv() == pytest.approx(2.0)
    assert Gamma(rate_hz=10, cv=2).shape == pytest.approx(0.25)
    assert np.array_equal(draw(Gamma(rate_hz=10, burstiness=0.25), 60), draw(Gamma(rate_hz=10, cv=2), 60))


def test_weibull_speaks_of_its_shape() -> None:
    assert Weibull(rate_hz=10, shape=0.5).expect_gap_cv() == pytest.approx(math.sqrt(5))
    assert np.array_equal(draw(Weibull(rate_hz=10, shape=0.5), 60), draw(Weibull(rate_hz=10, cv=math.sqrt(5)), 60))
    exponential = Weibull(rate_hz=10, cv=1)
    assert exponential.expect_dispersion(10) == pytest.approx(1)


def test_a_symmetric_chain_says_the_same_by_sojourns_and_by_its_generator() -> None:
    sojourns = Mmpp(rates_hz=(5, 50), sojourns_s=(10, 2))
    generator = Mmpp(rates_hz=(5, 50), generator=((-0.1, 0.1), (0.5, -0.5)))
    assert np.array_equal(draw(sojourns, 60), draw(generator, 60))
    assert sojourns.offered_hz(0) == pytest.approx((5 * 10 + 50 * 2) / 12)


def test_on_off_is_silent_when_it_is_off() -> None:
    gaps_s = np.diff(draw(OnOff(rate_hz=1000, on_s=1, off_s=10), 600) / S)
    assert np.count_nonzero(gaps_s > 0.1) == pytest.approx(600 / 11, rel=0.4)  # one pause a cycle
    assert np.median(gaps_s) == pytest.approx(math.log(2) / 1000, rel=0.1)


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        (Rate(points=((10, 20),)), {0: 20, 10: 20, 99: 20}),
        (Rate(points=((0, 10), (60, 100))), {0: 10, 30: 55, 60: 100, 99: 100}),
        (Rate(points=((0, 10), (60, 100)), between="hold"), {0: 10, 59.9: 10, 60: 100, 99: 100}),
        (Rate(points=((0, 10), (60, 10), (60, 100))), {59.9: 10, 60: 100}),
        (Sinusoid(mean_hz=40, amplitude_hz=30, period_s=20), {0: 40, 5: 70, 10: 40, 15: 10, 25: 70}),
        (Sinusoid(mean_hz=40, amplitude_hz=30, period_s=20, phase=0.25), {0: 70, 10: 10}),
        (Diurnal(mean_hz=20, weights=(1, 3), day_s=40), {10: 10, 20: 20, 30: 30, 40: 20, 50: 10}),
        (Diurnal(mean_hz=20, weights=(1, 3), day_s=40, start_s=30), {0: 30, 10: 20, 20: 10}),
        (Windows((Window(5, 20), Window(10, 50)), end_s=33), {0: 0, 5: 20, 9.9: 20, 10: 50, 32: 50, 33: 0}),
    ],
    ids=str,
)
def test_a_rate_is_what_was_written_down(rate: Arrival, told: dict[float, float]) -> None:
    assert {t_s: rate.offered_hz(t_s) for t_s in told} == pytest.approx(told)


@pytest.mark.parametrize(
    "process",
    [
        Rate(points=((0, 10), (30, 60), (50, 0), (60, 40))),
        Rate(points=((0, 100), (10, 0), (40, 90)), between="hold"),
        Sinusoid(mean_hz=40, amplitude_hz=40, period_s=7),
        Diurnal(mean_hz=40, weights=(1, 3, 0, 0, 2), day_s=30, start_s=11),
    ],
    ids=str,
)
def test_rescaled_arrivals_are_a_unit_process_in_operational_time(process: Arrival) -> None:
    """The time-rescaling theorem: the integral of the rate up to each arrival has exponential gaps of mean 1."""
    grid_s = np.linspace(0, 60, 6_001)
    rates_hz = np.array([process.offered_hz(t_s) for t_s in grid_s[:-1] + 0.005])
    upto = np.r_[0, np.cumsum(rates_hz * 0.01)]
    gaps = np.concatenate([np.diff(np.interp(draw(process, 60, seed) / S, grid_s, upto)) for seed in range(10)])
    ordered, n = np.sort(gaps), len(gaps)
    distance = np.abs(np.arange(1, n + 1) / n - (1 - np.exp(-ordered))).max()
    assert distance < 1.95 / math.sqrt(n)  # Kolmogorov, 0.1 %


def test_a_gamma_unit_process_keeps_its_cv_in_operational_time() -> None:
    flat, ramp = Rate(points=((0, 40),), cv=3), Rate(points=((0, 0), (100, 80)), cv=3)
    same = draw(Gamma(rate_hz=40, cv=3), 60)  # but for what a millionth of a gap adds up to
    assert np.allclose(draw(flat, 60)[:2000], same[:2000], rtol=0, atol=1e-4 * S)
    operational = 0.4 * (draw(ramp, 100) / S) ** 2  # the integral of 0.8 t
    assert variation(np.diff(operational)) == pytest.approx(3, rel=0.15)


def test_a_csv_file_is_a_rate_or_a_recording(tmp_path: Path) -> None:
    (tmp_path / "rate.csv").write_text("t_s,note,rate_hz\n0,calm,10\n60,rush,100\n")
    (tmp_path / "stamps.csv").write_text("at_ms\n1500\n1000\n4000\n")
    assert Rate(path=str(tmp_path / "rate.csv")).offered_hz(30) == pytest.approx(55)
    stamps = str(tmp_path / "stamps.csv")
    assert draw(Recorded(path=stamps, column="at_ms", unit="ms"), 60).tolist() == [0, S // 2, 3 * S]
    assert draw(Recorded(path=stamps, column="at_ms", unit="ms", origin=500), 2).tolist() == [S // 2, S]
    assert draw(Recorded((3, 1, 2)), 1).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a header with t_s, rate_hz, found nothing"),
        ("t_s,rate\n1,2\n", "expected a header with rate_hz, found t_s, rate"),
        ("t_s,rate_hz\n", "expected at least one row, found none"),
        ("t_s,rate_hz\n0,1\n5,fast\n", "line 3: rate_hz: expected a number, found 'fast'"),
        ("t_s,rate_hz\n0,1\n5\n", "line 3: rate_hz: expected a number, found None"),
        ("t_s,rate_hz\n5,1\n0,1\n", r"\[1\]\[0\]: expected a number at least 5.0, found 0.0"),
    ],
)
def test_a_csv_file_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "rate.csv"
    path.write_text(text)
    with pytest.raises(RecipeError, match=f"rate.csv.*{told}"):
        draw(Rate(path=str(path)), 10)
    with pytest.raises(RecipeError, match=r"none.csv: expected a CSV file; "):
        draw(Rate(path=str(tmp_path / "none.csv")), 10)


def test_every_process_is_decoded_by_its_name() -> None:
    tables: list[dict[str, Any]] = [
        {"process": "weibull", "rate_hz": 4, "shape": 0.5},
        {"process": "mmpp", "rates_hz": [1, 2], "generator": [[-1, 1], [2, -2]]},
        {"process": "on_off", "rate_hz": 1, "on_s": 1, "off_s": 1},
        {"process": "hawkes", "base_hz": 1, "branching": 0.5, "delay_s": 1},
        {"process": "rate", "points": [[0, 10], [60, 100]], "between": "hold"},
        {"process": "sinusoid", "mean_hz": 4, "amplitude_hz": 1, "period_s": 60},
        {"process": "diurnal", "mean_hz": 4, "weights": [1, 2, 3]},
        {"process": "windows", "windows": [{"start_s": 0, "rate_hz": 1}, {"start_s": 9, "rate_hz": 2, "cv": 3}]},
        {"process": "recorded", "stamps_ns": [1, 2]},
    ]
    kinds = {kind.__struct_config__.tag: kind for kind in arrival.PROCESSES}
    decoded = [msgspec.convert(table, kinds[table["process"]]) for table in tables]
    assert {"constant", "poisson", "gamma", "burst"} | {table["process"] for table in tables} == set(kinds)
    assert all(isinstance(process, Arrival) for process in decoded)


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
        (lambda: Gamma(rate_hz=1, burstiness=0), "burstiness"),
        (lambda: Weibull(rate_hz=1, cv=40), "cv"),
        (lambda: Weibull(rate_hz=1, shape=0), "shape"),
        (lambda: Mmpp(rates_hz=(1, -2), sojourns_s=(1, 1)), r"rates_hz\[1\]"),
        (lambda: Mmpp(rates_hz=(0, 0), sojourns_s=(1, 1)), "highest of rates_hz"),
        (lambda: Mmpp(rates_hz=(1, 2), sojourns_s=(1, 0)), r"sojourns_s\[1\]"),
        (lambda: Mmpp(rates_hz=(1, 2), sojourns_s=(1,)), "states"),
        (lambda: Mmpp(rates_hz=(1, 2), generator=((-1, 1), (0, 0))), r"generator\[1\]"),
        (lambda: Mmpp(rates_hz=(1, 2), generator=((-2, 1), (1, -1))), r"generator\[0\]\[0\]"),
        (lambda: OnOff(rate_hz=1, on_s=0, off_s=1), "on_s"),
        (lambda: Hawkes(base_hz=1, branching=1, delay_s=1), "branching"),
        (lambda: Hawkes(base_hz=90_000, branching=0.5, delay_s=1), r"base_hz / \(1 - branching\)"),
        (lambda: Rate(points=((0, -1),)), r"points\[0\]\[1\]"),
        (lambda: Rate(points=((5, 1), (4, 1))), r"points\[1\]\[0\]"),
        (lambda: Rate(points=((0, 0), (4, 0))), "points: highest rate"),
        (lambda: Sinusoid(mean_hz=1, amplitude_hz=2, period_s=9), "amplitude_hz"),
        (lambda: Diurnal(mean_hz=1, weights=(0, 0)), "sum of weights"),
        (lambda: Diurnal(mean_hz=1, weights=(1, 2), start_s=90_000), "start_s"),
        (lambda: Windows((Window(1, 1), Window(1, 1))), r"windows\[1\].start_s"),
        (lambda: Recorded((1, -1)), "stamps_ns"),
        (lambda: Burst(at_s=-1, rate_hz=1, for_s=1), "at_s"),
        (lambda: Burst(at_s=0, rate_hz=1, for_s=0), "for_s"),
    ],
)
def test_impossible_values_are_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}: expected a number .*, found .*; "):
        make()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Gamma(rate_hz=1), "cv: expected either cv or burstiness, found neither"),
        (lambda: Gamma(rate_hz=1, cv=1, burstiness=1), "cv: expected either cv or burstiness, found both"),
        (lambda: Weibull(rate_hz=1), "cv: expected either cv or shape, found neither"),
        (lambda: Mmpp(rates_hz=(1, 2)), "sojourns_s: expected either sojourns_s or generator"),
        (lambda: Rate(), "points: expected either points or path"),
        (lambda: Recorded(), "stamps_ns: expected either stamps_ns or path"),
        (lambda: Window(0, 1, family="cauchy"), "family: expected one of gamma, weibull"),  # type: ignore[arg-type]
        (
            lambda: Mmpp(rates_hz=(1, 2, 3), generator=((-1, 1, 0), (1, -1, 0), (1, 1, -2))),
            "generator: expected that every state can be reached",
        ),
    ],
)
def test_contradictions_are_refused(make: Any, told: str) -> None:
    with pytest.raises(RecipeError, match=f"^{told}"):
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

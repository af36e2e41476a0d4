# The sends as a process: no alarm for what a good generator does to a plan, an alarm for clumps and for a plan
# that is not what its recipe declares.

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from logs import make_log, request_row

from loadshape import stats
from loadshape.log import Log
from loadshape.stats import Floats
from loadshape.summary import summarize
from loadshape.validity import Check, Limits, judge
from loadshape.validity.arrivals import measure_arrivals

POISSON = [{"process": "poisson", "rate_hz": 40}]


def sent(due_s: Floats, late_s: Floats | float = 0.0, **run: Any) -> Log:
    begun_s = due_s + late_s
    pairs = zip((due_s * 1e3).tolist(), (begun_s * 1e3).tolist(), strict=True)
    rows = [request_row(n, due=due, begun=begun) for n, (due, begun) in enumerate(pairs)]
    return make_log(rows, duration_s=float(due_s[-1]), **run)


def find(log: Log, name: str) -> Check:
    (check,) = [it for it in judge(log).checks if it.name == name]
    return check


def plan(kind: str, rate_hz: float, count: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    if kind == "metronome":
        return np.arange(count) / rate_hz
    if kind == "poisson":
        return np.cumsum(rng.exponential(1 / rate_hz, count))
    if kind == "bursty":
        return np.cumsum(rng.gamma(0.25, 4 / rate_hz, count))
    return np.repeat(np.arange(1 + count // 50) * 50 / rate_hz, 50)[:count]  # fifty at once


@pytest.mark.parametrize("kind", ["metronome", "poisson", "bursty", "together"])
@pytest.mark.parametrize("rate_hz", [2, 40, 500, 2000])
def test_a_good_generator_is_not_complained_of(kind: str, rate_hz: float) -> None:
    for seed in range(3):
        count = 100 if seed else 1500
        due_s = plan(kind, rate_hz, count, seed)
        late_s = np.random.default_rng(seed).exponential(20e-6, count)
        if kind == "together":
            late_s = late_s + np.arange(count) % 50 * 20e-6  # one after the other
        assert find(sent(due_s, late_s), "arrivals as planned").status == "ok", (kind, rate_hz, seed)


@pytest.mark.parametrize("kind", ["metronome", "poisson"])
def test_clumps_are_found_even_where_each_request_is_nearly_in_time(kind: str) -> None:
    # 2,000 a second, sent on a grid of 2 ms: four at a time, 1 ms late on the average
    due_s = plan(kind, 2000, 1500, 1)
    check = find(sent(due_s, np.ceil(due_s / 0.002) * 0.002 - due_s), "arrivals as planned")
    assert check.status == "suspect"
    assert "between the gaps" in check.measured


def test_a_smoothed_process_is_found() -> None:
    due_s = plan("bursty", 40, 1000, 2)
    even_s = np.linspace(0, due_s[-1], 1000)
    assert find(sent(due_s, even_s - due_s), "arrivals as planned").status == "suspect"


@pytest.mark.parametrize(
    ("kind", "status"), [("poisson", "ok"), ("metronome", "suspect"), ("bursty", "suspect"), ("together", "suspect")]
)
def test_a_declared_poisson_process_is_held_to_it(kind: str, status: str) -> None:
    check = find(sent(plan(kind, 40, 800, 5), 30e-6, arrivals=POISSON), "declared process")
    assert check.status == status, check


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"arrivals": [{"process": "gamma", "rate_hz": 40, "cv": 2}]},
        {"arrivals": [*POISSON, {"process": "burst", "at_s": 1, "rate_hz": 9, "for_s": 1}]},
        {"arrivals": POISSON, "loop": {"mode": "closed", "slots": 4}},
    ],
)
def test_no_other_process_is_held_against_poisson(run: dict[str, Any]) -> None:
    log = sent(plan("metronome", 40, 100, 0), **run)
    assert "declared process" not in {it.name for it in judge(log).checks}


def test_only_first_turns_arrive_by_themselves() -> None:
    first_s = plan("poisson", 40, 400, 3)
    rows = [request_row(n, due=due * 1e3, begun=due * 1e3) for n, due in enumerate(first_s.tolist())]
    later = [row | {"request": 400 + n, "turn": 1, "due_ns": row["due_ns"] + 10**9} for n, row in enumerate(rows)]
    later = [row | {"begun_ns": row["due_ns"]} for row in later]
    assert find(make_log([*rows, *later], arrivals=POISSON), "declared process").status == "ok"


def test_few_requests_have_no_distribution() -> None:
    log = sent(plan("poisson", 40, 19, 0), arrivals=POISSON)
    assert measure_arrivals(log, Limits()) is None
    assert not {"arrivals as planned", "declared process"} & {it.name for it in judge(log).checks}
    assert summarize(log).arrivals is None


def test_the_numbers_of_a_metronome() -> None:
    found = measure_arrivals(sent(plan("metronome", 10, 1001, 0), 1e-5), Limits())
    assert found is not None
    assert found.planned.rate_hz == pytest.approx(10, rel=0.002)
    assert (found.planned.gap_cv, found.sent.gap_cv) == pytest.approx((0, 0), abs=1e-6)
    assert found.planned.dispersion["1 s"] == pytest.approx(0, abs=0.01)
    assert (found.gap_distance, found.declared, found.slack_s) == (0.0, "", 0.001)


def test_ten_second_rates_of_the_run() -> None:
    due_s = np.arange(250) / 10
    late_s = np.where((due_s >= 9) & (due_s < 10), 1.0, 0.0)
    found = summarize(sent(due_s, late_s)).slices
    assert [(it.start_s, it.length_s) for it in found] == [(0.0, 10.0), (10.0, 10.0), (20.0, pytest.approx(4.9))]
    assert [it.offered_hz for it in found] == pytest.approx([10, 10, 50 / 4.9])
    assert [it.achieved_hz for it in found] == pytest.approx([9, 11, 50 / 4.9])


@pytest.mark.parametrize(
    ("left", "right", "slack", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 0.0, 0.0),
        ([1, 1, 1, 1], [1.001] * 4, 0.0, 1.0),
        ([1, 1, 1, 1], [1.001] * 4, 0.01, 0.0),
        ([1, 2, 3, 4], [1, 2, 3, 9], 0.1, 0.25),
        ([1, 2], [5, 6], 0.1, 1.0),
        ([], [1.0], 0.0, None),
    ],
)
def test_distance(left: list[float], right: list[float], slack: float, expected: float | None) -> None:
    for pair in ((left, right), (right, left)):
        found = stats.distance(*(np.array(values, float) for values in pair), slack=slack)
        assert found == (None if expected is None else pytest.approx(expected))


def test_the_scaled_distance_of_exponential_samples_is_that_of_the_table() -> None:
    rng = np.random.default_rng(3)
    scaled = [found[1] for _ in range(2000) if (found := stats.exponential_distance(rng.exponential(3.0, 40)))]
    assert np.mean(np.array(scaled) > 1.094) == pytest.approx(0.05, abs=0.02)
    assert max(scaled) < 2.2
    assert stats.exponential_distance(np.ones(9)) is None

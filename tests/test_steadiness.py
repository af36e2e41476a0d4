"""The judged window: a warm-up left in it, a trend, an overload; and no alarm where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from logs import make_log, request_row

from loadshape.errors import InputError
from loadshape.log import Log
from loadshape.summary import summarize
from loadshape.validity import Limits, judge


def play(ttft_ms: np.ndarray, *, rate_hz: float = 20.0, mode: str = "open") -> Log:
    """A run whose requests, a metronome's, take so long each; done with the first token."""
    rows = []
    for number, took in enumerate(ttft_ms.tolist()):
        due = 1000.0 * number / rate_hz
        end = due + took
        rows.append(request_row(number, due=due, begun=due, sent=due, first_token=end, last_token=end, done=end))
    return make_log(rows, duration_s=len(ttft_ms) / rate_hz, loop={"mode": mode})


def find(log: Log, name: str, **limits: float) -> str | None:
    checks = judge(log, Limits(**limits), window_s=(0.0, log.run.duration_s)).checks
    return next((it.status for it in checks if it.name == name), None)


def noise(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(4.0, 0.4, count)


@pytest.mark.parametrize("seed", range(5))
def test_an_even_run_gives_no_alarm(seed: int) -> None:
    log = play(noise(1000, seed))
    assert [find(log, name) for name in ("warm-up", "trend", "overload")] == ["ok"] * 3


def test_a_slow_beginning_is_a_warm_up() -> None:
    slow = noise(1000)
    slow[:80] *= 4
    assert find(play(slow), "warm-up") == "suspect"
    assert find(play(slow), "warm-up", warmup_difference=10.0) == "ok"


def test_a_declared_warm_up_leaves_it_out() -> None:
    slow = noise(1000)
    slow[:80] *= 4
    names = {check.name: check.status for check in summarize(play(slow), warmup_s=4.5).verdict.checks}
    assert names["warm-up"] == "ok"


def test_a_ttft_that_rises_all_through_is_a_trend() -> None:
    assert find(play(noise(1000) * np.linspace(1, 2, 1000)), "trend") == "suspect"


def test_a_queue_that_only_grows_is_an_overload() -> None:
    log = play(50 + 20.0 * np.arange(1000))  # 20 ms behind with every request
    assert find(log, "overload") == "suspect"


def test_a_ramp_has_the_trend_that_it_was_asked_for() -> None:
    rows = []
    for number in range(1000):
        due = 50_000 * (number / 1000) ** 0.5
        end = due + number
        rows.append(request_row(number, due=due, begun=due, sent=due, first_token=end, last_token=end, done=end))
    log = make_log(rows, duration_s=50.0)
    assert [find(log, name) for name in ("warm-up", "trend", "overload")] == [None] * 3


def test_few_requests_show_nothing() -> None:
    assert [find(play(noise(100)), name) for name in ("warm-up", "trend", "overload")] == [None] * 3


def test_a_closed_loop_is_never_overloaded() -> None:
    assert find(play(50 + 20.0 * np.arange(1000), mode="closed"), "overload") is None


def test_without_a_window_nothing_is_asked_of_it() -> None:
    assert not {"warm-up", "trend", "overload"} & {it.name for it in judge(play(noise(1000))).checks}


def test_limits_below_zero_are_refused() -> None:
    with pytest.raises(InputError, match="trend_difference"):
        Limits(trend_difference=-1)


def test_answers_as_long_as_the_run_are_no_overload() -> None:
    assert find(play(np.full(1000, 60_000.0)), "overload") is None

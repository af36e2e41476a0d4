"""Symptoms: each pattern is told where it is, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from logs import make_log, read_row, request_row

from loadshape import symptoms
from loadshape.log import Log
from loadshape.report import render
from loadshape.series import Series
from loadshape.stats import rank_correlation
from loadshape.summary import summarize
from loadshape.symptoms import find_symptoms

RNG = np.random.default_rng(5)


def play(ttft_ms: list[float], **columns: list[Any]) -> Log:
    rows = []
    for number, took in enumerate(ttft_ms):
        due, end = 50.0 * number, 50.0 * number + took
        own = {name: values[number] for name, values in columns.items()}
        stamps = {"due": due, "begun": due, "sent": due, "first_token": end, "last_token": end, "done": end}
        rows.append(request_row(number, own.pop("outcome", "ok"), **stamps, **own))
    return make_log(rows, duration_s=len(ttft_ms) / 20)


def patterns(log: Log) -> list[str]:
    return [it.pattern for it in find_symptoms(summarize(log))]


def noise(count: int = 300) -> list[float]:
    return RNG.lognormal(3.0, 0.3, count).tolist()


def stream_log(*, in_step: bool) -> Log:
    """Four streams at a time, a read every 20 ms; each stops once for 300 ms, at its own time or at the same."""
    rows, reads = [], []
    for number in range(8):
        at, begin = 10.0, 0.0
        for step in range(60):
            stop = 30 if in_step else 5 + 7 * number
            at += 320.0 if step == stop else 20.0
            reads.append(read_row(number, at))
        stamps = {"due": begin, "begun": begin, "sent": begin, "first_token": 30.0, "last_token": at, "done": at}
        rows.append(request_row(number, **stamps))
    return make_log(rows, reads, duration_s=3.0)


def test_an_ordinary_run_has_none() -> None:
    assert patterns(play(noise(), prompt_tokens=RNG.integers(10, 1000, 300).tolist())) == []


def test_ttft_that_follows_the_input() -> None:
    tokens = RNG.integers(10, 1000, 300)
    assert patterns(play((tokens / 20.0).tolist(), prompt_tokens=tokens.tolist())) == [
        "TTFT follows the length of the input"
    ]


def test_ttft_that_follows_the_number_in_flight() -> None:
    growing = [20.0 + 4.0 * number for number in range(300)]
    assert "TTFT follows the number of requests in flight" in patterns(play(growing))


def test_a_client_that_is_late() -> None:
    rows = [
        request_row(
            n, due=50.0 * n, begun=50.0 * n + 9, sent=50.0 * n + 9, first_token=50.0 * n + 40, done=50.0 * n + 41
        )
        for n in range(300)
    ]
    (found,) = find_symptoms(summarize(make_log(rows, duration_s=15.0)))
    assert found.pattern == "the client was late"
    assert "p50 9.00 ms" in found.shown_by


def test_ttft_that_follows_the_queue_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ttft_ms = noise()
    due_s = np.arange(300) / 20.0
    waiting = Series("num_requests_waiting", 0, "requests", due_s - 0.01, np.array(ttft_ms) // 5)
    monkeypatch.setattr(symptoms, "list_series", lambda _: [waiting])
    assert patterns(play(ttft_ms)) == ["TTFT rises with the server's own queue"]


@pytest.mark.parametrize(
    ("in_step", "pattern"), [(True, "streams stand still together"), (False, "single streams stand still")]
)
def test_stalls_together_and_alone(in_step: bool, pattern: str) -> None:
    assert patterns(stream_log(in_step=in_step)) == [pattern]


def test_failures_that_lie_close_together() -> None:
    outcome = ["http_error" if 100 <= number < 120 else "ok" for number in range(300)]
    assert patterns(play(noise(), outcome=outcome)) == ["failures lie close together"]


def test_failures_all_over_are_no_cluster() -> None:
    outcome = ["http_error" if number % 15 == 0 else "ok" for number in range(300)]
    assert patterns(play(noise(), outcome=outcome)) == []


def test_the_report_calls_them_hypotheses() -> None:
    text = render(summarize(stream_log(in_step=True)))
    assert "hypotheses, not causes" in text
    assert "perhaps: " in text


def test_rank_correlation() -> None:
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 27.0])) == pytest.approx(1.0)
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([2.0, 2.0, 1.0])) == pytest.approx(-1.0)
    assert rank_correlation(np.ones(3), np.arange(3.0)) == 0.0

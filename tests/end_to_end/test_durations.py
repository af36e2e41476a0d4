# The declared end of a run, and loops that are set for it: what is begun, what is cut, what is never reached, and
# what the server sees of the totals.

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadshape.endpoint import Script, running
from loadshape.log import Log
from loadshape.report import render
from loadshape.summary import summarize
from loadshape.target import Target
from loadshape.trace import Trace
from traces import MS, closed_loop, open_loop, partly_open

from .conftest import SLACK_NS, play, read_columns

pytestmark = pytest.mark.slow
CUT = "cut at the end of the run"


@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_is_begun_that_falls_due_after_the_duration(url: str, tmp_path: Path, processes: int) -> None:
    log = play(open_loop(60, 10), Target(url), tmp_path / "a.log", processes=processes, duration_s=0.3)
    assert log.manifest.outcomes == {"ok": 30, "not_reached": 30}
    assert (log.manifest.ended, log.run.duration_s) == ("complete", 0.3)
    assert log.requests["outcome"].to_pylist() == ["ok"] * 30 + ["not_reached"] * 30
    assert log.requests["begun_ns"].null_count == 30


@pytest.mark.parametrize("network", ["kernel", "user"])
def test_what_is_in_flight_at_the_end_gets_the_grace_and_is_cut(url: str, tmp_path: Path, network: str) -> None:
    target = Target(url, headers={"x-itl-us": "20000"})
    trace = open_loop(40, 10, output_tokens=500)
    log = play(trace, target, tmp_path / "a.log", duration_s=0.2, grace_s=0.1, receive=network)
    assert log.manifest.outcomes == {"cancelled": 20, "not_reached": 20}
    assert log.requests["error"].to_pylist()[:20] == [CUT] * 20
    assert (read_columns(log.requests, "done_ns")[0][:20] >= 300 * MS).all()
    assert log.manifest.ended_ns < 2000 * MS
    assert log.reads.num_rows > 20


def test_without_a_grace_every_answer_is_awaited(url: str, tmp_path: Path) -> None:
    target = Target(url, headers={"x-itl-us": "5000"})
    log = play(open_loop(20, 10, output_tokens=100), target, tmp_path / "a.log", duration_s=0.1)
    assert log.manifest.outcomes == {"ok": 10, "not_reached": 10}
    assert log.manifest.ended_ns > 500 * MS


def test_a_closed_loop_ends_when_its_time_is_over(url: str, tmp_path: Path) -> None:
    log = play(closed_loop(5000, 4), Target(url), tmp_path / "a.log", processes=2, duration_s=0.4)
    due_ns, begun_ns = read_columns(log.requests, "due_ns", "begun_ns")
    assert due_ns.max() < 400 * MS
    assert set(log.manifest.outcomes) == {"ok", "not_reached"}
    assert log.manifest.outcomes["ok"] == np.count_nonzero(begun_ns >= 0) > 8
    assert log.manifest.ended == "complete"


def test_a_turn_that_falls_due_after_the_end_is_not_reached(url: str, tmp_path: Path) -> None:
    trace = partly_open(4, 3, gap=10, think=500)
    log = play(trace, Target(url), tmp_path / "a.log", duration_s=1.0)
    assert log.requests["outcome"].to_pylist() == ["ok", "ok", "not_reached"] * 4


def test_only_the_first_requests_of_the_trace(url: str, tmp_path: Path) -> None:
    log = play(open_loop(30, 5), Target(url), tmp_path / "a.log", processes=2, requests=11)
    assert log.requests["outcome"].to_pylist() == ["ok"] * 11 + ["not_reached"] * 19
    assert log.run.duration_s == 0.05
    turns = play(partly_open(4, 3, gap=5, think=5), Target(url), tmp_path / "b.log", requests=8)
    assert turns.requests["outcome"].to_pylist() == ["ok"] * 8 + ["not_reached"] * 4


# Totals of a run that is driven otherwise than its trace says


LOOPS: dict[str, tuple[Trace, dict[str, Any], int]] = {
    "slots for an open trace": (open_loop(40, 1, output_tokens=8), {"slots": 5}, 5),
    "more slots than the trace has": (closed_loop(40, 2, output_tokens=8), {"slots": 7}, 7),
    "slots for sessions": (partly_open(12, 3, gap=500, think=5, output_tokens=8), {"slots": 3}, 3),
    "a cap for an open trace": (open_loop(40, 1, output_tokens=8), {"cap": 6}, 6),
    "a cap below the slots": (closed_loop(40, 8, output_tokens=8), {"cap": 4}, 4),
}


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Log, int]]:
    """Play every loop with two workers; return its log and the most requests that the server had at one time."""
    folder = tmp_path_factory.mktemp("totals")
    with running(Script(ttft_s=0.03, itl_s=0.003), truth=folder / "truth.arrows") as url:
        logs = {
            name: play(trace, Target(url), folder / f"{name}.log", processes=2, **settings)
            for name, (trace, settings, _) in LOOPS.items()
        }
    with pa.ipc.open_stream(folder / "truth.arrows") as stream:
        truth = stream.read_all()
    return {name: (log, count_peak(truth, f"ls-{log.run.run}-")) for name, log in logs.items()}


def count_peak(truth: pa.Table, prefix: str) -> int:
    """Return the most requests of one run that the server had in progress, by its own record."""
    spans: dict[str, tuple[int, int]] = {}
    for row in truth.select(["request", "received_ns", "write_ns"]).to_pylist():
        if row["request"].startswith(prefix):
            _, last_ns = spans.get(row["request"], (0, 0))
            spans[row["request"]] = (row["received_ns"], max(last_ns, row["write_ns"]))
    steps = sorted([(begin_ns, 1) for begin_ns, _ in spans.values()] + [(end_ns, -1) for _, end_ns in spans.values()])
    return int(np.cumsum([step for _, step in steps]).max())


@pytest.mark.parametrize("name", LOOPS)
def test_the_server_sees_the_total_that_was_asked_for(peaks: dict[str, tuple[Log, int]], name: str) -> None:
    trace, settings, total = LOOPS[name]
    log, peak = peaks[name]
    assert log.manifest.outcomes == {"ok": trace.requests.num_rows}
    assert peak == total
    assert {name: log.run.loop[name] for name in settings} == settings
    assert Counter(log.requests["worker"].to_pylist()).keys() == {0, 1}


def test_due_times_of_the_trace_are_not_kept_in_a_loop_of_slots(peaks: dict[str, tuple[Log, int]]) -> None:
    log, _ = peaks["slots for an open trace"]
    due_ns, done_ns, worker = read_columns(log.requests, "due_ns", "done_ns", "worker")
    assert log.run.loop["mode"] == "closed"
    assert sorted(due_ns)[:5] == [0] * 5
    for own in (worker == 0, worker == 1):
        assert set(due_ns[own]) - {0} <= set(done_ns[own])


def test_waiting_for_a_cap_that_was_set_is_lateness(peaks: dict[str, tuple[Log, int]]) -> None:
    log, _ = peaks["a cap for an open trace"]
    due_ns, begun_ns = read_columns(log.requests, "due_ns", "begun_ns")
    assert due_ns.tolist() == [at * MS for at in range(40)]
    assert begun_ns[-1] - due_ns[-1] > 150 * MS - SLACK_NS


def test_the_report_states_the_loop_in_force(peaks: dict[str, tuple[Log, int]]) -> None:
    log, _ = peaks["slots for an open trace"]
    assert "closed loop as set for this run, 5 slots" in render(summarize(log), "text")

# The probe and the load: nothing is said of what few requests may differ by, and a generator that adds to what it
# measures is found.

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from logs import make_log, synthesize_log

from loadshape.errors import InputError
from loadshape.log import Log
from loadshape.replayer.job import MAX_PROBE_SHARE, Settings
from loadshape.replayer.terms import check_terms
from loadshape.report import render
from loadshape.summary import summarize
from loadshape.target import Target
from loadshape.trace import Loop
from loadshape.validity import Check, judge
from traces import ask, make_trace

SETTINGS = {"probe_share": 0.01}
ON = Settings(probe_share=0.01)


def probed(seed: int = 7, *, every: int = 40, added_ms: float = 0.0, requests: int = 2000, **run: Any) -> Log:
    """Return a log of two workers and a probe; the former see every token so much later than it came."""
    log = synthesize_log(requests, 10, seed=seed, failing=0.01)
    number = np.asarray(log.requests["request"])
    worker = np.where(number % every == 0, 2, number % 2)
    table = put(log.requests, "worker", worker.astype(np.uint16))
    later_ns = np.where(worker == 2, 0, round(added_ms * 1e6))
    for name in ("first_token_ns", "last_token_ns", "done_ns"):
        column = log.requests[name]
        moved = column.fill_null(0).to_numpy() + later_ns
        table = put(table, name, moved, mask=column.is_null().to_numpy())
    at_ns = np.asarray(log.reads["at_ns"])
    owner = np.asarray(log.reads["request"])
    stretched = at_ns + later_ns[owner] * (1 + np.arange(len(owner)) % 10)
    reads = put(log.reads, "at_ns", stretched)
    return make_log(table, reads, settings=SETTINGS, processes=2, **run)


def put(table: pa.Table, name: str, values: Any, mask: Any = None) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), [pa.array(values, mask=mask)])


def find(log: Log) -> Check:
    (check,) = [it for it in judge(log).checks if it.name == "probe against load"]
    return check


def test_a_good_generator_is_not_complained_of() -> None:
    assert {find(probed(seed)).status for seed in range(12)} == {"ok"}


def test_what_the_load_adds_is_found() -> None:
    check = find(probed(added_ms=60))
    assert check.status == "suspect"
    assert check.measured.startswith("TTFT p50 ")
    assert "ITL p50 " in check.measured


def test_less_than_the_tolerance_is_not_told() -> None:
    assert find(probed(added_ms=0.5)).status == "ok"


def test_a_probe_of_few_requests_is_unknown() -> None:
    check = find(probed(requests=30, every=15))
    assert (check.status, check.measured) == ("unknown", "the probe had too few requests")


def test_without_a_probe_there_is_no_check() -> None:
    assert "probe against load" not in {it.name for it in judge(synthesize_log()).checks}


def test_the_report_names_the_probe() -> None:
    assert "2 processes and a probe, timerfd pacing" in render(summarize(probed()), "text")


@pytest.mark.parametrize("share", [-0.01, 0.02, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=r"probe_share: expected 0 to 0\.01"):
        Settings(probe_share=share)


def test_the_probe_has_less_than_its_share() -> None:
    assert 1 / ON.probe_every < MAX_PROBE_SHARE
    assert (ON.probe_every, Settings().probe_every) == (101, 0)
    assert (Settings(processes=2, probe_share=0.005).workers, Settings(processes=2).workers) == (3, 2)


@pytest.mark.parametrize("loop", [Loop("closed", slots=4), Loop("open", cap=4)])
def test_a_probe_and_totals_do_not_go_together(loop: Loop) -> None:
    due = None if loop.mode == "closed" else 0
    with pytest.raises(InputError, match="probe_share: a probe has no part of slots or of a cap"):
        check_terms(
            make_trace(ask(due), loop=loop), [Target("http://127.0.0.1:1/v1")], Settings(processes=1, probe_share=0.01)
        )

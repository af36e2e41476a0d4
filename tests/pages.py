# Pages of every kind, made of small synthetic runs: what the tests of the pages and of the browser look at.

"""One value of each kind that has an HTML page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from logs import synthesize_log

from loadshape.comparison import Comparison, compare
from loadshape.gate import Gate, rule
from loadshape.log import PLANNED, Log
from loadshape.saturation import Curve, Point, measure_point
from loadshape.search import Found, Result, Trial
from loadshape.summary import Summary, summarize


def plan(log: Log, *, seed: int = 1) -> Log:
    """Return the log with inputs of many lengths, and with what was planned of them."""
    rows = log.requests.num_rows
    wanted = np.random.default_rng(seed).lognormal(6, 1, rows).astype(np.int64) + 1
    place = log.requests.schema.get_field_index("prompt_tokens")
    requests = log.requests.set_column(place, log.requests.schema.field(place), pa.array(wanted + 12, pa.uint32()))
    columns: dict[str, Any] = {it.name: np.arange(rows) for it in PLANNED if it.name in ("request", "session")}
    columns |= {"turn": np.zeros(rows), "shared_tokens": np.zeros(rows), "kind": np.array(["chat", "code"])[wanted % 2]}
    columns |= {"input_tokens": wanted, "output_tokens": np.full(rows, 64)}
    arrays = [
        pa.array(columns[it.name]).cast(it.type) if it.name in columns else pa.nulls(rows, it.type) for it in PLANNED
    ]
    return replace(log, requests=requests, planned=pa.Table.from_arrays(arrays, names=PLANNED.names))


def make_summary(slowness: float = 1.0) -> Summary:
    return summarize(plan(synthesize_log(slowness=slowness)))


def make_comparison() -> Comparison:
    return compare(*([make_summary(by) for by in side] for side in ((1.3, 1.28), (1.0, 1.01))))


def make_curve(key: str = "arrivals.rate") -> Curve:
    return Curve(key, tuple(_point(level) for level in (5.0, 10.0, 20.0, 30.0, 40.0)))


def make_found() -> Found:
    gate = Gate(objectives=("ttft.p95 <= 400 ms", "errors < 1%", "maximize output_tokens_per_s"))
    trials = (Trial(10, 30, "met"), Trial(20, 30, "unsure"), Trial(40, 30, "missed"), Trial(20, 120, "met"))
    runs = {level: [summarize(synthesize_log(round(level) * 20, 4, failing=0))] for level in (10.0, 20.0, 40.0)}
    return Found(Result(20, 40, trials, "bounds within the precision"), {at: rule(gate, it) for at, it in runs.items()})


def _point(level: float) -> Point:
    logs = (synthesize_log(round(level) * 20, 8, seed=seed, slowness=0.5 + level / 40) for seed in (1, 2))
    return measure_point(level, [summarize(log) for log in logs])

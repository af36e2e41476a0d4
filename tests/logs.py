# Small logs, written by hand, in memory: what the judging tests read.
#
# A row names only the columns that matter to its test; the others get the values of a request that went
# well, or null. Times are given in ms since the epoch of the run and become the ns of the schema.

"""Builders of in-memory Logs: from rows by hand, and a synthetic one of any size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from loadshape.log import HEALTH, OUTCOMES, PLANNED, READS, REQUESTS, Log, LogManifest, Run, count_outcomes

MS = 1_000_000
STAMPS = ("due", "begun", "connected", "sent", "written", "head", "first_byte", "first_token", "first_content")
_ALL_STAMPS = (*STAMPS, "last_token", "done")
_REQUEST = {"session": 0, "turn": 0, "target": 0, "node": 0, "worker": 0, "reads": 0, "events": 0}
_REQUEST |= {"bytes_in": 0, "bytes_out": 0}


def request_row(number: int, outcome: str = "ok", **columns: Any) -> dict[str, Any]:
    """Return a row of REQUESTS; stamps are given without their unit, in ms: `due=0, begun=0.02, ...`."""
    stamps = {name: columns.pop(name) for name in _ALL_STAMPS if name in columns}
    in_ns = {f"{name}_ns": None if ms is None else round(ms * MS) for name, ms in stamps.items()}
    return dict.fromkeys(REQUESTS.names) | _REQUEST | {"request": number, "outcome": outcome} | in_ns | columns


def read_row(number: int, at: float, deltas: int = 1, tokens: int | None = None, lag: float = 0.02) -> dict[str, Any]:
    """Return a row of READS; `at` and `lag` (ours behind the kernel) in ms."""
    row = {"request": number, "at_ns": round(at * MS), "seen_ns": round((at + lag) * MS), "bytes": 200 * max(deltas, 1)}
    return row | {"events": max(deltas, 1), "deltas": deltas, "kinds": 2, "tokens": tokens}


def make_planned(*rows: dict[str, Any]) -> pa.Table:
    """Return what was planned: a row for each request in turn, of which *rows* name only some columns."""
    plain = {"session": 0, "turn": 0, "kind": "chat", "api": "chat", "input_tokens": 1, "output_tokens": 1}
    full = [
        dict.fromkeys(PLANNED.names) | plain | {"shared_tokens": 0, "request": number} | row
        for number, row in enumerate(rows)
    ]
    columns = [pa.array([row[item.name] for row in full]).cast(item.type) for item in PLANNED]
    return pa.Table.from_arrays(columns, schema=PLANNED)


def health_row(at: float, worker: int = 0, **columns: Any) -> dict[str, Any]:
    """Return a row of HEALTH of a quiet machine; `at` in ms, other columns by their names."""
    quiet = dict.fromkeys(HEALTH.names, 0) | {"worker": worker, "at_ns": round(at * MS), "loop_lag_ns": 50_000}
    return quiet | {"cpu_ns": round(0.1 * at * MS), "rss_bytes": 100_000_000} | columns


def make_run(planned: int, **columns: Any) -> Run:
    """Return the conditions of a run of 20 s against an invented endpoint."""
    about: dict[str, Any] = {
        "run": "5eed0001",
        "trace_digest": "sha256:" + "ab" * 32,
        "trace_name": "balanced-chat",
        "planned": planned,
        "duration_s": 20.0,
        "loop": {"mode": "open", "slots": None, "cap": None},
        "targets": [{"url": "http://192.0.2.1:8000/v1", "model": "tiny"}],
        "receive": "kernel",
        "pacing": "timerfd",
        "processes": 1,
        "settings": {},
        "epoch_monotonic_ns": 1,
        "epoch_realtime_ns": 1_900_000_000_000_000_000,
        "offset_width_ns": 80,
    }
    return Run(**(about | columns))


def make_log(
    requests: Sequence[dict[str, Any]] | pa.Table = (),
    reads: Sequence[dict[str, Any]] | pa.Table = (),
    health: Sequence[dict[str, Any]] | pa.Table = (),
    *,
    planned: int | None = None,
    ended: str = "complete",
    environment: dict[str, Any] | None = None,
    **run: Any,
) -> Log:
    """Return a Log of these rows (or tables); further arguments are columns of the Run."""
    rows = _table(requests, REQUESTS)
    conditions = make_run(rows.num_rows if planned is None else planned, **run)
    manifest = LogManifest(
        run=conditions,
        shards=[],
        outcomes=count_outcomes(rows),
        ended=ended,
        ended_ns=round(conditions.duration_s * 1e9),
    )
    return Log(Path("memory.log"), manifest, environment or {}, rows, _table(reads, READS), _table(health, HEALTH))


def _table(rows: Sequence[dict[str, Any]] | pa.Table, schema: pa.Schema) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    columns = [_array([row[item.name] for row in rows], item) for item in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _array(values: list[Any], item: pa.Field) -> pa.Array:
    if not pa.types.is_dictionary(item.type):
        return pa.array(values, item.type)
    codes = pa.array([OUTCOMES.index(value) for value in values], pa.int8())
    return pa.DictionaryArray.from_arrays(codes, pa.array(OUTCOMES))


def synthesize_log(
    requests: int = 800,
    reads_each: int = 40,
    *,
    duration_s: float = 20.0,
    seed: int = 7,
    failing: float = 0.02,
    slowness: float = 1.0,
) -> Log:
    """Return a plausible log: Poisson arrivals, lognormal TTFT and gaps, a share of requests that fail.

    Every request has *reads_each* token-bearing reads unless it failed. The same seed gives the same log, with first
    tokens that come *slowness* times as late.
    """
    rng = np.random.default_rng(seed)
    due = np.sort(rng.uniform(0, duration_s * 1e9, requests)).astype(np.int64)
    sent = due + rng.lognormal(np.log(25_000), 0.4, requests).astype(np.int64)
    busy = 1 + 1.5 * np.exp(-(((due / 1e9 - 0.6 * duration_s) / (0.08 * duration_s)) ** 2))  # a hump, to look at
    gaps = rng.lognormal(np.log(18e6), 0.25, (requests, reads_each)) * busy[:, None]
    gaps[:, 0] = rng.lognormal(np.log(120e6), 0.5, requests) * busy**2 * slowness
    at = sent[:, None] + np.cumsum(gaps, axis=1).astype(np.int64)
    bad = rng.random(requests) < failing
    kind = np.where(rng.random(requests) < 0.5, "http_error", "truncated")
    outcome = np.where(bad, kind, "ok")
    table = _synthesize_requests(due, sent, at, outcome)
    log = make_log(table, _synthesize_reads(at[~bad], np.flatnonzero(~bad), rng), duration_s=duration_s)
    health = [health_row(ms, in_flight=_count(table, ms * MS)) for ms in range(0, round(duration_s * 1000), 100)]
    return make_log(table, log.reads, health, duration_s=duration_s, environment={"client": {"cores": 2}})


def _synthesize_requests(
    due: np.ndarray[Any, Any], sent: np.ndarray[Any, Any], at: np.ndarray[Any, Any], outcome: np.ndarray[Any, Any]
) -> pa.Table:
    ok, rows = outcome == "ok", len(due)
    stamps = {
        "due": due,
        "begun": np.maximum(due, sent - 4000),
        "connected": None,
        "sent": sent,
        "written": sent + 9000,
    }
    stamps |= {"head": at[:, 0] - 1000, "first_byte": at[:, 0] - 1000, "first_token": at[:, 0]}
    stamps |= {"first_content": at[:, 0], "last_token": at[:, -1], "done": at[:, -1] + 150_000}
    columns: dict[str, Any] = {name: np.zeros(rows, np.int64) for name in _REQUEST}
    columns |= {f"{name}_ns": values for name, values in stamps.items()}
    columns |= {"request": np.arange(rows), "session": np.arange(rows), "reused": np.ones(rows, np.bool_)}
    columns |= {"prompt_tokens": np.full(rows, 512), "completion_tokens": np.full(rows, at.shape[1])}
    columns |= {"reads": np.where(ok, at.shape[1], 0), "events": np.where(ok, at.shape[1], 0)}
    arrays = []
    for item in REQUESTS:
        if item.name == "outcome":
            codes = pa.array([OUTCOMES.index(name) for name in outcome], pa.int8())
            arrays.append(pa.DictionaryArray.from_arrays(codes, pa.array(OUTCOMES)))
        elif item.name == "error":
            text = {"http_error": "503 Service Unavailable: queue full", "truncated": "stream ended without [DONE]"}
            arrays.append(pa.array([text.get(name) for name in outcome]))
        elif columns.get(item.name) is None:
            arrays.append(pa.nulls(rows, item.type))
        else:
            nulls = ~ok if item.name in ("first_token_ns", "last_token_ns", "completion_tokens") else None
            arrays.append(pa.array(columns[item.name], mask=nulls).cast(item.type))
    return pa.Table.from_arrays(arrays, schema=REQUESTS)


def _synthesize_reads(at: np.ndarray[Any, Any], owner: np.ndarray[Any, Any], rng: np.random.Generator) -> pa.Table:
    rows = at.size
    ones = np.ones(rows, np.int64)
    columns = {"request": np.repeat(owner, at.shape[1]), "at_ns": at.ravel(), "bytes": 210 * ones, "events": ones}
    columns |= {
        "deltas": ones,
        "kinds": 2 * ones,
        "seen_ns": at.ravel() + rng.exponential(25_000, rows).astype(np.int64),
    }
    arrays = [
        pa.array(columns[item.name]).cast(item.type) if item.name in columns else pa.nulls(rows, item.type)
        for item in READS
    ]
    return pa.Table.from_arrays(arrays, schema=READS)


def _count(requests: pa.Table, now_ns: int) -> int:
    begun, done = (np.asarray(requests[f"{stamp}_ns"]) for stamp in ("begun", "done"))
    return int(np.count_nonzero(begun <= now_ns) - np.count_nonzero(done <= now_ns))

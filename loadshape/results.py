# A log in the files that other programs read.
#
# Law: nothing is judged here. Tables go out as they are, in the columns of docs/log.md; figures in another tool's
# format are those of its own definitions (dialect.py), so that a dashboard shows what that tool would have shown. What
# a log does not hold, such as the text of an answer, is empty there and never made up.
#
#     parquet csv    a folder: requests, reads, health and planned, a file each
#     vllm           the JSON of `vllm bench serve --save-result --save-detailed`
#     aiperf         a folder: profile_export.jsonl, a line a request, and profile_export_aiperf.json
#
# Times in aiperf's records are of the wall clock in ns, latencies in ms; vllm's are s, and its start times monotonic.

"""Export a log as tables, or in the result formats of vllm bench serve and aiperf."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loadshape import metrics
from loadshape.dialect import DIALECTS, Term, View, look_as
from loadshape.errors import InputError, LogError
from loadshape.log import READS, Log
from loadshape.stats import Floats
from loadshape.summary import Summary
from loadshape.units import NS_PER_S

_MS = 1e3
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_COLUMNS = ["request", "session", "turn", "worker", "begun_ns", "head_ns", "done_ns", "outcome", "status", "error"]
_COLUMNS += ["prompt_tokens", "reasoning_tokens"]
_AIPERF_UNITS = {"s": "ms", "1/s": "requests/sec", "tokens/s": "tokens/sec"}


def export_log(summary: Summary, path: str | Path, format: str, *, force: bool = False) -> Path:
    """Write the log of *summary* to *path* in one of FORMATS, whole or not at all, and return the path.

    Tables are the whole log; the formats of other tools hold the window of the summary. Raises InputError for another
    format, and LogError when *path* exists, unless *force*.
    """
    if format not in FORMATS:
        raise InputError(f"format: expected one of {', '.join(FORMATS)} for a log, found {format!r}")
    path = Path(path)
    if path.exists() and not force:
        raise LogError(f"{path}: exists; choose another name, or say --force to replace it")
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        FORMATS[format](summary, scratch)
        _remove(path)
        scratch.replace(path)
    except OSError as problem:
        raise LogError(f"{path}: cannot be written: {problem.strerror or problem}") from None
    finally:
        _remove(scratch)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_parquet(summary: Summary, folder: Path) -> None:
    folder.mkdir()
    for name, schema, parts in _list_tables(summary.log):
        with pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd") as writer:
            for part in parts:
                writer.write_table(part)


def _write_csv(summary: Summary, folder: Path) -> None:
    folder.mkdir()
    for name, schema, parts in _list_tables(summary.log):
        plain = pa.schema([pa.field(it.name, _flatten(it.type)) for it in schema])
        with pc_csv.CSVWriter(str(folder / f"{name}.csv"), plain) as writer:
            for part in parts:
                writer.write_table(part.cast(plain))


def _flatten(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _list_tables(log: Log) -> Iterator[tuple[str, pa.Schema, Iterator[pa.Table]]]:
    for name in ("requests", "health", "planned"):
        table = getattr(log, name)
        if table is not None:
            yield name, table.schema, iter([table])
    yield "reads", READS, log.read_parts(*READS.names)


def _write_vllm(summary: Summary, path: Path) -> None:
    view, members, log = look_as(summary, "vllm"), summary.members, summary.log
    place = _place(view, members)
    answered = place >= 0
    itls = _split_gaps(view, 1.0)
    begun_s = metrics.read_stamp_s(members, "begun") + log.run.epoch_monotonic_ns / NS_PER_S
    tokens = np.nan_to_num(view.tokens).astype(np.int64)
    result: dict[str, Any] = {
        "date": datetime.fromtimestamp(log.run.epoch_realtime_ns / NS_PER_S, UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": "openai-chat",
        "label": log.run.trace_name,
        "model_id": str(log.run.targets[0].get("model", "")) if log.run.targets else "",
        "num_prompts": members.num_rows,
        "duration": view.duration_s,
        "completed": view.requests.num_rows,
        "failed": view.failed,
        "total_input_tokens": int(np.nansum(metrics.read_column(view.requests, "prompt_tokens").astype(np.float64))),
        "total_output_tokens": int(tokens.sum()),
        **{it.name: it.take(view) for it in DIALECTS["vllm"].terms if it.unit != "s"},
        "input_lens": _fill(metrics.read_column(members, "prompt_tokens")),
        "output_lens": [int(tokens[at]) if at >= 0 else 0 for at in place],
        "ttfts": [float(view.first_s[at]) if at >= 0 else 0.0 for at in place],
        "itls": [itls.get(number, []) for number in members["request"].to_pylist()],
        "latencies": [float(view.last_s[at]) if at >= 0 else 0.0 for at in place],
        "start_times": np.nan_to_num(begun_s).tolist(),
        "generated_texts": [""] * members.num_rows,
        "errors": [
            "" if well else error or "failed"
            for well, error in zip(answered, members["error"].to_pylist(), strict=True)
        ],
    }
    for term in DIALECTS["vllm"].terms:
        if term.unit == "s":
            result |= _describe_vllm(term, view)
    path.write_bytes(msgspec.json.encode(result) + b"\n")


def _describe_vllm(term: Term, view: View) -> dict[str, float]:
    values = _take(term, view) * _MS
    values = values if len(values) else np.zeros(1)  # as it does: no value is told as 0
    figures = {
        "mean": values.mean(),
        "median": np.median(values),
        "std": values.std(),
        "p99": np.percentile(values, 99),
    }
    return {f"{name}_{term.name}_ms": float(value) for name, value in figures.items()}


def _write_aiperf(summary: Summary, folder: Path) -> None:
    view = look_as(summary, "aiperf")
    folder.mkdir()
    with (folder / "profile_export.jsonl").open("wb") as file:
        for record in _list_records(summary, view):
            file.write(msgspec.json.encode(record) + b"\n")
    about: dict[str, Any] = {"benchmark_id": summary.log.run.run, "was_cancelled": False}
    about |= {term.name: _describe_aiperf(term, view) for term in DIALECTS["aiperf"].terms}
    about["request_count"] = {"unit": "requests", "avg": float(view.requests.num_rows)}
    about["benchmark_duration"] = {"unit": "sec", "avg": view.duration_s}
    text = json.dumps(about, indent=2)
    (folder / "profile_export_aiperf.json").write_text(text + "\n", encoding="utf-8")


def _describe_aiperf(term: Term, view: View) -> dict[str, Any]:
    unit = _AIPERF_UNITS[term.unit]
    if term.unit != "s":
        return {"unit": unit, "avg": term.take(view)}
    values = _take(term, view) * _MS
    if len(values) == 0:
        return {"unit": unit, "count": 0}
    spread = {
        f"p{at}": float(value) for at, value in zip(_PERCENTILES, np.percentile(values, _PERCENTILES), strict=True)
    }
    ends = {"min": values.min(), "max": values.max(), "std": values.std()}
    about = {"unit": unit, "avg": float(values.mean()), **spread} | {name: float(it) for name, it in ends.items()}
    return about | {"count": len(values), "sum": float(values.sum())}


def _list_records(summary: Summary, view: View) -> Iterator[dict[str, Any]]:
    members, run = summary.members, summary.log.run
    place, gaps = _place(view, members), _split_gaps(view, _MS)
    for at, row in zip(place.tolist(), members.select(_COLUMNS).to_pylist(), strict=True):
        start_ns, ack_ns, end_ns = (
            None if row[name] is None else row[name] + run.epoch_realtime_ns
            for name in ("begun_ns", "head_ns", "done_ns")
        )
        if start_ns is None:
            continue  # never sent, so aiperf would have no record of it
        metadata = {
            "session_num": row["session"],
            "x_request_id": f"ls-{run.run}-{row['request']}",
            "conversation_id": str(row["session"]),
            "turn_index": row["turn"],
            "request_start_ns": start_ns,
            "request_ack_ns": ack_ns,
            "request_end_ns": start_ns if end_ns is None else end_ns,
            "worker_id": f"worker_{row['worker']}",
            "record_processor_id": "loadshape",
            "benchmark_phase": "profiling",
            "was_cancelled": row["outcome"] == "cancelled",
        }
        error = {"code": row["status"], "type": row["outcome"], "message": row["error"] or row["outcome"]}
        figures = _tell_figures(view, at, row, gaps.get(row["request"], [])) if at >= 0 else {}
        yield {"metadata": metadata, "metrics": figures, "error": None if at >= 0 else error}


def _tell_figures(view: View, at: int, row: dict[str, Any], gaps_ms: list[float]) -> dict[str, Any]:
    figures: dict[str, tuple[Any, str]] = {
        "input_sequence_length": (row["prompt_tokens"], "tokens"),
        "time_to_first_token": (float(view.first_s[at]) * _MS, "ms"),
        "request_latency": (float(view.last_s[at]) * _MS, "ms"),
        "inter_chunk_latency": (gaps_ms, "ms"),
        "output_sequence_length": (_or_none(view.tokens[at]), "tokens"),
        "inter_token_latency": (_or_none(view.mean_gap_s[at] * _MS), "ms"),
        "reasoning_token_count": (row["reasoning_tokens"], "tokens"),
    }
    return {name: {"value": value, "unit": unit} for name, (value, unit) in figures.items() if value is not None}


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _place(view: View, members: pa.Table) -> NDArray[np.int64]:
    """Return where each member stands in the view, -1 where it does not."""
    numbers, known = np.asarray(members["request"]), np.asarray(view.requests["request"])
    if len(known) == 0:
        return np.full(len(numbers), -1)
    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.where(known[place] == numbers, place, -1)


def _split_gaps(view: View, scale: float) -> dict[int, list[float]]:
    """Return the gaps of each request by its number, in the order of time."""
    order = np.argsort(view.owner, kind="stable")
    owner, gaps = view.owner[order], view.gap_ns[order] / NS_PER_S * scale
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    parts = np.split(gaps, starts[1:]) if len(starts) else []
    return {int(owner[start]): part.tolist() for start, part in zip(starts, parts, strict=True)}


def _take(term: Term, view: View) -> Floats:
    values = term.take(view)
    assert isinstance(values, np.ndarray)  # of every term in seconds
    return values[~np.isnan(values)]


def _fill(values: NDArray[Any]) -> list[int]:
    return [int(value) for value in np.nan_to_num(values.astype(np.float64))]


FORMATS: dict[str, Callable[[Summary, Path], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "vllm": _write_vllm,
    "aiperf": _write_aiperf,
}

# The report once more, by other hands: the main numbers of a log from its raw shards, in plain Python.
#
# Law: nothing of loadshape is imported, and no numpy: one loop over rows where the program has columns, so that a
# mistake in one is not in the other. What it must agree on is written in docs/metrics.md and docs/log.md, and
# nowhere else. Percentiles are type 7 of Hyndman & Fan; below 6.64 / (1 - q) values there is none.

"""Recompute a report: python tests/checker.py NAME.log"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

QUANTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
NS = 1_000_000_000

Row = dict[str, Any]


def check_log(path: Path) -> dict[str, Any]:
    """Return outcomes, and count and percentiles of TTFT, TPOT, E2E, ICL and lateness, of the log at *path*."""
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    requests = list(read_rows(path, manifest, "requests"))
    numbers = sorted(row["request"] for row in requests)
    if numbers != list(range(manifest["run"]["planned"])):
        raise ValueError(f"{path}: not one row for every planned request")
    end_s = find_end_s(manifest, requests)
    due = [row for row in requests if fell_due(row) and row["due_ns"] / NS <= end_s]
    ok = [row for row in due if row["outcome"] == "ok"]
    values = {
        "lateness": list(measure(due, "due_ns", "begun_ns")),
        "ttft": list(measure(ok, "due_ns", "first_token_ns")),
        "e2e": list(measure(ok, "due_ns", "last_token_ns")),
        "tpot": list(measure_tpot(ok)),
        "icl": list(measure_icl(read_rows(path, manifest, "reads"), {row["request"] for row in ok})),
    }
    outcomes = Counter(row["outcome"] for row in requests)
    return {"outcomes": dict(outcomes)} | {name: describe(found) for name, found in values.items()}


def read_rows(path: Path, manifest: dict[str, Any], table: str) -> Iterator[Row]:
    """Yield the rows of all shards of a table, in the order in which they were written."""
    for shard in manifest["shards"]:
        if shard["table"] == table:
            with pa.ipc.open_stream(path / shard["path"]) as stream:
                for batch in stream:
                    yield from batch.to_pylist()


def find_end_s(manifest: dict[str, Any], requests: list[Row]) -> float:
    """Return when the run ended: as planned, or when it was cut, or with the last request that was begun."""
    planned_s, ended_s = manifest["run"]["duration_s"], manifest["ended_ns"] / NS
    length_s = min(planned_s, ended_s) or planned_s or ended_s
    last_ns = max((row["due_ns"] for row in requests if None not in (row["begun_ns"], row["due_ns"])), default=0)
    return max(length_s, last_ns / NS, 0.0)


def fell_due(row: Row) -> bool:
    return row["due_ns"] is not None and row["due_ns"] >= 0 and row["outcome"] != "not_reached"


def measure(rows: list[Row], start: str, end: str) -> Iterator[float]:
    for row in rows:
        if row[start] is not None and row[end] is not None:
            yield (row[end] - row[start]) / NS


def measure_tpot(rows: list[Row]) -> Iterator[float]:
    for row in rows:
        tokens, first_ns, last_ns = row["completion_tokens"], row["first_token_ns"], row["last_token_ns"]
        if tokens is not None and tokens >= 2 and None not in (first_ns, last_ns):
            yield (last_ns - first_ns) / NS / (tokens - 1)


def measure_icl(reads: Iterator[Row], members: set[int]) -> Iterator[float]:
    """Yield the gaps between token-bearing reads of the same request."""
    before: dict[int, int] = {}
    for read in reads:
        number, at_ns = read["request"], read["at_ns"]
        if number in members and read["deltas"] > 0:
            if number in before:
                yield (at_ns - before[number]) / NS
            before[number] = at_ns


def describe(values: list[float]) -> dict[str, Any]:
    ordered = sorted(values)
    return {"count": len(ordered)} | {name: find_quantile(ordered, q) for name, q in QUANTILES.items()}


def find_quantile(ordered: list[float], q: float) -> float | None:
    if len(ordered) * (1 - q) < 6.64 - 1e-6:
        return None
    rank = q * (len(ordered) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return low if low == high else low + (high - low) * (rank - math.floor(rank))


if __name__ == "__main__":
    print(json.dumps(check_log(Path(sys.argv[1])), indent=2))

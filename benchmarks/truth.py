# Two servers that know when they really sent each byte, and one way to compare a log with them.
#
# A truth is an array of writes (request id, before_ns, bytes) on CLOCK_MONOTONIC, which is our clock too
# when both run on one host. The error of a stamp is the stamp minus before_ns of the write whose last byte
# it covers, matched by byte offset inside a stream: no parser is involved, so none can hide a loss.
#
#   embedded  loadshape.endpoint with a truth log: always there; itself good for about 10,000 chunks/s a core
#   external  a C server that streams like vLLM, given by --server PATH (or LOADSHAPE_TRUTH_SERVER); takes
#             --port --ttft-us --itl-us --step-us --truth FILE; logs 48-byte records after a 64-byte header:
#             kind u8 (3: write), flags u8, aux u16, request u32, before i64, after i64, due i64, pad i64,
#             token u32, bytes u32; kind 2 has the x-request-id in bytes 8 to 47

"""Truth servers for the benchmarks, and the error of our stamps against them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from loadshape.endpoint import Script, running
from loadshape.log import Log

FIELDS = "kind u1,flags u1,aux <u2,request <u4,before <i8,after <i8,due <i8,pad <i8,token <u4,bytes <u4"
RECORD = np.dtype([tuple(field.split()) for field in FIELDS.split(",")])
COLUMNS = ["request", "at_ns", "seen_ns", "bytes"]
TAIL_BYTES = {"external": 0, "embedded": 5}  # the end of the chunked body, where it is a write of its own


@dataclass
class Serving:
    """A running truth server: its URL, and where its log will be."""

    url: str
    truth: Path
    kind: str


@contextmanager
def serving(
    folder: Path, ttft_s: float, itl_s: float, *, step_s: float = 0.0, server: str | None = None
) -> Iterator[Serving]:
    """Run a truth server while the block runs; its log, in *folder*, is whole after the block."""
    truth = folder / "truth"
    if server is None:
        with running(Script(ttft_s=ttft_s, itl_s=itl_s, step_s=step_s), truth=truth) as url:
            yield Serving(url, truth, "embedded")
        return
    port = 9400 + os.getpid() % 500
    words = [server, "--port", port, "--truth", truth, "--ttft-us", round(ttft_s * 1e6), "--itl-us", round(itl_s * 1e6)]
    if step_s:
        words += ["--step-us", round(step_s * 1e6)]
    process = subprocess.Popen([*pin(0), *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield Serving(f"http://127.0.0.1:{port}/v1", truth, "external")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def pin(core: int, *, urgent: bool = True) -> list[str]:
    """Return the words that run a command on one core, at the highest nice value where that is permitted and wanted.

    Not at real-time priority: that once locked a core for minutes, and of a core that it fills the kernel takes 50 ms
    in every second back.
    """
    if (os.cpu_count() or 1) < 2 or os.system("command -v nice taskset > /dev/null 2>&1"):
        return []
    priority = ["nice", "-n", "-20"] if urgent and os.geteuid() == 0 else []
    return [*priority, "taskset", "-c", str(core)]


def read_writes(serving: Serving) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Return {request id: (before_ns, bytes)} of every write, in order."""
    if serving.kind == "external":
        rows = np.frombuffer(serving.truth.read_bytes()[64:], RECORD)
        names = {int(row["request"]): row.tobytes()[8:48].rstrip(b"\0").decode() for row in rows[rows["kind"] == 2]}
        writes = rows[rows["kind"] == 3]
        return _group(writes["request"], writes["before"], writes["bytes"], names)
    with pa.ipc.open_stream(str(serving.truth)) as stream:
        table = stream.read_all()
    requests = table["request"].combine_chunks().dictionary_encode()
    names = dict(enumerate(requests.dictionary.to_pylist()))
    return _group(np.asarray(requests.indices), np.asarray(table["write_ns"]), np.asarray(table["bytes"]), names)


def _group(request: Any, before: Any, size: Any, names: dict[int, str]) -> dict[str, tuple[Any, Any]]:
    order = np.argsort(request, kind="stable")
    request, before, size = request[order], before[order], size[order].astype(np.int64)
    edges = np.flatnonzero(np.r_[True, np.diff(request) != 0, True])
    return {names[int(request[a])]: (before[a:b], size[a:b]) for a, b in pairwise(edges)}


def compare(log: Log, writes: dict[str, tuple[Any, Any]], tail_bytes: int) -> dict[str, Any]:
    """Return the errors of both stamps in us, and how many chunks were lost or doubled."""
    names = [f"ls-{log.run.run}-{number}" for number in range(log.requests.num_rows)]
    reads = np.column_stack([np.asarray(log.reads[name]).astype(np.int64) for name in COLUMNS])
    reads[:, 1:3] += log.run.epoch_monotonic_ns
    return compare_reads(names, reads, writes, tail_bytes) | {"ended": log.manifest.ended}


def compare_reads(
    names: list[str], reads: np.ndarray[Any, Any], writes: dict[str, tuple[Any, Any]], tail_bytes: int
) -> dict[str, Any]:
    """Return the same of rows (number of a name, at_ns, seen_ns, bytes) in the order of their numbers."""
    edges = np.searchsorted(reads[:, 0], np.arange(len(names) + 1))
    _, at_ns, seen_ns, size = reads.T
    kernel, user, lost = [], [], 0
    for number, name in enumerate(names):
        before, sent = writes.get(name, (np.empty(0, np.int64), np.empty(0, np.int64)))
        mine = slice(edges[number], edges[number + 1])
        arrived = np.cumsum(size[mine])
        head = (arrived[-1] if len(arrived) else 0) - sent.sum() - tail_bytes
        at = np.searchsorted(arrived, np.cumsum(sent) + head)
        if head < 0 or len(before) == 0 or (at >= len(arrived)).any():
            lost += max(1, len(before))
            continue
        kernel.append(at_ns[mine][at] - before)
        user.append(seen_ns[mine][at] - before)
    if not kernel:
        return {"chunks": 0, "lost": lost}
    return {
        "chunks": int(sum(map(len, kernel))),
        "lost": lost,
        "chunks_a_read": round(sum(map(len, kernel)) / max(1, len(size)), 4),
        "kernel_error_us": percentiles(np.concatenate(kernel) / 1e3),
        "user_error_us": percentiles(np.concatenate(user) / 1e3),
    }


def percentiles(values: np.ndarray[Any, Any]) -> dict[str, float]:
    """Return p50, p99, p99.9, max and min, rounded; nothing of nothing."""
    if len(values) == 0:
        return {}
    marks = {"p50": 50, "p99": 99, "p99.9": 99.9, "max": 100, "min": 0}
    return {name: round(float(np.percentile(values, mark)), 1) for name, mark in marks.items()}

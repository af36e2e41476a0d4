# How true are the replayer's times, and how punctual are its sends?
#
#     python benchmarks/bench_replayer.py [--server PATH] [CASE ...]
#
# Each case replays a trace against a truth server (benchmarks/truth.py) on core 0 with one worker on core 1,
# and prints JSON: chunks lost or doubled, the error of the kernel's and of our own stamp, send lateness,
# CPU a chunk, memory a stream, bytes of log a read, and the verdict that the run gave itself.
#
#     bare-*     the network alone, decoding off (benchmarks/bare.py): what a worker could reach
#     *-hog      an endless loop on the worker's core
#     *-under-*  short requests, whose sends are judged, while other streams arrive
#     writing    no server: how long the writer thread of the log stops a loop that never rests
#
# Limits: loopback, two cores, a sender that runs the receive path of TCP inside its own send(); on a network
# card the client pays 1 to 3 us a packet more. On a shared machine p50 repeats within 10 %, p99 within a
# factor of 2 to 3, the maximum not at all: compare rows of one run only. The embedded server is itself good
# for about 10,000 chunks/s; the cases above that need --server.

"""Measure stamp errors, send lateness, CPU and memory of the replayer against a truth server."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from truth import TAIL_BYTES, compare, compare_reads, percentiles, pin, read_writes, serving

from loadshape.environment import describe_host
from loadshape.log import READS, Log
from loadshape.replayer.recorder import BLOCK_ROWS, RowWriter, WriterThread
from loadshape.replayer.worker import SWITCH_S
from loadshape.summary import summarize
from loadshape.trace import (
    APIS,
    REQUESTS,
    SEGMENT_KINDS,
    SEGMENTS,
    Trace,
    build_messages,
    enumerate_column,
)

STARTING_S = 4.0  # a worker beside an endless loop takes long to begin
UNDER_S = 2.0  # the streams of a case "under" are all there by then


@dataclass(frozen=True)
class Case:
    """What is replayed: requests at a Poisson rate, tokens each, and the server's timing.

    `under` are (streams, tokens) that begin before them and of which only the stamps are judged.
    """

    requests: int
    rate_hz: float
    tokens: int
    ttft_s: float
    itl_s: float
    step_s: float = 0.0
    spin_us: int = 0
    under: tuple[int, int] = (0, 0)
    bare: bool = False
    hog: bool = False
    external: bool = True


CASES = {
    "500-requests": Case(5000, 500, 16, 0.05, 0.01, external=False),
    "500-requests-spin": Case(5000, 500, 16, 0.05, 0.01, spin_us=100, external=False),
    "2000-requests": Case(10000, 2000, 4, 0.02, 0.005),
    "2000-requests-spin": Case(10000, 2000, 4, 0.02, 0.005, spin_us=100),
    "5000-requests": Case(50000, 5000, 2, 0.02, 0.005),
    "10000-requests": Case(100000, 10000, 2, 0.02, 0.005),
    "8k-chunks": Case(400, 800, 200, 0.6, 0.05, external=False),
    "20k-chunks": Case(1000, 2000, 200, 0.6, 0.05),
    "20k-chunks-hog": Case(1000, 2000, 200, 0.6, 0.05, hog=True),
    "step-1000-streams": Case(1000, 2000, 200, 0.6, 0.02, step_s=0.02),
    "bare-step-1000-streams": Case(1000, 2000, 200, 0.6, 0.02, step_s=0.02, bare=True),
    "step-5000-streams": Case(5000, 5000, 100, 1.2, 0.1, step_s=0.1),
    "bare-step-5000-streams": Case(5000, 5000, 100, 1.2, 0.1, step_s=0.1, bare=True),
    "5000-streams": Case(5000, 5000, 100, 1.2, 0.1),
    "80k-chunks": Case(1000, 2000, 800, 0.6, 0.0125),
    "80k-chunks-60s": Case(1000, 2000, 4800, 0.6, 0.0125),
    "bare-80k-chunks": Case(1000, 2000, 800, 0.6, 0.0125, bare=True),
    "bare-120k-chunks": Case(1000, 2000, 1200, 0.6, 0.00833, bare=True),
    "bare-150k-chunks": Case(1000, 2000, 1500, 0.6, 0.00667, bare=True),
    "1500-requests-under-60k-chunks": Case(12000, 1500, 4, 0.6, 0.0167, under=(1000, 600)),
    "1500-requests-under-5000-in-step": Case(12000, 1500, 4, 0.6, 0.1, step_s=0.1, under=(5000, 100)),
    "10000-streams": Case(10000, 2500, 60, 4.0, 0.2),
}


def make_trace(case: Case) -> Trace:
    """Return a trace of one short prompt, sent at Poisson instants; those it runs under come first."""
    streams, tokens = case.under
    random = np.random.default_rng(1)
    due_s = np.cumsum(random.exponential(1 / case.rate_hz, case.requests)) + (UNDER_S if streams else 0.0)
    due_s = np.r_[np.arange(streams) / max(1, streams), due_s]
    n = len(due_s)
    zeros = np.zeros(n)
    columns: dict[str, Any] = {
        "request": np.arange(n),
        "due_ns": (due_s * 1e6).round().astype(np.int64) * 1000,
        "session": np.arange(n),
        "turn": zeros,
        "think_ns": zeros,
        "kind": ["bench"] * n,
        "api": enumerate_column(["chat"] * n, APIS),
        "messages": build_messages([["user"]] * n, [[[0]]] * n),
        "input_tokens": zeros + 50,
        "output_tokens": np.r_[np.full(streams, tokens), np.full(case.requests, case.tokens)],
        "shared_tokens": zeros,
    }
    segments = pa.table(
        [enumerate_column(["text"], SEGMENT_KINDS), ["word " * 50], pa.nulls(1, pa.list_(pa.int32())), [50]],
        schema=SEGMENTS,
    )
    arrays = []
    for item in REQUESTS:
        values = columns.get(item.name)
        whole = values if isinstance(values, pa.Array) else pa.array(values, item.type) if values is not None else None
        arrays.append(pa.nulls(n, item.type) if whole is None else whole)
    return Trace.build(pa.table(arrays, schema=REQUESTS), segments, name="bench")


REPLAY = """
import sys, loadshape as ls
log = ls.replay(sys.argv[1], ls.Target(sys.argv[2]), log=sys.argv[3],
                settings=ls.Settings(processes=1, preflight=False, spin_us=int(sys.argv[4])))
"""


def run_case(case: Case, server: str | None) -> dict[str, Any]:
    """Replay one case, or read it bare, and compare what was read with the server's log."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_trace(case).write(folder / "bench.trace")
        with serving(folder, case.ttft_s, case.itl_s, step_s=case.step_s, server=server) as truth, hogging(case.hog):
            if case.bare:
                words = [Path(__file__).with_name("bare.py"), truth.url, case.requests, case.tokens, folder / "reads"]
            else:
                words = ["-c", REPLAY, folder / "bench.trace", truth.url, folder / "bench.log", case.spin_us]
            subprocess.run([*pin(1, urgent=not case.hog), sys.executable, *map(str, words)], check=True)
        writes, tail_bytes = read_writes(truth), TAIL_BYTES[truth.kind]
        if case.bare:
            return _describe_bare(np.load(folder / "reads.npy"), writes, tail_bytes)
        return _describe(Log.open(folder / "bench.log"), case, writes, tail_bytes)


@contextlib.contextmanager
def hogging(wanted: bool) -> Iterator[None]:
    """Run an endless loop on the worker's core while the block runs, if wanted."""
    words = [*pin(1, urgent=False), sys.executable, "-c", f"import time; time.sleep({STARTING_S})\nwhile True: pass"]
    hog = subprocess.Popen(words) if wanted else None
    try:
        yield
    finally:
        if hog is not None:
            hog.kill()
            hog.wait()


def _describe_bare(reads: np.ndarray[Any, Any], writes: dict[str, tuple[Any, Any]], tail_bytes: int) -> dict[str, Any]:
    order = np.argsort(reads[:, 0], kind="stable")
    names = [str(number) for number in range(int(reads[:, 0].max()) + 1)]
    middle = np.sort(reads[:, 1])[len(reads) // 10 : -len(reads) // 10]
    told = compare_reads(names, reads[order], writes, tail_bytes)
    return told | {"chunks_a_s": round(told["chunks_a_read"] * len(middle) / (middle[-1] - middle[0]) * 1e9)}


def _describe(log: Log, case: Case, writes: dict[str, tuple[Any, Any]], tail_bytes: int) -> dict[str, Any]:
    summary = summarize(log)
    names = ("due_ns", "begun_ns", "sent_ns")
    due_ns, begun_ns, sent_ns = (np.asarray(log.requests[name])[case.under[0] :] for name in names)
    sent_ns = sent_ns[~np.isnan(sent_ns)]
    late_us = (begun_ns - due_ns) / 1e3
    health = log.health
    at_ns, cpu_ns, waited_ns = (np.asarray(health[name]) for name in ("at_ns", "cpu_ns", "runqueue_ns"))
    is_calm = np.r_[False, np.diff(waited_ns) < CALM_NS, False][np.searchsorted(at_ns, due_ns)]
    rss, streams = np.asarray(health["rss_bytes"]).astype(np.int64), np.asarray(health["in_flight"])
    lag_us = (np.asarray(log.reads["seen_ns"]) - np.asarray(log.reads["at_ns"])) / 1e3
    sizes = [path.stat().st_size for path in log.path.rglob("reads.arrows")]
    return {
        "outcomes": log.manifest.outcomes,
        **compare(log, writes, tail_bytes),
        "error_bar_us": percentiles(lag_us),
        "send_lateness_us": percentiles(late_us),
        "send_lateness_calm_us": percentiles(late_us[is_calm]) | {"share": round(float(is_calm.mean()), 3)},
        "early": int((late_us < 0).sum()),
        "achieved_hz": round((len(sent_ns) - 1) / float(sent_ns.max() - sent_ns.min()) * 1e9, 1),
        "offered_hz": round((len(due_ns) - 1) / float(due_ns.max() - due_ns.min()) * 1e9, 1),
        "cpu_us_a_read": round(float(cpu_ns[-1] - cpu_ns[0]) / 1e3 / max(1, log.reads.num_rows), 2),
        "cpu_us_a_request": round(float(cpu_ns[-1] - cpu_ns[0]) / 1e3 / log.requests.num_rows, 1),
        "streams": int(streams.max()),
        "base_mb": round(float(rss[0]) / 1e6, 1),
        "kb_a_stream": round(float(rss[streams.argmax()] - rss[0]) / 1e3 / int(streams.max()), 2),
        "log_bytes_a_read": round(sum(sizes) / max(1, log.reads.num_rows), 2),
        "verdict": summary.verdict.status,
        "reasons": [f"{check.name}: {check.measured}" for check in summary.verdict.reasons],
    }


CALM_NS = 200_000  # of waiting for a core in a window of 100 ms
ROWS_HZ = 80_000
WRITING_S = 10.0
WRITE = "import sys; sys.path.insert(0, sys.argv[1]); import bench_replayer; bench_replayer.write_rows()"


def write_rows() -> None:
    """Append rows at a steady rate from a loop that looks at the clock all the time; print the longest gaps."""
    with tempfile.TemporaryDirectory() as name:
        told = {}
        sys.setswitchinterval(SWITCH_S)
        for is_written in (False, True):
            writer = WriterThread()
            block_rows = BLOCK_ROWS if is_written else round(2 * ROWS_HZ * WRITING_S)
            rows = RowWriter(Path(name) / f"reads-{is_written}.arrows", READS, writer, block_rows=block_rows)
            writer.open(rows)
            told["written" if is_written else "not written"] = _append_rows(rows)
            writer.close()
    print(json.dumps(told))


def _append_rows(rows: RowWriter) -> dict[str, float]:
    random = np.random.default_rng(1)
    lags, requests = random.exponential(3e4, 1 << 16).astype(int).tolist(), random.integers(0, 1000, 1 << 16).tolist()
    gaps_ns, count, began_ns = [], 0, time.monotonic_ns()
    last_ns = began_ns
    while last_ns - began_ns < WRITING_S * 1e9:
        if (last_ns - began_ns) * ROWS_HZ >= count * 1_000_000_000:
            place = count & 0xFFFF
            rows.append(requests[place], last_ns, last_ns + lags[place], 230, 1, 1, 2, -(2**63))
            count += 1
        now_ns = time.monotonic_ns()
        if now_ns - last_ns > 20_000:
            gaps_ns.append(now_ns - last_ns)
        last_ns = now_ns
    stalls_us = np.asarray(gaps_ns or [0]) / 1e3
    many = {"rows_a_s": round(count / WRITING_S), "stalls_over_1ms": int((stalls_us > 1000).sum())}
    return many | percentiles(stalls_us)


def main() -> None:
    """Run the cases that were asked for and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, "writing", []], help="default: all that the server can do")
    parser.add_argument("--server", default=os.environ.get("LOADSHAPE_TRUTH_SERVER"))
    given = parser.parse_args()
    possible = [name for name, case in CASES.items() if given.server or not case.external]
    print(json.dumps({"host": describe_host(), "python": platform.python_version()}), flush=True)
    for name in given.cases or [*possible, "writing"]:
        if name == "writing":
            for where, words in {"writing, one core": pin(1), "writing, any core": []}.items():
                command = [*words, sys.executable, "-c", WRITE, str(Path(__file__).parent)]
                told = subprocess.run(command, check=True, capture_output=True)
                print(json.dumps({where: json.loads(told.stdout)}), flush=True)
        else:
            print(json.dumps({name: run_case(CASES[name], given.server)}), flush=True)


if __name__ == "__main__":
    main()

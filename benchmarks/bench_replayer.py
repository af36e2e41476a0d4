# How true are the replayer's times, and how punctual are its sends?
#
#     python benchmarks/bench_replayer.py [--server PATH] [CASE ...]
#
# Each case replays a trace against a truth server (benchmarks/truth.py) on core 0 with one worker on core 1,
# and prints JSON: chunks lost or doubled, the error of the kernel's and of our own stamp, send lateness,
# CPU a chunk, memory a stream, and the verdict that the run gave itself.
#
# Limits: loopback, two cores, a sender that runs the receive path of TCP inside its own send(); on a network
# card the client pays 1 to 3 us a packet more. On a shared machine p50 repeats within 10 %, p99 within a
# factor of 2 to 3, the maximum not at all: compare rows of one run only. The embedded server is itself good
# for about 10,000 chunks/s; the cases above that need --server.

"""Measure stamp errors, send lateness, CPU and memory of the replayer against a truth server."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from truth import TAIL_BYTES, compare, percentiles, pin, read_writes, serving

from loadshape.environment import describe_host
from loadshape.log import Log
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


@dataclass(frozen=True)
class Case:
    """What is replayed: requests at a Poisson rate, tokens each, and the server's timing."""

    requests: int
    rate_hz: float
    tokens: int
    ttft_s: float
    itl_s: float
    step_s: float = 0.0
    spin_us: int = 0
    external: bool = False


CASES = {
    "500-requests": Case(5000, 500, 16, 0.05, 0.01),
    "500-requests-spin": Case(5000, 500, 16, 0.05, 0.01, spin_us=100),
    "2000-requests": Case(10000, 2000, 4, 0.02, 0.005, external=True),
    "2000-requests-spin": Case(10000, 2000, 4, 0.02, 0.005, spin_us=100, external=True),
    "8k-chunks": Case(400, 800, 200, 0.6, 0.05),
    "20k-chunks": Case(1000, 2000, 200, 0.6, 0.05, external=True),
    "step-1000-streams": Case(1000, 2000, 200, 0.6, 0.02, step_s=0.02, external=True),
    "80k-chunks": Case(1000, 2000, 800, 0.6, 0.0125, external=True),
    "5000-streams": Case(5000, 5000, 100, 1.2, 0.1, external=True),
}


def make_trace(case: Case) -> Trace:
    """Return a trace of one short prompt, sent at Poisson instants."""
    n = case.requests
    due_ns = np.cumsum(np.random.default_rng(1).exponential(1e6 / case.rate_hz, n).round() * 1000).astype(np.int64)
    zeros = np.zeros(n)
    columns: dict[str, Any] = {
        "request": np.arange(n),
        "due_ns": due_ns,
        "session": np.arange(n),
        "turn": zeros,
        "think_ns": zeros,
        "kind": ["bench"] * n,
        "api": enumerate_column(["chat"] * n, APIS),
        "messages": build_messages([["user"]] * n, [[[0]]] * n),
        "input_tokens": zeros + 50,
        "output_tokens": zeros + case.tokens,
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
    """Replay one case and compare its log with the server's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_trace(case).write(folder / "bench.trace")
        with serving(folder, case.ttft_s, case.itl_s, step_s=case.step_s, server=server) as truth:
            paths = [folder / "bench.trace", truth.url, folder / "bench.log"]
            words = [*pin(1), sys.executable, "-c", REPLAY, *map(str, paths), str(case.spin_us)]
            subprocess.run(words, check=True)
        return _describe(Log.open(folder / "bench.log"), read_writes(truth), TAIL_BYTES[truth.kind])


def _describe(log: Log, writes: dict[str, tuple[Any, Any]], tail_bytes: int) -> dict[str, Any]:
    summary = summarize(log)
    late_ns = (np.asarray(log.requests["begun_ns"]) - np.asarray(log.requests["due_ns"])) / 1e3
    health = log.health
    cpu_ns = np.asarray(health["cpu_ns"])
    rss, streams = np.asarray(health["rss_bytes"]).astype(np.int64), np.asarray(health["in_flight"])
    return {
        "outcomes": log.manifest.outcomes,
        **compare(log, writes, tail_bytes),
        "send_lateness_us": percentiles(late_ns),
        "early": int((late_ns < 0).sum()),
        "cpu_us_a_read": round(float(cpu_ns[-1] - cpu_ns[0]) / 1e3 / max(1, log.reads.num_rows), 2),
        "streams": int(streams.max()),
        "base_mb": round(float(rss[0]) / 1e6, 1),
        "verdict": summary.verdict.status,
        "reasons": [f"{check.name}: {check.measured}" for check in summary.verdict.reasons],
    }


def main() -> None:
    """Run the cases that were asked for and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all that the server can do by default")
    parser.add_argument("--server", default=os.environ.get("LOADSHAPE_TRUTH_SERVER"))
    given = parser.parse_args()
    chosen = given.cases or [name for name, case in CASES.items() if given.server or not case.external]
    print(json.dumps({"host": describe_host(), "python": platform.python_version()}), flush=True)
    for name in chosen:
        print(json.dumps({name: run_case(CASES[name], given.server)}), flush=True)


if __name__ == "__main__":
    main()

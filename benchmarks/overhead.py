# What does Ray add to a run?
#
# The same trace is replayed in turn by worker processes of this host and by those that an agent of a Ray cluster starts
# on this host, against a raw-socket responder (loadshape.responder): 200 requests a second for 20 s, one worker, five
# chunks an answer. Compared are lateness, which is what the workers see of their surroundings, and how long everything
# but the traffic takes: from the call to T0, and from the last answer to the complete log. Then an agent is asked
# CALLS times what it heard, 50 calls under way at once: what a node costs the coordinator, which asks each so often.
# Limits: the cluster has one node, and head, agent, workers, responder and coordinator share this machine's cores; on
# machines of their own the workers would have Ray's processes beside them and nothing else.

"""Compare the Ray launcher with the local one: the case `overhead` of bench_cluster.py."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadshape.cluster.beacon import make_token
from loadshape.cluster.launcher import RayLauncher
from loadshape.log import Log
from loadshape.replayer import replay
from loadshape.replayer.job import Settings
from loadshape.replayer.launcher import Launcher, Local
from loadshape.responder import INTERVAL_HEADER
from loadshape.target import Target
from loadshape.trace import Trace
from loadshape.trial import Responders, Work, make_trace

ROUNDS = 5
RATE_HZ, RUN_S, CHUNKS = 200, 20, 5
PORT = 26399
CALLS, UNDER_WAY = 4_000, 50
RAY = str(Path(sys.executable).with_name("ray"))


def measure_overhead() -> dict[str, Any]:
    """Return the medians over ROUNDS runs of each launcher, taken in turn."""
    due_ns = np.arange(RATE_HZ * RUN_S) * (10**9 // RATE_HZ)
    trace = make_trace(Work(due_ns, np.full(len(due_ns), CHUNKS), interval_us=2_000, length_s=RUN_S + 1.0))
    launchers: dict[str, Launcher] = {"local": Local(), "ray": RayLauncher(nodes=1, address=f"127.0.0.1:{PORT}")}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in launchers}
    with (
        _ray_on_this_host(),
        tempfile.TemporaryDirectory() as folder,
        Responders([set(os.sched_getaffinity(0))]) as responders,
    ):
        target = Target(f"http://127.0.0.1:{responders.port}/v1", headers={INTERVAL_HEADER: "2000"})
        for _ in range(ROUNDS):
            for name, launcher in launchers.items():
                rounds[name].append(_measure(trace, target, launcher, Path(folder) / f"{name}.log"))
        calls = _measure_calls(f"127.0.0.1:{PORT}")
    return {name: _summarize(runs) for name, runs in rounds.items()} | {"calls": calls}


def _measure(trace: Trace, target: Target, launcher: Launcher, path: Path) -> dict[str, float]:
    begun_ns = time.monotonic_ns()
    settings = Settings(processes=1, preflight=False)
    log = replay(trace, target, log=path, settings=settings, launcher=launcher, force=True)
    ended_ns = time.monotonic_ns() - log.run.epoch_monotonic_ns
    late_us = _read_lateness_us(log)
    return {
        "late_p50_us": float(np.quantile(late_us, 0.5)),
        "late_p99_us": float(np.quantile(late_us, 0.99)),
        "start_s": (log.run.epoch_monotonic_ns - begun_ns) / 1e9,
        "close_s": (ended_ns - log.manifest.ended_ns) / 1e9,
    }


def _measure_calls(address: str) -> dict[str, float]:
    """Return what a call to an agent takes of the coordinator, and how many it can do in a second."""
    with RayLauncher(nodes=1, address=address).place(1, make_token()) as (ray, (member,)):
        ray.get(member.hand.hear.remote(0.0))
        begun_s, used_s = time.monotonic(), time.process_time()
        for _ in range(CALLS // UNDER_WAY):
            ray.get([member.hand.hear.remote(0.0) for _ in range(UNDER_WAY)])
        used_s, took_s = time.process_time() - used_s, time.monotonic() - begun_s
    return {"cpu_us_a_call": round(used_s / CALLS * 1e6, 1), "calls_per_s": round(CALLS / took_s)}


def _read_lateness_us(log: Log) -> np.ndarray[Any, Any]:
    sent = log.requests.filter(log.requests["begun_ns"].is_valid())
    return (np.asarray(sent["begun_ns"]) - np.asarray(sent["due_ns"])) / 1e3


def _summarize(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median of every number, with the least and the largest of the runs."""
    columns = {name: sorted(run[name] for run in runs) for name in runs[0]}
    return {
        name: {"median": round(it[len(it) // 2], 2), "least": round(it[0], 2), "largest": round(it[-1], 2)}
        for name, it in columns.items()
    }


@contextlib.contextmanager
def _ray_on_this_host() -> Iterator[None]:
    """Have a cluster of one node, which ends with the block."""
    flags = ("--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats")
    command = [RAY, "start", "--head", f"--port={PORT}", "--include-dashboard=false", "--block", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "--block" in line:  # it says so when everything is up
                break
        try:
            yield
        finally:
            process.terminate()

# How long until the log of many machines is one log in numbers?
#
# 25 nodes with 4 workers each: 100 workers, each with its three files, 1,000 requests and 100,000 reads, so 10
# million reads in all; and as many reads of 1,000 nodes with one worker each. They are written by another process, as
# workers write them (batches of 4,000 rows, zstd), and laid together as the coordinator does it when it has fetched
# them: a manifest over all of them. Then another process opens the log, verifies every hash and the books, and makes
# the summary with its verdict and the numbers by node.
# Limits: the files are in the page cache, since they have just been written (a coordinator has just fetched them);
# fetching them is bound by the network and the disks and is not in here; all workers have the same traffic with other
# stamps.

"""Merge the log of 100 workers on 25 nodes: the case `merge` of bench_cluster.py."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench_judge import BATCH_ROWS, measure, peak_mb
from logs import STAMPS as REQUEST_STAMPS
from logs import health_row, make_log, make_run, synthesize_log

from loadshape.digest import digest_file
from loadshape.fleet import measure_machines
from loadshape.log import Log, LogManifest, Shard, digest_conditions
from loadshape.manifest import write_manifest
from loadshape.nodes import Burst, Node, write_nodes
from loadshape.report import render
from loadshape.summary import summarize

DURATION_S = 60.0
LATER_NS = 5_000_000  # a worker than the one before
READS_EACH = 100  # of a request


class Crowd(NamedTuple):
    """Who wrote the log: so many nodes with so many workers each, each of them with so many requests."""

    nodes: int
    workers_each: int
    requests_each: int


CROWDS = {"100 workers on 25 nodes": Crowd(25, 4, 1_000), "1,000 nodes": Crowd(1_000, 1, 100)}
STEPS = ("open", "verify", "summarize", "by_node")
BURSTS = 9
STAMPS = (*REQUEST_STAMPS, "last_token", "done", "at", "seen")


def write_log(folder: Path, crowd: Crowd) -> None:
    """Write the log of a crowd."""
    workers = crowd.nodes * crowd.workers_each
    pattern = synthesize_log(crowd.requests_each, READS_EACH, duration_s=DURATION_S, failing=0.0)
    health = make_log(health=[health_row(ms) for ms in range(0, round(DURATION_S * 1000), 100)]).health
    tables = {"requests": pattern.requests, "reads": pattern.reads.sort_by("seen_ns"), "health": health}
    shards = [shard for worker in range(workers) for shard in write_worker(folder, worker, crowd, tables)]
    about: dict[str, Any] = {"duration_s": DURATION_S, "nodes": crowd.nodes, "processes": crowd.workers_each}
    run = make_run(workers * crowd.requests_each, **about)
    write_manifest(folder, run, "run.json")
    write_nodes(folder, [describe_node(node, crowd.workers_each) for node in range(crowd.nodes)])
    about = {"run": run, "shards": shards, "outcomes": {"ok": run.planned}, "ended": "complete"}
    ended_ns = round((DURATION_S + 10) * 1e9)
    write_manifest(folder, LogManifest(**about, ended_ns=ended_ns, files=digest_conditions(folder)))


def write_worker(folder: Path, worker: int, crowd: Crowd, tables: dict[str, pa.Table]) -> Iterator[Shard]:
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
    for name, table in tables.items():
        path = folder / f"worker-{worker:02d}" / f"{name}.arrows"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(take_over(table, worker, crowd), max_chunksize=BATCH_ROWS)
        yield Shard(str(path.relative_to(folder)), name, table.num_rows, digest_file(path))


def take_over(table: pa.Table, worker: int, crowd: Crowd) -> pa.Table:
    """Return the rows as this worker has them: other numbers, and a little later."""
    names = {"worker": worker, "node": worker // crowd.workers_each}
    columns: list[Any] = []
    for item in table.schema:
        values = table[item.name]
        if item.name in names and item.name != "request":
            values = pa.array(np.full(table.num_rows, names[item.name]), item.type)
        elif item.name in ("request", "session"):
            values = pa.array(np.asarray(values) * crowd.nodes * crowd.workers_each + worker, item.type)
        elif item.name.removesuffix("_ns") in STAMPS and values.null_count == 0:
            values = pa.array(np.asarray(values) + worker * LATER_NS, item.type)
        columns.append(values)
    return pa.Table.from_arrays(columns, schema=table.schema)


def describe_node(node: int, workers_each: int) -> Node:
    bursts = [
        Burst(at_ns=round(at_s * 1e9), offset_ns=0, bound_ns=60_000, rtt_p99_ns=200_000, sent=100, heard=100)
        for at_s in np.linspace(-1, DURATION_S + 10, BURSTS)
    ]
    return Node(
        node=node,
        name=f"host-{node}",
        address=f"host-{node}.example.com",
        workers=list(range(node * workers_each, (node + 1) * workers_each)),
        planned=1,
        portion_digest="",
        epoch_monotonic_ns=1,
        epoch_realtime_ns=1,
        niceness=0,
        folder="",
        environment={"cores": 8},
        synchronization={},
        bursts=bursts,
    )


def merge_logs() -> dict[str, Any]:
    """Return what the steps from files to numbers take for each crowd: [seconds, seconds of CPU] each."""
    return {name: merge_crowd(name) for name in CROWDS}


def merge_crowd(name: str) -> dict[str, Any]:
    """Write a log by another process, and merge it in one that has done nothing else."""
    with tempfile.TemporaryDirectory(prefix="bench-merge-") as folder:
        path = Path(folder) / "many.log"
        for step in ("write", "merge"):
            command = [sys.executable, __file__, step, name, str(path)]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return {"log_mb": size_bytes // 10**6, **json.loads(told)}


def merge_log(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"rss_before_mb": peak_mb()}
    log, found["open_s"] = measure(lambda: Log.open(path))
    _, found["verify_s"] = measure(log.verify)
    summary, found["summarize_s"] = measure(lambda: summarize(log))
    _, found["by_node_s"] = measure(lambda: measure_machines(summary))
    found["total_s"] = [round(sum(values), 2) for values in zip(*(found[f"{it}_s"] for it in STEPS), strict=True)]
    _, found["text_s"] = measure(lambda: render(summary, "text"))
    shards = len(log.manifest.shards)
    return found | {"files": shards, "requests": log.requests.num_rows, "reads": log.read_rows, "peak_mb": peak_mb()}


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write_log(Path(sys.argv[3]), CROWDS[sys.argv[2]])
    else:
        print(json.dumps(merge_log(Path(sys.argv[3]))))

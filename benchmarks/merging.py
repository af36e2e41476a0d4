# How long until the log of many machines is one log in numbers?
#
# 25 nodes with 4 workers each: 100 workers, each with its three files, 1,000 requests and 100,000 reads, so 10
# million reads in all. They are written by another process, as workers write them (batches of 4,000 rows, zstd), and
# laid together as the coordinator does it when it has fetched them: a manifest over all of them. Then this process
# opens the log, verifies every hash and the books, and makes the summary with its verdict and the numbers by node.
# Limits: the files are in the page cache, since they have just been written (a coordinator has just fetched them);
# fetching them is bound by the network and the disks and is not in here; all workers have the same traffic with other
# stamps.

"""Merge the log of 100 workers on 25 nodes: the case `merge` of bench_cluster.py."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

NODES, WORKERS_EACH = 25, 4
DURATION_S = 60.0
LATER_NS = 5_000_000  # a worker than the one before
REQUESTS_EACH, READS_EACH = 1_000, 100
STEPS = ("open", "verify", "summarize", "by_node")
BURSTS = 9
STAMPS = (*REQUEST_STAMPS, "last_token", "done", "at", "seen")


def write_log(folder: Path, requests_each: int, reads_each: int) -> None:
    """Write the log of NODES x WORKERS_EACH workers with so many requests each."""
    workers = NODES * WORKERS_EACH
    pattern = synthesize_log(requests_each, reads_each, duration_s=DURATION_S, failing=0.0)
    health = make_log(health=[health_row(ms) for ms in range(0, round(DURATION_S * 1000), 100)]).health
    tables = {"requests": pattern.requests, "reads": pattern.reads.sort_by("seen_ns"), "health": health}
    shards = [shard for worker in range(workers) for shard in write_worker(folder, worker, tables)]
    run = make_run(workers * requests_each, duration_s=DURATION_S, nodes=NODES, processes=WORKERS_EACH)
    write_manifest(folder, run, "run.json")
    write_nodes(folder, [describe_node(node) for node in range(NODES)])
    about: dict[str, Any] = {"run": run, "shards": shards, "outcomes": {"ok": run.planned}, "ended": "complete"}
    ended_ns = round((DURATION_S + 10) * 1e9)
    write_manifest(folder, LogManifest(**about, ended_ns=ended_ns, files=digest_conditions(folder)))


def write_worker(folder: Path, worker: int, tables: dict[str, pa.Table]) -> Iterator[Shard]:
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
    for name, table in tables.items():
        path = folder / f"worker-{worker:02d}" / f"{name}.arrows"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(take_over(table, worker), max_chunksize=BATCH_ROWS)
        yield Shard(str(path.relative_to(folder)), name, table.num_rows, digest_file(path))


def take_over(table: pa.Table, worker: int) -> pa.Table:
    """Return the rows as this worker has them: other numbers, and a little later."""
    names = {"worker": worker, "node": worker // WORKERS_EACH}
    columns: list[Any] = []
    for item in table.schema:
        values = table[item.name]
        if item.name in names and item.name != "request":
            values = pa.array(np.full(table.num_rows, names[item.name]), item.type)
        elif item.name in ("request", "session"):
            values = pa.array(np.asarray(values) * NODES * WORKERS_EACH + worker, item.type)
        elif item.name.removesuffix("_ns") in STAMPS and values.null_count == 0:
            values = pa.array(np.asarray(values) + worker * LATER_NS, item.type)
        columns.append(values)
    return pa.Table.from_arrays(columns, schema=table.schema)


def describe_node(node: int) -> Node:
    bursts = [
        Burst(at_ns=round(at_s * 1e9), offset_ns=0, bound_ns=60_000, rtt_p99_ns=200_000, sent=100, heard=100)
        for at_s in np.linspace(-1, DURATION_S + 10, BURSTS)
    ]
    return Node(
        node=node,
        name=f"host-{node}",
        address=f"192.0.2.{node + 1}",
        workers=list(range(node * WORKERS_EACH, (node + 1) * WORKERS_EACH)),
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
    """Write the log and return what the steps from files to numbers take: [seconds, seconds of CPU] each."""
    with tempfile.TemporaryDirectory(prefix="bench-merge-") as folder:
        path = Path(folder) / "many.log"
        subprocess.run([sys.executable, __file__, str(path)], check=True)
        found = {"log_mb": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) // 10**6}
        return found | merge_log(path)


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
    write_log(Path(sys.argv[1]), REQUESTS_EACH, READS_EACH)

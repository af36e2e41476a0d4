# How long does judging a log on the disk take, and how much memory?
#
# A synthetic log of 100,000 requests with 100 reads each by default (10 million reads): `--requests 1000000` is the
# large case. It is written by another process, in batches of 4,000 rows with zstd as a worker writes them, its
# reads in the order in which they were seen: a second of traffic, again and again with later stamps. Then this process
# opens it, makes the summary with its verdict, and the forms of the report. Peak memory is that of this process.
# Limits: the file is in the page cache, since it has just been written; every second of the run looks like the others,
# so it packs better than a real one; seconds on the clock grow with whatever else the machine does, CPU seconds less.

"""Judge a synthetic log from the disk and print seconds and peak memory as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from logs import make_run, synthesize_log

from loadshape.digest import digest_file
from loadshape.log import READS, SCHEMAS, Log, LogManifest, Shard
from loadshape.manifest import write_manifest
from loadshape.report import render
from loadshape.summary import summarize

ROUND = 10_000  # requests that are made once and written again and again
ROUND_S = 6.0
SHARED = 50  # every so manieth read carries two tokens
NUMBERS = ("request", "session")
BATCH_ROWS = 4_000


def write_log(folder: Path, requests: int, reads_each: int) -> None:
    """Write the log of one worker: rounds of the same traffic, one after another."""
    pattern = synthesize_log(ROUND, reads_each, duration_s=ROUND_S, failing=0.0)
    tables = {name: getattr(pattern, name) for name in SCHEMAS}
    reads = tables["reads"].sort_by("seen_ns")
    deltas = np.where(np.arange(reads.num_rows) % SHARED == 0, 2, 1).astype(np.uint16)
    tables["reads"] = reads.set_column(reads.schema.get_field_index("deltas"), READS.field("deltas"), pa.array(deltas))
    paths = {name: folder / "worker-00" / f"{name}.arrows" for name in SCHEMAS}
    paths["reads"].parent.mkdir(parents=True)
    rounds = requests // ROUND
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
    for name, table in tables.items():
        with ExitStack() as stack:
            sink = stack.enter_context(pa.OSFile(str(paths[name]), "wb"))
            stream = stack.enter_context(pa.ipc.new_stream(sink, table.schema, options=options))
            for at in range(rounds):
                stream.write_table(shift(table, at), max_chunksize=BATCH_ROWS)
    shards = [
        Shard(str(path.relative_to(folder)), name, tables[name].num_rows * rounds, digest_file(path))
        for name, path in paths.items()
    ]
    run = make_run(rounds * ROUND, duration_s=rounds * ROUND_S)
    about = {"run": run, "shards": shards, "outcomes": {"ok": rounds * ROUND}, "ended": "complete"}
    write_manifest(folder, run, "run.json")
    write_manifest(folder, LogManifest(**about, ended_ns=round(rounds * ROUND_S * 1e9)))


def shift(table: pa.Table, at: int) -> pa.Table:
    """Return the rows of round *at*: later stamps, and other numbers."""
    return pa.Table.from_arrays(list(shift_columns(table, at)), schema=table.schema)


def shift_columns(table: pa.Table, at: int) -> Iterator[Any]:
    for item in table.schema:
        column = table[item.name]
        by = at * ROUND if item.name in NUMBERS else round(at * ROUND_S * 1e9) if item.name.endswith("_ns") else 0
        if by and item.name not in ("rtt_ns", "loop_lag_ns", "gc_ns", "realtime_offset_ns") and column.null_count == 0:
            column = pa.array(np.asarray(column) + np.asarray(by, item.type.to_pandas_dtype()))
        yield column


def measure(call: Callable[[], Any]) -> tuple[Any, list[float]]:
    """Return what *call* returns, and its seconds on the clock and of CPU."""
    start_s, used_s = time.perf_counter(), time.process_time()
    result = call()
    return result, [round(time.perf_counter() - start_s, 2), round(time.process_time() - used_s, 2)]


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1_000_000 if sys.platform == "darwin" else 1000)


def judge(path: Path, forms: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"rss_before_mb": peak_mb()}
    log, found["open_s"] = measure(lambda: Log.open(path))
    summary, found["summarize_s"] = measure(lambda: summarize(log))
    found |= {"requests": log.requests.num_rows, "reads": log.read_rows, "summarize_peak_mb": peak_mb()}
    for form in forms:
        shown, found[f"{form}_s"] = measure(partial(render, summary, form))
        found |= {f"{form}_bytes": len(shown.encode()), f"{form}_peak_mb": peak_mb()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help=f"rounded down to a multiple of {ROUND:,}")
    parser.add_argument("--reads-each", type=int, default=100)
    parser.add_argument("--forms", default="text,json,html")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.write is not None:
        return write_log(wanted.write, wanted.requests, wanted.reads_each)
    with tempfile.TemporaryDirectory(prefix="bench-judge-") as folder:
        path = Path(folder) / "synthetic.log"
        size = ["--requests", str(wanted.requests), "--reads-each", str(wanted.reads_each)]
        subprocess.run([sys.executable, __file__, "--write", str(path), *size], check=True)
        log_mb = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) // 10**6
        found = {"log_mb": log_mb} | judge(path, wanted.forms.split(","))
    found["machine"] = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
    found["load_average"] = os.getloadavg()[0]
    found["versions"] = {"numpy": np.__version__, "pyarrow": pa.__version__}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

# How long does judging a log on the disk take, and how much memory?
#
# A synthetic log of 100,000 requests with 100 reads each by default (10 million reads): `--requests 1000000` is the
# large case. It is written by another process, in batches of 4,000 rows with zstd as a worker writes them, its
# reads in the order in which they were seen: a second of traffic, again and again with later stamps. Then this process
# opens it, makes the summary with its verdict, and the forms of the report. Peak memory is that of this process. With
# --compare the command `compare` reads two such logs, the second of them with other gaps, and its own peak is told.
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

from logs import health_row, make_log, make_run, synthesize_log

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


def write_log(folder: Path, requests: int, reads_each: int, slowness: float) -> None:
    """Write the log of one worker: rounds of the same traffic, one after another."""
    pattern = synthesize_log(ROUND, reads_each, duration_s=ROUND_S, failing=0.0, slowness=slowness)
    tables = {name: getattr(pattern, name) for name in SCHEMAS}
    reads = tables["reads"].sort_by("seen_ns")
    deltas = np.where(np.arange(reads.num_rows) % SHARED == 0, 2, 1).astype(np.uint16)
    tables["reads"] = reads.set_column(reads.schema.get_field_index("deltas"), READS.field("deltas"), pa.array(deltas))
    tables["health"] = watch(tables["requests"], requests // ROUND)
    paths = {name: folder / "worker-00" / f"{name}.arrows" for name in SCHEMAS}
    paths["reads"].parent.mkdir(parents=True)
    rounds = requests // ROUND
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
    for name, table in tables.items():
        with ExitStack() as stack:
            sink = stack.enter_context(pa.OSFile(str(paths[name]), "wb"))
            stream = stack.enter_context(pa.ipc.new_stream(sink, table.schema, options=options))
            for at in range(1 if name == "health" else rounds):
                stream.write_table(shift(table, at), max_chunksize=BATCH_ROWS)
    rows = {name: table.num_rows * (1 if name == "health" else rounds) for name, table in tables.items()}
    shards = [Shard(str(path.relative_to(folder)), name, rows[name], digest_file(path)) for name, path in paths.items()]
    run = make_run(rounds * ROUND, duration_s=rounds * ROUND_S)
    about = {"run": run, "shards": shards, "outcomes": {"ok": rounds * ROUND}, "ended": "complete"}
    write_manifest(folder, run, "run.json")
    write_manifest(folder, LogManifest(**about, ended_ns=round(rounds * ROUND_S * 1e9)))


def watch(requests: pa.Table, rounds: int) -> pa.Table:
    """Return what a quiet worker would have said of itself in so many rounds of *requests*, ten times a second."""
    begun, done = (np.sort(np.asarray(requests[name])) for name in ("begun_ns", "done_ns"))
    phase = np.arange(0, round(ROUND_S * 1e9), 100_000_000)
    later = [phase + round(ROUND_S * 1e9) * after for after in range(3)]  # in which its answers may still be under way
    held = np.array([np.searchsorted(begun, it, "right") - np.searchsorted(done, it, "right") for it in later])
    return make_log(
        health=[
            health_row(1000 * ROUND_S * at + at_ns / 1e6, in_flight=int(held[: at + 1, place].sum()))
            for at in range(rounds)
            for place, at_ns in enumerate(phase.tolist())
        ]
    ).health


def shift(table: pa.Table, at: int) -> pa.Table:
    """Return the rows of round *at*: later stamps, and other numbers."""
    return pa.Table.from_arrays(list(shift_columns(table, at)), schema=table.schema)


def shift_columns(table: pa.Table, at: int) -> Iterator[Any]:
    for item in table.schema:
        column = table[item.name]
        by = at * ROUND if item.name in NUMBERS else round(at * ROUND_S * 1e9) if item.name.endswith("_ns") else 0
        if by and item.name != "rtt_ns" and column.null_count == 0:
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


def time_comparison(before: Path, after: Path) -> dict[str, Any]:
    """Run the command `compare` on two logs; seconds on the clock and of CPU, and the peak of its memory."""
    used_s, start_s = read_children_s(), time.perf_counter()
    page = before.parent / "comparison.html"
    program = Path(sys.executable).with_name("loadshape")
    command = [str(program), "compare", str(before), str(after), "--html", str(page)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    taken = [round(time.perf_counter() - start_s, 2), round(read_children_s() - used_s, 2)]
    scale = 1_000_000 if sys.platform == "darwin" else 1000
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // scale
    return {
        "compare_s": taken,
        "compare_peak_mb": peak,
        "compare_page_bytes": page.stat().st_size,
        "compare_said": done.stdout.partition("\n")[0],
    }


def read_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help=f"rounded down to a multiple of {ROUND:,}")
    parser.add_argument("--reads-each", type=int, default=100)
    parser.add_argument("--forms", default="text,json,html")
    parser.add_argument("--compare", action="store_true", help="time the command compare on two logs instead")
    parser.add_argument("--slowness", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.write is not None:
        return write_log(wanted.write, wanted.requests, wanted.reads_each, wanted.slowness)
    with tempfile.TemporaryDirectory(prefix="bench-judge-") as folder:
        paths = [Path(folder) / "synthetic.log", Path(folder) / "slower.log"]
        size = ["--requests", str(wanted.requests), "--reads-each", str(wanted.reads_each)]
        for path, slowness in zip(paths, ("1", "1.1"), strict=True) if wanted.compare else [(paths[0], "1")]:
            command = [sys.executable, __file__, "--write", str(path), "--slowness", slowness]
            subprocess.run([*command, *size], check=True)
        log_mb = sum(file.stat().st_size for file in paths[0].rglob("*") if file.is_file()) // 10**6
        timed = time_comparison(*paths) if wanted.compare else judge(paths[0], wanted.forms.split(","))
        found: dict[str, Any] = {"log_mb": log_mb, **timed}
    found["machine"] = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
    found["load_average"] = os.getloadavg()[0]
    found["versions"] = {"numpy": np.__version__, "pyarrow": pa.__version__}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

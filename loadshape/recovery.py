# A log that was cut, made into a log again.
#
# Law: the old folder is only read. What was whole on the disk is kept and nothing is guessed: a planned request
# without a row gets one that says `lost`, with null for every stamp, so that the outcomes add up to what was planned.
# What is missing is told in the notes, worker by worker. A recovered log says so in `ended` and is never VALID:
# nobody knows what its lost requests would have shown.
#
# Theory: an Arrow IPC stream is a schema, then batches, each with its length before it, then eight bytes that end it
# (Arrow columnar format, "IPC streaming format"). A killed process leaves a stream that stops after a batch, or
# within one. There is no way to find a batch behind a bad one, so reading ends there and the bytes behind it are
# counted as lost. A reader takes a missing end for a clean one: hence the state.
#
# Who a lost request was (session, turn, due) stands in the log's table of what was planned; in logs from before there
# was one, in the trace, which is taken from where the run found it if its digest is still that of the run. Which
# worker had it, and so which node, follows from the order of the sessions (deal.py). Rows that are there can be
# checked against that; if one contradicts it, the traffic was dealt otherwise, and only the reads of a lost request
# tell.

"""Recovery: rebuild a complete log from the whole batches of one that was cut."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape import nodes, observation
from loadshape.deal import find_workers
from loadshape.digest import digest_file
from loadshape.errors import LogError, TraceError
from loadshape.lease import is_held
from loadshape.log import (
    ENVIRONMENT_NAME,
    PLANNED,
    RUN_NAME,
    SCHEMAS,
    Log,
    LogManifest,
    Outcome,
    Run,
    Shard,
    count_outcomes,
    digest_conditions,
    make_rows,
    read_environment,
    read_planned,
    read_run,
    write_planned,
)
from loadshape.manifest import NAME, building, find_member, write_manifest
from loadshape.shard import check_columns, complete_columns
from loadshape.stats import Integers
from loadshape.trace import Trace

UNKNOWN_SESSION = 2**32 - 1
UNKNOWN_WORKER = 2**16 - 1
UNKNOWN_TARGET = 2**16 - 1
UNKNOWN_NODE = 2**16 - 1
LOST_NAME = "lost/requests.arrows"
REASON = "the log stops before its end"
END_BYTES = 8
NO_TRACE = "the trace is not at hand: session, turn and due of the lost requests are not known"
STAMPS = {"requests": "done_ns", "reads": "at_ns", "health": "at_ns"}  # of a table: when a row was written, about


@dataclass(frozen=True, slots=True)
class Remains:
    """What is whole of one stream: its rows, how the file ends, and how many bytes of it cannot be read."""

    table: pa.Table
    state: str  # "", or what is wrong with it
    lost_bytes: int = 0


Parts = dict[str, Remains]  # by table
Workers = dict[int, Parts]


def recover(
    path: str | Path,
    new: str | Path,
    *,
    trace: Trace | str | Path | None = None,
    force: bool = False,
    ended: str = "",
    notes: Sequence[str] = (),
) -> Log:
    """Write what is whole of the log at *path* as a complete log at *new*, and return that.

    What was planned tells who the lost requests were; in older logs the trace does, where the run found it if none is
    given. Whoever knows how the run ended says so in *ended*, and what else there is to tell in *notes*.
    Raises LogError when *path* is complete, is no log, or holds what no crash explains; TraceError when the
    given *trace* is not that of the run.
    """
    old, place = Path(path), Path(new)
    _check_places(old, place)
    run = read_run(old)
    workers = {worker: _salvage_worker(old, worker) for worker in _list_workers(old, run)}
    planned = _find_planned(old, run, trace)
    lost = _make_lost(run, workers, planned)
    requests = pa.concat_tables([lost, *(parts["requests"].table for parts in workers.values())])
    with building(place, "log", LogError, force=force) as scratch:
        shards = [_write_shard(scratch, *it) for it in _name_tables(workers, lost).items()]
        told = [*notes, *_describe_loss(workers, run, lost), *([NO_TRACE] if lost.num_rows and planned is None else [])]
        write_manifest(scratch, run, RUN_NAME)
        told += _copy_environment(old, scratch) + _copy_samples(old, scratch) + _copy_nodes(old, scratch)
        if planned is not None:
            write_planned(scratch, planned)
        manifest = LogManifest(
            run=run,
            shards=shards,
            outcomes=count_outcomes(requests),
            ended=ended or _describe_end(run, lost.num_rows),
            ended_ns=max(_find_last_ns(parts) for parts in workers.values()),
            notes=told,
            files=digest_conditions(scratch),
        )
        write_manifest(scratch, manifest)
    return Log.open(place)


def salvage_stream(path: Path, schema: pa.Schema) -> Remains:
    """Return what is whole of the Arrow stream at *path*. Raises LogError when its columns are not of *schema*."""
    size, whole, batches = path.stat().st_size, 0, []
    state, found = "cut", schema
    with pa.OSFile(str(path)) as file:
        try:
            stream = pa.ipc.open_stream(file)
            check_columns(path, stream.schema, schema)
            found = stream.schema
            whole = file.tell()
            while True:
                batch = stream.read_next_batch()
                batch.validate(full=True)
                batches.append(batch)
                whole = file.tell()
        except StopIteration:
            is_ended = file.tell() - whole == END_BYTES
            whole, state = (whole + END_BYTES, "") if is_ended else (whole, "not ended")
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError):
            pass  # the first bad batch; nothing can be found behind it
    if whole < size:
        state = "cut"
    table = complete_columns(pa.Table.from_batches(batches, found), schema)
    return Remains(table, state if size else "empty", size - whole)


def _check_places(old: Path, new: Path) -> None:
    if is_held(old):
        raise LogError(
            f"{old}: the run is still going, and what it has not written is not lost; wait for its end, or end it with "
            "Ctrl-C, which closes the log in order"
        )
    if new.resolve().is_relative_to(old.resolve()):
        raise LogError(f"{new}: lies in the log that is to be recovered, which stays as it is; choose another place")
    if not (old / NAME).is_file():
        return
    try:
        for _ in Log.open(old).read_parts("request"):
            pass
    except LogError:
        return  # closed once, and damaged since
    raise LogError(f"{old}: is complete, there is nothing to recover; see: loadshape report {old}")


def _list_workers(log: Path, run: Run) -> list[int]:
    """Return the numbers of the workers that the run had, and of any other that left a folder."""
    folders = (path.parent.name.removeprefix("worker-") for path in log.glob("worker-*/requests.arrows"))
    return sorted({*range(run.workers), *(int(number) for number in folders if number.isdecimal())})


def _salvage_worker(log: Path, worker: int) -> Parts:
    found = {}
    for name, schema in SCHEMAS.items():
        place = f"worker-{worker:02d}/{name}.arrows"
        if (log / place).is_file():
            found[name] = salvage_stream(find_member(log, place, LogError), schema)
        else:
            found[name] = Remains(schema.empty_table(), "missing")
    return found


def _find_planned(log: Path, run: Run, trace: Trace | str | Path | None) -> pa.Table | None:
    """Return what was planned, by number; None where neither a trace nor the log tells it."""
    if trace is not None:
        return _read_planned(run, trace)
    with contextlib.suppress(LogError):
        planned = read_planned(log)
        if np.array_equal(np.asarray(planned["request"]), np.arange(run.planned)):
            return planned
    with contextlib.suppress(TraceError):
        return _read_planned(run, run.trace_path) if run.trace_path else None
    return None


def _read_planned(run: Run, given: Trace | str | Path) -> pa.Table:
    trace = given if isinstance(given, Trace) else Trace.open(given)
    if trace.digest != run.trace_digest:
        raise TraceError(f"{trace.path or 'trace'}: is {trace.digest}, but the run was of {run.trace_digest}")
    trace.verify()
    return trace.requests.select(PLANNED.names).sort_by("request")


def _make_lost(run: Run, workers: Workers, planned: pa.Table | None) -> pa.Table:
    """Return a row for every planned request that has none. Raises LogError for one that has two."""
    kept = pa.concat_tables([parts["requests"].table for parts in workers.values()])
    rows = _count(run, kept)
    if rows.max(initial=0) > 1:
        raise LogError(f"request {int(rows.argmax())}: has two rows, which no crash explains: this is not one run")
    lost = np.flatnonzero(rows == 0)
    columns = _sum_reads(run, workers, lost, _find_owners(run, kept, planned))
    columns |= {"request": lost, "error": [REASON] * len(lost)}
    if planned is None:
        columns |= {"session": np.full(len(lost), UNKNOWN_SESSION)}
    else:
        columns |= {name: planned[name].take(lost) for name in ("session", "turn", "due_ns")}
    return make_rows(Outcome.lost, columns)


def _find_owners(run: Run, kept: pa.Table, planned: pa.Table | None) -> Integers:
    """Return the worker of every planned request; UNKNOWN_WORKER where nothing tells it."""
    unknown = np.full(run.planned, UNKNOWN_WORKER if run.workers > 1 else 0)
    if planned is None:
        return unknown
    share = run.settings.get("probe_share", 0.0)
    dealt = find_workers(np.asarray(planned["session"]), nodes=run.nodes, processes=run.processes, probe_share=share)
    number, worker = (np.asarray(kept[name]).astype(np.int64) for name in ("request", "worker"))
    return dealt if np.array_equal(dealt[number], worker) else unknown


def _sum_reads(run: Run, workers: Workers, lost: Integers, owner: Integers) -> dict[str, Any]:
    """Return what is known of each lost request: the counts of its kept reads, its worker, and its node."""
    sums = {name: np.zeros(run.planned, np.int64) for name in ("reads", "events", "bytes_in")}
    for worker, parts in workers.items():
        reads = parts["reads"].table
        counted = _count(run, reads)
        owner[counted > 0] = worker
        sums["reads"] += counted
        sums["events"] += _count(run, reads, "events")
        sums["bytes_in"] += _count(run, reads, "bytes")
    target = np.full(run.planned, UNKNOWN_TARGET if len(run.targets) > 1 else 0)
    node = np.where(owner == UNKNOWN_WORKER, UNKNOWN_NODE if run.nodes > 1 else 0, owner // run.workers_each)
    return {name: of[lost] for name, of in (sums | {"worker": owner, "node": node, "target": target}).items()}


def _count(run: Run, table: pa.Table, weight: str | None = None) -> Integers:
    """Return for every planned request how many rows it has, or the sum of a column of them."""
    numbers = np.asarray(table["request"])
    if numbers.max(initial=0) >= max(1, run.planned):
        raise LogError(f"request {numbers.max()}: {run.planned} were planned; no crash explains that")
    weights = None if weight is None else np.asarray(table[weight])
    return np.bincount(numbers, weights, minlength=run.planned).astype(np.int64)


def _write_shard(folder: Path, place: str, table: pa.Table) -> Shard:
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return Shard(place, path.stem, table.num_rows, digest_file(path))


def _name_tables(workers: Workers, lost: pa.Table) -> dict[str, pa.Table]:
    kept = {(worker, name): it.table for worker, parts in workers.items() for name, it in parts.items()}
    return {f"worker-{worker:02d}/{name}.arrows": table for (worker, name), table in kept.items()} | {LOST_NAME: lost}


def _copy_environment(old: Path, new: Path) -> list[str]:
    """Copy what is known of the environment; return a note if that cannot be read."""
    try:
        environment = msgspec.json.encode(read_environment(old))
    except LogError:
        return [f"{ENVIRONMENT_NAME}: damaged, left out"]
    (new / ENVIRONMENT_NAME).write_bytes(msgspec.json.format(environment) + b"\n")
    return []


def _copy_nodes(old: Path, new: Path) -> list[str]:
    """Copy what is known of the nodes, if there were several; return a note if that cannot be read."""
    try:
        known = nodes.read_nodes(old)
    except LogError:
        return [f"{nodes.NAME}: damaged, left out"]
    if known:
        nodes.write_nodes(new, known)
    return []


def _copy_samples(old: Path, new: Path) -> list[str]:
    """Copy what is whole of the samples of the servers, if there are any; return a note if that is not all."""
    if not (old / observation.NAME).is_file():
        return []
    remains = salvage_stream(find_member(old, observation.NAME, LogError), observation.SAMPLES)
    _write_shard(new, observation.NAME, remains.table)
    return [f"{observation.NAME}: {_describe_state(remains)}"] if remains.state else []


def _find_last_ns(parts: Parts) -> int:
    return max(0, *(pc.max(parts[name].table[stamp]).as_py() or 0 for name, stamp in STAMPS.items()))


def _describe_end(run: Run, lost: int) -> str:
    if lost:
        return f"recovered: {lost:,} of {run.planned:,} requests are lost"
    return "recovered: every request has its row, but the log was not whole"


def _describe_loss(workers: Workers, run: Run, lost: pa.Table) -> list[str]:
    """Return what is missing: a note for each worker, and where rows and reads do not match."""
    notes = [_describe_worker(worker, parts, run) for worker, parts in workers.items()]
    of_lost, reading = (pc.sum(values).as_py() or 0 for values in (lost["reads"], pc.greater(lost["reads"], 0)))
    if of_lost:
        notes.append(f"{of_lost:,} reads of {reading:,} lost requests are kept")
    counted = sum(pc.sum(parts["requests"].table["reads"]).as_py() or 0 for parts in workers.values())
    missing = counted + of_lost - sum(parts["reads"].table.num_rows for parts in workers.values())
    if missing > 0:
        notes.append(f"{missing:,} reads are lost of requests that have a row: their ICL and ITL lack gaps")
    return notes


def _describe_worker(worker: int, parts: Parts, run: Run) -> str:
    rows = f"{parts['requests'].table.num_rows:,}"
    planned = f" of {run.shares[worker]:,}" if worker < len(run.shares) else ""
    faults = [f"{name} {_describe_state(it)}" for name, it in parts.items() if it.state]
    last_s = _find_last_ns(parts) / 1e9
    files = ", ".join(faults) or "all files are whole"
    where = f" on node {worker // run.workers_each}" if run.nodes > 1 else ""
    return f"worker {worker}{where}: {rows}{planned} requests have a row; last sign at {last_s:.3f} s; {files}"


def _describe_state(remains: Remains) -> str:
    if remains.state != "cut":
        return remains.state
    return f"cut ({remains.lost_bytes:,} bytes behind {remains.table.num_rows:,} rows are lost)"

# One replay against responders that know when they wrote: what was planned, what was done, who was late.
#
# Law: real replays through the front door. A trial plays work of known form and lays the replayer's log
# beside the responders' own record; it draws no conclusions (calibrator.py does).
#
# Stamps are compared by byte offset within a stream, so that no parser can hide a loss: a read has covered a
# write when the bytes read so far reach the end of that write. With the request's number in front, all
# offsets of a trial are one sorted array, and the comparison is one search.
#
#     at - write     error of the kernel's stamp; on loopback the receive path of TCP runs inside the write
#     seen - at      how far behind the kernel our own stamp is: what a user without kernel stamps gets
#     write - due    the responder's own lateness: beyond a millisecond, the limit found is the responder's

"""Trials: known work, responders, and the two records of what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from loadshape import responder
from loadshape.conversation import ROLES
from loadshape.errors import ReplayError
from loadshape.log import Log
from loadshape.replayer import replay
from loadshape.replayer.job import Settings
from loadshape.responder import INTERVAL_HEADER, Busyness
from loadshape.stats import Floats, Integers
from loadshape.target import Target
from loadshape.trace import APIS, REQUESTS, SEGMENT_KINDS, SEGMENTS, Trace, enumerate_column, pack_messages
from loadshape.units import NS_PER_S

END_S = 5.0
GRACE_S = 1.0  # beyond the planned end; what an overloaded side has not done by then is cut
OFFSETS = 1 << 40  # more bytes than a stream has


@dataclass(frozen=True, slots=True)
class Work:
    """Requests by their due times, each wanting some tokens that come at one interval; all over after `length_s`."""

    due_ns: Integers
    tokens: Integers
    interval_us: int
    length_s: float


@dataclass(frozen=True, slots=True)
class Writes:
    """What the responders wrote, in the order of (request, offset); times are ns since the epoch of the run."""

    request: Integers
    at_ns: Integers
    late_ns: Integers
    end_bytes: Integers  # offset of the end of the write in its stream


@dataclass(frozen=True, slots=True)
class Match:
    """For every write that was received: when it was made, stamped by the kernel, seen by us, and in which read."""

    write_ns: Integers
    read: Integers
    at_ns: Integers
    seen_ns: Integers
    lost: int


class Responders:
    """Responder processes on one port. A context manager: none is left behind."""

    def __init__(self, cores: Sequence[set[int]]) -> None:
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = 0

    def __enter__(self) -> Responders:
        try:
            for cores in self._cores:
                self._start(cores)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]

    def __len__(self) -> int:
        return len(self._processes)

    def gather(self, folder: Path) -> tuple[pa.Table, list[Busyness]]:
        """Return what all of them did since this was asked last, and how busy each was."""
        tables, accounts = [], []
        for number, process in enumerate(self._processes):
            assert process.stdin is not None
            path = folder / f"truth-{number}.arrows"
            process.stdin.write(os.fsencode(path) + b"\n")
            process.stdin.flush()
            accounts.append(msgspec.json.decode(self._hear(process), type=Busyness))
            with pa.ipc.open_stream(str(path)) as stream:
                tables.append(stream.read_all())
        return pa.concat_tables(tables), accounts

    def _start(self, cores: set[int]) -> None:
        words = [sys.executable, "-m", "loadshape.responder", str(self.port)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._processes.append(process)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, cores)
        self.port = int(self._hear(process))

    def _hear(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ReplayError(f"responder: ended with {process.wait()} before it was asked to")
        return line


@dataclass(frozen=True, slots=True)
class Trial:
    """Both records of one replay."""

    log: Log
    writes: Writes
    accounts: list[Busyness]

    def match(self) -> Match:
        """Lay every write beside the read that completed it."""
        reads = self.log.reads
        request, size = _column(reads, "request"), _column(reads, "bytes")
        upto = np.cumsum(size)
        starts = np.searchsorted(request, request)
        offsets = request * OFFSETS + upto - np.r_[0, upto][starts]
        wanted = self.writes.request * OFFSETS + self.writes.end_bytes
        place = np.searchsorted(offsets, wanted)
        there = place < len(offsets)
        there[there] = request[place[there]] == self.writes.request[there]
        place = place[there]
        return Match(
            write_ns=self.writes.at_ns[there],
            read=place,
            at_ns=_column(reads, "at_ns")[place],
            seen_ns=_column(reads, "seen_ns")[place],
            lost=int((~there).sum()),
        )

    def lateness(self) -> tuple[Integers, Integers]:
        """Return (due, begun - due) of the requests that were begun."""
        begun = self.log.requests.filter(self.log.requests["begun_ns"].is_valid())
        due_ns = _column(begun, "due_ns")
        return due_ns, _column(begun, "begun_ns") - due_ns

    def worker_use(self, column: str, edges_ns: Integers) -> Floats:
        """Return the growth of a cumulated time of the health table between the edges, in cores, of the worst worker.

        `cpu_ns` is what it used, `runqueue_ns` what it waited for.
        """
        health = self.log.health.filter(self.log.health[column].is_valid())
        worker, at_ns, used_ns = (_column(health, name) for name in ("worker", "at_ns", column))
        series = [(at_ns[worker == number], used_ns[worker == number]) for number in np.unique(worker)]
        return _worst(series, edges_ns)

    def responder_use(self, column: str, edges_ns: Integers) -> Floats:
        """Return the same of the responders."""
        place = ("at_ns", "cpu_ns", "runqueue_ns").index(column)
        samples = [np.array(account.samples, np.int64).reshape(-1, 3) for account in self.accounts]
        epoch_ns = self.log.run.epoch_monotonic_ns
        return _worst([(rows[:, 0] - epoch_ns, rows[:, place]) for rows in samples], edges_ns)


def play(work: Work, responders: Responders, *, processes: int, folder: Path) -> Trial:
    """Replay *work* against the responders and return both records. Raises KeyboardInterrupt after a Ctrl-C."""
    target = Target(f"http://127.0.0.1:{responders.port}/v1", headers={INTERVAL_HEADER: str(work.interval_us)})
    last_s = float(work.due_ns.max()) / NS_PER_S
    grace_s = max(0.0, work.length_s - last_s) + GRACE_S  # it runs from the last due time on
    settings = Settings(processes=processes, preflight=False, duration_s=work.length_s, grace_s=grace_s)
    log = replay(make_trace(work), target, log=folder / "trial.log", settings=settings, force=True)
    if log.manifest.ended == "interrupted":
        raise KeyboardInterrupt
    table, accounts = responders.gather(folder)
    return Trial(log, read_writes(table, log), accounts)


def make_trace(work: Work) -> Trace:
    """Return the trace of *work*: one short prompt, and every request a session of its own."""
    rows = len(work.due_ns)
    numbers, ones, zeros = np.arange(rows), np.ones(rows, np.int64), np.zeros(rows, np.int64)
    columns: dict[str, Any] = {
        "request": numbers,
        "due_ns": np.sort(work.due_ns),
        "session": numbers,
        "turn": zeros,
        "think_ns": zeros,
        "kind": ["calibration"] * rows,
        "api": enumerate_column(["chat"] * rows, APIS),
        "messages": pack_messages(messages=ones, roles=ones * ROLES.index("user"), counts=ones, segments=zeros),
        "input_tokens": zeros + 50,
        "output_tokens": work.tokens,
        "shared_tokens": zeros,
    }
    arrays = []
    for item in REQUESTS:
        values = columns.get(item.name)
        whole = values if isinstance(values, pa.Array) else pa.array(values, item.type) if values is not None else None
        arrays.append(pa.nulls(rows, item.type) if whole is None else whole)
    prompt = [enumerate_column(["text"], SEGMENT_KINDS), pa.array(["word " * 50], pa.large_string())]
    prompt += [pa.nulls(1, pa.list_(pa.int32())), pa.array([50], pa.uint32())]
    return Trace.build(pa.table(arrays, schema=REQUESTS), pa.table(prompt, schema=SEGMENTS), name="calibration")


def read_writes(truth: pa.Table, log: Log) -> Writes:
    """Return the writes of *log*'s run, in the order of (request, offset)."""
    prefix = f"ls-{log.run.run}-"
    names = truth["request"].to_pylist()
    mine = pa.array([name.startswith(prefix) for name in names], pa.bool_())
    truth = truth.filter(mine)
    request = np.array([int(name.removeprefix(prefix)) for name in truth["request"].to_pylist()], np.int64)
    truth, request = truth.take(pa.array(np.argsort(request))), np.sort(request)
    lists = truth["writes_ns"].combine_chunks()
    counts = np.diff(np.asarray(lists.offsets)).astype(np.int64)
    at_ns = np.asarray(lists.flatten())
    step = np.arange(len(at_ns)) - np.repeat(np.cumsum(counts) - counts, counts)
    due_ns = np.repeat(_column(truth, "due_ns"), counts) + step * np.repeat(_column(truth, "interval_ns"), counts)
    forms = list(zip(counts.tolist(), truth["left"].to_pylist(), strict=True))
    sizes = {form: np.cumsum(responder.measure_writes(*form)) for form in set(forms)}
    ends = np.concatenate([np.empty(0, np.int64), *(sizes[form] for form in forms)])
    return Writes(np.repeat(request, counts), at_ns - log.run.epoch_monotonic_ns, at_ns - due_ns, ends)


@contextmanager
def confined(cores: set[int]) -> Iterator[None]:
    """Keep this process, and those that it starts, to some cores while the block runs."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _worst(series: Sequence[tuple[Integers, Integers]], edges_ns: Integers) -> Floats:
    uses = [np.diff(np.interp(edges_ns, at_ns, cpu_ns)) / np.diff(edges_ns) for at_ns, cpu_ns in series if len(at_ns)]
    return np.max(uses, axis=0) if uses else np.full(len(edges_ns) - 1, np.nan)


def _column(table: pa.Table, name: str) -> Integers:
    return np.asarray(table[name]).astype(np.int64)

# The second door: what happened.
#
# Law: every planned request is one row with one outcome, every read of a stream is one row with a time,
# and nothing is averaged away. A log is complete only when its manifest says so; until then it is a set
# of Arrow IPC streams to which workers append, and a killed process loses at most its last batch.
#
#     NAME.log/run.json                  what was about to happen; written first
#     NAME.log/environment.json          who measured, on what, against which server
#     NAME.log/planned.arrow             one row a request: what the trace wanted of it
#     NAME.log/worker-00/requests.arrows one row a request
#     NAME.log/worker-00/reads.arrows    one row a read that carried stream bytes
#     NAME.log/worker-00/health.arrows   ten rows a second about the instrument itself
#     NAME.log/server.arrows             what servers and GPUs said of themselves (observation.py)
#     NAME.log/nodes.json                the machines of a run on several (nodes.py)
#     NAME.log/manifest.json             rows and hash of every shard; written last
#
# All stamps are ns since the run's epoch T0 on CLOCK_MONOTONIC; the manifest has T0 itself and its
# wall-clock twin. `at_ns` is the kernel's receive stamp where there is one, `seen_ns` is ours.

"""Log: the crash-safe Arrow record of what happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.digest import digest_file
from loadshape.errors import LogError
from loadshape.manifest import find_member, read_manifest, read_plain, read_table
from loadshape.nodes import NAME as NODES_NAME
from loadshape.nodes import Node, read_nodes
from loadshape.shard import VERSION as VERSION
from loadshape.shard import Shard as Shard
from loadshape.shard import check_head, gather_shards, iterate_shards, slice_table
from loadshape.shard import read_stream as read_stream
from loadshape.stats import Integers
from loadshape.tally import COLUMNS, Tally, tally_reads
from loadshape.version import __version__

RUN_NAME = "run.json"
ENVIRONMENT_NAME = "environment.json"
PLANNED_NAME = "planned.arrow"
SERVER_NAME = "server.arrows"  # observation.py


class Outcome(IntEnum):
    """How a planned request ended: the whole list. The value is the stored dictionary code."""

    ok = 0
    truncated = 1  # the stream ended without a finish
    in_band_error = 2  # an error object inside a 200 stream
    http_error = 3
    no_token = 4  # finished without one token
    refused = 5
    reset = 6
    protocol_error = 7
    timeout_connect = 8
    timeout_first = 9
    timeout_idle = 10
    timeout_total = 11
    cancelled = 12  # a planned client abort, or cut at the declared end
    not_sent = 13  # the generator failed to send it
    not_reached = 14  # its predecessor failed, or the run ended by policy
    lost = 15  # the log stops first; only recovery writes it


OUTCOMES = tuple(outcome.name for outcome in Outcome)

_STAMPS = ["begun", "connected", "sent", "written", "head", "first_byte", "first_token", "first_content"]
_STAMPS += ["last_token", "done"]
_COUNTS = ["prompt", "completion", "cached", "reasoning"]

REQUESTS = pa.schema(
    [
        pa.field("request", pa.uint32(), nullable=False),
        pa.field("session", pa.uint32(), nullable=False),
        pa.field("turn", pa.uint16(), nullable=False),
        pa.field("target", pa.uint16(), nullable=False),
        pa.field("node", pa.uint16(), nullable=False),
        pa.field("worker", pa.uint16(), nullable=False),
        pa.field("connection", pa.uint32()),
        pa.field("reused", pa.bool_()),
        pa.field("due_ns", pa.int64()),  # null: its due instant never came
        *(pa.field(f"{name}_ns", pa.int64()) for name in _STAMPS),
        pa.field("outcome", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("status", pa.uint16()),
        pa.field("error", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("reads", pa.uint32(), nullable=False),
        pa.field("events", pa.uint32(), nullable=False),
        pa.field("bytes_in", pa.uint64(), nullable=False),
        pa.field("bytes_out", pa.uint64(), nullable=False),
        *(pa.field(f"{name}_tokens", pa.uint32()) for name in _COUNTS),
        pa.field("rtt_ns", pa.int64()),  # the kernel's smoothed round trip time, at the end
        pa.field("retransmits", pa.uint32()),
        pa.field("server_request_id", pa.string()),
        pa.field("resent_ns", pa.int64()),  # since version 2: null in older logs
    ]
)
READS = pa.schema(
    [
        pa.field("request", pa.uint32(), nullable=False),
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("seen_ns", pa.int64(), nullable=False),
        pa.field("bytes", pa.uint32(), nullable=False),
        pa.field("events", pa.uint16(), nullable=False),
        pa.field("deltas", pa.uint16(), nullable=False),
        pa.field("kinds", pa.uint16(), nullable=False),
        pa.field("tokens", pa.uint32()),
    ]
)
HEALTH = pa.schema(
    [
        pa.field("worker", pa.uint16(), nullable=False),
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("loop_lag_ns", pa.int64(), nullable=False),  # this tick against its planned instant
        pa.field("decode_lag_ns", pa.int64(), nullable=False),  # worst stamp-to-decoded since the last tick
        pa.field("runqueue_ns", pa.int64()),  # waiting for a core, cumulated (/proc/self/schedstat)
        pa.field("cpu_ns", pa.int64(), nullable=False),  # user + system, cumulated
        pa.field("gc_ns", pa.int64(), nullable=False),  # longest collector pause since the last tick
        pa.field("steal_ns", pa.int64()),  # host-wide, cumulated (/proc/stat)
        pa.field("throttled_ns", pa.int64()),  # this cgroup, cumulated (cpu.stat)
        pa.field("realtime_offset_ns", pa.int64(), nullable=False),  # CLOCK_REALTIME - CLOCK_MONOTONIC
        pa.field("in_flight", pa.uint32(), nullable=False),
        pa.field("connections", pa.uint32(), nullable=False),
        pa.field("backlog_rows", pa.uint32(), nullable=False),  # rows on their way to the disk
        pa.field("rss_bytes", pa.uint64(), nullable=False),
    ]
)
SCHEMAS = {"requests": REQUESTS, "reads": READS, "health": HEALTH}
PLANNED = pa.schema(
    [
        pa.field("request", pa.uint32(), nullable=False),
        pa.field("session", pa.uint32(), nullable=False),
        pa.field("turn", pa.uint16(), nullable=False),
        pa.field("due_ns", pa.int64()),  # null: waits for its predecessor, or for a slot
        pa.field("kind", pa.string(), nullable=False),
        pa.field("api", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("model", pa.string()),
        pa.field("adapter", pa.string()),
        pa.field("tenant", pa.string()),
        pa.field("input_tokens", pa.uint32(), nullable=False),
        pa.field("output_tokens", pa.uint32(), nullable=False),
        pa.field("shared_tokens", pa.uint32(), nullable=False),
    ]
)


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a run, fixed before its first packet. Stored as run.json and in the manifest."""

    run: str  # 8 hex digits; every x-request-id is ls-<run>-<request>
    trace_digest: str
    trace_name: str
    planned: int
    duration_s: float
    loop: dict[str, Any]
    targets: list[dict[str, Any]]
    receive: str  # "kernel" or "user": whose stamp at_ns is
    pacing: str
    processes: int  # of each node
    settings: dict[str, Any]
    epoch_monotonic_ns: int
    epoch_realtime_ns: int
    offset_width_ns: int  # REALTIME and MONOTONIC were read within this width
    shares: list[int] = []  # of the planned, how many each worker had
    trace_path: str = ""  # where the trace lay on that host; empty if it was in memory
    arrivals: list[dict[str, Any]] = []  # the arrival processes that the trace's recipe declares
    salt: str = ""  # what keeps its prompts out of other runs' caches, as settings.isolation says; empty: nothing
    nodes: int = 1
    launcher: dict[str, Any] = {}  # what spread it over nodes, and how
    tool: str = f"loadshape {__version__}"

    @property
    def workers_each(self) -> int:
        """How many workers each node has, with its probe, which is the last of them."""
        return self.processes + bool(self.settings.get("probe_share"))

    @property
    def workers(self) -> int:
        """How many workers there are in all: node n has n * workers_each and the next ones."""
        return self.nodes * self.workers_each


class LogManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The closing statement of a run: its presence makes a log complete."""

    format: str = "loadshape log"
    version: int = VERSION
    run: Run
    shards: list[Shard]
    outcomes: dict[str, int]
    ended: str  # "complete", "interrupted" or "stopped: why"
    ended_ns: int
    notes: list[str] = []
    files: dict[str, str] = {}  # name -> sha256 of the files that are no shard: run.json, environment.json...


@dataclass(frozen=True)  # without slots: what is gathered from the disk is kept
class Log:
    """What happened in one run: Arrow tables and their manifest.

    `requests`, `reads` and `health` have the schemas REQUESTS, READS and HEALTH; requests are sorted by number, reads
    by (request, time), health by (worker, time). `planned` has the schema PLANNED and is sorted by number; None in
    logs from before it was kept. Reads may be many: they stay on the disk until `reads` is asked for, and
    `read_parts` goes through them in little memory. `held` are the reads of a log that is not on a disk. `nodes` are
    the machines of a run on several, in their order.
    """

    path: Path
    manifest: LogManifest
    environment: dict[str, Any]
    requests: pa.Table
    held: pa.Table | None
    health: pa.Table
    planned: pa.Table | None = None
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def open(cls, path: str | Path) -> Log:
        """Read the complete log at *path*. Raises LogError when it is damaged, incomplete or later than us."""
        folder = Path(path)
        if (folder / RUN_NAME).is_file() and not (folder / "manifest.json").exists():
            raise LogError(
                f"{folder}: incomplete: the run was cut before its manifest was written; "
                f"save what is there with: loadshape recover {folder} -o NEW.log"
            )
        manifest = read_manifest(folder, LogManifest, "log", VERSION, LogError)
        check_head(folder, manifest.shards, "reads", READS)
        return cls(
            path=folder,
            manifest=manifest,
            environment=read_environment(folder),
            requests=gather_shards(folder, manifest.shards, "requests", REQUESTS).sort_by("request"),
            held=None,
            health=gather_shards(folder, manifest.shards, "health", HEALTH).sort_by(
                [("worker", "ascending"), ("at_ns", "ascending")]
            ),
            planned=read_planned(folder) if PLANNED_NAME in manifest.files else None,
            nodes=read_nodes(folder) if NODES_NAME in manifest.files else [],
        )

    @cached_property
    def reads(self) -> pa.Table:
        """All reads as one table, gathered when it is first asked for: 34 bytes a row. Raises LogError if damaged."""
        if self.held is not None:
            return self.held
        reads = gather_shards(self.path, self.manifest.shards, "reads", READS)
        # Rows of one request are in time order already, since one worker wrote them: a stable sort keeps that.
        return reads.take(pa.array(np.argsort(np.asarray(reads["request"]), kind="stable")))

    @property
    def read_rows(self) -> int:
        """How many reads there are."""
        if self.held is not None:
            return int(self.held.num_rows)
        return sum(shard.rows for shard in self.manifest.shards if shard.table == "reads")

    def read_parts(self, *columns: str) -> Iterator[pa.Table]:
        """Return these columns of all reads in parts of about a million rows, in the order in which they were written.

        Those of one request come in the order of time, between those of others. Raises LogError for a damaged shard.
        """
        if self.held is not None:
            return slice_table(self.held.select(columns))
        return iterate_shards(self.path, self.manifest.shards, "reads", READS, columns)

    @cached_property
    def tally(self) -> Tally:
        """What the reads come to by request and by second; one pass over them, when it is first asked for."""
        return tally_reads(
            self.read_parts(*COLUMNS),
            self._place_workers(),
            seconds=int(self.manifest.ended_ns // 1_000_000_000) + 1,
            expected=self.read_rows,
        )

    def _place_workers(self) -> Integers:
        """Return the place of each request's worker among those that have rows, by number; -1 without a row."""
        numbers = np.asarray(self.requests["request"]).astype(np.int64)
        places = np.unique(np.asarray(self.requests["worker"]), return_inverse=True)[1]
        own = numbers < max(self.run.planned, len(numbers))  # a stray number does not ask for memory
        workers = np.full(max(self.run.planned, len(numbers)), -1)
        workers[numbers[own]] = places[own]
        return workers

    @property
    def run(self) -> Run:
        """The conditions of the run."""
        return self.manifest.run

    @property
    def duration_s(self) -> float:
        """Planned length of the run, or what was reached when it was cut before."""
        return min(self.run.duration_s, self.manifest.ended_ns / 1e9) or self.run.duration_s

    def verify(self, trace_digest: str | None = None) -> None:
        """Check shard hashes, the sum of outcomes, and the trace's digest when given. Raises LogError."""
        for shard in self.manifest.shards:
            found = digest_file(find_member(self.path, shard.path, LogError))
            if found != shard.sha256:
                raise LogError(f"{self.path / shard.path}: sha256 is {found}, the manifest says {shard.sha256}")
        for name, stated in self.manifest.files.items():
            found = digest_file(find_member(self.path, name, LogError))
            if found != stated:
                raise LogError(f"{self.path / name}: sha256 is {found}, the manifest says {stated}")
        counted = count_outcomes(self.requests)
        if counted != self.manifest.outcomes:
            raise LogError(f"{self.path}: outcomes are {counted}, the manifest says {self.manifest.outcomes}")
        numbers = np.asarray(self.requests["request"])
        if not np.array_equal(numbers, np.arange(self.run.planned)):
            raise LogError(
                f"{self.path}: {self.run.planned} requests were planned, {len(np.unique(numbers))} have a row"
            )
        if trace_digest is not None and trace_digest != self.run.trace_digest:
            raise LogError(f"{self.path}: is of trace {self.run.trace_digest}, not of {trace_digest}")


def open_logs(path: str | Path) -> list[Log]:
    """Return the log at *path*, or all logs in that folder in the order of their names: repeats of one run.

    Raises LogError when it holds none.
    """
    folder = Path(path)
    found = sorted(inner for inner in folder.glob("*.log") if inner.is_dir())
    if (folder / RUN_NAME).exists() or (folder / "manifest.json").exists() or not found:
        return [Log.open(folder)]
    return [Log.open(inner) for inner in found]


def digest_conditions(folder: Path) -> dict[str, str]:
    """Return {name: sha256} of what stands beside the shards of the log at *folder*, for its manifest."""
    names = (RUN_NAME, ENVIRONMENT_NAME, PLANNED_NAME, SERVER_NAME, NODES_NAME)
    return {name: digest_file(folder / name) for name in names if (folder / name).is_file()}


def write_planned(folder: Path, requests: pa.Table) -> None:
    """Write what was planned beside the shards: *requests* of a trace, of which the columns of PLANNED are kept."""
    table = requests.select(PLANNED.names).sort_by("request").cast(PLANNED)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(folder / PLANNED_NAME), "wb") as sink, pa.ipc.new_file(sink, PLANNED, options=options) as file:
        file.write_table(table)


def read_planned(folder: Path) -> pa.Table:
    """Read what was planned, one row a request in the order of their numbers. Raises LogError."""
    return read_table(folder, PLANNED_NAME, PLANNED, LogError)


def count_outcomes(requests: pa.Table) -> dict[str, int]:
    """Return {outcome: rows} for the outcomes that occur, in the order of Outcome."""
    counts = pc.value_counts(requests["outcome"].cast(pa.string()))
    found = {row["values"]: row["counts"] for row in counts.to_pylist()}
    return {name: found[name] for name in OUTCOMES if name in found}


def make_rows(outcome: Outcome, columns: dict[str, Any]) -> pa.Table:
    """Return rows of REQUESTS that all have *outcome* and these *columns*; the others are null, or zero."""
    rows = len(columns["request"])
    codes = pa.array(np.full(rows, int(outcome), np.int8))
    columns = columns | {"outcome": pa.DictionaryArray.from_arrays(codes, pa.array(OUTCOMES))}
    return pa.table([_fill_column(columns.get(item.name), item, rows) for item in REQUESTS], schema=REQUESTS)


def _fill_column(values: Any, item: pa.Field, rows: int) -> Any:
    if values is None:
        return pa.nulls(rows, item.type) if item.nullable else pa.array(np.zeros(rows), item.type)
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, item.type)


def read_run(folder: Path) -> Run:
    """Read run.json of the log at *folder*, complete or not. Raises LogError."""
    path = folder / RUN_NAME
    try:
        return msgspec.json.decode(read_plain(path), type=Run)
    except OSError as problem:
        raise LogError(f"{path}: cannot be read, so nothing was sent, or this is no log: {problem.strerror}") from None
    except msgspec.DecodeError as problem:
        raise LogError(f"{path}: not the conditions of a run: {problem}") from None


def read_environment(folder: Path) -> dict[str, Any]:
    """Read environment.json of the log at *folder*; empty where there is none. Raises LogError."""
    path = folder / ENVIRONMENT_NAME
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as problem:
        raise LogError(f"{path}: not valid JSON: {problem}") from None

# The first door: requests to come.
#
# Law: a trace says everything about the traffic and nothing about a server. It is data: whoever holds
# the folder can replay it without loadshape's making room, and its digest names it for ever.
#
#     NAME.trace/manifest.json    what it is, how it was made, its digest; written last
#     NAME.trace/requests.arrow   one row a request, sorted by (first due of the session, session, turn)
#     NAME.trace/segments.arrow   the texts, each stored once however many requests share it
#
# Both tables are uncompressed Arrow IPC files, so that every worker process maps the same pages. A
# request names its content by segment number: 100,000 requests that share an 8k-token system prompt
# cost 8k tokens. Enumerations are dictionary columns whose one dictionary is the full fixed list.
#
# The digest covers the logical content of both tables and the loop, not bytes of files (see digest.py).

"""Trace: the hashed Arrow table of requests to come."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.conversation import ROLES
from loadshape.digest import digest_json, digest_parts, digest_table
from loadshape.errors import TraceError
from loadshape.manifest import read_manifest, read_table, write_folder
from loadshape.stats import Integers
from loadshape.version import __version__

VERSION = 1
APIS = ("chat", "completions")
RESERVED = ("model", "messages", "prompt", "stream", "max_tokens", "max_completion_tokens")  # of a request's body
SEGMENT_KINDS = ("text", "token_ids", "json", "image", "answer", "slot")
OLDER_KINDS = SEGMENT_KINDS[:5]  # of traces from before there were slots

_API = pa.dictionary(pa.int8(), pa.string())
_MESSAGE = pa.struct([("role", _API), ("segments", pa.list_(pa.uint32()))])
_PATIENCE = pa.struct([("after_ns", pa.int64()), ("after_tokens", pa.uint32())])

REQUESTS = pa.schema(
    [
        pa.field("request", pa.uint32(), nullable=False),
        pa.field("due_ns", pa.int64()),  # null: waits for its predecessor, or for a slot
        pa.field("session", pa.uint32(), nullable=False),
        pa.field("turn", pa.uint16(), nullable=False),
        pa.field("think_ns", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("api", _API, nullable=False),
        pa.field("messages", pa.list_(_MESSAGE), nullable=False),
        pa.field("input_tokens", pa.uint32(), nullable=False),
        pa.field("output_tokens", pa.uint32(), nullable=False),
        pa.field("shared_tokens", pa.uint32(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("adapter", pa.string()),
        pa.field("tenant", pa.string()),
        pa.field("params", pa.uint32()),  # a segment of kind json
        pa.field("patience", _PATIENCE),
    ]
)
SEGMENTS = pa.schema(
    [
        pa.field("kind", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("text", pa.large_string()),
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("tokens", pa.uint32(), nullable=False),
    ]
)


class Loop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the trace is driven: by the clock, by free slots, or by sessions.

    `open`: every request has its due time. `closed`: `slots` requests are in flight, a slot that becomes
    free thinks for think_ns and takes the next session. `partly_open`: sessions arrive by the clock,
    later turns wait for their predecessor. `cap` bounds the requests in flight (waiting shows as lateness).
    """

    mode: str = "open"
    slots: int | None = None
    cap: int | None = None


class Derivation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a trace was made of others: what was done, with which arguments, and what the others say of themselves."""

    operation: str
    arguments: dict[str, Any]
    parents: tuple[TraceManifest, ...]


class TraceManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a trace is and how it was made. `created_at` and `tool` are outside of the digest."""

    format: str = "loadshape trace"
    version: int = VERSION
    digest: str
    requests: int
    sessions: int
    duration_s: float
    loop: Loop = Loop()
    name: str = ""
    seed: int | None = None
    streams: tuple[str, ...] = ()
    recipe: str | None = None
    settings: dict[str, str] = {}
    fixture: dict[str, Any] | None = None
    recording: dict[str, Any] | None = None
    tokenizer: dict[str, Any] = {}
    statistics: dict[str, Any] = {}
    derivation: Derivation | None = None
    created_at: str = ""
    tool: str = f"loadshape {__version__}"


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests to come: two Arrow tables and their manifest.

    `requests` has the schema REQUESTS, `segments` has SEGMENTS. Make one with `Shape.trace` or open one
    with `Trace.open`; both are immutable. `path` is where it was opened.
    """

    manifest: TraceManifest
    requests: pa.Table
    segments: pa.Table
    path: Path | None = None

    @classmethod
    def build(cls, requests: pa.Table, segments: pa.Table, **about: Any) -> Trace:
        """Return a trace of these tables; *about* fills the manifest, whose digest and counts are computed."""
        loop = about.pop("loop", Loop())
        check_tables(requests, segments, loop)
        about.setdefault("duration_s", _duration_s(requests))
        manifest = TraceManifest(
            digest=digest_content(requests, segments, loop),
            requests=requests.num_rows,
            sessions=len(pc.unique(requests["session"])),
            loop=loop,
            **about,
        )
        return cls(manifest, requests, segments)

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Map the trace at *path*. Raises TraceError when it is damaged, unfinished or of a later version.

        The content is checked for form, not against its digest: `verify` does that.
        """
        folder = Path(path)
        manifest = read_manifest(folder, TraceManifest, "trace", VERSION, TraceError)
        requests = read_table(folder, "requests.arrow", REQUESTS, TraceError)
        segments = read_table(folder, "segments.arrow", SEGMENTS, TraceError)
        return cls(manifest, requests, segments, folder)

    @property
    def digest(self) -> str:
        """The name of this traffic, "sha256:..."; equal content has equal digests everywhere."""
        return self.manifest.digest

    def verify(self) -> None:
        """Recompute the digest and check every invariant. Raises TraceError on any difference."""
        place = self.path or "trace"
        try:
            check_tables(self.requests, self.segments, self.manifest.loop)
        except TraceError as problem:
            raise TraceError(f"{place}: {problem}") from None
        checks = (
            ("digest", self.digest, digest_content(self.requests, self.segments, self.manifest.loop)),
            ("requests", self.manifest.requests, self.requests.num_rows),
            ("sessions", self.manifest.sessions, len(pc.unique(self.requests["session"]))),
        )
        for field, stated, found in checks:
            if stated != found:
                raise TraceError(
                    f"{place}: {field}: the manifest states {stated}, the content gives {found}; "
                    "it was changed or damaged: make it again from its recipe"
                )

    def write(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the trace to *path*, whole or not at all, and return the path.

        Raises TraceError when *path* exists, unless *force* says that it may be replaced.
        """
        tables = {"requests": self.requests, "segments": self.segments}
        return write_folder(Path(path), self.manifest, tables, TraceError, force=force)


def check_tables(requests: pa.Table, segments: pa.Table, loop: Loop) -> None:
    """Raise TraceError unless the tables keep the invariants that a replay relies on."""
    for name, table, schema in (("requests", requests, REQUESTS), ("segments", segments, SEGMENTS)):
        if not table.schema.equals(schema):
            raise TraceError(f"{name}: its columns are not those of the format: {table.schema.names}")
    rows = requests.num_rows
    if rows == 0:
        raise TraceError("trace: no requests; lengthen the duration or raise the rate")
    messages = pc.list_flatten(requests["messages"])
    _check_names("requests.api", requests["api"], APIS)
    _check_names("requests.messages.role", pc.struct_field(messages, "role"), ROLES)
    _check_names("segments.kind", segments["kind"], SEGMENT_KINDS, OLDER_KINDS)
    number = np.asarray(requests["request"])
    if not np.array_equal(np.sort(number), np.arange(rows)):
        raise TraceError("requests.request: expected every number from 0 to rows - 1 once")
    _check_due(requests, loop)
    _check_sessions(requests)
    used = pc.list_flatten(pc.struct_field(messages, "segments"))
    top = max(pc.max(used).as_py() or 0, pc.max(requests["params"]).as_py() or 0)
    if top >= segments.num_rows:
        raise TraceError(f"requests: names segment {top}, but there are only {segments.num_rows}")


def _check_names(field: str, column: pa.ChunkedArray, names: tuple[str, ...], *older: tuple[str, ...]) -> None:
    for chunk in column.chunks:
        found = tuple(chunk.dictionary.to_pylist())
        if found not in (names, *older):
            raise TraceError(
                f"{field}: expected every batch to have the dictionary {', '.join(names)}, found "
                f"{', '.join(map(str, found))}; upgrade loadshape if the trace is a later one's, or shape it anew"
            )


def _check_due(requests: pa.Table, loop: Loop) -> None:
    due, turn = requests["due_ns"], requests["turn"]
    if (pc.min(due).as_py() or 0) < 0:
        raise TraceError("requests.due_ns: negative; due times are offsets from the start of the run")
    if loop.mode == "open" and due.null_count:
        raise TraceError("requests.due_ns: null in an open loop, where every request has its due time")
    if loop.mode == "closed" and not loop.slots:
        raise TraceError("loop.slots: a closed loop needs the number of slots")
    first_without = pc.any(pc.and_(pc.is_null(due), pc.equal(turn, 0))).as_py()
    if loop.mode == "partly_open" and first_without:
        raise TraceError("requests.due_ns: null for a first turn; only later turns wait for their predecessor")
    if loop.mode not in ("open", "closed", "partly_open"):
        raise TraceError(f"loop.mode: expected open, closed or partly_open, found {loop.mode!r}")


def _check_sessions(requests: pa.Table) -> None:
    session, turn = np.asarray(requests["session"]), np.asarray(requests["turn"])
    order = np.lexsort((turn, session))
    starts = np.r_[True, np.diff(session[order]) != 0]
    expected = np.arange(len(turn)) - np.maximum.accumulate(np.where(starts, np.arange(len(turn)), 0))
    if not np.array_equal(turn[order], expected):
        raise TraceError("requests.turn: the turns of a session must count 0, 1, 2, ... without gaps")


def _duration_s(requests: pa.Table) -> float:
    return float(pc.max(requests["due_ns"]).as_py() or 0) / 1e9


def digest_content(requests: pa.Table, segments: pa.Table, loop: Loop) -> str:
    """Return the digest of what a trace, or a part of one, says."""
    parts = {
        "requests": digest_table(requests),
        "segments": digest_table(segments),
        "loop": digest_json(msgspec.to_builtins(loop)),
    }
    return digest_parts("trace 1", parts)


def enumerate_column(values: list[str], names: tuple[str, ...]) -> pa.DictionaryArray:
    """Return a dictionary column over the full fixed list *names*, so that every batch has the same dictionary."""
    codes = {name: code for code, name in enumerate(names)}
    return pa.DictionaryArray.from_arrays(pa.array([codes[value] for value in values], pa.int8()), pa.array(names))


def build_messages(roles: list[list[str]], segments: list[list[list[int]]]) -> pa.ListArray:
    """Return the `messages` column: per request, its roles and, for each, the segment numbers of its content."""
    parts = [part for row in segments for part in row]
    return pack_messages(
        messages=np.array([len(row) for row in roles], np.int64),
        roles=np.array([ROLES.index(role) for row in roles for role in row], np.int64),
        counts=np.array([len(part) for part in parts], np.int64),
        segments=np.array([segment for part in parts for segment in part], np.int64),
    )


def pack_messages(messages: Integers, roles: Integers, counts: Integers, segments: Integers) -> pa.ListArray:
    """Return the `messages` column from flat arrays.

    Request i has the next messages[i] messages; message j has the role ROLES[roles[j]] and the next
    counts[j] entries of *segments*.
    """
    lists = pa.ListArray.from_arrays(_offsets(counts), pa.array(segments, pa.uint32()), type=pa.list_(pa.uint32()))
    names = pa.DictionaryArray.from_arrays(pa.array(roles, pa.int8()), pa.array(ROLES))
    flat = pa.StructArray.from_arrays([names, lists], fields=list(_MESSAGE))
    return pa.ListArray.from_arrays(_offsets(messages), flat, type=pa.list_(_MESSAGE))


def list_segments(requests: pa.Table) -> Integers:
    """Return the segment numbers that the messages of *requests* name, one after another."""
    messages = pc.list_flatten(requests["messages"].combine_chunks())
    return np.asarray(pc.list_flatten(pc.struct_field(messages, "segments")), np.int64)


def rename_segments(requests: pa.Table, named: Integers, params: pa.Array) -> pa.Table:
    """Return *requests* whose messages name the segments *named*, in the order of `list_segments`, and *params*."""
    messages = requests["messages"].combine_chunks()
    flat = pc.list_flatten(messages)
    packed = pack_messages(
        messages=np.asarray(pc.list_value_length(messages), np.int64),
        roles=np.asarray(pc.struct_field(flat, "role").indices, np.int64),
        counts=np.asarray(pc.list_value_length(pc.struct_field(flat, "segments")), np.int64),
        segments=named,
    )
    requests = requests.set_column(REQUESTS.get_field_index("messages"), REQUESTS.field("messages"), packed)
    return requests.set_column(REQUESTS.get_field_index("params"), REQUESTS.field("params"), params.cast(pa.uint32()))


def keep_segments(segments: pa.Table, named: Integers) -> tuple[pa.Table, Integers]:
    """Return the *segments* that are *named*, and for every old number the new one, -1 for none."""
    used = np.zeros(len(segments), bool)
    used[named] = True
    number = np.where(used, np.cumsum(used) - 1, -1)
    return segments if used.all() else segments.filter(pa.array(used)), number


def _offsets(counts: Integers) -> pa.Array:
    return pa.array(np.cumsum(np.r_[0, counts]), pa.int32())

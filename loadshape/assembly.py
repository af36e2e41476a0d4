# Parts of traces, laid together as one trace.
#
# Law: no operation of the algebra is decided here; here is what they all end in. Whatever rows are given,
# the result is a trace in its canonical form:
#
#     sessions   of different parts are different; numbered in the order of their first due times
#     requests   sorted by (first due of the session, session, turn), numbered as they stand
#     turns      counted from 0 in each session, as some may have been left out
#     segments   the used ones only; equal ones of different traces once, in the order of first use in the parts
#
# A closed loop has no instants: sessions keep the order of their part, and those of several parts interleave
# evenly, as if each part took the whole run.
#
# The manifest has the statistics of the new rows, and the manifests of the parents whole: their recipes, seeds
# and statistics stay at hand. Its own recipe is empty, since no recipe declares these arrivals.

"""Assemble parts of traces: renumber, unite equal segments, measure, and say what it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.errors import TraceError
from loadshape.portrait import measure_shared_tokens, measure_trace, read_integers
from loadshape.sharing import rank_values
from loadshape.stats import Integers
from loadshape.trace import (
    Derivation,
    Loop,
    Trace,
    TraceManifest,
    keep_segments,
    list_segments,
    rename_segments,
)
from loadshape.units import NS_PER_S

T = TypeVar("T")
NEVER_NS = np.iinfo(np.int64).max  # stands for no due time where rows are sorted


@dataclass(frozen=True, slots=True)
class Part:
    """Some requests (schema REQUESTS, any order, sessions whole or cut) and the segments that they name.

    Their `shared_tokens` are kept as a lower bound: an operation that drops or reorders rows sets them to 0.
    """

    requests: pa.Table
    segments: pa.Table


def assemble(parts: Sequence[Part], derivation: Derivation, *, loop: Loop, duration_s: float) -> Trace:
    """Return the trace of all *parts*; it lasts *duration_s*, or up to its last due time where that is later."""
    requests = pa.concat_tables([part.requests for part in parts]).combine_chunks()
    if requests.num_rows == 0:
        raise TraceError(f"{derivation.operation}: no request is left of {len(derivation.parents)} trace(s); keep more")
    rows = [part.requests.num_rows for part in parts]
    requests, segments = _unite_segments(requests, [part.segments for part in parts], rows)
    requests = _order_rows(requests, np.repeat(np.arange(len(parts)), rows), loop)
    shared = np.maximum(read_integers(requests["shared_tokens"]), measure_shared_tokens(requests, segments))
    requests = put_column(requests, "shared_tokens", shared)
    duration_s = max(duration_s, (pc.max(requests["due_ns"]).as_py() or 0) / NS_PER_S)
    parents = derivation.parents
    return Trace.build(
        requests,
        segments,
        loop=loop,
        duration_s=float(duration_s),
        name=" + ".join(dict.fromkeys(parent.name for parent in parents if parent.name)),
        fixture=_agree([parent.fixture for parent in parents], None),
        tokenizer=_agree([parent.tokenizer for parent in parents], {}),
        statistics=measure_trace(requests, duration_s, loop),
        derivation=derivation,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def derive(operation: str, traces: Sequence[Trace], **arguments: Any) -> Derivation:
    """Return what is to be said of an *operation* on *traces*: each parent with its statistics, measured if need be."""
    return Derivation(operation, arguments, tuple(map(_portray, traces)))


def find_starts(requests: pa.Table) -> tuple[Integers, Integers]:
    """Return the session of each row, numbered from 0, and due_ns of the first turn of each session, or NEVER_NS."""
    ordinal = rank_values(read_integers(requests["session"]))[1]
    order = np.lexsort((read_integers(requests["turn"]), ordinal))
    first = order[np.r_[True, np.diff(ordinal[order]) != 0]]
    return ordinal, read_due(requests)[first]


def read_due(requests: pa.Table) -> Integers:
    """Return due_ns, NEVER_NS for none."""
    return read_integers(pc.fill_null(requests["due_ns"], NEVER_NS))


def put_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """Return *table* with other *values* in the column *name*, which keeps its place and its type."""
    field = table.schema.field(name)
    column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return table.set_column(table.schema.get_field_index(name), field, column.cast(field.type))


def _portray(trace: Trace) -> TraceManifest:
    about = trace.manifest
    if "dispersion" in about.statistics:
        return about
    return msgspec.structs.replace(
        about, statistics={**about.statistics, **measure_trace(trace.requests, about.duration_s, about.loop)}
    )


def _agree(values: Sequence[T], otherwise: T) -> T:
    return values[0] if all(value == values[0] for value in values) else otherwise


def _order_rows(requests: pa.Table, part: Integers, loop: Loop) -> pa.Table:
    own = read_integers(requests["session"])
    requests = put_column(requests, "session", rank_values(part * (own.max() + 1) + own)[1])
    session, starts = find_starts(requests)
    keys = _interleave(session, part) if loop.mode == "closed" else starts
    turn = read_integers(requests["turn"])
    order = np.lexsort((turn, session, keys[session]))
    session = session[order]
    begins = np.r_[True, np.diff(session) != 0]
    number = np.arange(len(order))
    if not np.array_equal(order, number):
        requests = requests.take(order)
    requests = put_column(requests, "session", np.cumsum(begins) - 1)
    requests = put_column(requests, "turn", number - np.maximum.accumulate(np.where(begins, number, 0)))
    return put_column(requests, "request", number)


def _interleave(session: Integers, part: Integers) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a place in (0, 1) for each session: the k-th of n sessions of a part is at (k + 0.5) / n."""
    _, first = np.unique(session, return_index=True)
    owner = part[first]
    places = np.empty(len(first))
    for each in np.unique(owner):
        mine = np.flatnonzero(owner == each)
        places[mine[np.argsort(first[mine])]] = (np.arange(len(mine)) + 0.5) / len(mine)
    return places


def _unite_segments(requests: pa.Table, tables: list[pa.Table], rows: list[int]) -> tuple[pa.Table, pa.Table]:
    """Return the requests of all parts over one table of the segments that they use."""
    distinct = list({id(table): table for table in tables}.values())
    offsets = dict(zip(map(id, distinct), np.cumsum([0, *(len(it) for it in distinct)]).tolist(), strict=False))
    offset = np.repeat([offsets[id(table)] for table in tables], rows)
    named = list_segments(requests) + np.repeat(offset, _count_segments(requests))
    params = pc.add(requests["params"].cast(pa.int64()), pa.array(offset)).combine_chunks()
    segments, number = keep_segments(pa.concat_tables(distinct), np.r_[named, pc.drop_null(params).to_numpy()])
    if len(distinct) > 1:
        segments, merged = _merge_equal(segments)
        number = np.where(number < 0, -1, merged[number])
    if len(distinct) > 1 or len(segments) < len(distinct[0]):
        requests = rename_segments(requests, number[named], pc.take(pa.array(number), params))
    return requests, segments


def _count_segments(requests: pa.Table) -> Integers:
    """Return how many segments the messages of each request name."""
    messages = requests["messages"].combine_chunks()
    per_message = pc.list_value_length(pc.struct_field(pc.list_flatten(messages), "segments"))
    ends = np.r_[0, np.cumsum(np.asarray(per_message, np.int64))]
    at = np.r_[0, np.cumsum(np.asarray(pc.list_value_length(messages), np.int64))]
    counts: Integers = np.diff(ends[at])
    return counts


def _merge_equal(segments: pa.Table) -> tuple[pa.Table, Integers]:
    """Return the *segments*, equal ones once, and for every old number the new one."""
    _, first, inverse = np.unique(_identify(segments), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return segments.take(np.sort(first)), rank[inverse]


def _identify(segments: pa.Table) -> Integers:
    """Return a number for each segment, equal for equal ones."""
    parts = [segments["kind"].combine_chunks().indices, segments["tokens"]]
    text = segments["text"].dictionary_encode().combine_chunks()
    ids: dict[bytes | None, int] = {None: 0}
    keys = (None if it is None else np.array(it, np.int32).tobytes() for it in segments["token_ids"].to_pylist())
    number = np.zeros(len(segments), np.int64)
    for part in [*parts, pc.fill_null(text.indices, -1), np.array([ids.setdefault(key, len(ids)) for key in keys])]:
        values = np.asarray(part, np.int64)
        low = values.min(initial=0)
        number = rank_values(number * (values.max(initial=0) - low + 1) + values - low)[1]
    return number

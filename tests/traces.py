# Small traces, written by hand, in memory: what the playing tests replay.
#
# A row names only what matters to its test. Times are given in ms and become the ns of the schema; equal
# texts become one segment, as a trace wants it. All content is invented.

"""Builders of in-memory Traces: from rows by hand, and the three loops in a few words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from loadshape.plan import Plan, split_trace
from loadshape.trace import APIS, REQUESTS, SEGMENT_KINDS, SEGMENTS, Loop, Trace, build_messages, enumerate_column

MS = 1_000_000
HELLO = (("user", ("Hello there",)),)

Part = str | tuple[str, Any]  # a text, or (kind, text, token ids, or what its JSON says); of an answer [turn]
Messages = Sequence[tuple[str, Sequence[Part]]]


def ask(
    due: float | None = 0.0,
    *,
    session: int | None = None,
    turn: int = 0,
    think: float = 0.0,
    messages: Messages = HELLO,
    patience: tuple[float | None, int | None] | None = None,
    params: Any = None,
    **columns: Any,
) -> dict[str, Any]:
    """Return a row: `due` and `think` in ms, `patience` as (ms, tokens), `params` as the value of its JSON."""
    row = {"due_ns": None if due is None else round(due * MS), "session": session, "turn": turn}
    row |= {"think_ns": round(think * MS), "kind": "test", "api": "chat", "messages": messages, "params": params}
    row |= {"input_tokens": 8, "output_tokens": 4, "shared_tokens": 0, "patience": None}
    row |= dict.fromkeys(("model", "adapter", "tenant"))
    if patience is not None:
        after_ms, after_tokens = patience
        after_ns = None if after_ms is None else round(after_ms * MS)
        row["patience"] = {"after_ns": after_ns, "after_tokens": after_tokens}
    return row | columns


def make_trace(*rows: dict[str, Any], loop: Loop | None = None, **about: Any) -> Trace:
    """Return the trace of these rows, in their order; without a session each row is one of its own."""
    segments: dict[tuple[str, str], int] = {}
    parts = [[[_number(part, segments) for part in parts] for _, parts in row["messages"]] for row in rows]
    params = [None if row["params"] is None else _number(("json", row["params"]), segments) for row in rows]
    _number("", segments)  # a trace has one segment at least
    given: dict[str, Any] = {
        "request": list(range(len(rows))),
        "session": [at if row["session"] is None else row["session"] for at, row in enumerate(rows)],
        "api": enumerate_column([row["api"] for row in rows], APIS),
        "messages": build_messages([[role for role, _ in row["messages"]] for row in rows], parts),
        "params": params,
    }
    columns = [
        values if isinstance(values := given.get(item.name, [row.get(item.name) for row in rows]), pa.Array)
        else pa.array(values, item.type)
        for item in REQUESTS
    ]  # fmt: skip
    return Trace.build(pa.table(columns, schema=REQUESTS), _segments(segments), loop=loop or Loop(), **about)


def plan_of(*rows: dict[str, Any], loop: Loop | None = None) -> Plan:
    """Return the whole of these rows as one worker's plan."""
    return split_trace(make_trace(*rows, loop=loop), 0, 1)


def open_loop(count: int, gap: float, *, cap: int | None = None, **columns: Any) -> Trace:
    """Return *count* requests, one every *gap* ms."""
    return make_trace(*(ask(at * gap, **columns) for at in range(count)), loop=Loop("open", cap=cap))


def closed_loop(sessions: int, slots: int, *, turns: int = 1, **columns: Any) -> Trace:
    """Return *sessions* of *turns* requests each for *slots* slots."""
    rows = [ask(None, session=at, turn=turn, **columns) for at in range(sessions) for turn in range(turns)]
    return make_trace(*rows, loop=Loop("closed", slots=slots))


def partly_open(sessions: int, turns: int, gap: float, think: float, **columns: Any) -> Trace:
    """Return sessions that arrive every *gap* ms, whose later turns wait for the one before and *think* ms."""
    rows = [
        ask(None if turn else at * gap, session=at, turn=turn, think=think if turn else 0.0, **columns)
        for at in range(sessions)
        for turn in range(turns)
    ]
    return make_trace(*rows, loop=Loop("partly_open"))


def _number(part: Part, segments: dict[tuple[str, str], int]) -> int:
    kind, value = ("text", part) if isinstance(part, str) else part
    text = value if isinstance(value, str) else json.dumps(value)
    return segments.setdefault((kind, text), len(segments))


def _segments(numbered: dict[tuple[str, str], int]) -> pa.Table:
    kinds = [kind for kind, _ in numbered]
    ids = [json.loads(text) if kind in ("token_ids", "answer") else None for kind, text in numbered]
    texts = [None if kind in ("token_ids", "answer") else text for kind, text in numbered]
    columns = [enumerate_column(kinds, SEGMENT_KINDS), pa.array(texts, pa.large_string())]
    columns += [pa.array(ids, pa.list_(pa.int32())), pa.array([1] * len(kinds), pa.uint32())]
    return pa.table(columns, schema=SEGMENTS)

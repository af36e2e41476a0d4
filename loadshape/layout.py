# From what was drawn to the two tables of a trace.
#
# Law: laying out only. Nothing is drawn here and nothing decided: sessions and their turns become rows, what
# is said becomes messages by reference, and segments that nobody names are left out. Rows come in the order of
# the format, since sessions are given in the order in which they begin.
#
# A chat has its prefix in the system message, then questions and answers in turn; a completion is one text.
#
# Finished requests are counted again here, as the server will see them: passages are to add up and an envelope to
# add the same for all, and this says whether they do.

"""Tables of a trace, from a dialogue and the columns that were drawn for it; and tokens counted again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from loadshape.conversation import ROLES
from loadshape.dialogue import Dialogue, Segments
from loadshape.envelope import Envelope, Messages
from loadshape.passage import spread
from loadshape.stats import Integers
from loadshape.trace import APIS, REQUESTS, SEGMENT_KINDS, SEGMENTS, Loop, enumerate_column, pack_messages

CHECKED = 256  # finished requests whose tokens are counted again
_READABLE = ("text", "slot")
_SYSTEM, _USER, _ASSISTANT = (ROLES.index(role) for role in ("system", "user", "assistant"))


def lay_tables(
    dialogue: Dialogue, segments: Segments, *, api: str, params: int | None, columns: Mapping[str, Any]
) -> tuple[pa.Table, pa.Table]:
    """Return requests and segments. *params* is a segment; *columns* are those that a dialogue does not know."""
    messages, roles, counts, named = _list_messages(dialogue, api)
    used = np.zeros(len(segments.rows), bool)
    used[named] = True
    if params is not None:
        used[params] = True
    number = np.cumsum(used) - 1
    rows = len(dialogue.asked.counts)
    laid = {
        "request": np.arange(rows),
        "session": dialogue.session,
        "turn": dialogue.turn,
        "api": _repeat_name(api, APIS, rows),
        "messages": pack_messages(messages, roles, counts, number[named]),
        "input_tokens": dialogue.input_tokens,
        "params": None if params is None else np.full(rows, number[params]),
        **columns,
    }
    requests = pa.table([_fit(laid.get(it.name), it.type, rows) for it in REQUESTS], schema=REQUESTS)
    return requests, _lay_segments(segments, np.flatnonzero(used).tolist())


def time_turns(dialogue: Dialogue, starts_ns: Integers, think_ns: Integers, loop: Loop) -> dict[str, Any]:
    """Return the columns due_ns and think_ns of sessions that begin at *starts_ns*, as the *loop* drives them."""
    is_first = dialogue.turn == 0
    if loop.mode != "closed":
        think_ns = np.where(is_first, 0, think_ns)
    paused = np.cumsum(think_ns)
    due_ns = starts_ns[dialogue.session] + paused - paused[dialogue.first]
    waits = {"open": np.zeros_like(is_first), "partly_open": ~is_first, "closed": np.ones_like(is_first)}[loop.mode]
    return {"due_ns": pa.array(due_ns, pa.int64(), mask=waits), "think_ns": think_ns}


def name_rows(names: list[str], numbers: Integers) -> pa.Array:
    """Return a column of *names* by their numbers."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(names)).cast(pa.string())


def mark_patience(rows: int, which: Integers, after_ns: Integers | None, tokens: Integers | None) -> pa.Array:
    """Return the `patience` column: null but in the rows *which*."""
    absent = np.ones(rows, bool)
    absent[which] = False
    children = [
        pa.nulls(rows, kind) if values is None else pa.array(_scatter(rows, which, values), kind, mask=absent)
        for values, kind in ((after_ns, pa.int64()), (tokens, pa.uint32()))
    ]
    fields = list(REQUESTS.field("patience").type)
    return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array(absent))


def recount(requests: pa.Table, segments: pa.Table, envelope: Envelope) -> dict[str, float] | None:
    """Count some finished requests again; None where their text is not known before the replay."""
    rows = np.unique(np.linspace(0, requests.num_rows - 1, CHECKED).astype(np.int64))
    sample, kinds = requests.take(rows), segments["kind"].cast(pa.string()).to_pylist()
    stated = np.asarray(sample["input_tokens"]).astype(np.int64)
    known, written = [], []
    for row, messages in enumerate(sample["messages"].to_pylist()):
        named = [segment for message in messages for segment in message["segments"]]
        if all(kinds[segment] in _READABLE for segment in named):
            known.append(row)
            written.append(_write_messages(messages, segments["text"], kinds))
    if not known:
        return None
    error = np.array(envelope.count(written), np.int64) - stated[known]
    return {
        "prompts": len(known),
        "exact": int((error == 0).sum()),
        "mean": float(error.mean()),
        "least": int(error.min()),
        "most": int(error.max()),
    }


def _list_messages(dialogue: Dialogue, api: str) -> tuple[Integers, Integers, Integers, Integers]:
    """Return messages a row, and of each message its role, its number of segments, and those one after another."""
    parts = (dialogue.prefix, dialogue.asked, dialogue.answered)
    size = np.concatenate([part.counts for part in parts])
    begin = np.cumsum(size) - size
    flat = np.concatenate([part.segments for part in parts])
    said = 2 * dialogue.turn + 2  # the prefix, questions, and the answers between them
    place = spread(np.zeros_like(said), said)
    first_asked = len(dialogue.turns) + np.repeat(dialogue.first, said)
    first_answered = first_asked + len(dialogue.asked.counts)
    by_assistant = (place % 2 == 0) & (place > 0)
    which = np.where(by_assistant, first_answered + place // 2 - 1, first_asked + (place - 1) // 2)
    which = np.where(place == 0, np.repeat(dialogue.session, said), which)
    counts = size[which]
    named = flat[spread(begin[which], counts)]
    row = np.repeat(np.arange(len(said)), said)
    if api == "completions":
        counts = np.bincount(row, counts, minlength=len(said)).astype(np.int64)
        return np.ones_like(said), np.full(len(said), _USER), counts, named
    there = counts > 0
    roles = np.where(place == 0, _SYSTEM, np.where(by_assistant, _ASSISTANT, _USER))
    return np.bincount(row[there], minlength=len(said)).astype(np.int64), roles[there], counts[there], named


def _lay_segments(segments: Segments, used: list[int]) -> pa.Table:
    kinds, texts, token_ids = zip(*(segments.rows[number] for number in used), strict=True)
    columns = [enumerate_column(list(kinds), SEGMENT_KINDS), pa.array(texts, pa.large_string())]
    columns.append(pa.array(token_ids, pa.list_(pa.int32())))
    columns.append(pa.array([segments.tokens[number] for number in used], pa.uint32()))
    return pa.table(columns, schema=SEGMENTS)


def _write_messages(messages: list[dict[str, Any]], texts: pa.ChunkedArray, kinds: list[str]) -> Messages:
    def write(segment: int) -> str:
        text = str(texts[segment].as_py())
        return msgspec.json.decode(text, type=list[str])[0] * 8 if kinds[segment] == "slot" else text

    return [(message["role"], "".join(map(write, message["segments"]))) for message in messages]


def _scatter(rows: int, which: Integers, values: Integers) -> Integers:
    column = np.zeros(rows, np.int64)
    column[which] = values
    return column


def _fit(values: Any, kind: pa.DataType, n: int) -> pa.Array:
    if values is None:
        return pa.nulls(n, kind)
    return values if isinstance(values, pa.Array) else pa.array(values).cast(kind)


def _repeat_name(name: str, names: tuple[str, ...], n: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(names.index(name), pa.int8()), n), pa.array(names))

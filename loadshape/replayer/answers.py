# Live answers: what the server said in one turn, quoted in a later turn of the same session.
#
# Law: texts and nothing else. A text is kept only where a later turn quotes it, and only while its session
# lasts, so a run of sessions that never end is the only one whose memory grows. A turn that quotes what was
# never said is not reached: a made-up answer would be other traffic, and an empty one a shorter prompt.
#
#     segment    kind "answer", token_ids [turn]: the visible text of that turn of the session
#     tokens     the length that the trace counts on; what came instead, the server's own count tells
#
# A turn that quotes must wait for its predecessor, and so has no due time of its own.

"""Answers: the texts that later turns quote."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.errors import TraceError
from loadshape.plan import NULL, Plan
from loadshape.stats import Integers
from loadshape.trace import Trace

KIND = "answer"


class Answers:
    """The answers of a trace's sessions that later turns quote. Rows are rows of the trace."""

    def __init__(self, trace: Trace) -> None:
        self._quotes = find_quotes(trace)
        session, turn = (np.asarray(trace.requests[name]) for name in ("session", "turn"))
        self._session = {row: int(session[row]) for row in self._quotes}
        self._quoted = _find_quoted(self._quotes, session, turn)
        self._said: dict[int, dict[int, bytes]] = {}  # session -> turn -> text, as it stands in a JSON string

    def __len__(self) -> int:
        return len(self._quotes)

    def is_quoted(self, row: int) -> bool:
        """Return whether a later turn needs what is said to the request in *row*."""
        return row in self._quoted

    def hear(self, plan: Plan, position: int, text: str | None) -> bool:
        """Take what was said to a request, None if it failed; return whether its successor has all that it quotes."""
        session, following = plan.session[position], plan.successor[position]
        if text and self.is_quoted(plan.row[position]):
            self._said.setdefault(session, {})[plan.turn[position]] = msgspec.json.encode(text)[1:-1]
        wanted = self._quotes.get(plan.row[following], ()) if following != NULL else ()
        said = self._said.get(session, ())
        goes_on = text is not None and following != NULL and all(turn in said for turn in wanted)
        if not goes_on:
            self._said.pop(session, None)
        return goes_on

    def quote(self, row: int, turn: int) -> bytes:
        """Return the answer of *turn* for the request in *row*, as it stands inside of a JSON string."""
        return self._said[self._session[row]][turn]


def find_quotes(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Return {row: the turns that it quotes}. Raises TraceError for a turn that is not an earlier one."""
    is_answer = np.asarray(pc.equal(trace.segments["kind"].cast(pa.string()), KIND))
    turns = {at: _read_turn(trace, at) for at in np.flatnonzero(is_answer).tolist()}
    if not turns:
        return {}
    messages = trace.requests["messages"].combine_chunks()
    segments = messages.flatten().field("segments")
    of_message = np.repeat(np.arange(len(messages)), np.asarray(messages.value_lengths()))
    row = np.repeat(of_message, np.asarray(segments.value_lengths()))
    used = np.asarray(segments.flatten())
    found: dict[int, list[int]] = {}
    for at in np.flatnonzero(np.isin(used, list(turns))).tolist():
        found.setdefault(int(row[at]), []).append(turns[int(used[at])])
    own = trace.requests["turn"].to_pylist()
    for request, quoted in found.items():
        if max(quoted) >= own[request]:
            raise TraceError(
                f"segments.token_ids: request {request} is turn {own[request]} of its session and quotes the answer "
                f"of turn {max(quoted)}; only an earlier one has been said by then"
            )
    return {request: tuple(sorted(set(quoted))) for request, quoted in found.items()}


def check_answers(trace: Trace, *, clocked: bool) -> None:
    """Raise TraceError when a request quotes an answer that may not have been given when it is due."""
    quoting = find_quotes(trace)
    if not clocked or not quoting:
        return
    due = trace.requests["due_ns"].take(list(quoting)).to_pylist()
    for row, due_ns in zip(quoting, due, strict=True):
        if due_ns is not None:
            raise TraceError(
                f"requests.due_ns: request {row} quotes a live answer and has a due time, at which it may not have "
                "been given; leave due_ns null, so that it waits for its predecessor, or replay with slots"
            )


def _find_quoted(quotes: dict[int, tuple[int, ...]], session: Integers, turn: Integers) -> frozenset[int]:
    """Return the rows whose answers are quoted."""
    wanted = {(int(session[row]), it) for row, turns in quotes.items() for it in turns}
    involved = np.flatnonzero(np.isin(session, [it for it, _ in wanted])).tolist()
    return frozenset(row for row in involved if (int(session[row]), int(turn[row])) in wanted)


def _read_turn(trace: Trace, segment: int) -> int:
    ids: Iterable[int] | None = trace.segments["token_ids"][segment].as_py()
    turn = list(ids or ())
    if len(turn) != 1 or turn[0] < 0:
        raise TraceError(f"segments.token_ids: answer {segment}: expected [turn], found {ids}")
    return turn[0]

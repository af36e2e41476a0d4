# A trace seen from one process: its share of the requests, as plain lists.
#
# Law: sharding is a function of the trace and of (worker, workers) alone. Nobody hands out work during a
# run: every worker maps the same trace and takes the sessions whose ordinal is its own modulo the
# number of workers, so the union of all shares is the trace, whatever the number, and the superposed
# arrivals are exactly the planned ones. A session stays whole, since its turns depend on one another. A probe is one
# more share: a session in every so many, which the others leave out.

"""Plan: one worker's share of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from loadshape.deal import deal_sessions, number_sessions
from loadshape.errors import TraceError
from loadshape.stats import Integers
from loadshape.trace import Loop, Trace

NULL = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """One worker's requests in the order of the trace; all lists have one entry a request.

    `row` is the request's row in the trace, `due_ns` the planned instant or NULL, `successor` the
    position in this plan of the session's next turn or NULL.
    """

    row: list[int]
    request: list[int]
    session: list[int]
    turn: list[int]
    due_ns: list[int]
    think_ns: list[int]
    successor: list[int]
    abort_ns: list[int]
    abort_tokens: list[int]

    def __len__(self) -> int:
        return len(self.row)


def split_trace(trace: Trace, worker: int, workers: int, *, clocked: bool = True, probe_every: int = 0) -> Plan:
    """Return the share of *worker* (0 <= worker < workers), without due times unless *clocked*.

    With *probe_every* one session in so many is nobody's but the probe's, whose number is *workers*.
    """
    session = np.asarray(trace.requests["session"])
    ordinal = count_sessions(trace)
    rows = np.flatnonzero(deal_sessions(int(ordinal.max(initial=-1)) + 1, workers, probe_every)[ordinal] == worker)
    share = trace.requests.take(rows)
    turn = np.asarray(share["turn"])
    patience = share["patience"].combine_chunks()
    return Plan(
        row=rows.tolist(),
        request=np.asarray(share["request"]).tolist(),
        session=session[rows].tolist(),
        turn=turn.tolist(),
        due_ns=_integers(share["due_ns"]) if clocked else [NULL] * len(rows),
        think_ns=np.asarray(share["think_ns"]).tolist(),
        successor=_link_turns(session[rows], turn).tolist(),
        abort_ns=_integers(pc.struct_field(patience, "after_ns")),
        abort_tokens=_integers(pc.struct_field(patience, "after_tokens")),
    )


def count_sessions(trace: Trace) -> Integers:
    """Return the ordinal of each row's session, sessions counted in the order of the trace."""
    return number_sessions(np.asarray(trace.requests["session"]))


def split_total(total: int | None, worker: int, workers: int) -> int | None:
    """Return the part of a total (slots, cap) that *worker* gets: parts differ by one at most and add up."""
    return None if total is None else total // workers + (worker < total % workers)


def check_loop(loop: Loop, workers: int) -> None:
    """Raise TraceError when the loop cannot be split over *workers*."""
    for name, total in (("slots", loop.slots), ("cap", loop.cap)):
        if total is not None and total < workers:
            raise TraceError(
                f"loop.{name}: {total} cannot be split over {workers} processes; "
                f"set processes = {total} in the run file"
            )


def _integers(column: object) -> list[int]:
    values: list[int] = pc.fill_null(pc.cast(column, "int64"), NULL).to_pylist()
    return values


def _link_turns(session: np.ndarray, turn: np.ndarray) -> np.ndarray:
    order = np.lexsort((turn, session))
    successor = np.full(len(session), NULL, np.int64)
    same = session[order][1:] == session[order][:-1]
    successor[order[:-1][same]] = order[1:][same]
    return successor

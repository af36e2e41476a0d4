# What the reads of a run come to, in one pass.
#
# Law: counting only, no metric and no judgement. Reads are the one table that need not fit into memory: a run of a
# million answers has a hundred million. They are gone through part by part, in the order in which they were written,
# and what stays is one entry a request, one a second and worker, and our lag behind the kernel, exactly, for each.
#
# Rows of one request are in the order of time, since one worker wrote them; those of different requests alternate.
# Where a request comes again in a later part, its last entry there wins: numpy assigns from left to right.

"""Tally: reads counted by request and by second, without ever holding them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadshape.column import Column
from loadshape.stats import Integers

NEVER = int(np.iinfo(np.int64).min)  # of a stamp: there is none
COLUMNS = ("request", "at_ns", "seen_ns", "events", "deltas")
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Tally:
    """Of the reads of a run: `rows` of them, `strange` of requests that have no row.

    By number of the request: `counts` of reads, `first_ns` and `last_ns` (the arrival of the first, and of the last
    with an event), `last_token_ns` (of the last with a token-bearing event); NEVER where there is none. `deltas` are
    the token-bearing events, `shared` those of them that share a read. `lag_ns` is seen - at of every read,
    `by_second` the reads a second of each worker, by our clock: one row a worker.
    """

    rows: int
    strange: int
    counts: Integers
    first_ns: Integers
    last_ns: Integers
    last_token_ns: Integers
    deltas: int
    shared: int
    lag_ns: NDArray[Any]
    by_second: Integers


def tally_reads(parts: Iterable[pa.Table], workers: Integers, *, seconds: int, expected: int) -> Tally:
    """Return what the reads in *parts* come to; *workers* is by number of the request, -1 for one that has no row."""
    size = len(workers)
    counts = np.zeros(size, np.int64)
    first_ns, last_ns, last_token_ns = (np.full(size, NEVER) for _ in range(3))
    lag_ns = Column(np.int32, expected)
    by_second = np.zeros((int(workers.max(initial=0)) + 1, seconds), np.int64)
    placed = np.append(workers, -1)  # the last is for numbers that were never planned
    rows = deltas = shared = 0
    for part in parts:
        rows += part.num_rows
        owner, at_ns, seen_ns, events, bearing = (part[name].to_numpy() for name in COLUMNS)
        lag_ns.extend(seen_ns - at_ns)
        deltas += int(bearing.sum(dtype=np.int64))
        shared += int(bearing[bearing > 1].sum(dtype=np.int64))
        place = placed[np.minimum(owner, size)]
        if (place < 0).any():
            known = place >= 0
            place, owner, at_ns, seen_ns, events, bearing = (
                it[known] for it in (place, owner, at_ns, seen_ns, events, bearing)
            )
        counts += np.bincount(owner, minlength=size)
        fresh = np.flatnonzero(first_ns[owner] == NEVER)[::-1]
        first_ns[owner[fresh]] = at_ns[fresh]
        _keep_last(last_ns, owner, at_ns, events > 0)  # behind [DONE] there is only the end of the body
        _keep_last(last_token_ns, owner, at_ns, bearing > 0)
        second = np.clip(seen_ns // _NS_PER_S, 0, seconds - 1)
        by_second += np.bincount(place * seconds + second, minlength=by_second.size).reshape(by_second.shape)
    strange = rows - int(counts.sum())
    return Tally(rows, strange, counts, first_ns, last_ns, last_token_ns, deltas, shared, lag_ns.close(), by_second)


def _keep_last(stamps_ns: Integers, owner: NDArray[Any], at_ns: Integers, counts: NDArray[np.bool_]) -> None:
    if counts.all():
        stamps_ns[owner] = at_ns
    else:
        stamps_ns[owner[counts]] = at_ns[counts]

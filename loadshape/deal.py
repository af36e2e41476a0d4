# Whose each session is: dealt to the nodes of a run, and by each node to its workers.
#
# Law: a function of the order of the sessions and of four numbers, and of nothing that happens. Playing deals by it
# (plan.py), and recovery finds by it whose a request was that left nothing behind.
#
# Sessions are counted in the order of the trace. One after another they go to the nodes; each node counts its own
# anew and gives them to its workers in the same way. A probe is one more worker of each node: the middle one of every
# so many sessions is the probe's, and the others are dealt as if that were not there. A session stays whole, since
# its turns depend on one another. Workers are numbered through all nodes, node by node, a node's probe behind its
# others.

"""Deal: the worker of every session."""

from __future__ import annotations

import math

import numpy as np

from loadshape.stats import Integers


def number_sessions(session: Integers) -> Integers:
    """Return the ordinal of each row's session, sessions counted in the order of the rows."""
    _, first, inverse = np.unique(session, return_index=True, return_inverse=True)
    ordinal = np.empty(len(first), np.int64)
    ordinal[np.argsort(first)] = np.arange(len(first))
    return ordinal[inverse]


def deal_sessions(sessions: int, workers: int, probe_every: int = 0) -> Integers:
    """Return whose each of a node's sessions is, by its ordinal; the probe's number is *workers*."""
    ordinal = np.arange(sessions)
    if not probe_every:
        return ordinal % workers
    is_probed = ordinal % probe_every == probe_every // 2
    return np.where(is_probed, workers, (np.cumsum(~is_probed) - 1) % workers)


def find_workers(session: Integers, *, nodes: int, processes: int, probe_share: float = 0.0) -> Integers:
    """Return the worker of each row of a trace, by its session; numbers go through all *nodes*."""
    place, node = np.divmod(number_sessions(session), nodes)
    rank = deal_sessions(int(place.max(initial=-1)) + 1, processes, space_probe(probe_share))
    return node * (processes + (probe_share > 0)) + rank[place]


def space_probe(share: float) -> int:
    """Return in how many sessions one is the probe's: fewer than its *share* says; 0 without a probe."""
    return math.floor(1 / share) + 1 if share else 0

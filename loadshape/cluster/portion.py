# A node's part of a trace.
#
# Law: a function of the trace and of (node, nodes) alone, as every worker's share is. Sessions are dealt to the nodes
# in the order of the trace, one after another, and each node deals its own to its workers in the same way (plan.py),
# so that the union of all plans is the trace, whatever the numbers of nodes and workers. A portion has the schema of
# a trace and only the segments that its requests name; requests keep their numbers, so it is no trace by itself, and
# it has a digest of its own. The settings go with it: totals are split, and "the first N requests" are counted again.
#
# Its duration and its loop are those of the whole run. Superposed, the portions' arrivals are exactly the planned ones.

"""Portions: what each node gets of a trace, and of the totals of a run."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.errors import InputError
from loadshape.plan import count_sessions, split_total
from loadshape.replayer.job import Settings
from loadshape.stats import Integers
from loadshape.trace import Loop, Trace, digest_content, keep_segments, list_segments, rename_segments


def cut_portions(trace: Trace, nodes: int) -> Iterator[Trace]:
    """Yield what each of *nodes* gets of *trace*, in their order. Raises InputError when there are too few sessions."""
    ordinal = count_sessions(trace)
    sessions = int(ordinal.max(initial=-1)) + 1
    if sessions < nodes:
        raise InputError(f"nodes: {nodes}, but the trace has {sessions} sessions; use fewer nodes")
    owner = ordinal % nodes
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], np.arange(nodes), side="right")
    for node, rows in enumerate(np.split(order, ends[:-1])):
        yield _cut(trace, rows, node, nodes)


def _cut(trace: Trace, rows: Integers, node: int, nodes: int) -> Trace:
    requests = trace.requests.take(rows)
    named, params = list_segments(requests), requests["params"].combine_chunks()
    segments, number = keep_segments(trace.segments, np.r_[named, pc.drop_null(params).to_numpy()].astype(np.int64))
    requests = rename_segments(requests, number[named], pc.take(pa.array(number), params))
    loop = trace.manifest.loop
    loop = Loop(loop.mode, split_total(loop.slots, node, nodes), split_total(loop.cap, node, nodes))
    manifest = msgspec.structs.replace(
        trace.manifest,
        digest=digest_content(requests, segments, loop),
        requests=len(rows),
        sessions=len(pc.unique(requests["session"])),
        loop=loop,
    )
    return Trace(manifest, requests, segments)


def split_settings(trace: Trace, settings: Settings, node: int, nodes: int) -> Settings:
    """Return what *settings* are for *node*'s portion of *trace*: its part of every total. Raises InputError."""
    first = None
    if settings.requests is not None:
        first = int((count_sessions(trace)[: settings.requests] % nodes == node).sum())
        if not first:
            raise InputError(
                f"requests: the first {settings.requests} of the trace leave node {node} of {nodes} without any; "
                "use fewer nodes"
            )
    return msgspec.structs.replace(
        settings,
        requests=first,
        slots=split_total(settings.slots, node, nodes),
        cap=split_total(settings.cap, node, nodes),
    )

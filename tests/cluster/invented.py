# Logs of several machines, invented: one synthetic log whose sessions are dealt to nodes, and what is known of these.

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from logs import health_row, make_log, make_planned, synthesize_log

from loadshape.log import Log
from loadshape.nodes import Burst, Node

T0_NS = 1  # the coordinator's, of make_run
AHEAD_NS = 5_000_000_000  # by which the clock of node n is behind the coordinator's, n times
WALL_NS = 1_900_000_000_000_000_000
KEPT = {"synchronized": True, "max_error_us": 200}


def burst(at_s: float, node: int = 0, *, moved_us: float = 0.0, bound_us: float = 50.0, **about: Any) -> Burst:
    """Return a reading of the clock of *node*, which has moved since T0 by so much."""
    offset_ns = node * AHEAD_NS + round(moved_us * 1000)
    told = {"offset_ns": offset_ns, "bound_ns": round(bound_us * 1000), "rtt_p99_ns": 200_000, "sent": 100, "heard": 99}
    return Burst(at_ns=round(at_s * 1e9), **(told | about))


def make_node(node: int, **about: Any) -> Node:
    """Return a machine without blame."""
    plain: dict[str, Any] = {
        "node": node,
        "name": f"host-{node}",
        "address": f"192.0.2.{node + 1}",
        "workers": [node],
        "planned": 100,
        "portion_digest": "sha256:" + f"{node:02x}" * 32,
        "epoch_monotonic_ns": T0_NS - node * AHEAD_NS,
        "epoch_realtime_ns": WALL_NS,
        "niceness": 0,
        "folder": "/tmp/loadshape",
        "environment": {"cores": 4, "cpu": "invented", "system": "Linux 6"},
        "synchronization": KEPT,
        "bursts": [burst(at_s, node) for at_s in (-1, 10, 21)],
    }
    return Node(**(plain | about))


def spread_log(
    nodes: int = 3,
    *,
    requests: int = 900,
    seed: int = 7,
    about: dict[int, dict[str, Any]] | None = None,
    slow: dict[int, float] | None = None,
    columns: dict[str, dict[int, Any]] | None = None,
    health: dict[int, dict[str, Any]] | None = None,
    tokens: dict[int, int] | None = None,
) -> Log:
    """Return the log of a run on so many nodes, with one worker each and a session a request.

    By number of the node: *about* has fields of nodes.json, *slow* how many times as long its TTFT is, *columns* values
    of a column of its requests, *health* those of its health rows, *tokens* the planned length of its prompts.
    """
    log = synthesize_log(requests, 10, failing=0.0, seed=seed)
    node = np.arange(requests) % nodes
    table = put(log.requests, "node", node.astype(np.uint16))
    table = put(table, "worker", node.astype(np.uint16))
    for name, values in (columns or {}).items():
        known = np.array([values.get(it) is not None for it in node.tolist()])
        filled = np.array([values.get(it) or 0 for it in node.tolist()])
        table = put(table, name, filled, mask=~known)
    due_ns, first_ns = (np.asarray(table[f"{stamp}_ns"]) for stamp in ("due", "first_token"))
    factor = np.array([(slow or {}).get(it, 1.0) for it in node.tolist()])
    later_ns = ((first_ns - due_ns) * (factor - 1)).astype(np.int64)
    for name in ("first_token_ns", "first_content_ns", "last_token_ns", "done_ns"):
        table = put(table, name, np.asarray(table[name]) + later_ns)
    reads = put(log.reads, "at_ns", np.asarray(log.reads["at_ns"]) + later_ns[np.asarray(log.reads["request"])])
    reads = put(reads, "seen_ns", np.asarray(log.reads["seen_ns"]) + later_ns[np.asarray(log.reads["request"])])
    rows = [
        health_row(ms, worker=it, **{name: grow(value, ms) for name, value in (health or {}).get(it, {}).items()})
        for it in range(nodes)
        for ms in range(0, 20_000, 100)
    ]
    whole = make_log(table, reads, rows, nodes=nodes, environment={"client": {"cores": 2}})
    planned = make_planned(*({"input_tokens": (tokens or {}).get(it, 512)} for it in node.tolist()))
    return replace(whole, planned=planned, nodes=[make_node(it, **(about or {}).get(it, {})) for it in range(nodes)])


def grow(value: float, ms: int) -> int:
    """Return a counter that grows by a share of the time."""
    return round(value * ms * 1e6)


def put(table: pa.Table, name: str, values: Any, mask: Any = None) -> pa.Table:
    place = table.schema.get_field_index(name)
    column = values if isinstance(values, pa.Array) else pa.array(values, mask=mask)
    return table.set_column(place, table.schema.field(place), column.cast(table.schema.field(place).type))

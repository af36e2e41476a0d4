# The machines of a run side by side.
#
# Law: numbers of a node are those of metrics.py over its requests, and nothing is compared here (laggard.py).
# Outcomes are of the whole run, latencies of the window, as for targets. Round trips are the kernel's to the server;
# run-queue delay and steal are those of the node's worst worker, and what its clock can be wrong by is what
# nodes.json proves. A number that a node lacks is None. Rows of lost requests count for their node as far as recovery
# knows it.

"""Fleet: the nodes of a run in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from loadshape import metrics
from loadshape.log import Log, count_outcomes
from loadshape.nodes import Node
from loadshape.stats import Floats, Integers, group_rows, quantile
from loadshape.summary import Distribution, Summary
from loadshape.units import NS_PER_S
from loadshape.validity.host import measure_shares
from loadshape.validity.nodes import bound_stamps_s

_NONE: Integers = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node of a run: `requests` and `outcomes` of the whole of it, latencies and tokens of the window.

    `rtt_s` and `input_tokens` are medians, `loop_lag_s` is a p99, `runqueue` and `steal` (in cores) are shares of the
    time. `clock_s` is how far its stamps can be from the coordinator's. `lost` says why it was lost; empty: it was not.
    """

    node: int
    name: str
    requests: int
    outcomes: dict[str, int]
    ttft: Distribution
    lateness: Distribution
    rtt_s: float | None
    input_tokens: float | None
    loop_lag_s: float | None
    runqueue: float | None
    steal: float | None
    niceness: int | None
    clock_s: float | None
    drift_ppb: float | None
    lost: str


def measure_machines(summary: Summary) -> tuple[Machine, ...]:
    """Return the nodes of a run in their order; none for a run on one host."""
    log = summary.log
    if log.run.nodes < 2:
        return ()
    about = {it.node: it for it in log.nodes}
    shares = {column: _take_worst(log, column) for column in ("runqueue_ns", "steal_ns")}
    tokens, lag_s = _read_tokens(summary), metrics.read_column(log.health, "loop_lag_ns") / NS_PER_S
    every, due = (group_rows(metrics.read_column(table, "node")) for table in (log.requests, summary.members))
    samples = group_rows(metrics.read_column(log.health, "worker") // log.run.workers_each)
    return tuple(
        Machine(
            node=node,
            lateness=Distribution.of(metrics.measure(chosen, "lateness")),
            ttft=Distribution.of(metrics.measure(chosen, "ttft")),
            rtt_s=_take_median(metrics.read_column(chosen, "rtt_ns") / NS_PER_S),
            input_tokens=_take_median(tokens[due.get(node, _NONE)]),
            loop_lag_s=quantile(lag_s[samples.get(node, _NONE)], 0.99),
            runqueue=shares["runqueue_ns"].get(node),
            steal=shares["steal_ns"].get(node),
            **_count(log.requests, every.get(node, _NONE)),
            **_describe(log, about.get(node)),
        )
        for node in range(log.run.nodes)
        for chosen in [summary.members.take(due.get(node, _NONE))]
    )


def _read_tokens(summary: Summary) -> Floats:
    """Return the input tokens of each request of the window: as planned, or else as the server counted them."""
    if summary.log.planned is None:
        return metrics.read_column(summary.members, "prompt_tokens").astype(np.float64)
    planned = metrics.read_column(summary.log.planned, "input_tokens").astype(np.float64)
    return np.asarray(planned[metrics.read_column(summary.members, "request")], np.float64)


def _take_worst(log: Log, column: str) -> dict[int, float]:
    """Return the largest share of any worker of each node."""
    worst: dict[int, float] = {}
    for worker, share in measure_shares(log, column).items():
        node = worker // log.run.workers_each
        worst[node] = max(share, worst.get(node, 0.0))
    return worst


def _take_median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _count(requests: pa.Table, rows: Integers) -> dict[str, Any]:
    return {"requests": len(rows), "outcomes": count_outcomes(requests.select(["outcome"]).take(rows))}


def _describe(log: Log, node: Node | None) -> dict[str, Any]:
    """Return what nodes.json says of a node; nothing of one that it lacks."""
    if node is None:
        return {"name": "", "niceness": None, "clock_s": None, "drift_ppb": None, "lost": ""}
    ends_s = bound_stamps_s(log, node)
    clock_s = None if ends_s is None else max(map(abs, ends_s))
    return {
        "name": node.name,
        "niceness": node.niceness,
        "clock_s": clock_s,
        "drift_ppb": node.drift_ppb,
        "lost": node.lost,
    }

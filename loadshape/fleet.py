# The machines of a run side by side: is one of them slow, or is the server?
#
# Law: every node plays a like part of the same traffic against the same targets, so each is a control for the others.
# A node is compared with the middle one of the others (by median), which a few odd ones do not move. Compared is TTFT as a
# multiple of its target's median over all nodes: a node that asks a slow replica more often is not slow by that.
# A difference counts when the interval of the ratio, by effective sample sizes (interval.py, effect.py), lies beyond
# APART: less is not worth a person's time, and among a hundred nodes one in twenty lies outside of any 95 % by chance.
#
# Numbers of a node are those of metrics.py over its requests. Round trips are the kernel's to the server; run-queue
# delay and steal are those of its worst worker. What a node has no number for is None.

"""Fleet: the nodes of a run in numbers, and the slow ones among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from loadshape import metrics
from loadshape.effect import bound_change
from loadshape.interval import Interval, bound_quantile
from loadshape.log import Log, count_outcomes
from loadshape.metrics import Mask
from loadshape.nodes import Node
from loadshape.reading import Reading
from loadshape.stats import Floats, quantile
from loadshape.summary import Distribution, Summary
from loadshape.units import NS_PER_S
from loadshape.validity.host import measure_shares
from loadshape.validity.nodes import bound_stamps_s

FEWEST = 100  # requests of a node that show a difference
APART = 1.2  # the least ratio that is told


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


@dataclass(frozen=True, slots=True)
class Laggard:
    """A node whose requests take longer than those of the middle one of the `other`s: by this `ratio` of TTFT."""

    own: Machine
    other: Machine
    ratio: Interval


def measure_machines(summary: Summary) -> tuple[Machine, ...]:
    """Return the nodes of a run in their order; none for a run on one host."""
    log = summary.log
    if log.run.nodes < 2:
        return ()
    about = {it.node: it for it in log.nodes}
    shares = {column: _take_worst(log, column) for column in ("runqueue_ns", "steal_ns")}
    of_all, of_window = (metrics.read_column(table, "node") for table in (log.requests, summary.members))
    tokens, lag_s = _read_tokens(summary), metrics.read_column(log.health, "loop_lag_ns") / NS_PER_S
    sampler = metrics.read_column(log.health, "worker") // log.run.workers_each
    return tuple(
        Machine(
            node=node,
            lateness=Distribution.of(metrics.measure(chosen, "lateness")),
            ttft=Distribution.of(metrics.measure(chosen, "ttft")),
            rtt_s=_take_median(metrics.read_column(chosen, "rtt_ns") / NS_PER_S),
            input_tokens=_take_median(tokens[of_window == node]),
            loop_lag_s=quantile(lag_s[sampler == node], 0.99),
            runqueue=shares["runqueue_ns"].get(node),
            steal=shares["steal_ns"].get(node),
            **_count(log.requests, of_all == node),
            **_describe(log, about.get(node)),
        )
        for node in range(log.run.nodes)
        for chosen in [summary.members.filter(pa.array(of_window == node))]
    )


def find_laggards(summary: Summary, machines: tuple[Machine, ...]) -> list[Laggard]:
    """Return the nodes that are slower than the others beyond noise, the slowest first."""
    readings = _read_relative(summary, machines)
    order = sorted(readings, key=lambda node: readings[node].value or 0.0)
    found = []
    for node in order:
        others = [it for it in order if it != node]
        if others and (middle := others[(len(others) - 1) // 2]) is not None:
            ratio = bound_change([readings[middle]], [readings[node]])
            if ratio is not None and ratio.low > APART:
                found.append(Laggard(machines[node], machines[middle], ratio))
    return found[::-1]


def _read_relative(summary: Summary, machines: tuple[Machine, ...]) -> dict[int, Reading]:
    """Return the median TTFT of each node with requests enough, as a multiple of its target's."""
    members = summary.members
    ttft_s, target, node = metrics.measure(members, "ttft"), *_read_places(members)
    order = np.argsort(metrics.read_stamp_s(members, "due"), kind="stable")
    order = order[~np.isnan(ttft_s[order])]
    ttft_s, target, node = ttft_s[order], target[order], node[order]
    for it in np.unique(target):
        ttft_s[target == it] /= np.median(ttft_s[target == it])
    readings = {}
    for it in machines:
        own = ttft_s[node == it.node]
        if len(own) >= FEWEST:
            readings[it.node] = Reading("ttft.p50", "s", float(np.median(own)), bound_quantile(own, 0.5), len(own))
    return readings


def _read_places(requests: pa.Table) -> tuple[Any, Any]:
    return metrics.read_column(requests, "target"), metrics.read_column(requests, "node")


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


def _count(requests: pa.Table, own: Mask) -> dict[str, Any]:
    chosen = requests.filter(pa.array(own))
    return {"requests": chosen.num_rows, "outcomes": count_outcomes(chosen)}


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

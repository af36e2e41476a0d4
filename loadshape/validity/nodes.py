# Were the machines of the run alike, on one clock, and there until the end?
#
# Law: from nodes.json, and from the rows by node. A run on one host has none of these checks. Latencies begin and end
# on one node, so no clock of another is in them; what needs a common clock are sums over nodes at one instant, and
# the server's samples beside them.
#
# Clocks. A node's stamps are since T0 on its own clock. By a burst at time t its T0, seen from the coordinator, lies
#
#     displaced = T0 of the node + offset(t) - T0 of the coordinator, within +- bound(t)
#
# whatever the way of the pings. The largest and the smallest end of these intervals, over all bursts and nodes, say
# how far apart two stamps of the same instant can be: that holds the drift during the run too, since nothing is
# corrected.
#
# Start. Wall clocks are another witness: where the kernel says that NTP or PTP keeps them, with its own largest
# error, T0 of two nodes differs by that much on them, give or take both errors. Only what is beyond the errors is
# held against the limit.

"""Checks of several nodes: their clocks, their start, their niceness, lateness of each, and lost ones."""

from __future__ import annotations

import numpy as np

from loadshape import metrics
from loadshape.log import Log
from loadshape.nodes import Node
from loadshape.stats import group_rows, quantile
from loadshape.units import NS_PER_S, format_duration
from loadshape.validity.finding import Finding, Limits, grade, weigh

_NS_PER_US = 1000


def find_lost(log: Log, _limits: Limits) -> Finding | None:
    """Look for nodes that were not there until the end; None for a run on one host."""
    lost = [f"node {it.node} ({it.lost})" for it in log.nodes if it.lost]
    return Finding("invalid" if lost else "ok", ", ".join(lost) or "none", "none") if log.nodes else None


def find_clocks(log: Log, limits: Limits) -> Finding | None:
    """Hold how far apart stamps of two nodes can be against the limit; None for a run on one host."""
    if not log.nodes:
        return None
    apart_s = measure_apart_s(log)
    measured = "a node's clock was never read" if apart_s is None else f"up to {format_duration(apart_s)} apart"
    if apart_s is not None and not is_aligned(log, limits):
        measured += ": figures across nodes are left out"
    bound = f"at most {format_duration(limits.node_clock_s)}; figures up to {format_duration(limits.node_figures_s)}"
    return Finding(grade(np.nan if apart_s is None else apart_s, limits.node_clock_s), measured, bound)


def find_start(log: Log, limits: Limits) -> Finding | None:
    """Hold T0 of the nodes on their wall clocks against one another; None where fewer than two are kept."""
    kept = [(it.epoch_realtime_ns, error_ns) for it in log.nodes if (error_ns := _read_wall_error_ns(it)) is not None]
    if len(kept) < 2:
        return None
    start_ns, error_ns = np.array(kept, np.int64).T
    start_ns -= start_ns.min()
    proven_s = max(0, int((start_ns - error_ns).max() - (start_ns + error_ns).min())) / NS_PER_S
    spread = f"{format_duration(int(start_ns.max()) / NS_PER_S)} by the wall clocks of {len(kept)} nodes"
    worst = format_duration(int(error_ns.max()) / NS_PER_S)
    return weigh(proven_s, limits.node_start_s, about=f"for certain, {spread}, each true to {worst}")


def find_niceness(log: Log, _limits: Limits) -> Finding | None:
    """Look for nodes whose workers let others go first; None for a run on one host."""
    nice = [f"node {it.node} at {it.niceness}" for it in log.nodes if it.niceness > 0]
    return Finding("suspect" if nice else "ok", ", ".join(nice) or "none", "at most 0") if log.nodes else None


def find_lateness(log: Log, limits: Limits) -> Finding | None:
    """Hold the latest node's p99 of lateness against the limit of the run's; None where no node has requests enough.

    Among many nodes a slow one is not seen in the p99 of all. It makes a run suspect, since the run has its own limit.
    """
    if log.run.nodes < 2:
        return None
    node, late_s = metrics.read_column(log.requests, "node"), metrics.measure(log.requests, "lateness")
    node, late_s = node[~np.isnan(late_s)], late_s[~np.isnan(late_s)]
    found = [(quantile(late_s[rows], 0.99), it) for it, rows in group_rows(node).items()]
    p99_s = [(value, it) for value, it in found if value is not None]
    return weigh(max(p99_s)[0], limits.lateness_p99_s, about=f"p99 of node {max(p99_s)[1]}") if p99_s else None


def measure_apart_s(log: Log) -> float | None:
    """Return how far apart two stamps of one instant can be, of any nodes and the coordinator.

    None for a run on one host, and where the clock of a node was never read.
    """
    ends_s = [bound_stamps_s(log, node) for node in log.nodes]
    known = [it for it in ends_s if it is not None]
    if not known or len(known) < len(ends_s):
        return None
    return max(0.0, *(high_s for _, high_s in known)) - min(0.0, *(low_s for low_s, _ in known))


def bound_stamps_s(log: Log, node: Node) -> tuple[float, float] | None:
    """Return how much later than the coordinator's the T0 of *node* is at least and at most; None: never read.

    Of the readings before T0 only the last counts: what the clocks did earlier is in no stamp.
    """
    later_ns = node.epoch_monotonic_ns - log.run.epoch_monotonic_ns
    bursts = sorted((it for it in node.bursts if it.heard), key=lambda it: it.at_ns)
    before = sum(it.at_ns < 0 for it in bursts)
    ends_ns = [
        later_ns + it.offset_ns + end * it.bound_ns
        for it in bursts[max(0, before - 1) :]
        for end in (-1, 1)
        if it.offset_ns is not None and it.bound_ns is not None
    ]
    return (min(ends_ns) / NS_PER_S, max(ends_ns) / NS_PER_S) if ends_ns else None


def is_aligned(log: Log, limits: Limits) -> bool:
    """Whether times of different nodes may be set side by side; always, on one host."""
    apart_s = measure_apart_s(log)
    return apart_s <= limits.node_figures_s if apart_s is not None else log.run.nodes == 1


def _read_wall_error_ns(node: Node) -> int | None:
    """Return how wrong a node's wall clock can be, as its kernel says; None where nobody keeps it."""
    said = node.synchronization
    error_us = said.get("max_error_us")
    return int(error_us * _NS_PER_US) if said.get("synchronized") and isinstance(error_us, int | float) else None

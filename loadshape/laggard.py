# Is one node slow, or is the server?
#
# Law: every node plays a like part of the same traffic against the same targets, so each is a control for the others.
# Compared is TTFT as a multiple of what was usual: the median, over all nodes, of some fifty requests to the same
# target that were due about then. So a node that asks a slow replica more often is not slow by that, and the server's
# own ups and downs, which all nodes see, cancel. A node stands against the middle one of the others (by median),
# which a few odd ones do not move. A difference counts when the interval of the ratio, by effective sample sizes
# (interval.py), lies beyond APART: less is not worth a person's time, and among a hundred nodes one in twenty lies
# outside of any 95 % by chance.
#
# What else of the node is unlike says where to look, in this order: its round trips (the kernel's) longer by enough
# to be in TTFT: its network. Beyond a limit of the verdict, and twice the other's, in lateness, loop lag, run-queue
# delay, steal or niceness: its machine. Longer prompts: its share of the traffic. Where all nodes are slow alike, it
# is none of them.

"""Laggards: nodes whose requests take longer than those of the others, and what that is usual for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadshape import metrics
from loadshape.fleet import Machine, measure_machines
from loadshape.interval import Figure, Interval, bound_quantile, bound_ratio
from loadshape.stats import Floats
from loadshape.summary import Summary
from loadshape.units import format_duration
from loadshape.validity import Limits
from loadshape.validity.finding import show_share

FEWEST = 100  # requests of a node that show a difference
APART = 1.2  # the least ratio that is told
MOST = 3  # nodes that are told one by one
_BLOCK = 50  # requests that were due one after another, to the same target
_ROUNDS = 10  # round trips that a long prompt on a fresh connection may take: so often a longer way counts in TTFT
_LONGER = 1.2  # times as long prompts that explain a slower node
_SLOW = 0.9  # of the requests that ended ok, those that met the objectives: with fewer a run is slow

Told = tuple[str, str, str, str]  # a pattern, what shows it, the hypothesis, the next evidence


@dataclass(frozen=True, slots=True)
class Laggard:
    """A node whose requests take longer than those of the middle one of the `other`s: by this `ratio` of TTFT."""

    own: Machine
    other: Machine
    ratio: Interval


def tell_laggards(summary: Summary) -> Iterator[Told]:
    """Yield what there is to say of slow nodes, or of nodes that are slow alike; nothing of a run on one host."""
    machines = [it for it in measure_machines(summary) if it.ttft.count >= FEWEST]
    if len(machines) < 2:
        return
    laggards = find_laggards(summary, machines)
    for it in laggards[:MOST]:
        signs, hypothesis, next_evidence = _explain(it, summary.verdict.limits)
        more = f", and so are {len(laggards) - MOST} more" if len(laggards) > MOST else ""
        times = f"TTFT {it.ratio.low:.1f} to {it.ratio.high:.1f} times as long on the same targets"
        pattern = f"node {it.own.node} is slower than node {it.other.node}, the middle one of the others{more}"
        yield pattern, "; ".join((times, *signs)), hypothesis, next_evidence
    met = float(summary.is_good[metrics.is_outcome(summary.members, "ok")].mean())
    if not laggards and met < _SLOW:
        yield (
            "all nodes are slow alike",
            f"{met:.0%} of the requests that ended ok met the objectives, and TTFT is the same from every node",
            "it is the server, or what all nodes share on the way to it, and no machine of the client",
            "the server's queue and KV cache; the same rate from one node alone",
        )


def find_laggards(summary: Summary, machines: list[Machine]) -> list[Laggard]:
    """Return those of *machines* that are slower than the others beyond noise, the slowest first."""
    figures = _measure_relative(summary, [it.node for it in machines])
    order = sorted((it for it in machines if it.node in figures), key=lambda it: figures[it.node][0])
    found = []
    for place, own in enumerate(order):
        others = order[:place] + order[place + 1 :]
        if others:
            other = others[(len(others) - 1) // 2]
            ratio = bound_ratio(figures[other.node], figures[own.node])
            found += [Laggard(own, other, ratio)] if ratio is not None and ratio.low > APART else []
    return found[::-1]


def _measure_relative(summary: Summary, nodes: list[int]) -> dict[int, Figure]:
    """Return the median TTFT of each node as a multiple of what was usual for all nodes, with its interval."""
    members = summary.members
    ttft_s = metrics.measure(members, "ttft")
    order = np.argsort(metrics.read_stamp_s(members, "due"), kind="stable")
    order = order[~np.isnan(ttft_s[order])]
    times = ttft_s[order]
    target, node = (metrics.read_column(members, name)[order] for name in ("target", "node"))
    for it in np.unique(target):
        times[target == it] /= _find_usual(times[target == it])
    own = {it: times[node == it] for it in nodes}
    sure = {it: bound_quantile(values, 0.5) for it, values in own.items()}
    return {it: (float(np.median(own[it])), interval) for it, interval in sure.items() if interval is not None}


def _find_usual(times: Floats) -> Floats:
    """Return for each of *times*, in their order, the median of the block that it lies in."""
    blocks = np.array_split(times, max(1, len(times) // _BLOCK))
    return np.repeat([np.median(block) for block in blocks], [len(block) for block in blocks])


def _explain(it: Laggard, limits: Limits) -> tuple[list[str], str, str]:
    """Return what else of the node is unlike, what that is usual for, and what to look at."""
    later_s = (it.own.ttft.p50_s or 0.0) - (it.other.ttft.p50_s or 0.0)
    if _ROUNDS * ((it.own.rtt_s or 0.0) - (it.other.rtt_s or 0.0)) > later_s:
        sign = f"round trips of {format_duration(it.own.rtt_s)}, there {format_duration(it.other.rtt_s)}"
        return [sign], "the network between this node and the server", "its route; retransmits of its requests"
    if signs := _list_strains(it, limits):
        return signs, "this machine and not the server: its delays are in its TTFT", "its other jobs; a run without it"
    own, other = it.own.input_tokens, it.other.input_tokens
    if own and other and own > _LONGER * other:
        sign = f"prompts of {own:,.0f} tokens, there {other:,.0f}"
        return [sign], "its share of the traffic: its prompts are longer", "TTFT by length of the input; another seed"
    return (
        ["its round trips, its lateness and its prompts are like theirs"],
        "something between this node and the server that the kernel does not see: a proxy, or a balancer's choice",
        "the server's own times of its requests, by x-request-id; the run with the nodes exchanged",
    )


def _list_strains(it: Laggard, limits: Limits) -> list[str]:
    """Return the signs of a machine that is short of something, and more so than the other."""
    own, other = it.own, it.other
    strains = (
        ("lateness p99", own.lateness.p99_s, other.lateness.p99_s, limits.lateness_p99_s, format_duration),
        ("loop lag p99", own.loop_lag_s, other.loop_lag_s, limits.loop_lag_p99_s, format_duration),
        ("waiting for a core", own.runqueue, other.runqueue, limits.runqueue, show_share),
        ("steal", own.steal, other.steal, limits.steal, show_share),
        ("niceness", own.niceness, other.niceness, 0, str),
    )
    return [
        f"{name} {show(mine)}, there {show(theirs or 0)}"
        for name, mine, theirs, limit, show in strains
        if mine is not None and mine > max(limit, 2 * (theirs or 0.0))
    ]

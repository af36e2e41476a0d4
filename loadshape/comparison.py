# Two configurations under the same traffic: is the second better, by how much, and how sure is that?
#
# Law: first the contract, then the numbers. One thing is changed between the sides, and the traffic is the same;
# more, or other traffic, is refused unless the caller allows each change by name. What a change did to a reading, and
# how sure that is, effect.py says: by runs, which are the unit of replication.
#
# Where the trace is the same, requests are paired by number: the median change of one and the same request, whose
# prompt, length and place in the traffic cancel out. The shift function tells where in the distribution a change
# lies: quantile by quantile, for a change of the tail alone is a different story from one of everything.

"""Comparison of two sides: contract, effects with intervals, decisions against a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from loadshape import metrics
from loadshape.contract import Change, compare_facts
from loadshape.effect import MARGIN, Effect, measure_effect
from loadshape.errors import InputError
from loadshape.interval import Interval, bound_quantile
from loadshape.quality import Scores, compare_scores
from loadshape.reading import COSTS, draw_sample
from loadshape.server import measure_servers
from loadshape.stats import Floats, quantiles
from loadshape.summary import Summary

READINGS = (
    *(f"{name}.{of}" for name in ("ttft", "tpot", "itl", "e2e") for of in ("mean", "p50", "p95", "p99")),
    *("request_hz", "output_tokens_per_s", "goodput_hz", "attainment", "errors"),
)
DECLARED = tuple(COSTS)  # compared where both sides declare what they are of
PAIRED = ("ttft", "tpot", "e2e")
SHIFTS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Pairing:
    """The same requests on both sides: `pairs` of them, the median ratio after / before, the share that improved."""

    metric: str
    pairs: int
    ratio: float
    interval: Interval | None
    improved: float


class Shift(NamedTuple):
    """One quantile on both sides, in seconds; with several runs a side, the median of theirs."""

    q: float
    before_s: float
    after_s: float


class Scaling(NamedTuple):
    """How output tokens a second grew with the declared GPUs; `efficiency` is the growth of those of one GPU."""

    before_gpus: float
    after_gpus: float
    speedup: float
    efficiency: float
    interval: Interval | None  # of the efficiency


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides of runs: what was changed, what it did, and for what that holds."""

    before: tuple[Summary, ...]
    after: tuple[Summary, ...]
    changes: tuple[Change, ...]
    effects: tuple[Effect, ...]
    pairings: tuple[Pairing, ...]
    shifts: dict[str, tuple[Shift, ...]] = field(default_factory=dict)  # by metric
    margin: float = MARGIN

    @property
    def by_runs(self) -> bool:
        """Whether there are several runs on either side, so that the intervals are those across runs."""
        return min(len(self.before), len(self.after)) > 1

    @property
    def scaling(self) -> Scaling | None:
        """Of N GPUs against another number of them, as declared; None where that is not what was changed."""
        each = next((it for it in self.effects if it.name == "output_tokens_per_gpu_s"), None)
        if each is None or each.size is None:
            return None
        before, after = (float(it[0].log.environment["declared"]["gpus"]) for it in (self.before, self.after))
        return None if before == after else Scaling(before, after, each.size * after / before, each.size, each.interval)

    @property
    def conditions(self) -> tuple[str, ...]:
        """For what the decisions hold, and what they do not know."""
        return tuple(_state_conditions(self))


def compare(
    before: Sequence[Summary],
    after: Sequence[Summary],
    *,
    allow: Sequence[str] = (),
    margin: float = MARGIN,
    readings: Sequence[str] = READINGS,
    quality: tuple[Scores, Scores] | None = None,
) -> Comparison:
    """Return how the runs *after* differ from those *before*.

    *allow* names changes that may stand beside the one under test ("traffic.trace", "client", or "all"); *quality* are
    the scores of both sides' answers to the same golden items. Raises InputError for a run that is INVALID, for other
    traffic, and for more than one change.
    """
    if not before or not after:
        raise InputError("compare: expected at least one run on each side")
    _check_runs((*before, *after))
    changes = _check_contract(before, after, allow)
    same_traffic = len({it.log.run.trace_digest for it in (*before, *after)}) == 1
    return Comparison(
        tuple(before),
        tuple(after),
        changes,
        _measure_effects(before, after, readings, margin, quality),
        tuple(filter(None, (_pair(before, after, name) for name in PAIRED))) if same_traffic else (),
        {name: _shift(before, after, name) for name in ("ttft", "itl", "e2e")},
        margin,
    )


def _measure_effects(
    before: Sequence[Summary],
    after: Sequence[Summary],
    readings: Sequence[str],
    margin: float,
    quality: tuple[Scores, Scores] | None,
) -> tuple[Effect, ...]:
    effects = [measure_effect(before, after, name, margin) for name in readings]
    costs = (measure_effect(before, after, name, margin) for name in DECLARED)
    effects += (it for it in costs if it.decision != "unknown")
    return (*effects, *([compare_scores(*quality, margin=margin)] if quality else []))


def _check_runs(summaries: Sequence[Summary]) -> None:
    for it in summaries:
        if it.verdict.status == "INVALID":
            raise InputError(
                f"{it.log.path}: the run is INVALID, its numbers are the generator's own; run it again, or see why "
                f"with: loadshape report {it.log.path}"
            )


def _check_contract(before: Sequence[Summary], after: Sequence[Summary], allow: Sequence[str]) -> tuple[Change, ...]:
    for side in (before, after):
        for it in side[1:]:
            _refuse_mixed(side[0], it, allow)
    changes = compare_facts(before[0].log, after[0].log)
    open_changes = [it for it in changes if it.subject != "cost" and not _is_allowed(it, allow)]
    foreign = [change for change in open_changes if change.subject in ("traffic", "client", "instrument")]
    if foreign or len(open_changes) > 1:
        told = "; ".join(map(str, open_changes))
        what = _tell_foreign(foreign) if foreign else f"{len(open_changes)} things were changed at once"
        raise InputError(
            f"compare: {what}, so a difference has no single cause: {told}; accept what may stand beside the change "
            f"under test with {_tell_allow(foreign or open_changes[1:])}"
        )
    return changes


def _tell_foreign(changes: Sequence[Change]) -> str:
    if any(it.name == "traffic.trace" for it in changes):
        return "the two sides are of different traces"
    if any(it.name == "instrument.profiled" for it in changes):
        return "one side was profiled and the other was not"
    return f"{changes[0].subject} differs"


def _tell_allow(changes: Sequence[Change]) -> str:
    names = [it.name for it in changes] if len(changes) < 3 else list(dict.fromkeys(it.subject for it in changes))
    return " ".join(f"--allow {name}" for name in names)


def _refuse_mixed(first: Summary, other: Summary, allow: Sequence[str]) -> None:
    mixed = [change for change in compare_facts(first.log, other.log) if not _is_allowed(change, allow)]
    if mixed:
        raise InputError(f"{other.log.path}: is no repeat of {first.log.path}: {'; '.join(map(str, mixed))}")


def _is_allowed(change: Change, allow: Sequence[str]) -> bool:
    return any(name in ("all", change.subject, change.name) for name in allow)


def pair_changes(before: Sequence[Summary], after: Sequence[Summary], metric: str) -> Floats:
    """Return the change of each request that ended ok on both sides, in the order of due, as log(after / before).

    A request of several runs is the mean of its logarithms over those in which it ended ok.
    """
    numbers, due_s = _order_requests(before[0])
    old, new = (_mean_logarithms(side, metric, len(numbers)) for side in (before, after))
    change = (new - old)[np.argsort(due_s, kind="stable")]
    return change[np.isfinite(change)]


def _pair(before: Sequence[Summary], after: Sequence[Summary], metric: str) -> Pairing | None:
    change = pair_changes(before, after, metric)
    if len(change) < 10:
        return None
    interval = bound_quantile(change, 0.5)
    spread = interval and Interval(math.exp(interval.low), math.exp(interval.high), interval.effective)
    return Pairing(metric, len(change), math.exp(float(np.median(change))), spread, float((change < 0).mean()))


def _order_requests(summary: Summary) -> tuple[Floats, Floats]:
    requests = summary.log.requests
    return metrics.read_column(requests, "request"), metrics.read_stamp_s(requests, "due")


def _mean_logarithms(side: Sequence[Summary], metric: str, count: int) -> Floats:
    total, seen = np.zeros(count), np.zeros(count)
    for it in side:
        values = metrics.measure(it.log.requests, metric)
        known = (values > 0) & np.isfinite(values) & it.window.holds(metrics.read_stamp_s(it.log.requests, "due"))
        total[known] += np.log(values[known])
        seen[known] += 1
    return np.where(seen > 0, total / np.maximum(seen, 1), np.nan)


def _shift(before: Sequence[Summary], after: Sequence[Summary], metric: str) -> tuple[Shift, ...]:
    sides = [[quantiles(draw_sample(it, metric), SHIFTS) for it in side] for side in (before, after)]
    rows = []
    for place, q in enumerate(SHIFTS):
        values = [[row[place] for row in side] for side in sides]
        if all(value is not None for side in values for value in side):
            rows.append(Shift(q, *(float(np.median(np.array(side, np.float64))) for side in values)))
    return tuple(rows)


def _state_conditions(comparison: Comparison) -> list[str]:
    runs = f"{len(comparison.before)} run(s) before, {len(comparison.after)} after"
    stated = [f"{runs}; margin of indifference {comparison.margin:.0%} (shares: {comparison.margin / 5:.1%})"]
    if not comparison.by_runs:
        stated.append(
            "one run a side: the intervals know the noise within a run and not that between runs or between starts of "
            "a server; repeat both sides (replay --repeat 5) before a decision that matters"
        )
    stated.append(
        "requests of different runs are not pooled, and no test over them is made: those of one run queue behind one "
        "another, and a test that takes them as independent finds a difference between a server and itself"
    )
    if not comparison.changes:
        stated.append("no changed fact was found: either nothing was changed, or the runs do not know what was")
    suspect = [it for it in (*comparison.before, *comparison.after) if it.verdict.status == "SUSPECT"]
    if suspect:
        doubts = ", ".join(dict.fromkeys(check.name for it in suspect for check in it.verdict.reasons))
        paths = ", ".join(str(it.log.path) for it in suspect)
        stated.append(f"SUSPECT for {doubts}: {paths}; these reservations hold here too")
    for it in (*comparison.before, *comparison.after):
        stated += [f"{it.log.path}: {text}" for server in measure_servers(it.log) for text in server.remarks]
    stated.append("for this traffic, this model and these hosts; another rate or another mix may turn the order round")
    return stated

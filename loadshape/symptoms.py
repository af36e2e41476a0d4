# What to look at next: patterns in a run that experience knows, told as hypotheses.
#
# Law: never a cause. A log shows when things happened at the client and not why at the server; each symptom is a
# pattern with the numbers that show it, the hypothesis it is usual for, and the evidence that would confirm or
# refute it. Patterns are looked for only where there are enough requests to show one, and a run without any has none:
# silence is the ordinary answer.
#
# Rank correlations are Spearman's; 0.5 of some hundreds of requests is far beyond chance, and less is not
# worth a person's time.

"""Symptoms: patterns of a run, each with a hypothesis and the evidence to ask for next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from loadshape import metrics
from loadshape.laggard import tell_laggards
from loadshape.metrics import STALL
from loadshape.server import list_series
from loadshape.stats import Floats, Integers, rank_correlation
from loadshape.summary import Summary

_FEWEST = 100  # requests that show a pattern
_STRONG = 0.5  # rank correlation
_IN_STEP = 0.5  # of the streams under way that stand still together
_STALLED = 0.05  # share of time that is worth a word
_LOOKED_AT = 1 << 22  # gaps, in the search for streams that stand still together
_CLUSTER = 0.1  # of the run, in which most failures lie


@dataclass(frozen=True, slots=True)
class Symptom:
    """A pattern, what shows it, what it is usual for, and what to look at next."""

    pattern: str
    shown_by: str
    hypothesis: str
    next_evidence: str


def find_symptoms(summary: Summary) -> tuple[Symptom, ...]:
    """Return the patterns that the run shows, in the order of a request's life."""
    return tuple(symptom for look in _LOOKS for symptom in look(summary))


def _look_at_lateness(summary: Summary) -> Iterator[Symptom]:
    for check in summary.verdict.reasons:
        if check.name == "lateness":
            yield Symptom(
                "the client was late",
                check.measured,
                "the generator had no core, or too much to do at once: part of TTFT and E2E is its own",
                "run-queue delay, CPU and steal among the checks; TTFT from sent beside TTFT; more processes",
            )


def _look_at_waiting(summary: Summary) -> Iterator[Symptom]:
    for series in list_series(summary.log):
        if series.name != "num_requests_waiting":
            continue
        due_s, ttft_s, _ = _order(summary, series.target)
        place = np.searchsorted(series.at_s, due_s, side="right") - 1
        rank = rank_correlation(series.values[np.maximum(place, 0)], ttft_s) if len(ttft_s) >= _FEWEST else 0.0
        if rank > _STRONG:
            yield Symptom(
                "TTFT rises with the server's own queue",
                f"rank correlation {rank:.2f} with its waiting requests, {series.values.max():,.0f} at most",
                "the server has no room for more sequences, or no KV cache for them",
                "its KV-cache usage and preemptions at that time; its limit of sequences; a lower rate (search)",
            )


def _look_at_queue(summary: Summary) -> Iterator[Symptom]:
    due_s, ttft_s, _ = _order(summary)
    if len(ttft_s) < _FEWEST:
        return
    begun_s, done_s = (np.sort(_known(metrics.read_stamp_s(summary.log.requests, of))) for of in ("begun", "done"))
    in_flight = np.searchsorted(begun_s, due_s) - np.searchsorted(done_s, due_s)
    rank = rank_correlation(in_flight.astype(np.float64), ttft_s)
    if rank > _STRONG:
        yield Symptom(
            "TTFT follows the number of requests in flight",
            f"rank correlation {rank:.2f} over {len(ttft_s):,} requests",
            "requests wait for a place in the running batch",
            "the server's waiting and running requests and its KV-cache usage; the largest rate that is kept (search)",
        )


def _look_at_prefill(summary: Summary) -> Iterator[Symptom]:
    _, ttft_s, tokens = _order(summary)
    known = ~np.isnan(tokens)
    if known.sum() < _FEWEST:
        return
    rank = rank_correlation(tokens[known], ttft_s[known])
    if rank > _STRONG:
        yield Symptom(
            "TTFT follows the length of the input",
            f"rank correlation {rank:.2f} over {int(known.sum()):,} requests",
            "reading the prompt dominates the time to the first token",
            "the share of input tokens from the prefix cache, the size of prefill chunks, TTFT by length of the input",
        )


def _look_at_stalls(summary: Summary) -> Iterator[Symptom]:
    gaps = summary.gaps
    if len(gaps.gap_ns) < _FEWEST or (summary.stalled or 0.0) < _STALLED:
        return
    limit_ns = STALL * np.median(gaps.thin(_LOOKED_AT).gap_ns)
    stalls = np.flatnonzero(gaps.gap_ns > limit_ns)
    if len(gaps.gap_ns) > _LOOKED_AT and len(stalls):  # of very many, those around the middle stall
        first = max(0, int(stalls[len(stalls) // 2]) - _LOOKED_AT // 2)
        gaps = gaps.pick(slice(first, first + _LOOKED_AT))
        stalls = np.flatnonzero(gaps.gap_ns > limit_ns)
    if not len(stalls):
        return
    middle_s = gaps.end_s[stalls] - gaps.gap_s[stalls] / 2
    still = _count_around(middle_s, gaps.end_s[stalls] - gaps.gap_s[stalls], gaps.end_s[stalls])
    under_way = _count_around(middle_s, gaps.end_s - gaps.gap_s, gaps.end_s)
    together = float(np.mean(still / np.maximum(under_way, 1)))
    several = float(np.mean(under_way)) > 2
    if several and together > _IN_STEP:
        yield Symptom(
            "streams stand still together",
            f"{summary.stalled:.0%} of the answers' time is in stalls, which {together:.0%} of the streams share",
            "something stops the whole batch: a long prefill between decode steps, a preemption, or the network",
            "the server's preemptions and the inputs that arrive at those moments; chunked prefill; retransmissions",
        )
    else:
        yield Symptom(
            "single streams stand still",
            f"{summary.stalled:.0%} of the answers' time is in stalls, and they do not coincide",
            "single requests lose their place (preemption and recomputation), or their connection does",
            "the server's preemptions, and rtt and retransmits of the requests with the longest gaps",
        )


def _look_at_targets(summary: Summary) -> Iterator[Symptom]:
    medians = {it.target: it.ttft.p50_s for it in summary.by_target if it.ttft.p50_s}
    if len(medians) < 2:
        return
    slow, fast = max(medians, key=lambda key: medians[key] or 0), min(medians, key=lambda key: medians[key] or 0)
    ratio = (medians[slow] or 0) / (medians[fast] or 1)
    if ratio > 1.5:
        yield Symptom(
            f"target {slow} is slower than target {fast}",
            f"TTFT p50 {ratio:.1f} times as long",
            "the replicas are not alike, or the routing does not load them alike",
            "requests and input tokens of each target, and the environment of that replica",
        )


def _look_at_nodes(summary: Summary) -> Iterator[Symptom]:
    for told in tell_laggards(summary):
        yield Symptom(*told)


def _look_at_failures(summary: Summary) -> Iterator[Symptom]:
    members = summary.members
    failed = ~metrics.is_outcome(members, "ok")
    due_s = np.sort(metrics.read_stamp_s(members, "due")[failed])
    span_s = summary.window.length_s * _CLUSTER
    if len(due_s) < 10 or span_s <= 0:
        return
    most = int((np.searchsorted(due_s, due_s + span_s, side="right") - np.arange(len(due_s))).max())
    if most > 0.8 * len(due_s):
        yield Symptom(
            "failures lie close together",
            f"{most:,} of {len(due_s):,} within {span_s:.3g} s",
            "something happened once (a restart, a full queue, a deploy), and the rate of errors is not a steady one",
            "the server's log at that time; the same run again",
        )


_LOOKS: tuple[Callable[[Summary], Iterator[Symptom]], ...] = (
    _look_at_lateness,
    _look_at_waiting,
    _look_at_queue,
    _look_at_prefill,
    _look_at_stalls,
    _look_at_targets,
    _look_at_nodes,
    _look_at_failures,
)


def _order(summary: Summary, target: int | None = None) -> tuple[Floats, Floats, Floats]:
    """Due, TTFT and counted input tokens of the requests (of one target) that have a TTFT."""
    members = summary.members
    if target is not None:
        members = members.filter(pc.equal(members["target"], target))
    ttft_s = metrics.measure(members, "ttft")
    known = ~np.isnan(ttft_s)
    tokens = metrics.read_column(members, "prompt_tokens").astype(np.float64)
    return metrics.read_stamp_s(members, "due")[known], ttft_s[known], tokens[known]


def _count_around(at_s: Floats, starts_s: Floats, ends_s: Floats) -> Integers:
    """Return how many of the intervals hold each instant."""
    return np.searchsorted(np.sort(starts_s), at_s, side="right") - np.searchsorted(np.sort(ends_s), at_s, side="left")


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]

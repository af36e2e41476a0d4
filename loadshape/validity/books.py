# Do the books balance?
#
# Law: the same fact from two sides that were written apart. Every planned request has one row and one outcome; what
# was begun has ended; each request counted its reads, and the table of reads has as many, between its
# sending and its end; the requests in flight counted by the workers ten times a second are those that the rows imply.
#
# Little's law: over a run, the integral of the number in flight equals the sum of residence times. From one
# column of stamps alone that is true whatever the stamps are, so it would find nothing. Here a request leaves when the
# table of reads has its last token, and its residence is what its own row says: a lost row, a doubled one and
# a moved stamp each break the balance. The second form has a side of its own too: the workers' counters, compared
# with the rows at the very instants at which they were sampled, so that the traffic's own variation cancels. Single
# samples may disagree, because a counter moves when the end was decoded and the row has the time at which it came;
# disagreement that lasts is a moved stamp.

"""Checks of bookkeeping: one row a request and a read, how the run ended, Little's law twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadshape import metrics
from loadshape.log import Log, count_outcomes
from loadshape.stats import Floats, Integers, group_rows
from loadshape.tally import NEVER
from loadshape.units import NS_PER_S
from loadshape.validity.finding import Finding, Limits, Status, show_share, weigh

_COUNTING_REQUESTS = 0.5  # a counter moves when the end was decoded, the row has the time of the last byte
_COUNTING_NS = 10_000_000  # the same as a time, beside what the worker says of its own lags


def find_rows(log: Log, _limits: Limits) -> Finding:
    """Look for planned requests without a row, with two, or with an outcome that the manifest denies."""
    numbers = metrics.read_column(log.requests, "request")
    distinct = np.unique(numbers)
    doubled = len(numbers) - len(distinct)
    strange = int(np.count_nonzero(distinct >= log.run.planned))
    missing = log.run.planned - (len(distinct) - strange)
    lost = int(np.count_nonzero(metrics.is_outcome(log.requests, "lost")))
    begun_s, done_s = (metrics.read_stamp_s(log.requests, stamp) for stamp in ("begun", "done"))
    endless = int(np.count_nonzero(~np.isnan(begun_s) & np.isnan(done_s) & ~metrics.is_outcome(log.requests, "lost")))
    agreed = count_outcomes(log.requests) == {name: n for name, n in log.manifest.outcomes.items() if n}
    faults = {"missing": missing, "twice": doubled, "never planned": strange, "lost": lost, "never ended": endless}
    told = [f"{count} {name}" for name, count in faults.items() if count]
    if not agreed:
        told.append("other outcomes than the manifest counts")
    measured = f"{len(numbers):,} rows for {log.run.planned:,} planned requests"
    return Finding("invalid" if told else "ok", ", ".join([measured, *told]), "one row each")


def find_end(log: Log, _limits: Limits) -> Finding:
    """Look at how the run ended: as planned, interrupted by its user, or stopped because it could not go on."""
    ended = log.manifest.ended
    known: dict[str, Status] = {"complete": "ok", "interrupted": "suspect", "recovered": "suspect"}
    return Finding(known.get(ended.partition(":")[0], "invalid"), ended, "complete")


def find_reads(log: Log, limits: Limits) -> Finding:
    """Look for requests whose reads are more or fewer than they counted, or lie outside of their time in flight."""
    tally = log.tally
    numbers, counted = (metrics.read_column(log.requests, name) for name in ("request", "reads"))
    found, first_ns, last_ns = (_look_up(values, numbers) for values in (tally.counts, tally.first_ns, tally.last_ns))
    faults = {"requests with another number of reads": int(np.count_nonzero(found != counted))}
    faults["reads of no request"] = tally.strange
    slack_ns = limits.stamp_order_s * NS_PER_S
    sent_ns, again_ns, done_ns = (metrics.read_column(log.requests, f"{it}_ns") for it in ("sent", "resent", "done"))
    sent_ns = np.fmax(sent_ns, again_ns)  # an answer is to the last sending
    # A last word on an idle connection may be older than the request that it ended, but that did not end ok.
    early = metrics.is_outcome(log.requests, "ok") & (found > 0) & (first_ns < sent_ns - slack_ns)
    outside = early | (last_ns > done_ns + slack_ns)
    faults["requests with reads before they were sent or after their end"] = int(np.count_nonzero(outside))
    told = [f"{count:,} {name}" for name, count in faults.items() if count]
    return Finding(
        "invalid" if told else "ok", ", ".join([f"{tally.rows:,} reads", *told]), "as counted by the requests"
    )


def find_identity(log: Log, limits: Limits) -> Finding:
    """Compare the integral of the number in flight, by the reads, with the sum of residence times, by the rows."""
    begun_s, done_s, token_s = (metrics.read_stamp_s(log.requests, it) for it in ("begun", "done", "last_token"))
    is_ok = metrics.is_outcome(log.requests, "ok")
    if np.isnan(begun_s).all():
        return weigh(np.nan, limits.identity, show=show_share)
    left_s = np.where(is_ok, token_s, done_s)
    residence = float(np.nansum(left_s - begun_s))
    others = metrics.read_column(log.requests, "request")[~is_ok]
    ends_s = np.r_[done_s[~is_ok & ~np.isnan(begun_s)], _find_last_tokens_s(log, others)]
    starts_s, ends_s = begun_s[~np.isnan(begun_s)], ends_s[~np.isnan(ends_s)]
    horizon_s = max(starts_s.max(), ends_s.max(initial=0.0), log.manifest.ended_ns / NS_PER_S)
    integral = float((horizon_s - starts_s).sum() - (horizon_s - ends_s).sum())
    gap = abs(integral - residence) / max(abs(integral), residence, 1e-9)
    return weigh(gap, limits.identity, limits.identity_invalid, show=show_share, about=f"of {residence:.4g} request-s")


def find_in_flight(log: Log, limits: Limits) -> Finding:
    """Compare the workers' own counters of requests in flight with what the rows imply at those instants."""
    sampled = metrics.read_column(log.health, "in_flight").astype(np.float64)
    if len(sampled) < 2:
        return weigh(np.nan, 0.0)
    implied = _count_in_flight(log)
    gap = sampled - implied
    error = float(gap.std(ddof=1)) / np.sqrt(len(gap))
    allowed = max(limits.in_flight_errors * error, limits.in_flight_share * float(implied.mean()), _COUNTING_REQUESTS)
    stretch = _find_stretch(log, sampled)
    kept = abs(float(gap.mean())) <= allowed and stretch <= limits.in_flight_stretch
    lasting = f", {stretch} of them in a row not by the rows" if stretch else ""
    return Finding(
        "ok" if kept else "suspect",
        f"{sampled.mean():.4g} counted a worker, {implied.mean():.4g} by the rows ({len(gap)} samples{lasting})",
        f"apart by at most {allowed:.3g} ({limits.in_flight_errors:g} standard errors, "
        f"{show_share(limits.in_flight_share)} or {_COUNTING_REQUESTS:g} requests), "
        f"at most {limits.in_flight_stretch:g} samples in a row",
    )


def _find_last_tokens_s(log: Log, others: NDArray[Any]) -> Floats:
    """Return when each request had its last token by the table of reads, without the requests numbered *others*."""
    last_ns = log.tally.last_token_ns.copy()
    last_ns[others[others < len(last_ns)]] = NEVER
    return np.asarray(last_ns[last_ns != NEVER] / NS_PER_S, np.float64)


def _look_up(values: Integers, numbers: Integers) -> Integers:
    """Return the values of requests by number; nothing for a number that was never planned."""
    return np.append(values, 0)[np.minimum(numbers, len(values))]


def _find_stretch(log: Log, sampled: Floats) -> int:
    """Return the most samples in a row of one worker that no order of stamping and decoding explains."""
    lag_ns = np.asarray(_find_lag_ns(log))
    fewest = _count_in_flight(log, begun_by_ns=-lag_ns)
    most = _count_in_flight(log, done_by_ns=-lag_ns)
    wrong = (sampled < fewest) | (sampled > most)
    worker = metrics.read_column(log.health, "worker")
    longest = run = 0
    for index in np.flatnonzero(wrong).tolist():
        follows = run and wrong[index - 1] and worker[index - 1] == worker[index]
        run = run + 1 if follows else 1
        longest = max(longest, run)
    return longest


def _find_lag_ns(log: Log) -> Floats:
    """Return how far a worker may have been behind at each of its samples: by its loop and by its decoder."""
    lag_ns = np.add(
        *(metrics.read_column(log.health, f"{name}_lag_ns").astype(np.float64) for name in ("loop", "decode"))
    )
    later = np.r_[lag_ns[1:], 0.0]  # what was late at a sample is told by the next one
    return np.asarray(_COUNTING_NS + np.maximum(lag_ns, later), np.float64)


def _count_in_flight(log: Log, *, begun_by_ns: Floats | float = 0.0, done_by_ns: Floats | float = 0.0) -> Floats:
    """Return, for every health row, how many requests of its worker were begun and not yet done.

    Begun and done are looked at so much after the row's instant.
    """
    sampler, at_ns = metrics.read_column(log.health, "worker"), metrics.read_column(log.health, "at_ns")
    owner = metrics.read_column(log.requests, "worker")
    begun_ns, done_ns = (metrics.read_column(log.requests, f"{stamp}_ns") for stamp in ("begun", "done"))
    sent, none = ~np.isnan(begun_ns), np.empty(0, np.int64)
    owners = {stamp: group_rows(owner[sent & ~np.isnan(of)]) for stamp, of in (("begun", begun_ns), ("done", done_ns))}
    starts_ns, ends_ns = (of[sent & ~np.isnan(of)] for of in (begun_ns, done_ns))
    begun_by, done_by = at_ns + begun_by_ns, at_ns + done_by_ns
    counts = np.zeros(len(at_ns))
    for worker, rows in group_rows(sampler).items():
        starts = np.sort(starts_ns[owners["begun"].get(worker, none)])
        ends = np.sort(ends_ns[owners["done"].get(worker, none)])
        counts[rows] = np.searchsorted(starts, begun_by[rows], "right") - np.searchsorted(ends, done_by[rows], "right")
    return counts

# Do the books balance?
#
# Law: the same fact from two sides. Every planned request has one row and one outcome; what was begun has
# ended; the requests in flight counted by the workers ten times a second are those that the rows imply.
#
# Little's law: over a run, the integral of the number in flight equals the sum of residence times. With
# both sides from the same rows it is an identity, and a difference is a lost or doubled row. The second
# form has an independent side: the workers' own counters, compared with the rows at the very instants at
# which they were sampled, so that the traffic's own variation cancels.

"""Checks of bookkeeping: one row a request, how the run ended, Little's law twice."""

from __future__ import annotations

import numpy as np

from loadshape import metrics
from loadshape.log import Log, count_outcomes
from loadshape.stats import Floats
from loadshape.validity.finding import Finding, Limits, Status, show_share, weigh

_COUNTING_REQUESTS = 0.5  # a counter moves when the end was decoded, the row has the time of the last byte


def find_rows(log: Log, _limits: Limits) -> Finding:
    """Look for planned requests without a row, with two, or with an outcome that the manifest denies."""
    numbers = metrics.read_column(log.requests, "request")
    distinct = np.unique(numbers)
    doubled = len(numbers) - len(distinct)
    strange = int(np.count_nonzero(distinct >= log.run.planned))
    missing = log.run.planned - (len(distinct) - strange)
    lost = int(np.count_nonzero(metrics.is_outcome(log.requests, "lost")))
    agreed = count_outcomes(log.requests) == {name: n for name, n in log.manifest.outcomes.items() if n}
    faults = {"missing": missing, "twice": doubled, "never planned": strange, "lost": lost}
    told = [f"{count} {name}" for name, count in faults.items() if count]
    if not agreed:
        told.append("other outcomes than the manifest counts")
    measured = f"{len(numbers):,} rows for {log.run.planned:,} planned requests"
    return Finding("invalid" if told else "ok", ", ".join([measured, *told]), "one row each")


def find_end(log: Log, _limits: Limits) -> Finding:
    """Look at how the run ended: as planned, interrupted by its user, or stopped because it could not go on."""
    ended = log.manifest.ended
    known: dict[str, Status] = {"complete": "ok", "interrupted": "suspect"}
    return Finding(known.get(ended, "invalid"), ended, "complete")


def find_identity(log: Log, limits: Limits) -> Finding:
    """Compare the integral of the number in flight with the sum of residence times."""
    begun_s, done_s = (metrics.read_stamp_s(log.requests, stamp) for stamp in ("begun", "done"))
    starts, ends = np.sort(begun_s[~np.isnan(begun_s)]), np.sort(done_s[~np.isnan(done_s)])
    if len(starts) == 0:
        return weigh(np.nan, limits.identity, show=show_share)
    horizon_s = max([starts[-1], *ends[-1:], log.manifest.ended_ns / 1e9])
    integral = float((horizon_s - starts).sum() - (horizon_s - ends).sum())
    residence = float(np.nansum(np.maximum(done_s - begun_s, 0)))
    gap = abs(integral - residence) / max(integral, residence, 1e-9)
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
    found = abs(float(gap.mean()))
    return Finding(
        "ok" if found <= allowed else "suspect",
        f"{sampled.mean():.4g} counted a worker, {implied.mean():.4g} by the rows ({len(gap)} samples)",
        f"apart by at most {allowed:.3g} ({limits.in_flight_errors:g} standard errors, "
        f"{show_share(limits.in_flight_share)} or {_COUNTING_REQUESTS:g} requests)",
    )


def _count_in_flight(log: Log) -> Floats:
    """Return, for every health row, how many requests of its worker were begun and not yet done."""
    sampler, at_ns = metrics.read_column(log.health, "worker"), metrics.read_column(log.health, "at_ns")
    owner = metrics.read_column(log.requests, "worker")
    begun_ns, done_ns = (metrics.read_column(log.requests, f"{stamp}_ns") for stamp in ("begun", "done"))
    counts = np.zeros(len(at_ns))
    for worker in np.unique(sampler):
        rows, own = sampler == worker, owner == worker
        starts, ends = (np.sort(stamps[own & ~np.isnan(stamps)]) for stamps in (begun_ns, done_ns))
        now = at_ns[rows]
        counts[rows] = np.searchsorted(starts, now, "right") - np.searchsorted(ends, now, "right")
    return counts

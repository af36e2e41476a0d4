# Was the planned traffic sent, and when?
#
# Law: from the request rows, and from what run.json says of the way. `due` is the plan (in a closed loop: the instant
# the slot was free, plus think time), `begun` is what the generator did about it. What the server did afterwards is
# no business of these checks.

"""Checks of sending: lateness, earliness, requests not sent, punctuality in every window, proxies on the way."""

from __future__ import annotations

import numpy as np

from loadshape import metrics, stats
from loadshape.log import Log
from loadshape.stats import Floats
from loadshape.units import format_duration
from loadshape.validity.finding import Finding, Limits, show_share, weigh, weigh_quantile, worst


def find_lateness(log: Log, limits: Limits) -> Finding:
    """Hold three quantiles of lateness against their limits; the p99 alone can make a run invalid."""
    late_s = _lateness_s(log)
    findings = (
        weigh_quantile(late_s, 0.5, limits.lateness_p50_s),
        weigh_quantile(late_s, 0.99, limits.lateness_p99_s, limits.lateness_p99_invalid_s),
        weigh_quantile(late_s, 0.999, limits.lateness_p999_s),
    )
    measured = dict.fromkeys(found.measured for found in findings)  # below the floors the same maximum thrice
    return Finding(
        worst(*(found.status for found in findings)), ", ".join(measured), ", ".join(found.limit for found in findings)
    )


def find_lateness_share(log: Log, limits: Limits) -> Finding | None:
    """Hold the p99 of lateness against the TTFT that it is a part of; None where there is no TTFT."""
    ttft_s = _known(metrics.measure(log.requests, "ttft"))
    if len(ttft_s) == 0:
        return None
    typical_s = stats.quantile(ttft_s, 0.5) or float(np.median(ttft_s))
    limit_s = limits.lateness_of_ttft_invalid * typical_s
    found = weigh_quantile(_lateness_s(log), 0.99, limit_s, limit_s)
    share = show_share(limits.lateness_of_ttft_invalid)
    return Finding(found.status, found.measured, f"{share} of the TTFT p50 of {format_duration(typical_s)}")


def find_early(log: Log, _limits: Limits) -> Finding:
    """Look for requests that were begun before they were due: there must be none."""
    late_s = _lateness_s(log)
    early = int(np.count_nonzero(late_s < 0))
    by = f", by up to {format_duration(-late_s.min())}" if early else ""
    return Finding("invalid" if early else "ok", f"{early:,} of {len(late_s):,}{by}", "none")


def find_not_sent(log: Log, limits: Limits) -> Finding:
    """Count the requests that the generator failed to send."""
    failed = int(np.count_nonzero(metrics.is_outcome(log.requests, "not_sent")))
    share = failed / max(log.run.planned, 1)
    return weigh(share, 0.0, limits.not_sent_invalid, show=show_share, about=f"({failed:,} of {log.run.planned:,})")


def find_resent(log: Log, limits: Limits) -> Finding | None:
    """Take the share of requests that were sent once more; None where the run was not to do that."""
    if not log.run.settings.get("retry_stale"):
        return None
    resent = count_resent(log)
    about = f"({resent:,} of {log.run.planned:,})"
    return weigh(resent / max(log.run.planned, 1), limits.resent, show=show_share, about=about)


def count_resent(log: Log) -> int:
    """Return how many requests were sent once more, since the connection of the first sending was stale."""
    return int(log.requests.num_rows - log.requests["resent_ns"].null_count)


def find_proxies(log: Log, limits: Limits) -> Finding | None:
    """Take the share of the targets that lie behind a proxy; None where there is no proxy."""
    urls = [target["proxy"]["url"] for target in log.run.targets if target.get("proxy")]
    if not urls:
        return None
    about = f"of the targets ({', '.join(dict.fromkeys(urls))})"
    return weigh(len(urls) / len(log.run.targets), limits.proxied, show=show_share, about=about)


def find_punctuality(log: Log, limits: Limits) -> Finding:
    """Take the share of requests begun in time, in every window and over the run."""
    due_s = metrics.read_stamp_s(log.requests, "due")
    due = metrics.fell_due(log.requests)
    if not due.any():
        return weigh(np.nan, 0.0)
    # A request that was never begun has lateness nan, so it counts as not punctual.
    punctual = metrics.measure_span(log.requests, "due", "begun")[due] <= limits.punctual_s
    window = np.floor_divide(due_s[due], limits.punctual_window_s).astype(np.int64)
    window -= window.min()
    shares = np.bincount(window, punctual) / np.maximum(np.bincount(window), 1)
    shares = shares[np.bincount(window) > 0]
    overall, lowest = float(punctual.mean()), float(shares.min())
    status = worst(
        "ok" if lowest >= limits.punctual_share else "suspect",
        "ok" if overall >= limits.punctual_share_invalid else "invalid",
    )
    within, length = format_duration(limits.punctual_s), format_duration(limits.punctual_window_s)
    return Finding(
        status,
        f"{show_share(lowest)} in the worst window, {show_share(overall)} over the run, within {within}",
        f"at least {show_share(limits.punctual_share)} in every {length}; "
        f"invalid below {show_share(limits.punctual_share_invalid)} over the run",
    )


def _lateness_s(log: Log) -> Floats:
    return _known(metrics.measure(log.requests, "lateness"))


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]

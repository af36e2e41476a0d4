# What does a process see that is never busy?
#
# Law: a probe is one more worker (of each node), alone in its process, with less than a hundredth of the sessions. It
# asks the same server in the same run, so what the loaded workers see beyond it is not the server's: it is what they
# add (mutilate, github.com/leverich/mutilate, keeps load and measuring agents apart for the same reason). Compared
# are service times, from sent on: lateness has its own checks.
#
# The probe has few requests, and a quantile of few is uncertain. So the loaded workers' quantile must lie outside of
# the interval between two order statistics of the probe, three standard errors of the rank to either side, and by
# more than the tolerance, before anything is said. What counts for the error is the number of requests, since the
# gaps of one answer are alike. Requests are taken as independent; in a queue they are not, and then the interval is
# too narrow. That is why this never makes a run INVALID.

"""Check of the probe: its service times against those of the loaded workers."""

from __future__ import annotations

import numpy as np

from loadshape import metrics, stats
from loadshape.log import Log
from loadshape.stats import Floats
from loadshape.units import format_duration
from loadshape.validity.finding import Finding, Limits, show_share

_QUANTILES = (0.5, 0.99)
_ERRORS = 3.0  # standard errors of the rank


def find_difference(log: Log, limits: Limits) -> Finding | None:
    """Hold the loaded workers' TTFT and ITL against the probe's; None where there was no probe."""
    if not log.run.settings.get("probe_share"):
        return None
    told, is_apart = [], False
    requests, pairs = _pair_values(log)
    for name, probed_s, loaded_s in pairs:
        for q in _QUANTILES:
            measured_s, load_s = stats.quantile(probed_s, q), stats.quantile(loaded_s, q)
            if measured_s is None or load_s is None:
                continue
            told.append(f"{name} p{q * 100:g} {format_duration(load_s)}, probe {format_duration(measured_s)}")
            tolerance_s = max(limits.probe_difference * measured_s, limits.probe_difference_s)
            low_s, high_s = _bound_quantile(probed_s, q, requests)
            is_apart |= not low_s - tolerance_s <= load_s <= high_s + tolerance_s
    bound = (
        f"within {show_share(limits.probe_difference)} or {format_duration(limits.probe_difference_s)} "
        f"of the probe's, and its {_ERRORS:g} standard errors"
    )
    if not told or requests < stats.count_floor(0.5):
        return Finding("unknown", "the probe had too few requests", bound)
    return Finding("suspect" if is_apart else "ok", "; ".join(told), bound)


def _pair_values(log: Log) -> tuple[int, list[tuple[str, Floats, Floats]]]:
    """Return how many requests of the probe ended ok, and (name, its values, those of the others) of TTFT and ITL."""
    number, worker = (metrics.read_column(log.requests, name) for name in ("request", "worker"))
    probed = worker % log.run.workers_each == log.run.processes
    ttft_s = metrics.measure(log.requests, "service_ttft")
    known = ~np.isnan(ttft_s)
    gaps = metrics.measure_gaps(log, number[metrics.is_outcome(log.requests, "ok")].astype(np.int64))
    itl_s = np.repeat(gaps.itl_s, gaps.tokens)
    of_probe = np.isin(np.repeat(gaps.request, gaps.tokens), number[probed])
    pairs = [("TTFT", ttft_s[known & probed], ttft_s[known & ~probed]), ("ITL", itl_s[of_probe], itl_s[~of_probe])]
    return int(np.count_nonzero(known & probed)), pairs


def _bound_quantile(values: Floats, q: float, requests: int) -> tuple[float, float]:
    """Return the order statistics between which the quantile lies, as far as the number of requests says."""
    shares = q + np.array((-1, 1)) * _ERRORS * np.sqrt(q * (1 - q) / requests)
    places = np.clip(np.floor(shares * len(values)), 0, len(values) - 1).astype(np.int64)
    low, high = np.sort(values)[places]
    return float(low), float(high)

# Did the sends, taken together, make the process that was planned?
#
# Law: lateness looks at each request alone; this looks at the whole. A generator that sends in clumps can keep
# every request within a millisecond and still turn a metronome into bursts. So the begun times are measured
# as the due times of the same log are, and the two are laid side by side:
#
#     rate                 requests a second
#     CV of the gaps       0 for a metronome, 1 for Poisson, more in bursts
#     dispersion           variance / mean of counts in windows of 0.1, 1 and 10 s: burstiness at the
#                          scale that fills queues (Cox and Lewis, 1966, chapter 4)
#     KS distance          between the distributions of the gaps, planned and begun
#
# Gaps that moved by less than a slack count as the same, since no machine repeats a gap to the nanosecond: a
# quarter of the mean planned gap, within the limits of lateness for the p50 and the p99.
#
# Where the recipe of the trace declares one Poisson process, the gaps between the first turns of sessions
# are also held against the exponential distribution itself: then the plan is tested too.

"""Checks of the arrivals: the realised sends against the plan, and against a declared Poisson process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadshape import metrics, stats
from loadshape.log import Log
from loadshape.stats import Floats
from loadshape.validity.finding import Finding, Limits, show_number, show_share

WINDOWS_S = (0.1, 1.0, 10.0)
_HALF_NS = 5e-10
_FEWEST = 20  # requests; fewer have no distribution to speak of
_STRAGGLERS = 3  # gaps that may differ in a small run: one late request changes two


@dataclass(frozen=True, slots=True)
class Process:
    """Instants in numbers: their rate, the variation of their gaps, the dispersion of counts by window length."""

    rate_hz: float | None
    gap_cv: float | None
    dispersion: dict[str, float | None]

    @classmethod
    def of(cls, times_s: Floats, duration_s: float) -> Process:
        """Return the numbers of sorted *times_s* in [0, duration_s]."""
        inside_s = times_s + _HALF_NS  # an instant on the edge of a window belongs to the one that it begins
        return cls(
            rate_hz=len(times_s) / duration_s if duration_s > 0 else None,
            gap_cv=stats.variation(np.diff(times_s)),
            dispersion={f"{it:g} s": stats.dispersion(inside_s, it, duration_s=duration_s) for it in WINDOWS_S},
        )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The plan and what was sent, as processes, and how far the gaps of the two lie apart.

    `gap_distance` is the KS distance with `slack_s`. `declared` is "poisson" where the trace's recipe says so;
    then `exponential_distance` is that of the sent gaps from an exponential distribution of the same mean, and
    `exponential_scaled` the same in units in which 1.3 is exceeded by one Poisson process in a hundred.
    """

    count: int
    planned: Process
    sent: Process
    slack_s: float
    gap_distance: float | None
    declared: str
    exponential_distance: float | None
    exponential_scaled: float | None


def measure_arrivals(log: Log, limits: Limits) -> Arrivals | None:
    """Return the arrivals of the whole run; None where too few requests were begun."""
    due_s, begun_s = (metrics.read_stamp_s(log.requests, stamp) for stamp in ("due", "begun"))
    sent = ~(np.isnan(due_s) | np.isnan(begun_s))
    fell_due = metrics.fell_due(log.requests)
    if np.count_nonzero(sent) < _FEWEST:
        return None
    planned_s, sent_s = np.sort(due_s[fell_due]), np.sort(begun_s[sent])
    duration_s = max(log.run.duration_s, float(planned_s[-1]))
    gaps_s = np.diff(planned_s)
    slack_s = float(
        np.clip(gaps_s.mean() / 4, limits.lateness_p50_s, max(limits.lateness_p50_s, limits.lateness_p99_s))
    )
    is_poisson = _declares_poisson(log)
    first = sent & (metrics.read_column(log.requests, "turn") == 0)
    away = stats.exponential_distance(np.diff(np.sort(begun_s[first]))) if is_poisson else None
    return Arrivals(
        count=len(sent_s),
        planned=Process.of(planned_s, duration_s),
        sent=Process.of(sent_s, duration_s),
        slack_s=slack_s,
        gap_distance=stats.distance(gaps_s, np.diff(sent_s), slack=slack_s),
        declared="poisson" if is_poisson else "",
        exponential_distance=away[0] if away else None,
        exponential_scaled=away[1] if away else None,
    )


def find_arrivals(log: Log, limits: Limits) -> Finding | None:
    """Hold the variation, the dispersion and the gaps of the sends against those of the plan; None for few."""
    found = measure_arrivals(log, limits)
    if found is None:
        return None
    apart = [_compare(found.planned.gap_cv, found.sent.gap_cv)]
    apart += [_compare(found.planned.dispersion[name], found.sent.dispersion[name]) for name in found.sent.dispersion]
    worst, distance = max(apart), found.gap_distance or 0.0
    allowed = max(limits.arrival_distance, _STRAGGLERS / found.count)
    kept = worst <= limits.arrival_numbers and distance <= allowed
    return Finding(
        "ok" if kept else "suspect",
        f"gap CV {show_number(found.sent.gap_cv)}, planned {show_number(found.planned.gap_cv)}; "
        f"dispersion {_show_all(found.sent)}, planned {_show_all(found.planned)}; "
        f"{show_share(distance)} between the gaps",
        f"each within {show_share(limits.arrival_numbers)}; gaps within {show_share(allowed)}",
    )


def find_declared_process(log: Log, limits: Limits) -> Finding | None:
    """Hold the gaps of the sends against the Poisson process that the recipe declares; None where it is another."""
    found = measure_arrivals(log, limits)
    if found is None or found.exponential_distance is None or found.exponential_scaled is None:
        return None
    # Many requests make a distance significant that does not matter, so it must be both.
    is_off = (
        found.exponential_scaled > limits.poisson_scaled_distance
        and found.exponential_distance > limits.poisson_distance
    )
    return Finding(
        "suspect" if is_off else "ok",
        f"{show_share(found.exponential_distance)} from exponential gaps (scaled {found.exponential_scaled:.3g})",
        f"at most {show_share(limits.poisson_distance)}, or scaled {limits.poisson_scaled_distance:g}",
    )


def _declares_poisson(log: Log) -> bool:
    return log.run.loop.get("mode") != "closed" and [it.get("process") for it in log.run.arrivals] == ["poisson"]


def _compare(planned: float | None, sent: float | None) -> float:
    """Return the difference, relative where the plan is over 1, absolute below."""
    return 0.0 if planned is None or sent is None else abs(sent - planned) / max(planned, 1.0)


def _show_all(process: Process) -> str:
    return "/".join(show_number(value) for value in process.dispersion.values())

# Is the judged window one state of the server, or several that were averaged?
#
# Law: a check, never a cut. Warm-up and cool-down are declared by whoever judges; what is found here says that they
# were too short, and nothing is trimmed on its own. Each looks only where the *planned* traffic is even over the window
# (a ramp has a trend because it was asked for one), and none makes a run invalid: the instrument may have been
# perfect.
#
#   warm-up    MSER-5 (K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
#              Simulation 69, 1997): of the TTFTs in the order of due, in batches of five, the beginning whose
#              removal makes the mean of the rest the surest. Told when what it would remove differs from the rest
#              by more than `warmup_difference`, and by four times of what the queue's own noise explains.
#   trend      rank correlation of twenty batch means of TTFT with time, and a change from the first to the last
#              quarter of more than `trend_difference`.
#   overload   requests in flight grow all through the window, and completions fall behind what was offered:
#              latencies then measure the length of the run.

"""Checks of the judged window: warm-up left in it, a trend, an overload."""

from __future__ import annotations

import numpy as np

from loadshape import metrics
from loadshape.interval import count_effective
from loadshape.log import Log
from loadshape.stats import Floats, rank_correlation
from loadshape.units import format_duration
from loadshape.validity.finding import Finding, Limits, show_number, show_share

_BATCH = 5  # of MSER-5
_FEWEST = 200  # requests that end ok, below which a trend is not to be told from a queue
_BATCHES = 20
_FEWEST_CUT = 4  # batches: fewer are a few slow requests and no beginning
_SURE = 4.0  # standard errors by which a beginning must differ
_FILLING = 0.2  # of the window: where even the shortest answer takes longer, it only fills
_RANK = 0.75  # rank correlation of 20 independent values, exceeded by one series in 5,000


def find_warmup(log: Log, limits: Limits, window_s: tuple[float, float]) -> Finding | None:
    """Look for a beginning that differs from the rest; None where there are too few requests or the plan varies."""
    due_s, ttft_s = _order_ttft(log, window_s)
    if len(ttft_s) < _FEWEST or not _is_even(log, window_s):
        return None
    batches = ttft_s[: len(ttft_s) // _BATCH * _BATCH].reshape(-1, _BATCH).mean(axis=1)
    cut = _find_truncation(batches)
    limit = f"a beginning within {show_share(limits.warmup_difference)} of the rest"
    if cut < _FEWEST_CUT:
        return Finding("ok", "nothing to leave out", limit)
    difference = float(batches[:cut].mean() / batches[cut:].mean() - 1)
    noise = _expect_noise(batches[cut:], cut)  # MSER alone finds a beginning in half of all queues without one
    at = format_duration(float(due_s[cut * _BATCH]) - window_s[0])
    told = f"the first {at} differ by {show_share(difference)}"
    differs = abs(difference) > max(limits.warmup_difference, _SURE * noise)
    return Finding("suspect" if differs else "ok", told, limit)


def find_trend(log: Log, limits: Limits, window_s: tuple[float, float]) -> Finding | None:
    """Look for a TTFT that rises or falls all through; None where there are too few requests or the plan varies."""
    _, ttft_s = _order_ttft(log, window_s)
    if len(ttft_s) < _FEWEST or not _is_even(log, window_s):
        return None
    means = np.array([part.mean() for part in np.array_split(ttft_s, _BATCHES)])
    rank = rank_correlation(means, np.arange(_BATCHES, dtype=np.float64))
    change = float(means[-5:].mean() / means[:5].mean() - 1)
    moves = abs(rank) > _RANK and abs(change) > limits.trend_difference
    told = f"{show_share(change)} from the first to the last quarter, rank correlation {show_number(rank)}"
    return Finding("suspect" if moves else "ok", told, f"at most {show_share(limits.trend_difference)}, or no order")


def find_overload(log: Log, limits: Limits, window_s: tuple[float, float]) -> Finding | None:
    """Look for a growing number in flight together with completions behind the offer; None for a closed loop."""
    start_s, end_s = window_s
    if log.run.loop.get("mode") == "closed" or end_s <= start_s or not _is_even(log, window_s):
        return None
    begun_s, done_s = (metrics.read_stamp_s(log.requests, name) for name in ("begun", "done"))
    lasted_s = (done_s - begun_s)[(begun_s >= start_s) & (begun_s <= end_s)]
    if np.nanmin(lasted_s, initial=np.inf) > _FILLING * (end_s - start_s):
        return None  # answers this long fill an empty server all through the window, and nobody is behind
    at_s = np.linspace(start_s, end_s, 101)
    arrived, finished = (np.searchsorted(np.sort(known[~np.isnan(known)]), at_s) for known in (begun_s, done_s))
    in_flight = (arrived - finished).astype(np.float64)
    begin, end = float(in_flight[20:40].mean()), float(in_flight[81:].mean())
    offered = int(arrived[-1] - arrived[20])
    if offered < _FEWEST:
        return None
    kept_up = float(finished[-1] - finished[20]) / offered
    grows = end > limits.overload_growth * max(begin, 1.0)
    told = f"{show_number(begin)} in flight early, {show_number(end)} late; {show_share(kept_up)} of it completed"
    limit = f"at most {limits.overload_growth:g} times as many, or {show_share(limits.overload_completed)} completed"
    return Finding("suspect" if grows and kept_up < limits.overload_completed else "ok", told, limit)


def _order_ttft(log: Log, window_s: tuple[float, float]) -> tuple[Floats, Floats]:
    due_s, ttft_s = metrics.read_stamp_s(log.requests, "due"), metrics.measure(log.requests, "ttft")
    kept = ~np.isnan(ttft_s) & (due_s >= window_s[0]) & (due_s <= window_s[1])
    order = np.argsort(due_s[kept], kind="stable")
    return due_s[kept][order], ttft_s[kept][order]


def _is_even(log: Log, window_s: tuple[float, float]) -> bool:
    """Whether the plan offers the same rate throughout: no fifth of the window is far from a fifth of the requests."""
    due_s = metrics.read_stamp_s(log.requests, "due")[metrics.fell_due(log.requests)]
    counts, _ = np.histogram(due_s, bins=5, range=window_s)
    mean = float(counts.mean())
    return bool(mean > 0 and np.all(np.abs(counts - mean) < np.maximum(0.1 * mean, 4 * np.sqrt(mean))))


def _expect_noise(rest: Floats, size: int) -> float:
    """Return the relative standard error of the mean of *size* batches like those of *rest*, dependent as they are."""
    share = count_effective(rest) / len(rest)
    return float(rest.std() / rest.mean()) / float(np.sqrt(max(1.0, size * share)))


def _find_truncation(batches: Floats) -> int:
    """Return how many batches MSER would leave out: where the variance of the rest over its squared count is least."""
    remaining = np.arange(len(batches), 0, -1)
    sums, squares = (np.cumsum(values[::-1])[::-1] for values in (batches, batches**2))
    spread = squares - sums**2 / remaining
    statistic = spread[: len(batches) // 2] / remaining[: len(batches) // 2] ** 2
    return int(np.argmin(statistic))

# How sure a number is: intervals around quantiles of one run, and around numbers of several runs.
#
# Law: statistics on plain arrays, no domain words; every interval is one of 95 % and says what it was made of.
#
# Within a run. Latencies of one run are not independent: a queue that is long for one request is long for the
# next. The usual interval of an order statistic then covers the truth far too rarely (M/M/1 at 80 % load, 5,000
# requests, p99: 18 % instead of 95 %). What counts is the effective number of values. For a quantile that is the
# number at which the *exceedance indicator* (value above the quantile, or not) would have the variance that its
# autocorrelation gives it: n / tau, with tau from Geyer's initial monotone sequence (C. J. Geyer, "Practical Markov
# Chain Monte Carlo", Statistical Science 7, 1992). The interval is then that of ranks, q -+ t sqrt(q (1 - q) / n_eff),
# with the t of as many degrees of freedom as there are effective values beyond the quantile: at a tail these are
# few, and pretending that their spread is known is what makes tails look certain. The mean of waiting times hangs on
# the same tail, so its t has as many degrees of freedom as that of a p95. benchmarks/bench_interval.py states the
# coverage: 90 to 98 % on queues at half and four fifths of their capacity. An upper rank beyond the last value has no
# bound: it is infinite, and not the largest value that happened to be seen.
#
# Across runs. The run is the unit of replication. Each gives one number; the interval is Student's over their
# logarithms (latencies multiply), so it never reaches zero. Two runs have an interval, a wide one; one has none.

"""Intervals: of a quantile within a run by effective sample size, and of a figure across runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadshape.stats import Floats

CONFIDENCE = 0.95
_TAIL = 0.05  # of the values, on which the mean of waiting times hangs


class Interval(NamedTuple):
    """The bounds of an interval, and how many independent values stand behind it."""

    low: float
    high: float
    effective: float


Figure = tuple[float, Interval]  # a number, and how sure it is


def count_effective(values: Floats) -> float:
    """Return how many independent values vary as much in their mean as these, which are in the order of time.

    At most len(values): negative correlation is not counted in our favour.
    """
    n = len(values)
    centred = values - values.mean()
    variance = float(centred @ centred) / n
    if n < 4 or variance == 0.0:
        return float(n)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[: n // 2 * 2] / n
    pairs = covariance.reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: ends[0]] if len(ends) else pairs)
    tau = 2.0 * float(pairs.sum()) / variance - 1.0
    return n / max(tau, 1.0)


def bound_quantile(values: Floats, q: float) -> Interval | None:
    """Return the interval of the quantile *q* of *values* in the order of time; None for fewer than ten.

    Infinite values (failed requests) may stand among them.
    """
    n = len(values)
    if n < 10:
        return None
    ordered = np.sort(values)
    above = values > ordered[min(n - 1, math.floor(q * n))]
    effective = count_effective(above.astype(np.float64))
    half = student(max(1.0, effective * min(q, 1.0 - q))) * math.sqrt(q * (1.0 - q) / effective)
    low, high = math.floor((q - half) * n), math.ceil((q + half) * n)
    upper = float(ordered[high]) if high < n else math.inf
    return Interval(float(ordered[max(0, low)]), upper, effective)


def bound_mean(values: Floats) -> Interval | None:
    """Return the interval of the mean of *values* in the order of time; None for fewer than ten."""
    if len(values) < 10:
        return None
    effective = count_effective(values)
    mean = float(values.mean())
    half = student(max(1.0, effective * _TAIL)) * float(values.std()) / math.sqrt(effective)
    return Interval(mean - half, mean + half, effective)


def bound_runs(figures: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of a figure that *figures* are one run each of; None for fewer than two.

    Over logarithms where all are positive and finite, else over the figures themselves.
    """
    count = len(figures)
    if count < 2 or not all(map(math.isfinite, figures)):
        return None
    scale: NDArray[np.float64] = np.asarray(figures, np.float64)
    positive = bool((scale > 0).all())
    points = np.log(scale) if positive else scale
    half = student(count - 1, confidence) * float(points.std(ddof=1)) / math.sqrt(count)
    low, high = float(points.mean()) - half, float(points.mean()) + half
    return Interval(math.exp(low), math.exp(high), count) if positive else Interval(low, high, count)


def bound_difference(before: Figure, after: Figure) -> Interval:
    """Return the interval of after - before, independent of one another: in quadrature, each side of its own width."""
    (old, of_old), (new, of_new) = before, after
    down, up = math.hypot(new - of_new.low, of_old.high - old), math.hypot(of_new.high - new, old - of_old.low)
    return Interval(new - old - down, new - old + up, min(of_old.effective, of_new.effective))


def bound_ratio(before: Figure, after: Figure) -> Interval | None:
    """Return the interval of after / before, over logarithms; None where an end is not positive."""
    if min(*(value for value, _ in (before, after)), *(of.low for _, of in (before, after))) <= 0:
        return None
    old, new = (
        (math.log(value), Interval(math.log(of.low), math.log(of.high), of.effective)) for value, of in (before, after)
    )
    found = bound_difference(old, new)
    return Interval(math.exp(found.low), math.exp(found.high), found.effective)


def student(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t: 12.7 for one degree of freedom, 1.96 for ever more.

    >>> round(student(1), 2), round(student(4), 3), round(student(1e9), 3)
    (12.71, 2.776, 1.96)
    """
    low, high = 0.0, 1.0
    while _tail(high, freedom) > 1.0 - confidence:
        high *= 2.0
    for _ in range(48):  # halvings: to the last digits of a double
        middle = (low + high) / 2.0
        low, high = (middle, high) if _tail(middle, freedom) > 1.0 - confidence else (low, middle)
    return (low + high) / 2.0


def _tail(t: float, freedom: float) -> float:
    """Return P(|T| > t), the incomplete beta function at freedom / (freedom + t^2); Numerical Recipes 6.4."""
    if freedom > 1e6:
        return math.erfc(t / math.sqrt(2.0))
    return _incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x in (0.0, 1.0):
        return x
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _continue_fraction(a, b, x) / a
    return 1.0 - front * _continue_fraction(b, a, 1.0 - x) / b


def _continue_fraction(a: float, b: float, x: float) -> float:
    """Lentz's method."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1.0 / (1.0 + term * d), 1.0 + term / c
            value *= c * d
        if abs(c * d - 1.0) < 1e-13:
            break
    return value

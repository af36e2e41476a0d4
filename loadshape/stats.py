# Statistics on plain arrays; no domain words here.
#
# Quantiles are exact order statistics with linear interpolation (type 7 of Hyndman & Fan 1996, numpy's
# default), because the raw values are always at hand. A quantile of too few values is not a number:
# below SAMPLE_FLOOR / (1 - q) values it is None. The floor is that of MLPerf LoadGen's early stopping
# (6.64 / (1 - q): the smallest n that can bound a quantile at 99 % confidence with no value over it).
#
# Distances are those of Kolmogorov and Smirnov. That from the exponential distribution, whose mean is taken
# from the values, is scaled so that one critical value serves every count: M. A. Stephens, "EDF Statistics
# for Goodness of Fit", JASA 69 (1974), table 1.4: 1.094 is exceeded by 5 % of exponential samples, 1.308 by
# 1 %. By simulation (200,000 samples of 30 and of 200) 1.76 is exceeded by 1 in 10,000.
#
# Infinite values are allowed (a request that never answered took for ever): a quantile that lies among
# them, or between a finite value and one of them, is infinite and not nan.

"""Quantiles with sample floors, dispersion of counts, coefficients of variation, distances of distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
MANY = 1 << 22  # weighted values, of which sorting all would take several times their memory
_SAMPLE, _MARGIN = 100_000, 0.01  # of them, and the share to each side in which a rank is looked for
_GOLDEN = (5**0.5 - 1) / 2
SAMPLE_FLOOR = 6.64  # mlcommons/inference loadgen/early_stopping.cc: 662 values for p99, 6,636 for p99.9


def count_floor(q: float) -> int:
    """Return how many values the quantile *q* needs before it may be printed: 14, 133, 664 for .5, .95, .99."""
    return math.ceil(round(SAMPLE_FLOOR / (1.0 - max(q, 0.5)), 6))


def quantile(values: NDArray[Any], q: float, *, unit: float = 1.0) -> float | None:
    """Return the quantile *q* in [0, 1), or None when there are fewer than count_floor(q) values."""
    return quantiles(values, (q,), unit=unit)[0]


def quantiles(
    values: NDArray[Any], qs: Sequence[float], weights: NDArray[Any] | None = None, *, unit: float = 1.0
) -> list[float | None]:
    """Return the quantile of each *q*, None where there are fewer than count_floor(q) values.

    *weights* are counts: the answer is that of every value repeated so often, without repeating it. The answer is
    in units of so many of the values: 1e9 for seconds of nanoseconds, which need no copy of all of them.
    """
    size = len(values) if weights is None else int(weights.sum())
    ranks = [q * (size - 1) for q in qs if size >= count_floor(q)]
    needed = sorted({neighbour for rank in ranks for neighbour in (math.floor(rank), math.ceil(rank))})
    found = {rank: value / unit for rank, value in zip(needed, _order_statistics(values, needed, weights), strict=True)}
    return [_interpolate(found, q * (size - 1)) if size >= count_floor(q) else None for q in qs]


def _order_statistics(values: NDArray[Any], ranks: list[int], weights: NDArray[Any] | None) -> list[float]:
    if not ranks:
        return []
    if weights is None:
        return [float(value) for value in np.partition(values, ranks)[ranks]]
    return (_look_near if len(values) > MANY else _sort_weighted)(values, ranks, weights)


def _sort_weighted(values: NDArray[Any], ranks: list[int], weights: NDArray[Any]) -> list[float]:
    order = np.argsort(values)
    upto = np.cumsum(weights[order], dtype=np.int64)
    return [float(value) for value in values[order[np.searchsorted(upto, ranks, side="right")]]]


def _look_near(values: NDArray[Any], ranks: list[int], weights: NDArray[Any]) -> list[float]:
    """Return what sorting would, by sorting only what lies near each rank: a sample says where that is."""
    places = (np.arange(_SAMPLE) * _GOLDEN % 1 * len(values)).astype(np.int64)  # even, and in step with no pattern
    places = places[np.argsort(values[places])]
    sample, share = values[places], np.cumsum(weights[places], dtype=np.int64)
    share = share / share[-1]
    size, found = int(weights.sum(dtype=np.int64)), list[float]()
    for pair in ([rank, rank + 1] if rank + 1 in ranks else [rank] for rank in ranks if rank - 1 not in ranks):
        low, high = np.searchsorted(share, (pair[0] / size - _MARGIN, pair[-1] / size + _MARGIN))
        near = values >= sample[low] if low else np.ones(len(values), np.bool_)
        before = size - int(weights[near].sum(dtype=np.int64))
        if high < len(sample):
            near &= values <= sample[high]
        kept, counts = values[near], weights[near]
        inside = before <= pair[0] and pair[-1] < before + int(counts.sum(dtype=np.int64))
        found += _sort_weighted(kept, [it - before for it in pair], counts) if inside else []
    return found if len(found) == len(ranks) else _sort_weighted(values, ranks, weights)  # the sample was a bad one


def _interpolate(found: dict[int, float], rank: float) -> float:
    low, high = found[math.floor(rank)], found[math.ceil(rank)]
    return low if low == high else low + (high - low) * (rank - math.floor(rank))


def variation(values: Floats) -> float | None:
    """Return the coefficient of variation (standard deviation / mean), None for fewer than two values."""
    if len(values) < 2 or (mean := float(np.mean(values))) == 0.0:
        return None
    return float(np.std(values, ddof=1)) / mean


def dispersion(times_s: Floats, window_s: float, *, duration_s: float) -> float | None:
    """Return the index of dispersion of counts (variance / mean) in windows of *window_s*.

    1 for a Poisson process at every window; 0 for a metronome. None for fewer than ten whole windows.
    """
    windows = int(duration_s / window_s + 1e-9)
    if windows < 10 or len(times_s) == 0:
        return None
    counts, _ = np.histogram(times_s, bins=windows, range=(0.0, windows * window_s))
    mean = float(counts.mean())
    return float(counts.var(ddof=1)) / mean if mean > 0 else None


def rank_correlation(left: Floats, right: Floats) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; 0 where one of the two does not vary."""
    first, second = _rank(left), _rank(right)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _rank(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def group_rows(keys: NDArray[Any]) -> dict[int, Integers]:
    """Return the places of each value among *keys*, in their order: one pass, however many values there are."""
    order = np.argsort(keys, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    return {int(keys[rows[0]]): rows for rows in parts if len(rows)}


def distance(left: Floats, right: Floats, *, slack: float = 0.0) -> float | None:
    """Return the largest difference between the distribution functions of two samples, None if one is empty.

    Values that moved by *slack* or less count as equal: two metronomes that tick 1 us apart are not at distance 1.
    """
    if len(left) == 0 or len(right) == 0:
        return None
    pair = (np.sort(left), np.sort(right))
    return max(_exceed(*pair, slack), _exceed(*pair[::-1], slack))


def _exceed(above: Floats, below: Floats, slack: float) -> float:
    upto = np.arange(1, len(above) + 1) / len(above)
    return float((upto - np.searchsorted(below, above + slack, "right") / len(below)).max())


def exponential_distance(values: Floats) -> tuple[float, float] | None:
    """Return the distance from the exponential distribution of the same mean, and the same scaled; None for few."""
    count = len(values)
    if count < 10 or (mean := float(values.mean())) <= 0:
        return None
    below = 1 - np.exp(-np.sort(values) / mean)
    rank = np.arange(count)
    plain = float(np.maximum((rank + 1) / count - below, below - rank / count).max())
    return plain, (plain - 0.2 / count) * (count**0.5 + 0.26 + 0.5 / count**0.5)

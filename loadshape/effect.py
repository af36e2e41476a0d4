# What a change did to one reading, and whether that is sure enough to be said.
#
# Law: an effect is the ratio after / before, or a difference in points for shares. Its interval is Welch's over the
# logarithms of the runs' figures; with one run a side it is put together from the intervals within the runs
# (interval.py), which know the noise of the queue and not that from one start of a server to the next. Requests of
# different runs are never pooled: those of one run are not independent, and a test on thousands of them finds a
# difference between a server and itself.
#
# A decision is made against a declared margin of indifference (default 5 %), by the whole interval:
#
#     better, worse    all of it lies beyond the margin, on that side
#     equivalent       all of it lies within the margin
#     inconclusive     anything else: more runs, or longer ones

"""Effects: the change of one reading between two sides of runs, with interval and decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadshape.interval import Interval, bound_difference, bound_ratio, student
from loadshape.reading import Reading, take_reading, unite_runs
from loadshape.summary import Summary

MARGIN = 0.05  # of a ratio; a share may move by a fifth of it, one point of a hundred


@dataclass(frozen=True, slots=True)
class Effect:
    """One reading on both sides. `size` and `interval` are of the ratio after / before, or of a share's difference."""

    before: Reading
    after: Reading
    size: float | None
    interval: Interval | None
    decision: str  # better, worse, equivalent, inconclusive, or unknown where a side has no value

    @property
    def name(self) -> str:
        """Of the reading."""
        return self.before.name

    @property
    def is_share(self) -> bool:
        """Whether `size` is a difference of shares and not a ratio."""
        return self.before.unit == "share"


def measure_effect(before: Sequence[Summary], after: Sequence[Summary], name: str, margin: float = MARGIN) -> Effect:
    """Return what changed in the reading *name* from the runs *before* to the runs *after*."""
    sides = [[take_reading(it, name) for it in side] for side in (before, after)]
    old, new = map(unite_runs, sides)
    if old.value is None or new.value is None:
        return Effect(old, new, None, None, "unknown")
    is_share = old.unit == "share"
    size = new.value - old.value if is_share else new.value / old.value if old.value else None
    interval = bound_change(*sides)
    decision = decide(interval, more_is_better=old.more_is_better, is_share=is_share, margin=margin)
    return Effect(old, new, size, interval, decision)


def bound_change(before: Sequence[Reading], after: Sequence[Reading]) -> Interval | None:
    """Return the interval of a change between readings of runs: of the ratio, or of a share's difference.

    None where a side has no value, or where one run a side has no interval of its own.
    """
    old, new = ([it.value for it in side if it.value is not None] for side in (before, after))
    is_share = before[0].unit == "share"
    if len(old) > 1 and len(new) > 1 and len({*old}) + len({*new}) > 2:
        return _bound_welch(old, new, is_share=is_share)
    # Runs that are all alike (no errors in any) say less of their spread than each of them says of itself.
    return _bound_single(unite_runs(before), unite_runs(after), is_share=is_share)


def decide(effect: Interval | None, *, more_is_better: bool, is_share: bool, margin: float) -> str:
    """Return the decision that the interval of an effect allows."""
    if effect is None or not (math.isfinite(effect.low) and math.isfinite(effect.high)):
        return "inconclusive"
    low, high = (-margin / 5, margin / 5) if is_share else (1.0 / (1.0 + margin), 1.0 + margin)
    if effect.low > high or effect.high < low:
        return "better" if (effect.low > high) == more_is_better else "worse"
    return "equivalent" if effect.low >= low and effect.high <= high else "inconclusive"


def _bound_welch(old: Sequence[float], new: Sequence[float], *, is_share: bool) -> Interval | None:
    """Welch's interval of the difference of means (B. L. Welch, Biometrika 34, 1947), of logarithms for a ratio."""
    points = [np.asarray(side, np.float64) for side in (old, new)]
    if not is_share:
        if any((side <= 0).any() or not np.isfinite(side).all() for side in points):
            return None
        points = [np.log(side) for side in points]
    errors = [float(side.var(ddof=1)) / len(side) for side in points]
    difference, variance = float(points[1].mean() - points[0].mean()), sum(errors)
    freedom = variance**2 / sum(error**2 / (len(side) - 1) for error, side in zip(errors, points, strict=True))
    return _transform(difference, student(freedom) * math.sqrt(variance), freedom + 1.0, is_share=is_share)


def _bound_single(old: Reading, new: Reading, *, is_share: bool) -> Interval | None:
    """The two intervals within the runs, put together."""
    if old.interval is None or new.interval is None or old.value is None or new.value is None:
        return None
    bound = bound_difference if is_share else bound_ratio
    return bound((old.value, old.interval), (new.value, new.interval))


def _transform(centre: float, half: float, effective: float, *, is_share: bool) -> Interval:
    low, high = centre - half, centre + half
    return Interval(low, high, effective) if is_share else Interval(math.exp(low), math.exp(high), effective)

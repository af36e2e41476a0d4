# Counts of durations that can be added up while a run is under way: approximate, small, and never in a report.
#
# Law: for looking on only. Reports are made from the rows of the log, exactly. What is kept here is one count a
# bucket, so that histograms of several workers add up to that of the run, and the difference of two moments is that of
# the time between them; percentiles can do neither.
#
# Buckets are log-linear (G. Tene's HdrHistogram): sixteen equal ones an octave, so a value is known to within
# 1/16 of itself, from 16 ns on. A bucket's number is the exponent and the four bits after the leading one: one
# bit_length, three shifts. Only buckets that hold something exist.

"""Histogram: approximate durations in log-linear buckets, to be added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from loadshape.units import NS_PER_S

SMALLEST_NS = 16


class Histogram:
    """How many durations fell into each bucket: `counts` by number of the bucket.

    >>> seen = Histogram()
    >>> for ms in range(1, 101):
    ...     seen.add(ms * 1_000_000)
    >>> round(seen.quantile(0.5), 4)
    0.0493
    """

    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts = Counter(counts or {})

    def __len__(self) -> int:
        return self.counts.total()

    def add(self, value_ns: int) -> None:
        """Count one duration; what is shorter than 16 ns counts as that."""
        if value_ns < SMALLEST_NS:
            value_ns = SMALLEST_NS
        size = value_ns.bit_length()
        self.counts[size << 4 | value_ns >> size - 5 & 15] += 1

    def since(self, before: Histogram) -> Histogram:
        """Return what was counted after the earlier state *before*."""
        return Histogram(self.counts - before.counts)

    def quantile(self, q: float) -> float | None:
        """Return the middle of the bucket in which the quantile *q* lies, in seconds; None if nothing was counted."""
        left = q * len(self)
        for number in sorted(self.counts):
            left -= self.counts[number]
            if left <= 0:
                low_ns, high_ns = find_bounds_ns(number)
                return (low_ns + high_ns) / 2 / NS_PER_S
        return None

    def count_below(self, limit_s: float) -> int:
        """Return how many lie in buckets that end at *limit_s* or before."""
        limit_ns = limit_s * NS_PER_S
        return sum(count for number, count in self.counts.items() if find_bounds_ns(number)[1] <= limit_ns)

    def sum_s(self) -> float:
        """Return about what the durations add up to, in seconds."""
        return sum(count * sum(find_bounds_ns(number)) for number, count in self.counts.items()) / 2 / NS_PER_S


def find_bounds_ns(number: int) -> tuple[int, int]:
    """Return where a bucket begins, and where the next one does."""
    scale = (number >> 4) - 5
    return (16 | number & 15) << scale, (17 + (number & 15)) << scale

# A rate that changes with time, by exact time rescaling.
#
# Theory. With R(t) the integral of the rate, the points of a unit-rate process, read off at R, are a process of
# that rate: t_k = R^-1(s_k) (Brown, Barbieri, Ventura, Kass & Frank, "The Time-Rescaling Theorem ...", Neural
# Computation 14, 2002; Cinlar, "Introduction to Stochastic Processes", 1975, section 4.7). A Poisson unit process
# gives a Poisson process of that rate, a gamma one keeps its CV in operational time. Nothing is accepted or
# rejected, no rate is updated on a timer: the expected count of any interval is the integral over it.
#
# A profile is the rate as straight pieces: then R is a quadratic on each piece and its inverse is exact,
#
#     x = 2 d / (a + sqrt(a^2 + 2 b d))        a: rate at the start of the piece, b: slope, d: R still to go
#
# where the sum in the denominator loses no digits, whatever the sign of the slope.
#
# Stability (randomness.py): operational time is counted in integers of a millionth of an arrival. Unit gaps
# are rounded to it before they are cumulated, and so is the integral of each piece; what is left is
# arithmetic of single operations, rounded alike everywhere by IEEE 754, and whole microseconds.

"""Profiles: rates of straight pieces, and the arrivals that a unit-rate process makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadshape.stats import Floats, Integers


@dataclass(frozen=True, slots=True)
class Profile:
    """A rate of straight pieces: from left_hz[i] to right_hz[i] between edges_us[i] and edges_us[i + 1]."""

    edges_us: Integers
    left_hz: Floats
    right_hz: Floats

    @classmethod
    def of_points(cls, points: Sequence[Sequence[float]], duration_s: float, *, is_held: bool) -> Profile:
        """Return the rate through (t_s, rate_hz) *points*, straight between them or held up to the next one.

        Before the first and after the last point the rate is theirs.
        """
        at_us = np.rint(np.array([at_s for at_s, _ in points]) * 1e6).astype(np.int64)
        rate_hz = np.array([rate for _, rate in points], np.float64)
        edges = np.r_[min(0, at_us[0]), at_us, max(round(duration_s * 1e6), at_us[-1])]
        left = np.r_[rate_hz[0], rate_hz]
        right = left if is_held else np.r_[rate_hz, rate_hz[-1]]
        wide = np.r_[np.diff(edges) > 0, True]
        return cls(edges[wide], left[wide[:-1]], right[wide[:-1]])

    def rescale(self, gaps: Iterator[Floats], duration_s: float) -> Integers:
        """Return the instants in [0, duration_s), in ns, of the process with these unit gaps (blocks, without end)."""
        width_us = np.diff(self.edges_us)
        area = np.rint((self.left_hz + self.right_hz) / 2.0 * width_us).astype(np.int64)
        upto = np.r_[0, np.cumsum(area)]
        points = _cumulate_units(gaps, int(upto[-1]))
        piece = np.searchsorted(upto, points, side="right") - 1
        left, right, width = self.left_hz[piece], self.right_hz[piece], width_us[piece]
        rest = (points - upto[piece]).astype(np.float64)
        root = np.sqrt(np.maximum(left * left + 2.0 * ((right - left) / width) * rest, 0.0))
        inside_us = np.minimum(np.rint(2.0 * rest / np.maximum(left + root, 1e-300)), width - 1)
        times_us = self.edges_us[piece] + inside_us.astype(np.int64)
        first, end = np.searchsorted(times_us, (0, round(duration_s * 1e6)))
        return np.asarray(times_us[first:end] * 1000)


def _cumulate_units(gaps: Iterator[Floats], total: int) -> Integers:
    """Return the points below *total*, in millionths of an arrival."""
    at, parts = 0, [np.empty(0, np.int64)]
    while at < total:
        points = at + np.cumsum(np.rint(next(gaps) * 1e6).astype(np.int64))
        parts.append(points[: np.searchsorted(points, total)])
        at = int(points[-1])
    return np.concatenate(parts)

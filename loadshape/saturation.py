# How throughput and tails answer to the offered load: the curve, and two labels on it.
#
# Law: a curve is a list of points, each a run with its readings; nothing is interpolated between them. The labels
# are diagnostics and never results: a gate says what a server can do, a search finds where.
#
#   knee   the point of the curve that lies farthest above the chord from its first to its last point (V. Satopaa
#          et al., "Finding a Kneedle in a Haystack", 2011, without its smoothing). It depends on the range that was
#          swept, so the range is told with it.
#   USL    the Universal Scalability Law, X(N) = l N / (1 + s (N - 1) + k N (N - 1)) (N. Gunther, "Guerrilla Capacity
#          Planning", 2007): contention s, crosstalk k, and the concurrency of the most throughput, sqrt((1 - s) / k).
#          It is a law of closed loops, and fitted to nothing else.

"""Saturation: points of a sweep, the knee of their curve, and a fit of the Universal Scalability Law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadshape.reading import Reading, take_reading, unite_runs, withhold
from loadshape.stats import Floats
from loadshape.summary import Summary

READINGS = (
    *("offered_hz", "request_hz", "output_tokens_per_s", "goodput_hz", "ttft.p50", "ttft.p95", "ttft.p99"),
    *("tpot.p50", "tpot.p95", "e2e.p95", "errors", "attainment"),
)
FEWEST = 4  # points that a label needs


@dataclass(frozen=True, slots=True)
class Point:
    """One level of a sweep: its readings by name, of one run or of several."""

    level: float
    readings: dict[str, Reading]
    runs: int
    verdict: str

    def value(self, name: str) -> float | None:
        """Return the value of a reading."""
        return self.readings[name].value


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a sweep over the values of one key of a recipe."""

    key: str
    points: tuple[Point, ...]

    @property
    def is_closed(self) -> bool:
        """Whether the levels are users of a closed loop."""
        return self.key.endswith("slots")


@dataclass(frozen=True, slots=True)
class Scaling:
    """A fit of the Universal Scalability Law: `rate_hz` of one user, contention, crosstalk, and where it peaks."""

    rate_hz: float
    contention: float
    crosstalk: float
    residual: float  # relative, root mean square

    @property
    def peak(self) -> float | None:
        """The concurrency of the most throughput; None where the fit has no peak."""
        if self.crosstalk <= 0 or self.contention >= 1:
            return None
        return math.sqrt((1.0 - self.contention) / self.crosstalk)


def measure_point(level: float, summaries: Sequence[Summary]) -> Point:
    """Return the point of the runs at one level; without readings where one of them is INVALID."""
    order = ("VALID", "SUSPECT", "INVALID")
    verdict = max((it.verdict.status for it in summaries), key=order.index)
    readings = {name: unite_runs([take_reading(it, name) for it in summaries]) for name in READINGS}
    if verdict == "INVALID":
        readings = {name: withhold(it) for name, it in readings.items()}
    return Point(level, readings, len(summaries), verdict)


def find_knee(points: Sequence[Point], reading: str = "output_tokens_per_s") -> Point | None:
    """Return the point farthest above the chord of the curve of a rate over the level; None for few points."""
    known = [(point, value) for point in points if (value := point.value(reading)) is not None]
    if len(known) < FEWEST:
        return None
    x, y = (_scale(np.array(values, np.float64)) for values in ([p.level for p, _ in known], [v for _, v in known]))
    above = y - x
    best = int(np.argmax(above))
    return known[best][0] if above[best] > 0.05 else None


def fit_scaling(points: Sequence[Point]) -> Scaling | None:
    """Return the fit of request_hz over the number of users in a closed loop; None for few points.

    By linear least squares of N / X(N) = (1 + s (N - 1) + k N (N - 1)) / l, which is linear in its three terms.
    """
    known = [(point.level, value) for point in points if (value := point.value("request_hz"))]
    if len(known) < FEWEST:
        return None
    users, rate = (np.array(values, np.float64) for values in zip(*known, strict=True))
    terms = np.column_stack([np.ones_like(users), users - 1.0, users * (users - 1.0)])
    weights = rate / users  # relative errors: every point counts alike
    found, *_ = np.linalg.lstsq(terms * weights[:, None], users / rate * weights, rcond=None)
    base = float(found[0])
    if base <= 0:
        return None
    fitted = users / (terms @ found)
    residual = float(np.sqrt(np.mean((fitted / rate - 1.0) ** 2)))
    return Scaling(1.0 / base, float(found[1]) / base, float(found[2]) / base, residual)


def _scale(values: Floats) -> Floats:
    width = float(values.max() - values.min())
    return (values - values.min()) / width if width > 0 else np.zeros_like(values)

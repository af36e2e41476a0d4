# Rates that somebody wrote down: points, steps, waves, days, windows.
#
# Law: a rate here is a function of time and nothing is random about it; where arrivals fall is left to a unit-rate
# process that is stretched and squeezed by it (rescaling.py). That process is Poisson unless `cv` says
# otherwise: then its gaps are gamma in operational time, bursts that become denser as the rate rises.
#
#     Rate       points (t_s, rate_hz), straight between them: a ramp is two; `between` "hold" makes steps of them;
#                or a CSV file with the columns t_s and rate_hz
#     Sinusoid   mean_hz + amplitude_hz * sin(2 pi (t / period + phase)), as 256 straight pieces a period: within
#                amplitude * 8e-5 of the curve
#     Diurnal    weights over a day (24 are hours), straight from the middle of one to the middle of the next, and
#                day after day; their mean is mean_hz
#     Windows    in each window a stationary renewal process of its own rate and CV: how ServeGen describes one
#                client of a production service (Xiang et al., "ServeGen", 2025, arXiv 2505.09999)
#
# A sinusoid's and a day's rates at the ends of pieces are rounded to a millionth of a request per second: a sine
# differs in its last bit from machine to machine.

"""Processes of a rate that changes as it is told to: Rate, Sinusoid, Diurnal, Windows."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from loadshape.arrival.columns import Rows, read_rows
from loadshape.arrival.renewal import BLOCK, INSTANT, MAX_RATE_HZ, RATE, Gamma, Poisson, Weibull, cumulate
from loadshape.arrival.rescaling import Profile
from loadshape.arrival.superposition import add
from loadshape.bounds import check_choice, check_count, check_number
from loadshape.errors import RecipeError
from loadshape.stats import Floats, Integers
from loadshape.units import to_ns

PIECES = 256  # of a period of a sinusoid
MAX_POINTS = 1_000_000
_CV = "it is that of the gaps in operational time; 1 is Poisson"


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="rate", tag_field="process"):
    """The rate through `points` (t_s, rate_hz), or through those of a CSV file with the columns t_s and rate_hz.

    `between` is "line", straight from point to point, or "hold", steps. Before the first point and after the last
    the rate is theirs.

    >>> ramp = Rate(points=((0, 10), (60, 100)))
    >>> ramp.offered_hz(30)
    55.0
    """

    points: tuple[tuple[float, float], ...] = ()
    path: str = ""
    between: Literal["line", "hold"] = "line"
    cv: float = 1.0

    def __post_init__(self) -> None:
        if bool(self.points) == bool(self.path):
            raise RecipeError("points: expected either points or path, a CSV file with t_s and rate_hz")
        check_choice("between", self.between, ("line", "hold"))
        check_number("cv", self.cv, least=0.01, most=30, remedy=_CV)
        _check_points("points", self.points)

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate at *t_s*."""
        points = self._find_points()
        after = bisect_right(points, t_s, key=itemgetter(0))
        if after in (0, len(points)):
            return float(points[min(after, len(points) - 1)][1])
        (start_s, left_hz), (end_s, right_hz) = points[after - 1 : after + 1]
        return float(left_hz + (right_hz - left_hz) * (self.between == "line") * (t_s - start_s) / (end_s - start_s))

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        points = self._find_points()
        _check_points(self.path or "points", points)
        profile = Profile.of_points(points, duration_s, is_held=self.between == "hold")
        return profile.rescale(_draw_units(rng, self.cv), duration_s)

    def _find_points(self) -> Rows:
        return self.points or read_rows(Path(self.path), ("t_s", "rate_hz"))


class Sinusoid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sinusoid", tag_field="process"):
    """A rate that swings by `amplitude_hz` about `mean_hz`; it begins at the mean and rises, `phase` periods later."""

    mean_hz: float
    amplitude_hz: float
    period_s: float
    phase: float = 0.0
    cv: float = 1.0

    def __post_init__(self) -> None:
        check_number("mean_hz", self.mean_hz, above=0, most=MAX_RATE_HZ / 2, remedy=RATE)
        check_number("amplitude_hz", self.amplitude_hz, least=0, most=self.mean_hz, remedy="no rate is below 0")
        check_number("period_s", self.period_s, least=0.01, remedy="write seconds")
        check_number("phase", self.phase, remedy="write periods: 0.25 begins at the top")
        check_number("cv", self.cv, least=0.01, most=30, remedy=_CV)

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate at *t_s*, on the straight pieces."""
        return _measure_period(self._wave(), self.period_s, t_s)

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        profile = _repeat_period(self._wave(), self.period_s, duration_s)
        return profile.rescale(_draw_units(rng, self.cv), duration_s)

    def _wave(self) -> Floats:
        turns = np.arange(PIECES) / PIECES + self.phase
        return np.rint((self.mean_hz + self.amplitude_hz * np.sin(2.0 * np.pi * turns)) * 1e6) / 1e6


class Diurnal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="diurnal", tag_field="process"):
    """A day of `weights` (24 are hours), again and again, with the mean rate `mean_hz`.

    The run begins `start_s` after midnight; `day_s` is the length of a day, shorter than a real one for a rehearsal.
    """

    mean_hz: float
    weights: tuple[float, ...]
    start_s: float = 0.0
    day_s: float = 86_400.0
    cv: float = 1.0

    def __post_init__(self) -> None:
        check_number("mean_hz", self.mean_hz, above=0, most=MAX_RATE_HZ / 64, remedy=RATE)
        check_count("weights", len(self.weights), least=2, most=64, remedy="write one for each hour")
        for at, weight in enumerate(self.weights):
            check_number(f"weights[{at}]", weight, least=0, remedy="1 for all is a flat day")
        check_number("sum of weights", math.fsum(self.weights), above=0, remedy="one hour at least has traffic")
        check_number("day_s", self.day_s, least=0.1, remedy="write seconds; 86400 is a real day")
        check_number("start_s", self.start_s, least=0, below=self.day_s, remedy="write seconds after midnight")
        check_number("cv", self.cv, least=0.01, most=30, remedy=_CV)

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate at *t_s* of the run."""
        middle_s = self.day_s / len(self.weights) / 2
        return _measure_period(self._wave(), self.day_s, t_s + self.start_s - middle_s)

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        middle_s = self.day_s / len(self.weights) / 2
        late_s = (middle_s - self.start_s) % self.day_s  # until the next point that is the middle of the first hour
        profile = _repeat_period(self._wave(), self.day_s, duration_s, late_s=late_s)
        return profile.rescale(_draw_units(rng, self.cv), duration_s)

    def _wave(self) -> Floats:
        weights = np.array(self.weights, np.float64)
        return np.rint(weights * (self.mean_hz * len(weights) / math.fsum(self.weights)) * 1e6) / 1e6


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A renewal process that lasts from `start_s` to the next window; a rate of 0 is silence."""

    start_s: float
    rate_hz: float
    cv: float = 1.0
    family: Literal["gamma", "weibull"] = "gamma"

    def __post_init__(self) -> None:
        check_number("start_s", self.start_s, least=0, remedy=INSTANT)
        check_number("rate_hz", self.rate_hz, least=0, most=MAX_RATE_HZ, remedy=RATE)
        check_number("cv", self.cv, least=0.02, most=30, remedy="1 is Poisson")
        check_choice("family", self.family, ("gamma", "weibull"))


class Windows(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="windows", tag_field="process"):
    """Windows of time, each with a stationary renewal process of its own; nothing before the first one.

    The last window lasts to `end_s`, or where that is not said to the end of the run.
    """

    windows: tuple[Window, ...]
    end_s: float | None = None

    def __post_init__(self) -> None:
        check_count("windows", len(self.windows), most=MAX_POINTS, remedy="write at least one")
        for at, (one, other) in enumerate(zip(self.windows, self.windows[1:], strict=False), 1):
            check_number(f"windows[{at}].start_s", other.start_s, above=one.start_s, remedy="windows go forward")
        if self.end_s is not None:
            check_number("end_s", self.end_s, above=self.windows[-1].start_s, remedy="after the last window's start")

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate of the window that *t_s* is in."""
        if self.end_s is not None and t_s >= self.end_s:
            return 0.0
        at = int(np.searchsorted([window.start_s for window in self.windows], t_s, side="right")) - 1
        return self.windows[at].rate_hz if at >= 0 else 0.0

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s). Windows are drawn whole, so a longer run begins alike."""
        ends_s = [*(window.start_s for window in self.windows[1:]), self.end_s]
        begun = [(it, end_s) for it, end_s in zip(self.windows, ends_s, strict=True) if it.start_s < duration_s]
        parts = [np.empty(0, np.int64)]
        parts += [_draw_window(rng, it, duration_s if end_s is None else end_s, end_s is None) for it, end_s in begun]
        times_ns = np.concatenate(parts)
        return times_ns[times_ns < to_ns(duration_s)]


def _draw_window(rng: np.random.Generator, window: Window, end_s: float, is_open: bool) -> Integers:
    """Return the due times of *window* up to *end_s*. An open end moves with the run, so its blocks must not."""
    if window.rate_hz == 0.0:
        return np.empty(0, np.int64)
    length_s = end_s - window.start_s
    block = BLOCK if is_open else min(BLOCK, math.ceil(1.25 * window.rate_hz * length_s) + 16)  # one does it, mostly
    if window.cv == 1.0:
        gaps_s = Poisson(window.rate_hz).gaps_s(rng, block)
    elif window.family == "gamma":
        gaps_s = Gamma(window.rate_hz, cv=window.cv).gaps_s(rng, block)
    else:
        gaps_s = Weibull(window.rate_hz, cv=window.cv).gaps_s(rng, block)
    return cumulate(gaps_s, length_s) + to_ns(window.start_s)


def _draw_units(rng: np.random.Generator, cv: float) -> Iterator[Floats]:
    return (Poisson(1.0) if cv == 1.0 else Gamma(1.0, cv=cv)).gaps_s(rng)


def _repeat_period(wave: Floats, period_s: float, duration_s: float, *, late_s: float = 0.0) -> Profile:
    """Return the rate that is wave[i] at late_s + i / len(wave) periods, and so on before and after."""
    step_s = period_s / len(wave)
    first, last = math.floor(-late_s / step_s), math.ceil((duration_s - late_s) / step_s) + 1
    steps = np.arange(first, last + 1)
    check_count("points of the rate", len(steps), most=50 * MAX_POINTS, remedy="lengthen the period")
    edges_us = np.rint((late_s + steps * step_s) * 1e6).astype(np.int64)
    rate = wave[steps % len(wave)]
    return Profile(edges_us, rate[:-1], rate[1:])


def _measure_period(wave: Floats, period_s: float, t_s: float) -> float:
    place = (t_s / period_s % 1.0) * len(wave)
    left = int(place) % len(wave)
    return float(wave[left] + (wave[(left + 1) % len(wave)] - wave[left]) * (place - int(place)))


def _check_points(field: str, points: Rows) -> None:
    if not points:
        return
    check_count(field, len(points), most=MAX_POINTS, remedy="write fewer")
    for at, (at_s, rate_hz) in enumerate(points):
        check_number(f"{field}[{at}][0]", at_s, least=points[at - 1][0] if at else 0, remedy="seconds that go forward")
        check_number(f"{field}[{at}][1]", rate_hz, least=0, most=MAX_RATE_HZ, remedy=RATE)
    check_number(f"{field}: highest rate", max(rate for _, rate in points), above=0, remedy="one is to have traffic")

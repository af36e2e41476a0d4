# Processes whose gaps are drawn independently, from one distribution.
#
# Theory (Cox, "Renewal Theory", 1962). Poisson: exponential gaps, CV 1, index of dispersion 1 in every window,
# the sum of two is again one. Gamma: shape 1 / CV^2, which is what `vllm bench serve` calls burstiness; CV < 1
# is more regular than Poisson, CV > 1 comes in bursts. Weibull: the same range of CV with a longer tail.
#
# The first gap is drawn from the stationary distribution, a uniform part of a length-biased gap (section 5.1): a
# run begins at a random instant of a process that has always been running, so its expected count is exactly
# rate times duration. A length-biased gamma of shape k is one of shape k + 1; of a Weibull of shape k, it
# is the 1/k-th power of a gamma of shape 1 + 1/k. A stationary count in a window of m mean gaps has the variance
#
#     CV^2 m + 1/6 + CV^4 / 2 - s / 3 + o(1)         (section 4.5; s: third central moment / mean^3)
#
# A run of duration d holds the arrivals in [0, d). It is never rescaled to end at n / rate: that would take
# away the variance of the count. Each gap is rounded to whole microseconds before it is cumulated (randomness.py
# says why), which at MAX_RATE_HZ is a tenth of a gap and without drift in the mean. Gaps are drawn in
# blocks of one size, so a longer run begins with the shorter one.

"""Renewal processes: Constant, Poisson, Gamma, Weibull, and a Burst."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from loadshape.arrival.superposition import add
from loadshape.bounds import check_number
from loadshape.errors import RecipeError
from loadshape.randomness import draw_exponentials, draw_gammas
from loadshape.stats import Floats, Integers
from loadshape.units import NS_PER_S, to_ns

MAX_RATE_HZ = 100_000  # one process; above, whole microseconds are too coarse. Sum several to go beyond.
BLOCK = 4096  # gaps a draw; a constant of the format: another value is another trace for the same seed
RATE = "write requests per second, such as 40"
INSTANT = "write seconds from the start of the run"
_MANY = 20  # mean gaps a window, for each unit of CV^2, from where the o(1) of the variance is left out


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="constant", tag_field="process"):
    """A metronome: arrival k is due at k / rate, rounded to the ns; no drift.

    >>> Constant(rate_hz=4).times_ns(np.random.default_rng(), duration_s=1).tolist()
    [0, 250000000, 500000000, 750000000]
    """

    rate_hz: float

    def __post_init__(self) -> None:
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=RATE)

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate."""
        return self.rate_hz

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times; nothing is drawn."""
        steps = np.arange(math.ceil(duration_s * self.rate_hz) + 1)
        times_ns = np.rint(steps * NS_PER_S / self.rate_hz).astype(np.int64)
        return times_ns[times_ns < to_ns(duration_s)]

    def expect_gap_cv(self) -> float:
        """Return 0."""
        return 0.0


class Poisson(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="poisson", tag_field="process"):
    """A Poisson process: independent exponential gaps of mean 1 / rate.

    >>> 3_700 < len(Poisson(rate_hz=40).times_ns(np.random.default_rng(7), duration_s=100)) < 4_300
    True
    """

    rate_hz: float

    def __post_init__(self) -> None:
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=RATE)

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate."""
        return self.rate_hz

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        return cumulate(self.gaps_s(rng), duration_s)

    def gaps_s(self, rng: np.random.Generator, block: int = BLOCK) -> Iterator[Floats]:
        """Return blocks of gaps, without end."""
        while True:
            yield draw_exponentials(rng, block) / self.rate_hz

    def expect_gap_cv(self) -> float:
        """Return 1."""
        return 1.0

    def expect_dispersion(self, window_s: float) -> float:
        """Return 1."""
        return 1.0


class Gamma(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gamma", tag_field="process"):
    """A stationary renewal process with gamma gaps: mean 1 / rate, coefficient of variation `cv`.

    `cv` 1 is Poisson. Instead of it one may give the `burstiness` of `vllm bench serve`, 1 / cv^2.
    """

    rate_hz: float
    cv: float | None = None
    burstiness: float | None = None

    def __post_init__(self) -> None:
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=RATE)
        _check_one("cv", self.cv, "burstiness", self.burstiness)
        if self.burstiness is not None:
            check_number("burstiness", self.burstiness, above=0, remedy="1 is Poisson, below 1 comes in bursts")
        check_number("cv", self.expect_gap_cv(), least=0.01, most=30, remedy="1 is Poisson; use constant for none")

    __add__ = add

    @property
    def shape(self) -> float:
        """The shape of the gaps, 1 / cv^2: the burstiness."""
        return 1.0 / (self.cv * self.cv) if self.cv is not None else self.burstiness or 1.0

    def offered_hz(self, t_s: float) -> float:
        """Return the rate."""
        return self.rate_hz

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        return cumulate(self.gaps_s(rng), duration_s)

    def gaps_s(self, rng: np.random.Generator, block: int = BLOCK) -> Iterator[Floats]:
        """Return blocks of gaps, without end; the first is the stationary one."""
        scale_s = 1.0 / (self.rate_hz * self.shape)
        yield rng.random(1) * draw_gammas(rng, self.shape + 1.0, 1) * scale_s
        while True:
            yield draw_gammas(rng, self.shape, block) * scale_s

    def expect_gap_cv(self) -> float:
        """Return the coefficient of variation."""
        return float(self.cv) if self.cv is not None else self.shape**-0.5

    def expect_dispersion(self, window_s: float) -> float | None:
        """Return that of long windows with its first correction; None for short ones."""
        cv = self.expect_gap_cv()
        return _expect_renewals(cv, 2 * cv**4, self.rate_hz * window_s)


class Weibull(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="weibull", tag_field="process"):
    """A stationary renewal process with Weibull gaps: mean 1 / rate, and either their `cv` or their `shape`.

    Shape 1 is Poisson; below 1 the tail is longer than that of a gamma of the same `cv`.
    """

    rate_hz: float
    cv: float | None = None
    shape: float | None = None

    def __post_init__(self) -> None:
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=RATE)
        _check_one("cv", self.cv, "shape", self.shape)
        if self.cv is not None:
            check_number("cv", self.cv, least=0.02, most=30, remedy="1 is Poisson; use constant for none")
        else:
            check_number("shape", self.shape, least=0.17, most=64, remedy="1 is Poisson, below 1 comes in bursts")

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate."""
        return self.rate_hz

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        return cumulate(self.gaps_s(rng), duration_s)

    def gaps_s(self, rng: np.random.Generator, block: int = BLOCK) -> Iterator[Floats]:
        """Return blocks of gaps, without end; the first is the stationary one."""
        power = 1.0 / self._find_shape()
        scale_s = 1.0 / (self.rate_hz * round(math.gamma(1.0 + power), 12))
        yield rng.random(1) * draw_gammas(rng, 1.0 + power, 1) ** power * scale_s
        while True:
            yield draw_exponentials(rng, block) ** power * scale_s

    def expect_gap_cv(self) -> float:
        """Return the coefficient of variation."""
        return float(self.cv) if self.cv is not None else _weibull_cv(self._find_shape())

    def expect_dispersion(self, window_s: float) -> float | None:
        """Return that of long windows with its first correction; None for short ones."""
        first, second, third = (math.gamma(1.0 + power / self._find_shape()) for power in (1, 2, 3))
        skew = third / first**3 - 3.0 * second / first**2 + 2.0
        return _expect_renewals(self.expect_gap_cv(), skew, self.rate_hz * window_s)

    def _find_shape(self) -> float:
        """Return the shape, found by bisection and rounded, so that no library's last bit is in it."""
        if self.cv is None:
            return float(self.shape or 1.0)
        low, high = 0.17, 64.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if _weibull_cv(middle) > self.cv else (low, middle)
        return round(low, 9)


class Burst(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="burst", tag_field="process"):
    """A Poisson process of `rate_hz` that lasts from `at_s` for `for_s` seconds; add it to another process."""

    at_s: float
    rate_hz: float
    for_s: float

    def __post_init__(self) -> None:
        check_number("at_s", self.at_s, least=0, remedy=INSTANT)
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=RATE)
        check_number("for_s", self.for_s, above=0, remedy="write how many seconds the burst lasts")

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate inside of the burst, 0 outside."""
        return self.rate_hz if self.at_s <= t_s < self.at_s + self.for_s else 0.0

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times of the part of the burst that lies in [0, duration_s); raises RecipeError if not one."""
        check_number("at_s", self.at_s, below=duration_s, remedy="the burst is to begin before the run ends")
        times_ns = Poisson(rate_hz=self.rate_hz).times_ns(rng, self.for_s) + to_ns(self.at_s)
        return times_ns[times_ns < to_ns(duration_s)]


def cumulate(blocks_s: Iterator[Floats], duration_s: float) -> Integers:
    """Return the instants in [0, duration_s) that these gaps lead to, in whole microseconds, as ns."""
    end_us, at_us, parts = round(duration_s * 1e6), 0, []
    while at_us < end_us:
        times_us = at_us + np.cumsum(np.rint(next(blocks_s) * 1e6).astype(np.int64))
        parts.append(times_us[: np.searchsorted(times_us, end_us)])
        at_us = int(times_us[-1])
    return np.concatenate(parts) * 1000


def _check_one(name: str, value: float | None, other: str, other_value: float | None) -> None:
    if (value is None) == (other_value is None):
        found = "neither" if value is None else "both"
        raise RecipeError(f"{name}: expected either {name} or {other}, found {found}; the one gives the other")


def _expect_renewals(cv: float, skew: float, mean_count: float) -> float | None:
    """The dispersion of a stationary renewal process; *skew* is the third central moment over mean^3."""
    if mean_count < _MANY * max(1.0, cv * cv):
        return None
    return cv * cv + (1.0 / 6.0 + cv**4 / 2.0 - skew / 3.0) / mean_count


def _weibull_cv(shape: float) -> float:
    """The coefficient of variation of a Weibull distribution of this shape."""
    logs = math.lgamma(1.0 + 2.0 / shape) - 2.0 * math.lgamma(1.0 + 1.0 / shape)
    return math.sqrt(math.expm1(logs))

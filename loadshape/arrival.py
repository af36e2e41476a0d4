# When requests become due.
#
# Law: an arrival process is a pure value. It has no clock, never sleeps and owns no generator: for a
# generator and a duration it returns due times as an array, and the trace stores them. What is replayed
# is that array. Extending needs no base class: a process is anything with the two methods of `Arrival`.
#
# Theory. A renewal process draws its gaps independently. Poisson: exponential gaps, CV 1, index of
# dispersion of counts 1 in every window, superposition of two is again one. Gamma: shape 1 / CV^2, CV < 1
# is more regular than Poisson and CV > 1 comes in bursts; the shape is what `vllm bench serve` calls
# burstiness. The first gap is drawn from the stationary distribution (a uniform part of a
# length-biased gap, which for a gamma of shape k is one of shape k + 1): a run begins at a random instant
# of a process that has always been running, so its expected count is exactly rate times duration.
# (Cox, "Renewal Theory", 1962, sections 2.2 and 5.1.)
#
# A run of duration d holds the arrivals in [0, d). It is never rescaled to end at n / rate: that would
# take away the variance of the count. Each gap is rounded to whole microseconds before it is cumulated
# (randomness.py says why), which at MAX_RATE_HZ is a tenth of a gap and without drift in the mean.
# Gaps are drawn in blocks of one size, so a longer run begins with the shorter one.

"""Arrival processes as values: Constant, Poisson, Gamma, Burst, and their superposition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from loadshape.bounds import check_number
from loadshape.randomness import draw_exponentials, draw_gammas
from loadshape.stats import Floats, Integers
from loadshape.units import NS_PER_S, to_ns

MAX_RATE_HZ = 100_000  # one process; above, whole microseconds are too coarse. Sum several to go beyond.
_BLOCK = 4096  # gaps a draw; a constant of the format: another value is another trace for the same seed
_RATE = "write requests per second, such as 40"
_INSTANT = "write seconds from the start of the run"


@runtime_checkable
class Arrival(Protocol):
    """Anything that says when requests become due."""

    def offered_hz(self, t_s: float) -> float:
        """Return the expected rate at *t_s* seconds after the start, in requests per second."""
        ...

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s), sorted, in ns after the start; equal times are allowed."""
        ...


def superpose(*processes: Arrival) -> Superposition:
    """Return the process that has the arrivals of all *processes*; also written `a + b`."""
    nested = (part.processes if isinstance(part, Superposition) else (part,) for part in processes)
    return Superposition(tuple(process for parts in nested for process in parts))


def _add(self: Arrival, other: Arrival) -> Superposition:
    return superpose(self, other)


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="constant", tag_field="process"):
    """A metronome: arrival k is due at k / rate, rounded to the ns; no drift.

    >>> Constant(rate_hz=4).times_ns(np.random.default_rng(), duration_s=1).tolist()
    [0, 250000000, 500000000, 750000000]
    """

    rate_hz: float

    def __post_init__(self) -> None:
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=_RATE)

    __add__ = _add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate."""
        return self.rate_hz

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times; nothing is drawn."""
        steps = np.arange(math.ceil(duration_s * self.rate_hz) + 1)
        times_ns = np.rint(steps * NS_PER_S / self.rate_hz).astype(np.int64)
        return times_ns[times_ns < to_ns(duration_s)]


class Poisson(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="poisson", tag_field="process"):
    """A Poisson process: independent exponential gaps of mean 1 / rate.

    >>> 3_700 < len(Poisson(rate_hz=40).times_ns(np.random.default_rng(7), duration_s=100)) < 4_300
    True
    """

    rate_hz: float

    def __post_init__(self) -> None:
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=_RATE)

    __add__ = _add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate."""
        return self.rate_hz

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        return _cumulate(self._gaps_s(rng), duration_s)

    def _gaps_s(self, rng: np.random.Generator) -> Iterator[Floats]:
        while True:
            yield draw_exponentials(rng, _BLOCK) / self.rate_hz


class Gamma(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gamma", tag_field="process"):
    """A stationary renewal process with gamma gaps: mean 1 / rate, coefficient of variation `cv`.

    `cv` 1 is Poisson. In vLLM's words the burstiness is 1 / cv^2: see `Gamma.of_burstiness`.
    """

    rate_hz: float
    cv: float

    def __post_init__(self) -> None:
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=_RATE)
        check_number("cv", self.cv, least=0.01, most=30, remedy="1 is Poisson; for no variation use constant")

    __add__ = _add

    @classmethod
    def of_burstiness(cls, rate_hz: float, burstiness: float) -> Gamma:
        """Return the process that `vllm bench serve --burstiness` names: the shape of the gamma gaps."""
        check_number("burstiness", burstiness, above=0, remedy="1 is Poisson, below 1 comes in bursts")
        return cls(rate_hz=rate_hz, cv=burstiness**-0.5)

    @property
    def burstiness(self) -> float:
        """The shape of the gaps, 1 / cv^2."""
        return 1.0 / (self.cv * self.cv)

    def offered_hz(self, t_s: float) -> float:
        """Return the rate."""
        return self.rate_hz

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        return _cumulate(self._gaps_s(rng), duration_s)

    def _gaps_s(self, rng: np.random.Generator) -> Iterator[Floats]:
        scale_s = 1.0 / (self.rate_hz * self.burstiness)
        yield rng.random(1) * draw_gammas(rng, self.burstiness + 1.0, 1) * scale_s
        while True:
            yield draw_gammas(rng, self.burstiness, _BLOCK) * scale_s


class Burst(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="burst", tag_field="process"):
    """A Poisson process of `rate_hz` that lasts from `at_s` for `for_s` seconds; add it to another process."""

    at_s: float
    rate_hz: float
    for_s: float

    def __post_init__(self) -> None:
        check_number("at_s", self.at_s, least=0, remedy=_INSTANT)
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy=_RATE)
        check_number("for_s", self.for_s, above=0, remedy="write how many seconds the burst lasts")

    __add__ = _add

    def offered_hz(self, t_s: float) -> float:
        """Return the rate inside of the burst, 0 outside."""
        return self.rate_hz if self.at_s <= t_s < self.at_s + self.for_s else 0.0

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times of the part of the burst that lies in [0, duration_s); raises RecipeError if not one."""
        check_number("at_s", self.at_s, below=duration_s, remedy="the burst is to begin before the run ends")
        times_ns = Poisson(rate_hz=self.rate_hz).times_ns(rng, self.for_s) + to_ns(self.at_s)
        return times_ns[times_ns < to_ns(duration_s)]


class Superposition(msgspec.Struct, frozen=True):
    """The arrivals of several processes, merged.

    The first process draws from the given generator and each other one from a child of it: adding a burst
    to a process leaves the arrivals of that process where they were.
    """

    processes: tuple[Arrival, ...]

    __add__ = _add

    def offered_hz(self, t_s: float) -> float:
        """Return the sum of the rates."""
        return sum(process.offered_hz(t_s) for process in self.processes)

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times of all processes in [0, duration_s), merged."""
        streams = [rng, *rng.spawn(len(self.processes) - 1)]
        pairs = zip(self.processes, streams, strict=True)
        return np.sort(np.concatenate([process.times_ns(stream, duration_s) for process, stream in pairs]))


def measure_offered_hz(process: Arrival, duration_s: float, steps: int = 10_000) -> float:
    """Return the mean of the offered rate over [0, duration_s), by the midpoint rule."""
    width_s = duration_s / steps
    return math.fsum(process.offered_hz((step + 0.5) * width_s) for step in range(steps)) / steps


def _cumulate(blocks_s: Iterator[Floats], duration_s: float) -> Integers:
    end_us, at_us, parts = round(duration_s * 1e6), 0, []
    while at_us < end_us:
        times_us = at_us + np.cumsum(np.rint(next(blocks_s) * 1e6).astype(np.int64))
        parts.append(times_us[: np.searchsorted(times_us, end_us)])
        at_us = int(times_us[-1])
    return np.concatenate(parts) * 1000

# Arrivals that bring arrivals: retries, fan-out, a link that goes round.
#
# Theory (Hawkes, Biometrika 58, 1971). Immigrants come as a Poisson process of rate u. Every arrival, immigrant or
# not, brings a Poisson number of children, n on average, each after an exponential delay of mean d. With n < 1
# families die out, the mean rate is u / (1 - n), and the count in a window t has the dispersion
#
#     1 + n (2 - n) / (1 - n)^2 * (1 - (1 - e^-z) / z)        z = (1 - n) t / d
#
# which is 1 / (1 - n)^2 in long windows: 25 at n = 0.8. There is no formula of the same kind for the CV of gaps.
#
# Drawn as clusters (Hawkes & Oakes, 1974), family by family, which is exact: no intensity is stepped through time.
# The run begins in the stationary state, because immigrants come from WARMUP relaxation times, d / (1 - n), before
# it: of the children of earlier ones, e^-WARMUP of the rate is missing. Families are drawn whole in
# blocks of immigrants, so a longer run begins with the shorter one; every gap and delay is whole microseconds.

"""Hawkes: self-exciting arrivals."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from loadshape.arrival.renewal import MAX_RATE_HZ, RATE
from loadshape.arrival.superposition import add
from loadshape.bounds import check_number
from loadshape.randomness import draw_exponentials
from loadshape.stats import Floats, Integers

WARMUP = 23  # relaxation times: e^-23 is 1e-10
_BLOCK = 1024  # immigrants a draw; a constant of the format, as BLOCK is


class Hawkes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hawkes", tag_field="process"):
    """Arrivals of `base_hz` on their own, each of which brings `branching` more, after `delay_s` on average.

    The mean rate is base_hz / (1 - branching).
    """

    base_hz: float
    branching: float
    delay_s: float

    def __post_init__(self) -> None:
        check_number("base_hz", self.base_hz, above=0, most=MAX_RATE_HZ, remedy=RATE)
        check_number("branching", self.branching, least=0, most=0.99, remedy="at 1 the traffic would grow for ever")
        check_number("delay_s", self.delay_s, least=1e-5, most=86_400, remedy="write the mean delay in seconds")
        check_number("base_hz / (1 - branching)", self.offered_hz(0.0), most=MAX_RATE_HZ, remedy="it is the mean rate")

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the mean rate."""
        return self.base_hz / (1.0 - self.branching)

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        end_us, at_us = round(duration_s * 1e6), -round(WARMUP * self.delay_s / (1.0 - self.branching) * 1e6)
        parts = [np.empty(0, np.int64)]
        while at_us < end_us:
            gaps_us = np.rint(draw_exponentials(rng, _BLOCK) / self.base_hz * 1e6).astype(np.int64)
            immigrants = at_us + np.cumsum(gaps_us)
            family = self._descend(rng, immigrants)
            parts.append(family[(family >= 0) & (family < end_us)])
            at_us = int(immigrants[-1])
        return np.sort(np.concatenate(parts)) * 1000

    def expect_dispersion(self, window_s: float) -> float:
        """Return variance over mean of the count in a window of *window_s*."""
        left = 1.0 - self.branching
        z = left * window_s / self.delay_s
        return 1.0 + self.branching * (2.0 - self.branching) / left**2 * (1.0 + math.expm1(-z) / z)

    def _descend(self, rng: np.random.Generator, parents: Integers) -> Integers:
        """Return *parents* with all of their descendants, generation after generation."""
        upto = _cumulate_poisson(self.branching)
        generations = [parents]
        while len(parents):
            children = np.searchsorted(upto, rng.random(len(parents)), side="right")
            delays_us = np.rint(draw_exponentials(rng, int(children.sum())) * (self.delay_s * 1e6))
            parents = np.repeat(parents, children) + delays_us.astype(np.int64)
            generations.append(parents)
        return np.concatenate(generations)


def _cumulate_poisson(mean: float) -> Floats:
    """Return P(N <= 0), P(N <= 1), ...; beyond the last one nothing is left of a double."""
    logs = [n * math.log(mean) - mean - math.lgamma(n + 1) if mean > 0 else -math.inf for n in range(32)]
    return np.cumsum(np.exp(logs)) if mean > 0 else np.ones(1)

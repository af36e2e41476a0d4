# How long people and tools wait, in seconds: pauses between turns, delays, patience.
#
# Law: a wait is a pure value with one method: for a generator and a number it returns as many whole
# nanoseconds, none below zero. Nobody waits here; what a wait is for is said by whoever holds it: the think
# time of a session (session.py), the delay of requests that follow others (mix.py), patience (patience.py).
#
# Theory. Exponential pauses have no memory; those of people are skewed further: a lognormal is short mostly
# and long now and then, with the mean at median * exp(sigma^2 / 2). Neither has an end, and one pause of an hour
# keeps a session open for an hour, so both take a bound `max_s`; a longer pause becomes the bound.
#
# Every wait is rounded to whole microseconds, so that the last bit of a logarithm does not matter (randomness.py).

"""Waits as values: FixedWait, UniformWait, ExponentialWait, LogNormalWait."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from loadshape.bounds import check_number
from loadshape.randomness import draw_exponentials, draw_normals
from loadshape.stats import Floats, Integers

MAX_S = 86_400.0
_SECONDS = "write seconds, at most a day"


@runtime_checkable
class Wait(Protocol):
    """Anything that draws waits."""

    def draw_ns(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* waits in ns, none below 0."""
        ...


class FixedWait(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fixed", tag_field="distribution"):
    """Always the same."""

    wait_s: float

    def __post_init__(self) -> None:
        check_number("wait_s", self.wait_s, least=0, most=MAX_S, remedy=_SECONDS)

    def draw_ns(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* times the wait; nothing is drawn."""
        return _round(np.full(n, self.wait_s))


class UniformWait(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="uniform", tag_field="distribution"):
    """Every wait between `min_s` and `max_s` equally often."""

    min_s: float
    max_s: float

    def __post_init__(self) -> None:
        check_number("min_s", self.min_s, least=0, most=MAX_S, remedy=_SECONDS)
        check_number("max_s", self.max_s, least=self.min_s, most=MAX_S, remedy=_SECONDS)

    def draw_ns(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* waits; one double for each."""
        return _round(self.min_s + (self.max_s - self.min_s) * rng.random(n))


class ExponentialWait(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="exponential", tag_field="distribution"
):
    """Waits without memory, of this mean before the bound takes a part of it away."""

    mean_s: float
    max_s: float = MAX_S

    def __post_init__(self) -> None:
        check_number("mean_s", self.mean_s, above=0, most=MAX_S, remedy=_SECONDS)
        check_number("max_s", self.max_s, above=0, most=MAX_S, remedy=_SECONDS)

    def draw_ns(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* waits; one double for each."""
        return _round(np.minimum(self.mean_s * draw_exponentials(rng, n), self.max_s))


class LogNormalWait(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="lognormal", tag_field="distribution"):
    """Waits whose logarithm is normal: half of them below the median, `sigma` the spread of the logarithm."""

    median_s: float
    sigma: float
    max_s: float = MAX_S

    def __post_init__(self) -> None:
        check_number("median_s", self.median_s, above=0, most=MAX_S, remedy=_SECONDS)
        check_number("sigma", self.sigma, least=0, most=5, remedy="it is a spread of logarithms: 0.5 to 1.5 is usual")
        check_number("max_s", self.max_s, above=0, most=MAX_S, remedy=_SECONDS)

    def draw_ns(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* waits; two doubles for each."""
        return _round(np.minimum(self.median_s * np.exp(self.sigma * draw_normals(rng, n)), self.max_s))


AnyWait = FixedWait | UniformWait | ExponentialWait | LogNormalWait


def _round(seconds: Floats) -> Integers:
    return np.asarray(np.rint(seconds * 1e6).astype(np.int64) * 1000)

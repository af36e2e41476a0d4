# What a process is, and the sum of several.
#
# Law: extending needs no base class. A process is anything with the two methods of `Arrival`; it has no clock,
# never sleeps and owns no generator. Processes of ours can also say what theory expects of them:
#
#     expect_gap_cv()              coefficient of variation of the gap between neighbours
#     expect_dispersion(window_s)  variance over mean of the count in a window of that length
#
# each None where there is no formula, or where the rate changes with time and one number would say nothing.
# Counts of independent processes add, and so do their means and variances: the dispersion of a sum is that
# of its parts, weighted by their rates (Cox & Isham, "Point Processes", 1980, section 4.5).
#
# The first process of a sum draws from the given generator and each other one from a child of it, so that
# adding a burst to a process leaves the arrivals of that process where they were.

"""The protocol of arrival processes, and their superposition."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from loadshape.stats import Integers


@runtime_checkable
class Arrival(Protocol):
    """Anything that says when requests become due."""

    def offered_hz(self, t_s: float) -> float:
        """Return the expected rate at *t_s* seconds after the start, in requests per second."""
        ...

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s), sorted, in ns after the start; equal times are allowed."""
        ...


class Superposition(msgspec.Struct, frozen=True):
    """The arrivals of several processes, merged."""

    processes: tuple[Arrival, ...]

    def __add__(self, other: Arrival) -> Superposition:
        """Return the sum with one more process."""
        return superpose(self, other)

    def offered_hz(self, t_s: float) -> float:
        """Return the sum of the rates."""
        return sum(process.offered_hz(t_s) for process in self.processes)

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times of all processes in [0, duration_s), merged."""
        streams = [rng, *rng.spawn(len(self.processes) - 1)]
        pairs = zip(self.processes, streams, strict=True)
        return np.sort(np.concatenate([process.times_ns(stream, duration_s) for process, stream in pairs]))

    def expect_dispersion(self, window_s: float) -> float | None:
        """Return the mean of the parts' dispersion, weighted by their rates; None where a part has none."""
        found = [expect_dispersion(process, window_s) for process in self.processes]
        if None in found:
            return None
        rates = [process.offered_hz(0.0) for process in self.processes]
        return math.fsum(rate * index for rate, index in zip(rates, found, strict=True) if index) / math.fsum(rates)


def superpose(*processes: Arrival) -> Superposition:
    """Return the process that has the arrivals of all *processes*; also written `a + b`."""
    nested = (part.processes if isinstance(part, Superposition) else (part,) for part in processes)
    return Superposition(tuple(process for parts in nested for process in parts))


def add(self: Arrival, other: Arrival) -> Superposition:
    """Return the sum of two processes: what every process of ours has as `__add__`."""
    return superpose(self, other)


def expect_gap_cv(process: Arrival) -> float | None:
    """Return the coefficient of variation of gaps that theory gives *process*, None where it gives none."""
    expect = getattr(process, "expect_gap_cv", None)
    return expect() if expect else None


def expect_dispersion(process: Arrival, window_s: float) -> float | None:
    """Return the index of dispersion in windows of *window_s* that theory gives *process*, None where it gives none."""
    expect = getattr(process, "expect_dispersion", None)
    return expect(window_s) if expect else None


def measure_offered_hz(process: Arrival, duration_s: float, steps: int = 10_000) -> float:
    """Return the mean of the offered rate over [0, duration_s), by the midpoint rule."""
    width_s = duration_s / steps
    return math.fsum(process.offered_hz((step + 0.5) * width_s) for step in range(steps)) / steps

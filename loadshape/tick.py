# The step of the clock that stamped a recording.
#
# Law: arithmetic on sorted stamps, no file and no trace. A coarse clock makes batches that never were: the
# stamps of the Mooncake conversation trace are 3.000 s apart, so that replayed as they are ten and more
# requests arrive at once, and a queue is measured that no user ever stood in.
#
# The tick is the most frequent distance of stamps if nearly all others are multiples of it (to 0.1 %: those of
# Mooncake are 2.999, 3.000 and 3.001 s), else their greatest common divisor. Stamps count as quantised where
# it is more than a tenth of the mean gap and 5 % of the requests share their stamp: a metronome has a large
# tick too, and no batches.
#
# Spreading draws for each request a place inside of its tick, uniformly, since a stamp says nothing more; the
# order of the file is kept. It never moves a request out of its tick, so counts in windows of whole ticks
# stay as they were. What is left of the batches is Poisson inside of a tick, which is a choice and no fact.

"""Ticks: find the step of stamps, and spread what shares one."""

from __future__ import annotations

import numpy as np

from loadshape.stats import Integers

_US = 1000
_ALIKE = 0.99
_JITTER = 0.001
_COARSE = 0.1
_TOGETHER = 0.05


def find_tick(times_ns: Integers) -> int | None:
    """Return the step of sorted stamps in ns, or None where there are fewer than three different ones."""
    gaps = np.diff(np.unique(times_ns))
    if len(gaps) < 2:
        return None
    steps, counts = np.unique(gaps, return_counts=True)
    usual = int(steps[np.argmax(counts)])
    beside = np.abs(gaps - np.maximum(1, np.rint(gaps / usual)) * usual)
    return usual if np.mean(beside <= _JITTER * usual) >= _ALIKE else int(np.gcd.reduce(gaps))


def is_quantised(times_ns: Integers, tick_ns: int | None) -> bool:
    """Return whether the step of sorted stamps shows in the arrivals."""
    if tick_ns is None:
        return False
    gaps = np.diff(times_ns)
    return bool(tick_ns > _COARSE * gaps.mean() and np.mean(gaps == 0) >= _TOGETHER)


def spread_ticks(times_ns: Integers, tick_ns: int, rng: np.random.Generator) -> Integers:
    """Return sorted times, each less than *tick_ns* behind its stamp and before the next one; the order stays."""
    stamps, which = np.unique(times_ns, return_inverse=True)
    room = np.minimum(tick_ns, np.diff(np.r_[stamps, stamps[-1] + tick_ns]))[which]
    offsets = np.floor(rng.random(len(times_ns)) * (room / _US)).astype(np.int64) * _US  # whole microseconds
    order = np.lexsort((offsets, times_ns))  # only requests of one stamp change places
    return np.asarray((times_ns + offsets)[order])

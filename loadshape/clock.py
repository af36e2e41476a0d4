# Time, and nothing else: one clock for the whole host, and a fake one of equal rank.
#
# CLOCK_MONOTONIC in integer nanoseconds is the only clock in loadshape. It is shared by all processes
# of a host, NTP slews it and never steps it. CLOCK_REALTIME appears in two places: as an anchor that
# says when a run took place, and to translate kernel receive stamps, which Linux gives in REALTIME
# (Documentation/networking/timestamping.rst). The translation needs REALTIME - MONOTONIC, read as
# mono, real, mono; the tightest of many such brackets is the one with no preemption inside.

"""CLOCK_MONOTONIC nanoseconds, the REALTIME offset, and a FakeClock for tests."""

from __future__ import annotations

import time
from typing import Protocol

BRACKETS = 50  # enough for one undisturbed bracket in practice; costs about 10 us


class Clock(Protocol):
    """Anything that tells the time in nanoseconds."""

    def now_ns(self) -> int:
        """Return nanoseconds on a clock that never steps."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC, shared by every process of this host."""

    now_ns = staticmethod(time.monotonic_ns)


class FakeClock:
    """A clock that moves only when told to; of equal rank with the real one."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Return the time that was last set."""
        return self._now_ns

    def advance(self, by_ns: int) -> int:
        """Move forward by *by_ns* >= 0 and return the new time."""
        if by_ns < 0:
            raise ValueError(f"a monotonic clock cannot go back: {by_ns} ns")
        self._now_ns += by_ns
        return self._now_ns


def measure_offset_ns(brackets: int = BRACKETS) -> tuple[int, int]:
    """Return (CLOCK_REALTIME - CLOCK_MONOTONIC, width of the bracket), both in ns.

    The true offset at the moment of the reading lies within half the width of the value.
    """
    best_ns, best_width_ns = 0, 1 << 62
    mono_ns, real_ns = time.monotonic_ns, time.time_ns
    for _ in range(brackets):
        before = mono_ns()
        real = real_ns()
        after = mono_ns()
        if after - before < best_width_ns:
            best_ns, best_width_ns = real - (before + after) // 2, after - before
    return best_ns, best_width_ns

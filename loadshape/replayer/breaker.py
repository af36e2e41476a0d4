# When to leave a server alone: most of what is sent to it fails.
#
# Law: counting, without a clock. Ends of requests are counted by the second over the last WINDOW_S seconds; the
# breaker opens when the first of them lies that far back and more than half of them, of a number that means
# something, failed. It only says so: stopping is the worker's, and a run that was stopped is not believed.
#
# A failure is whatever did not end ok, but for what we decided ourselves: a planned abort or a cut is none, nor is
# a request that this host could not send. Each worker watches its own share; when one stops, all are stopped.

"""Breaker: says when more than half of the requests have failed for ten seconds."""

from __future__ import annotations

from loadshape.log import Outcome
from loadshape.units import NS_PER_S

WINDOW_S = 10
SHARE = 0.5
LEAST = 10  # ends in the window, below which a share says little
REASON = f"stopped: more than {SHARE:.0%} of the requests failed within {WINDOW_S} s"

OURS = (Outcome.cancelled, Outcome.not_sent, Outcome.not_reached)


class Breaker:
    """The ends of requests over the last seconds. Times are ns since the epoch."""

    def __init__(self) -> None:
        self._ended = [0] * WINDOW_S
        self._failed = [0] * WINDOW_S
        self._first_ns: int | None = None
        self._second = 0

    def note(self, outcome: Outcome, now_ns: int) -> None:
        """Count the end of a request."""
        if outcome in OURS:
            return
        if self._first_ns is None:
            self._first_ns, self._second = now_ns, now_ns // NS_PER_S
        self._move_on(now_ns)
        self._ended[self._second % WINDOW_S] += 1
        self._failed[self._second % WINDOW_S] += outcome is not Outcome.ok

    def is_open(self, now_ns: int) -> bool:
        """Return whether sending should stop."""
        if self._first_ns is None or now_ns - self._first_ns < WINDOW_S * NS_PER_S:
            return False
        self._move_on(now_ns)
        ended, failed = sum(self._ended), sum(self._failed)
        return ended >= LEAST and failed > SHARE * ended

    def _move_on(self, now_ns: int) -> None:
        """Forget the seconds that have left the window."""
        second = now_ns // NS_PER_S
        for passed in range(self._second + 1, min(second, self._second + WINDOW_S) + 1):
            self._ended[passed % WINDOW_S] = self._failed[passed % WINDOW_S] = 0
        self._second = max(self._second, second)

# What is due, and when: pure decisions on integers.
#
# Law: no clock, no socket, no sleep. The worker tells the time and says which requests ended; the
# scheduler says what to begin. A due time is never moved, skipped or re-anchored: what is begun late is
# begun late, and its row shows it.
#
#     open         due is the plan's; the order of the trace is the order of due times
#     partly open  first turns by the plan; turn k+1 is due at the end of turn k plus its think time
#     closed       each slot takes the next session; due is the instant the slot became free plus think
#     cap          bounds the requests in flight; a due request then waits, and its lateness shows the wait
#
# A turn whose predecessor failed is never reached; neither are its own successors. Nor is what lies beyond the
# declared end: after the last of the requests that were asked for, or due when the duration is over.

"""Scheduler: releases the requests of a plan when they are due."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from loadshape.plan import NULL, Plan

NEVER = 1 << 62


class Scheduler:
    """Walks a Plan. Positions are indices into the plan; all times are ns since the run's epoch.

    Never released are positions from `reach` on, and what becomes due at `end_ns` or later.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        slots: int | None = None,
        cap: int | None = None,
        reach: int | None = None,
        end_ns: int = NEVER,
    ) -> None:
        self._plan = plan
        self._cap = cap if cap is not None else NEVER
        self._reach = len(plan) if reach is None else reach
        self._end_ns = end_ns
        self._in_flight = 0
        self.is_stopped = False
        clocked = [position for position in range(self._reach) if NULL != plan.due_ns[position] < end_ns]
        self._clocked = sorted(clocked, key=lambda position: plan.due_ns[position])
        self._clocked_due = [plan.due_ns[position] for position in self._clocked]
        self._next_clocked = 0
        self._waiting: list[tuple[int, int]] = []  # heap of (due, position): turns and slots
        self._sessions = deque(p for p in range(self._reach) if plan.turn[p] == 0 and plan.due_ns[p] == NULL)
        for _ in range(slots or 0):
            self._refill_slot(0)

    @property
    def planned(self) -> int:
        """Requests of the plan."""
        return len(self._plan)

    @property
    def in_flight(self) -> int:
        """Requests released and not yet finished."""
        return self._in_flight

    @property
    def drained(self) -> bool:
        """Whether nothing waits for its instant, a slot, the cap or the end: only a predecessor's end brings more."""
        waits = self._waiting or self._sessions or self._next_clocked < len(self._clocked)
        return self.is_stopped or not (waits or self._end_ns < NEVER)

    def next_due_ns(self) -> int:
        """Return when release() has something to give, NEVER if only a finish() can change that."""
        if self.is_stopped or self._in_flight >= self._cap:
            return NEVER
        due_ns = self._waiting[0][0] if self._waiting else NEVER
        if self._next_clocked < len(self._clocked):
            due_ns = min(due_ns, self._clocked_due[self._next_clocked])
        return due_ns

    def release(self, now_ns: int) -> list[tuple[int, int]]:
        """Return the (position, due) of everything due by *now_ns*, in order; they count as in flight."""
        released = []
        while self.next_due_ns() <= now_ns:
            released.append(self._pop())
            self._in_flight += 1
        return released

    def look_ahead(self, until_ns: int) -> int:
        """Return how many requests will be due by *until_ns*: connections to open ahead."""
        if self.is_stopped:
            return 0
        clocked = bisect_right(self._clocked_due, until_ns, lo=self._next_clocked) - self._next_clocked
        waiting = sum(1 for due_ns, _ in self._waiting if due_ns <= until_ns)
        return min(clocked + waiting, self._cap - self._in_flight)

    def foresee(self, until_ns: int) -> list[int]:
        """Return the positions that look_ahead counts."""
        waiting = [position for due_ns, position in self._waiting if due_ns <= until_ns]
        return [*waiting, *self.upcoming(until_ns)][: self.look_ahead(until_ns)]

    def upcoming(self, until_ns: int, *, skip: int = 0) -> Iterator[int]:
        """Return the positions that the clock makes due up to *until_ns*, nearest first, without the first *skip*."""
        end = bisect_right(self._clocked_due, until_ns, lo=self._next_clocked)
        return (self._clocked[index] for index in range(self._next_clocked + skip, end))

    def finish(self, position: int, ended_ns: int, *, succeeded: bool) -> None:
        """Tell that a released request ended; makes its successor, or its slot's next session, due."""
        self._in_flight -= 1
        successor = self._plan.successor[position]
        waits = NULL != successor < self._reach and self._plan.due_ns[successor] == NULL
        if waits and succeeded:
            self._await(ended_ns + self._plan.think_ns[successor], successor)
        elif self._sessions:
            self._refill_slot(ended_ns)

    def stop(self) -> None:
        """Release nothing more; what is in flight may still finish."""
        self.is_stopped = True

    def _refill_slot(self, free_ns: int) -> None:
        if self._sessions:
            position = self._sessions.popleft()
            self._await(free_ns + self._plan.think_ns[position], position)

    def _await(self, due_ns: int, position: int) -> None:
        if due_ns < self._end_ns:
            heapq.heappush(self._waiting, (due_ns, position))

    def _pop(self) -> tuple[int, int]:
        clocked_ns = NEVER
        if self._next_clocked < len(self._clocked):
            clocked_ns = self._clocked_due[self._next_clocked]
        if self._waiting and self._waiting[0][0] < clocked_ns:
            due_ns, position = heapq.heappop(self._waiting)
            return position, due_ns
        position = self._clocked[self._next_clocked]
        self._next_clocked += 1
        return position, clocked_ns

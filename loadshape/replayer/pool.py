# Which connection serves the next request: pure decisions.
#
# Law: no socket and no clock here; the pool keeps a list and says what to open and what to close.
#
# Idle connections are used last-in first-out, so that the warm ones stay warm and the rest grow old. One
# that has been idle for IDLE_LIMIT_NS is not used again: servers close at 5 s (uvicorn's default), and a
# POST that meets the closing is lost. Connections for the requests of the next moments are opened ahead,
# so that a planned request does not pay for its connect.

"""Pool: idle connections, oldest first out of use, warmest first into use."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

IDLE_LIMIT_NS = 4_000_000_000  # below the 5 s at which uvicorn closes


class Idle(Protocol):
    """What the pool needs to know of a connection."""

    idle_since_ns: int


C = TypeVar("C", bound=Idle)


class Pool(Generic[C]):
    """Idle connections of one target."""

    def __init__(self) -> None:
        self._idle: list[C] = []

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, now_ns: int) -> C | None:
        """Return the most recently used connection that is young enough, None if there is none."""
        if self._idle and now_ns - self._idle[-1].idle_since_ns < IDLE_LIMIT_NS:
            return self._idle.pop()
        return None

    def put(self, connection: C, now_ns: int) -> None:
        """Take in a connection that became idle at *now_ns*."""
        connection.idle_since_ns = now_ns
        self._idle.append(connection)

    def discard(self, connection: C) -> None:
        """Forget a connection that the server closed while it was idle."""
        if connection in self._idle:
            self._idle.remove(connection)

    def expire(self, now_ns: int, at_most: int = 1 << 30) -> list[C]:
        """Give up and return *at_most* so many of the connections that have been idle for too long: close them."""
        young, end = 0, min(at_most, len(self._idle))
        while young < end and now_ns - self._idle[young].idle_since_ns >= IDLE_LIMIT_NS:
            young += 1
        expired, self._idle = self._idle[:young], self._idle[young:]
        return expired

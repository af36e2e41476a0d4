# The connections of all targets: which are idle, which are opening, and what becomes of each.
#
# Law: a connection belongs to one request, or to the pool, or it is opening for the pool; in every other
# case it is closed. The pool decides (pool.py), the network acts; here the two meet.

"""Lines: the connections of all targets."""

from __future__ import annotations

from loadshape.clock import Clock
from loadshape.replayer.connection import Connection, Network
from loadshape.replayer.pool import Pool
from loadshape.replayer.routing import Routes

OPENING_AT_ONCE = 128  # a burst of SYNs beyond a server's backlog costs a second each
CLOSES_A_SLICE = 4
DIALS_A_SLICE = 2  # a connect costs 60 us, and a request may become due meanwhile
PAUSE_NS = 1_000_000_000  # nothing is opened ahead for so long after an attempt that failed


class Lines:
    """Takes connections from the pool, opens them ahead, and puts them back or closes them."""

    def __init__(self, network: Network, clock: Clock, routes: Routes) -> None:
        self.routes = routes
        self._network = network
        self._clock = clock
        self._pools: list[Pool[Connection]] = [Pool() for _ in range(routes.targets)]
        self._opening = [0] * routes.targets
        self._open = 0
        self._paused_until_ns = [0] * routes.targets

    @property
    def opening(self) -> int:
        """Connections on their way into the pool."""
        return sum(self._opening)

    @property
    def open(self) -> int:
        """Connections that exist, in whatever state."""
        return self._open

    def take(self, now_ns: int, target: int = 0) -> Connection | None:
        """Return an idle connection to *target* that is fit for use at *now_ns* (monotonic)."""
        pool = self._pools[target]
        connection = pool.take(now_ns)
        while connection is not None and not connection.open:  # its end has come and is still in the inbox
            connection = pool.take(now_ns)
        return connection

    def dial(self, target: int = 0) -> Connection:
        """Open a connection for a request that cannot wait for the pool. Raises OSError."""
        connection = self._network.open(target)
        self._open += 1
        return connection

    def dial_ahead(self, wanted: int, target: int = 0) -> bool:
        """Open a few of the connections that lack until *wanted* are idle or opening; True when more lack."""
        missing = min(wanted - len(self._pools[target]), OPENING_AT_ONCE) - self._opening[target]
        if missing <= 0 or self._clock.now_ns() < self._paused_until_ns[target]:
            return False
        for _ in range(min(missing, DIALS_A_SLICE)):
            try:
                self.dial(target)
            except OSError:
                return False  # the request that needs it will say why
            self._opening[target] += 1
        return missing > DIALS_A_SLICE

    def keep(self, connection: Connection) -> None:
        """Take a connection that was opened ahead into the pool."""
        self._opening[connection.target] -= 1
        self._pools[connection.target].put(connection, self._clock.now_ns())

    def lose(self, connection: Connection) -> None:
        """Count out a connection that could not be opened."""
        self._open -= 1
        if connection.exchange is None:
            self._opening[connection.target] -= 1
            self._paused_until_ns[connection.target] = self._clock.now_ns() + PAUSE_NS

    def release(self, connection: Connection, *, reusable: bool) -> None:
        """Take back the connection of a request that ended."""
        connection.exchange = None
        if reusable and connection.open:
            self._pools[connection.target].put(connection, self._clock.now_ns())
        else:
            self._close(connection)

    def drop(self, connection: Connection) -> None:
        """Close an idle connection that the server closed, or on which it sent something unasked."""
        self._pools[connection.target].discard(connection)
        self._close(connection)

    def close_idle(self) -> bool:
        """Close a few of the connections that have been idle for too long; True when there are more."""
        expired = [it for pool in self._pools for it in pool.expire(self._clock.now_ns(), CLOSES_A_SLICE)]
        for connection in expired:
            self._close(connection)
        return len(expired) >= CLOSES_A_SLICE

    def _close(self, connection: Connection) -> None:
        connection.closed = True
        self._open -= 1
        self._network.close(connection)

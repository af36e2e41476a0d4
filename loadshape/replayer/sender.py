# What is due is begun, at its instant.
#
# Law: at the due instant a request costs one pool look-up, two clocks and one sendmsg. Everything else was
# done before: requests are built up to BODIES_AHEAD_NS ahead, connections are opened when the plan will need them.
# A request is begun late rather than not at all, and never early.
#
# A request is sent once. The one exception, off unless asked for, is a stale connection: an idle one that the server
# closes while we use it again, so that not one byte of an answer comes. RFC 9112 9.3.1 has clients retry what such a
# closing met; a POST is not idempotent, so RFC 9110 9.2.2 has nobody do it unasked. It is sent once more, on a
# connection that is surely fresh, and the row has both instants.

"""Sender: begins what the scheduler releases; the network's owner."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import islice

from loadshape.clock import Clock
from loadshape.log import Outcome
from loadshape.plan import NULL, Plan
from loadshape.replayer.body import BodyBuilder
from loadshape.replayer.connection import Connection, Network, translate_error
from loadshape.replayer.exchange import Exchange
from loadshape.replayer.ledger import Ledger
from loadshape.replayer.scheduler import NEVER, Scheduler

BODIES_AHEAD_NS = 2_000_000_000
LINES_AHEAD_NS = 200_000_000  # longer than a connect over an ocean, shorter than the idle limit
WARM_UP_TURNS = 10_000  # a slice each, or a millisecond of waiting: ten seconds at most
BODIES_A_SLICE = 4  # a short one costs 50 us


class Sender:
    """Begins and sends the requests of one plan."""

    def __init__(
        self, plan: Plan, scheduler: Scheduler, ledger: Ledger, bodies: BodyBuilder, network: Network, clock: Clock
    ) -> None:
        self.clock = clock
        self.epoch_ns = clock.now_ns() + 3600 * 10**9  # far ahead until the start is known
        self.begun = 0
        self.worst_late_ns = 0
        self.retries_stale = False
        self.lines = ledger.lines
        self._routes = ledger.lines.routes
        self._plan = plan
        self._scheduler = scheduler
        self._ledger = ledger
        self._bodies = bodies
        self._network = network
        self._prepared: dict[int, Exchange] = {}

    def now_ns(self) -> int:
        """Return the time since the epoch."""
        return self.clock.now_ns() - self.epoch_ns

    def wake(self) -> None:
        """Begin everything that is due. Called by the pacer, and from the middle of a drain."""
        for position, due_ns in self._scheduler.release(self.now_ns()):
            target = self._routes.find(position)
            if target != NULL:
                self._begin(position, due_ns, target)
            else:
                self._prepared.pop(position, None)
                self._ledger.skip(position, due_ns, self.now_ns())
        self.look_ahead()

    def look_ahead(self) -> None:
        """Tell the network the next due instant."""
        next_ns = self._scheduler.next_due_ns()
        self._network.due_at_ns = next_ns if next_ns == NEVER else next_ns + self.epoch_ns

    async def warm_up(self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Build the requests and open the connections of the first moments, before the start."""
        for _ in range(WARM_UP_TURNS):
            if not (self.work_ahead(0) or self.lines.opening):
                return
            await pause(0.001 if self.lines.opening else 0)

    def work_ahead(self, now_ns: int) -> bool:
        """Build a few requests and open a few connections that will soon be needed; True when there are more."""
        # What is prepared is always the head of what is upcoming, so the rest begins after it.
        upcoming = self._scheduler.upcoming(now_ns + BODIES_AHEAD_NS, skip=len(self._prepared))
        positions = list(islice(upcoming, BODIES_A_SLICE))
        for position in positions:
            if self.clock.now_ns() >= self._network.due_at_ns:
                return True  # what is due goes first
            home = self._routes.home(position)
            self._prepared[position] = _make_exchange(self._plan, self._bodies, position, home)
        is_closing = self.lines.close_idle()
        return self._dial_ahead(now_ns + LINES_AHEAD_NS) or is_closing or len(positions) == BODIES_A_SLICE

    def _dial_ahead(self, until_ns: int) -> bool:
        """Open a few of the connections that each target will need by then; True when there are more."""
        if self._routes.targets == 1:
            return self.lines.dial_ahead(self._scheduler.look_ahead(until_ns))
        wanted = Counter(self._routes.find(position) for position in self._scheduler.foresee(until_ns))
        more = [self.lines.dial_ahead(count, target) for target, count in wanted.items() if target != NULL]
        return any(more)

    def opened(self, connection: Connection) -> None:
        """Use a connection for the request that waits for it, or keep it for the next one."""
        exchange = connection.exchange
        if exchange is None:
            self.lines.keep(connection)
        else:
            if exchange.stale_ns == NULL:
                exchange.connected_ns = self.now_ns()
            self._send(exchange, connection)

    def failed(self, connection: Connection, error: OSError) -> None:
        """End the request whose connection could not be made."""
        self.lines.lose(connection)
        exchange = connection.exchange
        if exchange is not None:
            exchange.connection = None
            self._ledger.end(exchange, *translate_error(error), self.now_ns())

    def written(self, connection: Connection) -> None:
        """Stamp the last byte of a request that did not fit into the socket at once."""
        exchange = connection.exchange
        if exchange is not None and exchange.written_ns == NULL:
            exchange.written_ns = self.now_ns()

    def retry(self, exchange: Exchange) -> bool:
        """Send a request once more that a stale connection has lost; False where that is not to be."""
        is_stale = exchange.reused == 1 and exchange.stale_ns == NULL
        if not (self.retries_stale and is_stale) or self._scheduler.is_stopped or exchange.connection is None:
            return False
        exchange.stale_ns = self.now_ns()
        self.lines.release(exchange.connection, reusable=False)
        exchange.connection = None
        self._dial(exchange, exchange.stale_ns)
        return True

    def _begin(self, position: int, due_ns: int, target: int) -> None:
        begun_ns = self.now_ns()
        exchange = self._prepared.pop(position, None)
        if exchange is None or exchange.target != target:
            exchange = _make_exchange(self._plan, self._bodies, position, target)
        exchange.due_ns, exchange.begun_ns = due_ns, begun_ns
        self.begun += 1
        self.worst_late_ns = max(self.worst_late_ns, begun_ns - due_ns)
        self._ledger.enter(exchange)
        connection = self.lines.take(begun_ns + self.epoch_ns, target)
        if connection is not None:
            self._send(exchange, connection)
        else:
            self._dial(exchange, begun_ns)

    def _dial(self, exchange: Exchange, at_ns: int) -> None:
        try:
            connection = self.lines.dial(exchange.target)
        except OSError as error:
            outcome, reason = translate_error(error)
            self._ledger.end(exchange, outcome if outcome is not Outcome.reset else Outcome.refused, reason, at_ns)
        else:
            connection.exchange, exchange.connection = exchange, connection

    def _send(self, exchange: Exchange, connection: Connection) -> None:
        connection.exchange, exchange.connection = exchange, connection
        is_first, parts = exchange.stale_ns == NULL, exchange.parts
        if is_first:
            exchange.reused = int(connection.requests > 0)
        connection.requests += 1
        if not (is_first and exchange.reused and self.retries_stale):
            exchange.parts = []
        if is_first:
            exchange.sent_ns = self.now_ns()
        else:
            exchange.resent_ns = self.now_ns()
        if self._network.send(connection, parts) and exchange.written_ns == NULL:
            exchange.written_ns = self.now_ns()


def _make_exchange(plan: Plan, bodies: BodyBuilder, position: int, target: int) -> Exchange:
    row = plan.row[position]
    keep_text = bodies.answers.is_quoted(row)
    return Exchange(position, plan.request[position], bodies.prepare(row, target), target, keep_text=keep_text)

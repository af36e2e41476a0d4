# Who is in flight, and the one place where a request ends.
#
# Law: every request that the scheduler releases is entered once and ended once, and ends as one row.
# Ending decides what becomes of the connection, tells the scheduler, and writes; nothing else does any of
# the three. Planned = the sum of outcomes follows from that, and from `close`, which gives a row to every
# request that was never released.

"""Ledger: the requests in flight of one worker, their deadlines, and their ends."""

from __future__ import annotations

import heapq
from collections import Counter

from loadshape.log import Outcome
from loadshape.plan import NULL, Plan
from loadshape.replayer.exchange import Exchange, Place, make_row, make_unsent_row
from loadshape.replayer.limits import EXPLAINED, Limits
from loadshape.replayer.lines import Lines
from loadshape.replayer.recorder import RowWriter
from loadshape.replayer.scheduler import NEVER, Scheduler
from loadshape.target import Secret


class Ledger:
    """Enters, watches and ends the requests of one plan. All times are ns since the epoch."""

    def __init__(
        self,
        plan: Plan,
        scheduler: Scheduler,
        limits: Limits,
        rows: RowWriter,
        lines: Lines,
        worker: int = 0,
        key: Secret | None = None,
    ) -> None:
        self.lines = lines
        self.counts: Counter[Outcome] = Counter()
        self._plan = plan
        self._scheduler = scheduler
        self._limits = limits
        self._rows = rows
        self._worker = worker
        self._key = key
        self._in_flight: dict[int, Exchange] = {}
        self._ended = bytearray(len(plan))
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._in_flight)

    def enter(self, exchange: Exchange) -> None:
        """Take in a request that has just begun."""
        self._in_flight[exchange.position] = exchange
        self.watch(exchange, exchange.begun_ns)

    def watch(self, exchange: Exchange, now_ns: int) -> None:
        """Look at a request again when its deadline may have passed, not earlier than needed."""
        # The next state may have a nearer deadline than this one, but none before the shortest limit from now.
        deadline_ns, _ = self._limits.find_deadline(exchange, self._plan)
        deadline_ns = min(deadline_ns, now_ns + self._limits.shortest_ns)
        if deadline_ns < NEVER:
            heapq.heappush(self._deadlines, (deadline_ns, exchange.position))

    def has_had_enough(self, exchange: Exchange) -> bool:
        """Return whether the plan makes the client leave after the tokens that have come."""
        enough = self._plan.abort_tokens[exchange.position]
        return enough != NULL and exchange.tokens >= enough

    def end(self, exchange: Exchange, outcome: Outcome, error: str | None, done_ns: int) -> None:
        """End a request: its connection, its successor, its row."""
        position = exchange.position
        if self._in_flight.pop(position, None) is None:
            return
        connection = exchange.connection
        if connection is not None:
            response = exchange.response
            self.lines.release(connection, reusable=response.complete and response.reusable and not connection.outgoing)
        if error is not None and self._key is not None:
            error = self._key.conceal(error)
        self._scheduler.finish(position, done_ns, succeeded=outcome is Outcome.ok)
        self._write(position, outcome, make_row(exchange, self._place(position), outcome, done_ns, error))
        exchange.connection = None

    def next_deadline_ns(self) -> int:
        """Return when `expire` may have something to do, NEVER if nothing is in flight."""
        return self._deadlines[0][0] if self._deadlines else NEVER

    def expire(self, now_ns: int) -> None:
        """End every request that has passed one of its limits."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, position = heapq.heappop(self._deadlines)
            exchange = self._in_flight.get(position)
            if exchange is None:
                continue
            deadline_ns, outcome = self._limits.find_deadline(exchange, self._plan)
            if deadline_ns <= now_ns:
                self._time_out(exchange, outcome, now_ns)
            else:
                self.watch(exchange, now_ns)

    def _time_out(self, exchange: Exchange, outcome: Outcome, now_ns: int) -> None:
        response = exchange.response
        if response.is_done and outcome is Outcome.timeout_idle:
            # Everything was said, only the end of the body is missing: that is no failure.
            response.end_of_stream()
            self.end(exchange, Outcome[response.outcome or "ok"], response.error, exchange.last_read_ns)
        else:
            self.end(exchange, outcome, EXPLAINED[outcome], now_ns)

    def cut(self, reason: str, now_ns: int) -> None:
        """End everything in flight as cancelled."""
        for exchange in list(self._in_flight.values()):
            self.end(exchange, Outcome.cancelled, reason, now_ns)

    def close(self, reason: str) -> None:
        """Give a row to every request that was never released."""
        for position in range(len(self._plan)):
            if not self._ended[position]:
                due_ns, request = self._plan.due_ns[position], self._plan.request[position]
                row = make_unsent_row(request, self._place(position), due_ns, Outcome.not_reached, reason)
                self._write(position, Outcome.not_reached, row)

    def _place(self, position: int) -> Place:
        return Place(self._plan.session[position], self._plan.turn[position], 0, self._worker)

    def _write(self, position: int, outcome: Outcome, row: tuple[tuple[int, ...], tuple[str | None, ...]]) -> None:
        self._ended[position] = 1
        self.counts[outcome] += 1
        self._rows.append_with_texts(*row)

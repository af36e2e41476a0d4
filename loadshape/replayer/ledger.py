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
from collections.abc import Sequence

from loadshape.histogram import Histogram
from loadshape.log import Outcome
from loadshape.plan import NULL, Plan
from loadshape.replayer.answers import Answers
from loadshape.replayer.breaker import Breaker
from loadshape.replayer.exchange import Exchange, Place, make_row, make_unsent_row
from loadshape.replayer.limits import EXPLAINED, Limits
from loadshape.replayer.lines import Lines
from loadshape.replayer.path import measure_path
from loadshape.replayer.recorder import RowWriter
from loadshape.replayer.scheduler import NEVER, Scheduler
from loadshape.secret import Secret

UNANSWERED = (Outcome.refused, Outcome.reset, Outcome.timeout_connect)
AFTER_STALE = "; its first connection was stale"
LOST_TARGET = "its target was lost"


class Ledger:
    """Enters, watches and ends the requests of one plan. All times are ns since the epoch."""

    def __init__(
        self,
        plan: Plan,
        scheduler: Scheduler,
        limits: Limits,
        rows: RowWriter,
        lines: Lines,
        seat: tuple[int, int] = (0, 0),
        keys: Sequence[Secret | None] = (),
    ) -> None:
        self.plan = plan
        self.limits = limits
        self.lines = lines
        self.counts: Counter[Outcome] = Counter()
        self.lateness = Histogram()
        self.breaker: Breaker | None = None
        self.answers: Answers | None = None  # None where no turn quotes another
        self.lingering = 0  # of those in flight, how many have said everything
        self.ends_early = any(tokens != NULL for tokens in plan.abort_tokens)
        self._scheduler = scheduler
        self._rows = rows
        self._seat = seat  # the number of this worker, and of its node
        self._keys = [key for key in keys if key is not None]
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
        deadline_ns, _ = self.limits.find_deadline(exchange, self.plan)
        deadline_ns = min(deadline_ns, now_ns + self.limits.shortest_ns)
        if deadline_ns < NEVER:
            heapq.heappush(self._deadlines, (deadline_ns, exchange.position))

    def go_on(self, exchange: Exchange, said_ns: int, *, succeeded: bool) -> None:
        """Let the session go on, or the slot: everything was said. A turn comes only if it has all that it quotes."""
        if exchange.said_ns != NULL:
            return
        exchange.said_ns = said_ns
        self.lingering += 1
        if self.answers is not None:
            text = exchange.response.text if succeeded else None
            succeeded = self.answers.hear(self.plan, exchange.position, text)
        self._scheduler.finish(exchange.position, said_ns, succeeded=succeeded)

    def end(self, exchange: Exchange, outcome: Outcome, error: str | None, done_ns: int) -> None:
        """End a request: its connection, its successor, its row."""
        position = exchange.position
        if self._in_flight.pop(position, None) is None:
            return
        connection = exchange.connection
        if connection is not None:
            response = exchange.response
            exchange.rtt_ns, exchange.retransmits = measure_path(connection)
            self.lines.release(connection, reusable=response.complete and response.reusable and not connection.outgoing)
        if exchange.reads or outcome in UNANSWERED:
            self.lines.routes.hear(exchange.target, done_ns, answered=exchange.reads > 0)
        self.lateness.add(exchange.begun_ns - exchange.due_ns)
        if self.breaker is not None:
            self.breaker.note(outcome, done_ns)
        self.go_on(exchange, done_ns, succeeded=outcome is Outcome.ok)
        if error is not None and exchange.stale_ns != NULL:
            error += AFTER_STALE
        self.lingering, done_ns = self.lingering - 1, exchange.said_ns  # the end of the body is the connection's affair
        place = _find_place(self.plan, position, exchange.target, self._seat)
        numbers, texts = make_row(exchange, place, outcome, done_ns, error)
        for key in self._keys:  # a server may repeat what it was told, anywhere
            texts = tuple(text and key.conceal(text) for text in texts)
        self._write(position, outcome, (numbers, texts))
        exchange.connection = None

    def skip(self, position: int, due_ns: int, now_ns: int) -> None:
        """Give its row to a request that fell due when its target was lost, and move on."""
        if self.answers is not None:
            self.answers.hear(self.plan, position, None)
        self._scheduler.finish(position, now_ns, succeeded=False)
        self._leave_out(position, due_ns, LOST_TARGET)

    def next_deadline_ns(self) -> int:
        """Return when `expire` may have something to do, NEVER if nothing is in flight."""
        return self._deadlines[0][0] if self._deadlines else NEVER

    def expire(self, now_ns: int, by_ns: int | None = None) -> None:
        """End every request that had passed one of its limits by *by_ns*, or by now."""
        by_ns = now_ns if by_ns is None else by_ns
        while self._deadlines and self._deadlines[0][0] <= by_ns:
            _, position = heapq.heappop(self._deadlines)
            exchange = self._in_flight.get(position)
            if exchange is None:
                continue
            deadline_ns, outcome = self.limits.find_deadline(exchange, self.plan)
            if deadline_ns <= by_ns:
                self.give_up(exchange, outcome, EXPLAINED[outcome], now_ns)
            else:
                self.watch(exchange, by_ns)

    def give_up(self, exchange: Exchange, outcome: Outcome, reason: str, now_ns: int) -> None:
        """End a request that will not be waited for any longer; what the server has said outranks *outcome*."""
        response = exchange.response
        if response.is_done or response.outcome is not None:
            # Only the end of the body is missing: after [DONE] that is no failure, and an error has been told.
            response.end_of_stream()
            self.end(exchange, Outcome[response.outcome or "ok"], response.error, now_ns)
        else:
            self.end(exchange, outcome, reason, now_ns)

    def cut(self, reason: str, now_ns: int) -> None:
        """Give up everything in flight."""
        for exchange in list(self._in_flight.values()):
            self.give_up(exchange, Outcome.cancelled, reason, now_ns)

    def close(self, reason: str) -> None:
        """Give a row to every request that was never released."""
        for position in range(len(self.plan)):
            if not self._ended[position]:
                self._leave_out(position, self.plan.due_ns[position], reason)

    def _leave_out(self, position: int, due_ns: int, reason: str) -> None:
        place = _find_place(self.plan, position, self.lines.routes.home(position), self._seat)
        row = make_unsent_row(self.plan.request[position], place, due_ns, Outcome.not_reached, reason)
        self._write(position, Outcome.not_reached, row)

    def _write(self, position: int, outcome: Outcome, row: tuple[tuple[int, ...], tuple[str | None, ...]]) -> None:
        self._ended[position] = 1
        self.counts[outcome] += 1
        self._rows.append_with_texts(*row)


def _find_place(plan: Plan, position: int, target: int, seat: tuple[int, int]) -> Place:
    return Place(plan.session[position], plan.turn[position], target, *seat)

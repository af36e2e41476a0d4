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
from loadshape.target import Secret

UNANSWERED = (Outcome.refused, Outcome.reset, Outcome.timeout_connect)
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
        worker: int = 0,
        keys: Sequence[Secret | None] = (),
    ) -> None:
        self.lines = lines
        self.counts: Counter[Outcome] = Counter()
        self.lateness = Histogram()
        self.breaker: Breaker | None = None
        self.answers: Answers | None = None  # None where no turn quotes another
        self.lingering = 0  # of those in flight, how many have said everything
        self.ends_early = any(tokens != NULL for tokens in plan.abort_tokens)
        self._plan = plan
        self._scheduler = scheduler
        self._limits = limits
        self._rows = rows
        self._worker = worker
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
        deadline_ns, _ = self._limits.find_deadline(exchange, self._plan)
        deadline_ns = min(deadline_ns, now_ns + self._limits.shortest_ns)
        if deadline_ns < NEVER:
            heapq.heappush(self._deadlines, (deadline_ns, exchange.position))

    def has_had_enough(self, exchange: Exchange) -> bool:
        """Return whether the plan makes the client leave after the tokens that have come."""
        enough = self._plan.abort_tokens[exchange.position]
        return enough != NULL and exchange.tokens >= enough

    def go_on(self, exchange: Exchange, said_ns: int) -> None:
        """Let the session go on, or the slot: everything was said, and only the end of the body is missing."""
        if exchange.said_ns == NULL:
            response = exchange.response
            self._pass_on(exchange, said_ns, succeeded=response.outcome is None and response.deltas > 0)
            exchange.said_ns = said_ns
            self.lingering += 1
        self.watch(exchange, exchange.last_read_ns)

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
        if exchange.said_ns == NULL:
            self._pass_on(exchange, done_ns, succeeded=outcome is Outcome.ok)
        else:
            self.lingering -= 1
        place = _find_place(self._plan, position, exchange.target, self._worker)
        numbers, texts = make_row(exchange, place, outcome, done_ns, error)
        for key in self._keys:  # a server may repeat what it was told, anywhere
            texts = tuple(text and key.conceal(text) for text in texts)
        self._write(position, outcome, (numbers, texts))
        exchange.connection = None

    def _pass_on(self, exchange: Exchange, ended_ns: int, *, succeeded: bool) -> None:
        """Tell the scheduler that a turn is over; the next one comes only if it has every answer that it quotes."""
        position = exchange.position
        if self.answers is not None:
            succeeded = self.answers.hear(self._plan, position, exchange.response.text if succeeded else None)
        self._scheduler.finish(position, ended_ns, succeeded=succeeded)

    def skip(self, position: int, due_ns: int, now_ns: int) -> None:
        """Give its row to a request that fell due when its target was lost, and move on."""
        if self.answers is not None:
            self.answers.hear(self._plan, position, None)
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
            deadline_ns, outcome = self._limits.find_deadline(exchange, self._plan)
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
            done_ns = exchange.last_read_ns if response.is_done else now_ns
            self.end(exchange, Outcome[response.outcome or "ok"], response.error, done_ns)
        else:
            self.end(exchange, outcome, reason, now_ns)

    def cut(self, reason: str, now_ns: int) -> None:
        """Give up everything in flight."""
        for exchange in list(self._in_flight.values()):
            self.give_up(exchange, Outcome.cancelled, reason, now_ns)

    def close(self, reason: str) -> None:
        """Give a row to every request that was never released."""
        for position in range(len(self._plan)):
            if not self._ended[position]:
                self._leave_out(position, self._plan.due_ns[position], reason)

    def _leave_out(self, position: int, due_ns: int, reason: str) -> None:
        place = _find_place(self._plan, position, self.lines.routes.home(position), self._worker)
        row = make_unsent_row(self._plan.request[position], place, due_ns, Outcome.not_reached, reason)
        self._write(position, Outcome.not_reached, row)

    def _write(self, position: int, outcome: Outcome, row: tuple[tuple[int, ...], tuple[str | None, ...]]) -> None:
        self._ended[position] = 1
        self.counts[outcome] += 1
        self._rows.append_with_texts(*row)


def _find_place(plan: Plan, position: int, target: int, worker: int) -> Place:
    return Place(plan.session[position], plan.turn[position], target, worker)

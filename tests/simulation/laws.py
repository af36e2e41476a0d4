# What must hold at every step of a run, and of its rows at the end.
#
# The laws look at the player through its public names, at the network, which knows what it did, and at the rows; none
# of them repeats an algorithm of the replayer. Each raises Violation with the figures that contradict each other.

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from loadshape.log import Outcome
from loadshape.plan import NULL, Plan
from loadshape.replayer.job import Settings
from loadshape.replayer.player import STALL_NS, Player
from loadshape.replayer.scheduler import NEVER
from loadshape.units import to_ns

from .network import MS, Served, SimNetwork, Violation
from .store import Row, Store

SLACK_NS = 12 * MS  # of the pacer's lateness and of the work of a busy moment
IDLE_NS = 4_000 * MS  # a connection is not used again after it, since the server closes it at 5 s
TIMEOUTS = {"timeout_connect", "timeout_first", "timeout_idle", "timeout_total"}
ORDER = ("due", "begun", "connected", "sent", "first_byte", "head", "first_token", "first_content", "last_token")
ORDER += ("done",)


@dataclass
class History:
    """What the world did to the player; instants on the clock."""

    epoch_ns: int = NEVER
    stalls: list[tuple[int, int]] = field(default_factory=list)  # (from, until)
    cuts: list[tuple[int, int]] = field(default_factory=list)  # (from when on what is in flight may be cut, ordered)
    stopped_at_begun: int | None = None  # how many had begun when sending had to stop
    is_killed: bool = False

    def excuse_ns(self, since_ns: int) -> int:
        """Return how long the process was away since *since_ns*, and a little more."""
        return SLACK_NS + sum(until - max(start, since_ns) for start, until in self.stalls if until > since_ns)


@dataclass
class Laws:
    """The laws of one run."""

    plan: Plan
    settings: Settings
    player: Player
    network: SimNetwork
    store: Store
    history: History
    slots: int | None
    cap: int | None
    due_since_ns: int = NEVER  # since when the scheduler has had something to release

    def check_books(self) -> None:
        """Planned = ended + in flight + not released; connections are counted; no slot and no cap is exceeded."""
        player, rows = self.player, self.store.begun_rows
        in_flight, begun = len(player.ledger), player.sender.begun
        unsaid = in_flight - player.ledger.lingering  # an answer that has said everything holds up nobody
        if begun != in_flight + rows:
            raise Violation(f"{begun} were begun, {in_flight} are in flight and {rows} have a row")
        if player.scheduler.in_flight != unsaid or player.ledger.counts.total() != len(self.store.requests):
            raise Violation(f"{unsaid} in flight, {rows} rows; {player.scheduler.in_flight}, {player.ledger.counts}")
        if unsaid > min(self.slots or NEVER, self.cap or NEVER):
            raise Violation(f"{unsaid} in flight with {self.slots} slots and a cap of {self.cap}")
        if player.sender.lines.open != len(self.network.links):
            raise Violation(f"{player.sender.lines.open} connections are counted, {len(self.network.links)} exist")
        if self.history.stopped_at_begun not in (None, begun):
            raise Violation(f"{begun - self.history.stopped_at_begun} requests were begun after the stop")

    def watch_release(self, now_ns: int) -> None:
        """Note since when something could be begun."""
        if self.player.scheduler.next_due_ns() + self.history.epoch_ns > now_ns:
            self.due_since_ns = NEVER
        elif self.due_since_ns == NEVER:
            self.due_since_ns = now_ns

    def check_pace(self, now_ns: int) -> None:
        """What is due is begun, what was read is decoded, and what was to be cut is cut."""
        since_ns = self.due_since_ns
        if now_ns > since_ns + SLACK_NS and now_ns > since_ns + self.history.excuse_ns(since_ns):
            raise Violation(f"a request has been due for {(now_ns - since_ns) / 1e6:.3f} ms and nothing happens")
        read_ns = self.network.inbox[0][2] if self.network.inbox else NEVER
        if now_ns > read_ns + SLACK_NS and now_ns > read_ns + self.history.excuse_ns(read_ns):
            raise Violation(f"a read waits to be decoded for {(now_ns - read_ns) / 1e6:.3f} ms")
        if len(self.player.ledger) and self.history.cuts:
            cut_ns, ordered_ns = min(self.history.cuts)
            if now_ns > cut_ns + self.history.excuse_ns(ordered_ns) + STALL_NS:
                late_ms = (now_ns - cut_ns) / 1e6
                raise Violation(f"{len(self.player.ledger)} are in flight {late_ms:.3f} ms after the cut")

    def check_rows(self) -> None:
        """At the end: one row a request, whose every stamp and outcome is explained by what happened."""
        numbers = [row.request for row in self.store.requests]
        if sorted(numbers) != sorted(self.plan.request):
            raise Violation(f"{len(self.plan)} requests, but rows {sorted(numbers)}")
        if self.network.links or self.network.closed != self.network.opened:
            raise Violation(f"{self.network.opened} connections were opened, {self.network.closed} closed")
        if self.network.is_misled:
            return  # its stamps are wrong, and the log says so
        positions = {request: position for position, request in enumerate(self.plan.request)}
        for row in self.store.requests:
            position, served = positions[row.request], self.network.served.get(row.request)
            try:
                self._check_stamps(row, position, served)
                self._check_place(row, position, served)
                self._check_reads(row, served)
                self._explain(row, position, served)
            except Violation as found:
                raise Violation(f"request {row.request} ended {name(row)} ({row.error}): {found}") from None
        self._check_sequence(positions)
        resent = {row.request for row in self.store.requests if row.resent_ns != NULL}
        if resent != set(self.network.stale) or (resent and not self.settings.retry_stale):
            raise Violation(f"{sorted(self.network.stale)} were sent again, the rows say {sorted(resent)}")

    def _check_stamps(self, row: Row, position: int, served: Served | None) -> None:
        known = row.list_stamps(*ORDER)
        for (earlier, before), (later, after) in pairwise(known):
            # What a server said to an idle connection while we slept comes before a request that we then send on it.
            is_stray = served is not None and served.answer.kind == "stray" and earlier == "sent" and later != "done"
            if before > after and not is_stray:
                raise Violation(f"{earlier}_ns {before} is after {later}_ns {after}")
        if row.resent_ns != NULL and not (row.reused == 1 and row.sent_ns <= row.resent_ns <= row.done_ns):
            raise Violation(f"it was sent at {row.sent_ns}, again at {row.resent_ns}, and ended at {row.done_ns}")
        if row.resent_ns != NULL and row.first_byte_ns != NULL and row.first_byte_ns < row.resent_ns:
            raise Violation("it was answered before it was sent again")
        planned_ns = self.plan.due_ns[position]
        if planned_ns != NULL and row.due_ns != planned_ns:
            raise Violation(f"its due instant was {planned_ns}, the row says {row.due_ns}")
        if row.sent_ns != NULL and row.written_ns != NULL and row.written_ns < row.sent_ns:
            raise Violation("it was written before it was sent")

    def _check_place(self, row: Row, position: int, served: Served | None) -> None:
        """It went to its own target unless that was lost, and was meant to be sent at all."""
        settings, routes = self.settings, self.player.sender.lines.routes
        if served is not None and served.target != row.target:
            raise Violation(f"target {served.target} served it, the row says {row.target}")
        if routes.home(position) not in (row.target, *routes.lost):
            raise Violation(f"it belongs to target {routes.home(position)}, and went to {row.target}")
        if served is not None and served.idle_ns > IDLE_NS + self.history.excuse_ns(served.sent_ns - served.idle_ns):
            raise Violation(f"it was sent on a connection that had been idle for {served.idle_ns / 1e9:.3f} s")
        if row.begun_ns != NULL and self.plan.row[position] >= (settings.requests or NEVER):
            raise Violation(f"only {settings.requests} requests were to be sent")
        if row.begun_ns != NULL and row.due_ns >= to_ns(settings.duration_s or NEVER / 1e9):
            raise Violation(f"it became due at {row.due_ns}, after the end")

    def _check_reads(self, row: Row, served: Served | None) -> None:
        reads = self.store.reads.get(row.request, [])
        found = [(read.at_ns, read.seen_ns, read.bytes) for read in reads]
        epoch_ns = self.history.epoch_ns
        given = [(at - epoch_ns, seen - epoch_ns, size) for at, seen, size in served.reads] if served else []
        if found != given[: len(found)] or (row.reads, row.bytes_in) != (len(found), sum(size for _, _, size in found)):
            raise Violation(f"{row.reads} reads of {row.bytes_in} bytes; rows {found}; handed over {given}")
        if any(at > seen for at, seen, _ in found):
            raise Violation("a read was seen before it came")

    def _explain(self, row: Row, position: int, served: Served | None) -> None:
        """Raise unless the outcome follows from what the far end did, from a limit, or from a cut."""
        outcome = name(row)
        if row.begun_ns == NULL:
            if outcome != "not_reached":
                raise Violation("it was never begun")
            return
        stale, served = (served, None) if self._is_lost(row, served) else (None, served)
        if outcome in ("not_sent", "refused") and served is None:
            return
        if outcome == "timeout_connect" and served is None and str(row.error).startswith("Connection timed out"):
            return
        if stale is not None and outcome == "timeout_connect":
            self._explain_redial(row, stale)
            return
        if outcome in TIMEOUTS or outcome == "cancelled":
            self._explain_patience(row, position, served)
            return
        if served is None:
            raise Violation("it was never sent")
        size = row.bytes_in
        settled = served.answer.judge(size, served.end if row.reads == len(served.reads) else None)
        if settled is None and served.answer.is_settled(size):
            settled = served.answer.judge(size, "fin")  # what is open is the framing, and somebody's patience ended
        if settled != outcome:
            raise Violation(f"{size} bytes of {served.answer.kind} and {served.end} mean {settled}")
        enough = self.plan.abort_tokens[position]
        before = size - self.store.reads[row.request][-1].bytes if row.reads else 0
        had_enough = 0 <= enough <= served.answer.count_tokens(before) and not served.answer.is_settled(before)
        if had_enough and served.end is None:
            raise Violation(f"the client was to leave after {enough} tokens")

    def _is_lost(self, row: Row, served: Served | None) -> bool:
        """Return whether a stale connection lost it, and no other one was open in time; raise if none was tried."""
        is_stale = served is not None and served.end is not None and not served.reads and row.reused == 1
        if not (is_stale and self.settings.retry_stale) or row.resent_ns != NULL:
            return False
        is_over = self.history.cuts or self.player.stopped or self.settings.duration_s is not None
        if name(row) == "reset" and not is_over:
            raise Violation("a stale connection lost it, and it was not sent again")
        return name(row) != "reset"

    def _explain_redial(self, row: Row, stale: Served) -> None:
        """Raise unless the second connection, too, had its time."""
        up_ns = stale.ended_ns + to_ns(self.settings.timeout_connect_s or NEVER / 1e9)
        late_ns = row.done_ns + self.history.epoch_ns - up_ns
        if not 0 <= late_ns <= self.history.excuse_ns(stale.ended_ns) + STALL_NS:
            raise Violation(f"it ended {late_ns / 1e6:.3f} ms after the time of its second connection was up")

    def _explain_patience(self, row: Row, position: int, served: Served | None) -> None:
        """Raise unless the time was up, and nothing that had come before would have settled the outcome."""
        up_ns = self._find_instant(row, position, served)
        if up_ns == 0:
            return
        done_ns = row.done_ns + self.history.epoch_ns
        if done_ns < up_ns:
            raise Violation(f"it ended {(up_ns - done_ns) / 1e6:.6f} ms before its time was up")
        if name(row) != "cancelled" and done_ns > up_ns + self.history.excuse_ns(up_ns) + STALL_NS:
            raise Violation(f"it ended {(done_ns - up_ns) / 1e6:.3f} ms after its time was up")
        if served is None:
            return
        margin_ns = 0 if self.network.receive == "kernel" else STALL_NS
        size, end = served.arrived(up_ns - margin_ns)
        settled = served.answer.judge(size, end)
        if settled is None and served.answer.is_settled(size):
            settled = served.answer.judge(size, "fin")
        if name(row) == "timeout_idle" and size > row.bytes_in:
            settled = "a stream that goes on"
        if name(row) == "timeout_first" and served.answer.count_tokens(size):
            settled = "a first token"
        if settled is not None:
            raise Violation(f"{size} bytes and {end} had come {(done_ns - up_ns) / 1e6:.3f} ms before: {settled}")

    def _find_instant(self, row: Row, position: int, served: Served | None) -> int:
        """Return from when on *row* may have ended so, on the clock; 0 if it needs no time."""
        settings, epoch_ns, outcome = self.settings, self.history.epoch_ns, name(row)
        if outcome == "cancelled":
            enough = self.plan.abort_tokens[position]
            if str(row.error).startswith("planned: the client had enough tokens"):
                assert served is not None
                if served.answer.count_tokens(row.bytes_in) < enough:
                    raise Violation(f"{enough} tokens were not there")
                return 0
            if "planned" in str(row.error):
                return row.due_ns + self.plan.abort_ns[position] + epoch_ns
            return min(self.history.cuts, default=(NEVER, 0))[0]
        if outcome == "timeout_total":
            return row.begun_ns + to_ns(settings.timeout_total_s or NEVER / 1e9) + epoch_ns
        if outcome == "timeout_connect":
            if row.sent_ns != NULL:
                raise Violation("it was sent")
            return row.begun_ns + to_ns(settings.timeout_connect_s or NEVER / 1e9) + epoch_ns
        tokens = served.answer.count_tokens(row.bytes_in) if served else 0
        if outcome == "timeout_first":
            if tokens:
                raise Violation(f"{tokens} tokens had come")
            asked_ns = max(row.sent_ns, row.resent_ns)
            return asked_ns + to_ns(settings.timeout_first_s or NEVER / 1e9) + epoch_ns
        if not tokens or served is None:
            raise Violation("no token had come")
        return self.store.reads[row.request][-1].at_ns + to_ns(settings.timeout_idle_s or NEVER / 1e9) + epoch_ns

    def _check_sequence(self, positions: dict[int, int]) -> None:
        """Turns follow their predecessor, and sessions the slots that became free, each after its think time."""
        plan, rows = self.plan, {positions[row.request]: row for row in self.store.requests}
        freed: list[int | None] = [0] * (self.slots or 0)
        over = {row.request: self._find_end(row) for row in self.store.requests}
        for row in sorted(self.store.requests, key=lambda row: over[row.request][1]):
            position, ended_ns = positions[row.request], over[row.request][0]
            successor = plan.successor[position]
            if row.begun_ns == NULL:
                if row.due_ns != NULL:
                    freed.append(None)  # its target was lost when it fell due, and its slot went on then
                continue
            follows = successor != NULL and plan.due_ns[successor] == NULL
            if not follows or name(row) != "ok":
                freed.append(ended_ns)
            if follows and rows[successor].begun_ns != NULL:
                self._check_due(rows[successor], ended_ns + plan.think_ns[successor], name(row) == "ok")
        reach = self.settings.requests or len(plan)
        sessions = [at for at in range(min(reach, len(plan))) if plan.turn[at] == 0 and plan.due_ns[at] == NULL]
        for at, free_ns in zip(sessions, freed, strict=False):
            is_limited = self.history.cuts or self.player.stopped or self.settings.duration_s is not None
            if rows[at].begun_ns == NULL and rows[at].due_ns == NULL and not is_limited:
                raise Violation(f"request {rows[at].request} was not begun, although a slot was free from {free_ns} on")
            if rows[at].begun_ns != NULL and free_ns is not None:
                self._check_due(rows[at], free_ns + plan.think_ns[at], True)

    def _find_end(self, row: Row) -> tuple[int, int]:
        """Return when a turn was over, with [DONE] or with the answer, and when that was noticed."""
        served, size = self.network.served.get(row.request), 0
        for at, read in enumerate(self.store.reads.get(row.request, ())):
            size += read.bytes
            if served is not None and size >= served.answer.done_at:
                if row.done_ns != max(read.at_ns, row.sent_ns):
                    raise Violation(f"request {row.request} ended at {row.done_ns}, and said [DONE] at {read.at_ns}")
                return row.done_ns, self.store.order["read", row.request, at]
        return row.done_ns, self.store.order["request", row.request, 0]

    def _check_due(self, row: Row, due_ns: int, is_reached: bool) -> None:
        if not is_reached or row.due_ns != due_ns:
            expected = due_ns if is_reached else "never"
            raise Violation(f"request {row.request} became due at {row.due_ns}, expected {expected}")


def name(row: Row) -> str:
    """Return the outcome of a row."""
    return Outcome(row.outcome).name

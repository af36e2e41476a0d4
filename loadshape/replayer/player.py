# The core of a worker, without a process around it: what to do when the time comes, and when bytes do.
#
# Law: the order of importance is send, read, decode, everything else. The player owns no loop, no pipe and
# no file; it is given a clock, a network, a pacer, and a way to be called again soon. So the same code runs
# in a worker process on real time, and in a test on virtual time.
#
#     pacer ----> fired ---> sender.wake: scheduler.release -> begin -> network.send
#     sockets --> ready ---> network.drain -> inbox -> decoder.decode_slice -> recorder
#     worker ---> work_ahead (requests and connections to come), stop, finish

"""Player: the requests of one plan, played over one network."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from loadshape.clock import Clock, MonotonicClock
from loadshape.log import Outcome
from loadshape.pacer import Pacer
from loadshape.plan import Plan
from loadshape.replayer.body import BodyBuilder
from loadshape.replayer.breaker import Breaker
from loadshape.replayer.connection import Network
from loadshape.replayer.decoder import Decoder
from loadshape.replayer.job import Progress, Settings
from loadshape.replayer.ledger import Ledger
from loadshape.replayer.limits import Limits
from loadshape.replayer.lines import Lines
from loadshape.replayer.recorder import RowWriter
from loadshape.replayer.routing import Routes
from loadshape.replayer.scheduler import NEVER, Scheduler
from loadshape.replayer.sender import Sender
from loadshape.units import to_ns

CUT = "cut at the end of the run"
STALL_NS = 20_000_000  # a deadline seen so late says that we were stopped or starved, not that the server was silent
SLICES_A_TURN = 4  # of the loop, which costs as much as decoding some reads
TURN_NS = 1_000_000  # of the loop, which reads for a network whose drain does not
UNREACHED = "its predecessor failed or said nothing to quote, or the run ended first"


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker gets of a run: its seat (its number, and that of its node), its part of the slots and of the cap,
    and where its requests go."""

    seat: tuple[int, int] = (0, 0)
    slots: int | None = None
    cap: int | None = None
    routes: Routes | None = None  # None: there is one target


class Player:
    """Plays one plan. All times are ns since the epoch, except where a name says otherwise."""

    def __init__(
        self,
        plan: Plan,
        network: Network,
        bodies: BodyBuilder,
        rows: tuple[RowWriter, RowWriter],
        settings: Settings,
        *,
        share: Share = Share(),
        clock: Clock | None = None,
    ) -> None:
        clock = clock or MonotonicClock()
        lines = Lines(network, clock, share.routes or Routes.to_one(len(plan)))
        self.network = network
        self.settings = settings
        self.stopped: str | None = None
        self.spin_ns = settings.spin_us * 1000
        self._end_ns = NEVER if settings.duration_s is None else to_ns(settings.duration_s)
        reach = None if settings.requests is None else bisect_left(plan.row, settings.requests)
        self.scheduler = Scheduler(plan, slots=share.slots, cap=share.cap, reach=reach, end_ns=self._end_ns)
        self.ledger = Ledger(plan, self.scheduler, Limits(settings), rows[0], lines, share.seat, bodies.secrets)
        self.sender = Sender(plan, self.scheduler, self.ledger, bodies, network, clock)
        self.sender.retries_stale = settings.retry_stale
        self.ledger.breaker = Breaker() if settings.breaker else None
        self.ledger.answers = bodies.answers if len(bodies.answers) else None
        self.decoder = Decoder(network, self.sender, self.ledger, rows[1])
        self._clock = clock
        self._cut_at_ns = NEVER
        self._heed_ns = NEVER  # what came by then is heard before limits count
        self._is_continuing = False
        self._is_over = False

    def attach(self, pacer: Pacer, defer: Callable[[Callable[[], None]], object], over: Callable[[], None]) -> None:
        """Give what calls back: the pacer, a way to be called again soon, and whom to tell that nothing is left."""
        self._pacer, self._defer, self._over = pacer, defer, over
        self.network.listen(self.sender, self.ready)

    def start(self, epoch_ns: int) -> None:
        """Set time zero (on the clock) and wait for the first due time."""
        self.sender.epoch_ns = epoch_ns
        self._arm()

    def stop(self, reason: str, grace_s: float) -> None:
        """Send nothing more, and cut what is in flight after the grace."""
        self.stopped = self.stopped or reason
        self.scheduler.stop()
        self.limit(grace_s)

    def limit(self, grace_s: float) -> None:
        """Cut what is in flight *grace_s* from now, if it was not to be cut before."""
        self._cut_at_ns = min(self._cut_at_ns, self.sender.now_ns() + to_ns(grace_s))
        self._arm()

    def check_end(self) -> None:
        """Start the grace of the settings once nothing more can become due by itself."""
        if self.settings.grace_s is not None and self._cut_at_ns == NEVER and self.scheduler.drained:
            self.limit(self.settings.grace_s)

    def fired(self) -> None:
        """Act on the pacer: read on until the very instant if asked to, then begin what is due."""
        due_at_ns = self.network.due_at_ns
        if due_at_ns - self._clock.now_ns() <= self.spin_ns:
            while self._clock.now_ns() < due_at_ns:
                self.network.drain()
        self.sender.wake()
        now_ns = self.sender.now_ns()
        self._expire(now_ns)
        if now_ns >= self._end_ns:
            self._end_ns = NEVER
            self.scheduler.stop()
            self.check_end()
        self.ready()

    def ready(self) -> None:
        """Read the sockets before each slice that is decoded, and come back for the rest."""
        if self._is_over:
            return
        for _ in range(SLICES_A_TURN):
            self.network.drain()
            if not self.decoder.decode_slice():
                break
        else:
            if not self._is_continuing:
                self._is_continuing = True
                self._defer(self._continue)
        self._arm()

    def work_ahead(self) -> None:
        """Prepare what will soon be due, a few at a time."""
        if not self._is_over and self.sender.work_ahead(self.sender.now_ns()):
            self._defer(self.work_ahead)

    def describe_progress(self) -> Progress:
        """Return the counts so far, and the worst lateness since this was asked last."""
        late_ns, self.sender.worst_late_ns = self.sender.worst_late_ns, 0
        ended = self.ledger.counts.total()
        return Progress(
            begun=self.sender.begun,
            ended=ended,
            failed=ended - self.ledger.counts[Outcome.ok],
            in_flight=len(self.ledger) - self.ledger.lingering,
            reads=self.decoder.reads,
            late_ns=late_ns,
            outcomes={outcome.name: count for outcome, count in self.ledger.counts.items()},
            ttft=self.decoder.ttft.counts,
            gaps=self.decoder.gaps.counts,
            lateness=self.ledger.lateness.counts,
        )

    def finish(self) -> int:
        """Give every request of the plan its row, close the network, and return when that was."""
        self._is_over = True
        now_ns = max(0, self.sender.now_ns())
        self.ledger.cut(self.stopped or CUT, now_ns)
        self.ledger.close(self.stopped or UNREACHED)
        self.network.shut()
        return now_ns

    def _expire(self, now_ns: int) -> None:
        """End what has passed its limit, or the run's, once everything that had come by then has been heard."""
        limit_ns = min(self.ledger.next_deadline_ns(), self._cut_at_ns)
        if now_ns < limit_ns:
            self._heed_ns = NEVER
            return
        if self._heed_ns == NEVER:
            turn_ns = TURN_NS if self.network.receive == "user" else 0
            self._heed_ns = now_ns + (STALL_NS if now_ns - limit_ns > STALL_NS else turn_ns)
        self.network.drain()
        heed_at_ns = self._heed_ns + self.sender.epoch_ns
        if now_ns < self._heed_ns or any(at_ns <= heed_at_ns for _, at_ns, _, _ in self.network.inbox):
            return  # ready() decodes it, and the pacer comes again
        now_ns = self.sender.now_ns()  # the drain may have sent what waited for a connection
        by_ns, self._heed_ns = self._heed_ns, NEVER
        self.ledger.expire(now_ns, by_ns)
        if by_ns >= self._cut_at_ns:
            self.scheduler.stop()
            self.ledger.cut(self.stopped or CUT, now_ns)

    def _continue(self) -> None:
        self._is_continuing = False
        self.ready()

    def _arm(self) -> None:
        self.sender.look_ahead()
        if len(self.ledger) == 0 and self.scheduler.next_due_ns() == NEVER:
            if not self._is_over:
                self._is_over = True
                self._over()
            return
        next_ns = self.scheduler.next_due_ns() - self.spin_ns
        deadline_ns = min(self.ledger.next_deadline_ns(), self._cut_at_ns)
        if self._heed_ns != NEVER:
            deadline_ns = max(deadline_ns, self._heed_ns)
        next_ns = min(next_ns, deadline_ns, self._end_ns)
        if next_ns < NEVER // 2:
            self._pacer.arm(next_ns + self.sender.epoch_ns)

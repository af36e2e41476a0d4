# One seed, one run: a player on virtual time, with everything around it simulated.
#
# Law: nothing here is real but the player. Time passes only because the player looks at the clock (work takes time), or
# because nothing is left to do until the next event; the loop runs what is ready in any order, as a real one may.
#
#     seed --> plan, settings, weather --> Player <-- SimPacer, ticks, orders, stalls
#                                            |    <-- SimNetwork (the far end of every connection)
#                                            +-----> Store (the log)
#
# Rerun a seed and see its events:  python -m tests.simulation.world SEED

"""A whole replay in virtual time from one seed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import heappop, heappush
from random import Random

from loadshape.clock import FakeClock
from loadshape.replayer import decoder
from loadshape.replayer.body import Prepared
from loadshape.replayer.player import Player
from loadshape.replayer.scheduler import NEVER

from .laws import History, Laws, name
from .network import MS, US, S, SimNetwork, Violation
from .scenario import draw_plan, draw_settings, draw_weather
from .store import Store

TICK_NS = 100 * MS
FLUSH_TICKS = 10
TURNS = 100_000  # of the loop: no run needs so many
PATIENCE_NS = 20 * S  # of the operator, who stops what does not end


class BusyClock:
    """A FakeClock that every look moves on, since code ran between two looks; and that stalls jump over."""

    def __init__(self, now_ns: int, step_ns: int, history: History) -> None:
        self._fake = FakeClock(now_ns)
        self._step_ns = step_ns
        self._history = history
        self._stalls: list[tuple[int, int]] = []

    def now_ns(self) -> int:
        now_ns = self._fake.advance(self._step_ns)
        return self._stall(now_ns) if self._stalls and now_ns >= self._stalls[0][0] else now_ns

    def plan_stall(self, at_ns: int, for_ns: int) -> None:
        """Have the process not run for *for_ns*, from *at_ns* on."""
        heappush(self._stalls, (at_ns, for_ns))

    def skip_to(self, at_ns: int) -> None:
        """Let time pass in which nobody looks."""
        now_ns = self._fake.now_ns()
        if at_ns > now_ns:
            self._fake.advance(at_ns - now_ns)

    def _stall(self, now_ns: int) -> int:
        _, for_ns = heappop(self._stalls)
        self._history.stalls.append((now_ns, now_ns + for_ns))
        return self._fake.advance(for_ns)


class Pause:
    """What the warm-up awaits: hands the seconds to whoever drives the coroutine."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Iterator[float]:
        yield self.seconds


class SimPacer:
    """Never early; late by what a kernel and a busy loop make of it."""

    name = "simulated"

    def __init__(self, world: World) -> None:
        self._world = world
        self._armed_ns = 0

    def arm(self, at_ns: int) -> None:
        if at_ns == self._armed_ns:
            return
        self._armed_ns = at_ns
        late_ns = self._world.random.randrange(60 * US if self._world.random.random() < 0.98 else 5 * MS)
        self._world.at(max(at_ns, self._world.clock.now_ns()) + late_ns, lambda: self._fire(at_ns), "pacer")

    def _fire(self, at_ns: int) -> None:
        if at_ns == self._armed_ns:  # else it was armed again
            self._armed_ns = 0
            self._world.player.fired()

    def close(self) -> None:
        self._armed_ns = 0


class Unquoted:
    """The answers of a trace in which no turn quotes another."""

    def __len__(self) -> int:
        return 0

    def is_quoted(self, row: int) -> bool:
        return False


class Bodies:
    """Requests that say no more than their number."""

    secrets = ()
    answers = Unquoted()

    def prepare(self, row: int, target: int = 0) -> Prepared:
        return Prepared([b"POST /v1/chat/completions HTTP/1.1\r\n\r\n", b"request %d" % (100 + row)], 48)


class World:
    """Everything of one run; `play` plays it to its end."""

    def __init__(self, seed: int, *, is_told: bool = False) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.history = History()
        self.clock = BusyClock(10**15, random.choice((300, 1_000, 4_000)), self.history)
        self.notes: list[str] | None = [] if is_told else None
        self.settings = draw_settings(random)
        plan, share = draw_plan(random)
        receive = "kernel" if random.random() < 0.8 else "user"
        self.network = SimNetwork(self, Random(seed + 1), draw_weather(random), receive=receive)
        self.store = Store(random, is_faulty=random.random() < 0.12)
        rows = (self.store, self.store)
        self.player = Player(plan, self.network, Bodies(), rows, self.settings, share=share, clock=self.clock)
        self.pacer = SimPacer(self)
        self.laws = Laws(
            plan, self.settings, self.player, self.network, self.store, self.history, share.slots, share.cap
        )
        self._events: list[tuple[int, int, Callable[[], None], str]] = []
        self._ready: list[tuple[Callable[[], None], str]] = []
        self._counted = 0
        self._ticks = 0
        self._next_tick_ns = 0
        self._is_over = False
        self._slice = random.choice((1, 5, decoder.SLICE))  # small, so that few streams are many

    def now_ns(self) -> int:
        return self.clock.now_ns()

    def at(self, at_ns: int, call: Callable[[], None], what: str) -> None:
        """Have *call* called at *at_ns* or later; in the past means as soon as possible."""
        self._counted += 1
        heappush(self._events, (at_ns, self._counted, call, what))

    def note(self, what: str) -> None:
        if self.notes is not None:
            self.notes.append(f"{(self.clock._fake.now_ns() - self.history.epoch_ns) / 1e6:12.3f} ms  {what}")

    def play(self) -> None:
        """Play the run to its end; raises Violation, or whatever escapes from the player."""
        usual, decoder.SLICE = decoder.SLICE, self._slice
        try:
            self._play()
        finally:
            decoder.SLICE = usual

    def _play(self) -> None:
        self.player.attach(self.pacer, lambda call: self.at(0, call, "deferred"), self._end)
        self._warm_up(self.player.sender.warm_up(Pause))
        for _ in range(TURNS):
            if self._is_over:
                break
            self._turn()
        else:
            raise Violation(f"no end after {TURNS} turns")
        if self.history.is_killed:
            return
        self.player.finish()
        self._turn_after_end()
        if self.settings.duration_s is not None:
            self._note_end()
        self.laws.check_rows()

    def _turn(self) -> None:
        """Run one thing that is ready, or let time pass until something is."""
        now_ns = self.clock.now_ns()
        events, ready = self._events, self._ready
        while events and events[0][0] <= now_ns:
            _, _, call, what = heappop(events)
            ready.append((call, what))
        if not ready:
            if not events:
                raise Violation("nothing will ever happen, and the run is not over")
            self.clock.skip_to(events[0][0])
            return
        call, what = ready.pop(int(self.random.random() * len(ready)))
        self.note(what)
        call()
        self.laws.check_books()
        self.laws.watch_release(self.clock.now_ns())

    def _turn_after_end(self) -> None:
        """Let everything come that was still on its way: none of it may do harm."""
        self._events.extend((0, 0, call, what) for call, what in self._ready)
        for _, _, call, what in sorted(self._events, key=lambda event: event[:2]):
            if what in ("readable", "ready", "deferred", "pacer"):
                call()

    def _warm_up(self, coroutine: object) -> None:
        """Take one step of the player's own warm-up, and come again when it wants to."""
        try:
            pause_s = coroutine.send(None)  # type: ignore[attr-defined]
        except StopIteration:
            if self.random.random() < 0.98:
                self._start()
            else:
                self.player.stopped, self._is_over = "stopped before the start", True
        else:
            self.at(self.clock.now_ns() + round(pause_s * S), lambda: self._warm_up(coroutine), "warm-up")

    def _start(self) -> None:
        random, now_ns = self.random, self.clock.now_ns()
        self.history.epoch_ns = epoch_ns = now_ns + random.randrange(1, 300 * MS)
        self._next_tick_ns = now_ns
        self.at(now_ns, self._tick, "tick")
        self.player.start(epoch_ns)
        self._draw_orders(epoch_ns)
        if random.random() < 0.4:
            for _ in range(random.randint(1, 4)):
                at_ns, longest_ns = epoch_ns + random.randrange(4 * S), random.choice((2 * MS, 50 * MS, 3 * S))
                self.clock.plan_stall(at_ns, random.randrange(longest_ns))

    def _draw_orders(self, epoch_ns: int) -> None:
        """Say when the operator presses Ctrl-C, and when somebody kills the process."""
        random = self.random
        if random.random() < 0.15:
            at_ns = epoch_ns + random.randrange(3 * S)
            grace_s = random.choice((0.0, 0.3, 5.0))
            self.at(at_ns, lambda: self._stop("interrupted", grace_s), "Ctrl-C")
            if random.random() < 0.3:
                self.at(at_ns + random.randrange(S), lambda: self._stop("interrupted", 0.0), "second Ctrl-C")
        if random.random() < 0.05:
            self.at(epoch_ns + random.randrange(S), self._kill, "kill -9")
        if self.settings.duration_s is not None:
            self.at(epoch_ns + round(self.settings.duration_s * S), self._note_end, "the end of the duration")
        self.at(epoch_ns + PATIENCE_NS, lambda: self._stop("out of patience", 0.0), "the operator stops it")

    def _tick(self) -> None:
        """Do what a worker does ten times a second."""
        now_ns = self.clock.now_ns()
        lag_ns = now_ns - self._next_tick_ns
        self._next_tick_ns += TICK_NS * (1 + lag_ns // TICK_NS)
        self.at(self._next_tick_ns, self._tick, "tick")
        self._ticks += 1
        if self._ticks % FLUSH_TICKS == 0:
            self.network.tune()
            self.store.flush()
        self.laws.check_pace(now_ns)
        if self.settings.grace_s is not None and self.player.scheduler.drained and not self.history.cuts:
            self.history.cuts.append((now_ns + round(self.settings.grace_s * S), now_ns))
        if self.store.trouble:
            self._stop(self.store.trouble, 0.0)
        self.player.check_end()
        self.player.sender.lines.close_idle()
        self.player.work_ahead()
        self.player.describe_progress()

    def _stop(self, reason: str, grace_s: float) -> None:
        self._note_stop(grace_s)
        self.player.stop(reason, grace_s)

    def _note_stop(self, grace_s: float) -> None:
        now_ns = self.clock.now_ns()
        if self.player._end_ns < NEVER:  # a player that slept through the end of the duration hears of the stop first
            self.history.cuts = [cut for cut in self.history.cuts if cut[1] != self._find_end_ns()]
        self.history.cuts.append((now_ns + round(grace_s * S), now_ns))
        self.history.stopped_at_begun = self.player.sender.begun

    def _note_end(self) -> None:
        end_ns = self._find_end_ns()
        if self.settings.grace_s is not None and not self.history.cuts:
            self.history.cuts.append((end_ns + round(self.settings.grace_s * S), end_ns))

    def _find_end_ns(self) -> int:
        assert self.settings.duration_s is not None
        return self.history.epoch_ns + round(self.settings.duration_s * S)

    def _kill(self) -> None:
        self.history.is_killed = self._is_over = True

    def _end(self) -> None:
        if self._is_over:
            raise Violation("the end was told twice")
        self._is_over = True


def simulate(seed: int) -> World:
    """Play the run of *seed*; raises AssertionError naming it and how to see it."""
    world = World(seed)
    try:
        world.play()
    except Exception as problem:
        raise AssertionError(
            f"seed {seed}: {type(problem).__name__}: {problem}\n    python -m tests.simulation.world {seed}"
        ) from problem
    return world


def main(seed: int) -> int:
    """Print the events of one run, its rows, and the law that was broken if one was."""
    world = World(seed, is_told=True)
    world.note(f"{world.settings}\n{world.network._weather}\n{world.laws.plan}")
    problem = None
    try:
        world.play()
    except Exception as found:
        problem = found
    with suppress(BrokenPipeError):
        print(*(world.notes or ()), sep="\n")
        for row in world.store.requests:
            stamps = dict(row.list_stamps("due", "begun", "sent", "done"))
            print(f"row {row.request}: {name(row)} {row.error or ''}  {stamps}")
    if problem is not None:
        raise problem
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

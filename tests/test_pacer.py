# Never early is the whole promise: how late a wake-up is depends on the machine, and is not tested here.

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from loadshape.pacer import LoopPacer, Pacer, TimerfdPacer, make_pacer, tighten_timers

US = 1_000
LOOPS: list[Any] = [pytest.param(asyncio.new_event_loop, id="asyncio")]
try:
    import uvloop
except ImportError:
    pass
else:
    LOOPS.append(pytest.param(uvloop.new_event_loop, id="uvloop"))
PACERS: list[Any] = [pytest.param(LoopPacer, id="loop")]
if sys.platform == "linux":
    PACERS.append(pytest.param(TimerfdPacer, id="timerfd"))

Make = Callable[[asyncio.AbstractEventLoop, Callable[[], None]], Pacer]
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a coroutine to its end under each event loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@pytest.fixture(params=PACERS)
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


class Sleeper:
    """Waits for its pacer, one instant after the other."""

    def __init__(self, make: Make) -> None:
        self.wakes_ns: list[int] = []
        self._woken = asyncio.Event()
        self.pacer = make(asyncio.get_running_loop(), self._wake)

    def _wake(self) -> None:
        self.wakes_ns.append(time.monotonic_ns())
        self._woken.set()

    async def sleep(self) -> int:
        """Return when the pacer called."""
        await asyncio.wait_for(self._woken.wait(), 10)
        self._woken.clear()
        return self.wakes_ns[-1]


def test_two_hundred_arms_and_none_early(run: Run, make: Make) -> None:
    async def arm_often() -> None:
        sleeper = Sleeper(make)
        for at in range(200):
            at_ns = time.monotonic_ns() + at * 7919 % 1500 * US
            sleeper.pacer.arm(at_ns)
            assert await sleeper.sleep() >= at_ns
        sleeper.pacer.close()
        assert len(sleeper.wakes_ns) == 200

    run(arm_often())


@pytest.mark.parametrize(("first_us", "second_us"), [(300, 3000), (50_000, 1000), (1000, 1000)])
def test_arming_again_replaces_the_instant(run: Run, make: Make, first_us: int, second_us: int) -> None:
    async def arm_twice() -> None:
        sleeper = Sleeper(make)
        now_ns = time.monotonic_ns()
        sleeper.pacer.arm(now_ns + first_us * US)
        sleeper.pacer.arm(now_ns + second_us * US)
        assert await sleeper.sleep() >= now_ns + second_us * US
        sleeper.pacer.close()
        assert len(sleeper.wakes_ns) == 1

    run(arm_twice())


@pytest.mark.parametrize("ago_ns", [0, 1, 10**9, 10**15])
def test_an_instant_in_the_past_wakes_at_once(run: Run, make: Make, ago_ns: int) -> None:
    async def arm_late() -> None:
        sleeper = Sleeper(make)
        for _ in range(3):  # the same past instant again: each arm is answered
            sleeper.pacer.arm(time.monotonic_ns() - ago_ns)
            await sleeper.sleep()
        sleeper.pacer.arm(1)
        await sleeper.sleep()
        sleeper.pacer.arm(1)
        await sleeper.sleep()
        sleeper.pacer.close()

    run(arm_late())


def test_arming_from_within_a_wake_up(run: Run, make: Make) -> None:
    async def arm_in_a_chain() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        due_ns = [time.monotonic_ns() + step * 400 * US for step in range(1, 20)]
        wakes_ns: list[int] = []

        def wake() -> None:
            wakes_ns.append(time.monotonic_ns())
            if len(wakes_ns) < len(due_ns):
                pacer.arm(due_ns[len(wakes_ns)])
            else:
                over.set()

        pacer = make(loop, wake)
        pacer.arm(due_ns[0])
        await asyncio.wait_for(over.wait(), 10)
        pacer.close()
        assert all(wake_ns >= at_ns for wake_ns, at_ns in zip(wakes_ns, due_ns, strict=True))

    run(arm_in_a_chain())


def test_a_closed_pacer_never_wakes(run: Run, make: Make) -> None:
    async def close_armed() -> None:
        closed, other = Sleeper(make), Sleeper(make)
        closed.pacer.arm(time.monotonic_ns() + 200 * US)
        closed.pacer.close()
        other.pacer.arm(time.monotonic_ns() + 3000 * US)
        await other.sleep()
        other.pacer.close()
        assert closed.wakes_ns == []

    run(close_armed())


def test_the_log_can_say_which_pacer_it_was(run: Run) -> None:
    async def name_both() -> None:
        loop = asyncio.get_running_loop()
        best, portable = make_pacer(loop, lambda: None), make_pacer(loop, lambda: None, portable=True)
        assert best.name == ("timerfd" if sys.platform == "linux" else "loop")
        assert portable.name == "loop"
        best.close()
        portable.close()

    run(name_both())


def test_timers_can_be_tightened_without_a_privilege() -> None:
    tighten_timers()

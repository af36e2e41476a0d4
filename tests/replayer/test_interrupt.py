# Ctrl-C may come at any instant, also between two lines that a worker said at once: neither may be lost.

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from logs import make_run

from loadshape import replayer
from loadshape.interrupt import counting_interrupts
from loadshape.replayer.job import Done, Order, Progress, Report, Settings, Start, Stop

PROGRESS = Progress(begun=1, ended=1, failed=0, in_flight=0, reads=1, late_ns=0)
DONE = Done(shards=[], outcomes={"ok": 1}, ended_ns=1)


class ScriptedCrew:
    """One worker that says what it was given, while the user presses Ctrl-C at the places marked None."""

    expected = 1

    def __init__(self, *turns: list[Report | None]) -> None:
        self.orders: list[Order] = []
        self._turns = iter(turns)

    def tell(self, order: Order) -> None:
        self.orders.append(order)

    def listen(self, _timeout_s: float) -> Iterator[tuple[int, Report]]:
        for report in next(self._turns):
            if report is None:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                yield 0, report


def play(crew: ScriptedCrew) -> tuple[list[Done], str]:
    run = make_run(1, epoch_monotonic_ns=time.monotonic_ns() + 10**9)
    watch: Any = lambda _progress, _elapsed_s: None  # noqa: E731
    settings = Settings(processes=1, interrupt_grace_s=5.0)
    with counting_interrupts() as interrupts:
        return replayer._play(crew, run, settings, watch, interrupts)  # type: ignore[arg-type]


def stops(crew: ScriptedCrew) -> list[float]:
    """Return the grace of every stop that was told."""
    assert isinstance(crew.orders[0], Start)
    return [order.grace_s for order in crew.orders if isinstance(order, Stop)]


def test_without_an_interrupt_a_run_is_complete() -> None:
    crew = ScriptedCrew([PROGRESS], [], [PROGRESS, DONE])
    assert play(crew) == ([DONE], "complete")
    assert stops(crew) == []


def test_an_interrupt_between_two_lines_loses_neither() -> None:
    crew = ScriptedCrew([PROGRESS, None, DONE])
    assert play(crew) == ([DONE], "interrupted")


def test_the_second_interrupt_cuts_at_once() -> None:
    crew = ScriptedCrew([None, PROGRESS], [PROGRESS], [None], [DONE])
    assert play(crew) == ([DONE], "interrupted")
    assert stops(crew) == [5.0, 0.0]


def test_a_stop_that_a_worker_decided_is_told() -> None:
    stopped = Done(shards=[], outcomes={"ok": 1}, ended_ns=1, stopped="stopped: the log cannot be written")
    assert play(ScriptedCrew([stopped])) == ([stopped], "stopped: the log cannot be written")


def test_afterwards_ctrl_c_means_what_it_did_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    play(ScriptedCrew([DONE]))
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(RuntimeError):
        play(ScriptedCrew([PROGRESS]))
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_of_the_main_thread_signals_are_left_alone() -> None:
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(play(ScriptedCrew([DONE]))))
    thread.start()
    thread.join(30)
    assert done == [([DONE], "complete")]

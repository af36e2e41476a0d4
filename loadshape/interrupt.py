# Ctrl-C is for the one who can act on it.
#
# Law: a terminal sends SIGINT to every process of its group, but only the first process knows what is to
# become of the work. A child that it spawns is born with the signal blocked: the mask is inherited, so this
# holds while the child is still importing, which ignoring the signal in its first line would not. What is
# pressed meanwhile is not lost either: the caller gets it when the block ends.
#
# Whoever has something to close in order counts what is pressed instead of being torn out of it: an exception between
# two lines would lose the second. SIGTERM, which schedulers send, means the same.

"""Keep Ctrl-C away from child processes, and from work that has to end in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def shielding_children() -> Iterator[None]:
    """Whatever process is started inside of the block never hears of SIGINT."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def counting_interrupts() -> Iterator[list[int]]:
    """Collect the numbers of what would interrupt the block, SIGINT and SIGTERM; outside of the main thread nothing."""
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts  # only the main thread gets signals, and may say what becomes of them
        return

    def note(number: int, _frame: object) -> None:
        interrupts.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)

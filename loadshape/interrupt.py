# Ctrl-C is for the one who can act on it.
#
# Law: a terminal sends SIGINT to every process of its group, but only the first process knows what is to
# become of the work. A child that it spawns is born with the signal blocked: the mask is inherited, so this
# holds while the child is still importing, which ignoring the signal in its first line would not. What is
# pressed meanwhile is not lost either: the caller gets it when the block ends.

"""Keep Ctrl-C away from child processes."""

from __future__ import annotations

import signal
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

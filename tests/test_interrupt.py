# A child that is started inside of the block does not hear of Ctrl-C, and the one who starts it does afterwards.

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from loadshape.interrupt import counting_interrupts, shielding_children

BLOCKED = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"


def ask_child() -> str:
    """Return whether a new process has the signal blocked."""
    return subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True).stdout.strip()


def test_children_are_deaf_to_interrupts() -> None:
    with shielding_children():
        assert ask_child() == "True"
    assert ask_child() == "False"


def test_what_came_meanwhile_comes_afterwards() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), shielding_children():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached


def test_what_would_interrupt_is_counted_and_then_interrupts_again() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with counting_interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        with counting_interrupts() as inner:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert (interrupts, inner) == ([signal.SIGINT, signal.SIGINT], [signal.SIGTERM])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

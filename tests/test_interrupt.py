# A child that is started inside of the block does not hear of Ctrl-C, and the one who starts it does afterwards.

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from loadshape.interrupt import shielding_children

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

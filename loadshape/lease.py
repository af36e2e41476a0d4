# Who is writing into a folder right now.
#
# Law: a lock of the kernel's on the folder itself, so it cannot be left behind: it is gone when the last process that
# holds it is, however that ended. No file is written, no process id is trusted (numbers are given out again), and
# nobody waits. Child processes that are given the descriptor hold the same lock (flock(2): locks belong to the
# open file description). Where a file system knows no such locks, nothing is held and nothing is found.

"""Lease: hold a folder while one writes into it, and see whether somebody does."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[int]:
    """Hold *folder* while the block runs; gives the descriptor, for children that write into it too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Return whether somebody writes into *folder*, as far as its file system can tell."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False

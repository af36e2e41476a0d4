# Waking up at an instant, not near one.
#
# Law: a pacer never wakes its owner before the instant it was armed for, and wakes it as little after as
# the system can.
#
# libuv timers have 1 ms steps and fire up to 1.2 ms early (uvloop issue 359), asyncio rounds up to 1 ms:
# neither can keep a schedule. A timerfd with TFD_TIMER_ABSTIME on CLOCK_MONOTONIC wakes 20-45 us after
# its instant; arming it a little earlier and polling for the rest brings that to a few us, at the price of
# a core's time. Python has os.timerfd_create from 3.13 on; before, two libc calls do the same. Where there
# is no timerfd, the event loop's own timer is used, re-armed when it fires early, and the log says "loop".

"""Pacers: an absolute timerfd on Linux, the event loop's timer elsewhere."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Protocol

CLOCK_MONOTONIC = 1
TFD_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
TFD_TIMER_ABSTIME = 1
PR_SET_TIMERSLACK = 29
_ITIMERSPEC = struct.Struct("@4l")


class Pacer(Protocol):
    """Calls back once at or after an absolute instant; arming again replaces the instant."""

    name: str

    def arm(self, at_ns: int) -> None:
        """Wake at *at_ns* on CLOCK_MONOTONIC; an instant in the past wakes at once."""
        ...

    def close(self) -> None:
        """Never wake again."""
        ...


class Readers(Protocol):
    """The part of an event loop that a timerfd needs."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> object:
        """Call back when *fd* can be read."""
        ...

    def remove_reader(self, fd: int, /) -> object:
        """Call back no more."""
        ...


class TimerfdPacer:
    """An absolute timerfd watched by an event loop."""

    name = "timerfd"

    def __init__(self, loop: Readers, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._fd = _create_timerfd()
        self._armed_ns = 0
        loop.add_reader(self._fd, self._fired)

    def arm(self, at_ns: int) -> None:
        """Wake at *at_ns*; two arms for one instant cost one system call."""
        if at_ns != self._armed_ns:
            self._armed_ns = at_ns
            _set_timerfd(self._fd, max(at_ns, 1))

    def close(self) -> None:
        """Stop watching and release the descriptor."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # re-armed between the wake-up and this call
        self._armed_ns = 0
        self._wake()


class LoopPacer:
    """The event loop's own timer, corrected: what fires early is armed again."""

    name = "loop"

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._at_ns = 0
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, at_ns: int) -> None:
        """Wake at or after *at_ns*, to the millisecond."""
        self._at_ns = at_ns
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, self._fired)

    def close(self) -> None:
        """Cancel what is pending."""
        if self._handle is not None:
            self._handle.cancel()

    def _fired(self) -> None:
        self._handle = None
        if time.monotonic_ns() < self._at_ns:
            self.arm(self._at_ns)
        else:
            self._wake()


def make_pacer(loop: asyncio.AbstractEventLoop, wake: Callable[[], None], *, portable: bool = False) -> Pacer:
    """Return the best pacer of this system, or the portable one when asked."""
    if sys.platform == "linux" and not portable:
        return TimerfdPacer(loop, wake)
    return LoopPacer(loop, wake)


def tighten_timers() -> None:
    """Ask the kernel not to batch this thread's timers (default slack: 50 us). Needs no privilege."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


if sys.version_info >= (3, 13) and sys.platform == "linux":

    def _create_timerfd() -> int:
        return os.timerfd_create(CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _set_timerfd(fd: int, at_ns: int) -> None:
        os.timerfd_settime_ns(fd, flags=TFD_TIMER_ABSTIME, initial=at_ns)

else:
    _libc = ctypes.CDLL(None, use_errno=True)

    def _create_timerfd() -> int:
        fd = int(_libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK_CLOEXEC))
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        return fd

    def _set_timerfd(fd: int, at_ns: int) -> None:
        value = _ITIMERSPEC.pack(0, 0, *divmod(at_ns, 1_000_000_000))
        if _libc.timerfd_settime(fd, TFD_TIMER_ABSTIME, value, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

# What disciplines this host's clock, as the host says it.
#
# Law: facts only, without root and without changing anything; what this system does not have is absent. A run needs
# none of this: offsets of nodes are measured (synchrony.py). It explains them. A clock that is being pulled right now
# drifts as no crystal does, and CLOCK_MONOTONIC is pulled with the wall clock.
#
# Sources: adjtimex(2) and include/uapi/linux/timex.h for the layout and the flags; chronyc(1), "tracking", for the
# fields of its report (`-c`: comma-separated, in its order, seconds and ppm).

"""Read the state of this host's clock discipline: the kernel's, and chrony's where it runs."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import subprocess
import sys
from typing import Any

COMMAND_S = 2.0
CHRONYC = ("chronyc", "-n", "-c", "tracking")
UNSYNCHRONIZED, IN_NANOSECONDS = 0x0040, 0x2000  # STA_UNSYNC, STA_NANO
UNSTEADY = 5  # TIME_ERROR
TIMEX = struct.Struct("@I 4l i 8l i 5l i 44x")  # native sizes, so it holds where a long has 4 bytes
TICK = 11  # its field
_TRACKING = (
    *("reference_id", "reference", "stratum", "reference_time_s", "system_offset_s", "last_offset_s", "rms_offset_s"),
    *("frequency_ppm", "residual_ppm", "skew_ppm", "root_delay_s", "root_dispersion_s", "update_interval_s", "leap"),
)


def read_synchronization() -> dict[str, Any]:
    """Return what kernel and chrony say of this host's clock; empty on systems other than Linux."""
    if sys.platform != "linux":
        return {}
    found = _ask_kernel()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(CHRONYC, capture_output=True, text=True, timeout=COMMAND_S, check=True)
        found |= {"chrony": told} if (told := parse_tracking(done.stdout)) else {}
    return found


def describe_timex(state: int, timex: bytes) -> dict[str, Any]:
    """Return what adjtimex(2) said: its return value *state*, and the struct that it filled in."""
    _, offset, freq, max_error_us, estimated_error_us, status, *_ = found = TIMEX.unpack(timex)
    return {
        "synchronized": state != UNSTEADY and not status & UNSYNCHRONIZED,
        "max_error_us": max_error_us,
        "estimated_error_us": estimated_error_us,
        "pending_offset_ns": offset if status & IN_NANOSECONDS else offset * 1000,
        "frequency_ppb": round(freq * 1000 / 65536, 1),
        "tick_us": found[TICK],
        "tai_offset_s": found[-1],
    }


def parse_tracking(line: str) -> dict[str, Any]:
    """Return the report of `chronyc -c tracking` by name of field; empty if it is none."""
    cells = line.strip().split(",")
    if len(cells) != len(_TRACKING):
        return {}
    try:
        told: dict[str, Any] = {
            name: float(cell) if name.endswith(("_s", "_ppm")) else cell
            for name, cell in zip(_TRACKING, cells, strict=True)
        }
        return told | {"stratum": int(told["stratum"])}
    except ValueError:
        return {}


def _ask_kernel() -> dict[str, Any]:
    timex = ctypes.create_string_buffer(TIMEX.size)  # zeros: modes 0, look and change nothing
    try:
        state = ctypes.CDLL(None).adjtimex(timex)
    except (OSError, AttributeError):
        return {}
    return describe_timex(state, timex.raw) if state >= 0 else {}

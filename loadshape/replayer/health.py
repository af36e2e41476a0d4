# What the worker knows about its own condition.
#
# Law: cheap, ten times a second, from the kernel's own counters; each value is a fact, the judgement is
# made later from the log. Counters are cumulated as the kernel gives them, so that a lost row costs
# nothing. A value that this system does not have is NULL, never zero.
#
#     run-queue delay   /proc/self/schedstat, field 2: ns spent runnable but not running
#     steal             /proc/stat, first line, field 8: what the hypervisor took from this host
#     throttling        cpu.stat of this cgroup: throttled_usec, or throttled_time in version 1
#     collector pauses  gc.callbacks

"""Vitals: CPU, run-queue delay, steal, throttling, collector pauses and memory of this process."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadshape.plan import NULL

SHARED = 0.01  # of the time spent waiting for a core: somebody else uses it too
BUSY = 0.7
_TICK_NS = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CGROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))


class Vitals:
    """Samples this process. One instance a process: it registers a collector callback."""

    def __init__(self) -> None:
        self._schedstat = _open("/proc/self/schedstat")
        self._stat = _open("/proc/stat")
        self._statm = _open("/proc/self/statm")
        self._is_bounded, self._throttled = _find_throttling()
        self._gc_started_ns = 0
        self._gc_longest_ns = 0
        self._last_seen = (time.monotonic_ns(), time.process_time_ns(), _field(self._schedstat, 1))
        gc.callbacks.append(self._watch_gc)

    def sample(self) -> dict[str, int]:
        """Return the current values by the names of log.HEALTH."""
        longest_ns, self._gc_longest_ns = self._gc_longest_ns, 0
        return {
            "runqueue_ns": _field(self._schedstat, 1),
            "cpu_ns": time.process_time_ns(),
            "gc_ns": longest_ns,
            "steal_ns": _scale(_field(self._stat, 8), _TICK_NS),
            "throttled_ns": self._read_throttled(),
            "rss_bytes": _scale(_field(self._statm, 1), _PAGE_BYTES),
        }

    def find_strain(self) -> str:
        """Return why this core has no time to spare since this was asked last; empty if it has."""
        now_ns = time.monotonic_ns()
        seen = (now_ns, time.process_time_ns(), _field(self._schedstat, 1))
        (then_ns, cpu_ns, waited_ns), self._last_seen = self._last_seen, seen
        wall_ns = max(1, now_ns - then_ns)
        if (share := (seen[2] - waited_ns) / wall_ns) > SHARED:
            return f"the core is shared (waited for it {share:.1%} of the time)"
        if (share := (seen[1] - cpu_ns) / wall_ns) > BUSY:
            return f"the core is busy ({share:.0%})"
        return ""

    def close(self) -> None:
        """Let go of the files and the callback."""
        gc.callbacks.remove(self._watch_gc)
        for file in (self._schedstat, self._stat, self._statm, self._throttled):
            if file is not None:
                os.close(file)

    def _watch_gc(self, phase: str, _info: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._gc_started_ns = now_ns
        else:
            self._gc_longest_ns = max(self._gc_longest_ns, now_ns - self._gc_started_ns)

    def _read_throttled(self) -> int:
        if self._throttled is None:
            return NULL if self._is_bounded else 0
        for line in os.pread(self._throttled, 4096, 0).decode().splitlines():
            if line.startswith("throttled_usec"):
                return int(line.split()[1]) * 1000
            if line.startswith("throttled_time"):  # version 1, in ns
                return int(line.split()[1])
        return NULL


def _find_throttling() -> tuple[bool, int | None]:
    """Return whether this process may have a CPU quota, and the file that counts its effect.

    The root of a hierarchy has no quota and does not count, so there it is known to be zero.
    """
    places = list(_list_cgroups())
    for stat in (place / "cpu.stat" for place in places):
        with contextlib.suppress(OSError):
            if "throttled_" in stat.read_text():
                return True, _open(str(stat))
    return not places or any(place not in _CGROUP_ROOTS for place in places), None


def _list_cgroups() -> Iterator[Path]:
    """Yield the folders of this process in the version 2 hierarchy and in the version 1 one of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield _CGROUP_ROOTS[0] / path.lstrip("/")
            elif "cpu" in controllers.split(","):
                yield _CGROUP_ROOTS[1] / path.lstrip("/")


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _field(file: int | None, index: int) -> int:
    """Return the whitespace-separated field *index* of the first line of a /proc file."""
    if file is None:
        return NULL
    fields = os.pread(file, 512, 0).split(b"\n", 1)[0].split()
    return int(fields[index]) if len(fields) > index else NULL


def _scale(value: int, unit: int) -> int:
    return NULL if value == NULL else value * unit

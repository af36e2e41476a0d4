# What this host can do, as measured once and remembered: the scale that later loads are read on.
#
# Law: values, and one file. How it is measured is calibrator.py's business; who judges by it reads the copy
# that a replay puts into its log (environment.json), never this file: a log is judged the same everywhere.
#
# A ceiling belongs to a CPU, a kernel, a Python and a version of this program; a file that was made with
# others is as good as none. It does not belong to a name: equal machines that share a home folder have
# equal limits.

"""Calibration: the limits of this host, in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from loadshape.environment import describe_host
from loadshape.errors import InputError
from loadshape.manifest import write_manifest
from loadshape.version import __version__

NAME = "calibration.json"
SAME_HOST = ("python", "system", "machine", "cpu", "cores", "affinity")


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quantiles of a time in s; None where there were too few values."""

    p50_s: float | None
    p99_s: float | None


class Use(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the busiest process of a side used of a core, and the share of time for which it was ready and got none."""

    cpu: float
    waited: float


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How exact the replayer was at a share of its ceiling.

    `lateness` is begun - due, `lag` our stamp - the kernel's, `error` the kernel's stamp - the responder's
    write, `responder_lateness` that write - its due instant.
    """

    share: float
    rate_hz: float
    lateness: Spread
    lag: Spread
    error: Spread
    responder_lateness: Spread
    chunks_a_read: float
    worker: Use
    responder: Use


class Ceiling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The highest rate that was sustained, and who gave way first: worker, responder, or nobody (the ramp ended)."""

    rate_hz: float
    saturated: str
    worker: Use
    responder: Use
    levels: list[Level] = []


class Capacity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a number of workers can do beside a number of responders on this host. None: there was no time for it."""

    processes: int
    responders: int
    requests: Ceiling
    chunks: Ceiling
    streams: int | None = None  # at once and answered in full
    streams_tried: int | None = None
    stream_bytes: float | None = None  # memory of the worker for each, buffers of the log included


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of one host: of one worker, and of as many as there are cores for, beside the responders."""

    made_at: str
    took_s: float
    host: dict[str, Any]
    one: Capacity
    all: Capacity
    tool: str = f"loadshape {__version__}"

    @classmethod
    def load(cls) -> Calibration | None:
        """Return what was measured on a host like this one by this version of loadshape, None if nothing was."""
        try:
            found = msgspec.json.decode((find_cache() / NAME).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None
        host = describe_host()
        same = all(found.host.get(name) == host.get(name) for name in SAME_HOST)
        return found if same and found.tool == f"loadshape {__version__}" else None

    @property
    def waited(self) -> float:
        """Share of time for which the workers waited for a core: what others at work on this host took."""
        return max(it.worker.waited for capacity in (self.one, self.all) for it in (capacity.requests, capacity.chunks))

    def store(self) -> Path:
        """Keep it as the calibration of this host and return the file. Raises InputError when that cannot be."""
        folder = find_cache()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return write_manifest(folder, self, NAME)
        except OSError as problem:
            reason = problem.strerror or problem
            raise InputError(f"{folder}: the calibration cannot be kept: {reason}; set XDG_CACHE_HOME") from None

    def summarize(self) -> dict[str, Any]:
        """Return what a log keeps of it: the ceilings that its load is a share of."""
        return {
            "made_at": self.made_at,
            **{
                name: {
                    "processes": capacity.processes,
                    "requests_hz": capacity.requests.rate_hz,
                    "chunks_hz": capacity.chunks.rate_hz,
                }
                for name, capacity in (("one", self.one), ("all", self.all))
            },
        }


def find_cache() -> Path:
    """Return the folder in which this user's caches of loadshape lie."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"  # XDG: relative paths are ignored
    return root / "loadshape"

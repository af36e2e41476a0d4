# Who measured, on what: facts about this host, gathered before the first packet.
#
# Law: facts only, none secret. Environment variables are never copied wholesale; of the server, only what
# it says on its open pages.

"""Describe the host, the interpreter and the packages that a number was measured with."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("uvloop", "httptools", "aiohttp", "numpy", "pyarrow", "msgspec", "zstandard")


def describe_host() -> dict[str, Any]:
    """Return versions, CPU, kernel, affinity, limits and clock source of this process and host."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _read_cpu_name(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average": list(os.getloadavg()),
        "memory_bytes": _read_memory_bytes(),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "port_range": _read("/proc/sys/net/ipv4/ip_local_port_range"),
        "switch_interval_s": sys.getswitchinterval(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    with contextlib.suppress(OSError):
        return " ".join(Path(path).read_text().split())
    return None


def _read_cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _read_memory_bytes() -> int | None:
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None

# Who measured, on what: facts about this host, gathered before the first packet.
#
# Law: facts only, none secret. Environment variables are never copied wholesale; of the server, only what
# it says on its open pages. A fact that this system does not have is None or absent, never an error: what is asked of
# other programs (nvidia-smi; sysctl, pmset and memory_pressure on a Mac) is bounded in time, and they may be missing.
#
# On a chip whose CPU and GPU share one memory, what else fills that memory decides how fast a model runs: pressure and
# swap belong to the conditions there, and so does the power mode.

"""Describe the host, the interpreter and the packages that a number was measured with."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("uvloop", "httptools", "aiohttp", "numpy", "pyarrow", "msgspec", "zstandard")
COMMAND_S = 5.0
HIDDEN = "***"
_SECRET = re.compile(r"(key|token|secret|password|credentials?)$", re.IGNORECASE)
_FLAG = re.compile(r"(--?[\w-]*(?:key|token|secret|password)[= ]+)(\S+)", re.IGNORECASE)
_GPU = {
    "name": "name", "driver": "driver_version", "memory": "memory.total", "power_limit": "power.limit",
    "pcie": "pcie.link.gen.max", "persistence": "persistence_mode",
}  # fmt: skip
_POWER_MODE = re.compile(r"^\s*(lowpowermode|powermode)\s+(\d+)", re.MULTILINE)


def describe_host() -> dict[str, Any]:
    """Return versions, CPU, kernel, affinity, limits, clock source, GPUs of this process and host."""
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
        **_describe_gpus(),
        **(_describe_mac() if platform.system() == "Darwin" else {}),
    }


def redact_secrets(value: Any) -> Any:
    """Return *value* without what looks like a secret: values of such names, and of such flags in a text."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if isinstance(part, str) and _SECRET.search(str(name)) else redact_secrets(part)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [redact_secrets(part) for part in value]
    return _FLAG.sub(rf"\1{HIDDEN}", value) if isinstance(value, str) else value


def list_secrets(value: Any, name: str = "") -> Iterator[str]:
    """Yield the texts that redact_secrets hides in *value*, which stands under *name*."""
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from list_secrets(part, str(inner))
    elif isinstance(value, list):
        for part in value:
            yield from list_secrets(part)
    elif isinstance(value, str):
        yield from [value] if _SECRET.search(name) else (found[2] for found in _FLAG.finditer(value))


def _describe_gpus() -> dict[str, Any]:
    """Return the GPUs of this host and how they are wired, nothing where nvidia-smi is missing."""
    listed = _run("nvidia-smi", f"--query-gpu={','.join(_GPU.values())}", "--format=csv,noheader")
    if listed is None:
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in listed.splitlines() if line]
    gpus = [dict(zip(_GPU, row, strict=False)) for row in rows]
    return {"gpus": gpus, "gpu_topology": _run("nvidia-smi", "topo", "-m") if len(gpus) > 1 else None}


def _describe_mac() -> dict[str, Any]:
    """Return what decides how fast a Mac is: its chip, the memory that all of it shares, power, pressure and swap."""
    power = _run("pmset", "-g") or ""
    modes = {name: int(value) for name, value in _POWER_MODE.findall(power)}
    free = re.search(r"free percentage:\s*(\d+)%", _run("memory_pressure", "-Q") or "")
    return {
        "chip": _run("sysctl", "-n", "machdep.cpu.brand_string"),
        "unified_memory_bytes": int(_run("sysctl", "-n", "hw.memsize") or 0) or None,
        "power_mode": modes or None,
        "on_battery": "Battery Power" in (_run("pmset", "-g", "ps") or ""),
        "memory_free_percent": int(free[1]) if free else None,
        "swap": _run("sysctl", "-n", "vm.swapusage"),
    }


def _run(*command: str) -> str | None:
    """Return what a program says, None where it is missing or fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=True)
        return done.stdout.strip() or None
    return None


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

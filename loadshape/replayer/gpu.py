# The GPUs of this host, as nvidia-smi tells them.
#
# Law: present or absent, never an error: a host without nvidia-smi, or with one that fails, has no GPUs that are known
# here, and one that fails during the run leaves a note in the log. NVML is asked through it and not by a binding of
# ours, which would be one more dependency for the same numbers. They are the GPUs of the server only where it runs on
# this host, and the rows say so by having no target. One call a sample: nvidia-smi is a program of its own on another
# core, and takes some tenths of a second where the driver has to wake up.
#
#     utilization   share of the last sample period (1/6 s to 1 s) in which a kernel ran: busy is not the same as full
#     throttling    a bit mask of reasons; those of power and heat are slowdowns (NVML, nvmlClocksEventReason*)
#
# A value that a GPU does not have ("[N/A]") has no row.
#
# Source: nvidia-smi --help-query-gpu; drivers from before 535 know the reasons under an older name only.

"""Samples of the GPUs of this host: utilization, memory, power, clocks, temperature, throttling."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial

from loadshape.replayer.samples import Sample
from loadshape.replayer.scrape import Watched

COMMAND = "nvidia-smi"
TIMEOUT_S = 5.0
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
FIELDS = (
    ("utilization.gpu", "gpu_utilization", 0.01),
    ("memory.used", "gpu_memory_used_bytes", float(1 << 20)),
    ("memory.total", "gpu_memory_total_bytes", float(1 << 20)),
    ("power.draw", "gpu_power_w", 1.0),
    ("clocks.sm", "gpu_clock_hz", 1e6),
    ("temperature.gpu", "gpu_temperature_c", 1.0),
)


def watch_gpus() -> list[Watched]:
    """Return the GPUs of this host as one thing to watch, nothing where there are none that are known."""
    if shutil.which(COMMAND) is None:
        return []
    for reasons in REASONS:
        try:
            if _query(reasons):
                return [Watched(None, partial(_take, reasons))]
        except (OSError, subprocess.SubprocessError):
            continue
    return []


def parse_gpus(text: str) -> Iterator[Sample]:
    """Yield the samples of a page of comma-separated values: index, FIELDS, reasons; one line a GPU."""
    for line in text.splitlines():
        index, *cells = (cell.strip() for cell in line.split(","))
        labels = {"gpu": index}
        for (_, name, unit), cell in zip(FIELDS, cells, strict=False):
            if (value := _read_number(cell)) is not None:
                yield Sample(name, labels, value * unit)
        if len(cells) > len(FIELDS) and cells[-1].startswith("0x"):
            yield Sample("gpu_throttle_reasons", labels, float(int(cells[-1], 16)))


def _take(reasons: str) -> Iterator[Sample]:
    return parse_gpus(_query(reasons))


def _query(reasons: str) -> str:
    fields = ",".join(("index", *(field for field, _, _ in FIELDS), reasons))
    command = [COMMAND, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        said = (done.stdout or done.stderr).strip().partition("\n")[0]
        raise OSError(f"{COMMAND} ended with {done.returncode}: {said}")
    return done.stdout


def _read_number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None

# How long does judging take, and how much memory?
#
# A synthetic log in memory: 100,000 requests with 100 reads each by default (10 million reads). Measured are
# summarize() with its verdict, and each form of the report; reading a log from disk is not. Peak memory is
# that of the whole process, the log included. Limits: one process, whatever else the machine does counts.

"""Judge a synthetic log and print seconds and peak memory as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from logs import synthesize_log

from loadshape.report import render
from loadshape.summary import summarize


def measure(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, round(time.perf_counter() - start, 3)


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1_000_000 if sys.platform == "darwin" else 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--reads-each", type=int, default=100)
    wanted = parser.parse_args()
    log = synthesize_log(wanted.requests, wanted.reads_each, duration_s=600.0)
    found: dict[str, Any] = {"requests": log.requests.num_rows, "reads": log.reads.num_rows}
    found["log_mb"] = (log.requests.nbytes + log.reads.nbytes) // 10**6
    found["rss_before_mb"] = peak_mb()
    summary, found["summarize_s"] = measure(lambda: summarize(log))
    for form in ("text", "json", "html"):
        shown, found[f"{form}_s"] = measure(partial(render, summary, form))
        found[f"{form}_bytes"] = len(shown.encode())
    found["peak_rss_mb"] = peak_mb()
    found["machine"] = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
    found["versions"] = {"numpy": np.__version__, "pyarrow": pa.__version__}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

# How fast are arrivals drawn, and what does each way of scaling make of the same bursty traffic?
#
# Speed: a million arrivals of each process, CPU seconds of one core. Scaling: a Markov-modulated trace of an hour
# (invented, one token a request) is made four times as dense by each method, and a quarter as dense by thinning and
# by warping; the dispersion of counts is given in windows of 0.1 s to 300 s, before and after.
# Limits: one seed; a real trace has sessions and a day, this one has neither.

"""Draw arrivals, scale a trace by every method, and print JSON."""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from loadshape import algebra
from loadshape.arrival import (
    Arrival,
    Constant,
    Diurnal,
    Gamma,
    Hawkes,
    Mmpp,
    OnOff,
    Poisson,
    Rate,
    Sinusoid,
    Weibull,
    Window,
    Windows,
)
from loadshape.randomness import open_stream
from loadshape.trace import Trace
from traces import ask, make_trace

ARRIVALS = 1_000_000
RATE_HZ = 500.0
STORM = Mmpp(rates_hz=(2, 20), sojourns_s=(60, 15))
PROCESSES: list[Arrival] = [
    Constant(RATE_HZ),
    Poisson(RATE_HZ),
    Gamma(RATE_HZ, cv=2),
    Weibull(RATE_HZ, cv=2),
    Mmpp(rates_hz=(250, 1500), sojourns_s=(4, 1)),
    OnOff(rate_hz=2 * RATE_HZ, on_s=1, off_s=1),
    Hawkes(base_hz=RATE_HZ / 4, branching=0.75, delay_s=0.5),
    Rate(points=((0, 0), (2000, 2 * RATE_HZ))),
    Sinusoid(mean_hz=RATE_HZ, amplitude_hz=RATE_HZ / 2, period_s=60),
    Diurnal(mean_hz=RATE_HZ, weights=tuple(range(1, 25)), day_s=240),
    Windows(tuple(Window(at * 10.0, RATE_HZ, cv=2) for at in range(200))),
]


def draw_fast(process: Arrival) -> dict[str, Any]:
    start = time.process_time()
    times_ns = process.times_ns(open_stream(7, "arrivals"), ARRIVALS / RATE_HZ)
    cpu_s = time.process_time() - start
    return {"arrivals": len(times_ns), "cpu_s": round(cpu_s, 3), "per_s": round(len(times_ns) / cpu_s)}


def describe(trace: Trace) -> dict[str, Any]:
    told = trace.manifest.statistics
    numbers = {"rate_hz": told["rate_hz"], "gap_cv": told["gap_cv"], **told["dispersion"]}
    return {name: None if value is None else round(value, 2) for name, value in numbers.items()}


def scale_all() -> dict[str, Any]:
    times_ns = STORM.times_ns(open_stream(7, "arrivals"), 3600)
    storm = algebra.superpose(make_trace(*(ask(at / 1e6) for at in times_ns.tolist()), duration_s=3600.0))
    told = {"before": describe(storm)}
    told["superpose 4"] = describe(algebra.scale(storm, 4, method="superpose", seed=7))
    told["replicate 4"] = describe(algebra.scale(storm, 4, method="replicate", seed=7))
    for factor in (4, 0.25):
        told[f"warp {factor:g}"] = describe(algebra.scale(storm, factor, method="warp"))
    told["thin 0.25"] = describe(algebra.thin(storm, 0.25, seed=7))
    return told


if __name__ == "__main__":
    result = {
        "machine": {"python": platform.python_version(), "numpy": np.__version__, "cpu": platform.processor()},
        "draw": {type(process).__name__: draw_fast(process) for process in PROCESSES},
        "scale": scale_all(),
    }
    print(json.dumps(result, indent=2))

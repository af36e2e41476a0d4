# Do the printed 95 % intervals hold the truth, and does a server differ from itself?
#
# Two simulations on an M/M/1 queue, whose sojourn time is exponential, so that every percentile is known:
#
#   coverage       runs of some thousand requests from the steady state; how often the interval of one run holds the
#                  true mean or percentile, by utilization. Intervals for independent values are printed beside it.
#   false alarms   two sides of runs of the same queue; how often the comparison calls one better or worse. By runs,
#                  and with one run a side.
#
# Limits: one queue discipline and one service distribution; the standard error of a coverage near 95 % is 1.5 points
# with 200 runs. A real server has more states than a queue.

"""Simulate queues with known percentiles; print coverage and false alarms as JSON."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import numpy as np

from loadshape.effect import MARGIN, bound_change, decide
from loadshape.interval import bound_mean, bound_quantile, bound_runs
from loadshape.reading import Reading
from loadshape.stats import Floats

UTILIZATIONS = (0.5, 0.8, 0.9)
QUANTILES = (0.5, 0.95, 0.99)
BURN_IN = 20_000


def serve(rng: np.random.Generator, utilization: float, requests: int) -> Floats:
    """Return the sojourn times of a run that begins in the steady state, in units of the mean service time."""
    service = rng.exponential(1.0, requests + BURN_IN)
    gaps = rng.exponential(1.0 / utilization, requests + BURN_IN)
    steps = np.r_[0.0, np.cumsum(service[:-1] - gaps[1:])]
    return (steps - np.minimum.accumulate(steps) + service)[BURN_IN:]


def bound_naively(values: Floats, q: float) -> tuple[float, float]:
    ordered, half = np.sort(values), 1.96 * math.sqrt(q * (1 - q) / len(values))
    ranks = np.clip(np.array([q - half, q + half]) * len(values), 0, len(values) - 1).astype(int)
    return float(ordered[ranks[0]]), float(ordered[ranks[1]])


def measure_coverage(rng: np.random.Generator, runs: int, requests: int) -> list[dict[str, Any]]:
    rows = []
    for utilization in UTILIZATIONS:
        samples = [serve(rng, utilization, requests) for _ in range(runs)]
        rows.append(measure_mean(samples, utilization))
        for q in QUANTILES:
            truth = -math.log(1 - q) / (1 - utilization)
            found = [bound_quantile(values, q) for values in samples]
            naive = [bound_naively(values, q) for values in samples]
            rows.append(
                {
                    "utilization": utilization,
                    "quantile": q,
                    "coverage": float(np.mean([it is not None and it.low <= truth <= it.high for it in found])),
                    "as_if_independent": float(np.mean([low <= truth <= high for low, high in naive])),
                    "effective": float(np.median([it.effective for it in found if it is not None])),
                    "unbounded": float(np.mean([it is not None and math.isinf(it.high) for it in found])),
                }
            )
    return rows


def measure_mean(samples: list[Floats], utilization: float) -> dict[str, Any]:
    truth = 1 / (1 - utilization)
    found = [it for it in map(bound_mean, samples) if it is not None]
    return {
        "utilization": utilization,
        "quantile": "mean",
        "coverage": float(np.mean([it.low <= truth <= it.high for it in found])),
        "effective": float(np.median([it.effective for it in found])),
    }


def measure_alarms(rng: np.random.Generator, runs: int, requests: int, side: int) -> list[dict[str, Any]]:
    rows = []
    for utilization in UTILIZATIONS:
        for q in (None, *QUANTILES[1:]):
            alarms = 0
            for _ in range(runs):
                sides = [[serve(rng, utilization, requests) for _ in range(side)] for _ in range(2)]
                readings = [[read(values, q) for values in samples] for samples in sides]
                interval = bound_change(*readings)
                alarms += decide(interval, more_is_better=False, is_share=False, margin=MARGIN) in ("better", "worse")
            name = q or "mean"
            rows.append({"utilization": utilization, "quantile": name, "runs_a_side": side, "alarms": alarms / runs})
    return rows


def read(values: Floats, q: float | None) -> Reading:
    if q is None:
        return Reading("ttft.mean", "s", float(values.mean()), bound_mean(values), len(values))
    return Reading(f"ttft.p{100 * q:g}", "s", float(np.quantile(values, q)), bound_quantile(values, q), len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="simulated runs a row")
    parser.add_argument("--requests", type=int, default=5000, help="requests of a run")
    parser.add_argument("--seed", type=int, default=7)
    wanted = parser.parse_args()
    rng = np.random.default_rng(wanted.seed)
    found = {
        "runs": wanted.runs,
        "requests": wanted.requests,
        "across_five_runs_p95_at_half": float(
            np.mean([covers_runs([serve(rng, 0.5, 2000) for _ in range(5)], 0.95, 0.5) for _ in range(wanted.runs)])
        ),
        "coverage": measure_coverage(rng, wanted.runs, wanted.requests),
        "false_alarms": [
            row for side in (1, 5) for row in measure_alarms(rng, max(1, wanted.runs // 2), wanted.requests, side)
        ],
    }
    print(json.dumps(found, indent=2))


def covers_runs(samples: list[Floats], q: float, utilization: float) -> bool:
    found = bound_runs([float(np.quantile(values, q)) for values in samples])
    return found is not None and found.low <= -math.log(1 - q) / (1 - utilization) <= found.high


if __name__ == "__main__":
    main()

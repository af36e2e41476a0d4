# Samples of a server as series on the clock of the run.
#
# Law: arithmetic on what was sampled, and no opinion. Engines of one server are taken together: counts and counters are
# added up, of shares the largest counts (the fullest cache is the one that preempts). Times are seconds since T0, those
# of the samples that were taken before anything was sent negative.
#
#     gauge       its values
#     counter     its increase: of the last sample over the first. A server that starts anew begins at 0 again, so a
#                 value that falls is one that has grown from 0 (as Prometheus' increase() does, without extrapolation)
#     histogram   cumulative counters by upper bound. A quantile of it is known to lie in one bucket; within that bucket
#                 it is interpolated evenly, and the bounds are told with it
#
# Source: Prometheus, "Query functions", increase() and histogram_quantile().

"""Series: one name of one server over the run; increases of counters, quantiles of histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.stats import Floats, count_floor
from loadshape.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time: `at_s` since T0, in order, and `values` in `unit`. `target` is None for this host."""

    name: str
    target: int | None
    unit: str
    at_s: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def increase(self) -> float | None:
        """How far a counter has come from its first value to its last; None for fewer than two."""
        if len(self) < 2:
            return None
        steps = np.diff(self.values)
        return float(np.where(steps < 0, self.values[1:], steps).sum())

    @property
    def restarts(self) -> int:
        """How often a counter began anew."""
        return int(np.count_nonzero(np.diff(self.values) < 0))

    def per_second(self, name: str, unit: str) -> Series:
        """Return the rate of a counter between each two samples, at the later of them."""
        steps = np.diff(self.values)
        rate = np.where(steps < 0, self.values[1:], steps) / np.maximum(np.diff(self.at_s), 1e-9)
        return Series(name, self.target, unit, self.at_s[1:], rate)


@dataclass(frozen=True, slots=True)
class Bracket:
    """A quantile of a histogram: it lies between `low_s` and `high_s`, and at `value_s` if evenly so."""

    value_s: float
    low_s: float
    high_s: float


def choose_rows(samples: pa.Table, target: int | None, name: str) -> pa.Table:
    """Return the samples of one name of one target (None: this host)."""
    whose = pc.is_null(samples["target"]) if target is None else pc.equal(samples["target"], target)
    return samples.filter(pc.and_(pc.fill_null(whose, False), pc.equal(samples["name"], name)))


def read_series(samples: pa.Table, target: int | None, *names: str, unit: str = "", by: str = "sum") -> Series:
    """Return the first of *names* that *target* has, its engines taken together *by* "sum" or "max"; perhaps empty."""
    for name in names:
        rows = choose_rows(samples, target, name)
        if rows.num_rows:
            break
    united = rows.group_by("at_ns").aggregate([("value", by)]).sort_by("at_ns")
    at_s = np.asarray(united["at_ns"], np.float64) / NS_PER_S
    return Series(name.rpartition(":")[2], target, unit, at_s, np.asarray(united[f"value_{by}"], np.float64))


def read_histogram(samples: pa.Table, target: int, name: str) -> tuple[Floats, Floats]:
    """Return the upper bounds of a histogram in order and how many values fell to or below each during the run."""
    rows = choose_rows(samples, target, f"{name}_bucket")
    bounds = {text: _read_bound(text) for text in pc.unique(rows["labels"]).to_pylist()}
    found = {}
    for bound in sorted(set(bounds.values())):
        alike = pa.array([text for text, of in bounds.items() if of == bound], pa.string())
        series = read_series(rows.filter(pc.is_in(rows["labels"], alike)), target, f"{name}_bucket")
        found[bound] = series.increase or 0.0
    return np.array(list(found), np.float64), np.array(list(found.values()), np.float64)


def bracket_quantile(bounds: Floats, counts: Floats, q: float) -> Bracket | None:
    """Return the quantile *q* of a histogram by its cumulative *counts*; None for too few values, or one too large.

    A value above the last finite bound is not known to be below anything.
    """
    total = float(counts[-1]) if len(counts) else 0.0
    if total < count_floor(q):
        return None
    rank = q * total
    place = int(np.searchsorted(counts, rank, side="left"))
    high = float(bounds[place])
    if math.isinf(high):
        return None
    low, below = (float(bounds[place - 1]), float(counts[place - 1])) if place else (0.0, 0.0)
    share = (rank - below) / max(float(counts[place]) - below, 1e-9)
    return Bracket(low + (high - low) * share, low, high)


def list_labels(samples: pa.Table, key: str) -> Sequence[str]:
    """Return the values that the label *key* has in *samples*, in order."""
    labels = (msgspec.json.decode(text, type=dict[str, str]) for text in pc.unique(samples["labels"]).to_pylist())
    return sorted({found[key] for found in labels if key in found})


def _read_bound(labels: str) -> float:
    return float(msgspec.json.decode(labels, type=dict[str, str]).get("le", "inf").replace("+Inf", "inf"))

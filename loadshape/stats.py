# Statistics on plain arrays; no domain words here.
#
# Quantiles are exact order statistics with linear interpolation (type 7 of Hyndman & Fan 1996, numpy's
# default), because the raw values are always at hand. A quantile of too few values is not a number:
# below SAMPLE_FLOOR / (1 - q) values it is None. The floor is that of MLPerf LoadGen's early stopping
# (6.64 / (1 - q): the smallest n that can bound a quantile at 99 % confidence with no value over it).

"""Quantiles with sample floors, dispersion of counts, and coefficients of variation."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SAMPLE_FLOOR = 6.64  # mlcommons/inference loadgen/early_stopping.cc: 662 values for p99, 6,636 for p99.9


def count_floor(q: float) -> int:
    """Return how many values the quantile *q* needs before it may be printed: 14, 133, 664 for .5, .95, .99."""
    return math.ceil(round(SAMPLE_FLOOR / (1.0 - max(q, 0.5)), 6))


def quantile(values: Floats, q: float) -> float | None:
    """Return the quantile *q* in [0, 1], or None when there are fewer than count_floor(q) values."""
    if len(values) < count_floor(q):
        return None
    return float(np.quantile(values, q))


def variation(values: Floats) -> float | None:
    """Return the coefficient of variation (standard deviation / mean), None for fewer than two values."""
    if len(values) < 2 or (mean := float(np.mean(values))) == 0.0:
        return None
    return float(np.std(values, ddof=1)) / mean


def dispersion(times_s: Floats, window_s: float, *, duration_s: float) -> float | None:
    """Return the index of dispersion of counts (variance / mean) in windows of *window_s*.

    1 for a Poisson process at every window; 0 for a metronome. None for fewer than ten whole windows.
    """
    windows = int(duration_s / window_s + 1e-9)
    if windows < 10 or len(times_s) == 0:
        return None
    counts, _ = np.histogram(times_s, bins=windows, range=(0.0, windows * window_s))
    mean = float(counts.mean())
    return float(counts.var(ddof=1)) / mean if mean > 0 else None

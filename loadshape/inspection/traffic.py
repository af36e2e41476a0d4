# A trace in numbers: arrivals, lengths, prefixes, load, sessions, and who asks for what.
#
# Law: measuring only, on the rows of the trace, whoever made them; what a recipe says of itself is compared in
# declaration.py. Definitions of arrivals are those of portrait.py, of prefixes those of reuse.py, of the load
# those of load.py. Everything is binned or counted here, so that a form has little to hold.
#
# Lengths are drawn over many powers of two, so their histograms have bins of equal ratio: two to a doubling.
# Quantiles are those of all rows, however few: a trace is the population and no sample of one. They are of type 7 as
# in stats.py, so between two lengths, and printed as whole tokens.

"""Traffic: everything that is measured of a trace, for a terminal, a program or a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.inspection.load import Load, Service, estimate_begins, estimate_load
from loadshape.portrait import measure_trace, read_integers
from loadshape.prefix import BLOCK_TOKENS
from loadshape.reuse import Reuse, measure_reuse
from loadshape.stats import Floats, Integers, exponential_distance, rank_correlation
from loadshape.trace import Trace
from loadshape.units import NS_PER_S

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
MOST_SLICES = 240  # of a rate over time
MOST_NAMES = 12  # of a population, told by name
_STEPS = 2  # bins to a doubling of a length
_ROLES = ("kind", "model", "adapter", "tenant")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values in the bins between `bounds`, the lower one of each being in it."""

    bounds: Floats
    counts: Integers


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The instants that the plan knows: every due time of an open loop, first turns of a partly open one.

    `dispersion` is by the length of the window, in s. `exponential_distance` is that of Kolmogorov and Smirnov between
    the gaps and exponential ones of the same mean, and `scaled` the same in units in which 1.3 is exceeded by one
    Poisson process in a hundred. `gaps_s` are binned by their logarithms; gaps of zero are counted apart.
    """

    count: int
    rate_hz: float | None
    gap_cv: float | None
    gap_autocorrelation: float | None
    dispersion: Mapping[str, float | None]
    exponential_distance: float | None
    exponential_scaled: float | None
    zero_gaps: int
    gaps_s: Histogram
    slice_s: float
    slices_hz: Floats


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts: their mean, the quantiles of QUANTILES, the largest, and a histogram in bins of equal ratio."""

    mean: float
    quantiles: tuple[float, ...]
    longest: int
    histogram: Histogram


@dataclass(frozen=True, slots=True)
class Joint:
    """Requests by input bin (rows) and output bin (columns), and Spearman's rank correlation of the two."""

    counts: Integers
    rank_correlation: float


@dataclass(frozen=True, slots=True)
class Sessions:
    """How many turns sessions have, and the pauses before the later ones; `turns` has how many have 1, 2, ..."""

    count: int
    mean_turns: float
    median_turns: int
    most_turns: int
    alone: int
    think_p50_s: float | None
    think_p90_s: float | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """A trace in numbers. `populations` has for kinds, models, adapters and tenants how often each is asked for."""

    trace: Trace
    arrivals: Arrivals
    inputs: Lengths
    outputs: Lengths
    joint: Joint
    reuse: Reuse
    load: Load
    sessions: Sessions
    populations: Mapping[str, Mapping[str, int]]


def measure_traffic(trace: Trace, *, service: Service | None = None, block_tokens: int | None = None) -> Traffic:
    """Return *trace* in numbers, its load on an assumed *service*, its prefixes in blocks of *block_tokens*.

    Without *block_tokens* they are those of the recording that the trace was made of, else 16.
    """
    requests = trace.requests
    inputs, outputs = (_measure_lengths(read_integers(requests[it])) for it in ("input_tokens", "output_tokens"))
    service = service or Service()
    begins_s = estimate_begins(trace, service)
    order = np.argsort(begins_s, kind="stable")
    return Traffic(
        trace=trace,
        arrivals=_measure_arrivals(trace),
        inputs=inputs,
        outputs=outputs,
        joint=_measure_joint(requests, inputs, outputs),
        reuse=measure_reuse(trace, block_tokens or choose_block_tokens(trace), order),
        load=estimate_load(trace, service, begins_s),
        sessions=_measure_sessions(trace),
        populations={name: found for name in _ROLES if (found := _count_names(requests[name]))},
    )


def choose_block_tokens(trace: Trace) -> int:
    """Return the block size that the trace's recording declares, else the usual one."""
    declared = (trace.manifest.recording or {}).get("block_tokens")
    return declared if isinstance(declared, int) and declared > 0 else BLOCK_TOKENS


def read_due_s(requests: pa.Table) -> Floats:
    """Return the due times that the plan knows, sorted."""
    return np.asarray(np.sort(pc.drop_null(requests["due_ns"]).to_numpy()) / NS_PER_S, np.float64)


def _measure_arrivals(trace: Trace) -> Arrivals:
    manifest = trace.manifest
    found: dict[str, Any] = measure_trace(trace.requests, manifest.duration_s, manifest.loop)
    due_s = read_due_s(trace.requests)
    gaps_s = np.diff(due_s)
    away = exponential_distance(gaps_s)
    end_s = max(manifest.duration_s, float(due_s.max(initial=0)), 1e-9)
    slices = int(np.clip(len(due_s) // 4, 1, MOST_SLICES))
    counts, _ = np.histogram(due_s, bins=slices, range=(0, end_s))
    some_s = gaps_s[gaps_s > 0]
    bounds = np.geomspace(some_s.min() / 1.01, some_s.max() * 1.01, 61) if len(some_s) else np.array([1.0, 2.0])
    return Arrivals(
        count=len(due_s),
        rate_hz=found["rate_hz"],
        gap_cv=found["gap_cv"],
        gap_autocorrelation=found["gap_autocorrelation"],
        dispersion=found["dispersion"],
        exponential_distance=away[0] if away else None,
        exponential_scaled=away[1] if away else None,
        zero_gaps=len(gaps_s) - len(some_s),
        gaps_s=Histogram(bounds, np.histogram(some_s, bounds)[0]),
        slice_s=end_s / slices,
        slices_hz=counts / (end_s / slices),
    )


def _measure_lengths(tokens: Integers) -> Lengths:
    quantiles = np.quantile(tokens, QUANTILES)
    low, high = np.floor(np.log2(max(1, tokens.min())) * _STEPS), np.log2(max(1, tokens.max())) * _STEPS
    bounds = 2 ** (np.arange(low, np.floor(high) + 2) / _STEPS)
    counts, _ = np.histogram(np.maximum(tokens, 1), bounds)
    return Lengths(
        mean=float(tokens.mean()),
        quantiles=tuple(quantiles.tolist()),
        longest=int(tokens.max()),
        histogram=Histogram(bounds, counts),
    )


def _measure_joint(requests: pa.Table, inputs: Lengths, outputs: Lengths) -> Joint:
    pair = [np.maximum(read_integers(requests[name]), 1) for name in ("input_tokens", "output_tokens")]
    row, column = (
        np.searchsorted(it.histogram.bounds, tokens, "right") - 1
        for it, tokens in zip((inputs, outputs), pair, strict=True)
    )
    shape = (len(inputs.histogram.counts), len(outputs.histogram.counts))
    counts = np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1]).reshape(shape)
    return Joint(counts, rank_correlation(*(tokens.astype(np.float64) for tokens in pair)))


def _measure_sessions(trace: Trace) -> Sessions:
    turns = np.bincount(np.unique(read_integers(trace.requests["session"]), return_inverse=True)[1])
    later = read_integers(trace.requests["turn"]) > 0
    think_s = read_integers(trace.requests["think_ns"])[later] / NS_PER_S
    thinks = bool(len(think_s))
    return Sessions(
        count=len(turns),
        mean_turns=float(turns.mean()),
        median_turns=int(np.quantile(turns, 0.5, method="inverted_cdf")),
        most_turns=int(turns.max()),
        alone=int((turns == 1).sum()),
        think_p50_s=float(np.quantile(think_s, 0.5)) if thinks else None,
        think_p90_s=float(np.quantile(think_s, 0.9)) if thinks else None,
    )


def _count_names(column: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each name stands in a column, the most frequent first."""
    counts = {it["values"]: it["counts"] for it in pc.value_counts(pc.drop_null(column)).to_pylist()}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

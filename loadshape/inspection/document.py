# An inspection for programs: JSON with a name and a version.
#
# Law: numbers are SI (seconds, hertz, tokens), shares are parts of 1, a missing number is null. What a person would
# look at as a plot stands here as its bins. A change of meaning or a removed key raises VERSION; a new key does not.

"""JSON form of an inspection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadshape.inspection.claim import Claim
from loadshape.inspection.load import Load
from loadshape.inspection.traffic import QUANTILES, Histogram, Lengths, Traffic
from loadshape.reuse import Reuse

VERSION = 1
_COUNTED = (
    *("block_tokens", "requests", "distinct_prompts", "input_tokens", "shared_tokens", "served_tokens"),
    *("longest_shared_tokens", "blocks", "distinct_blocks", "once_blocks", "hit_rate", "shared_share", "served_share"),
)


def describe_traffic(
    traffic: Traffic, claims: Sequence[Claim], *, silence: str = "", kv_tokens: int | None = None
) -> dict[str, Any]:
    """Return the inspection as plain values; docs/inspect.md lists the keys."""
    arrivals, sessions = traffic.arrivals, traffic.sessions
    return {
        "schema": "loadshape inspection",
        "version": VERSION,
        "claims": [
            {
                "name": it.name,
                "declared": it.declared,
                "found": it.found,
                "low": it.low,
                "high": it.high,
                "verdict": it.verdict,
            }
            for it in claims
        ],
        "silence": silence,
        "arrivals": {
            "count": arrivals.count,
            "rate_hz": arrivals.rate_hz,
            "gap_cv": arrivals.gap_cv,
            "gap_autocorrelation": arrivals.gap_autocorrelation,
            "dispersion": dict(arrivals.dispersion),
            "exponential_distance": arrivals.exponential_distance,
            "exponential_scaled": arrivals.exponential_scaled,
            "zero_gaps": arrivals.zero_gaps,
            "gaps_s": _describe_histogram(arrivals.gaps_s),
            "slice_s": arrivals.slice_s,
            "slices_hz": arrivals.slices_hz.tolist(),
        },
        "input_tokens": _describe_lengths(traffic.inputs),
        "output_tokens": _describe_lengths(traffic.outputs),
        "joint": {"counts": traffic.joint.counts.tolist(), "rank_correlation": traffic.joint.rank_correlation},
        "reuse": _describe_reuse(traffic.reuse),
        "load": _describe_load(traffic.load, kv_tokens),
        "sessions": {name: getattr(sessions, name) for name in sessions.__slots__},
        "populations": {role: dict(names) for role, names in traffic.populations.items()},
    }


def _describe_histogram(found: Histogram) -> dict[str, Any]:
    return {"bounds": found.bounds.tolist(), "counts": found.counts.tolist()}


def _describe_lengths(found: Lengths) -> dict[str, Any]:
    quantiles = {f"p{100 * q:g}": value for q, value in zip(QUANTILES, found.quantiles, strict=True)}
    return {"mean": found.mean, **quantiles, "max": found.longest, "histogram": _describe_histogram(found.histogram)}


def _describe_reuse(found: Reuse) -> dict[str, Any]:
    p50, p90 = np.quantile(found.request_hits, (0.5, 0.9)).tolist()
    return {
        **{name: getattr(found, name) for name in _COUNTED},
        "request_hits": {"p50": p50, "p90": p90},
        "curve": [{"cache_blocks": blocks, "hit_rate": rate} for blocks, rate in found.draw_curve()],
    }


def _describe_load(found: Load, kv_tokens: int | None) -> dict[str, Any]:
    share, since_s = (None, None) if kv_tokens is None else found.find_excess(kv_tokens)
    return {
        "ttft_s": found.service.ttft_s,
        "tpot_s": found.service.tpot_s,
        "mean_in_flight": found.mean_in_flight,
        "peak_in_flight": found.peak_in_flight,
        "peak_kv_tokens": found.peak_kv_tokens,
        "capacity_tokens": kv_tokens,
        "exceeded_share": share,
        "exceeded_since_s": since_s,
        "at_s": found.at_s.tolist(),
        "in_flight": found.in_flight.tolist(),
        "kv_tokens": found.kv_tokens.tolist(),
    }

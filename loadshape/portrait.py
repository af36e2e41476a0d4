# What a trace is like, in numbers: measured on its rows, whoever made them.
#
# Law: looking only. Statistics of a manifest come from here, so that traffic that was drawn, converted or
# derived from other traffic is described by the same definitions, before and after.
#
# Arrivals are the instants that the plan knows: every due time of an open loop, the first turns of a partly
# open one, none in a closed one. The variation of gaps tells how uneven neighbours are and is blind to what
# queues feel; the index of dispersion (variance over mean of the counts in windows) is 1 for Poisson at
# every length, and where it grows with the length the rate itself wanders (Cox & Lewis, "The Statistical
# Analysis of Series of Events", 1966, chapter 4). The lag-1 autocorrelation of gaps is 0 for a renewal
# process, whatever its gaps: above 0, short gaps follow short ones.
#
# Shared tokens are measured by the identity of whole segments: two requests share the tokens of the segments
# with which both begin, in the same roles and messages. What the text of different segments has in common
# is not seen, so the number is a lower bound. A live answer is equal only to itself, inside of its session.

"""Statistics of the requests of a trace, and the tokens that they share by segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.conversation import ROLES
from loadshape.piece import Pieces
from loadshape.sharing import Blocks, rank_values
from loadshape.stats import Floats, Integers, dispersion, variation
from loadshape.trace import Loop
from loadshape.units import NS_PER_S

WINDOWS_S = (0.1, 1.0, 10.0, 60.0, 300.0)
_HALF_NS = 5e-10  # an instant on the edge of a window belongs to the one that it begins


def measure_trace(requests: pa.Table, duration_s: float, loop: Loop) -> dict[str, Any]:
    """Return arrivals, lengths and sharing of *requests* (schema REQUESTS) as a manifest's statistics.

    Rates and dispersions are of [0, duration_s). What cannot be said is None: the rate of a closed loop, the
    dispersion over fewer than ten windows.
    """
    due_s = np.sort(pc.drop_null(requests["due_ns"]).to_numpy()) / NS_PER_S
    inputs, shared = (read_integers(requests[name]) for name in ("input_tokens", "shared_tokens"))
    clocked = loop.mode != "closed" and len(due_s) > 0
    gaps_s = np.diff(due_s)
    return {
        "rate_hz": len(due_s) / duration_s if clocked and duration_s > 0 else None,
        "gap_cv": variation(gaps_s),
        "gap_autocorrelation": measure_gap_autocorrelation(gaps_s),
        "dispersion": {f"{it:g} s": dispersion(due_s + _HALF_NS, it, duration_s=duration_s) for it in WINDOWS_S},
        "input_tokens": summarize_tokens(inputs),
        "output_tokens": summarize_tokens(read_integers(requests["output_tokens"])),
        "shared_share": float(shared.sum() / max(1, inputs.sum())),
        "distinct_prompts": int((shared < inputs).sum()),
    }


def summarize_tokens(tokens: Integers) -> dict[str, float]:
    """Return the mean, p50, p95 (with linear interpolation, as everywhere) and max of token counts."""
    p50, p95 = np.quantile(tokens, (0.5, 0.95))
    return {"mean": float(tokens.mean()), "p50": float(p50), "p95": float(p95), "max": int(tokens.max())}


def measure_shared_tokens(requests: pa.Table, segments: pa.Table) -> Integers:
    """Return, for each request, the tokens of the segments that it shares with one earlier row as its beginning."""
    blocks, sizes = spell_requests(requests, segments)
    return blocks.measure_shared(sizes)


def spell_requests(requests: pa.Table, segments: pa.Table, pieces: Pieces | None = None) -> tuple[Blocks, Integers]:
    """Return requests as blocks, a piece each, equal where a piece stands in the same role; and their tokens.

    Without *pieces* each segment is one.
    """
    split = Pieces.whole(segments) if pieces is None else pieces
    messages = _messages(requests)
    per_request = np.asarray(pc.list_value_length(requests["messages"].combine_chunks()), np.int64)
    per_message = np.asarray(pc.list_value_length(pc.struct_field(messages, "segments")), np.int64)
    segment = np.asarray(pc.list_flatten(pc.struct_field(messages, "segments")), np.int64)
    begins = np.zeros(len(segment), np.int64)
    begins[(np.cumsum(per_message) - per_message)[per_message > 0]] = 1
    message = np.repeat(np.arange(len(per_message)), per_message)
    owner = np.repeat(np.arange(len(per_request)), per_request)[message]
    is_answer = pc.equal(segments["kind"], "answer").to_numpy()[segment]
    whose = np.where(is_answer, read_integers(requests["session"])[owner] + 1, 0)
    role = np.asarray(pc.struct_field(messages, "role").indices, np.int64)[message]
    piece, of, is_first = split.expand(segment)
    letters = (piece * len(ROLES) + role[of]) * 2 + begins[of] * is_first
    letters = rank_values(letters)[1] * (whose.max(initial=0) + 1) + whose[of]
    counts = np.bincount(owner[of], minlength=len(per_request))
    return Blocks.of(letters, counts), split.tokens[piece]


def read_integers(column: pa.ChunkedArray) -> Integers:
    """Return a column without nulls as int64."""
    return np.asarray(column.to_numpy(), np.int64)


def _messages(requests: pa.Table) -> pa.Array:
    return pc.list_flatten(requests["messages"].combine_chunks())


def measure_gap_autocorrelation(gaps_s: Floats) -> float | None:
    """Return the lag-1 autocorrelation of gaps, None where there are few or they do not vary."""
    away = gaps_s - gaps_s.mean() if len(gaps_s) > 2 else np.zeros(1)
    total = float(away @ away)
    return float(away[1:] @ away[:-1]) / total if total > 0 else None

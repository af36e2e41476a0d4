# What every number means: the definitions, and nothing else.
#
# Law: a metric is defined once, here, as a formula over the columns of the log; docs, reports and the
# code below read the same table. Nothing is averaged here and no window is applied: a measure gives one
# value a request (or a gap), nan where the definition does not apply. Whole columns at a time, never a
# Python loop over rows: 10 million reads take seconds.
#
# Two clocks start a request. From `due`, the instant at which the plan wanted it, a latency is what a
# user would have felt, and a generator that is late cannot hide it (coordinated omission: G. Tene's wrk2).
# From `sent`, just before its first byte left, it is the service's own time ("service_...").
#
#     due ---- begun - connected - sent - written ---- first_token ---- ... ---- last_token - done
#      |lateness|connect|        |upload|                   |<--- ICL, ITL, TPOT --->|
#      |<------------------- TTFT ----------------------->| |
#      |<------------------------------- E2E ----------------------------------------->|
#
# A token is what the server counts, never an event. What is observed is the gap between reads that
# carried output (ICL); spreading it over the tokens of the later read is derived and is called ITL.
#
# Stamps with nulls become float64: exact to 1 ns for a run of up to 104 days (2^53 ns).

"""Metric definitions: formulas, units and vectorized measures over the log's columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadshape.column import Column
from loadshape.errors import InputError
from loadshape.log import Log
from loadshape.stats import Floats, Integers
from loadshape.tally import NEVER
from loadshape.units import NS_PER_S

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric: its unit, its formula over the log's columns, which rows it is taken over, and why."""

    unit: str
    formula: str
    rows: str
    explanation: str


OK = "requests that ended ok"
SPANS = {  # metric: (from, to), stamps of one request
    "lateness": ("due", "begun"),
    "connect": ("begun", "connected"),
    "upload": ("sent", "written"),
    "ttft": ("due", "first_token"),
    "service_ttft": ("sent", "first_token"),
    "time_to_first_content": ("due", "first_content"),
    "e2e": ("due", "last_token"),
    "service_e2e": ("sent", "last_token"),
}
STALL = 5.0  # a gap so many times as long as the median one is a stall
INSTRUMENT = ("lateness", "connect", "upload")  # the generator's own: of every request, however it ended


def _span(name: str, rows: str, explanation: str) -> Definition:
    start, end = SPANS[name]
    return Definition("s", f"{end} - {start}", rows, explanation)


DEFINITIONS = {
    "lateness": _span(
        "lateness",
        "requests that were begun",
        "The generator's own fault, always reported apart. Part of every latency that is counted from due.",
    ),
    "connect": _span("connect", "requests that opened a connection", "TCP and TLS set-up; none on a reused one."),
    "upload": _span("upload", "requests that were written", "Handing the request's bytes to the kernel."),
    "ttft": _span(
        "ttft",
        OK,
        "Time to first token, as the plan's user felt it. The first token is the first non-empty content, "
        "reasoning, tool-call or text delta; a role-only or empty delta is none.",
    ),
    "service_ttft": _span("service_ttft", OK, "Time to first token without the generator's lateness and connecting."),
    "time_to_first_content": _span(
        "time_to_first_content", OK, "Like TTFT, but waits for content: reasoning and tool calls do not count."
    ),
    "tpot": Definition(
        "s",
        "(last_token - first_token) / (completion_tokens - 1)",
        OK + " with completion_tokens >= 2",
        "Time per output token after the first, with tokens as the server counted them; undefined if it did not.",
    ),
    "icl": Definition(
        "s",
        "at[i] - at[i-1]",
        "consecutive token-bearing reads of " + OK,
        "Inter-chunk latency: what was observed. Where one read carried several token-bearing events their "
        "times are an interval, not points; how many did is reported beside it.",
    ),
    "itl": Definition(
        "s",
        "(at[i] - at[i-1]) / tokens[i], counted tokens[i] times",
        "tokens after the first token-bearing read of " + OK,
        "Inter-token latency: ICL spread evenly over the tokens of the later read; derived, not observed. The "
        "token rule (what the server counted for that read, else one a delta) is named in the report.",
    ),
    "longest_gap": Definition(
        "s",
        "max over i of at[i] - at[i-1]",
        OK + " with two token-bearing reads",
        "The longest silence in the middle of an answer, one value a request: a stream that stops once is not smooth, "
        "however good its mean.",
    ),
    "e2e": _span("e2e", OK, "End to end: until the last token."),
    "service_e2e": _span("service_e2e", OK, "End to end without the generator's lateness and connecting."),
    "receive_lag": Definition(
        "s",
        "seen - at",
        "every read, where the kernel stamps them",
        "How far the process ran behind the kernel's receive stamp: the error bar of the run.",
    ),
    "ttft_with_failures": Definition(
        "s",
        "ttft, infinite for a request that did not end ok",
        "requests that fell due",
        "A server that fails its slow requests looks fast in plain TTFT; here failing is the slowest answer.",
    ),
    "e2e_with_failures": Definition(
        "s", "e2e, infinite for a request that did not end ok", "requests that fell due", "The same for E2E."
    ),
    "offered_hz": Definition("1/s", "requests due in the window / window", "requests that fell due", "What was asked."),
    "achieved_hz": Definition(
        "1/s", "requests due in the window and begun / window", "requests that were begun", "What the generator did."
    ),
    "request_hz": Definition(
        "1/s",
        "requests done in the window / window",
        OK,
        "Completions count where they fall, so an overloaded server cannot borrow the time after the window.",
    ),
    "input_tokens_per_s": Definition("tokens/s", "sum of prompt_tokens / window", OK + " in the window", "As served."),
    "uncached_input_tokens_per_s": Definition(
        "tokens/s",
        "sum of (prompt_tokens - cached_tokens) / window",
        OK + " in the window",
        "What had to be computed: without the tokens that the server took from its prefix cache.",
    ),
    "output_tokens_per_s": Definition(
        "tokens/s", "sum of completion_tokens / window", OK + " in the window", "As the server counted them."
    ),
    "total_tokens_per_s": Definition("tokens/s", "input + output tokens per s", OK + " in the window", "Both."),
    "reasoning_tokens_per_s": Definition(
        "tokens/s", "sum of reasoning_tokens / window", OK + " in the window", "Part of the output tokens."
    ),
    "user_tokens_per_s": Definition(
        "tokens/s",
        "sum of (completion_tokens - 1) / sum of (last_token - first_token)",
        OK + " with completion_tokens >= 2",
        "How fast one user sees an answer grow, over all answers. Of a single request it is 1 / TPOT, so its "
        "percentiles are those of TPOT upside down.",
    ),
    "cached_share": Definition(
        "share",
        "sum of cached_tokens / sum of prompt_tokens",
        OK + " in the window",
        "Of the input tokens, those from the server's prefix cache, as it says.",
    ),
    "stalled": Definition(
        "share",
        "sum of gaps longer than 5 x the median gap / sum of all gaps",
        "gaps between token-bearing reads of " + OK,
        "Of the time in which answers were under way, the part in which they stood still: preemption, a prefill "
        "that holds up decoding, or a full queue of bytes.",
    ),
    "goodput_hz": Definition(
        "1/s",
        "requests done in the window that met every objective / window",
        OK,
        "A failed request is a miss. A request of one token has no TPOT and meets that objective; one whose "
        "tokens the server did not count misses it.",
    ),
    "goodput_tokens_per_s": Definition(
        "tokens/s",
        "sum of completion_tokens of the requests of goodput_hz / window",
        OK,
        "Output tokens that came in time to count: those of a request that missed an objective are none.",
    ),
    "attainment": Definition(
        "share",
        "requests that met every objective / requests due in the window",
        "requests that fell due",
        "A failed request is a miss.",
    ),
}


def explain(name: str) -> str:
    """Return the definition of one metric as text. Raises InputError for a name that is none."""
    if name not in DEFINITIONS:
        raise InputError(f"metric: expected one of {', '.join(DEFINITIONS)}; found {name!r}")
    it = DEFINITIONS[name]
    return f"{name} [{it.unit}] = {it.formula}\n  over: {it.rows}\n  {it.explanation}"


def read_column(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a numeric column as numpy; one with nulls becomes float64 with nan."""
    return np.asarray(table[name].to_numpy())


def read_stamp_s(requests: pa.Table, stamp: str) -> Floats:
    """Return a stamp ("due", "begun", ...) in seconds since the epoch of the run, nan where it is null."""
    return read_column(requests, f"{stamp}_ns").astype(np.float64) / NS_PER_S


def measure_span(requests: pa.Table, start: str, end: str) -> Floats:
    """Return the seconds between two stamps, one value a request, nan where either is missing."""
    # Subtracted in ns, not in s: 1 ns stays 1 ns an hour into the run.
    start_ns, end_ns = (read_column(requests, f"{stamp}_ns") for stamp in (start, end))
    return np.asarray((end_ns - start_ns) / NS_PER_S, np.float64)


def is_outcome(requests: pa.Table, *names: str) -> Mask:
    """Return which requests ended in one of the outcomes *names*."""
    wanted = pc.is_in(requests["outcome"].cast(pa.string()), pa.array(names))
    return np.asarray(wanted, np.bool_)


def fell_due(requests: pa.Table) -> Mask:
    """Return which requests' due instant came, whatever became of them."""
    return ~np.isnan(read_stamp_s(requests, "due")) & ~is_outcome(requests, "not_reached")


def measure(requests: pa.Table, name: str) -> Floats:
    """Return one value a request for the metric *name*: a key of SPANS, or "tpot"; nan outside of its rows."""
    if name in INSTRUMENT:
        return measure_span(requests, *SPANS[name])
    values = _measure_tpot(requests) if name == "tpot" else measure_span(requests, *SPANS[name])
    return np.where(is_outcome(requests, "ok"), values, np.nan)


def charge_failures(requests: pa.Table, values: Floats) -> Floats:
    """Return *values*, infinite for every request that fell due and did not end ok."""
    return np.where(fell_due(requests) & ~is_outcome(requests, "ok"), np.inf, values)


def measure_user_rate(requests: pa.Table) -> float | None:
    """Return user_tokens_per_s of *requests*, None where the server counted no tokens."""
    steps, span_s = _count_steps(requests), measure_span(requests, "first_token", "last_token")
    known = is_outcome(requests, "ok") & ~np.isnan(steps) & ~np.isnan(span_s)
    total_s = float(span_s[known].sum())
    return float(steps[known].sum()) / total_s if total_s > 0 else None


def _measure_tpot(requests: pa.Table) -> Floats:
    return np.asarray(measure_span(requests, "first_token", "last_token") / _count_steps(requests), np.float64)


def _count_steps(requests: pa.Table) -> Floats:
    """Return the tokens after the first one, nan where there are none or the server did not count."""
    tokens = read_column(requests, "completion_tokens").astype(np.float64)
    return np.where(tokens >= 2, tokens - 1, np.nan)


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps between consecutive token-bearing reads of the same request, in the order in which they were written.

    One entry a gap: `request` it is of, `end_us` when it ended, its length `gap_ns`, and the `tokens` (at least 1) of
    the read that ended it; columns of integers as narrow as their values. `longest_s` has one entry a request that
    has gaps, by number. `reads` counts the token-bearing reads, `shared` those of them with several token-bearing
    events; `rule` says where `tokens` come from.
    """

    request: NDArray[Any]
    end_us: NDArray[Any]
    gap_ns: NDArray[Any]
    tokens: NDArray[Any]
    longest_s: Floats
    reads: int
    shared: int
    rule: str

    @property
    def end_s(self) -> Floats:
        """When each gap ended."""
        return self.end_us / 1e6

    @property
    def gap_s(self) -> Floats:
        """How long each was."""
        return self.gap_ns / NS_PER_S

    @property
    def itl_s(self) -> Floats:
        """The part of each gap that falls on one of its tokens: a value that counts `tokens` times."""
        share_s = self.gap_ns / self.tokens
        share_s /= NS_PER_S  # in its place, since there may be a hundred million
        return np.asarray(share_s, np.float64)

    def pick(self, places: slice) -> Gaps:
        """Return some of the gaps, the rest as it is: every k-th of them, or a stretch of time of one worker."""
        columns = {name: getattr(self, name)[places].copy() for name in ("request", "end_us", "gap_ns", "tokens")}
        return replace(self, **columns)

    def thin(self, most: int) -> Gaps:
        """Return all gaps, or every k-th where there are more than *most*."""
        every = max(1, -(-len(self.gap_ns) // most))
        return self if every == 1 else self.pick(slice(None, None, every))


def measure_gaps(log: Log, members: Integers) -> Gaps:
    """Return the gaps of the requests numbered *members*, in one pass over the reads."""
    size = max(log.run.planned, log.requests.num_rows)
    wanted = np.zeros(size + 1, np.bool_)  # the last is for numbers that were never planned
    wanted[members[members < size]] = True
    expected = log.read_rows
    columns = [Column(kind, expected) for kind in (np.uint32, np.uint32, np.uint32, np.uint16)]
    last_ns, longest_ns = np.full(size, NEVER), np.full(size, -1)
    reads = shared = counted = 0
    for part in log.read_parts("request", "at_ns", "deltas", "tokens"):
        owner, at_ns, deltas = (read_column(part, name) for name in ("request", "at_ns", "deltas"))
        tokens, known = _count_tokens(part["tokens"], deltas)
        bears = (deltas > 0) & wanted[np.minimum(owner, size)]
        if not bears.all():
            owner, at_ns, deltas, tokens, known = (it[bears] for it in (owner, at_ns, deltas, tokens, known))
        before_ns = find_before(owner, at_ns, last_ns)
        later = np.flatnonzero(before_ns != NEVER)
        gap_ns = at_ns[later] - before_ns[later]
        for column, values in zip(columns, (owner[later], at_ns[later] // 1000, gap_ns, tokens[later]), strict=True):
            column.extend(values)
        np.maximum.at(longest_ns, owner[later], gap_ns)
        last_ns[owner] = at_ns
        reads += len(owner)
        shared += int(np.count_nonzero(deltas > 1))
        counted += int(np.count_nonzero(known))
    request, end_us, gaps_ns, tokens = (column.close() for column in columns)
    return Gaps(
        request,
        end_us,
        gaps_ns,
        tokens,
        longest_ns[longest_ns >= 0] / NS_PER_S,
        reads,
        shared,
        _name_rule(counted, reads),
    )


def measure_stalled(gaps: Gaps, typical_s: float | None = None) -> float | None:
    """Return the share of the gaps' time that lies in gaps longer than STALL times their median, None for no gap.

    *typical_s* is the median of the gaps for who has it already.
    """
    total_ns = int(gaps.gap_ns.sum(dtype=np.int64))
    if total_ns <= 0:
        return None
    typical_ns = float(np.median(gaps.gap_ns)) if typical_s is None else typical_s * NS_PER_S
    return int(gaps.gap_ns[gaps.gap_ns > STALL * typical_ns].sum(dtype=np.int64)) / total_ns


def find_before(owner: Integers, at_ns: Integers, last_ns: Integers) -> Integers:
    """Return the stamp of the read of the same request before each one; *last_ns* has those before the first here."""
    rows = len(owner)
    # Sorted by request and then by row: whole numbers sort several times as fast as an order of them (bench_judge.py).
    order = np.sort((owner.astype(np.int64) << 32) | np.arange(rows)) & 0xFFFFFFFF
    owner, at_ns = owner[order], at_ns[order]
    before_ns = np.empty(rows, np.int64)
    before_ns[1:] = at_ns[:-1]
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]][:rows])
    before_ns[first] = last_ns[owner[first]]
    found = np.empty(rows, np.int64)
    found[order] = before_ns
    return found


def _count_tokens(said: pa.ChunkedArray, deltas: Integers) -> tuple[Integers, Mask]:
    """Return the tokens of each read, and which of them the server counted."""
    if said.null_count == len(said):
        return np.maximum(deltas, 1), np.zeros(len(deltas), np.bool_)
    counts = np.asarray(said.to_numpy())
    known = np.isfinite(counts)
    # A read that carried output carried a token, even if a server's running count says 0 for it.
    return np.maximum(np.where(known, counts, deltas), 1).astype(np.int64), known


def _name_rule(counted: int, reads: int) -> str:
    if not counted:
        return "one token a delta"
    return "as the server counted them" if counted == reads else "as the server counted them, else one a delta"

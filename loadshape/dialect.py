# The words of other tools: what they would have said of this run.
#
# Law: one log, other definitions. A dialect is data: from which stamp a tool counts, which chunks it takes for tokens,
# where an answer ends for it, which failures it takes for answers, and how it divides. Its figures are computed here
# from our stamps, so a difference to ours is one of definition alone; a difference to what the tool itself prints is
# one of its instrument, or of the traffic. Its percentiles are printed as it prints them: without sample floors.
#
#                 begins     first, last                 one request's mean gap             each gap
#     vllm        begun      any chunk with choices      tpot, to the last such chunk       itl, a chunk
#     sglang      begun      content; the end, [DONE]    tpot, to the end                   itl, a chunk
#     aiperf      begun      content, reasoning, tools   inter_token_latency                inter_chunk_latency
#     guidellm    sent       content, reasoning, tools   inter_token_latency_ms             -
#
# What the log does not hold is left out, not guessed: a tool that tokenizes the answer again when the server counted
# nothing has no length here. Where several events came in one read they share its stamp, and the gaps between them are
# zero, as they nearly are for a tool that stamps while it parses. Read in the source of vLLM 0.32.0
# (benchmarks/serve.py and lib/endpoint_request_func.py), aiperf 0.13.0 (metrics/types/), guidellm 0.8.1
# (schemas/base/request_stats.py), sglang (python/sglang/bench_serving.py, commit 0033168f).

"""Dialects: a run in the definitions of vllm bench serve, aiperf, guidellm and sglang's bench_serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadshape import metrics
from loadshape.column import Column
from loadshape.errors import InputError
from loadshape.log import Log
from loadshape.stats import Floats, Integers
from loadshape.summary import Objectives, Summary
from loadshape.tally import NEVER
from loadshape.units import NS_PER_S

ROLE, CONTENT, FINISH, USAGE, DONE, COMMENT, ERROR = 1, 2, 16, 32, 64, 128, 256  # bits of the log's column kinds
Values = Floats | float | None


@dataclass(frozen=True, slots=True)
class View:
    """A run as one tool accounts for it: of the window's requests those that it takes for answered, in their order.

    `first_s` and `last_s` are counted from where the tool begins; `mean_gap_s` is nan for fewer than two tokens.
    `owner` and `gap_ns` have an entry a gap between chunks, those of one request in the order of time.
    """

    requests: pa.Table
    failed: int
    first_s: Floats
    last_s: Floats
    mean_gap_s: Floats
    tokens: Floats
    owner: NDArray[Any]
    gap_ns: NDArray[Any]
    good: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Term:
    """One figure of a tool: its name there, its unit, its formula over our columns, and how it is taken."""

    name: str
    unit: str
    formula: str
    take: Callable[[View], Values]
    weigh: Callable[[View], Floats] | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one tool defines its figures; `counts` gives the chunks of a read that it takes for tokens."""

    begins: str
    counts: Callable[[pa.Table], Integers]
    ends: str  # "last" chunk that counts, or "done"
    answered: tuple[str, ...]
    terms: tuple[Term, ...]
    assumes_length: bool = False  # takes what was asked for where the server did not count


@dataclass(frozen=True, slots=True)
class Statement:
    """What the tool would say by one term: a distribution, or one `mean` for a rate."""

    term: Term
    count: int
    mean: float | None
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """A run in the words of `tool`."""

    tool: str
    answered: int
    failed: int
    statements: tuple[Statement, ...]


def translate(summary: Summary, tool: str) -> Translation:
    """Return what *tool* would say of the window of *summary*. Raises InputError for none of DIALECTS."""
    view = look_as(summary, tool)
    statements = tuple(_state(term, view) for term in DIALECTS[tool].terms)
    return Translation(tool, view.requests.num_rows, view.failed, statements)


def look_as(summary: Summary, tool: str) -> View:
    """Return the account that *tool* would keep of the window of *summary*. Raises InputError."""
    if tool not in DIALECTS:
        raise InputError(f"tool: expected one of {', '.join(DIALECTS)}; found {tool!r}")
    dialect, members = DIALECTS[tool], summary.members
    candidates = members.filter(pa.array(metrics.is_outcome(members, *dialect.answered)))
    heard = _hear(summary.log, np.asarray(candidates["request"]).astype(np.int64), dialect.counts)
    numbers = np.asarray(candidates["request"])
    first_ns, last_ns = heard.first_ns[numbers], heard.last_ns[numbers]
    kept = first_ns != NEVER
    requests = candidates.filter(pa.array(kept))
    start_ns = metrics.read_column(requests, f"{dialect.begins}_ns")
    end_ns = last_ns[kept] if dialect.ends == "last" else metrics.read_column(requests, "done_ns")
    first_s, last_s = (first_ns[kept] - start_ns) / NS_PER_S, (end_ns - start_ns) / NS_PER_S
    tokens = _count_tokens(summary.log, requests, assumes=dialect.assumes_length)
    mean_gap_s = (last_s - first_s) / np.where(tokens >= 2, tokens - 1, np.nan)
    return View(
        requests=requests,
        failed=members.num_rows - requests.num_rows,
        first_s=first_s,
        last_s=last_s,
        mean_gap_s=mean_gap_s,
        tokens=tokens,
        owner=heard.owner,
        gap_ns=heard.gap_ns,
        good=_count_good(summary.objectives, first_s, mean_gap_s, last_s),
        duration_s=_measure_duration_s(members),
    )


@dataclass(frozen=True, slots=True)
class _Heard:
    """By number: stamps of the first and the last chunk that counts, NEVER without one. An entry a gap beside."""

    first_ns: Integers
    last_ns: Integers
    owner: NDArray[Any]
    gap_ns: NDArray[Any]


def _hear(log: Log, members: Integers, counts: Callable[[pa.Table], Integers]) -> _Heard:
    size = max(log.run.planned, int(members.max(initial=-1)) + 1)
    wanted = np.zeros(size + 1, np.bool_)
    wanted[members] = True
    first_ns, last_ns = np.full(size, NEVER), np.full(size, NEVER)
    owners, gaps_ns = Column(np.uint32, log.read_rows), Column(np.uint32, log.read_rows)
    for part in log.read_parts("request", "at_ns", "events", "deltas", "kinds"):
        chunks = counts(part)
        owner, at_ns = metrics.read_column(part, "request"), metrics.read_column(part, "at_ns")
        kept = np.flatnonzero((chunks > 0) & wanted[np.minimum(owner, size)])
        owner, at_ns, chunks = owner[kept], at_ns[kept], chunks[kept]
        before_ns = metrics.find_before(owner, at_ns, last_ns)
        begins = before_ns == NEVER
        gaps = chunks - begins  # the first chunk of an answer ends no gap
        inside_ns = np.zeros(int(gaps.sum()), np.int64)
        inside_ns[(np.cumsum(gaps) - gaps)[~begins]] = (at_ns - before_ns)[~begins]
        owners.extend(np.repeat(owner, gaps))
        gaps_ns.extend(inside_ns)
        first_ns[owner[begins]] = at_ns[begins]
        last_ns[owner] = at_ns
    return _Heard(first_ns, last_ns, owners.close(), gaps_ns.close())


def _count_deltas(reads: pa.Table) -> Integers:
    return metrics.read_column(reads, "deltas").astype(np.int64)


def _count_content(reads: pa.Table) -> Integers:
    return np.where(metrics.read_column(reads, "kinds") & CONTENT, _count_deltas(reads), 0)


def _count_choices(reads: pa.Table) -> Integers:
    """Return the events with choices: all but [DONE], comments, errors, and a usage that stands alone."""
    kinds = metrics.read_column(reads, "kinds").astype(np.int64)
    rest = metrics.read_column(reads, "events").astype(np.int64)
    for other in (DONE, COMMENT, ERROR):
        rest = rest - (kinds & other > 0)
    least = np.maximum(_count_deltas(reads), kinds & (ROLE | FINISH) > 0)
    alone = (kinds & USAGE > 0) & (rest - 1 >= least)
    return np.maximum(rest - alone, 0)


def _count_tokens(log: Log, requests: pa.Table, *, assumes: bool) -> Floats:
    tokens = metrics.read_column(requests, "completion_tokens").astype(np.float64)
    if not assumes or log.planned is None:
        return tokens
    rows = np.searchsorted(np.asarray(log.planned["request"]), np.asarray(requests["request"]))
    return np.where(np.isnan(tokens), np.asarray(log.planned["output_tokens"])[rows], tokens)


def _count_good(objectives: Objectives, ttft_s: Floats, tpot_s: Floats, e2e_s: Floats) -> int:
    good = np.ones(len(ttft_s), np.bool_)
    for limit_s, values in ((objectives.ttft_s, ttft_s), (objectives.tpot_s, tpot_s), (objectives.e2e_s, e2e_s)):
        if limit_s is not None:
            good &= np.nan_to_num(values, nan=0.0) <= limit_s  # no token after the first counts as none too slow
    return int(good.sum())


def _measure_duration_s(members: pa.Table) -> float:
    begun, done = (metrics.read_stamp_s(members, name) for name in ("begun", "done"))
    return float(np.fmax.reduce(done, initial=-np.inf) - np.fmin.reduce(begun, initial=np.inf))


def _state(term: Term, view: View) -> Statement:
    values = term.take(view)
    if not isinstance(values, np.ndarray):
        return Statement(term, view.requests.num_rows, values)
    weights = None if term.weigh is None else np.nan_to_num(term.weigh(view))
    known = ~np.isnan(values)
    values, weights = values[known], None if weights is None else weights[known]
    if len(values) == 0 or (weights is not None and weights.sum() == 0):
        return Statement(term, 0, None)
    method: Any = "linear" if weights is None else "inverted_cdf"
    p50, p99 = np.quantile(values, (0.5, 0.99), weights=weights, method=method)
    return Statement(term, len(values), float(np.average(values, weights=weights)), float(p50), float(p99))


def _rate(view: View, amount: float) -> float | None:
    return float(amount) / view.duration_s if view.duration_s > 0 else None


def _take_gaps(view: View) -> Floats:
    return view.gap_ns / NS_PER_S


def _take_input(view: View) -> float:
    return float(np.nansum(metrics.read_column(view.requests, "prompt_tokens").astype(np.float64)))


def _name_rates(requests: str, good: str, output: str, total: str) -> tuple[Term, ...]:
    per_s = "(last done - first begun)"
    return (
        Term(requests, "1/s", f"answered / {per_s}", lambda it: _rate(it, it.requests.num_rows)),
        Term(good, "1/s", f"answered within the objectives / {per_s}", lambda it: _rate(it, it.good)),
        Term(output, "tokens/s", f"sum of output tokens / {per_s}", lambda it: _rate(it, float(np.nansum(it.tokens)))),
        Term(
            total,
            "tokens/s",
            f"sum of input and output tokens / {per_s}",
            lambda it: _rate(it, _take_input(it) + float(np.nansum(it.tokens))),
        ),
    )


DIALECTS: dict[str, Dialect] = {
    "vllm": Dialect(
        begins="begun",
        counts=_count_choices,
        ends="last",
        answered=("ok", "in_band_error", "no_token"),
        terms=(
            Term("ttft", "s", "first chunk with choices - begun", lambda it: it.first_s),
            Term("tpot", "s", "(e2el - ttft) / (completion_tokens - 1)", lambda it: it.mean_gap_s),
            Term("itl", "s", "gap between chunks with choices", _take_gaps),
            Term("e2el", "s", "last chunk with choices - begun", lambda it: it.last_s),
            *_name_rates("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
        ),
    ),
    "aiperf": Dialect(
        begins="begun",
        counts=_count_deltas,
        ends="last",
        answered=("ok", "in_band_error"),
        terms=(
            Term("time_to_first_token", "s", "first_token - begun", lambda it: it.first_s),
            Term(
                "inter_token_latency",
                "s",
                "(request_latency - time_to_first_token) / (completion_tokens - 1)",
                lambda it: it.mean_gap_s,
            ),
            Term("inter_chunk_latency", "s", "gap between token-bearing events", _take_gaps),
            Term("request_latency", "s", "last_token - begun", lambda it: it.last_s),
            *_name_rates("request_throughput", "goodput", "output_token_throughput", "total_token_throughput"),
        ),
    ),
    "guidellm": Dialect(
        begins="sent",
        counts=_count_deltas,
        ends="last",
        answered=("ok",),
        terms=(
            Term("time_to_first_token_ms", "s", "first_token - sent", lambda it: it.first_s),
            Term(
                "time_per_output_token_ms",
                "s",
                "(last_token - sent) / completion_tokens, counted completion_tokens times",
                lambda it: it.last_s / it.tokens,
                lambda it: it.tokens,
            ),
            Term(
                "inter_token_latency_ms",
                "s",
                "(last_token - first_token) / (completion_tokens - 1), counted completion_tokens - 1 times",
                lambda it: it.mean_gap_s,
                lambda it: it.tokens - 1,
            ),
            Term(
                "request_latency",
                "s",
                "done - sent",
                lambda it: metrics.measure_span(it.requests, "sent", "done"),
            ),
            *_name_rates("requests_per_second", "goodput", "output_tokens_per_second", "tokens_per_second"),
        ),
    ),
    "sglang": Dialect(
        begins="begun",
        counts=_count_content,
        ends="done",
        answered=("ok", "in_band_error"),
        assumes_length=True,
        terms=(
            Term("ttft", "s", "first_content - begun", lambda it: it.first_s),
            Term("tpot", "s", "(e2e_latency - ttft) / (output tokens - 1)", lambda it: it.mean_gap_s),
            Term("itl", "s", "gap between chunks with content", _take_gaps),
            Term("e2e_latency", "s", "done - begun", lambda it: it.last_s),
            *_name_rates("request_throughput", "goodput", "output_throughput", "total_throughput"),
        ),
    ),
}

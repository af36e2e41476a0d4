# One log in numbers: the definitions of metrics.py over a declared window, with the verdict above them.
#
# Law: nothing is trimmed silently. The window is declared by the caller and printed; a request belongs to
# it by its due instant, and is followed to its end wherever that falls. Completions count for throughput
# where they fall, so time after the window is never borrowed. Outcomes are of the whole run and add up to
# the planned requests. A percentile of too few values is None (see stats.py); a throughput of tokens is
# None when the server did not count them.
#
# The verdict is of the whole run: an instrument that failed during the warm-up has failed.

"""Summary: distributions, rates, outcomes and the verdict of one log."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadshape import metrics, stats
from loadshape.errors import InputError
from loadshape.log import OUTCOMES, Log, count_outcomes
from loadshape.metrics import Mask
from loadshape.stats import Floats, Integers
from loadshape.units import NS_PER_S
from loadshape.validity import Limits, Verdict, judge
from loadshape.validity.arrivals import Arrivals, measure_arrivals

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
SLICE_S = 10.0
TOP_MESSAGES = 2
_PART = 1 << 20


class Objectives(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request must keep to count as good; None leaves it open. The defaults promise nothing: state yours."""

    ttft_s: float | None = 1.0
    tpot_s: float | None = 0.05
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """Order statistics of one metric in seconds; None for a percentile of too few values, and for all of none."""

    count: int
    mean_s: float | None
    min_s: float | None
    p50_s: float | None
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    p999_s: float | None
    max_s: float | None

    @classmethod
    def of(cls, values: NDArray[Any], weights: NDArray[Any] | None = None) -> Distribution:
        """Return the distribution of *values* without nan, each counted *weights* times. Integers are nanoseconds."""
        unit = NS_PER_S if values.dtype.kind in "iu" else 1
        if weights is None and unit == 1:
            values = values[~np.isnan(values)]
        if len(values) == 0:
            return cls(0, None, None, None, None, None, None, None, None)
        p50, p90, p95, p99, p999 = stats.quantiles(values, QUANTILES, weights, unit=unit)
        count = len(values) if weights is None else int(weights.sum())
        mean_s, min_s, max_s = (float(it) / unit for it in (_average(values, weights), values.min(), values.max()))
        return cls(count, mean_s, min_s, p50, p90, p95, p99, p999, max_s)


def _average(values: NDArray[Any], weights: NDArray[Any] | None) -> float:
    if weights is None:
        return float(values.mean())
    places = (slice(at, at + _PART) for at in range(0, len(values), _PART))  # all products at once would be a copy
    return sum(float(values[it] @ weights[it].astype(values.dtype)) for it in places) / int(weights.sum())


@dataclass(frozen=True, slots=True)
class Window:
    """The judged interval in seconds since the start of the run; both ends belong to it."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s

    def holds(self, times_s: Floats) -> Mask:
        """Return which times lie inside; nan does not."""
        return np.asarray((times_s >= self.start_s) & (times_s <= self.end_s), np.bool_)

    def rate_hz(self, count: float) -> float | None:
        """Return *count* a second, None for a window without length."""
        return count / self.length_s if self.length_s > 0 else None


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates over the window. `completed` requests ended ok in it; for `counted` of them the server counted tokens."""

    offered_hz: float | None
    achieved_hz: float | None
    request_hz: float | None
    input_tokens_per_s: float | None
    uncached_input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    reasoning_tokens_per_s: float | None
    total_tokens_per_s: float | None
    user_tokens_per_s: float | None  # of the requests that fell due in the window
    cached_share: float | None
    completed: int
    counted: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Ten seconds of the run, or what is left of them at its end: requests that fell due and that were begun in it."""

    start_s: float
    length_s: float
    offered_hz: float
    achieved_hz: float


@dataclass(frozen=True, slots=True)
class Intervals:
    """How ICL and ITL were seen: token-bearing `reads`, `shared` of them with several events, and the token rule."""

    reads: int
    shared: int
    token_rule: str


@dataclass(frozen=True, slots=True)
class Failure:
    """One outcome other than ok: how many requests, and their most frequent messages with counts."""

    outcome: str
    count: int
    messages: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PerTarget:
    """One of several targets: its outcomes in the whole run, its latencies and its rate in the window."""

    target: int
    url: str
    requests: int
    outcomes: dict[str, int]
    ttft: Distribution
    e2e: Distribution
    output_tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One log in numbers. Definitions are in `metrics.DEFINITIONS`; `log` is what it was made from."""

    verdict: Verdict
    window: Window
    lateness: Distribution
    connect: Distribution
    upload: Distribution
    ttft: Distribution
    service_ttft: Distribution
    time_to_first_content: Distribution
    tpot: Distribution
    icl: Distribution
    itl: Distribution
    longest_gap: Distribution
    e2e: Distribution
    service_e2e: Distribution
    receive_lag: Distribution
    ttft_with_failures: Distribution
    e2e_with_failures: Distribution
    intervals: Intervals
    throughput: Throughput
    throughput_of_run: Throughput  # of the whole run; that of the window where the window is the whole
    slices: tuple[Slice, ...]
    arrivals: Arrivals | None
    objectives: Objectives
    attainment: float | None
    stalled: float | None
    planned: int
    outcomes: dict[str, int]
    failures: tuple[Failure, ...]
    by_target: tuple[PerTarget, ...]  # empty for a single one
    log: Log = field(repr=False, compare=False)
    members: pa.Table = field(repr=False, compare=False)  # the requests that fell due in the window
    gaps: metrics.Gaps = field(repr=False, compare=False)  # between their reads
    is_good: Mask = field(repr=False, compare=False)  # which of the members met every objective

    @property
    def receive_lag_ns(self) -> NDArray[Any]:
        """How far the process ran behind the kernel's stamp, one value a read; empty without kernel stamps."""
        return _receive_lag_ns(self.log)

    @property
    def good_hz(self) -> float | None:
        """Goodput under the stated objectives."""
        return self.goodput_hz(**msgspec.structs.asdict(self.objectives))

    def goodput_hz(
        self, *, ttft_s: float | None = None, tpot_s: float | None = None, e2e_s: float | None = None
    ) -> float | None:
        """Return requests a second that met every given objective; a failed request is a miss."""
        good = self._good_and_done(Objectives(ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=e2e_s))
        return self.window.rate_hz(int(np.count_nonzero(good)))

    @property
    def goodput_tokens_per_s(self) -> float | None:
        """Output tokens a second of the requests of `good_hz`, None where the server counted none."""
        good = self.log.requests["completion_tokens"].filter(pa.array(self._good_and_done(self.objectives)))
        total = pc.sum(good).as_py()
        if total is None:  # nothing was good, or nothing was counted
            return 0.0 if self.throughput.counted and self.window.length_s > 0 else None
        return self.window.rate_hz(total)

    def _good_and_done(self, objectives: Objectives) -> Mask:
        done = self.window.holds(metrics.read_stamp_s(self.log.requests, "done"))
        return meet_objectives(self.log.requests, objectives) & done


def summarize(
    log: Log,
    *,
    warmup_s: float = 0.0,
    cooldown_s: float = 0.0,
    objectives: Objectives | None = None,
    limits: Limits | None = None,
) -> Summary:
    """Return the numbers of *log* over the run without its first *warmup_s* and its last *cooldown_s*.

    *objectives* are those of the stated goodput, *limits* those of the verdict. Raises InputError when
    nothing is left of the run.
    """
    requests, objectives, limits = log.requests, objectives or Objectives(), limits or Limits()
    window = open_window(log, warmup_s, cooldown_s)
    members = window.holds(metrics.read_stamp_s(requests, "due")) & metrics.fell_due(requests)
    chosen = requests if members.all() else requests.filter(pa.array(members))
    verdict = judge(log, limits, window_s=(window.start_s, window.end_s))  # first: it needs the most memory
    gaps = metrics.measure_gaps(log, _numbers_ok(chosen))
    icl = Distribution.of(gaps.gap_ns)
    good = meet_objectives(chosen, objectives)
    throughput = _measure_throughput(requests, chosen, window)
    return Summary(
        verdict=verdict,
        window=window,
        **{name: Distribution.of(metrics.measure(chosen, name)) for name in (*metrics.SPANS, "tpot")},
        **_censored(chosen),
        icl=icl,
        itl=icl if np.all(gaps.tokens == 1) else Distribution.of(gaps.itl_s, gaps.tokens),
        longest_gap=Distribution.of(gaps.longest_s),
        receive_lag=Distribution.of(_receive_lag_ns(log)),
        intervals=Intervals(gaps.reads, gaps.shared, gaps.rule),
        throughput=throughput,
        throughput_of_run=_measure_whole(log) if warmup_s or cooldown_s else throughput,
        slices=slice_rates(log),
        arrivals=measure_arrivals(log, limits),
        objectives=objectives,
        attainment=float(good.mean()) if len(good) else None,
        stalled=metrics.measure_stalled(gaps, icl.p50_s),
        planned=log.run.planned,
        outcomes=count_outcomes(requests),
        failures=_list_failures(requests),
        by_target=_divide_by_target(log, chosen, window),
        log=log,
        members=chosen,
        gaps=gaps,
        is_good=good,
    )


def open_window(log: Log, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Window:
    """Return the window of *log*; raises InputError when warm-up and cool-down leave nothing of it.

    The run lasts as planned, or until its last begun request fell due where that is later (turns that wait
    for one another) or where no length was planned (a closed loop).
    """
    begun = log.requests.filter(pc.is_valid(log.requests["begun_ns"]))
    last_due_s = float(np.fmax.reduce(metrics.read_stamp_s(begun, "due"), initial=0.0))
    end_s = max(log.duration_s or log.manifest.ended_ns / 1e9, last_due_s)
    if warmup_s < 0 or cooldown_s < 0 or (warmup_s + cooldown_s and warmup_s + cooldown_s >= end_s):
        raise InputError(
            f"warm-up and cool-down: expected both >= 0 and together less than the run's {end_s:g} s, "
            f"found {warmup_s:g} s and {cooldown_s:g} s"
        )
    return Window(warmup_s, end_s - cooldown_s)


def slice_rates(log: Log) -> tuple[Slice, ...]:
    """Return the offered and the achieved rate of every ten seconds of the whole run."""
    due_s, begun_s = (metrics.read_stamp_s(log.requests, stamp) for stamp in ("due", "begun"))
    due_s, begun_s = due_s[metrics.fell_due(log.requests)], begun_s[~np.isnan(begun_s)]
    end_s = max(log.run.duration_s, float(due_s.max(initial=0.0)), float(begun_s.max(initial=0.0)))
    if end_s <= 0:
        return ()
    starts_s = np.arange(0.0, end_s, SLICE_S)
    lengths_s = np.minimum(SLICE_S, end_s - starts_s)
    counts = (np.histogram(times, np.r_[starts_s, end_s])[0] / lengths_s for times in (due_s, begun_s))
    return tuple(Slice(*values) for values in zip(*(it.tolist() for it in (starts_s, lengths_s, *counts)), strict=True))


def meet_objectives(requests: pa.Table, objectives: Objectives) -> Mask:
    """Return which requests ended ok and kept every objective."""
    good = metrics.is_outcome(requests, "ok")
    for name, limit_s in msgspec.structs.asdict(objectives).items():
        if limit_s is not None:
            values = metrics.measure(requests, name.removesuffix("_s"))
            good &= (values <= limit_s) | _has_no_tpot(requests, name)
    return good


def _has_no_tpot(requests: pa.Table, objective: str) -> Mask:
    if objective != "tpot_s":
        return np.zeros(requests.num_rows, np.bool_)
    return np.asarray(metrics.read_column(requests, "completion_tokens") < 2, np.bool_)


def _numbers_ok(requests: pa.Table) -> Integers:
    numbers = metrics.read_column(requests, "request")[metrics.is_outcome(requests, "ok")]
    return numbers.astype(np.int64)


def _censored(requests: pa.Table) -> dict[str, Distribution]:
    return {
        f"{name}_with_failures": Distribution.of(metrics.charge_failures(requests, metrics.measure(requests, name)))
        for name in ("ttft", "e2e")
    }


def _receive_lag_ns(log: Log) -> NDArray[Any]:
    return log.tally.lag_ns if log.run.receive == "kernel" else np.empty(0, np.int32)


def _measure_whole(log: Log) -> Throughput:
    window = open_window(log)
    due = window.holds(metrics.read_stamp_s(log.requests, "due")) & metrics.fell_due(log.requests)
    return _measure_throughput(log.requests, log.requests.filter(pa.array(due)), window)


def _measure_throughput(requests: pa.Table, due: pa.Table, window: Window) -> Throughput:
    ended = window.holds(metrics.read_stamp_s(requests, "done")) & metrics.is_outcome(requests, "ok")
    done = requests.filter(pa.array(ended))
    sums = {of: pc.sum(done[f"{of}_tokens"]).as_py() for of in ("prompt", "completion", "cached", "reasoning")}
    read, written, cached, reasoned = (None if total is None else window.rate_hz(total) for total in sums.values())
    return Throughput(
        offered_hz=window.rate_hz(due.num_rows),
        achieved_hz=window.rate_hz(due.num_rows - due["begun_ns"].null_count),
        request_hz=window.rate_hz(done.num_rows),
        input_tokens_per_s=read,
        uncached_input_tokens_per_s=None if read is None or cached is None else read - cached,
        output_tokens_per_s=written,
        reasoning_tokens_per_s=reasoned,
        total_tokens_per_s=None if read is None or written is None else read + written,
        user_tokens_per_s=metrics.measure_user_rate(due),
        cached_share=sums["cached"] / sums["prompt"] if sums["prompt"] and sums["cached"] is not None else None,
        completed=done.num_rows,
        counted=done.num_rows - done["completion_tokens"].null_count,
    )


def _divide_by_target(log: Log, due: pa.Table, window: Window) -> tuple[PerTarget, ...]:
    if len(log.run.targets) < 2:
        return ()
    parts = []
    for target, about in enumerate(log.run.targets):
        own, own_due = (table.filter(pc.equal(table["target"], target)) for table in (log.requests, due))
        spans = {name: Distribution.of(metrics.measure(own_due, name)) for name in ("ttft", "e2e")}
        rate_hz = _measure_throughput(own, own_due, window).output_tokens_per_s
        url = str(about.get("url", ""))
        parts.append(PerTarget(target, url, own.num_rows, count_outcomes(own), **spans, output_tokens_per_s=rate_hz))
    return tuple(parts)


def _list_failures(requests: pa.Table) -> tuple[Failure, ...]:
    outcome = requests["outcome"].cast(pa.string())
    said = pa.table({"outcome": outcome, "error": requests["error"]}).filter(pc.not_equal(outcome, "ok"))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in said.group_by(["outcome", "error"]).aggregate([([], "count_all")]).to_pylist():
        counts[row["outcome"]][row["error"] or ""] = row["count_all"]
    return tuple(Failure(name, counts[name].total(), _top(counts[name])) for name in OUTCOMES if name in counts)


def _top(messages: Counter[str]) -> tuple[tuple[str, int], ...]:
    told = sorted((-count, text) for text, count in messages.items() if text)  # ties by text: a stable report
    return tuple((text, -count) for count, text in told[:TOP_MESSAGES])

# One number of one run, by name: what gates promise, comparisons compare and searches look for.
#
# Law: a reading is a metric of metrics.DEFINITIONS and, where that is a distribution, a statistic of it:
#
#     ttft.p95   tpot.mean   e2e_with_failures.p99.9   lateness.max
#     request_hz   output_tokens_per_s   goodput_hz   attainment   errors   outcome.http_error
#
# It carries its unit, which way is better, and the interval of a single run (interval.py). A number that should not
# be there is not: below its sample floor a percentile has no value, and `why` says how many requests it
# had and how many it needs. Nothing is computed twice: rates and shares are those of the summary.

"""Readings: numbers of a summary by name, with unit, direction, interval, or the reason why there is none."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadshape import metrics
from loadshape.errors import InputError
from loadshape.interval import Interval, bound_mean, bound_quantile, bound_runs
from loadshape.log import OUTCOMES
from loadshape.stats import Floats, count_floor, quantile, quantiles
from loadshape.summary import Distribution, Summary
from loadshape.units import NS_PER_S, format_duration, format_rate

MOST_VALUES = 1 << 18  # whose dependence is looked at for an interval; twice as many take twice as long
CENSORED = ("ttft_with_failures", "e2e_with_failures")
DISTRIBUTIONS = (*metrics.SPANS, "tpot", "icl", "itl", "longest_gap", "receive_lag", *CENSORED)
RATES = (
    *("offered_hz", "achieved_hz", "request_hz", "input_tokens_per_s", "uncached_input_tokens_per_s"),
    *("output_tokens_per_s", "reasoning_tokens_per_s", "total_tokens_per_s", "user_tokens_per_s"),
)
GOODPUTS = {"goodput_hz": "good_hz", "goodput_tokens_per_s": "goodput_tokens_per_s"}  # as a summary calls them
SHARES = ("attainment", "errors", "cached_share", "stalled", *(f"outcome.{name}" for name in OUTCOMES))
COSTS = {  # of what the owner of the server declared: its unit, and per what of the declared facts
    "output_tokens_per_gpu_s": ("tokens/s", "gpus"),
    "price_per_million_tokens": ("per Mtok", "price_per_hour"),
    "kwh_per_million_tokens": ("kWh/Mtok", "power_kw"),
}
MORE_IS_BETTER = (*RATES, *GOODPUTS, "output_tokens_per_gpu_s", "attainment", "cached_share", "outcome.ok")
_KEPT = ("p50", "p90", "p95", "p99", "p99.9")  # percentiles that a summary has
_STATISTIC = re.compile(r"mean|min|max|p(?P<percent>\d{1,2}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Reading:
    """A number of one run: `value` in `unit` ("s", "1/s", "tokens/s" or "share"), None where `why` says so."""

    name: str
    unit: str
    value: float | None
    interval: Interval | None = None
    count: int = 0
    why: str = ""

    @property
    def more_is_better(self) -> bool:
        """Whether a larger value is the better one."""
        return self.name in MORE_IS_BETTER

    def __str__(self) -> str:
        return show_value(self.value, self.unit) if self.value is not None else f"n/a ({self.why})"


def show_value(value: float | None, unit: str) -> str:
    """Return a value as people read it: 31.4 ms, 40.1/s, 512 tok/s, 99.2 %."""
    if unit == "s":
        return format_duration(value)
    if value is None or math.isnan(value):
        return "n/a"
    if unit == "share":
        return f"{value:.2%}".replace("%", " %")
    return format_rate(value, "tok" if "tok" in unit else "") if unit.endswith("/s") else f"{value:.4g} {unit}"


def show_interval(reading: Reading) -> str:
    """Return the interval of a reading as text, empty where there is none."""
    sure = reading.interval
    return f"{show_value(sure.low, reading.unit)} to {show_value(sure.high, reading.unit)}" if sure else ""


def check_reading(name: str) -> str:
    """Return the unit of the reading *name*. Raises InputError, with the nearest right name, where there is none."""
    metric, _, statistic = name.partition(".")
    if name in RATES or name in GOODPUTS:
        return metrics.DEFINITIONS[name].unit
    if name in SHARES:
        return "share"
    if name in COSTS:
        return COSTS[name][0]
    if metric in DISTRIBUTIONS and _STATISTIC.fullmatch(statistic):
        return "s"
    if metric in DISTRIBUTIONS:
        raise InputError(
            f"reading: expected a statistic such as {metric}.p95, {metric}.mean or {metric}.max, found {name!r}"
        )
    known = [*DISTRIBUTIONS, *RATES, *GOODPUTS, *SHARES, *COSTS]
    near = [*difflib.get_close_matches(name, known, n=1), *difflib.get_close_matches(metric, known, n=1)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"reading: expected a metric of the report such as ttft.p95 or request_hz, found {name!r}{hint}")


def take_reading(summary: Summary, name: str, sample: Floats | None = None) -> Reading:
    """Return the reading *name* of one run. Raises InputError for a name that is none.

    *sample* is draw_sample of its metric, for who takes several readings of one.
    """
    unit = check_reading(name)
    if unit == "s":
        return _read_distribution(summary, name, sample)
    if name in SHARES:
        return _read_share(summary, name)
    if name in COSTS:
        return _read_cost(summary, name)
    value = getattr(summary, GOODPUTS[name]) if name in GOODPUTS else getattr(summary.throughput, name)
    why = "" if value is not None else "the server did not count tokens, or nothing was done in the window"
    return Reading(name, unit, value, count=summary.throughput.completed, why=why)


def lighten(summary: Summary) -> Summary:
    """Return the same numbers with a sample of the gaps, so that many large runs fit into memory beside each other."""
    return replace(summary, log=replace(summary.log), gaps=summary.gaps.thin(MOST_VALUES))  # without what it gathered


def unite_runs(readings: Sequence[Reading]) -> Reading:
    """Return one reading of several runs of the same traffic: their mean, and the interval across runs.

    One run keeps its own. A run without a value leaves the whole without one: it is not left out silently.
    """
    first = readings[0]
    missing = next((it for it in readings if it.value is None), None)
    if len(readings) == 1 or missing is not None:
        return missing or first
    values = [it.value for it in readings if it.value is not None]
    positive = all(0 < value < math.inf for value in values)
    value = math.exp(math.fsum(map(math.log, values)) / len(values)) if positive else math.fsum(values) / len(values)
    sure = bound_runs(values)
    if sure and sure.low == sure.high:  # the same in every run, such as no errors: then each alone says more
        sure = max((it.interval for it in readings if it.interval), key=lambda it: it.high - it.low, default=sure)
    return replace(first, value=value, interval=sure, count=sum(it.count for it in readings))


def withhold(reading: Reading) -> Reading:
    """Return the reading of a run that is INVALID: no number, and why."""
    return replace(reading, value=None, interval=None, why="the run is INVALID")


def draw_sample(summary: Summary, metric: str) -> Floats:
    """Return values of a distribution in the order of time: one a request, a gap or a read, without nan.

    All of them, but of more than MOST_VALUES gaps or reads every k-th.
    """
    if metric in ("icl", "itl"):
        gaps = summary.gaps.thin(MOST_VALUES)
        order = np.argsort(gaps.end_us, kind="stable")
        return gaps.gap_s[order] if metric == "icl" else np.repeat(gaps.itl_s[order], gaps.tokens[order])
    if metric == "longest_gap":
        return summary.gaps.longest_s
    if metric == "receive_lag":
        return np.asarray(_thin(summary.receive_lag_ns) / NS_PER_S, np.float64)
    base = metric.removesuffix("_with_failures")
    values = metrics.measure(summary.members, base)
    if base != metric:
        values = metrics.charge_failures(summary.members, values)
    due_s = metrics.read_stamp_s(summary.members, "due")
    values = values[np.argsort(due_s, kind="stable")]
    return values[~np.isnan(values)]


def _read_distribution(summary: Summary, name: str, sample: Floats | None) -> Reading:
    metric, _, statistic = name.partition(".")
    whole: Distribution = getattr(summary, metric)
    count = whole.count
    match = _STATISTIC.fullmatch(statistic)
    percent = match and match["percent"]
    if count == 0:
        return Reading(name, "s", None, count=0, why="no request has this metric")
    sample = _thin(draw_sample(summary, metric) if sample is None else sample)
    if not percent:
        value: float | None = getattr(whole, f"{statistic}_s")  # mean, min or max
        is_bounded = statistic == "mean" and value is not None and math.isfinite(value)
        return Reading(name, "s", value, bound_mean(sample) if is_bounded else None, count)
    q = float(percent) / 100
    value = getattr(whole, f"{statistic.replace('.', '')}_s") if statistic in _KEPT else _measure(summary, metric, q)
    if value is None:
        return Reading(name, "s", None, count=count, why=f"{count:,} values; p{percent} needs {count_floor(q):,}")
    return Reading(name, "s", value, bound_quantile(sample, q), count)


def _measure(summary: Summary, metric: str, q: float) -> float | None:
    """Return a percentile that the summary does not keep, of all values that are at hand."""
    if metric == "icl":
        return quantile(summary.gaps.gap_ns, q, unit=NS_PER_S)
    if metric == "itl":
        return quantiles(summary.gaps.itl_s, (q,), summary.gaps.tokens)[0]
    if metric == "receive_lag":
        return quantile(summary.receive_lag_ns, q, unit=NS_PER_S)
    return quantile(draw_sample(summary, metric), q)


def _thin(values: NDArray[Any]) -> NDArray[Any]:
    """Return every so manieth of very many values: their dependence is told by fewer, and never for the better."""
    return values[:: max(1, -(-len(values) // MOST_VALUES))]


def _read_share(summary: Summary, name: str) -> Reading:
    ended_ok = metrics.is_outcome(summary.members, "ok")
    count = len(ended_ok)
    if name in ("cached_share", "stalled"):
        value = summary.stalled if name == "stalled" else summary.throughput.cached_share
        why = "" if value is not None else "the server did not say" if name == "cached_share" else "no gaps"
        return Reading(name, "share", value, count=count, why=why)
    if name == "attainment":
        return _share(name, summary.attainment, summary.is_good, count)
    hits = ~ended_ok if name == "errors" else metrics.is_outcome(summary.members, name.partition(".")[2])
    return _share(name, float(hits.mean()) if count else None, hits, count)


def _read_cost(summary: Summary, name: str) -> Reading:
    """Of output tokens, as the server counted them, and of a fact that the run file declares."""
    unit, fact = COSTS[name]
    declared = (summary.log.environment.get("declared") or {}).get(fact)
    rate = summary.throughput.output_tokens_per_s
    count = summary.throughput.completed
    if not isinstance(declared, int | float) or declared <= 0:
        return Reading(name, unit, None, count=count, why=f"declare {fact} in [declared] of the run file")
    if not rate:
        return Reading(name, unit, None, count=count, why="the server did not count tokens")
    value = rate / declared if name == "output_tokens_per_gpu_s" else declared * 1e6 / (rate * 3600)
    return Reading(name, unit, value, count=count)


def _share(name: str, value: float | None, hits: np.ndarray, count: int) -> Reading:
    if value is None:
        return Reading(name, "share", None, count=count, why="no request fell due in the window")
    sure = bound_mean(hits.astype(np.float64))
    if sure is not None and sure.low == sure.high:  # none, or all: the rule of three bounds what was not seen
        edge = 3.0 / count
        sure = Interval(value - edge if value else 0.0, value + edge if value < 1 else 1.0, count)
    bounded = sure and Interval(max(0.0, sure.low), min(1.0, sure.high), sure.effective)
    return Reading(name, "share", value, bounded, count)

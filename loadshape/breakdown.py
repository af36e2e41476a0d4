# The same numbers by part: where in the traffic is the tail?
#
# Law: a part is a set of requests that is known from the plan or from the answer, and every request of the window
# belongs to exactly one. Nothing is defined anew: a part has the metrics of metrics.py, percentiles with their sample
# floors, and rates over the window of the whole (for time: over its own slice). Parts of a run are not independent of
# one another, since they met in one queue: a breakdown says where to look, not what would be without the rest.
#
#     kind tenant model adapter       as the trace says it
#     input output                    planned tokens, in bins of powers of two
#     share                           of the planned input, what an earlier request of the trace began with too
#     cached                          whether the server took some of the input from its prefix cache, as it says
#     turn target node                as the log says it
#     time                            slices of the window, by the due instant
#
# What was planned stands in the log itself; logs from before it did cannot be divided by it, and say so.

"""Breakdowns: a summary's numbers by kind, length, turn, target, tenant, prefix or time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadshape import metrics
from loadshape.errors import InputError
from loadshape.log import Log, count_outcomes
from loadshape.stats import Integers
from loadshape.summary import Distribution, Summary, Window

MOST = 30  # parts; of more names the rest is one part
SLICES = 20  # of time, at most
OTHERS = "others"
_SMALLEST = 64  # tokens: the first bin ends here
_SHARES = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Part:
    """The numbers of some requests of the window; rates are None where the server did not count tokens."""

    name: str
    count: int
    outcomes: dict[str, int]
    ttft: Distribution
    tpot: Distribution
    e2e: Distribution
    output_tokens_per_s: float | None
    attainment: float | None


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The parts of a window, in the order of their names or sizes; `by` is a key of KINDS."""

    by: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Division:
    """Which part each request belongs to, by place in `names`; which its end counts for; how long each part is."""

    names: Sequence[str]
    parts: Integers
    done_in: Integers
    lengths_s: Sequence[float]


def break_down(summary: Summary, by: str) -> Breakdown:
    """Return the numbers of *summary* by one of KINDS. Raises InputError for another, and where the log cannot tell."""
    if by not in KINDS:
        raise InputError(f"by: expected one of {', '.join(KINDS)}; found {by!r}")
    requests, window = summary.log.requests, summary.window
    division = KINDS[by](summary)
    due = window.holds(metrics.read_stamp_s(requests, "due")) & metrics.fell_due(requests)
    done = window.holds(metrics.read_stamp_s(requests, "done")) & metrics.is_outcome(requests, "ok")
    good = np.zeros(requests.num_rows, np.bool_)
    good[due] = summary.is_good
    rows = []
    for at, name in enumerate(division.names):
        mine = due & (division.parts == at)
        if mine.any():
            chosen = requests.filter(pa.array(mine))
            written = pc.sum(requests["completion_tokens"].filter(pa.array(done & (division.done_in == at)))).as_py()
            length_s = division.lengths_s[at]
            rate_hz = written / length_s if written is not None and length_s > 0 else None
            rows.append(_measure_part(name, chosen, rate_hz, float(good[mine].mean())))
    return Breakdown(by, tuple(rows))


def _measure_part(name: str, chosen: pa.Table, rate_hz: float | None, attainment: float) -> Part:
    ttft, tpot, e2e = (Distribution.of(metrics.measure(chosen, it)) for it in ("ttft", "tpot", "e2e"))
    return Part(name, chosen.num_rows, count_outcomes(chosen), ttft, tpot, e2e, rate_hz, attainment)


def _divide_names(column: str) -> Callable[[Summary], _Division]:
    def divide(summary: Summary) -> _Division:
        return _divide_by(summary, [it or "none" for it in _read_planned(summary.log, column).to_pylist()])

    return divide


def _divide_lengths(column: str) -> Callable[[Summary], _Division]:
    def divide(summary: Summary) -> _Division:
        tokens = np.asarray(_read_planned(summary.log, column)).astype(np.int64)
        edges = _SMALLEST << np.arange(26)  # the last is beyond what a uint32 holds
        place = np.searchsorted(edges, tokens, side="right")
        names = [
            f"{low:,} - {high - 1:,} tokens" for low, high in zip([0, *edges.tolist()], edges.tolist(), strict=False)
        ]
        return _make(summary, names, place)

    return divide


def _divide_share(summary: Summary) -> _Division:
    shared, tokens = (
        np.asarray(_read_planned(summary.log, name)).astype(np.float64) for name in ("shared_tokens", "input_tokens")
    )
    place = np.where(shared > 0, np.searchsorted(_SHARES[1:], shared / np.maximum(tokens, 1), side="right") + 1, 0)
    return _make(summary, ["none", "below 25 %", "25 to 50 %", "50 to 75 %", "75 % and more"], place)


def _divide_cached(summary: Summary) -> _Division:
    cached = metrics.read_column(summary.log.requests, "cached_tokens").astype(np.float64)
    return _make(summary, ["hit", "no hit", "not told"], np.where(np.isnan(cached), 2, np.where(cached > 0, 0, 1)))


def _divide_turn(summary: Summary) -> _Division:
    turns = np.asarray(summary.log.requests["turn"]).astype(np.int64)
    last = min(int(turns.max(initial=0)), MOST)
    names = [f"turn {turn}" for turn in range(last)] + [f"turn {last}" if last < MOST else f"turn {last} and later"]
    return _make(summary, names, np.minimum(turns, last))


def _divide_target(summary: Summary) -> _Division:
    names = [str(it.get("url", at)) for at, it in enumerate(summary.log.run.targets)]
    targets = np.asarray(summary.log.requests["target"]).astype(np.int64)
    return _make(summary, [*names, "not known"], np.minimum(targets, len(names)))


def _divide_node(summary: Summary) -> _Division:
    names = [f"node {it}" for it in range(summary.log.run.nodes)][:MOST]
    nodes = np.asarray(summary.log.requests["node"]).astype(np.int64)
    return _make(summary, [*names, OTHERS], np.minimum(nodes, len(names)))


def _divide_time(summary: Summary) -> _Division:
    window = summary.window
    width_s = max(10.0, np.ceil(window.length_s / SLICES / 10.0) * 10.0)
    count = max(1, int(np.ceil(window.length_s / width_s)))
    due, done = (_slice(window, metrics.read_stamp_s(summary.log.requests, name), width_s) for name in ("due", "done"))
    starts_s = (window.start_s + width_s * np.arange(count)).tolist()
    ends_s = [min(start_s + width_s, window.end_s) for start_s in starts_s]
    names = [f"{start_s:g} - {end_s:g} s" for start_s, end_s in zip(starts_s, ends_s, strict=True)]
    last = np.clip(due, 0, count - 1), np.clip(done, 0, count - 1)  # the end of the window belongs to the last
    return _Division(names, *last, [end_s - start_s for start_s, end_s in zip(starts_s, ends_s, strict=True)])


def _slice(window: Window, times_s: NDArray[np.float64], width_s: float) -> Integers:
    return np.floor(np.nan_to_num((times_s - window.start_s) / width_s, nan=-1.0)).astype(np.int64)


def _divide_by(summary: Summary, values: list[str]) -> _Division:
    """Divide by name: the most frequent ones, in the order of the alphabet, and the rest as one."""
    names, codes, counts = np.unique(
        np.array(values, dtype=object).astype(str), return_inverse=True, return_counts=True
    )
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST])
    place = np.full(len(names), len(kept))
    place[kept] = np.arange(len(kept))
    return _make(summary, [*names[kept].tolist(), OTHERS], place[codes])


def _make(summary: Summary, names: Sequence[str], place: Integers) -> _Division:
    return _Division(names, place, place, [summary.window.length_s] * len(names))


def _read_planned(log: Log, column: str) -> pa.ChunkedArray:
    """Return a column of what was planned, in the order of the requests. Raises InputError where it is not known."""
    if log.planned is None:
        raise InputError(
            f"{log.path}: does not hold what was planned, so it cannot be divided by that: it is from before logs "
            "did, or was recovered without its trace; divide it by turn, target, cached or time, or replay again"
        )
    return log.planned[column].take(pa.array(_find_rows(log)))


def _find_rows(log: Log) -> NDArray[Any]:
    numbers = np.asarray(log.requests["request"])
    rows = np.searchsorted(np.asarray(log.planned["request"]), numbers) if log.planned is not None else numbers
    return np.minimum(rows, max(0, log.run.planned - 1))


KINDS: dict[str, Callable[[Summary], _Division]] = {
    "kind": _divide_names("kind"),
    "tenant": _divide_names("tenant"),
    "model": _divide_names("model"),
    "adapter": _divide_names("adapter"),
    "input": _divide_lengths("input_tokens"),
    "output": _divide_lengths("output_tokens"),
    "share": _divide_share,
    "cached": _divide_cached,
    "turn": _divide_turn,
    "target": _divide_target,
    "node": _divide_node,
    "time": _divide_time,
}

# The figures of the page, as data for plotly.js.
#
# Law: a figure is a plain dict {data, layout}; no plotly is imported here. Everything is binned before it
# leaves this module, so that a million requests draw as fast as a thousand: more than POINTS points of
# one kind become the cells of a grid, each drawn once, larger where it holds more. Colours are names of
# CSS variables of the page ("--ok"), resolved there, so that one file is readable by day and by night.
# Nothing that a server said enters a figure (plotly reads some HTML in labels): numbers and outcomes only.
#
# Latencies are drawn on a logarithmic axis: the tail and the body are both to be seen.

"""Figures: latency over time, distributions, requests in flight, rates, lateness."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from loadshape import metrics
from loadshape.log import OUTCOMES
from loadshape.stats import Floats, Integers, count_floor, quantiles
from loadshape.summary import Summary
from loadshape.validity import Limits

POINTS = 3000  # SVG marks of one outcome in one panel; beyond, they are binned
_CROWD = 500  # marks that may be drawn strongly without painting the panel over
_GRID = (140, 40)  # cells over time and over latency when binned
_BINS = 300  # of a rate or a trend over time, at most
_SMALLEST_S = 1e-7  # what a logarithmic axis shows for zero
_MARKS = (0.5, 0.95, 0.99)
_QUARTERS = {"tickmode": "array", "tickvals": [0, 0.25, 0.5, 0.75, 1], "tickformat": ".0%"}

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its title, a sentence on how to read it, and its data and layout for plotly.js."""

    title: str
    caption: str
    data: list[Trace]
    layout: dict[str, Any]


def draw_figures(summary: Summary) -> list[Figure]:
    """Return the figures of a report, without those that would be empty."""
    gaps_s = summary.gaps.gap_s
    figures = [
        _draw_latency(summary),
        _draw_distribution("TTFT", "requests that ended ok", _judged(summary, "ttft")),
        _draw_distribution("ICL, the gap between reads with output", "gaps of requests that ended ok", gaps_s),
        _draw_traffic(summary),
        _draw_gaps(summary),
        _draw_lateness(summary),
    ]
    return [figure for figure in figures if figure.data]


def _draw_latency(summary: Summary) -> Figure:
    requests = summary.log.requests
    due_s = metrics.read_stamp_s(requests, "due")
    ok = metrics.is_outcome(requests, "ok")
    ended_s = np.where(ok, metrics.measure(requests, "e2e"), metrics.measure_span(requests, "due", "done"))
    first_s = metrics.measure_span(requests, "due", "first_token")
    data = [
        *_scatter_outcomes(requests, due_s, first_s, "TTFT", "y"),
        *_scatter_outcomes(requests, due_s, ended_s, "ended after", "y2"),
        *_trend(due_s[ok], first_s[ok], "y"),
        *_trend(due_s[ok], ended_s[ok], "y2"),
    ]
    layout = {
        "height": 620,
        "xaxis": {"title": {"text": "due time (s)"}, "anchor": "y2"},
        "yaxis": _log_axis("TTFT", domain=[0.54, 1]),
        "yaxis2": _log_axis("E2E", domain=[0, 0.46]),
        "shapes": _mark_window(summary),
    }
    caption = (
        "Every request at the time it was due; a request that failed stands at the time it took to fail. "
        "Lines are the median and the 95th percentile of each slice of time: a guide to the eye, not a claim."
    )
    return Figure("Latency over time", caption, data, layout)


def _draw_distribution(name: str, over: str, values: Floats) -> Figure:
    values = np.maximum(values[~np.isnan(values)], _SMALLEST_S)
    caption = f"Histogram (area) and cumulative share (line) of {len(values):,} {over}. Marks: p50, p95, p99."
    if len(values) == 0:
        return Figure(name, caption, [], {})
    low, high = np.log10(values.min()), np.log10(values.max())
    pad = max(0.02 * (high - low), 0.005)
    counts, edges = np.histogram(np.log10(values), bins=80, range=(low - pad, high + pad))
    share = np.r_[counts / len(values), 0.0]
    ladder = np.r_[np.linspace(0, 0.99, 100), 0.995, 0.999, 1.0]
    below = np.quantile(values, ladder)
    hover = "%{x:.3s}s<br>%{y:.1%}<extra></extra>"
    area = {"line": {"shape": "hv", "width": 1, "color": "--ok"}, "fill": "tozeroy", "fillcolor": "--ok-soft"}
    data = [
        _line(10**edges, share, "share", area | {"hoverinfo": "skip"}),
        _line(
            below, ladder, "cumulative", {"line": {"width": 2, "color": "--ink"}, "yaxis": "y2", "hovertemplate": hover}
        ),
    ]
    marks = [(q, value) for q, value in zip(_MARKS, quantiles(values, _MARKS), strict=True) if value is not None]
    layout = {
        "height": 340,
        "xaxis": _log_axis("time"),
        "yaxis": {"title": {"text": "share of values"}, "tickformat": ".0%", "rangemode": "tozero"},
        "yaxis2": {"overlaying": "y", "side": "right", "range": [0, 1.02], "showgrid": False} | _QUARTERS,
        "shapes": [_mark_value(value) for _, value in marks],
        "annotations": [_label_value(f"p{q * 100:g}", value) for q, value in marks],
    }
    return Figure(f"Distribution of {name}", caption, data, layout)


def _draw_traffic(summary: Summary) -> Figure:
    requests = summary.log.requests
    stamps = {name: metrics.read_stamp_s(requests, name) for name in ("due", "begun", "done")}
    stamps["due"] = np.where(metrics.fell_due(requests), stamps["due"], np.nan)
    end_s = float(max([np.fmax.reduce(times, initial=0.0) for times in stamps.values()]))
    if end_s <= 0:
        return Figure("Traffic", "", [], {})
    edges, fine = _slice_time(end_s), np.linspace(0, end_s, 2 * _BINS)
    width_s = edges[1] - edges[0]
    held = _count_in_flight(stamps["begun"], stamps["done"], fine)
    data = [_line(fine, held, "in flight", _stroke("--ink", "solid", "y"))]
    styles = {"begun": ("--ok", "solid"), "done": ("--good", "solid"), "due": ("--ink", "dot")}
    for stamp, (color, dash) in styles.items():
        counts, _ = np.histogram(stamps[stamp], bins=edges)
        data.append(_line((edges[:-1] + edges[1:]) / 2, counts / width_s, stamp, _stroke(color, dash, "y2")))
    layout = {
        "height": 520,
        "xaxis": {"title": {"text": "time (s)"}, "anchor": "y2"},
        "yaxis": {"title": {"text": "requests in flight"}, "domain": [0.54, 1], "rangemode": "tozero"},
        "yaxis2": {"title": {"text": "requests per second"}, "domain": [0, 0.46], "rangemode": "tozero"},
        "shapes": _mark_window(summary),
    }
    caption = (
        f"Above: requests begun and not yet done. Below, in slices of {width_s:.3g} s: the offered rate (due), "
        "the achieved one (begun), and how fast requests ended (done)."
    )
    return Figure("Traffic", caption, data, layout)


def _draw_gaps(summary: Summary) -> Figure:
    requests, ladder = summary.log.requests, np.linspace(0, 1, 201)
    data = []
    for name, stamp, color, dash in (("planned", "due", "--ink", "dot"), ("sent", "begun", "--ok", "solid")):
        times_s = np.where(metrics.fell_due(requests), metrics.read_stamp_s(requests, stamp), np.nan)
        gaps_s = np.diff(np.sort(times_s[~np.isnan(times_s)]))
        if len(gaps_s) >= count_floor(0.5):
            below = np.maximum(np.quantile(gaps_s, ladder), _SMALLEST_S)
            data.append(_line(below, ladder, name, _stroke(color, dash, "y")))
    layout = {
        "height": 300,
        "xaxis": _log_axis("gap to the request before"),
        "yaxis": {"title": {"text": "share of gaps"}, "range": [0, 1.02]} | _QUARTERS,
    }
    caption = (
        "Cumulative share of the gaps between requests, as planned and as sent. The two lie on one another as long "
        "as the generator keeps the shape of the traffic; gaps of requests that were due together may differ."
    )
    return Figure("Gaps between requests", caption, data, layout)


def _draw_lateness(summary: Summary) -> Figure:
    requests, limits = summary.log.requests, summary.verdict.limits
    due_s, late_s = metrics.read_stamp_s(requests, "due"), metrics.measure(requests, "lateness")
    data = _scatter_outcomes(requests, due_s, late_s, "lateness", "y", only="all requests")
    layout = {
        "height": 320,
        "xaxis": {"title": {"text": "due time (s)"}},
        "yaxis": _log_axis("lateness"),
        "shapes": [*_mark_window(summary), *_mark_limits(limits)],
    }
    caption = (
        "How late the generator began each request. Dashed: the limits of the verdict for the p99 "
        "(valid below the lower, invalid above the upper). At the bottom edge: not late at all."
    )
    return Figure("The generator's own lateness", caption, data, layout)


def _judged(summary: Summary, name: str) -> Floats:
    requests = summary.log.requests
    inside = summary.window.holds(metrics.read_stamp_s(requests, "due"))
    return np.where(inside, metrics.measure(requests, name), np.nan)


def _members(summary: Summary) -> Integers:
    requests = summary.log.requests
    inside = summary.window.holds(metrics.read_stamp_s(requests, "due")) & metrics.is_outcome(requests, "ok")
    return metrics.read_column(requests, "request")[inside].astype(np.int64)


def _scatter_outcomes(
    requests: pa.Table, x: Floats, y: Floats, verb: str, axis: str, *, only: str | None = None
) -> list[Trace]:
    """Return one scatter a kind of outcome; *only* puts all of them into one with this name."""
    number = metrics.read_column(requests, "request")
    known = ~(np.isnan(x) | np.isnan(y))
    kinds = {only: known} if only else {name: known & metrics.is_outcome(requests, name) for name in OUTCOMES}
    return [
        _scatter(number[rows], x[rows], np.maximum(y[rows], _SMALLEST_S), (name, verb, axis))
        for name, rows in kinds.items()
        if rows.any()
    ]


def _scatter(number: NDArray[Any], x: Floats, y: Floats, names: tuple[str, str, str]) -> Trace:
    outcome, verb, axis = names
    chosen, held = _thin(x, y)
    failed = outcome not in ("ok", "all requests")
    return {
        "type": "scatter",
        "mode": "markers",
        "name": outcome,
        "legendgroup": outcome,
        "showlegend": axis == "y2" or outcome == "all requests",
        "x": _pack(x[chosen]),
        "y": _pack(y[chosen]),
        "yaxis": axis,
        "customdata": [_describe_mark(*pair) for pair in zip(number[chosen].tolist(), held.tolist(), strict=True)],
        "hovertemplate": f"request %{{customdata}}, {outcome}<br>due %{{x:.3f}} s<br>{verb} %{{y:.3s}}s<extra></extra>",
        "marker": {
            "color": "--bad" if failed else "--ok",
            "symbol": "x" if failed else "circle",
            "opacity": 0.8 if failed and len(chosen) < _CROWD else 0.45,
            "size": _pack(4 + 2 * np.log10(held)) if held.max() > 1 else (6 if failed else 4),
        },
    }


def _describe_mark(number: int, held: int) -> str:
    return str(number) if held == 1 else f"{number} and {held - 1:,} near it"


def _thin(x: Floats, y: Floats) -> tuple[Integers, Integers]:
    """Return the rows to draw and how many each stands for: all of them, or one a cell of a grid."""
    if len(x) <= POINTS:
        return np.arange(len(x)), np.ones(len(x), np.int64)
    columns = np.minimum((x - x.min()) / max(np.ptp(x), 1e-9) * _GRID[0], _GRID[0] - 1).astype(np.int64)
    height = np.log10(y)
    rows = np.minimum((height - height.min()) / max(np.ptp(height), 1e-9) * _GRID[1], _GRID[1] - 1).astype(np.int64)
    _, first, counts = np.unique(columns * _GRID[1] + rows, return_index=True, return_counts=True)
    return first, counts


def _trend(x: Floats, y: Floats, axis: str) -> list[Trace]:
    """Return the median and the 95th percentile of *y* in slices of time; a slice needs count_floor(0.5) values."""
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < count_floor(0.5):
        return []
    edges = _slice_time(float(x.max()))
    slot = np.minimum(np.searchsorted(edges, x, "right") - 1, len(edges) - 2)
    order = np.lexsort((y, slot))
    counts = np.bincount(slot, minlength=len(edges) - 1)
    starts = np.cumsum(counts) - counts
    full = counts >= count_floor(0.5)
    middle = ((edges[:-1] + edges[1:]) / 2)[full]
    lines = []
    for q, color, dash in ((0.5, "--ink", "solid"), (0.95, "--ink", "dot")):
        rank = (starts + np.floor(q * np.maximum(counts - 1, 0)).astype(np.int64))[full]
        style = _stroke(color, dash, axis) | {"legendgroup": f"{q}", "showlegend": axis == "y2"}
        lines.append(_line(middle, y[order][rank], f"p{q * 100:g} of a slice", style))
    return lines


def _slice_time(end_s: float) -> Floats:
    width_s = max(1.0, np.ceil(end_s / _BINS))
    return np.arange(int(np.ceil(end_s / width_s)) + 1) * width_s if end_s > width_s else np.array([0.0, width_s])


def _count_in_flight(begun_s: Floats, done_s: Floats, at_s: Floats) -> Integers:
    starts, ends = (np.sort(times[~np.isnan(times)]) for times in (begun_s, done_s))
    return np.searchsorted(starts, at_s, "right") - np.searchsorted(ends, at_s, "right")


def _line(x: ArrayLike, y: ArrayLike, name: str, style: Trace) -> Trace:
    return {"type": "scatter", "mode": "lines", "name": name, "x": _pack(x), "y": _pack(y)} | style


def _stroke(color: str, dash: str, axis: str) -> Trace:
    return {"line": {"color": color, "dash": dash, "width": 2}, "yaxis": axis, "hovertemplate": "%{x:.3g} s: %{y:.3s}"}


def _log_axis(title: str, **more: Any) -> dict[str, Any]:
    # plotly's own ticks on a logarithmic axis leave the unit off all but whole decades.
    at_s = [digit * 10.0**power for power in range(-7, 5) for digit in (1, 2, 5)]
    ticks = {"tickmode": "array", "tickvals": at_s, "ticktext": [_label_tick(value) for value in at_s]}
    return {"title": {"text": title}, "type": "log"} | ticks | more


def _label_tick(value_s: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value_s >= scale * 0.99:
            return f"{value_s / scale:g} {unit}"
    return f"{value_s * 1e9:g} ns"


def _mark_window(summary: Summary) -> list[dict[str, Any]]:
    """Shade what lies outside of the judged window."""
    window, run_s = summary.window, summary.log.duration_s
    outside = [(0.0, window.start_s), (window.end_s, run_s)]
    shade = {
        "type": "rect",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "fillcolor": "--shade",
        "line": {"width": 0},
    }
    return [shade | {"x0": start, "x1": end} for start, end in outside if end > start]


def _mark_value(value: float) -> dict[str, Any]:
    line = {"color": "--muted", "width": 1, "dash": "dash"}
    return {"type": "line", "x0": value, "x1": value, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _label_value(text: str, value: float) -> dict[str, Any]:
    # The x of an annotation on a logarithmic axis is an exponent; that of a shape is not.
    return {"text": text, "x": float(np.log10(value)), "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}


def _mark_limits(limits: Limits) -> list[dict[str, Any]]:
    style = {"type": "line", "xref": "paper", "x0": 0, "x1": 1}
    bounds = ((limits.lateness_p99_s, "--muted"), (limits.lateness_p99_invalid_s, "--bad"))
    return [style | {"y0": s, "y1": s, "line": {"color": color, "width": 1, "dash": "dash"}} for s, color in bounds]


def _pack(values: ArrayLike) -> dict[str, str]:
    """Return numbers as plotly's typed array: half the size of their decimal text, and exact enough to draw."""
    return {"dtype": "f4", "bdata": base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()}

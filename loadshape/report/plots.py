# The figures of a report.
#
# Law: a figure shows what summary, metrics and log hold, binned before it leaves this module (crowd.py), so that a
# million requests draw as fast as a thousand. Of many values a curve is drawn from every k-th, which the eye cannot
# tell from all of them; its marks (p50, p95, p99) are exact. What would be empty is left out.

"""Figures of one run: latency over time, distributions, lengths, streams, requests in flight, lateness."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadshape import metrics
from loadshape.report.crowd import scatter_all, scatter_outcomes, show_legend, slice_time, trend
from loadshape.report.figure import (
    QUARTERS,
    SMALLEST_S,
    Figure,
    draw_line,
    label_value,
    mark_value,
    pack,
    scale_time,
    scale_tokens,
    shade_range,
    style_line,
)
from loadshape.report.flight import draw_flight
from loadshape.report.waterfall import draw_waterfall
from loadshape.stats import Floats, Integers, count_floor
from loadshape.summary import Distribution, Summary
from loadshape.validity import Limits
from loadshape.validity.nodes import is_aligned

_DRAWN = 1_000_000  # values from which a curve is drawn
_PART = 1 << 20  # gaps that are binned at a time
_CELLS = (120, 48)  # of the heat map, over time and over the gap
_DUE = "due %{x:.3f} s"


def draw_figures(summary: Summary) -> list[Figure]:
    """Return the figures of a report, without those that would be empty."""
    figures = [
        _draw_latency(summary),
        *(_draw_distribution(summary, name) for name in ("ttft", "e2e", "icl")),
        _draw_input(summary),
        _draw_heat(summary),
        *([draw_flight(summary, _mark_window(summary))] if is_aligned(summary.log, summary.verdict.limits) else []),
        draw_waterfall(summary.log.requests),
        _draw_lengths(summary),
        *([_draw_gaps(summary)] if is_aligned(summary.log, summary.verdict.limits) else []),
        _draw_lateness(summary),
    ]
    return [figure for figure in figures if figure.data]


def _draw_latency(summary: Summary) -> Figure:
    requests = summary.log.requests
    due_s = metrics.read_stamp_s(requests, "due")
    ok = metrics.is_outcome(requests, "ok")
    ended_s = np.where(ok, metrics.measure(requests, "e2e"), metrics.measure_span(requests, "due", "done"))
    first_s = metrics.measure_span(requests, "due", "first_token")
    edges, rates = _measure_rates(summary)
    marks = [
        *scatter_outcomes(requests, due_s, first_s, ("TTFT", "y"), hover=_DUE),
        *scatter_outcomes(requests, due_s, ended_s, ("ended after", "y2"), hover=_DUE),
    ]
    if not marks:
        return Figure("Latency over time", "", [], {})
    slices = slice_time(float(np.nanmax(due_s)))
    marks += trend(due_s[ok], first_s[ok], slices, "y") + trend(due_s[ok], ended_s[ok], slices, "y2")
    styles = {"begun": ("--ok", "solid"), "done": ("--good", "solid"), "due": ("--ink", "dot")}
    for stamp, (color, dash) in styles.items():
        marks.append(draw_line((edges[:-1] + edges[1:]) / 2, rates[stamp], stamp, style_line(color, dash, "y3")))
    layout = {
        "height": 780,
        "xaxis": {"title": {"text": "due time (s)"}, "anchor": "y3"},
        "yaxis": scale_time("TTFT", domain=[0.68, 1]),
        "yaxis2": scale_time("E2E", domain=[0.3, 0.62]),
        "yaxis3": {"title": {"text": "requests per second"}, "domain": [0, 0.24], "rangemode": "tozero"},
        "shapes": _mark_window(summary),
    }
    caption = (
        "Every request at the time it was due; a request that failed stands at the time it took to fail. "
        "Lines are the median and the 95th percentile of each slice of time: a guide to the eye, not a claim. "
        f"At the bottom, in slices of {edges[1] - edges[0]:.3g} s, the offered rate (due), the achieved one (begun), "
        "and how fast requests ended (done)."
    )
    return Figure("Latency over time", caption, show_legend(marks), layout)


def _measure_rates(summary: Summary) -> tuple[Floats, dict[str, Floats]]:
    requests = summary.log.requests
    stamps = {name: metrics.read_stamp_s(requests, name) for name in ("due", "begun", "done")}
    stamps["due"] = np.where(metrics.fell_due(requests), stamps["due"], np.nan)
    edges = slice_time(max(float(np.fmax.reduce(times, initial=0.0)) for times in stamps.values()))
    return edges, {name: np.histogram(times, bins=edges)[0] / np.diff(edges) for name, times in stamps.items()}


_TITLES = {"ttft": "TTFT", "e2e": "E2E", "icl": "ICL, the gap between reads with output"}


def _draw_distribution(summary: Summary, name: str) -> Figure:
    found: Distribution = getattr(summary, name)
    title, over = f"Distribution of {_TITLES[name]}", "gaps" if name == "icl" else "requests that ended ok"
    caption = f"Histogram (area) and cumulative share (line) of {found.count:,} {over}. Marks: p50, p95, p99."
    if not found.count:
        return Figure(title, caption, [], {})
    values = np.maximum(_draw_values(summary, name), SMALLEST_S)
    low, high = np.log10(values.min()), np.log10(values.max())
    pad = max(0.02 * (high - low), 0.005)
    counts, edges = np.histogram(np.log10(values), bins=80, range=(low - pad, high + pad))
    ladder = np.r_[np.linspace(0, 0.99, 100), 0.995, 0.999, 1.0]
    area = {"line": {"shape": "hv", "width": 1, "color": "--ok"}, "fill": "tozeroy", "fillcolor": "--ok-soft"}
    hover = {"hovertemplate": "%{x:.3s}s<br>%{y:.1%}<extra></extra>"}
    data = [
        draw_line(10**edges, np.r_[counts / len(values), 0.0], "share", area | {"hoverinfo": "skip"}),
        draw_line(np.quantile(values, ladder), ladder, "cumulative", style_line("--ink", axis="y2") | hover),
    ]
    marks = [(of, value) for of in ("p50", "p95", "p99") if (value := getattr(found, f"{of}_s")) is not None]
    layout = {
        "height": 360,
        "showlegend": False,
        "margin": {"t": 44},
        "xaxis": scale_time("time", decades=high - low),
        "yaxis": {"title": {"text": "share of values"}, "tickformat": ".0%", "rangemode": "tozero"},
        "yaxis2": {"overlaying": "y", "side": "right", "range": [0, 1.02], "showgrid": False} | QUARTERS,
        "shapes": [mark_value(value) for _, value in marks],
        "annotations": _label_marks(marks, (low - pad, high + pad)),
    }
    return Figure(title, caption, data, layout, name)


def _label_marks(marks: list[tuple[str, float]], span: tuple[float, float]) -> list[dict[str, Any]]:
    """Labels at their values, those that would touch the one before raised by a line."""
    labels: list[dict[str, Any]] = []
    end, level = -np.inf, 0
    for text, value in marks:
        place = (np.log10(value) - span[0]) / max(span[1] - span[0], 1e-9)
        level = level + 1 if place - end < 0.1 else 0
        labels.append(label_value(text, value) | {"yshift": 13 * level})
        end = place
    return labels


def _draw_values(summary: Summary, name: str) -> Floats:
    """Values to draw a curve from: all of them, or every k-th."""
    if name == "icl":
        gap_ns = summary.gaps.gap_ns
        return gap_ns[:: 1 + len(gap_ns) // _DRAWN] / 1e9
    values = metrics.measure(summary.members, name)
    values = values[~np.isnan(values)]
    return values[:: 1 + len(values) // _DRAWN]


def _draw_input(summary: Summary) -> Figure:
    requests = summary.members
    tokens, ttft_s = _count_input(summary), metrics.measure(requests, "ttft")
    caption = (
        "TTFT against the tokens of the prompt, as the server counted them or else as they were planned. Lines are "
        "the median and the 95th percentile of requests of like length."
    )
    known = ~np.isnan(tokens) & ~np.isnan(ttft_s)
    if known.sum() < count_floor(0.5) or np.ptp(tokens[known]) == 0:
        return Figure("TTFT by length of the input", caption, [], {})
    tokens = np.maximum(tokens, 1.0)
    edges = np.geomspace(tokens[known].min(), tokens[known].max() * 1.001, 25)
    marks = [
        *scatter_outcomes(requests, tokens, ttft_s, ("TTFT", "y"), hover="%{x:.0f} tokens in"),
        *trend(tokens, ttft_s, edges, "y"),
    ]
    layout = {"height": 400, "xaxis": scale_tokens("input tokens"), "yaxis": scale_time("TTFT")}
    return Figure("TTFT by length of the input", caption, show_legend(marks), layout, "ttft")


def _count_input(summary: Summary) -> Floats:
    """Tokens of each prompt of the window, as the server counted them, else as they were planned."""
    told = metrics.read_column(summary.members, "prompt_tokens").astype(np.float64)
    wanted = _read_planned(summary, "input_tokens")
    return wanted if wanted is not None and np.isnan(told).all() else told


def _read_planned(summary: Summary, name: str) -> Floats | None:
    """What was planned of each request of the window; None where the log does not hold it."""
    if summary.log.planned is None:
        return None
    planned = metrics.read_column(summary.log.planned, name).astype(np.float64)
    return np.asarray(planned[metrics.read_column(summary.members, "request")], np.float64)


def _draw_heat(summary: Summary) -> Figure:
    caption = (
        f"How many tokens came after which gap, over time; {summary.intervals.token_rule}. A band that rises is a "
        "server that slows down; a column that reaches up is a moment at which many streams stood still."
    )
    gaps = summary.gaps
    if len(gaps.gap_ns) < count_floor(0.95):
        return Figure("ITL over time", caption, [], {}, "itl")
    times = slice_time(float(gaps.end_us.max()) / 1e6, _CELLS[0])
    counts, edges = _count_cells(summary, times)
    shown = np.where(counts > 0, np.log10(np.maximum(counts, 1)), np.nan)
    decades = list(range(int(np.nanmax(shown)) + 1))
    data = {
        "type": "heatmap",
        "x": pack(times),
        "y": pack(edges),
        "z": pack(shown),
        "customdata": counts.tolist(),
        "hoverongaps": False,
        "colorscale": [[0, "--cool"], [0.5, "--ok"], [1, "--hot"]],
        "colorbar": {
            "title": {"text": "tokens"},
            "tickvals": decades,
            "ticktext": [f"{10**power:,}" for power in decades],
            "thickness": 12,
            "outlinewidth": 0,
        },
        "hovertemplate": "%{x:.3g} s<br>gap %{y:.3s}s<br>%{customdata} tokens<extra></extra>",
    }
    layout = {"height": 380, "xaxis": {"title": {"text": "time (s)"}}, "yaxis": scale_time("ITL")}
    return Figure("ITL over time", caption, [data], layout, "itl")


def _count_cells(summary: Summary, times: Floats) -> tuple[Integers, Floats]:
    """Tokens in each cell of (gap a token, time), and the edges over the gap."""
    gaps = summary.gaps
    parts = [slice(start, start + _PART) for start in range(0, len(gaps.gap_ns), _PART)]
    low = np.log10(max(min(float(_spread_gaps(summary, it).min()) for it in parts), SMALLEST_S))
    high = max(np.log10(float(gaps.gap_ns.max()) / 1e9), low + 0.05)
    step = (high - low) / _CELLS[1]
    counts = np.zeros((_CELLS[1], len(times) - 1), np.int64)
    for it in parts:
        height = np.log10(np.maximum(_spread_gaps(summary, it), SMALLEST_S))
        row = np.clip((height - low) / step, 0, _CELLS[1] - 1).astype(np.int64)
        column = np.clip(gaps.end_us[it] / 1e6 / times[1], 0, len(times) - 2).astype(np.int64)
        cells = np.bincount(row * counts.shape[1] + column, gaps.tokens[it], counts.size)
        counts += cells.astype(np.int64).reshape(counts.shape)
    return counts, 10 ** (low + step * np.arange(_CELLS[1] + 1))


def _spread_gaps(summary: Summary, part: slice) -> Floats:
    """Each gap in seconds, spread over the tokens of its read."""
    gaps = summary.gaps
    return np.asarray(gaps.gap_ns[part] / gaps.tokens[part] / 1e9, np.float64)


def _draw_lengths(summary: Summary) -> Figure:
    caption = (
        "Cumulative share of requests by tokens: as the trace wanted them (dotted) and as the server counted them "
        "(solid), for the same requests that ended ok. Answers that are shorter than planned ended by themselves."
    )
    data = []
    ok, ladder = metrics.is_outcome(summary.members, "ok"), np.linspace(0, 1, 201)
    for name, told, color in (("input", "prompt_tokens", "--ok"), ("output", "completion_tokens", "--good")):
        counted = metrics.read_column(summary.members, told).astype(np.float64)
        wanted, known = _read_planned(summary, f"{name}_tokens"), ok & ~np.isnan(counted)
        if wanted is None or known.sum() < count_floor(0.5):
            continue
        for kind, values, dash in (("planned", wanted, "dot"), ("counted", counted, "solid")):
            style = style_line(color, dash) | {"hovertemplate": "%{x:,.0f} tokens: %{y:.0%}"}
            at = np.maximum(np.quantile(values[known], ladder), 1.0)
            data.append(draw_line(at, ladder, f"{name}, {kind}", style))
    layout = {"height": 320, "xaxis": scale_tokens("tokens"), "yaxis": _share_axis("share of requests")}
    return Figure("Lengths, planned and realised", caption, data, layout)


def _draw_gaps(summary: Summary) -> Figure:
    requests, ladder = summary.log.requests, np.linspace(0, 1, 201)
    data = []
    for name, stamp, color, dash in (("planned", "due", "--ink", "dot"), ("sent", "begun", "--ok", "solid")):
        times_s = np.where(metrics.fell_due(requests), metrics.read_stamp_s(requests, stamp), np.nan)
        gaps_s = np.diff(np.sort(times_s[~np.isnan(times_s)]))
        if len(gaps_s) >= count_floor(0.5):
            below = np.maximum(np.quantile(gaps_s, ladder), SMALLEST_S)
            style = style_line(color, dash) | {"hovertemplate": "%{x:.3s}s: %{y:.0%}"}
            data.append(draw_line(below, ladder, name, style))
    layout = {"height": 320, "xaxis": scale_time("gap to the request before"), "yaxis": _share_axis("share of gaps")}
    caption = (
        "Cumulative share of the gaps between requests, as planned and as sent. The two lie on one another as long "
        "as the generator keeps the shape of the traffic; gaps of requests that were due together may differ."
    )
    return Figure("Gaps between requests, planned and realised", caption, data, layout)


def _draw_lateness(summary: Summary) -> Figure:
    requests, limits = summary.log.requests, summary.verdict.limits
    due_s, late_s = metrics.read_stamp_s(requests, "due"), metrics.measure(requests, "lateness")
    layout = {
        "height": 320,
        "xaxis": {"title": {"text": "due time (s)"}},
        "yaxis": scale_time("lateness"),
        "shapes": [*_mark_window(summary), *_mark_limits(limits)],
    }
    caption = (
        "How late the generator began each request. Dashed: the limits of the verdict for the p99 "
        "(valid below the lower, invalid above the upper). At the bottom edge: not late at all."
    )
    marks = scatter_all(requests, due_s, late_s, ("lateness", "y"), hover=_DUE)
    return Figure("The generator's own lateness", caption, marks, layout, "lateness")


def _share_axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title}, "range": [0, 1.02]} | QUARTERS


def _mark_window(summary: Summary) -> list[dict[str, Any]]:
    """Shade what lies outside of the judged window."""
    window, run_s = summary.window, summary.log.duration_s
    outside = [(0.0, window.start_s), (window.end_s, run_s)]
    return [shade_range(start, end) for start, end in outside if end > start]


def _mark_limits(limits: Limits) -> list[dict[str, Any]]:
    bounds = ((limits.lateness_p99_s, "--muted"), (limits.lateness_p99_invalid_s, "--bad"))
    return [mark_value(limit_s, color, across=True) for limit_s, color in bounds]

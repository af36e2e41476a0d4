# What a sweep or a search found, as one HTML file.
#
# Law: every level stands with its interval, and lines between levels are dotted: nothing was measured there. Labels
# (knee, fit) are drawn in grey and called labels, with the range that they depend on. A search shows all its trials, in
# the order in which they were made, and every objective against its bound. Layout only: nothing is computed here.

"""HTML form of sweeps and searches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from loadshape.gate import Decision, Ruling
from loadshape.reading import show_interval, show_value
from loadshape.report import curve as lines
from loadshape.report.figure import (
    Figure,
    Mark,
    count_decades,
    draw_line,
    draw_points,
    label_value,
    mark_value,
    scale_time,
    style_line,
)
from loadshape.report.skeleton import write_figures, write_numbers, write_page, write_section, write_texts
from loadshape.report.tables import Row, clean_text
from loadshape.saturation import Curve, Point, find_knee, fit_scaling
from loadshape.search import Found, Trial

_STATUSES = {"met": "--good", "missed": "--bad", "unsure": "--warn"}
_TONES = ("--ok", "--good", "--warn", "--bad")
_BOUNDED = (
    "Every level with its 95 % interval, and the bound (dashed). A hollow mark is not sure: its interval holds the "
    "bound. A bar that has no end is drawn to three times its value."
)
_FOOTER = "<footer>This file needs no network.</footer>"


def write_curve(curve: Curve) -> str:
    """Return a sweep as one page. Raises MissingExtra when plotly is not installed."""
    figures, key = draw_curve(curve), clean_text(curve.key)
    rows = [Row("", cells[0], cells[1:]) for cells in map(lines.list_cells, curve.points)]
    head = (key, *lines.COLUMNS.values(), "instrument")
    labels = "\n".join(f'<p class="caption">{escape(text)}</p>' for text in lines.tell_labels(curve))
    sections = [
        f"<h1>Sweep of {escape(key)}</h1>",
        f"<p class='lead'>{len(curve.points)} levels, {sum(it.runs for it in curve.points)} runs</p>",
        *write_figures(figures),
        write_section("Labels", labels),
        write_section("Levels", write_numbers(head, rows)),
        _FOOTER,
    ]
    return write_page(f"Sweep of {key}", sections, figures)


def write_search(found: Found) -> str:
    """Return a search as one page. Raises MissingExtra when plotly is not installed."""
    figures, headline = draw_search(found), lines.tell_headline(found)
    kept = "VALID" if found.result.lower is not None else "INVALID"
    trials = [
        (str(number), f"{it.level:g}", f"{it.length_s:g} s", it.status)
        for number, it in enumerate(found.result.trials, 1)
    ]
    rows = [cells for level, decision in found.decisions.items() for cells in _list_rulings(level, decision)]
    sections = [
        "<h1>Search for the largest load that keeps the gate</h1>",
        f'<section class="verdict {kept}">{escape(clean_text(headline, 400))}</section>',
        *write_figures(figures),
        write_section("Levels", write_texts(("level", "objective", "found", "95 % interval", "status"), rows)),
        write_section("Trials", write_texts(("trial", "level", "length", "status so far"), trials)),
        _FOOTER,
    ]
    return write_page(f"Search: {headline}", sections, figures)


def draw_curve(curve: Curve) -> list[Figure]:
    """Return the figures of a sweep."""
    if not curve.points:
        return []
    return [_draw_throughput(curve), _draw_latency(curve), _draw_shares(curve)]


def draw_search(found: Found) -> list[Figure]:
    """Return the figures of a search: its trials, and each objective over the levels."""
    if not found.result.trials:
        return []
    texts = {it.objective.text: it.objective.limit for of in found.decisions.values() for it in of.rulings}
    return [_draw_trials(found), *(_draw_objective(found, text) for text, limit in texts.items() if limit is not None)]


def _draw_throughput(curve: Curve) -> Figure:
    caption = (
        "What came out against what was offered; bars are 95 % intervals across runs. Dotted: only to guide the eye."
    )
    points = curve.points
    data = [
        *_draw_readings(points, {"request_hz": "completed", "goodput_hz": "goodput"}, "y"),
        *_draw_readings(points, {"output_tokens_per_s": "output tokens"}, "y2", first=2),
    ]
    data += _draw_offered(curve) + _draw_fit(curve)
    layout = {
        "height": 560,
        "xaxis": _scale_levels(curve) | {"anchor": "y2"},
        "yaxis": {"title": {"text": "requests per second"}, "domain": [0.54, 1], "rangemode": "tozero"},
        "yaxis2": {"title": {"text": "tokens per second"}, "domain": [0, 0.46], "rangemode": "tozero"},
    }
    return Figure("Throughput", caption, data, layout | _mark_knee(curve))


def _draw_latency(curve: Curve) -> Figure:
    caption = (
        "The tails against the offered load, with 95 % intervals; one without an end is drawn to three times its "
        "value. Dotted: only to guide the eye."
    )
    points = curve.points
    data = [
        *_draw_readings(points, {f"ttft.{of}": f"TTFT {of}" for of in ("p50", "p95", "p99")}, "y"),
        *_draw_readings(points, {f"tpot.{of}": f"TPOT {of}" for of in ("p50", "p95")}, "y2"),
        *_draw_readings(points, {"e2e.p95": "E2E p95"}, "y3", first=3),
    ]
    layout = {
        "height": 760,
        "xaxis": _scale_levels(curve) | {"anchor": "y3"},
        "yaxis": _scale_readings(points, "ttft", [0.7, 1]),
        "yaxis2": _scale_readings(points, "tpot", [0.36, 0.64]),
        "yaxis3": _scale_readings(points, "e2e", [0, 0.3]),
    }
    return Figure("Latency", caption, data, layout | _mark_knee(curve))


def _draw_shares(curve: Curve) -> Figure:
    data = _draw_readings(curve.points, {"attainment": "met every objective", "errors": "errors"}, "y", first=1)
    axis = {"title": {"text": "share of requests"}, "range": [-0.02, 1.04], "tickformat": ".0%"}
    layout = {"height": 320, "xaxis": _scale_levels(curve), "yaxis": axis}
    return Figure("Errors and attainment", "Shares of the requests that fell due.", data, layout)


def _draw_readings(points: Sequence[Point], names: dict[str, str], axis: str, *, first: int = 0) -> list[Mark]:
    marks = []
    for place, (name, label) in enumerate(names.items(), first):
        kept = [(it.level, it.readings[name], it.verdict) for it in points if _is_finite(it.value(name))]
        if not kept:
            continue
        bounds = [(of.interval.low, of.interval.high) if of.interval else (np.nan, np.nan) for _, of, _ in kept]
        color = _TONES[place % len(_TONES)]
        style = {
            "mode": "lines+markers",
            "yaxis": axis,
            "line": {"color": color, "width": 1, "dash": "dot"},
            "marker": {"size": 8, "color": color, "symbol": [_choose_symbol(verdict) for *_, verdict in kept]},
            "customdata": [f"{show_value(of.value, of.unit)}, instrument {verdict}" for _, of, verdict in kept],
            "hovertemplate": f"at %{{x:g}}: {label} %{{customdata}}<extra></extra>",
        }
        levels, values = [level for level, *_ in kept], [of.value or 0.0 for _, of, _ in kept]
        marks.append(draw_points(levels, values, label, bounds, style))
    return marks


def _scale_readings(points: Sequence[Point], metric: str, domain: list[float]) -> dict[str, Any]:
    readings = [of for it in points for name, of in it.readings.items() if name.startswith(f"{metric}.")]
    ends = [end for it in readings if it.interval for end in (it.interval.low, it.interval.high)]
    span = count_decades([*ends, *(it.value for it in readings if it.value is not None)])
    return scale_time(metric.upper(), decades=span, domain=domain)


def _draw_offered(curve: Curve) -> list[Mark]:
    known = [(it.level, value) for it in curve.points if (value := it.value("offered_hz")) is not None]
    if curve.is_closed or not known:
        return []
    levels, offered_hz = zip(*known, strict=True)
    return [draw_line(levels, offered_hz, "offered", style_line("--muted", "dash"))]


def _draw_fit(curve: Curve) -> list[Mark]:
    scaling = fit_scaling(curve.points) if curve.is_closed else None
    if scaling is None:
        return []
    users = np.linspace(1.0, max(it.level for it in curve.points), 100)
    slowed = 1 + scaling.contention * (users - 1) + scaling.crosstalk * users * (users - 1)
    return [draw_line(users, scaling.rate_hz * users / slowed, "USL fit (a label)", style_line("--muted", "dash"))]


def _mark_knee(curve: Curve) -> dict[str, Any]:
    knee = find_knee(curve.points)
    if knee is None:
        return {}
    label = label_value("knee (a label)", knee.level, logarithmic=False) | {
        "y": 0,
        "yanchor": "bottom",
        "xanchor": "left",
    }
    return {"shapes": [mark_value(knee.level)], "annotations": [label | {"font": {"color": "--muted", "size": 12}}]}


def _scale_levels(curve: Curve) -> dict[str, Any]:
    return {"title": {"text": escape(clean_text(curve.key))}, "rangemode": "tozero"}


def _draw_trials(found: Found) -> Figure:
    caption = (
        "Every trial in its order; larger marks lasted longer. Shaded: between the largest level that kept the gate "
        "and the smallest that did not."
    )
    trials = list(enumerate(found.result.trials, 1))
    data = [
        _draw_status(status, group, color)
        for status, color in _STATUSES.items()
        if (group := [(number, it) for number, it in trials if it.status == status])
    ]
    lower, upper = found.result.lower, found.result.upper
    between = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "layer": "below", "fillcolor": "--shade"}
    shapes = [between | {"y0": lower, "y1": upper, "line": {"width": 0}}] if lower and upper else []
    layout = {
        "height": 380,
        "showlegend": True,
        "xaxis": {"title": {"text": "trial"}, "dtick": max(1, len(trials) // 15), "range": [0.5, len(trials) + 0.5]},
        "yaxis": {"title": {"text": "level"}, "rangemode": "tozero"},
        "shapes": shapes,
    }
    return Figure("Trials", caption, data, layout)


def _draw_status(status: str, trials: Sequence[tuple[int, Trial]], color: str) -> Mark:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": status,
        "x": [number for number, _ in trials],
        "y": [it.level for _, it in trials],
        "customdata": [f"{it.length_s:g} s" for _, it in trials],
        "hovertemplate": f"trial %{{x}}: level %{{y:g}} for %{{customdata}}, {status}<extra></extra>",
        "marker": {"color": color, "size": [7 + 2 * math.log2(max(it.length_s, 1.0)) for _, it in trials]},
    }


def _draw_objective(found: Found, text: str) -> Figure:
    rulings = [(level, it) for level, of in found.decisions.items() for it in of.rulings if it.objective.text == text]
    limit, unit = rulings[0][1].objective.limit or 0.0, rulings[0][1].reading.unit
    data = [
        _draw_rulings(status, group, color)
        for status, color in {"met": "--good", "missed": "--bad"}.items()
        if (group := [(level, it) for level, it in rulings if it.status == status and _is_finite(it.reading.value)])
    ]
    span = count_decades([limit, *(it.reading.value or 0.0 for _, it in rulings)])
    axis = scale_time("found", decades=span) if unit == "s" else {"title": {"text": "found"}, "rangemode": "tozero"}
    axis |= {"tickformat": ".1%"} if unit == "share" else {}
    shapes = [mark_value(limit, "--bad", across=True)]
    layout = {"height": 320, "showlegend": True, "xaxis": {"title": {"text": "level"}}, "yaxis": axis, "shapes": shapes}
    return Figure(f"Objective: {text}", _BOUNDED, data, layout)


def _draw_rulings(status: str, rulings: Sequence[tuple[float, Ruling]], color: str) -> Mark:
    kept = [(level, it, it.reading.interval) for level, it in rulings]
    bounds = [(sure.low, sure.high) if sure else (np.nan, np.nan) for *_, sure in kept]
    style = {
        "mode": "markers",
        "marker": {"color": color, "size": 9, "symbol": ["circle" if it.sure else "circle-open" for _, it, _ in kept]},
        "customdata": [str(it.reading) for _, it, _ in kept],
        "hovertemplate": f"at %{{x:g}}: %{{customdata}}, {status}<extra></extra>",
    }
    return draw_points(
        [level for level, *_ in kept], [it.reading.value or 0.0 for _, it, _ in kept], status, bounds, style
    )


def _list_rulings(level: float, decision: Decision) -> list[tuple[str, ...]]:
    return [
        (
            f"{level:g}",
            clean_text(it.objective.text),
            str(it.reading),
            show_interval(it.reading),
            it.status if it.sure or it.status == "unknown" else f"{it.status}, not surely",
        )
        for it in decision.rulings
    ]


def _choose_symbol(verdict: str) -> str:
    return "circle-open" if verdict == "INVALID" else "circle"


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)

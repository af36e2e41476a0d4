# What figures are made of: marks and axes, as data for plotly.js.
#
# Law: a figure is plain data; no plotly is imported here. Colours are names of CSS variables of the page ("--ok"),
# resolved there, so that one file is readable by day and by night. Nothing that a server said enters a figure
# (plotly reads some HTML in labels): numbers, outcomes, and names of ours.
#
# Numbers travel as typed arrays in base64: half the size of their decimal text, and exact enough to draw. Times
# are drawn on logarithmic axes, where the tail and the body are both to be seen.

"""Figures as data: lines, marks with intervals, axes of time, shades and labels."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

SMALLEST_S = 1e-7  # what a logarithmic axis shows for zero
QUARTERS = {"tickmode": "array", "tickvals": [0, 0.25, 0.5, 0.75, 1], "tickformat": ".0%"}

Mark = dict[str, Any]  # what plotly.js calls a trace


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its title, a sentence on how to read it, its data and layout for plotly.js, the metric it shows."""

    title: str
    caption: str
    data: list[Mark]
    layout: dict[str, Any]
    metric: str = ""


def draw_line(x: ArrayLike, y: ArrayLike, name: str, style: Mark) -> Mark:
    """Return a line through points."""
    return {"type": "scatter", "mode": "lines", "name": name, "x": pack(x), "y": pack(y)} | style


def draw_points(x: ArrayLike, y: ArrayLike, name: str, bounds: Sequence[tuple[float, float]], style: Mark) -> Mark:
    """Return marks with the interval of each as bars in y; *bounds* are (low, high), nan where there is none.

    A bar without an upper bound ends at three times its value.
    """
    middle, ends = np.asarray(y, np.float64), np.asarray(bounds, np.float64).reshape(-1, 2)
    above = np.where(np.isposinf(ends[:, 1]), 2 * np.abs(middle), ends[:, 1] - middle)
    bars = {"type": "data", "symmetric": False, "array": pack(above), "arrayminus": pack(middle - ends[:, 0])}
    return draw_line(x, y, name, {"mode": "markers", "error_y": bars | {"thickness": 1.5}} | style)


def style_line(color: str, dash: str = "solid", axis: str = "y") -> Mark:
    """Return the looks of a line: colour, dash, and the axis that it belongs to."""
    return {"line": {"color": color, "dash": dash, "width": 2}, "yaxis": axis, "hovertemplate": "%{x:.3g} s: %{y:.3s}"}


def scale_time(title: str, *, decades: float = 2.0, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis of seconds, with units at its ticks; finer ones where it spans few *decades*."""
    # plotly's own ticks on a logarithmic axis leave the unit off all but whole decades.
    digits = (1, 2, 5) if decades > 1.2 else (1, 1.5, 2, 3, 4, 5, 7)
    at_s = [digit * 10.0**power for power in range(-7, 5) for digit in digits]
    ticks = {"tickmode": "array", "tickvals": at_s, "ticktext": [_label_tick(value) for value in at_s]}
    return {"title": {"text": title, "standoff": 10}, "type": "log"} | ticks | more


def count_decades(values: ArrayLike) -> float:
    """Return how many decades positive values span; 0 for none."""
    kept = np.asarray(values, np.float64)
    kept = kept[np.isfinite(kept) & (kept > 0)]
    return float(np.log10(kept.max() / kept.min())) if len(kept) else 0.0


def scale_tokens(title: str, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis of tokens."""
    at = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    ticks = {"tickmode": "array", "tickvals": at, "ticktext": [f"{value:,}" for value in at]}
    return {"title": {"text": title}, "type": "log"} | ticks | more


def mark_value(value: float, color: str = "--muted", *, across: bool = False) -> dict[str, Any]:
    """Return a dashed line at a value of x, or *across* at one of y."""
    own, other = ("y", "x") if across else ("x", "y")
    place = {f"{own}0": value, f"{own}1": value, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", "line": {"color": color, "width": 1, "dash": "dash"}} | place


def shade_range(low: float, high: float) -> dict[str, Any]:
    """Return a shade from *low* to *high* in x, over the whole height."""
    place = {"x0": low, "x1": high, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "rect", "layer": "below", "fillcolor": "--shade", "line": {"width": 0}} | place


def label_value(text: str, value: float, *, logarithmic: bool = True) -> dict[str, Any]:
    """Return a label over the plot at a value of x."""
    # The x of an annotation on a logarithmic axis is an exponent; that of a shape is not.
    x = float(np.log10(value)) if logarithmic else value
    return {"text": text, "x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}


def pack(values: ArrayLike) -> dict[str, str]:
    """Return numbers as one of plotly's typed arrays; one of two dimensions says its shape."""
    array = np.asarray(values, "<f4")
    shape = {"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {}
    return {"dtype": "f4", "bdata": base64.b64encode(array.tobytes()).decode()} | shape


def _label_tick(value_s: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value_s >= scale * 0.99:
            return f"{value_s / scale:g} {unit}"
    return f"{value_s * 1e9:g} ns"

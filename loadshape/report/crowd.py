# Many points drawn as few, so that a million requests draw as fast as a thousand.
#
# Law: nothing leaves this module with more than a bounded number of marks. Up to POINTS of one outcome are drawn
# one by one; more become the cells of a grid, each drawn once, larger where it holds more, and labelled with one
# request of it: a cell with a single failure is as visible as one with ten thousand requests. Trends are the median
# and the 95th percentile of slices that hold enough values to have a median.
#
# Grids are laid over the axes as they are drawn: the logarithm of a time, and of a number of tokens.

"""Crowds: scatters of requests by outcome, thinned over a grid, and trends of slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadshape import metrics
from loadshape.log import OUTCOMES
from loadshape.report.figure import SMALLEST_S, Mark, draw_line, pack, style_line
from loadshape.stats import Floats, Integers, count_floor

POINTS = 3000  # SVG marks of one outcome in one panel; beyond, they are binned
BINS = 300  # of a rate or a trend over time, at most
_CROWD = 500  # marks that may be drawn strongly without painting the panel over
_GRID = (140, 40)  # cells over x and over latency when binned
ALL = "all requests"


def scatter_outcomes(requests: pa.Table, x: Floats, y: Floats, names: tuple[str, str], *, hover: str) -> list[Mark]:
    """Return one scatter a kind of outcome; *names* are the verb for y and its axis, *hover* tells x."""
    kinds = {name: metrics.is_outcome(requests, name) for name in OUTCOMES}
    return _scatter_kinds(requests, x, y, kinds, (*names, hover))


def scatter_all(requests: pa.Table, x: Floats, y: Floats, names: tuple[str, str], *, hover: str) -> list[Mark]:
    """Return one scatter of all requests, whatever became of them."""
    return _scatter_kinds(requests, x, y, {ALL: np.ones(requests.num_rows, np.bool_)}, (*names, hover))


def _scatter_kinds(
    requests: pa.Table, x: Floats, y: Floats, kinds: dict[str, metrics.Mask], names: tuple[str, str, str]
) -> list[Mark]:
    number = metrics.read_column(requests, "request")
    known = ~(np.isnan(x) | np.isnan(y))
    return [
        _scatter(number[rows], x[rows], np.maximum(y[rows], SMALLEST_S), (name, *names))
        for name, of_kind in kinds.items()
        if (rows := known & of_kind).any()
    ]


def _scatter(number: NDArray[Any], x: Floats, y: Floats, names: tuple[str, str, str, str]) -> Mark:
    outcome, verb, axis, hover = names
    chosen, held = thin(x, y)
    failed = outcome not in ("ok", ALL)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": outcome,
        "legendgroup": outcome,
        "showlegend": False,
        "x": pack(x[chosen]),
        "y": pack(y[chosen]),
        "yaxis": axis,
        "customdata": [_describe_mark(*pair) for pair in zip(number[chosen].tolist(), held.tolist(), strict=True)],
        "hovertemplate": f"request %{{customdata}}, {outcome}<br>{hover}<br>{verb} %{{y:.3s}}s<extra></extra>",
        "marker": {
            "color": "--bad" if failed else "--ok",
            "symbol": "x" if failed else "circle",
            "opacity": 0.8 if failed and len(chosen) < _CROWD else 0.45,
            "size": pack(4 + 2 * np.log10(held)) if held.max() > 1 else (6 if failed else 4),
        },
    }


def show_legend(marks: list[Mark]) -> list[Mark]:
    """Return the marks with one entry of the legend for each group of them."""
    last = {mark.get("legendgroup", place): place for place, mark in enumerate(marks)}
    return [mark | {"showlegend": place in last.values()} for place, mark in enumerate(marks)]


def thin(x: Floats, y: Floats) -> tuple[Integers, Integers]:
    """Return the rows to draw and how many each stands for: all of them, or one a cell of a grid."""
    if len(x) <= POINTS:
        return np.arange(len(x)), np.ones(len(x), np.int64)
    columns, rows = (_place(values, cells) for values, cells in zip((x, np.log10(y)), _GRID, strict=True))
    _, first, counts = np.unique(columns * _GRID[1] + rows, return_index=True, return_counts=True)
    return first, counts


def trend(x: Floats, y: Floats, edges: Floats, axis: str) -> list[Mark]:
    """Return the median and the 95th percentile of *y* in slices of *x*; a slice needs count_floor(0.5) values."""
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < count_floor(0.5):
        return []
    slot = np.clip(np.searchsorted(edges, x, "right") - 1, 0, len(edges) - 2)
    order = np.lexsort((y, slot))
    counts = np.bincount(slot, minlength=len(edges) - 1)
    starts = np.cumsum(counts) - counts
    full = counts >= count_floor(0.5)
    middle = ((edges[:-1] + edges[1:]) / 2)[full]
    lines = []
    for q, dash in ((0.5, "solid"), (0.95, "dot")):
        rank = (starts + np.floor(q * np.maximum(counts - 1, 0)).astype(np.int64))[full]
        style = style_line("--ink", dash, axis) | {"legendgroup": f"{q}"}
        lines.append(draw_line(middle, y[order][rank], f"p{q * 100:g} of a slice", style))
    return lines


def slice_time(end_s: float, bins: int = BINS) -> Floats:
    """Return the edges of whole slices of at least a second that cover a run, at most *bins* of them."""
    width_s = max(1.0, np.ceil(end_s / bins))
    return np.arange(int(np.ceil(end_s / width_s)) + 1) * width_s if end_s > width_s else np.array([0.0, width_s])


def _place(values: Floats, cells: int) -> Integers:
    span = max(np.ptp(values), 1e-9)
    return np.asarray(np.minimum((values - values.min()) / span * cells, cells - 1), np.int64)


def _describe_mark(number: int, held: int) -> str:
    return str(number) if held == 1 else f"{number} and {held - 1:,} near it"

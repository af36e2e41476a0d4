# An inspection as one HTML file that needs nothing else: no server, no network, no script.
#
# Law: layout only; the page is that of the reports (report/skeleton.py), and every string goes through html.escape.
# Series are drawn as SVG of at most a few hundred points, since they were binned when they were measured: a page has
# some ten kilobytes whatever the trace, and needs no library. Colours are variables of the style sheet of the reports,
# readable by day and by night, and in print.

"""HTML form of an inspection."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from html import escape

import numpy as np

from loadshape.inspection.section import Grid, Row, Section, Series, show_number
from loadshape.report import skeleton, tables
from loadshape.stats import Floats

_STYLE = """<style>
svg { width: 100%; height: auto; margin: 0.6rem 0; font-size: 12px; } svg text { fill: var(--muted); }
svg .area { fill: var(--ok-soft); stroke: var(--ok); stroke-width: 1.5; } svg .cell { fill: var(--ok); }
svg .rule { stroke: var(--rule); } svg .limit { stroke: var(--bad); stroke-dasharray: 5; }
</style>"""
_WIDE, _HIGH, _LEFT, _TOP, _BOTTOM = 960, 190, 80, 18, 34
_CELL = 22
_TICKS = 6


def write_page(title: str, head: Iterable[Row], sections: Iterable[Section]) -> str:
    """Return the inspection as a page."""
    parts = [_STYLE, f"<h1>{escape(title)}</h1>", _write_pairs(head), *map(_write_section, sections)]
    return skeleton.write_page(title, [*parts, "<footer>loadshape inspect. This file needs no network.</footer>"])


def _write_section(section: Section) -> str:
    parts = []
    if section.head:
        parts.append(skeleton.write_numbers(section.head, (tables.Row("", row[0], row[1:]) for row in section.rows)))
    else:
        parts.append(_write_pairs(section.rows))
    parts += [_draw_series(series) for series in section.series]
    if section.grid is not None:
        parts.append(_draw_grid(section.grid))
    parts += [f'<p class="caption">{escape(note)}</p>' for note in section.notes]
    return skeleton.write_section(section.title, "\n".join(parts))


def _write_pairs(rows: Iterable[Row]) -> str:
    return skeleton.write_pairs((label, "  ".join(cells)) for label, *cells in rows)


def _draw_series(series: Series) -> str:
    x, y = series.x, series.y
    if len(x) > len(y):  # bins: a step for each
        x, y = np.repeat(x, 2)[1:-1], np.repeat(y, 2)
    top = max(float(y.max(initial=0)), series.limit or 0.0) or 1.0
    across = _scale(x, is_log=series.is_log)
    points = " ".join(
        f"{_place_x(part):.1f},{_place_y(value / top):.1f}" for part, value in zip(across, y.tolist(), strict=True)
    )
    first, last, floor = _place_x(0), _place_x(1), _place_y(0)
    shapes = [
        *_draw_rules(top),
        *_draw_ticks(x, is_log=series.is_log),
        f'<polygon class="area" points="{first},{floor} {points} {last},{floor}"/>',
    ]
    if series.limit is not None:
        level = _place_y(series.limit / top)
        shapes.append(f'<line class="limit" x1="{first}" x2="{last}" y1="{level:.1f}" y2="{level:.1f}"/>')
    shapes.append(f'<text x="{_LEFT}" y="12">{escape(series.title)}</text>')
    shapes.append(f'<text x="{_WIDE - 8}" y="{_HIGH - 4}" text-anchor="end">{escape(series.x_title)}</text>')
    return _write_svg(_HIGH, shapes, series.title)


def _draw_rules(top: float) -> Iterator[str]:
    for part in (0, 0.5, 1):
        level = _place_y(part)
        yield f'<line class="rule" x1="{_place_x(0)}" x2="{_place_x(1)}" y1="{level}" y2="{level}"/>'
        yield f'<text x="{_LEFT - 6}" y="{level + 4}" text-anchor="end">{show_number(part * top)}</text>'


def _draw_ticks(x: Floats, *, is_log: bool) -> Iterator[str]:
    low, high = float(x[0]), float(x[-1])
    for step in range(_TICKS):
        part = step / (_TICKS - 1)
        value = low * (high / low) ** part if is_log else low + (high - low) * part
        yield f'<text x="{_place_x(part):.1f}" y="{_HIGH - 18}" text-anchor="middle">{show_number(value)}</text>'


def _scale(x: Floats, *, is_log: bool) -> list[float]:
    values = np.log(x) if is_log else x
    span = float(values[-1] - values[0]) or 1.0
    return [float(part) for part in (values - values[0]) / span]


def _place_x(part: float) -> float:
    return _LEFT + part * (_WIDE - _LEFT - 48)


def _place_y(part: float) -> float:
    return _HIGH - _BOTTOM - part * (_HIGH - _TOP - _BOTTOM)


def _draw_grid(grid: Grid) -> str:
    most = math.sqrt(float(grid.counts.max(initial=1))) or 1.0
    shapes, floor = [], len(grid.rows) * _CELL + 8
    for (row, column), count in np.ndenumerate(grid.counts):
        if count:
            x, y = _LEFT + column * _CELL, floor - (row + 1) * _CELL
            cell = f"{grid.row_title} {grid.rows[row]:,.0f}+, {grid.column_title} {grid.columns[column]:,.0f}+"
            shapes.append(
                f'<rect class="cell" x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" '
                f'opacity="{max(0.08, math.sqrt(count) / most):.2f}"><title>{escape(cell)}: {count:,}</title></rect>'
            )
    for row in range(0, len(grid.rows), 2):
        y = floor - row * _CELL - 6
        shapes.append(f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{grid.rows[row]:,.0f}</text>')
    shapes += [
        f'<text x="{_LEFT + column * _CELL}" y="{floor + 16}">{grid.columns[column]:,.0f}</text>'
        for column in range(0, len(grid.columns), 2)
    ]
    title = f"{grid.row_title} tokens upwards, {grid.column_title} tokens to the right"
    shapes.append(f'<text x="{_LEFT}" y="{floor + 34}">{escape(title)}</text>')
    return _write_svg(floor + 40, shapes, title)


def _write_svg(height: int, shapes: Iterable[str], label: str) -> str:
    inner = "\n".join(shapes)
    return f'<svg viewBox="0 0 {_WIDE} {height}" role="img" aria-label="{escape(label)}">\n{inner}\n</svg>'

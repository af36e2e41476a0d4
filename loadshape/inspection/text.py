# An inspection for a terminal or a file: plain text, 100 columns, no colour codes.
#
# Law: layout only. Plots are one line high: a series is as many marks as there is room for, each as high as its
# value between 0 and the largest; a grid is one mark a cell, the darker the more. Marks are block characters where
# whoever reads can show them, and ASCII elsewhere.

"""Text form of an inspection."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from loadshape.inspection.section import Grid, Row, Section, Series, show_number, shrink
from loadshape.stats import Integers

WIDTH = 100
_PLOT = 56
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = ".:-=+*%#"
_SHADES = {BLOCKS: " ░▒▓█", ASCII: " .:*#"}


def choose_marks(encoding: str | None, *, is_terminal: bool) -> str:
    """Return block characters for a terminal whose encoding has them, else ASCII."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS if is_terminal else ASCII


def write_text(head: Iterable[Row], sections: Iterable[Section], *, marks: str = ASCII) -> str:
    """Return the inspection as text, its plots drawn with *marks*."""
    blocks = [list(_write_pairs(head))]
    blocks += [[section.title, *_write_section(section, marks)] for section in sections]
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _write_section(section: Section, marks: str) -> Iterator[str]:
    if section.head:
        yield from _align([section.head, *section.rows])
    else:
        yield from _write_pairs(section.rows)
    for series in section.series:
        yield _draw_series(series, marks)
    if section.grid is not None:
        yield from _draw_grid(section.grid, _SHADES[marks])
    for note in section.notes:
        yield from textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _write_pairs(rows: Iterable[Row]) -> Iterator[str]:
    for label, *cells in rows:
        yield from textwrap.wrap("  ".join(cells), WIDTH, initial_indent=f"  {label:<17}", subsequent_indent=" " * 19)


def _align(rows: Sequence[Row]) -> Iterator[str]:
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    room = WIDTH - 2 - sum(wide + 2 for wide in others)
    for label, *cells in rows:
        name = label if len(label) <= room else label[: room - 3] + "..."
        yield f"  {name:<{min(first, room)}}" + "".join(
            f"  {cell:>{wide}}" for cell, wide in zip(cells, others, strict=True)
        )


def _draw_series(series: Series, marks: str) -> str:
    is_binned = len(series.x) > len(series.y)
    values = np.array(list(shrink(series.y, _PLOT, by="sum" if is_binned else "mean")))
    top = float(values.max(initial=0))
    line = "".join(_choose_mark(value / top, marks) if top > 0 else " " for value in values.tolist())
    ends = f"{show_number(float(series.x[0]))} to {show_number(float(series.x[-1]))} {series.x_title}"
    return f"  {series.title[:16]:<17}{line}  {ends}".rstrip()


def _choose_mark(part: float, marks: str) -> str:
    return " " if part <= 0 else marks[min(len(marks) - 1, int(part * len(marks)))]


def _draw_grid(grid: Grid, shades: str) -> Iterator[str]:
    counts = _halve(_halve(grid.counts).T).T if min(grid.counts.shape) > 1 else grid.counts
    step = 2 if counts.shape != grid.counts.shape else 1
    top = np.sqrt(counts.max(initial=1))
    for bound, row in zip(grid.rows[::step].tolist(), counts, strict=True):
        cells = "".join(2 * _choose_shade(float(np.sqrt(count) / top), shades) for count in row.tolist())
        yield f"  {grid.row_title} {bound:>9,.0f}+  {cells}".rstrip()
    columns = grid.columns[::step]
    yield f"  {'':<{len(grid.row_title)}}            {grid.column_title} {columns[0]:,.0f}+ to {columns[-1]:,.0f}+"


def _choose_shade(part: float, shades: str) -> str:
    return shades[0] if part <= 0 else shades[1 + min(len(shades) - 2, int(part * (len(shades) - 1)))]


def _halve(counts: Integers) -> Integers:
    """Return the sums of neighbouring rows."""
    return np.add.reduceat(counts, np.arange(0, len(counts), 2), axis=0)

# The figure of the README, drawn from a log: every request is three points over its due time.
#
# Law: numbers from the log alone, through the definitions of loadshape.metrics. The picture is plain SVG text,
# so that a change of it can be read; a white ground keeps it legible on a dark page.

"""Draw a log as SVG: python docs/figure.py demo/demo.log docs/figure.svg"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from loadshape import Log
from loadshape.metrics import measure, read_stamp_s
from loadshape.units import format_duration

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 840, 400, 80, 130, 34, 46
LOW_S, HIGH_S = 1e-5, 10.0
SERIES = (
    ("e2e", "#64748b", "last token"),
    ("ttft", "#2b6cb0", "first token"),
    ("lateness", "#c2620a", "begun by us"),
)


def place_y(value_s: float) -> float:
    """Return the height of a value on the logarithmic axis."""
    share = math.log(min(max(value_s, LOW_S), HIGH_S) / LOW_S) / math.log(HIGH_S / LOW_S)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def place_x(time_s: float, duration_s: float) -> float:
    """Return where a time lies from left to right."""
    return LEFT + time_s / duration_s * (WIDTH - LEFT - RIGHT)


def write_text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#333") -> str:
    """Return a piece of text at a place."""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'


def draw_axes(duration_s: float) -> Iterator[str]:
    """Yield the grid, a line a decade, and what it says."""
    for power in range(round(math.log10(LOW_S)), round(math.log10(HIGH_S)) + 1):
        y = place_y(10.0**power)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield write_text(LEFT - 8, y + 4, format_duration(10.0**power), "end")
    for time_s in np.linspace(0, duration_s, 5):
        yield write_text(place_x(time_s, duration_s), HEIGHT - BOTTOM + 18, f"{time_s:g} s", "middle")
    yield write_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "when the request was due", "middle")


def draw_series(log: Log) -> Iterator[str]:
    """Yield the points of each series, and its name where its middle lies."""
    due_s = read_stamp_s(log.requests, "due")
    for name, colour, label in SERIES:
        values_s = measure(log.requests, name)
        shown = ~np.isnan(values_s)
        points = zip(due_s[shown].tolist(), values_s[shown].tolist(), strict=True)
        dots = "".join(f"M{place_x(x, log.duration_s):.1f} {place_y(y):.1f}h0" for x, y in points)
        yield f'<path d="{dots}" stroke="{colour}" stroke-width="3" stroke-linecap="round" opacity="0.55"/>'
        middle_s = float(np.median(values_s[shown]))
        yield write_text(WIDTH - RIGHT + 8, place_y(middle_s), label, colour=colour)
        yield write_text(WIDTH - RIGHT + 8, place_y(middle_s) + 16, f"p50 {format_duration(middle_s)}", colour=colour)


def draw(log: Log) -> str:
    """Return the figure of *log*."""
    title = f"How long after it was due: {log.run.planned} requests in {log.run.duration_s:g} s, three points each"
    body = [write_text(LEFT, 20, title), *draw_axes(log.duration_s), *draw_series(log)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
    head += f'font-size="13" role="img" aria-label="{title}">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *body, "</svg>"]) + "\n"


if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).write_text(draw(Log.open(source)), encoding="utf-8")

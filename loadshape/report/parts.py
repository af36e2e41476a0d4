# A breakdown, for a terminal and for a program.
#
# Law: layout only; the numbers are those of breakdown.py. A percentile below its sample floor is "n/a" here as
# everywhere, and parts of a run have fewer requests than the run: many cells are, and that is the point.

"""Forms of a breakdown: text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from loadshape.breakdown import Breakdown, Part
from loadshape.report.document import encode
from loadshape.report.tables import clean_text
from loadshape.summary import Distribution
from loadshape.units import format_duration, format_rate

_HEAD = ("", "requests", "ok", "TTFT p50", "p95", "p99", "TPOT p50", "p95", "p99", "E2E p50", "p95", "p99", "output", "good")
_NAME_LIMIT = 28


def write_text(breakdown: Breakdown) -> str:
    """Return the breakdown as a table of text."""
    rows = [_HEAD, *map(_list_cells, breakdown.parts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_align(row, widths) for row in rows]
    return "\n".join([f"By {breakdown.by}", *lines]) + "\n"


def write_document(breakdown: Breakdown) -> str:
    """Return the breakdown as JSON."""
    return encode({"schema": "loadshape breakdown", "version": 1, **describe_parts(breakdown)})


def describe_parts(breakdown: Breakdown) -> dict[str, Any]:
    """Return the breakdown as plain values."""
    return {"by": breakdown.by, "parts": [asdict(part) for part in breakdown.parts]}


def _list_cells(part: Part) -> tuple[str, ...]:
    spans = [cell for values in (part.ttft, part.tpot, part.e2e) for cell in _list_percentiles(values)]
    good = "n/a" if part.attainment is None else f"{part.attainment:.1%}".replace("%", " %")
    ok = f"{part.outcomes.get('ok', 0):,}"
    return (clean_text(part.name, _NAME_LIMIT), f"{part.count:,}", ok, *spans, format_rate(part.output_tokens_per_s, "tok"), good)


def _list_percentiles(values: Distribution) -> tuple[str, ...]:
    return tuple(format_duration(value) for value in (values.p50_s, values.p95_s, values.p99_s))


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *cells = row
    return f"  {name:<{widths[0]}}  " + "  ".join(f"{it:>{width}}" for it, width in zip(cells, widths[1:], strict=True))

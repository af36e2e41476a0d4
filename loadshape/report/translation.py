# A run in another tool's words, for a terminal and for a program.
#
# Law: layout only. The tool's own names stand first, then its figures, then the formula by which they were taken; the
# figures of this program are in the report, and docs/dialect.md says why the two differ.

"""Forms of a translation: text and JSON."""

from __future__ import annotations

from typing import Any

from loadshape.dialect import Statement, Translation
from loadshape.reading import show_value
from loadshape.report.document import encode

_HEAD = ("", "mean", "p50", "p99", "count", "formula")


def write_text(translation: Translation) -> str:
    """Return the translation as a table of text."""
    rows = [_HEAD, *map(_list_cells, translation.statements)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{translation.tool} would say: {translation.answered:,} requests answered, {translation.failed:,} failed"]
    for name, *cells, formula in rows:
        told = "  ".join(f"{it:>{width}}" for it, width in zip(cells, widths[1:-1], strict=True))
        lines.append(f"  {name:<{widths[0]}}  {told}  {formula}".rstrip())
    lines.append(
        "Its definitions over this log's stamps, percentiles without sample floors; for judging, see the report."
    )
    return "\n".join(lines) + "\n"


def write_document(translation: Translation) -> str:
    """Return the translation as JSON."""
    about: dict[str, Any] = {"schema": "loadshape translation", "version": 1, "tool": translation.tool}
    about |= {"answered": translation.answered, "failed": translation.failed}
    return encode(about | {"figures": {it.term.name: _describe(it) for it in translation.statements}})


def _describe(it: Statement) -> dict[str, Any]:
    figures = {"mean": it.mean, "p50": it.p50, "p99": it.p99, "count": it.count}
    return {"unit": it.term.unit, "formula": it.term.formula, **figures}


def _list_cells(it: Statement) -> tuple[str, ...]:
    mean, p50, p99 = ("" if value is None else show_value(value, it.term.unit) for value in (it.mean, it.p50, it.p99))
    return (it.term.name, mean or "n/a", p50, p99, f"{it.count:,}", it.term.formula)

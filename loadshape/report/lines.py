# Lines of a report for a terminal: columns that stand under one another, and text that is broken at the edge.
#
# Law: of the text forms alone, and the only place that knows how wide they are. A row is short texts, the first of
# them a label at the left and all others numbers at the right; what the cells say is decided elsewhere. Nothing here
# knows of summaries, comparisons or anything else that is reported.

"""Aligned columns and wrapped text, 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

WIDTH = 100


def align_rows(rows: Sequence[Sequence[str]], *, least: int = 0) -> Iterator[str]:
    """Yield a line for each of *rows*: the label to the left, the cells to the right, each at least *least* wide."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    for label, *cells in rows:
        numbers = "".join(f"{cell:>{max(wide, least) + 3}}" for cell, wide in zip(cells, others, strict=True))
        yield f"  {label:<{first}}{numbers}"


def wrap_text(text: str, indent: str, first: str | None = None) -> list[str]:
    """Return *text* as lines under one *indent*, the first of them under another if it is given."""
    lead = indent if first is None else first
    return textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=indent) or [lead.rstrip()]

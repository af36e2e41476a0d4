# A page that needs nothing else: no server, no network, no font.
#
# Law: what a server or a file said is text, never markup: every string goes through html.escape, and the figures'
# JSON has its "<" escaped, so no </script> can end it. A content security policy refuses every address, should
# a library ever ask for one. plotly.js is inlined from the installed plotly (extra `report`); it is the only large
# part, 4.8 MB in plotly 7.1. A page without figures does without it.
#
# What stands on a page, and in which order, its own module says; here are only the pieces.

"""The skeleton of every HTML page: head, sections, tables, figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

import msgspec

from loadshape.errors import require
from loadshape.metrics import DEFINITIONS
from loadshape.report.figure import Figure
from loadshape.report.tables import Row

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def write_page(title: str, sections: Iterable[str], figures: Sequence[Figure] = ()) -> str:
    """Return a whole page; its sections hold the places of *figures*. Raises MissingExtra when plotly is missing."""
    body = "\n".join(section for section in (*sections, *_write_scripts(figures)) if section)
    return _PAGE.format(policy=_POLICY, title=escape(title), style=_read_asset("page.css"), body=body)


def write_section(title: str, inner: str, *, metric: str = "") -> str:
    """Return a section under a heading; nothing for nothing. The definition of *metric* shows over the heading."""
    return f"<section>\n<h2>{explain_label(title, metric)}</h2>\n{inner}\n</section>" if inner else ""


def write_folded(title: str, inner: str) -> str:
    """Return a section that opens when it is asked to; nothing for nothing."""
    return f"<details>\n<summary>{escape(title)}</summary>\n{inner}\n</details>" if inner else ""


def write_figures(figures: Iterable[Figure]) -> list[str]:
    """Return a section for each figure: title, caption and its place."""
    return [
        write_section(
            figure.title,
            f'<p class="caption">{escape(figure.caption)}</p>\n'
            f'<div class="plot" id="plot-{index}" style="min-height: {figure.layout["height"]}px"></div>',
            metric=figure.metric,
        )
        for index, figure in enumerate(figures)
    ]


def write_cards(cards: Iterable[tuple[str, str, str]]) -> str:
    """Return large numbers: (metric, label, value) of each."""
    inner = "".join(
        f"<div class='card'><b>{escape(value)}</b><span>{explain_label(label, metric)}</span></div>"
        for metric, label, value in cards
    )
    return f'<div class="cards">{inner}</div>'


def write_numbers(names: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a table of numbers under a head, nothing without rows."""
    rows = list(rows)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in names)
    return write_table(rows, number_cells=len(names) - 1, head=head) if rows else ""


def write_table(rows: Iterable[Row], *, number_cells: int, head: str = "") -> str:
    """Return a table; the first *number_cells* after the label are right-aligned, the others may be long."""
    lines = "\n".join(
        f"<tr><th>{explain_label(row.label, row.metric)}</th>"
        + "".join(
            f"<td class='{'number' if place < number_cells else 'wide'}'>{escape(cell)}</td>"
            for place, cell in enumerate(row.cells)
        )
        + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    kind = ' class="numbers"' if head else ""
    return f'<div class="scroll"><table{kind}>{top}<tbody>\n{lines}\n</tbody></table></div>'


def write_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a table of labels and texts, nothing for none."""
    rows = [Row("", label, (text,)) for label, text in pairs]
    return write_table(rows, number_cells=0) if rows else ""


def write_texts(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts under a head; a row's first cell is its label. Nothing without rows."""
    lines = "\n".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td class=wide>{escape(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    table = f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>\n{lines}\n</tbody></table></div>'
    return table if lines else ""


def explain_label(label: str, metric: str) -> str:
    """Return a label that shows the definition of its metric when the pointer rests on it."""
    definition = DEFINITIONS.get(metric)
    if definition is None:
        return escape(label)
    hint = f"{definition.formula}, over {definition.rows}. {definition.explanation}"
    return f'<abbr title="{escape(hint)}">{escape(label)}</abbr>'


def _write_scripts(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return []
    plotly_js: str = require("plotly.offline", "report").get_plotlyjs()
    return [
        f"<script>{plotly_js}</script>",
        f'<script type="application/json" id="figures">{_embed(figures)}</script>',
        f"<script>{_read_asset('page.js')}</script>",
    ]


def _embed(figures: Iterable[Figure]) -> str:
    text = msgspec.json.encode([dataclasses.asdict(figure) for figure in figures]).decode()
    return text.replace("<", "\\u003c")  # inside JSON strings only; so that nothing in it can end the script


def _read_asset(name: str) -> str:
    return files("loadshape.report").joinpath(name).read_text(encoding="utf-8")

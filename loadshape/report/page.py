# A report as one HTML file that needs nothing else: no server, no network, no font.
#
# Law: what a server or a file said is text, never markup: every string goes through html.escape, and the
# figures' JSON has its "<" escaped, so no </script> can end it. A content security policy refuses every
# address, should a library ever ask for one. plotly.js is inlined from the installed plotly (extra
# `report`); it is the only large part, 4.8 MB in plotly 7.1.
#
# The order is that of every report: the verdict, the conditions, the numbers, then the figures.

"""HTML form of summaries and verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from loadshape.errors import require
from loadshape.metrics import DEFINITIONS
from loadshape.report import plots, tables
from loadshape.report.plots import Figure
from loadshape.report.tables import Row
from loadshape.summary import Summary
from loadshape.units import format_duration, format_rate
from loadshape.validity import Check, Verdict
from loadshape.validity.finding import show_share

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


def write_summary(summary: Summary) -> str:
    """Return the whole report as one page. Raises MissingExtra when plotly is not installed."""
    plotly_js: str = require("plotly.offline", "report").get_plotlyjs()
    figures = plots.draw_figures(summary)
    name = tables.clean_text(summary.log.run.trace_name) or "unnamed trace"
    sections = [
        f"<h1>{escape(name)}</h1>\n<p class='lead'>{escape(_describe_run(summary))}</p>",
        _write_verdict(summary.verdict),
        _write_cards(summary),
        _titled("Conditions", _write_pairs(tables.list_conditions(summary))),
        _titled("Latency", _write_latencies(summary)),
        _write_targets(tables.list_targets(summary)),
        _titled("Rate", _write_table(tables.list_rates(summary), number_cells=1)),
        _titled("Outcomes", _write_outcomes(summary)),
        *(_write_figure(index, figure) for index, figure in enumerate(figures)),
        _folded("All checks of the instrument", _write_checks(summary.verdict.checks)),
        _folded("Environment", _write_pairs(_flatten(summary.log.environment))) if summary.log.environment else "",
        _folded("Definitions", _write_definitions()),
        f"<footer>{escape(tables.clean_text(summary.log.run.tool))}. This file needs no network.</footer>",
        f"<script>{plotly_js}</script>",
        f'<script type="application/json" id="figures">{_embed(figures)}</script>',
        f"<script>{_read_asset('page.js')}</script>",
    ]
    return _write_page(f"{name}: {summary.verdict.status}", sections)


def write_verdict(verdict: Verdict) -> str:
    """Return the verdict alone as a page."""
    sections = ["<h1>Verdict on the instrument</h1>", _write_verdict(verdict), _write_checks(verdict.checks)]
    return _write_page(f"loadshape: {verdict.status}", sections)


def _write_page(title: str, sections: Iterable[str]) -> str:
    body = "\n".join(section for section in sections if section)
    return _PAGE.format(policy=_POLICY, title=escape(title), style=_read_asset("page.css"), body=body)


def _read_asset(name: str) -> str:
    return files("loadshape.report").joinpath(name).read_text(encoding="utf-8")


def _describe_run(summary: Summary) -> str:
    targets = ", ".join(text for label, text in tables.list_conditions(summary) if label.startswith("target"))
    rate = format_rate(summary.throughput.offered_hz, "requests")
    return f"{summary.planned:,} requests at {rate} against {targets or 'an unrecorded target'}"


def _write_verdict(verdict: Verdict) -> str:
    sentence = verdict.headline.partition(": ")[2]
    reasons = "\n".join(_write_reason(check) for check in verdict.reasons)
    remedies = "\n".join(f'<li><span class="status">do</span>{escape(text)}</li>' for text in verdict.remedies)
    passed = len(verdict.checks) - len(verdict.reasons)
    return (
        f'<section class="verdict {verdict.status}">\n<span class="badge">{verdict.status}</span> {escape(sentence)}\n'
        f'<ul class="reasons">\n{reasons}\n{remedies}\n'
        f'<li class="ok">{passed} of {len(verdict.checks)} checks of the instrument passed.</li>\n</ul>\n</section>'
    )


def _write_reason(check: Check) -> str:
    return (
        f'<li><span class="status {check.status}">{check.status}</span><b>{escape(check.name)}</b>: '
        f"{escape(check.measured)} (limit: {escape(check.limit)})<br>{escape(check.meaning)}</li>"
    )


def _write_cards(summary: Summary) -> str:
    ok = summary.outcomes.get("ok", 0)
    cards = [
        ("TTFT p50", format_duration(summary.ttft.p50_s)),
        ("TTFT p99", format_duration(summary.ttft.p99_s)),
        ("TPOT p50", format_duration(summary.tpot.p50_s)),
        ("E2E p50", format_duration(summary.e2e.p50_s)),
        ("output tokens", format_rate(summary.throughput.output_tokens_per_s)),
        ("ended ok", show_share(ok / max(summary.planned, 1))),
    ]
    inner = "".join(
        f"<div class='card'><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in cards
    )
    return f'<div class="cards">{inner}</div>'


def _write_latencies(summary: Summary) -> str:
    table = _write_numbers(tables.LATENCY_HEAD, tables.list_latencies(summary))
    return table + "".join(f'<p class="caption">{escape(note)}</p>' for note in tables.list_notes(summary))


def _write_targets(rows: Sequence[Row]) -> str:
    return _titled("Targets", _write_numbers(tables.TARGET_HEAD, rows)) if rows else ""


def _write_numbers(names: Sequence[str], rows: Iterable[Row]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in names)
    return _write_table(rows, number_cells=len(names) - 1, head=f"<thead><tr>{head}</tr></thead>")


def _write_outcomes(summary: Summary) -> str:
    rows = [Row("", it.label, (*it.cells[:2], "; ".join(it.cells[2:]))) for it in tables.list_outcomes(summary)]
    return _write_table(rows, number_cells=2)


def _write_table(rows: Iterable[Row], *, number_cells: int, head: str = "") -> str:
    lines = "\n".join(
        f"<tr><th>{_write_label(row)}</th>"
        + "".join(
            f"<td class='{'number' if place < number_cells else 'wide'}'>{escape(cell)}</td>"
            for place, cell in enumerate(row.cells)
        )
        + "</tr>"
        for row in rows
    )
    kind = ' class="numbers"' if head else ""
    return f'<div class="scroll"><table{kind}>{head}<tbody>\n{lines}\n</tbody></table></div>'


def _write_label(row: Row) -> str:
    definition = DEFINITIONS.get(row.metric)
    if definition is None:
        return escape(row.label)
    hint = f"{definition.formula}, over {definition.rows}. {definition.explanation}"
    return f'<abbr title="{escape(hint)}">{escape(row.label)}</abbr>'


def _write_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return _write_table([Row("", label, (text,)) for label, text in pairs], number_cells=0)


def _write_checks(checks: Iterable[Check]) -> str:
    rows = "\n".join(
        f"<tr><th>{escape(it.name)}</th><td class='{it.status}'>{it.status}</td>"
        f"<td class='wide'>{escape(it.measured)}</td><td class='wide'>{escape(it.limit)}</td></tr>"
        for it in checks
    )
    head = "<thead><tr><th>check</th><th>status</th><th>measured</th><th>limit</th></tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>\n{rows}\n</tbody></table></div>'


def _write_definitions() -> str:
    rows = "\n".join(
        f"<tr><th>{escape(name)}</th><td><code>{escape(formula)}</code><br>{escape(text)}</td></tr>"
        for name, formula, text in tables.list_definitions()
    )
    return f'<div class="scroll"><table><tbody>\n{rows}\n</tbody></table></div>'


def _write_figure(index: int, figure: Figure) -> str:
    plot = f'<div class="plot" id="plot-{index}" style="min-height: {figure.layout["height"]}px"></div>'
    return _titled(figure.title, f'<p class="caption">{escape(figure.caption)}</p>\n{plot}')


def _titled(title: str, inner: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{inner}\n</section>"


def _folded(title: str, inner: str) -> str:
    return f"<details>\n<summary>{escape(title)}</summary>\n{inner}\n</details>"


def _embed(figures: Iterable[Figure]) -> str:
    text = msgspec.json.encode([dataclasses.asdict(figure) for figure in figures]).decode()
    return text.replace("<", "\\u003c")  # inside JSON strings only; so that nothing in it can end the script


def _flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested values as ("client.cores", "2") pairs."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{tables.clean_text(str(key))}"
        rows += _flatten(value, f"{name}.") if isinstance(value, dict) else [(name, tables.clean_text(str(value)))]
    return rows

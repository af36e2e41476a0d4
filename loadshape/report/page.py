# A report as one HTML file.
#
# Law: the order is that of every report: the verdict, what to look at next, the conditions, the numbers, then the
# figures; what is long and seldom needed is folded. Layout only: cells are made in tables.py, figures in plots.py, and
# the pieces of a page, with everything that keeps foreign text from becoming markup, in skeleton.py.

"""HTML form of summaries and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from loadshape.breakdown import KINDS, Breakdown, break_down
from loadshape.contract import list_facts
from loadshape.errors import InputError
from loadshape.report import parts, plots, tables
from loadshape.report.machines import NODE_HEAD, list_machines
from loadshape.report.serving import list_serving
from loadshape.report.skeleton import (
    write_cards,
    write_figures,
    write_folded,
    write_numbers,
    write_page,
    write_pairs,
    write_section,
    write_table,
    write_texts,
)
from loadshape.report.tables import Row
from loadshape.summary import Summary
from loadshape.symptoms import find_symptoms
from loadshape.units import format_duration, format_rate
from loadshape.validity import Check, Verdict
from loadshape.validity.finding import show_share


def write_summary(summary: Summary) -> str:
    """Return the whole report as one page. Raises MissingExtra when plotly is not installed."""
    figures = plots.draw_figures(summary)
    name = tables.clean_text(summary.log.run.trace_name) or "unnamed trace"
    sections = [
        f"<h1>{escape(name)}</h1>\n<p class='lead'>{escape(_describe_run(summary))}</p>",
        _write_verdict(summary.verdict),
        _write_cards(summary),
        write_section("To look at next", _write_symptoms(summary)),
        write_section("Conditions", write_pairs(tables.list_conditions(summary))),
        write_section("Latency", _write_latencies(summary)),
        write_section("How sure, within this run", write_numbers(tables.SURE_HEAD, tables.list_sureness(summary))),
        write_section("Targets", write_numbers(tables.TARGET_HEAD, tables.list_targets(summary))),
        write_section("Nodes", write_numbers(NODE_HEAD, list_machines(summary))),
        write_section("Rate", write_table(tables.list_rates(summary), number_cells=1)),
        write_section("Outcomes", _write_outcomes(summary)),
        write_section("Server", write_pairs(list_serving(summary))),
        *write_figures(figures),
        *(write_folded(f"By {found.by}", _write_parts(found)) for found in _divide(summary)),
        write_folded("All checks of the instrument", _write_checks(summary.verdict.checks)),
        write_folded("Contract: what a comparison looks at", _write_contract(summary)),
        write_folded("Environment", write_pairs(_flatten(summary.log.environment))),
        write_folded("Definitions", _write_definitions()),
        f"<footer>{escape(tables.clean_text(summary.log.run.tool))}. This file needs no network.</footer>",
    ]
    return write_page(f"{name}: {summary.verdict.status}", sections, figures)


def write_verdict(verdict: Verdict) -> str:
    """Return the verdict alone as a page."""
    sections = ["<h1>Verdict on the instrument</h1>", _write_verdict(verdict), _write_checks(verdict.checks)]
    return write_page(f"loadshape: {verdict.status}", sections)


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
    return write_cards(
        [
            ("ttft", "TTFT p50", format_duration(summary.ttft.p50_s)),
            ("ttft", "TTFT p99", format_duration(summary.ttft.p99_s)),
            ("tpot", "TPOT p50", format_duration(summary.tpot.p50_s)),
            ("e2e", "E2E p50", format_duration(summary.e2e.p50_s)),
            ("output_tokens_per_s", "output tokens", format_rate(summary.throughput.output_tokens_per_s)),
            ("", "ended ok", show_share(ok / max(summary.planned, 1))),
        ]
    )


def _write_symptoms(summary: Summary) -> str:
    items = "\n".join(
        f"<li><b>{escape(it.pattern)}</b>: {escape(it.shown_by)}<br>often because {escape(it.hypothesis)}"
        f'<br><span class="caption">look at: {escape(it.next_evidence)}</span></li>'
        for it in find_symptoms(summary)
    )
    caption = '<p class="caption">Patterns of this run, as hypotheses: what would confirm or refute each.</p>'
    return f'{caption}\n<ul class="symptoms">\n{items}\n</ul>' if items else ""


def _write_latencies(summary: Summary) -> str:
    table = write_numbers(tables.LATENCY_HEAD, tables.list_latencies(summary))
    return table + "".join(f'<p class="caption">{escape(note)}</p>' for note in tables.list_notes(summary))


def _write_outcomes(summary: Summary) -> str:
    rows = [Row("", it.label, (*it.cells[:2], "; ".join(it.cells[2:]))) for it in tables.list_outcomes(summary)]
    return write_table(rows, number_cells=2)


def _divide(summary: Summary) -> Iterator[Breakdown]:
    """Every breakdown that tells parts from one another; what the log cannot tell is left out."""
    for by in KINDS:
        try:
            found = break_down(summary, by)
        except InputError:
            continue
        if len(found.parts) > 1:
            yield found


def _write_parts(found: Breakdown) -> str:
    rows = [Row("", cells[0], cells[1:]) for cells in map(parts.list_counts, found.parts)]
    return write_numbers(parts.COUNTS, rows)


def _write_checks(checks: Iterable[Check]) -> str:
    rows = "\n".join(
        f"<tr><th>{escape(it.name)}</th><td class='{it.status}'>{it.status}</td>"
        f"<td class='wide'>{escape(it.measured)}</td><td class='wide'>{escape(it.limit)}</td></tr>"
        for it in checks
    )
    head = "<thead><tr><th>check</th><th>status</th><th>measured</th><th>limit</th></tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>\n{rows}\n</tbody></table></div>'


def _write_contract(summary: Summary) -> str:
    facts = [tuple(map(_clean, (*key, value))) for key, value in list_facts(summary.log).items()]
    return write_texts(("subject", "fact", "of this run"), facts)


def _write_definitions() -> str:
    rows = "\n".join(
        f"<tr><th>{escape(name)}</th><td><code>{escape(formula)}</code><br>{escape(text)}</td></tr>"
        for name, formula, text in tables.list_definitions()
    )
    return f'<div class="scroll"><table><tbody>\n{rows}\n</tbody></table></div>'


def _flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested values as ("client.cores", "2") pairs."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{_clean(key)}"
        rows += _flatten(value, f"{name}.") if isinstance(value, dict) else [(name, _clean(value))]
    return rows


def _clean(value: Any) -> str:
    return tables.clean_text("not known" if value is None else str(value))

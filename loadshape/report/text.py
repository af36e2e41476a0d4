# A report for a terminal, a file or an e-mail: plain text, 100 columns, no colour codes.
#
# Law: the verdict comes first, then the conditions, then the numbers. Of the checks only those are told
# that are not ok; the others are counted. Layout only: what the cells say is made in tables.py.

"""Text form of summaries and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from loadshape.report import tables
from loadshape.report.lines import align_rows, wrap_text
from loadshape.report.machines import NODE_HEAD, list_machines
from loadshape.report.serving import list_serving
from loadshape.report.tables import Row
from loadshape.summary import Summary
from loadshape.symptoms import Symptom, find_symptoms
from loadshape.validity import Check, Verdict

UNKNOWN_APART = 2  # checks that could not be made are told one by one up to here, else in one line
_MARKS = {"invalid": "!!", "suspect": " !", "unknown": " ?"}
_INDENT = " " * 5


def write_summary(summary: Summary) -> str:
    """Return the whole report as text."""
    sections = [
        write_verdict(summary.verdict).splitlines(),
        ["Conditions", *_write_pairs(tables.list_conditions(summary))],
        ["Latency", *align_rows([tables.LATENCY_HEAD, *map(_flatten, tables.list_latencies(summary))], least=7)],
        _write_sureness(tables.list_sureness(summary)),
        _write_parts("Targets", tables.TARGET_HEAD, tables.list_targets(summary)),
        _write_parts("Nodes", NODE_HEAD, list_machines(summary)),
        ["Rate", *_write_rates(tables.list_rates(summary))],
        _write_serving(list_serving(summary)),
        ["Outcomes", *_write_outcomes(tables.list_outcomes(summary))],
        _write_symptoms(find_symptoms(summary)),
        [line for note in tables.list_notes(summary) for line in wrap_text(note, "")],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def write_verdict(verdict: Verdict) -> str:
    """Return the headline, each check that is not ok with its meaning, what to do, and the count of the others."""
    lines = [verdict.headline]
    unknown = [check for check in verdict.reasons if check.status == "unknown"]
    for check in verdict.reasons:
        if check.status != "unknown" or len(unknown) <= UNKNOWN_APART:
            lines += _write_check(check)
    if len(unknown) > UNKNOWN_APART:
        told = "; ".join(check.name for check in unknown)
        lines += wrap_text(f"could not be looked at in this run: {told}", _INDENT, f"{_MARKS['unknown']}   ")
    for remedy in verdict.remedies:
        lines += wrap_text(remedy, _INDENT, "do   ")
    passed = len(verdict.checks) - len(verdict.reasons)
    lines.append(f"{passed} of {len(verdict.checks)} checks of the instrument passed")
    return "\n".join(lines)


def _write_check(check: Check) -> Iterator[str]:
    yield from wrap_text(
        f"{check.name}: {check.measured} (limit: {check.limit})", _INDENT, f"{_MARKS[check.status]}   "
    )
    yield from wrap_text(check.meaning, _INDENT)


def _write_pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for label, text in pairs:
        yield from wrap_text(text, " " * 14, f"  {label:<12}")


def _write_sureness(rows: Sequence[Row]) -> list[str]:
    return ["How sure, within this run", *align_rows([tables.SURE_HEAD, *map(_flatten, rows)], least=7)] if rows else []


def _write_parts(title: str, head: Sequence[str], rows: Sequence[Row]) -> list[str]:
    return [title, *align_rows([head, *map(_flatten, rows)], least=7)] if rows else []


def _write_serving(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return ["Server", *_write_pairs(pairs)] if pairs else []


def _write_rates(rows: Sequence[Row]) -> Iterator[str]:
    wide = max(len(row.cells[0]) for row in rows)
    for row in rows:
        lead = f"  {row.label:<18}{row.cells[0]:>{wide}}  "
        yield from wrap_text(row.cells[1], " " * len(lead), lead)


def _write_outcomes(rows: Sequence[Row]) -> Iterator[str]:
    wide = max((len(row.cells[0]) for row in rows), default=0)
    for row in rows:
        count, share, *messages = row.cells
        yield f"  {row.label:<18}{count:>{wide}}  {share:>7}"
        for message in messages:
            yield from wrap_text(message, " " * 8, " " * 6)


def _write_symptoms(symptoms: Sequence[Symptom]) -> list[str]:
    lines = []
    for it in symptoms:
        lines += wrap_text(f"{it.pattern} ({it.shown_by})", _INDENT, "  ")
        lines += wrap_text(f"perhaps: {it.hypothesis}; look at: {it.next_evidence}", _INDENT)
    return ["To look at next (hypotheses, not causes)", *lines] if lines else []


def _flatten(row: Row) -> tuple[str, ...]:
    return (row.label, *row.cells)

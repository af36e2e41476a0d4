# The history of an experiment, on one page: for a terminal, for a program and for a browser.
#
# Law: the question first, then every candidate in the order of time with its decision and its reasons; what was
# adopted stands out, and what was rejected is not hidden. Every text is escaped. The page is plain HTML: a history is
# read, and needs no script.

"""Forms of an experiment: text, JSON and HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator

import msgspec

from loadshape.experiment import Entry, Experiment, Moved
from loadshape.reading import show_value
from loadshape.report.contrast import show_size
from loadshape.report.document import encode
from loadshape.report.lines import wrap_text

_STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1c1e21, #e4e6ea); --faint: light-dark(#6a707a, #9aa1ac);
  --page: light-dark(#fff, #16181c); --line: light-dark(#dde0e5, #343941); --good: light-dark(#1a7f4b, #4cc38a);
  --bad: light-dark(#b3261e, #ff8a80); }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.1rem; margin-top: 2rem; border-top: 1px solid var(--line); padding-top: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .8rem .15rem 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { color: var(--faint); font-weight: 500; }
.adopt, .better { color: var(--good); } .reject, .worse { color: var(--bad); } .faint { color: var(--faint); }
code { font-size: .85em; }
"""


def write_text(experiment: Experiment) -> str:
    """Return the history as text."""
    charter, baseline = experiment.charter, experiment.baseline
    lines = [
        *wrap_text(charter.question, ""),
        f"to improve: {charter.improve}; protected: {'; '.join(charter.gate.objectives)}",
        f"fixed: trace {charter.trace_digest[7:19]}; the accepted one is {baseline.number} ({baseline.change})",
    ]
    for entry in experiment.entries:
        lines += ["", *_write_entry(entry)]
    return "\n".join([*lines, ""])


def write_document(experiment: Experiment) -> str:
    """Return the history as JSON."""
    return encode(
        {
            "schema": "loadshape experiment",
            "version": 1,
            "charter": msgspec.to_builtins(experiment.charter),
            "accepted": experiment.baseline.number,
            "entries": msgspec.to_builtins(experiment.entries),
        }
    )


def write_page(experiment: Experiment) -> str:
    """Return the history as one HTML page."""
    charter = experiment.charter
    objectives = "".join(f"<li><code>{_safe(text)}</code></li>" for text in charter.gate.objectives)
    body = [
        f"<h1>{_safe(charter.question)}</h1>",
        f"<p>To improve: <code>{_safe(charter.improve)}</code>. Protected:</p><ul>{objectives}</ul>",
        f'<p class="faint">Fixed traffic: <code>{_safe(charter.trace_digest)}</code></p>',
        *(_write_section(entry, accepted=entry is experiment.baseline) for entry in experiment.entries),
    ]
    head = f'<meta charset="utf-8"><title>{_safe(charter.question)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _write_entry(entry: Entry) -> Iterator[str]:
    yield f"{entry.number}. {entry.change}: {entry.decision.upper()}"
    for text in entry.fixed:
        yield from wrap_text(f"fixed {text}", "       ", "     ")
    for text in (*entry.reasons, *entry.facts, *entry.rulings):
        yield from wrap_text(text, "       ", "     ")
    for it in entry.moved:
        if it.decision not in ("unknown", "equivalent"):
            yield f"     {it.reading:<22} {_show_change(it):>9}  {it.decision}"
    for text in entry.conditions:
        yield from wrap_text(f"holds: {text}", "       ", "     ")
    yield f"     again: {entry.command}"


def _write_section(entry: Entry, *, accepted: bool) -> str:
    mark = " (accepted)" if accepted else ""
    heading = f'{entry.number}. {_safe(entry.change)}: <span class="{entry.decision}">{entry.decision}</span>{mark}'
    told = "".join(f"<li>{_safe(text)}</li>" for text in (*entry.reasons, *entry.facts, *entry.rulings))
    rows = "".join(map(_write_row, entry.moved))
    head = "<tr><th></th><th>before</th><th>after</th><th>change</th><th>95 % interval</th><th></th></tr>"
    table = f"<table>{head}{rows}</table>" if rows else ""
    held = "".join(f"<li>{_safe(text)}</li>" for text in entry.conditions)
    holds = f'<p class="faint">Holds:</p><ul class="faint">{held}</ul>' if held else ""
    again = f"<p><code>{_safe(entry.command)}</code></p>"
    fixed = "".join(f"<li>{_safe(text)}</li>" for text in entry.fixed)
    same = f'<p class="faint">Fixed:</p><ul class="faint">{fixed}</ul>' if fixed else ""
    return f"<h2>{heading}</h2><ul>{told}</ul>{table}{same}{holds}{again}"


def _write_row(moved: Moved) -> str:
    values = "".join(f"<td>{_safe(show_value(value, moved.unit))}</td>" for value in (moved.before, moved.after))
    ends = (math.inf if end is None else end for end in moved.interval or ())
    between = " to ".join(show_size(end, is_share=moved.unit == "share") for end in ends)
    cells = f"<td>{_show_change(moved)}</td><td>{between}</td>"
    return f'<tr><td>{_safe(moved.reading)}</td>{values}{cells}<td class="{moved.decision}">{moved.decision}</td></tr>'


def _show_change(moved: Moved) -> str:
    return show_size(moved.size, is_share=moved.unit == "share")


def _safe(text: str) -> str:
    return html.escape("".join(char if char.isprintable() else " " for char in text))

# What repeats of one run say together, for a terminal and for a program.
#
# Law: every reading with its interval across runs; what a single run says, its own report says. A reading that one
# of the runs does not have says why instead of a number. Layout only: the means and the intervals are made in
# replication.py.

"""Forms of a replication: text and JSON."""

from __future__ import annotations

from collections.abc import Iterator

from loadshape.reading import show_interval, show_value
from loadshape.replication import Replication
from loadshape.report import tables
from loadshape.report.document import describe_reading, encode
from loadshape.report.lines import align_rows, wrap_text
from loadshape.report.tables import clean_text


def write_text(replication: Replication) -> str:
    """Return the readings of all runs as text."""
    first = replication.runs[0]
    sections = [
        list(_write_head(replication)),
        [
            "Conditions",
            *(line for label, text in tables.list_conditions(first)[:2] for line in _write_pair(label, text)),
        ],
    ]
    sections[1] += _write_pair("state", _tell_state(replication))
    if replication.readings:
        rows = [("", "mean of runs", "95 % interval across runs")]
        rows += [(it.name, show_value(it.value, it.unit), show_interval(it) or it.why) for it in replication.readings]
        sections.append(["Readings", *align_rows(rows)])
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _write_head(replication: Replication) -> Iterator[str]:
    verdicts = ", ".join(f"{count} {status}" for status, count in replication.verdicts.items())
    yield f"{len(replication.runs)} runs of the same traffic: {verdicts}"
    for name, runs in replication.doubts.items():
        yield from wrap_text(f"{name}: {', '.join(it.log.path.name for it in runs)}", " " * 5, " !   ")
    if not replication.readings:
        worst = next(it for it in replication.runs if it.verdict.status == "INVALID")
        told = f"no readings: a run is INVALID; see why with loadshape report {worst.log.path}, and play it again"
        yield from wrap_text(told, " " * 5, "!!   ")


def _tell_state(replication: Replication) -> str:
    states = list(dict.fromkeys(clean_text(tables.describe_state(it.log)) for it in replication.runs))
    told = f"{states[0]}; the same before each run" if len(states) == 1 else "; in others: ".join(states)
    return f"{told}; but a server is cold only once" if states[0].startswith("cold,") else told


def _write_pair(label: str, text: str) -> list[str]:
    return wrap_text(text, " " * 14, f"  {label:<12}")


def write_document(replication: Replication) -> str:
    """Return the readings of all runs as JSON."""
    return encode(
        {
            "schema": "loadshape repeats",
            "version": 1,
            "runs": [str(it.log.path) for it in replication.runs],
            "verdicts": replication.verdicts,
            "doubts": {name: [str(it.log.path) for it in runs] for name, runs in replication.doubts.items()},
            "state": _tell_state(replication),
            "readings": {it.name: describe_reading(it) for it in replication.readings},
        }
    )

# What a gate decided, for a terminal, for a program, and for the summary page of a CI job.
#
# Law: the sentence first, then every objective with what was found and how sure that is; one that was kept by a
# hair says so. Layout only: nothing is decided here.

"""Forms of a gate's decision: text, JSON and Markdown."""

from __future__ import annotations

from typing import Any

from loadshape.gate import Decision, Ruling
from loadshape.reading import show_interval
from loadshape.report.document import describe_reading, encode

_MARKS = {"met": "ok", "missed": "!!", "unknown": " ?"}


def write_text(decision: Decision) -> str:
    """Return the decision as text."""
    lines = [f"{decision.name or 'gate'}: {decision.headline}"]
    lines += [f"{_MARKS[it.status]}   {_describe_ruling(it)}" for it in decision.rulings]
    return "\n".join([*lines, _describe_runs(decision), ""])


def write_markdown(decision: Decision) -> str:
    """Return the decision as a heading and a table."""
    rows = [
        f"| {it.status} | `{it.objective.text}` | {it.reading} | {show_interval(it.reading)} |"
        for it in decision.rulings
    ]
    head = ["| | objective | found | 95 % interval |", "| --- | --- | --- | --- |"]
    return "\n".join(
        [f"### {decision.name or 'gate'}: {decision.headline}", "", *head, *rows, "", _describe_runs(decision), ""]
    )


def write_document(decision: Decision) -> str:
    """Return the decision as JSON."""
    return encode(
        {
            "schema": "loadshape gate",
            "version": 1,
            "name": decision.name,
            "passed": decision.passed,
            "headline": decision.headline,
            "verdict": decision.verdict,
            "runs": decision.runs,
            "rulings": [_describe(it) for it in decision.rulings],
        }
    )


def _describe(ruling: Ruling) -> dict[str, Any]:
    stated = {"objective": ruling.objective.text, "status": ruling.status, "sure": ruling.sure}
    return stated | describe_reading(ruling.reading)


def _describe_ruling(ruling: Ruling) -> str:
    between = show_interval(ruling.reading)
    doubt = "" if ruling.sure or ruling.status == "unknown" or not between else ", not surely"
    found = f"{ruling.reading} (95 %: {between})" if between else str(ruling.reading)
    return f"{ruling.status}{doubt}: {ruling.objective.text}; found {found}"


def _describe_runs(decision: Decision) -> str:
    return f"{decision.runs} run{'s' if decision.runs > 1 else ''}; instrument {decision.verdict}"

# Rendering: a value of the judging room in a form for people or for programs.
#
# Law: a form never computes a metric; it shows what summary and validity hold. Forms are plain functions
# in a table: text (100 columns), json (versioned schema), html (one self-contained page, which needs the
# extra `report`). Whatever the form, the verdict stands above the numbers.

"""Render summaries, verdicts, comparisons, decisions, sweeps and searches as text, JSON, HTML or Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadshape.breakdown import Breakdown
from loadshape.comparison import Comparison
from loadshape.dialect import Translation
from loadshape.errors import InputError
from loadshape.experiment import Experiment
from loadshape.gate import Decision
from loadshape.replication import Replication
from loadshape.report import (
    contrast,
    contrast_page,
    curve,
    curve_page,
    document,
    ledger,
    page,
    parts,
    repeats,
    ruling,
    text,
    translation,
)
from loadshape.saturation import Curve
from loadshape.search import Found
from loadshape.summary import Summary
from loadshape.validity import Verdict

__all__ = ["FORMS", "render"]

FORMS: dict[type, dict[str, Callable[[Any], str]]] = {
    Summary: {"text": text.write_summary, "json": document.write_summary, "html": page.write_summary},
    Verdict: {"text": text.write_verdict, "json": document.write_verdict, "html": page.write_verdict},
    Breakdown: {"text": parts.write_text, "json": parts.write_document},
    Translation: {"text": translation.write_text, "json": translation.write_document},
    Comparison: {
        "text": contrast.write_text,
        "json": contrast.write_document,
        "html": contrast_page.write_comparison,
    },
    Curve: {"text": curve.write_curve, "json": curve.write_curve_document, "html": curve_page.write_curve},
    Experiment: {"text": ledger.write_text, "json": ledger.write_document, "html": ledger.write_page},
    Replication: {"text": repeats.write_text, "json": repeats.write_document},
    Found: {"text": curve.write_search, "json": curve.write_search_document, "html": curve_page.write_search},
    Decision: {"text": ruling.write_text, "json": ruling.write_document, "markdown": ruling.write_markdown},
}


Judged = Summary | Verdict | Breakdown | Translation | Comparison | Decision | Curve | Found | Replication | Experiment


def render(what: Judged, form: str = "text") -> str:
    """Return *what* in a form that it has. Raises InputError for another, MissingExtra for html without plotly."""
    forms = FORMS[type(what)]
    if form not in forms:
        raise InputError(f"form: expected one of {', '.join(forms)}; found {form!r}")
    return forms[form](what)

# Rendering: a value of the judging room in a form for people or for programs.
#
# Law: a form never computes a metric; it shows what summary and validity hold. Forms are plain functions
# in a table: text (100 columns), json (versioned schema), html (one self-contained page, which needs the
# extra `report`). Whatever the form, the verdict stands above the numbers.

"""Render summaries and verdicts as text, JSON or HTML."""

from __future__ import annotations

from loadshape.errors import InputError
from loadshape.report import document, page, text
from loadshape.summary import Summary
from loadshape.validity import Verdict

__all__ = ["FORMS", "render"]

_SUMMARY = {"text": text.write_summary, "json": document.write_summary, "html": page.write_summary}
_VERDICT = {"text": text.write_verdict, "json": document.write_verdict, "html": page.write_verdict}
FORMS = tuple(_SUMMARY)


def render(what: Summary | Verdict, form: str = "text") -> str:
    """Return *what* in one of FORMS. Raises InputError for another form, MissingExtra for html without plotly."""
    if form not in FORMS:
        raise InputError(f"form: expected one of {', '.join(FORMS)}; found {form!r}")
    return _SUMMARY[form](what) if isinstance(what, Summary) else _VERDICT[form](what)

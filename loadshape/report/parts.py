# A breakdown, for a terminal and for a program.
#
# Law: layout only; the numbers are those of breakdown.py. A percentile below its sample floor is "n/a" here as
# everywhere, and parts of a run have fewer requests than the run: many cells are, and that is the point.

"""Forms of a breakdown: text and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from loadshape.breakdown import Breakdown, Part
from loadshape.report.document import encode
from loadshape.report.lines import align_rows
from loadshape.report.tables import clean_text
from loadshape.summary import Distribution
from loadshape.units import format_duration, format_rate
from loadshape.validity.finding import show_share

COUNTS = ("", "requests", "ok", "good", "output", "TTFT p50", "p95", "p99")
_SPANS = ("", "TPOT p50", "p95", "p99", "E2E p50", "p95", "p99")
_NAME_LIMIT = 28


def write_text(breakdown: Breakdown) -> str:
    """Return the breakdown as a table of text."""
    counts = align_rows([COUNTS, *map(list_counts, breakdown.parts)])
    spans = align_rows([_SPANS, *map(_list_spans, breakdown.parts)])
    return "\n".join([f"By {breakdown.by}", *counts, "", *spans]) + "\n"


def write_document(breakdown: Breakdown) -> str:
    """Return the breakdown as JSON."""
    return encode({"schema": "loadshape breakdown", "version": 1, **describe_parts(breakdown)})


def describe_parts(breakdown: Breakdown) -> dict[str, Any]:
    """Return the breakdown as plain values."""
    return {"by": breakdown.by, "parts": [asdict(part) for part in breakdown.parts]}


def list_counts(part: Part) -> tuple[str, ...]:
    """Return a part as cells under COUNTS: its name, requests, those that were ok and good, tokens/s and TTFT."""
    good = "n/a" if part.attainment is None else show_share(part.attainment)
    rate = format_rate(part.output_tokens_per_s, "tok")
    ok = f"{part.outcomes.get('ok', 0):,}"
    return (_show_name(part), f"{part.count:,}", ok, good, rate, *_list_percentiles(part.ttft))


def _list_spans(part: Part) -> tuple[str, ...]:
    return (_show_name(part), *_list_percentiles(part.tpot), *_list_percentiles(part.e2e))


def _show_name(part: Part) -> str:
    return clean_text(part.name, _NAME_LIMIT)


def _list_percentiles(values: Distribution) -> tuple[str, ...]:
    return tuple(format_duration(value) for value in (values.p50_s, values.p95_s, values.p99_s))

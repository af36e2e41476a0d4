# What a sweep or a search found, for a terminal and for a program.
#
# Law: every level is a row with what was offered and what came of it; labels (knee, fit) are told as labels, with the
# range that they depend on. Layout only: nothing is computed here.

"""Forms of a sweep's curve and of a search: text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from loadshape.reading import show_value
from loadshape.report.document import describe_reading, encode
from loadshape.report.lines import align_rows
from loadshape.saturation import Curve, Point, Scaling, find_knee, fit_scaling
from loadshape.search import Found

COLUMNS = {
    "offered_hz": "offered",
    "request_hz": "completed",
    "output_tokens_per_s": "output",
    "ttft.p50": "TTFT p50",
    "ttft.p95": "TTFT p95",
    "tpot.p50": "TPOT p50",
    "e2e.p95": "E2E p95",
    "errors": "errors",
}
_BAR = 24


def write_curve(curve: Curve) -> str:
    """Return a sweep as text."""
    rows = [(curve.key, *COLUMNS.values(), "instrument"), *map(list_cells, curve.points)]
    lines = [f"{curve.key} swept over {len(curve.points)} levels", "", *align_rows(rows), "", *_draw_bars(curve.points)]
    return "\n".join([*lines, "", *tell_labels(curve), ""])


def write_curve_document(curve: Curve) -> str:
    """Return a sweep as JSON."""
    knee, scaling = find_knee(curve.points), fit_scaling(curve.points) if curve.is_closed else None
    return encode(
        {
            "schema": "loadshape sweep",
            "version": 1,
            "key": curve.key,
            "points": [_describe_point(it) for it in curve.points],
            "knee": knee and knee.level,
            "scaling": scaling and msgspec.to_builtins(scaling) | {"peak": scaling.peak},
        }
    )


def write_search(found: Found) -> str:
    """Return the result of a search as text."""
    trials = ((f"{it.level:g}", f"{it.length_s:g} s", it.status) for it in found.result.trials)
    lines = [tell_headline(found), "", *align_rows([("level", "length", "status"), *trials]), ""]
    for level, decision in found.decisions.items():
        lines.append(f"  {level:g}: {decision.headline}")
        lines += (f"      {it.objective.text}: {it.reading}" for it in decision.rulings)
    return "\n".join([*lines, ""])


def write_search_document(found: Found) -> str:
    """Return the result of a search as JSON."""
    return encode(
        {
            "schema": "loadshape search",
            "version": 1,
            "lower": found.result.lower,
            "upper": found.result.upper,
            "reason": found.result.reason,
            "trials": msgspec.to_builtins(found.result.trials),
            "levels": [
                {"level": level, "passed": it.passed, "runs": it.runs, "verdict": it.verdict}
                | {"readings": {of.objective.text: describe_reading(of.reading) for of in it.rulings}}
                for level, it in found.decisions.items()
            ],
        }
    )


def tell_headline(found: Found) -> str:
    """Return what a search came to, in one sentence."""
    lower, upper = found.result.lower, found.result.upper
    if lower is None:
        return f"no level keeps the gate: {found.result.reason} (not kept at {upper:g})"
    above = f"not at {upper:g}" if upper is not None else "no level above it was to be tried"
    return f"the gate is kept at {lower:g}, and {above}: {found.result.reason}"


def tell_labels(curve: Curve) -> Iterator[str]:
    """Yield what is told of the curve beside its points: the knee and the fit, as labels."""
    knee = find_knee(curve.points)
    span = f"{curve.points[0].level:g} to {curve.points[-1].level:g}"
    if knee is not None:
        yield f"knee (a label that depends on the range, {span}): {knee.level:g}"
    scaling = fit_scaling(curve.points) if curve.is_closed else None
    if scaling is not None:
        yield _tell_scaling(scaling)


def _tell_scaling(scaling: Scaling) -> str:
    peak = f"most throughput at {scaling.peak:.3g} users" if scaling.peak else "no peak"
    return (
        f"USL fit (a label): {scaling.rate_hz:.3g}/s of one user, contention {scaling.contention:.3g}, crosstalk "
        f"{scaling.crosstalk:.2g}, {peak}; off by {scaling.residual:.1%}"
    )


def _describe_point(point: Point) -> dict[str, Any]:
    readings = {name: describe_reading(reading) for name, reading in point.readings.items()}
    return {"level": point.level, "runs": point.runs, "verdict": point.verdict, "readings": readings}


def list_cells(point: Point) -> tuple[str, ...]:
    """Return a point as cells: its level, the readings of COLUMNS, and the verdict on its runs."""
    shown = (point.readings[name] for name in COLUMNS)
    return (f"{point.level:g}", *(show_value(it.value, it.unit) for it in shown), point.verdict)


def _draw_bars(points: Sequence[Point]) -> Iterator[str]:
    values = [point.value("request_hz") or 0.0 for point in points]
    most = max(values, default=0.0)
    for point, value in zip(points, values, strict=True):
        bar = "#" * round(_BAR * value / most) if most else ""
        yield f"  {point.level:>10g}  {bar:<{_BAR}}  {show_value(value, '1/s')} completed"

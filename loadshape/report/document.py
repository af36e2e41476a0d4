# A report for programs: JSON with a name and a version.
#
# Law: numbers are SI (seconds, hertz, tokens), the order of the keys is fixed, and a missing number is
# null. One value needs a word: a percentile that lies among failed requests is infinite, for which JSON
# has no number, so it is the string "inf" (Python's float() and most others read it). A change of
# meaning or a removed key raises VERSION; a new key does not.

"""JSON form of summaries and verdicts."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from loadshape.metrics import DEFINITIONS
from loadshape.reading import Reading
from loadshape.report.machines import describe_machines
from loadshape.report.serving import describe_serving
from loadshape.report.tables import take_sure_readings
from loadshape.summary import Distribution, Summary
from loadshape.symptoms import find_symptoms
from loadshape.validity import Verdict
from loadshape.validity.sending import count_resent

VERSION = 1


def write_summary(summary: Summary) -> str:
    """Return the report as JSON text."""
    return encode(describe_summary(summary))


def write_verdict(verdict: Verdict) -> str:
    """Return the verdict as JSON text."""
    return encode({"schema": "loadshape verdict", "version": VERSION, **describe_verdict(verdict)})


def describe_summary(summary: Summary) -> dict[str, Any]:
    """Return the report as plain values; docs/report.md lists the keys."""
    return {
        "schema": "loadshape report",
        "version": VERSION,
        "verdict": describe_verdict(summary.verdict),
        "conditions": describe_conditions(summary),
        "window": msgspec.to_builtins(summary.window),
        "latencies": {name: _describe(value) for name in DEFINITIONS if (value := _distribution(summary, name))},
        "intervals": msgspec.to_builtins(summary.intervals),
        "readings": {it.name: describe_reading(it) for it in take_sure_readings(summary)},
        "throughput": msgspec.to_builtins(summary.throughput),
        "throughput_of_run": msgspec.to_builtins(summary.throughput_of_run),
        "slices": msgspec.to_builtins(summary.slices),
        "arrivals": msgspec.to_builtins(summary.arrivals),
        "goodput": {
            "objectives": msgspec.to_builtins(summary.objectives),
            "goodput_hz": summary.good_hz,
            "goodput_tokens_per_s": summary.goodput_tokens_per_s,
            "attainment": summary.attainment,
        },
        "stalled": summary.stalled,
        "by_target": [
            {
                "target": it.target,
                "url": it.url,
                "requests": it.requests,
                "outcomes": it.outcomes,
                "ttft": _describe(it.ttft),
                "e2e": _describe(it.e2e),
                "output_tokens_per_s": it.output_tokens_per_s,
            }
            for it in summary.by_target
        ],
        "by_node": describe_machines(summary),
        **describe_serving(summary),
        "symptoms": msgspec.to_builtins(find_symptoms(summary)),
        "planned": summary.planned,
        "resent": count_resent(summary.log),
        "outcomes": summary.outcomes,
        "failures": [
            {
                "outcome": it.outcome,
                "count": it.count,
                "messages": [{"text": text, "count": count} for text, count in it.messages],
            }
            for it in summary.failures
        ],
    }


def describe_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as plain values."""
    return {
        "status": verdict.status,
        "headline": verdict.headline,
        "exit_code": verdict.exit_code,
        "checks": msgspec.to_builtins(verdict.checks),
        "limits": _finite(msgspec.to_builtins(verdict.limits)),
        "limits_changed": sorted(verdict.limits.changed),
    }


def describe_conditions(summary: Summary) -> dict[str, Any]:
    """Return the conditions of the run and its environment as they are in the log."""
    manifest = summary.log.manifest
    run: dict[str, Any] = msgspec.to_builtins(manifest.run)
    return run | {"ended": manifest.ended, "notes": manifest.notes, "environment": summary.log.environment}


def describe_reading(reading: Reading) -> dict[str, Any]:
    """Return a reading as plain values; an interval without a bound ends at "inf"."""
    sure = reading.interval
    return {
        "value": reading.value,
        "unit": reading.unit,
        "interval": sure and [sure.low, sure.high],
        "effective": sure and sure.effective,
        "count": reading.count,
        "why": reading.why,
    }


def _distribution(summary: Summary, name: str) -> Distribution | None:
    value = getattr(summary, name, None)
    return value if isinstance(value, Distribution) else None


def _describe(found: Distribution) -> dict[str, float | str | None]:
    return _finite(msgspec.to_builtins(found))


def _finite(values: dict[str, float | None]) -> dict[str, float | str | None]:
    return {name: "inf" if value is not None and math.isinf(value) else value for name, value in values.items()}


def encode(document: dict[str, Any]) -> str:
    """Return a document as indented JSON text; a number that JSON does not have becomes "inf" or null."""
    return msgspec.json.format(msgspec.json.encode(_replace_infinite(document)), indent=2).decode() + "\n"


def _replace_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_infinite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_replace_infinite(part) for part in value]
    return ("inf" if value > 0 else "-inf") if isinstance(value, float) and math.isinf(value) else value

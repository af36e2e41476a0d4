# The shape of traffic in OpenTelemetry spans of the GenAI conventions, without its texts.
#
# Law: a span with token counts of a model call is a request; all other spans are counted and left out. Of
# texts only the sharing is taken (shredder.py). The span's begin is the arrival.
#
# Three forms of the same: OTLP/JSON ({"resourceSpans": [{"scopeSpans": [{"spans": [...]}]}]}, one message a
# line as the collector's file exporter writes it, or one in all), lists of spans ({"spans": [...]}), and
# single spans with a dictionary of attributes and ISO times (the SDK's console exporter; what inference-perf
# reads). Attribute names changed over the years; the newest comes first in each list below.
#
# Source: OpenTelemetry semantic conventions, gen-ai spans; opentelemetry-proto, OTLP/JSON encoding.

"""Reader of OpenTelemetry GenAI spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from loadshape.sources.entry import Entry, Fault, to_count, to_time_ns
from loadshape.sources.shredder import Shredder, join_messages

Row = dict[str, Any]

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
_SESSION = ("gen_ai.conversation.id", "session.id")
_MODEL = ("gen_ai.request.model", "gen_ai.response.model")
_TEXT = ("gen_ai.input.messages", "gen_ai.prompt", "gen_ai.content.prompt")
_BEGIN = (("startTimeUnixNano", "ns"), ("start_time_unix_nano", "ns"), ("start_time", "clock"), ("startTime", "clock"))
_ERROR_CODE = 2


def read_telemetry(rows: Iterable[Row | None]) -> Iterator[Entry | Fault]:
    """Yield the model calls among the spans of each row."""
    shredder = Shredder()
    for number, row in enumerate(rows, 1):
        if row is None:
            yield Fault("malformed", f"row {number}: no JSON object")
            continue
        for span in _list_spans(row):
            yield _read_span(span, shredder, f"row {number}")


def _list_spans(row: Row) -> Iterator[Row]:
    groups = [row.get(name) for name in ("resourceSpans", "scopeSpans", "spans")]
    if not any(isinstance(group, list) for group in groups):
        yield row
        return
    for group in groups:
        for inner in group or ():
            yield from _list_spans(inner)


def _read_span(span: Row, shredder: Shredder, place: str) -> Entry | Fault:
    try:
        attributes = _read_attributes(span.get("attributes"))
        input_tokens = to_count(_find(attributes, _INPUT))
        if input_tokens is None:
            return Fault("other_span", f"{place}: a span without token counts")
        at_ns = next((to_time_ns(span[name], unit) for name, unit in _BEGIN if name in span), None)  # type: ignore[arg-type]
        text = _find(attributes, _TEXT)
        return Entry(
            at_ns=at_ns,
            input_tokens=input_tokens,
            output_tokens=to_count(_find(attributes, _OUTPUT)),
            session=_find(attributes, _SESSION),
            kind=str(attributes.get("gen_ai.operation.name", "")),
            model=_find(attributes, _MODEL),
            failed=_is_failure(span, attributes),
            blocks=shredder.shred(join_messages(text)) if text else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        return Fault("malformed", f"{place}: not a span ({type(problem).__name__})")


def _find(attributes: Row, names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) not in (None, "")), None)


def _read_attributes(given: Any) -> Row:
    """Return attributes as a dictionary: they are one, or a list of {key, value: {stringValue | intValue | ...}}."""
    if isinstance(given, list):
        return {pair["key"]: next(iter(pair["value"].values()), None) for pair in given}
    return dict(given or {})


def _is_failure(span: Row, attributes: Row) -> bool:
    status = span.get("status") or {}
    code = status.get("code", status.get("status_code"))
    return code in (_ERROR_CODE, "ERROR", "STATUS_CODE_ERROR") or bool(attributes.get("error.type"))

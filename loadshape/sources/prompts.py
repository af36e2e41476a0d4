# Requests that come with their texts: inputs of other load generators.
#
# Law: one short function a format, from a decoded row to entries; no file, no counting of tokens. The texts
# are handed on as they are: whoever converts such a file decides to keep them.
#
#     custom         {"prompt", "output_tokens"}                          vllm bench serve --dataset-name custom
#     openai_batch   {"custom_id", "method", "url", "body"}               OpenAI batch files
#     aiperf         {"text" | "texts", "timestamp" | "delay", ...}       single turns
#                    {"session_id", "turns": [...]}                       conversations with live answers
#                    {"input_length" | "text_input" | "messages" | "payload", "hash_ids", ...}   its Mooncake form
#
# All times of aiperf are milliseconds. Turns of one of its conversations are told one after the other, each
# with the answers that the server has given meanwhile: those are live answers here too. Its other rows with a
# session stand for themselves and only wait for one another. What a body holds beside its texts and lengths
# becomes parameters of the request. Parts that are no text are not read: such a row is counted and left out.

"""Readers of request files with texts: vLLM custom, OpenAI batch, aiperf."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from loadshape.conversation import ROLES, Role
from loadshape.sources.entry import Entry, Fault, Said, to_count, to_time_ns
from loadshape.trace import RESERVED

Row = dict[str, Any]
Reading = Iterator[Entry | Fault]

_COMPLETIONS = "completions"


def read_prompts(rows: Iterable[Row | None], read_row: Callable[[Row], Iterable[Entry]]) -> Reading:
    """Yield the entries of each row."""
    for number, row in enumerate(rows, 1):
        try:
            entries = [] if row is None else list(read_row(row))
        except _NoTextError:
            yield Fault("no_text", f"row {number}: a part that is no text")
            continue
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
            yield Fault("malformed", f"row {number}: not a row of this format ({type(problem).__name__})")
            continue
        if not entries:
            yield Fault("malformed", f"row {number}: neither a text nor a length")
        yield from entries


def read_custom(row: Row) -> Iterator[Entry]:
    """Yield the request of a row for vLLM's `custom` data set."""
    yield Entry(messages=(("user", _to_text(row["prompt"])),), output_tokens=to_count(row.get("output_tokens")))


def read_batch(row: Row) -> Iterator[Entry]:
    """Yield the request of a line of an OpenAI batch file."""
    yield _read_body(row["body"])


def read_aiperf(row: Row) -> Iterator[Entry]:
    """Yield the requests of a row that aiperf reads: one, or one for each turn."""
    if "turns" in row:
        yield from _read_turns(row)
        return
    entry = _read_body(row["payload"]) if row.get("payload") else _read_single(row)
    entry.at_ns = to_time_ns(row.get("timestamp"), "ms")
    entry.think_ns = to_time_ns(row.get("delay"), "ms") or 0
    entry.session = row.get("session_id")
    if (output_tokens := to_count(row.get("output_length"))) is not None:
        entry.output_tokens = output_tokens
    yield entry


def _read_single(row: Row) -> Entry:
    params = row.get("extra") or {}
    if row.get("tools"):
        params = params | {"tools": row["tools"]}
    if row.get("messages"):
        return Entry(messages=_to_messages(row["messages"]), params=params or None)
    if row.get("input_length") is not None:
        blocks = row.get("hash_ids")
        return Entry(input_tokens=to_count(row["input_length"]), blocks=blocks and [int(block) for block in blocks])
    text = row.get("text_input") or row.get("text") or row["texts"]
    return Entry(messages=((_to_role(row.get("role")), _to_text(text)),), params=params or None)


def _read_turns(row: Row) -> Iterator[Entry]:
    """Each turn tells all before it, with the answers of the server between."""
    told: tuple[tuple[Role, Said], ...] = ()
    session = row.get("session_id") or object()
    for number, turn in enumerate(row["turns"]):
        (entry,) = read_aiperf(turn)
        if number:
            told = (*told, ("assistant", number - 1))
        told = (*told, *(entry.messages or ()))
        if entry.messages is None:
            raise _NoTextError
        entry.messages, entry.session = told, session
        yield entry


def _read_body(body: Row) -> Entry:
    output_tokens = to_count(body.get("max_completion_tokens", body.get("max_tokens")))
    params = {key: value for key, value in body.items() if key not in RESERVED and key != "stream_options"}
    said = body.get("messages")
    return Entry(
        messages=_to_messages(said) if said else (("user", _to_text(body["prompt"])),),
        output_tokens=output_tokens,
        model=body.get("model"),
        api="chat" if said else _COMPLETIONS,
        params=params or None,
    )


def _to_messages(said: list[Row]) -> tuple[tuple[Role, Said], ...]:
    return tuple((_to_role(message["role"]), _to_text(message["content"])) for message in said)


def _to_role(role: str | None) -> Role:
    if role is None:
        return "user"
    if role not in ROLES:
        raise _NoTextError
    return cast("Role", role)


def _to_text(content: Any) -> str:
    """Return the text of a content: a text, or a list of nothing but texts and text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _NoTextError
    return "".join(_to_text(part.get("text") if isinstance(part, dict) else part) for part in content)


class _NoTextError(Exception):
    """A part of a request is an image, a sound, a tool's call: not what is read here."""

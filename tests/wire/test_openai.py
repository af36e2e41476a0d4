from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import RemoteWireError
from loadshape.wire import Event, Kind, read_answer, read_error, read_event
from loadshape.wire.openai import Usage

from .cases import RELAXED, delta, encode, text, usage, whole


def read(payload: Any, kind: str = "message") -> Any:
    return read_event(Event(kind, payload if isinstance(payload, bytes) else encode(payload)))


def test_kinds_are_the_bits_of_the_log() -> None:
    names = ["ROLE", "CONTENT", "REASONING", "TOOL", "FINISH", "USAGE", "DONE", "COMMENT", "ERROR"]
    assert [(kind.name, kind.value) for kind in Kind] == [(name, 1 << place) for place, name in enumerate(names)]


KINDS = [
    (delta(role="assistant"), Kind.ROLE),
    (delta(role="assistant", content=""), Kind.ROLE),
    (delta(content="a"), Kind.CONTENT),
    (delta(content="", refusal="no"), Kind.CONTENT),
    (delta(reasoning="a", content="b"), Kind.REASONING | Kind.CONTENT),
    (delta(reasoning_content="a"), Kind.REASONING),
    (delta(reasoning=""), Kind(0)),
    (delta(tool_calls=[{"function": {"name": "f"}}]), Kind.TOOL),
    (delta(tool_calls=[{"function": {"name": "", "arguments": ""}}]), Kind(0)),
    (delta(tool_calls=[{"id": "a"}, {"function": {"arguments": "{"}}]), Kind.TOOL),
    (delta(tool_calls=[None, {"function": None}]), Kind(0)),
    (delta(function_call={"arguments": "{"}), Kind.TOOL),
    (delta(finish="stop"), Kind.FINISH),
    (delta(usage=usage(1, 1)), Kind.USAGE),
    (delta(content="a", finish="length", usage=usage(1, 1)), Kind.CONTENT | Kind.FINISH | Kind.USAGE),
    (text("a"), Kind.CONTENT),
    (text(""), Kind(0)),
    (whole(), Kind.ROLE | Kind.CONTENT | Kind.FINISH | Kind.USAGE),
    ({"choices": []}, Kind(0)),
    ({}, Kind(0)),
    ([], Kind(0)),
    ("text", Kind(0)),
    (17, Kind(0)),
    (None, Kind(0)),
    (b"", Kind(0)),
    (b" \t", Kind(0)),
    (b"[DONE]", Kind.DONE),
    (b" [DONE] ", Kind.DONE),
    ({"error": "x"}, Kind.ERROR),
    ({"error": "x", "choices": []}, Kind.ERROR),
    ({"object": "error", "message": "x"}, Kind.ERROR),
    ({"code": 500, "message": "x", "type": "InternalServerError"}, Kind.ERROR),
    ({"detail": "x"}, Kind.ERROR),
    ({"choices": [{"error": {"code": 502, "message": "x"}, "delta": {"content": ""}}]}, Kind.ERROR),
    ({"choices": [{"error": None, "delta": {"content": "a"}}]}, Kind.CONTENT),
    ({"message": {"role": "assistant", "content": "a"}}, Kind(0)),
    ({"object": "chat.completion.chunk"}, Kind(0)),
    ({"error": None}, Kind(0)),
    ({"error": ""}, Kind(0)),
    ({"error": False}, Kind(0)),
]


@pytest.mark.parametrize(("payload", "kinds"), KINDS)
def test_kinds(payload: Any, kinds: Kind) -> None:
    facts = read(payload)
    assert Kind(facts.kinds) == kinds
    assert facts.bears == bool(kinds & (Kind.CONTENT | Kind.REASONING | Kind.TOOL))


@pytest.mark.parametrize(
    "data", [b"{", b"{} {}", b"[DONE", b"<html>", b'{"a":"\x01"}', b'{"a":' * 100_000, b"[" * 100_000, b"1" * 5000]
)
def test_what_is_not_json_is_the_servers_fault(data: bytes) -> None:
    with pytest.raises(RemoteWireError, match="not JSON"):
        read(data)


def test_choices_are_told_apart() -> None:
    facts = read({"choices": [{"index": 2, "text": "c"}, {"text": "a", "finish_reason": "stop"}, {"index": 1}]})
    assert facts.seen == 0b111
    assert facts.text == "a"
    assert facts.finishes == {0: "stop"}


def test_an_absurd_index_is_none() -> None:
    assert read({"choices": [{"index": 10**9, "text": "a"}]}).seen == 1


COUNTS = [
    ({"prompt_tokens": 5, "completion_tokens": 2}, (5, 2, None, None)),
    (usage(5, 2, 4, 1), (5, 2, 4, 1)),
    (usage(5, 2, 0, 0), (5, 2, 0, 0)),
    ({"cached_tokens": 3}, (None, None, 3, None)),
    ({"prompt_cache_hit_tokens": 3}, (None, None, 3, None)),
    ({"cached_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, (None, None, 4, None)),
    ({"prompt_tokens_details": {"cached_tokens": None}, "cached_tokens": 3}, (None, None, 3, None)),
    ({"reasoning_tokens": 3}, (None, None, None, 3)),
    ({"prompt_tokens": "5", "completion_tokens": 2}, (None, 2, None, None)),
    ({"prompt_tokens": 5.0, "completion_tokens": -2}, (None, None, None, None)),
    ({"prompt_tokens": 2**32, "completion_tokens": True}, (None, None, None, None)),
    ({"prompt_tokens": 5, "prompt_tokens_details": [1]}, (5, None, None, None)),
]


@pytest.mark.parametrize(("payload", "counts"), COUNTS)
def test_counts(payload: dict[str, Any], counts: tuple[int | None, ...]) -> None:
    found = read({"choices": [], "usage": payload}).usage
    assert isinstance(found, Usage)
    assert (found.prompt_tokens, found.completion_tokens, found.cached, found.reasoned) == counts


MESSAGES = [
    (b'{"error":{"message":"m","code":5}}', "m"),
    (b'{"error":"m"}', "m"),
    (b'{"message":"m","error":"Bad Request"}', "m"),
    (b'{"detail":"m"}', "m"),
    (b'{"detail":[{"loc":["body","model"],"msg":"m"}]}', "m"),
    (b'[{"error":{"message":"m"}}]', "m"),
    (b'"m"', "m"),
    (b"plain words", "plain words"),
    (b'{"error":{"code":"m"}}', "m"),
    (b'{"error":{"type":"m"}}', "m"),
    (b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}', "m"),
    (b'{"error":{"a":1}}', ""),
    (b"{}", ""),
    (b"[]", ""),
    (b'{"error":' * 900 + b"1" + b"}" * 900, ""),
    (b"\xff", "\ufffd"),
]


@pytest.mark.parametrize(("body", "message"), MESSAGES)
def test_messages_of_errors(body: bytes, message: str) -> None:
    assert read_error(body) == message


def test_an_error_event_needs_no_json() -> None:
    assert (read(b"boom", "error").error, read(b"", "error").error) == ("boom", "event: error")
    assert read({"error": {"message": "m"}}, "error").error == "m"


NAMES = (
    "choices",
    "delta",
    "message",
    "index",
    "content",
    "role",
    "tool_calls",
    "function",
    "usage",
    "error",
    "id",
    "text",
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=15,
)


@RELAXED
@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_types_anywhere_degrade(payload: dict[str, Any]) -> None:
    facts = read_answer(json.dumps(payload).encode())
    assert isinstance(facts.text, str)
    assert all(isinstance(reason, str) for reason in facts.finishes.values())


@RELAXED
@given(JSON)
def test_content_survives_odd_neighbours(odd: Any) -> None:
    payload = delta(content="Hello", finish="stop")
    payload["choices"][0] |= {"logprobs": odd, "index": odd, "message": odd}
    payload |= {"usage": odd, "id": odd, "system_fingerprint": odd}
    facts = read(payload)
    assert facts.kinds & (Kind.CONTENT | Kind.FINISH) == Kind.CONTENT | Kind.FINISH
    assert facts.seen.bit_count() == 1

# What the endpoint says, as bytes: the event stream and the whole body, in the forms of vLLM 0.32.
#
# Law: from (Answer, Part) to bytes and back to nothing: no socket, no clock, no state. A stream is an
# iterator of Frames, lazily made, so that an answer of a million tokens costs no more memory than one.
#
# Theory: three layers, each an iterator over the one below.
#
#     deltas   what the model says: role, words, finish, with the offset at which each is due
#     events   `data: {...}` and a blank line (WHATWG HTML, server-sent events), usage and [DONE] last
#     frames   one HTTP chunk an event (RFC 9112, 7.1)
#
# A fault replaces the deltas, or rewrites the events, or rewrites the frames; the three tables at the end
# of their sections say which. What cuts a stream off ends its frames early; ENDINGS says how the
# connection then ends.

"""Answers in the forms of vLLM: streams with their faults, whole bodies, error bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from loadshape.endpoint.script import WORDS, Part

NEVER_NS = 1 << 61  # about 73 years: an instant that does not come
HUGE_BYTES = 1_000_000
COALESCED_EVENTS = 4
FINGERPRINT = "loadshape-simulated"

DONE = b"data: [DONE]\n\n"
ENGINE_DIED = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
# vLLM writes its in-band errors with json.dumps, blanks and all; everything else is compact.
ERROR_EVENT = f"data: {json.dumps(ENGINE_DIED)}\n\n".encode()
GARBAGE = b'data: {"id":"x","choices":[{"delta":{"content": \x01\xff<<not json\n\n'
HTML = "<!doctype html><title>Welcome</title><p>It works!</p>\n"

# Pieces of a split event follow one another at this distance, so that a reader meets them one by one.
SPLIT_GAP_NS = 200_000

ENDINGS: Mapping[str, Literal["close", "reset"]] = {"truncate": "close", "reset": "reset"}


class Frame(NamedTuple):
    """Bytes to be written at one instant, and how many tokens they make known."""

    at_ns: int
    data: bytes
    tokens: int = 0


Rewrite = Callable[[Iterator[Frame], int], Iterator[Frame]]  # the int: after how many tokens a fault strikes


class Delta(NamedTuple):
    """One step of the model: JSON of the delta (chat) or of the text (completions)."""

    at_ns: int
    json: bytes
    tokens: int
    finish: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to be given: identity, accounting and form."""

    identity: str
    created: int
    model: str
    is_chat: bool
    prompt_tokens: int
    cached_tokens: int
    written_tokens: int
    completion_tokens: int
    finish: str
    tokens_per_event: int = 1
    has_usage: bool = False
    has_continuous_usage: bool = False

    def reasoning_tokens(self, fault: str) -> int:
        """Return how many of the tokens are reasoning under this *fault*."""
        return self.completion_tokens // 2 if self.is_chat and fault in REASONING else 0


# Deltas: what the model says.


def _groups(words: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count): one token, then *size* at a time, as vLLM's stream_interval does."""
    first, count = 0, 1
    while first < words:
        count = min(count, words - first)
        yield first, count
        first, count = first + count, size


def _say(answer: Answer, part: Part) -> Iterator[Delta]:
    """Words; the last carries finish_reason length, but a stop is a token of its own without a word."""
    offsets = part.offsets_ns(answer.prompt_tokens - answer.cached_tokens)
    words, thoughts = part.words(), answer.reasoning_tokens(part.fault)
    thought, content = (b'{"%b":"' % part.fault.encode(), b'{"content":"') if answer.is_chat else (b'"', b'"')
    close = b'"}' if answer.is_chat else b'"'
    spoken = answer.completion_tokens - (answer.finish == "stop")
    for first, count in _groups(spoken, answer.tokens_per_event):
        at_ns = next(islice(offsets, count - 1, None))
        text = "".join(islice(words, count)).encode()
        is_last = answer.finish == "length" and first + count == spoken
        open_ = thought if first < thoughts else content
        yield Delta(at_ns, open_ + text + close, count, "length" if is_last else None)
    if answer.finish == "stop":
        yield _end(answer, next(offsets), 1, "stop")


def _end(answer: Answer, at_ns: int, tokens: int, finish: str) -> Delta:
    return Delta(at_ns, b"{}" if answer.is_chat else b'""', tokens, finish)


def _say_nothing(answer: Answer, part: Part) -> Iterator[Delta]:
    yield _end(answer, next(part.offsets_ns()), 0, "stop")


def _abort(answer: Answer, part: Part) -> Iterator[Delta]:
    said, strikes_at = 0, part.fault_at(answer.completion_tokens)
    for delta in _say(answer, part):
        said += delta.tokens
        if said > strikes_at:
            yield _end(answer, delta.at_ns, 0, "abort")
            return
        yield delta


def _call_tool(answer: Answer, part: Part) -> Iterator[Delta]:
    if not answer.is_chat:
        yield from _say(answer, part)
        return
    offsets = part.offsets_ns(answer.prompt_tokens - answer.cached_tokens)
    shape = b'{"content":null,"tool_calls":[%b]}'
    yield Delta(next(offsets), shape % msgspec.json.encode(_tool_call(answer) | {"index": 0}), 1)
    for piece in _tool_arguments(answer, part):
        argument = msgspec.json.encode({"index": 0, "function": {"arguments": piece}})
        yield Delta(next(offsets), shape % argument, 1)
    yield _end(answer, next(offsets), 1, "tool_calls")


def _tool_arguments(answer: Answer, part: Part) -> Iterator[str]:
    """The name and the end take a token each, the frame of the argument two, words the rest."""
    yield '{"word": "'
    yield from islice(part.words(), max(0, answer.completion_tokens - 4))
    yield '"}'


def _tool_call(answer: Answer) -> dict[str, Any]:
    return {"id": f"chatcmpl-tool-{answer.identity}", "type": "function", "function": {"name": "look_up"}}


REASONING = ("reasoning", "reasoning_content")
Deltas = Callable[[Answer, Part], Iterator[Delta]]
DELTAS: Mapping[str, Deltas] = {
    "role_only": _say_nothing,
    "abort": _abort,
    "tool_calls": _call_tool,
}


# Events: server-sent events around the deltas.


def _events(answer: Answer, part: Part) -> Iterator[Frame]:
    kind = "chat.completion.chunk" if answer.is_chat else "text_completion"
    head = {"id": answer.identity, "object": kind, "created": answer.created, "model": answer.model}
    prefix = b"data: %b," % msgspec.json.encode(head)[:-1]
    mark = b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
    said, at_ns, is_open = 0, 0, not answer.is_chat
    for delta in DELTAS.get(part.fault, _say)(answer, part):
        at_ns = delta.at_ns
        if not is_open:
            is_open = True
            usage = _running_usage(answer, part, 0)
            yield Frame(at_ns, prefix + ROLE + usage + b',"prompt_token_ids":null,"prompt_text":null}\n\n')
        said += delta.tokens
        form = CHAT_DELTA if answer.is_chat else TEXT_DELTA
        stop = b',"stop_reason":null' if answer.is_chat and delta.finish else b""
        reason = b'"%b"' % delta.finish.encode() if delta.finish else b"null"
        tail = mark if delta.finish and not answer.has_usage else b""
        usage = _running_usage(answer, part, said)
        yield Frame(at_ns, prefix + form % (delta.json, reason, stop) + usage + tail + b"}\n\n", delta.tokens)
    if answer.has_usage:
        usage = msgspec.json.encode(_usage(answer, part, said))
        yield Frame(at_ns, b'%b"choices":[],"usage":%b%b}\n\n' % (prefix, usage, mark))
    yield Frame(at_ns, DONE)


ROLE = b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
CHAT_DELTA = b'"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b%b,"token_ids":null}]'
TEXT_DELTA = (
    b'"choices":[{"index":0,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":null%b,'
    b'"prompt_token_ids":null,"token_ids":null}]'
)


def _running_usage(answer: Answer, part: Part, said_tokens: int) -> bytes:
    if not answer.has_continuous_usage:
        return b""
    usage = _usage(answer, part, said_tokens)
    del usage["prompt_tokens_details"]
    return b',"usage":' + msgspec.json.encode(usage)


def _usage(answer: Answer, part: Part, said_tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": answer.prompt_tokens,
        "total_tokens": answer.prompt_tokens + said_tokens,
        "completion_tokens": said_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }
    if answer.is_chat:
        usage["prompt_tokens_details"]["created_cache_tokens"] = answer.written_tokens
        thought = min(said_tokens, answer.reasoning_tokens(part.fault))
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    return usage


def _cut(ends: Callable[[Frame], tuple[Frame, ...]]) -> Rewrite:
    """Return the rewrite that puts *ends*, at the time of the token it strikes, in the place of all the rest."""

    def rewrite(events: Iterator[Frame], strikes_at: int) -> Iterator[Frame]:
        said = 0
        for event in events:
            said += event.tokens
            if said > strikes_at or (said == strikes_at and not event.tokens):
                yield from ends(event)
                return
            yield event

    return rewrite


def _insert_garbage(events: Iterator[Frame], strikes_at: int) -> Iterator[Frame]:
    said, is_pending = 0, True
    for event in events:
        said += event.tokens
        yield event
        if is_pending and said >= strikes_at:
            is_pending = False
            yield Frame(event.at_ns, GARBAGE)


def _bloat(events: Iterator[Frame], strikes_at: int) -> Iterator[Frame]:
    said, is_pending, word = 0, True, WORDS[0].encode()
    for event in events:
        said += event.tokens
        if is_pending and event.tokens and said >= strikes_at:
            is_pending = False
            field = b'"content":"' if b'"content":"' in event.data else b'"text":"'
            long = field + word * (HUGE_BYTES // len(word))
            event = event._replace(data=event.data.replace(field, long, 1))
        yield event


def _coalesce(events: Iterator[Frame], strikes_at: int) -> Iterator[Frame]:
    while group := list(islice(events, COALESCED_EVENTS)):
        data = b"".join(event.data for event in group)
        yield Frame(group[-1].at_ns, data, sum(event.tokens for event in group))


def _split(frames: Iterator[Frame], strikes_at: int) -> Iterator[Frame]:
    """Cut after the first byte of the first character beyond ASCII, and every 50 bytes."""
    for whole in frames:
        beyond = next((at for at, byte in enumerate(whole.data) if byte > 0x7F), 0)
        cuts = sorted({0, beyond + 1, len(whole.data), *range(50, len(whole.data), 50)})
        for order, (low, high) in enumerate(pairwise(cuts)):
            tokens = whole.tokens if high == len(whole.data) else 0
            yield Frame(whole.at_ns + order * SPLIT_GAP_NS, whole.data[low:high], tokens)


EVENTS: Mapping[str, Rewrite] = {
    "reset": _cut(lambda event: (Frame(event.at_ns, b""),)),
    "cutoff": _cut(lambda event: (Frame(event.at_ns, b""),)),
    "truncate": _cut(lambda event: (Frame(event.at_ns, event.data),)),
    "stall": _cut(lambda _: (Frame(NEVER_NS, b""),)),
    "error_event": _cut(lambda event: (Frame(event.at_ns, ERROR_EVENT), Frame(event.at_ns, DONE))),
    "empty": lambda events, _: iter((Frame(next(events).at_ns, DONE),)),
    "nodone": lambda events, _: (event for event in events if event.data != DONE),
    "crlf": lambda events, _: (e._replace(data=e.data.replace(b"\n", b"\r\n")) for e in events),
    "no_space": lambda events, _: (e._replace(data=e.data.replace(b"data: ", b"data:", 1)) for e in events),
    "comment": lambda events, _: (f for e in events for f in (Frame(e.at_ns, b": keep-alive\n\n"), e)),
    "garbage": _insert_garbage,
    "huge": _bloat,
    "coalesce": _coalesce,
    "hsplit": _split,
}


# Frames: HTTP chunks around the events.


def _halve_last(frames: Iterator[Frame], strikes_at: int) -> Iterator[Frame]:
    """The last frame loses its second half: the chunk promises more bytes than follow."""
    whole = list(frames)
    last = whole.pop()
    yield from whole
    yield last._replace(data=last.data[: len(last.data) // 2])


FRAMES: Mapping[str, Rewrite] = {"split": _split, "truncate": _halve_last}


def open_frames(answer: Answer, part: Part, *, is_chunked: bool = True) -> Iterator[Frame]:
    """Return what is to be written, and when (ns after the start of the answer), lazily and in order."""
    strikes_at = part.fault_at(answer.completion_tokens)
    frames = _events(answer, part)
    if part.fault in EVENTS:
        frames = EVENTS[part.fault](frames, strikes_at)
    if is_chunked:
        frames = (Frame(at, b"%x\r\n%b\r\n" % (len(data), data) if data else b"", n) for at, data, n in frames)
    if part.fault in FRAMES:
        frames = FRAMES[part.fault](frames, strikes_at)
    return frames


def build_body(answer: Answer, part: Part) -> dict[str, Any]:
    """Return the JSON body of an answer that is not streamed."""
    spoken = 0 if part.fault == "role_only" else answer.completion_tokens - (answer.finish == "stop")
    words = list(islice(part.words(), spoken))
    thoughts = answer.reasoning_tokens(part.fault)
    choice: dict[str, Any] = {"index": 0}
    if answer.is_chat:
        message = {"role": "assistant", "content": "".join(words[thoughts:]), "refusal": None}
        choice["message"] = message | {"reasoning": "".join(words[:thoughts]) or None}
    else:
        choice["text"] = "".join(words)
    choice |= {"logprobs": None, "finish_reason": answer.finish, "stop_reason": None, "token_ids": None}
    if answer.is_chat and part.fault == "tool_calls":
        call = _tool_call(answer)
        call["function"]["arguments"] = "".join(_tool_arguments(answer, part))
        choice["message"] |= {"content": None, "tool_calls": [call]}
        choice["finish_reason"] = "tool_calls"
    return {
        "id": answer.identity,
        "object": "chat.completion" if answer.is_chat else "text_completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(answer, part, answer.completion_tokens),
    }

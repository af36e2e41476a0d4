# What one event of an OpenAI-compatible answer says.
#
# Law: one event in, one Facts out; no memory between events (that is response.py). The only module of
# loadshape where `Any` may appear, for here the types of strangers arrive.
#
# Theory: chat and text completions, streamed or whole, are one shape with optional parts: `choices`, each
# with a `delta`, a `message` or a `text`, a `usage`, or an `error`. Servers agree on the names and little
# else: role-only chunks, empty choices, null content, reasoning under two names, usage on its own chunk, on
# the last one or on all, errors inside a 200. So every field is optional, unknown ones are skipped, and
# three rules settle the rest:
#
#   1. A delta is token-bearing if content, reasoning, refusal, tool name or arguments, or text is non-empty.
#      A role or an empty string is not a token.
#   2. A field of an unexpected type is as good as absent, and the rest of the event still counts.
#   3. Data that is not JSON at all is the server's breach of protocol: RemoteWireError. The exceptions are
#      what servers really send: NaN, lone surrogates, bytes that are not UTF-8, and empty heartbeats.
#
# Speed: msgspec decodes straight into these Structs and skips the rest unread. The second, lenient reader
# runs only for what the first refuses.
#
# Sources: OpenAI API reference (chat/streaming, completions); observed answers of vLLM 0.32.

"""Decode OpenAI-compatible chunks and answers into facts."""

from __future__ import annotations

import functools
import json
from enum import IntFlag
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from loadshape.errors import RemoteWireError

if TYPE_CHECKING:
    from loadshape.wire.sse import Event


class Kind(IntFlag):
    """What a read or an event contained; the values are the bits of the log's `kinds` column."""

    ROLE = 1
    CONTENT = 2
    REASONING = 4
    TOOL = 8
    FINISH = 16
    USAGE = 32
    DONE = 64
    COMMENT = 128
    ERROR = 256


# The log keeps counts as uint32; a figure outside that is no count.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=4096)]


class Function(msgspec.Struct, gc=False):
    """Name and arguments of a tool call, or a piece of them."""

    name: str | None = None
    arguments: Any = None


class ToolCall(msgspec.Struct, gc=False):
    """One tool call, or a piece of it."""

    function: Function | None = None


class Delta(msgspec.Struct, gc=False):
    """What a choice adds to the answer; in an answer that is not streamed, all of it."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None


class Choice(msgspec.Struct, gc=False):
    """One of the n answers."""

    index: Index = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    error: Any = None

    @property
    def visible(self) -> str:
        """The text that a reader sees: content and refusal, without reasoning."""
        delta = self.delta or self.message
        if delta is None:
            return self.text or ""
        return (delta.content or "") + (delta.refusal or "")


class PromptDetails(msgspec.Struct, gc=False):
    """Of the prompt tokens, those that came from the prefix cache."""

    cached_tokens: Count | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    """Of the completion tokens, those spent on reasoning."""

    reasoning_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    """Tokens as the server counted them; cached and reasoning tokens have several places."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    cached_tokens: Count | None = None
    prompt_cache_hit_tokens: Count | None = None
    reasoning_tokens: Count | None = None

    @property
    def cached(self) -> int | None:
        """Prompt tokens served from the prefix cache; None if the server did not say."""
        details = self.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        return self.prompt_cache_hit_tokens if self.cached_tokens is None else self.cached_tokens

    @property
    def reasoned(self) -> int | None:
        """Completion tokens spent on reasoning; None if the server did not say."""
        details = self.completion_tokens_details
        if details is not None and details.reasoning_tokens is not None:
            return details.reasoning_tokens
        return self.reasoning_tokens


class Answer(msgspec.Struct, gc=False):
    """A chunk of a stream, or a whole answer, or an error in the place of either."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class Facts(msgspec.Struct, gc=False):
    """What one event said: Kind bits, choice indices as bits, and what can be asked for if it matters."""

    kinds: int = 0
    seen: int = 0
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: str | None = None
    id: str | None = None

    @property
    def bears(self) -> bool:
        """Whether the event carried a non-empty delta, and so at least a part of a token."""
        return bool(self.kinds & BEARING)

    @property
    def text(self) -> str:
        """Visible text of choice 0."""
        return "".join(choice.visible for choice in self.choices or () if choice.index == 0)

    @property
    def finishes(self) -> dict[int, str]:
        """Finish reason by choice index."""
        return {choice.index: choice.finish_reason for choice in self.choices or () if choice.finish_reason}


# Plain integers: arithmetic on IntFlag members costs ten times as much, and this runs for every event.
_ROLE, _CONTENT, _REASONING, _TOOL = map(int, (Kind.ROLE, Kind.CONTENT, Kind.REASONING, Kind.TOOL))
_FINISH, _USAGE, _DONE, _ERROR = map(int, (Kind.FINISH, Kind.USAGE, Kind.DONE, Kind.ERROR))
BEARING: Final = _CONTENT | _REASONING | _TOOL

# Finish reasons that mean that the server gave up; vLLM writes "abort" into its streams when it is stopped.
FAILED_FINISHES: Final = frozenset(("abort", "error"))

_decode = msgspec.json.Decoder(Answer).decode


def read_event(event: Event) -> Facts:
    """Return what *event* says. Raises RemoteWireError if its data is not JSON (rule 3)."""
    if event.type == "error":
        return Facts(_ERROR, error=read_error(event.data) or "event: error")
    return read_answer(event.data)


def read_answer(data: bytes) -> Facts:
    """Return what a chunk or a whole answer says. Raises RemoteWireError if *data* is not JSON (rule 3)."""
    try:
        return _gather(_decode(data), data)
    except (ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
        return _read_oddity(data)


def read_error(body: bytes) -> str:
    """Return the message in the body of an error: that of its JSON, else its text."""
    try:
        return _find_message(_load(body))
    except RemoteWireError:
        return body.decode("utf-8", "replace")


def _gather(answer: Answer, data: bytes) -> Facts:
    kinds = seen = 0
    error = None
    choices = answer.choices
    for choice in choices or ():
        seen |= 1 << choice.index
        delta = choice.delta or choice.message
        if delta is not None:
            kinds |= _weigh(delta)
        elif choice.text:
            kinds |= _CONTENT
        if choice.finish_reason:
            kinds |= _FINISH
            if choice.finish_reason in FAILED_FINISHES:
                error = f"finish_reason: {choice.finish_reason}"
        if choice.error:
            error = _find_message(choice.error) or "an error without a message"
    if answer.usage is not None:
        kinds |= _USAGE
    if answer.error is not None or choices is None:
        error = _describe(answer.error, data)
    if error is not None:
        kinds |= _ERROR
    return Facts(kinds, seen, choices, answer.usage, error, answer.id)


def _weigh(delta: Delta) -> int:
    """Return the kinds of one delta; most have content and nothing else."""
    bits = _CONTENT if delta.content or delta.refusal else 0
    if delta.role:
        bits |= _ROLE
    if delta.reasoning or delta.reasoning_content:
        bits |= _REASONING
    if delta.tool_calls or delta.function_call:
        bits |= _weigh_tools(delta)
    return bits


def _weigh_tools(delta: Delta) -> int:
    functions = [call.function for call in delta.tool_calls or ()] + [delta.function_call]
    bears = any(function and (function.name or function.arguments) for function in functions)
    return _TOOL if bears else 0


def _read_oddity(data: bytes) -> Facts:
    """Read what the typed decoder refused: [DONE], a heartbeat, odd types, or JSON that only json takes."""
    bare = data.strip()
    if bare == b"[DONE]":
        return Facts(_DONE)
    return _gather(_salvage(Answer, _load(bare)), bare) if bare else Facts()


_Shape = TypeVar("_Shape", bound=msgspec.Struct)
_fields = functools.cache(msgspec.structs.fields)
_NESTED: Final[dict[str, type[msgspec.Struct]]] = {
    "choices": Choice,
    "delta": Delta,
    "message": Delta,
    "tool_calls": ToolCall,
    "function": Function,
    "function_call": Function,
    "usage": Usage,
    "prompt_tokens_details": PromptDetails,
    "completion_tokens_details": CompletionDetails,
}


def _load(data: bytes) -> Any:
    """Parse what msgspec refuses but servers send: NaN, lone surrogates, stray bytes, a BOM."""
    try:
        return json.loads(data.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        raise RemoteWireError(f"data that is not JSON: {data[:80]!r}") from None


def _salvage(shape: type[_Shape], value: Any) -> _Shape:
    """Build a *shape* from the parts of *value* that fit; what does not fit stays at its default."""
    whole = shape()
    if not isinstance(value, dict):
        return whole
    for field in _fields(shape):
        part = value.get(field.name)
        try:
            setattr(whole, field.name, msgspec.convert(part, field.type))
        except (ValueError, RecursionError):  # another type; a lone surrogate in a key; too deep
            rest = _salvage_part(field.name, part)
            if rest is not None:
                setattr(whole, field.name, rest)
    return whole


def _salvage_part(name: str, part: Any) -> Any:
    """Return what can be kept of a field that does not fit, or None."""
    if name == "content" and isinstance(part, list):  # content as a list of parts
        texts = [piece.get("text") for piece in part if isinstance(piece, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    if name not in _NESTED or part is None:
        return None
    if name in ("choices", "tool_calls"):
        items = part if isinstance(part, list) else []
        return [_salvage(_NESTED[name], item) for item in items if isinstance(item, dict)]
    return _salvage(_NESTED[name], part)


def _describe(error: Any, data: bytes) -> str | None:
    """Return the message of an error object, or of an event that is one: no choices, but a text or details."""
    if error is None:
        error = _load(data)
        if not isinstance(error, dict) or not (isinstance(error.get("message"), str) or "detail" in error):
            return None
    return None if error in ("", False) else _find_message(error) or "an error without a message"


def _find_message(value: Any) -> str:
    """Return the text that a person should read in an error object, a list of them, or a plain string."""
    for _ in range(6):  # {"error": {"message": ...}}, {"detail": [{"msg": ...}]}: never deeper than this
        if isinstance(value, list):
            value = value[0] if value else None
        elif isinstance(value, dict):
            keys = ("message", "msg", "detail", "error", "code", "type")
            value = next((value[key] for key in keys if value.get(key)), None)
        else:
            return "" if value is None else str(value)
    return ""

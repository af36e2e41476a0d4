# What a request asks for, and when it is refused.
#
# Law: from the bytes of a body to an Ask or a Refusal; knows nothing of time. Texts, types and codes of
# the refusals are those of vLLM 0.32, as far as a client can be expected to look at them.
#
# Theory: like vLLM, unknown fields are let pass (a client must not learn here that they are refused), the
# completions route knows no max_completion_tokens and falls back to 16 tokens, max_completion_tokens beats
# max_tokens on the chat route, and prompt plus max_tokens beyond the context is silently cut.
#
# A prompt is counted and cached as bytes, TOKEN_BYTES to a token: messages are joined as "role: content"
# lines, token ids are packed four bytes each.

"""Requests: decoding, checking, choosing the length of the answer."""

from __future__ import annotations

import hashlib
import re
import struct
from typing import Annotated, Any

import msgspec

from loadshape.endpoint.script import Part
from loadshape.errors import LoadshapeError

UNLIMITED_TOKENS = 256  # of a chat answer where neither the request nor the script sets a length


class Refusal(LoadshapeError):
    """The request gets an error body in vLLM's form instead of an answer."""

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Ask(msgspec.Struct, frozen=True):
    """What is read of a request; unknown fields are let pass, as vLLM does."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[str | int] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stream_interval: Annotated[int, msgspec.Meta(ge=1)] | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None
    n: int | None = None

    def limit_tokens(self, is_chat: bool) -> int | None:
        """Return how many tokens the request allows, None where it does not say."""
        if not is_chat:
            return 16 if self.max_tokens is None else self.max_tokens
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def encode_prompt(self, is_chat: bool, image_tokens: int = 0) -> bytes:
        """Return the prompt as bytes that are counted and cached, four to a token; without *image_tokens* no images."""
        if is_chat:
            return "\n".join(_join_message(message, image_tokens) for message in self.messages or []).encode()
        parts = [self.prompt] if isinstance(self.prompt, str) else self.prompt or []
        if len(parts) == 1 and isinstance(parts[0], str):
            return parts[0].encode()
        numbers = [part for part in parts if isinstance(part, int)]
        if len(numbers) < len(parts):
            raise Refusal("this endpoint answers one prompt a request", param="prompt")
        return b"".join(struct.pack("<I", number & 0xFFFF_FFFF) for number in numbers)


def _join_message(message: dict[str, Any], image_tokens: int) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(_read_part(part, image_tokens) for part in content)
    return f"{message.get('role')}: {content}"


def _read_part(part: Any, image_tokens: int) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return str(part.get("text", ""))
    if kind != "image_url" or not image_tokens:
        raise Refusal("this model is not a multimodal model")
    seen = hashlib.sha256(msgspec.json.encode(part)).hexdigest()[:4]  # another image is another token
    return seen * image_tokens


def decode_ask(body: bytes, is_chat: bool) -> Ask:
    """Decode and check what needs nothing but the request. Raises Refusal."""
    try:
        ask = msgspec.json.decode(body, type=Ask)
    except msgspec.ValidationError as problem:
        place = re.search(r"`\$([^`]*)`", str(problem))
        raise _validation_refusal(f"body{place.group(1) if place else ''}", str(problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _validation_refusal("body", f"JSON decode error: {problem}") from None
    needed = "messages" if is_chat else "prompt"
    if getattr(ask, needed) is None:
        raise _validation_refusal(f"body.{needed}", "Field required", "missing")
    if is_chat and not ask.messages:
        raise Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
    if ask.stream_options and not ask.stream:
        field = "stream_options"
        raise Refusal(f"Stream options can only be defined when `stream=True`. (parameter={field})", param=field)
    if ask.cache_salt == "":
        raise Refusal("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    if (ask.n or 1) != 1:
        raise Refusal("this endpoint gives one answer a request", param="n")
    return ask


def _validation_refusal(location: str, message: str, kind: str = "invalid") -> Refusal:
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{location}', 'msg': '{message}'}}"
    return Refusal(text, param=location, kind="Bad Request")


def _check_lengths(limit: int | None, min_tokens: int, prompt_tokens: int, context_tokens: int) -> None:
    if limit is not None and limit < 1:
        text = f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})"
        raise Refusal(text, param="max_tokens")
    if prompt_tokens >= context_tokens:
        raise Refusal(
            f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please "
            f"reduce the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})",
            param="input_tokens",
        )
    if limit is not None and limit > context_tokens:
        raise Refusal(
            f"max_tokens={limit} cannot be greater than max_model_len={context_tokens}. Please request fewer "
            f"output tokens. (parameter=max_tokens, value={limit})",
            param="max_tokens",
        )
    if limit is not None and min_tokens > limit:
        raise Refusal(f"min_tokens must be less than or equal to max_tokens={limit}, got {min_tokens}.")


def choose_length(ask: Ask, part: Part, limit: int | None, prompt_tokens: int, context_tokens: int) -> tuple[int, str]:
    """Return (tokens, finish_reason): the natural length where there is one and it comes first.

    Raises Refusal for lengths that do not fit.
    """
    _check_lengths(limit, ask.min_tokens, prompt_tokens, context_tokens)
    natural = None if ask.ignore_eos else part.natural_tokens
    if natural is None and limit is None:
        natural = UNLIMITED_TOKENS
    room = context_tokens - prompt_tokens
    most = room if limit is None else min(limit, room)
    natural = max(natural or most, ask.min_tokens)
    return (natural, "stop") if natural < most else (most, "length")

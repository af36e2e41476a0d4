# What the endpoint will do, as a value; nothing here reads a clock or owns a socket.
#
# Law: a Script and a request id determine everything that can be known before the request arrives: the
# planned offset of every token, the words, the natural length, the fault. Two runs with the same script
# and the same request ids therefore differ only by what the machine and the network did.
#
# Theory: token i is due at  start + ttft + prefill * uncached tokens + sum of the first i gaps,  where
# start is the instant the request got a slot (its arrival, unless `max_running` made it wait). The sum
# runs over planned gaps, never over observed ones, so lateness in one write does not move the next. With
# jitter j each value is drawn uniformly from value * [1 - j, 1 + j].

"""Scripted behaviour: Script (the whole endpoint) and Part (what one request gets)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from loadshape.errors import InputError
from loadshape.units import NS_PER_S

# The kinds of misbehaviour, each in one line; the header `x-fault` and `Script.faults` take these names.
# "Somewhere" is a token drawn from the seed and the request id, never before the first and never after the last.
FAULTS: Mapping[str, str] = {
    "400": "status 400 with an error object",
    "429": "status 429 with an error object and retry-after",
    "500": "status 500 with an error object",
    "503": "status 503 with an error object",
    "html200": "status 200 with an HTML page instead of an answer",
    "gzip_lie": "a header claims gzip, the body is plain",
    "slow_head": "the response head itself comes late, by the time to first token",
    "reset": "TCP RST somewhere in the stream",
    "truncate": "the connection closes somewhere inside an HTTP chunk",
    "stall": "somewhere the stream falls silent, and never another byte comes",
    "cutoff": "a clean end of the response somewhere, without finish_reason and [DONE]",
    "nodone": "everything but [DONE]",
    "error_event": "somewhere an error object inside the 200 stream, then [DONE]",
    "garbage": "somewhere an event that is neither JSON nor UTF-8, then the stream goes on",
    "empty": "status 200, no event but [DONE]",
    "role_only": "role and finish_reason, no token",
    "abort": "somewhere finish_reason abort, then [DONE], as a server that is shut down does",
    "crlf": "events end in CR LF CR LF",
    "no_space": "no blank after `data:`",
    "comment": "a keep-alive comment before every event",
    "split": "every event in several writes, cut inside UTF-8 characters, one HTTP chunk an event",
    "hsplit": "every event in several HTTP chunks, cut inside UTF-8 characters",
    "coalesce": "four events in one HTTP chunk, at the time of the last",
    "huge": "somewhere one event of 1 MB",
    "reasoning": "chat: the first half of the tokens as `reasoning`",
    "reasoning_content": "chat: the first half of the tokens as `reasoning_content`, its older name",
    "tool_calls": "chat: a tool call instead of content",
}

# A sentence never heard before: invented filler, some of it beyond ASCII. Both counts are prime, so
# that any stride walks through all of the words.
SENTENCE = (
    "amber basil cedar delta ember fjord grove harbor island juniper kettle lantern meadow nectar orchard "
    "pebble quartz river saffron thistle umber valley willow yarrow zephyr anchor bramble cobalt drift "
    "elm fennel glacier heather inlet jasper knoll lichen marble nimbus opal prairie quill ripple slate "
    "timber upland vesper wharf café naïve 日本 🙂 übung señal мост over under and then with from"
)
WORDS = tuple(f" {word}" for word in SENTENCE.split())
BEYOND_ASCII = tuple(word for word in WORDS if not word.isascii())

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an endpoint behaves: timing, lengths, capacity, cache and faults.

    `output_tokens` is the median natural length (lognormal with `output_sigma`) at which an answer stops
    unless the request sets `ignore_eos`; without it an answer has as many tokens as the request asked for.
    `step_s` > 0 makes all streams emit on common ticks, as continuous batching does. `max_running` bounds
    the requests in progress; others wait in order of arrival. An image counts `image_tokens`; at 0 the model
    is none for images. A request meets one of `faults` with
    probability `fault_rate`. Raises InputError for a value outside its range.

    >>> Script(ttft_s=0.2, itl_s=0.01, max_running=8).draw("request-1").ttft_ns
    200000000
    """

    ttft_s: Seconds = 0.05
    itl_s: Seconds = 0.02
    ttft_jitter: Share = 0.0
    itl_jitter: Share = 0.0
    prefill_s_per_token: Seconds = 0.0
    step_s: Seconds = 0.0
    output_tokens: Count | None = None
    output_sigma: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.0
    tokens_per_event: Count = 1
    max_running: Count | None = None
    context_tokens: Count = 32_768
    cache_blocks: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 65_536
    image_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    faults: tuple[str, ...] = ()
    fault_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        # msgspec checks what it decodes, not what Python constructs: each field goes through convert.
        for field in msgspec.structs.fields(Script):
            _check_field(field.name, field.type, getattr(self, field.name))
        for fault in self.faults:
            check_fault(fault, "script: faults")

    def draw(self, request_id: str, headers: Mapping[str, str] | None = None) -> Part:
        """Return the part of one request; `x-ttft-us`, `x-itl-us` and `x-fault` in *headers* override.

        The same script and id always give the same part. Raises InputError for a bad override.
        """
        headers = headers or {}
        rng = random.Random(f"{self.seed}/{request_id}")
        ttft_ns = _override_ns(headers, "x-ttft-us", self.ttft_s)
        natural = None
        if self.output_tokens is not None:
            natural = max(2, round(self.output_tokens * math.exp(rng.gauss(0.0, self.output_sigma))))
        struck = self.faults and rng.random() < self.fault_rate
        fault = headers.get("x-fault") or (rng.choice(self.faults) if struck else "none")
        return Part(
            ttft_ns=round(ttft_ns * (1 + self.ttft_jitter * rng.uniform(-1, 1))),
            itl_ns=_override_ns(headers, "x-itl-us", self.itl_s),
            itl_jitter=self.itl_jitter,
            prefill_ns_per_token=self.prefill_s_per_token * NS_PER_S,
            natural_tokens=natural,
            fault=check_fault(fault, "header x-fault"),
            seed=rng.getrandbits(63),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the script holds for one request."""

    ttft_ns: int
    itl_ns: int
    itl_jitter: float
    prefill_ns_per_token: float
    natural_tokens: int | None
    fault: str
    seed: int

    def offsets_ns(self, computed_tokens: int = 0) -> Iterator[int]:
        """Yield when each token is due, ns after the start, with *computed_tokens* of prefill before it."""
        at_ns = self.ttft_ns + round(self.prefill_ns_per_token * computed_tokens)
        if not self.itl_jitter:
            while True:
                yield at_ns
                at_ns += self.itl_ns
        rng, low, high = random.Random(self.seed), 1 - self.itl_jitter, 1 + self.itl_jitter
        while True:
            yield at_ns
            at_ns += round(self.itl_ns * rng.uniform(low, high))

    def words(self) -> Iterator[str]:
        """Yield the words of the answer, one a token, without end."""
        words = BEYOND_ASCII if self.fault in ("split", "hsplit") else WORDS
        at = self.seed % len(words)
        stride = 1 + self.seed // len(words) % (len(words) - 1)
        while True:
            yield words[at]
            at = (at + stride) % len(words)

    def fault_at(self, tokens: int) -> int:
        """Return after how many of *tokens* the fault strikes: never after the last."""
        return 1 + self.seed % (tokens - 1) if tokens > 1 else 0


def check_fault(name: str, where: str) -> str:
    """Return the name of a fault, or raise InputError naming *where* it was found."""
    name = {"errevent": "error_event"}.get(name, name)
    if name != "none" and name not in FAULTS:
        raise InputError(f"{where}: unknown fault {name!r}; use one of none, {', '.join(FAULTS)}")
    return name


def _check_field(field: str, kind: object, value: object) -> None:
    try:
        msgspec.convert(value, type=kind)
    except msgspec.ValidationError as problem:
        raise InputError(f"script: {field}: {problem}; found {value!r}") from None


def _override_ns(headers: Mapping[str, str], name: str, default_s: float) -> int:
    text = headers.get(name)
    if text is None:
        return round(default_s * NS_PER_S)
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InputError(f"header {name}: expected whole microseconds, found {text!r}")
    return int(text) * 1000

# What the simulated server says, and what a client must make of it.
#
# An answer is bytes with marks: the server knows at which byte a token, an error or [DONE] was said. So the outcome
# of any prefix follows from the marks alone, with no parser: that is the oracle. It shares no line with the wire.

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

NOWHERE = 1 << 62
STREAM = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
CHUNKED = STREAM + b"transfer-encoding: chunked\r\n"


TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    """The bytes of one answer; marks are offsets behind which something has been said, NOWHERE if it never is.

    `then` is what follows the last byte: "stay" keeps the connection, "fin" and "rst" end it, "hang" says no more.
    """

    kind: str
    said: bytes
    pauses: list[int] = field(default_factory=list)  # offsets at which the server takes its time
    tokens: list[int] = field(default_factory=list)
    verdict: str = ""  # an outcome that is certain from `verdict_at` on, whatever follows
    verdict_at: int = NOWHERE
    finish_at: int = NOWHERE
    done_at: int = NOWHERE
    whole_at: int = NOWHERE
    is_framed: bool = True  # by chunks or a length; else by the end of the connection
    then: str = "stay"

    def judge(self, size: int, end: str | None) -> str | None:
        """Return the outcome after *size* bytes and *end* ("fin", "rst", None: still open); None while it is open."""
        if end is None and size < self.whole_at and not (self.verdict == "protocol_error" and size >= self.verdict_at):
            return None
        if size == 0:
            return "reset"
        if size >= self.verdict_at:
            return self.verdict
        is_over = size >= min(self.done_at, self.whole_at)
        if not is_over and not self.is_framed and end == "fin":
            is_over = size >= self.finish_at
        if is_over:
            return "ok" if self.tokens else "no_token"
        return "reset" if end == "rst" else "truncated"

    def is_settled(self, size: int) -> bool:
        """Return whether nothing that may follow *size* bytes can change the outcome."""
        return size >= min(self.verdict_at, self.done_at, self.whole_at)

    def count_tokens(self, size: int) -> int:
        """Return how many tokens *size* bytes hold."""
        return sum(1 for offset in self.tokens if offset <= size)


class _Writing:
    """A stream under way: events as chunks, or bare."""

    def __init__(self, head: bytes, *, chunked: bool) -> None:
        self.said = bytearray(head + b"\r\n")
        self.pauses = [0, len(self.said)]
        self.chunked = chunked

    def say(self, event: object) -> int:
        """Write one event and return the offset behind its last byte of content."""
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        body = b"data: " + data + b"\n\n"
        start = len(self.said)
        self.said += b"%x\r\n%b\r\n" % (len(body), body) if self.chunked else body
        self.pauses.append(len(self.said))
        return start + len(b"%x\r\n" % len(body)) + len(body) if self.chunked else len(self.said)


def _chunk(content: str, finish: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def make_stream(random: Random, *, head: bytes = CHUNKED, chunked: bool = True, kind: str = "whole") -> Answer:
    """Return a whole stream as vLLM writes it."""
    writing = _Writing(head, chunked=chunked)
    first = _chunk("")
    first["choices"][0]["delta"]["role"] = "assistant"  # type: ignore[index]
    writing.say(first)
    tokens = [writing.say(_chunk(f" w{at}")) for at in range(random.randint(1, 9))]
    finish_at = writing.say(_chunk("", "length"))
    if random.random() < 0.5:
        usage = {"prompt_tokens": 5, "total_tokens": 5 + len(tokens), "completion_tokens": len(tokens)}
        writing.say({"id": "chatcmpl-1", "choices": [], "usage": usage})
    done_at = writing.say(b"[DONE]")
    writing.said += b"0\r\n\r\n" if chunked else b""
    said = bytes(writing.said)
    whole_at = len(said) if chunked else NOWHERE
    return Answer(
        kind, said, writing.pauses, tokens,
        finish_at=finish_at, done_at=done_at, whole_at=whole_at, is_framed=chunked,
    )  # fmt: skip


def make_closing_stream(random: Random) -> Answer:
    """Return a whole stream that says that the connection closes after it, and closes it or forgets to."""
    answer = make_stream(random, head=CHUNKED + b"connection: close\r\n", kind="closing")
    return replace(answer, then=random.choice(("fin", "hang")))


def make_unframed_stream(random: Random) -> Answer:
    """Return a stream that only the end of the connection ends; it may be cut."""
    answer = make_stream(random, head=STREAM + b"connection: close\r\n", chunked=False, kind="unframed")
    return cut(random, answer) if random.random() < 0.3 else replace(answer, then=random.choice(("fin", "hang")))


def make_cut_stream(random: Random) -> Answer:
    """Return a stream that stops anywhere, in whatever way."""
    return cut(random, make_stream(random, kind="cut"))


def make_dropped_end(random: Random) -> Answer:
    """Return a stream that says [DONE], and then not the end of its body."""
    answer = make_stream(random, kind="no end")
    return cut(random, answer, at=random.randint(answer.done_at, len(answer.said) - 1))


def make_silence(random: Random) -> Answer:
    """Return nothing at all, or no more than the connection's end."""
    return Answer("silence", b"", then=random.choice(("hang", "hang", "fin", "rst")))


def make_half_closed(random: Random) -> Answer:
    """Return a whole stream after which the server closes although it promised to keep the connection."""
    return replace(make_stream(random, kind="half-closed"), then=random.choice(("fin", "rst")))


def make_status(random: Random) -> Answer:
    """Return an answer with a status that is not 2xx, whole or cut behind its head."""
    status = random.choice((b"400 Bad Request", b"429 Too Many Requests", b"503 Service Unavailable", b"307 Moved"))
    body = b'{"error": {"message": "not now", "type": "x", "code": 1}}'
    closing = b"connection: close\r\n" if random.random() < 0.3 else b""
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
    head = head % (status, len(body), closing)
    said = head + body
    answer = Answer(
        "status", said, [0, len(head)], verdict="http_error", verdict_at=len(head), whole_at=len(said),
        then="fin" if closing else "stay",
    )  # fmt: skip
    return cut(random, answer, at=random.randint(len(head), len(said) - 1)) if random.random() < 0.3 else answer


def make_error_in_band(random: Random) -> Answer:
    """Return a stream with an error object in it, after which the server may hang or close."""
    writing = _Writing(CHUNKED, chunked=True)
    tokens = [writing.say(_chunk(f" w{at}")) for at in range(random.randint(0, 4))]
    error_at = writing.say({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}})
    done_at = writing.say(b"[DONE]")
    said = bytes(writing.said) + b"0\r\n\r\n"
    answer = Answer(
        "in band", said, writing.pauses, tokens,
        verdict="in_band_error", verdict_at=error_at, done_at=done_at, whole_at=len(said),
    )  # fmt: skip
    return cut(random, answer, at=random.randint(error_at, len(said) - 1)) if random.random() < 0.5 else answer


def make_garbage(random: Random) -> Answer:
    """Return what is not HTTP, or HTTP that is no answer of a model."""
    if random.random() < 0.5:
        return Answer("garbage", b"\x16\x03\x01 no HTTP", verdict="protocol_error", verdict_at=1, then="hang")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 3000\r\n\r\n"
    return Answer("html", head + b"<p>" * 1000, [0], verdict="protocol_error", verdict_at=len(head))


def make_tokenless(random: Random) -> Answer:
    """Return a stream that finishes without a token."""
    writing = _Writing(CHUNKED, chunked=True)
    finish_at = writing.say(_chunk("", "stop"))
    done_at = writing.say(b"[DONE]")
    said = bytes(writing.said) + b"0\r\n\r\n"
    return Answer("no token", said, writing.pauses, finish_at=finish_at, done_at=done_at, whole_at=len(said))


def make_document(random: Random) -> Answer:
    """Return the whole answer as one JSON document, after an early hint, as if no stream had been asked for."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "all of it"}, "finish_reason": "stop"}
    body = json.dumps({"id": "chatcmpl-2", "choices": [choice]}).encode()
    hint = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n" if random.random() < 0.5 else b""
    head = hint + b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    said = head + body
    return Answer("document", said, [0, len(head)], [len(said)], whole_at=len(said))


def make_stray() -> Answer:
    """Return what some servers say before they close an idle connection; it may look like an answer."""
    size = len(TOO_LATE)
    return Answer("stray", TOO_LATE, verdict="http_error", verdict_at=size, whole_at=size, then="fin")


def cut(random: Random, answer: Answer, at: int | None = None) -> Answer:
    """Return *answer* without what follows the byte *at*, any if not given."""
    at = random.randrange(len(answer.said)) if at is None else at
    return replace(answer, said=answer.said[:at], then=random.choice(("fin", "rst", "hang")))


FAULTY: list[Callable[[Random], Answer]] = [
    make_closing_stream, make_unframed_stream, make_cut_stream, make_cut_stream, make_dropped_end, make_silence,
    make_half_closed, make_status, make_error_in_band, make_garbage, make_tokenless, make_document,
]  # fmt: skip

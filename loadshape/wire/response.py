# One request's answer, from its bytes to its outcome.
#
# Law: composes http1, sse and openai and keeps what has to be remembered between events. It owns no socket
# and no clock: the caller stamps each read, hands the bytes in, and gets back what that read contained.
# Nothing escapes but values: a server that breaks a protocol is an outcome, never an exception.
#
# Theory: an outcome is decided once, by the first thing that decides it.
#
#     while bytes come   protocol_error   not HTTP, compressed, neither SSE nor JSON, an event that is not JSON
#                        in_band_error    an error object, `event: error`, finish_reason abort or error
#                        http_error       a status that is not 2xx; redirects are not followed
#     at the end         reset            the caller says that the connection was reset first
#                        truncated        the body is short, or over before every choice had a finish_reason
#                        no_token         finished, and not one delta bore a token
#                        ok
#
# `data: [DONE]` outranks the framing: a server that closes after it has said all it had to say. Without
# [DONE], a finish_reason counts only if the body ended as its framing promised.
#
# Tokens of a read: where the server repeats usage on its events (vLLM: continuous_usage_stats), the increase
# of completion_tokens. A usage that comes once, at the end, says nothing about single reads: then unknown.
#
# Sources: OpenAI API reference; RFC 9112 6.3; docs/wire.md has the table of cases.

"""What a request got back: facts per read, totals, and the outcome."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from loadshape.errors import RemoteWireError
from loadshape.wire.failure import describe_failure, read_media_type, trim_text
from loadshape.wire.http1 import ResponseParser
from loadshape.wire.openai import BEARING, Facts, Kind, read_event
from loadshape.wire.sse import Event, EventStream
from loadshape.wire.template import Template, learn_template

Outcome = Literal["ok", "truncated", "in_band_error", "http_error", "no_token", "protocol_error", "reset"]

# A whole JSON answer is held until it ends; of the body of an error the beginning will do.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_ERROR_BODY_BYTES = 64 * 1024
LESSONS = (3, 9, 27)  # deltas at which a template is learned: few, for servers that change more than the content

_CONTENT, _USAGE, _DONE, _COMMENT = map(int, (Kind.CONTENT, Kind.USAGE, Kind.DONE, Kind.COMMENT))
_NOTABLE: Final = int(Kind.FINISH | Kind.USAGE | Kind.DONE | Kind.ERROR)  # what outlives its event


class Gain(msgspec.Struct, gc=False, frozen=True):
    """What one read contained.

    `deltas` are events with a non-empty delta; `kinds` are Kind bits; `tokens` is the increase of the
    server's own count, None if unknown.
    """

    events: int = 0
    deltas: int = 0
    kinds: int = 0
    tokens: int | None = None

    @property
    def content(self) -> bool:
        """Whether the read carried non-empty visible content."""
        return bool(self.kinds & _CONTENT)


NOTHING: Final = Gain()
ONE_TOKEN: Final = Gain(1, 1, int(Kind.CONTENT))  # what nearly every read of a stream contains


class Response:
    """The answer to one request: feed it every read, then look.

    `complete` says that nothing more is to come, `outcome` is None until it is decided, and counts are None
    where the server did not say. With `keep_text` the visible content is kept, for a live answer.
    """

    __slots__ = (
        "_body",
        "_ended",
        "_expected",
        "_http",
        "_is_broken",
        "_is_unmetered",
        "_mode",
        "_seen",
        "_stream",
        "_template",
        "_texts",
        "cached_tokens",
        "complete",
        "completion_tokens",
        "deltas",
        "error",
        "events",
        "finish_reason",
        "head_seen",
        "is_done",
        "outcome",
        "prompt_tokens",
        "reasoning_tokens",
        "request_id",
        "status",
    )

    def __init__(self, *, keep_text: bool = False) -> None:
        self.head_seen = False
        self.status: int | None = None
        self.is_done = False  # [DONE] came, or a whole answer: what is left is framing
        self.complete = False
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self.request_id: str | None = None
        self.finish_reason: str | None = None
        self.events = self.deltas = 0
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self._http = ResponseParser()
        self._mode: Literal["head", "events", "answer", "guess", "error"] = "head"
        self._stream: EventStream | _OneEvent | None = None
        self._body = bytearray()
        self._texts: list[str] | None = [] if keep_text else None
        self._seen = self._ended = 0  # choice indices, as bits
        self._is_broken = False  # the bytes after this point mean nothing
        self._is_unmetered = False  # deltas came since the last completion_tokens
        self._template: Template | None = None
        self._expected: Template | None = None  # of the next read; None where it may begin in the middle of something

    def feed(self, data: bytes) -> Gain:
        """Take the bytes of one read and return what they contained. Never raises."""
        if self.skim(data):
            return ONE_TOKEN
        gain, stream = self._parse(data), self._stream
        is_between = stream is not None and stream.is_clear and self._http.is_between
        self._expected = self._template if is_between else None
        return gain

    def skim(self, data: bytes) -> bool:
        """Count *data* if it is one more chunk like those before, which is what nearly every read is; else feed it."""
        if self._expected is None or not self._expected.fits_read(data):
            return False
        self.events += 1
        self.deltas += 1
        self._is_unmetered = True
        return True

    def end_of_stream(self, *, reset: bool = False) -> Gain:
        """Say that the connection ended, in order or by a reset; a body without a length is read only now."""
        if self.complete:
            return NOTHING
        if not reset:
            self._http.end_of_stream()
        return self._conclude(NOTHING, cut="connection reset" if reset else "connection closed")

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self.complete and not self._is_broken and self._http.keep_alive

    @property
    def text(self) -> str:
        """The visible content so far, if it was to be kept; halves of split surrogate pairs are joined."""
        text = "".join(self._texts or ())
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _parse(self, data: bytes) -> Gain:
        if self.complete:
            if not self._is_broken:
                self._http.feed(data)  # notes the surplus
            return NOTHING
        fault = ""
        try:
            pieces = self._http.feed(data)
        except RemoteWireError as error:  # what came before the fault still counts
            pieces, fault = self._http.pieces, str(error)
        gain = self._read_events(pieces) if self._stream is not None else self._read_body(pieces)
        if fault:
            self._break(fault)
        elif self._http.complete and not self.complete:
            return self._conclude(gain)
        return gain

    def _read_events(self, pieces: list[bytes]) -> Gain:
        """Read pieces of an event stream: once per read, so everything from here to _note is on the hot path."""
        stream = self._stream
        assert stream is not None
        events, deltas, kinds, comments = self.events, self.deltas, 0, stream.comments
        was_unmetered, counted_tokens = self._is_unmetered, self.completion_tokens or 0
        template = self._template
        try:
            for piece in pieces:
                if template is not None and stream.is_clear and template.fits(piece):
                    self.events += 1
                    self.deltas += 1
                    self._is_unmetered = True
                    kinds |= _CONTENT
                    continue
                for event in stream.feed(piece):
                    kinds |= self._take(event)
                template = self._template
        except RemoteWireError as error:
            self._break(str(error))
        if stream.comments != comments:
            kinds |= _COMMENT
        tokens = None
        if kinds & _USAGE and not (was_unmetered or self._is_unmetered or self._seen & (self._seen - 1)):
            # All deltas of the read are counted and no others. (With several choices, vLLM counts each apart.)
            tokens = max(0, (self.completion_tokens or 0) - counted_tokens)
        if kinds == _CONTENT and self.events - events == 1:
            return ONE_TOKEN
        return Gain(self.events - events, self.deltas - deltas, kinds, tokens)

    def _take(self, event: Event) -> int:
        """Count one event and return its kinds; after [DONE] it is only counted."""
        self.events += 1
        if self.is_done:
            return 0
        facts = read_event(event)
        kinds = facts.kinds
        if kinds & BEARING:
            self.deltas += 1
            self._is_unmetered = True
        self._seen |= facts.seen
        if kinds == _CONTENT and self.deltas in LESSONS and self._texts is None:
            self._template = learn_template(event.data)
        if kinds & _NOTABLE or self._texts is not None or self.request_id is None:
            _note(self, facts)
        return kinds

    def _read_body(self, pieces: list[bytes]) -> Gain:
        """Read the head if it is new, then hold the body, or find that it is an event stream."""
        if self._mode == "head":
            if not self._http.head_seen:
                return NOTHING
            self._open_body()
            if self._stream is not None:
                return self._read_events(pieces)
            if self.complete:
                return NOTHING
        data = b"".join(pieces)
        if self._mode == "error":
            self._body += data[: MAX_ERROR_BODY_BYTES - len(self._body)]
            return NOTHING
        if self._mode == "guess" and not self._body:
            data = data.lstrip()
            if data and not data.startswith(b"{"):
                self._stream = EventStream()
                return self._read_events([data])
        self._body += data
        if len(self._body) > MAX_ANSWER_BYTES:
            self._break(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return NOTHING

    def _open_body(self) -> None:
        """Decide from the head how the body is to be read."""
        http = self._http
        self.head_seen, self.status = True, http.status
        request_id = http.headers.get("x-request-id")
        self.request_id = trim_text(request_id) if request_id else None
        media_type = read_media_type(http)
        if not 200 <= http.status < 300:
            self._mode = "error"
            self._decide("http_error", f"HTTP {http.status}")
        elif http.coding:
            self._break(f"the server compressed ({http.coding}) although identity was asked for")
        elif media_type == "text/event-stream":
            self._mode = "events"
            self._stream = EventStream()
        elif media_type == "application/json" or media_type.endswith("+json"):
            self._mode = "answer"
        elif media_type in ("", "text/plain") or http.framing == "none":
            self._mode = "guess"
        else:
            self._break(f"expected text/event-stream or application/json, found {media_type}")

    def _conclude(self, gain: Gain, *, cut: str | None = None) -> Gain:
        """Decide the outcome now that nothing more comes; *cut* says how the connection ended, if it did."""
        self.complete = True
        self._template = self._expected = None
        if self._mode == "error":
            self.error = trim_text(describe_failure(self._http, bytes(self._body)))
        elif self._http.complete and self._body:
            self._stream = _OneEvent()
            gain = self._read_events([bytes(self._body)])
            self.is_done = True
        outcome, error = _judge(self, cut)
        self._decide(outcome, error)
        return gain

    def _break(self, fault: str) -> None:
        """Give up on the bytes of this connection."""
        self.complete, self._is_broken, self._template, self._expected = True, True, None, None
        self._decide("protocol_error", fault)

    def _decide(self, outcome: Outcome, error: str | None) -> None:
        """Set the outcome unless something decided it before."""
        if self.outcome is None:
            self.outcome = outcome
            self.error = error and trim_text(error)


def _note(answer: Response, facts: Facts) -> None:
    """Remember what outlives the event."""
    if answer.request_id is None and facts.id:
        answer.request_id = trim_text(facts.id)
    if answer._texts is not None:
        answer._texts.append(facts.text)
    if facts.kinds & _DONE:
        answer.is_done = True
        answer._template = None  # what comes now is counted, not read
    for index, reason in facts.finishes.items():
        answer._ended |= 1 << index
        answer.finish_reason = answer.finish_reason or trim_text(reason)
    if facts.error is not None:
        answer._decide("in_band_error", facts.error)
    usage = facts.usage
    if usage is None:
        return
    answer.prompt_tokens = _latest(usage.prompt_tokens, answer.prompt_tokens)
    answer.cached_tokens = _latest(usage.cached, answer.cached_tokens)
    answer.reasoning_tokens = _latest(usage.reasoned, answer.reasoning_tokens)
    if usage.completion_tokens is not None:
        answer.completion_tokens = usage.completion_tokens
        answer._is_unmetered = False


def _judge(answer: Response, cut: str | None) -> tuple[Outcome, str | None]:
    """Return the outcome of a response in which no error was found."""
    http = answer._http
    if not answer.is_done:
        if not http.complete:
            place = f"inside the body ({http.framing})" if http.head_seen else "before the response head"
            return ("reset" if cut == "connection reset" else "truncated"), f"{cut} {place}"
        if http.framing == "none":
            return "no_token", f"HTTP {http.status} has no body"
        if answer._mode == "guess" and answer._stream and not (answer.events or answer._stream.comments):
            return "protocol_error", "a body without content type that is neither an event stream nor JSON"
        if not answer._seen or answer._seen & ~answer._ended:
            inside = " inside an event" if answer._stream and answer._stream.pending else ""
            return "truncated", f"the body ended{inside} without finish_reason or [DONE]"
    if not answer.deltas:
        return "no_token", "finished without a token"
    return "ok", None if http.complete else f"{cut} after [DONE]"


class _OneEvent:
    """The stream of a body that is one event: a JSON answer."""

    comments = 0
    pending = False
    is_clear = False

    def feed(self, body: bytes) -> list[Event]:
        return [Event("message", body)]


def _latest(new: int | None, old: int | None) -> int | None:
    return old if new is None else new

# One HTTP/1.1 response: bytes in, pieces of body out.
#
# Law: no socket, no clock, no SSE, no JSON. A ResponseParser reads exactly one final response; the next
# response on the same connection gets a parser of its own, so nothing leaks from one to the other.
#
# Theory: llhttp (by httptools) walks the bytes and calls back. It knows messages, we want the response, and
# the two differ in four ways that this module is for:
#
#   1. A 100 or 103 is a whole message for llhttp: it "completes", then a second one begins. Only a message
#      whose status is final counts (RFC 9110 15.2). A 101 would hand the connection to another protocol.
#   2. llhttp is never told that the connection ended. RFC 9112 6.3 decides by the framing: a body without
#      length or chunks is complete at the end of the connection, every other body is then truncated.
#   3. should_keep_alive() is right only while the message completes; a moment later it says False.
#   4. Bytes after the end are a `surplus`, never part of this body. Empty lines are none: llhttp skips them,
#      here and before the next response.
#
# Memory: the parser holds bound methods of its listener, so a listener that held the parser would be a
# cycle, and the replayer runs with the garbage collector off. Hence the weak reference in _Listener.
#
# Sources: RFC 9110, RFC 9112 sections 6.3, 7.1 and 9.3.

"""A parser for one HTTP/1.1 response, on httptools."""

from __future__ import annotations

import weakref
from typing import Literal

import httptools

from loadshape.errors import RemoteWireError

Framing = Literal["none", "chunked", "length", "close"]

# Bytes in a row that are not body: the head, chunk extensions, trailers. Real heads are below 2 kB, and
# common servers refuse 8 to 64 kB themselves.
MAX_OVERHEAD_BYTES = 256 * 1024

_NO_BODY_STATUSES = (204, 304)


class ResponseParser:
    """Read one response from the bytes of a connection.

    `feed` returns the pieces of body in the bytes given; the rest are facts to look at afterwards. The
    parser is complete by itself (`complete`), or when `end_of_stream` is told that the connection ended.
    """

    __slots__ = ("__weakref__", "_http", "_listener", "_overhead_bytes", "complete", "is_between", "truncated")

    def __init__(self) -> None:
        self._listener = _Listener()
        self._http = httptools.HttpResponseParser(self._listener)
        self._listener.parser = weakref.ref(self)
        self._overhead_bytes = 0
        self.complete = False  # the last byte of the response is here
        self.truncated = False  # the connection ended first
        self.is_between = False  # a chunk has just ended, so the next byte begins another one

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces of body in *data*: one per HTTP chunk, or per part of a chunk, never empty.

        The list is valid until the next call. Raises RemoteWireError if *data* is not HTTP/1.1, if the
        server switches protocols, or if head or trailers pass MAX_OVERHEAD_BYTES.
        """
        listener = self._listener
        pieces = listener.pieces
        pieces.clear()
        if self.complete:
            listener.surplus = listener.surplus or bool(data.strip(b"\r\n"))
            return pieces
        try:
            self._http.feed_data(data)
        except httptools.HttpParserError as error:
            if not listener.complete:
                raise RemoteWireError(listener.fault or f"not HTTP/1.1: {error}") from None
            listener.surplus = True
        self.complete = listener.complete
        self.is_between = listener.is_between and data.endswith(b"\r\n")
        if pieces:
            self._overhead_bytes = 0
            if listener.surplus:
                del pieces[listener.n_pieces :]
        else:
            self._overhead_bytes += len(data)
            if self._overhead_bytes > MAX_OVERHEAD_BYTES:
                raise RemoteWireError(f"more than {MAX_OVERHEAD_BYTES} bytes of head or trailers without an end")
        return pieces

    def end_of_stream(self) -> None:
        """Say that the connection ended: completes a close-delimited body, truncates any other."""
        if self.complete:
            return
        self.complete = self.head_seen and self.framing == "close"
        self.truncated = not self.complete

    @property
    def pieces(self) -> list[bytes]:
        """The pieces of body of the last `feed`, also if it raised: what came before the fault."""
        return self._listener.pieces

    @property
    def head_seen(self) -> bool:
        """Whether the head of the final response is here."""
        return self._listener.head_seen

    @property
    def keep_alive(self) -> bool:
        """Whether the next response may come on this connection: complete, nothing after it, no close."""
        return self._listener.keep_alive and not self._listener.surplus

    @property
    def surplus(self) -> bool:
        """Whether bytes came after the end of the response."""
        return self._listener.surplus

    @property
    def status(self) -> int:
        """Status code of the final response; 0 before its head."""
        return self._listener.status

    @property
    def framing(self) -> Framing:
        """What ends the body: nothing to end, a last chunk, a length, or the end of the connection."""
        return self._listener.framing

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the final response by lower-case name; repeated ones joined by a comma."""
        return self._listener.headers

    @property
    def trailers(self) -> dict[str, str]:
        """Fields after a chunked body."""
        return self._listener.trailers

    @property
    def coding(self) -> str:
        """How the body is compressed, such as "gzip"; empty when its bytes are the content."""
        headers = self._listener.headers
        content = [headers.get("content-encoding", "identity")]
        transfer = headers.get("transfer-encoding", "chunked").split(",")
        names = (name.strip().lower() for name in content + transfer)
        return ", ".join(name for name in names if name not in ("", "identity", "chunked"))


class _Listener:
    """What httptools calls while it walks the bytes."""

    __slots__ = (
        "complete",
        "fault",
        "framing",
        "head_seen",
        "headers",
        "is_between",
        "keep_alive",
        "n_pieces",
        "on_body",
        "parser",
        "pieces",
        "status",
        "surplus",
        "trailers",
    )

    parser: weakref.ref[ResponseParser]

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append  # straight into the list: the one callback of every chunk
        self.n_pieces = 0  # of this response, among the pieces of the read that completed it
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.fault = ""  # why a callback raised: an exception passed on would hold its own frames
        self.status = 0
        self.framing: Framing = "none"
        self.head_seen = False
        self.is_between = False  # no chunk is open, and one may follow
        self.complete = False
        self.keep_alive = False
        self.surplus = False

    def on_message_begin(self) -> None:
        self.surplus = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.complete:
            return
        fields = self.trailers if self.head_seen else self.headers
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        fields[key] = f"{fields[key]}, {text}" if key in fields else text

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._http().get_status_code()
        if status == 101:
            self.fault = "the server switched protocols (101) although nobody asked"
            raise RemoteWireError(self.fault)
        if 100 <= status < 200:
            self.headers.clear()
            return
        self.status, self.head_seen = status, True
        self.framing = _frame(status, self.headers)
        self.is_between = self.framing == "chunked"

    def on_chunk_header(self) -> None:
        self.is_between = False

    def on_chunk_complete(self) -> None:
        self.is_between = not self.complete

    def on_message_complete(self) -> None:
        if not self.head_seen or self.complete:
            return
        self.complete = True
        self.is_between = False
        self.n_pieces = len(self.pieces)
        self.keep_alive = bool(self._http().should_keep_alive())

    def _http(self) -> httptools.HttpResponseParser:
        parser = self.parser()
        assert parser is not None  # it is what feeds us
        return parser._http


def _frame(status: int, headers: dict[str, str]) -> Framing:
    """Apply RFC 9112 6.3 to the head of an answer to a POST or GET."""
    if status in _NO_BODY_STATUSES:
        return "none"
    codings = headers.get("transfer-encoding")
    if codings is not None:
        return "chunked" if codings.rpartition(",")[2].strip().lower() == "chunked" else "close"
    return "length" if "content-length" in headers else "close"

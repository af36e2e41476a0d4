# The event stream: pieces of body in, events out.
#
# Law: bytes, lines and fields only; what an event means is openai.py's business. Never raises on content,
# only on size. Any way of cutting the bytes gives the same events.
#
# Theory (WHATWG HTML 9.2.6, "Interpreting an event stream"): drop one BOM at the start, cut into lines at
# CRLF, LF or CR, and interpret each line:
#
#     (blank)        dispatch what was collected, if any `data` line came
#     : text         comment: servers send it to keep the connection warm
#     field: value   one blank after the colon is dropped; `data` lines are joined by LF; unknown ones ignored
#
# A CR ends its line at once: waiting for a possible LF would hold an event back until the next read. The LF
# that completes a CRLF is swallowed when it comes. An event without its blank line at the end of the stream
# is not dispatched. Bytes are split before they are decoded: no byte of a longer UTF-8 sequence looks like
# CR, LF or a colon, so this equals decoding first, and a character cut in two by a read heals by itself.
#
# Speed: servers write one event per HTTP chunk, so nearly every piece is exactly `data: ...\n\n` with nothing
# before it: one test, one slice (benchmarks/bench_wire.py). Long lines grow in a bytearray, in linear time.

"""An incremental parser of text/event-stream."""

from __future__ import annotations

from typing import Final

import msgspec

from loadshape.errors import RemoteWireError

# A cap on the lines of one event together: far above any real one, far below memory.
MAX_EVENT_BYTES = 16 * 1024 * 1024

_BOM: Final = b"\xef\xbb\xbf"
_MESSAGE: Final = "message"  # the type of an event that names none


class Event(msgspec.Struct, gc=False):
    """One dispatched event: its type ("message" unless named) and its data as sent."""

    type: str
    data: bytes

    @property
    def text(self) -> str:
        """The data as text; invalid UTF-8 becomes U+FFFD."""
        return self.data.decode("utf-8", "replace")


class EventStream:
    """Turn pieces of an event stream into events, however they are cut."""

    __slots__ = (
        "_after_cr",
        "_at_start",
        "_data",
        "_held_bytes",
        "_partial",
        "_type",
        "comments",
        "is_clear",
        "last_event_id",
        "retry_ms",
    )

    def __init__(self) -> None:
        self.comments = 0
        self.last_event_id = ""
        self.retry_ms: int | None = None
        self._at_start = True  # a BOM may still come
        self._after_cr = False  # the last byte was a CR: an LF now belongs to it
        self.is_clear = False  # nothing of all that is open: the next byte begins an event
        self._partial = bytearray()  # the line that has not ended
        self._data: list[bytes] = []  # the `data` lines of the event that has not ended
        self._type = ""
        self._held_bytes = 0  # of the lines of the event that has not ended

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that *piece* completes, in order.

        Raises RemoteWireError when an unfinished event passes MAX_EVENT_BYTES.
        """
        data = piece[6:-2]
        if (
            self.is_clear
            and 10 not in data  # LF; asking for an integer is a memchr, for bytes a substring search
            and 13 not in data
            and b"data: " + data + b"\n\n" == piece  # two copies are cheaper than two method calls
            and len(piece) <= MAX_EVENT_BYTES + 2
        ):
            return [Event(_MESSAGE, data)]
        return self._feed_lines(piece)

    @property
    def pending(self) -> bool:
        """Whether an event was begun and has not been dispatched."""
        return bool(self._partial or self._data)

    def _feed_lines(self, piece: bytes) -> list[Event]:
        if self._at_start:
            piece = self._drop_bom(piece)
        if not piece:
            return []
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        lines = piece.splitlines()  # of bytes: at CRLF, LF and CR only
        rest = b"" if not piece or piece[-1] in b"\r\n" else lines.pop()
        if lines and self._partial:
            lines[0] = bytes(self._partial) + lines[0]
            self._partial.clear()
        events: list[Event] = []
        for line in lines:
            self._take(line, events)
        self._partial += rest
        _check_size(self._held_bytes + len(self._partial))
        self._after_cr = piece.endswith(b"\r")
        self.is_clear = not (self._partial or self._data or self._type or self._after_cr or self._at_start)
        return events

    def _drop_bom(self, piece: bytes) -> bytes:
        """Hold the first bytes back while they may become a BOM."""
        start = bytes(self._partial) + piece
        self._partial.clear()
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._partial += start
            return b""
        self._at_start = False
        return start.removeprefix(_BOM)

    def _take(self, line: bytes, events: list[Event]) -> None:
        """Interpret one whole line."""
        if not line:
            if self._data:
                events.append(Event(self._type or _MESSAGE, b"\n".join(self._data)))
                self._data = []
            self._type = ""
            self._held_bytes = 0
            return
        if line.startswith(b":"):
            _check_size(len(line))
            self.comments += 1
            return
        self._held_bytes += len(line)
        _check_size(self._held_bytes)
        name, _, value = line.partition(b":")
        self._set(name, value.removeprefix(b" "))

    def _set(self, name: bytes, value: bytes) -> None:
        """Apply one field; its name is compared as bytes, upper case is another name."""
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self.last_event_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self.retry_ms = int(value)


def _check_size(held_bytes: int) -> None:
    if held_bytes > MAX_EVENT_BYTES:
        raise RemoteWireError(f"an event of more than {MAX_EVENT_BYTES} bytes")

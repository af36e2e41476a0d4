# Knowing the next chunk of a stream without parsing it.
#
# Law: never a guess. A template is learned from an event that was parsed, and proven by parsing: the bytes
# around the content, with other content between them, must give the same facts. What then begins and ends
# with those bytes, and holds nothing between them that ends or escapes a JSON string, is the same JSON with
# another string in it, and needs no parser. Everything else is parsed.
#
#     data: {"id":"x","choices":[{"index":0,"delta":{"content":"  fjord  "},"finish_reason":null}]}
#     |------------------------- head --------------------------|       |----------- tail ---------|
#
# Servers repeat themselves: all chunks of an answer but a few differ in one string. Comparing 200 bytes costs
# a tenth of decoding them (benchmarks/bench_wire.py). Where a read is exactly one HTTP chunk, and begins
# where a chunk may begin, its size line follows from its length, and HTTP needs no parser either.

"""Template: the constant bytes around the content of a stream's chunks."""

from __future__ import annotations

import re

from loadshape.errors import RemoteWireError
from loadshape.wire.openai import Kind, read_answer

_CONTENT = int(Kind.CONTENT)
_PLACE = re.compile(rb'"(?:content|text)": ?"([^"\\]*(?:\\.[^"\\]*)*)"')
_NOT_PLAIN = bytes(range(32)) + b'"\\'  # what may not stand in a JSON string as it is


def _list_size_lines(longest: int) -> tuple[bytes, ...]:
    """Return, by the length of a whole chunk, the only size line that it can begin with; b"" where there is none."""
    lines = [b""] * longest
    for size in range(1, longest):
        line = b"%x\r\n" % size
        if len(line) + size + 2 < longest:
            lines[len(line) + size + 2] = line
    return tuple(lines)


LONGEST = 4096  # bytes: a longer event costs more to learn from than its like will save
SIZE_LINES = _list_size_lines(LONGEST)


class Template:
    """The bytes before and after the content, the framing of the event included."""

    __slots__ = ("_end", "_end_size", "_head_size", "head", "tail")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self.head = head
        self.tail = tail
        self._head_size = len(head)
        self._end = tail + b"\r\n"
        self._end_size = len(self._end)

    def fits_read(self, data: bytes) -> bool:
        """Return whether *data* is one whole HTTP chunk of one event that fits."""
        size = len(data)
        line = SIZE_LINES[size] if size < LONGEST else b""
        at = len(line)
        if not (data.startswith(self.head, at) and data.endswith(self._end) and at and data.startswith(line)):
            return False
        content = data[at + self._head_size : size - self._end_size]
        return content.translate(None, _NOT_PLAIN) == content != b""

    def fits(self, piece: bytes) -> bool:
        """Return whether *piece* is one whole event that differs from the learned one in its content alone."""
        if not (piece.startswith(self.head) and piece.endswith(self.tail)):
            return False
        content = piece[len(self.head) : -len(self.tail)]
        return len(piece) > len(self.head) + len(self.tail) and content.translate(None, _NOT_PLAIN) == content


def learn_template(data: bytes) -> Template | None:
    """Return the template of an event whose *data* carries visible content and nothing else; None if it has none."""
    if len(data) > LONGEST or b"\n" in data or b"\r" in data:
        return None
    for place in _PLACE.finditer(data):
        head, tail = data[: place.start(1)], data[place.end(1) :]
        if _is_content(head, tail):
            return Template(b"data: " + head, tail + b"\n\n")
    return None


def _is_content(head: bytes, tail: bytes) -> bool:
    """Prove that what stands between *head* and *tail* is the content of choice 0, and all that matters."""
    try:
        filled, empty = read_answer(head + b"0" + tail), read_answer(head + tail)
    except RemoteWireError:
        return False
    return filled.kinds == _CONTENT and filled.text == "0" and empty.kinds == 0

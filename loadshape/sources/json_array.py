# The objects of one large JSON array, as raw bytes, one at a time.
#
# Law: this module finds where objects begin and end; it does not decode them and knows no data set.
# Memory is bounded by one object plus one block, time is linear in the file (every byte is looked at by
# a compiled pattern once, also when an object or a string spans many blocks), and blanks may lie
# anywhere that RFC 8259 allows them.
#
# Theory: outside of strings only quotes and brackets matter; inside, only quotes and backslashes. Depth
# counts brackets of both kinds; a mismatched pair is left to the decoder, which sees the object whole.
#
#     expected   [ --> { or ] --> (object) --> , or ] --> { ...   --> nothing more
#
# A file that ends early is not an error here: `is_complete` says so, `is_cut` says that an object was
# begun, and `end` is where the last whole object stopped. The source decides what that means.

"""Stream the objects of a JSON array without holding the array."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from loadshape.errors import SourceError

BLOCK_BYTES = 1 << 20
MAX_OBJECT_BYTES = 256 << 20  # a row above this is not a conversation; it protects memory from a stray quote

_BLANKS = re.compile(rb"[ \t\r\n]*")
_OUTSIDE = re.compile(rb'[^"{}\[\]]*')
_INSIDE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # possessive: no memory per escape
_QUOTE, _BACKSLASH = b'"\\'
_NEXT = {b"[": b"{]", b",": b"{", b"]": b""}
_BOM = b"\xef\xbb\xbf"


class ArrayReader:
    """Iterate once over (offset, raw bytes) of the objects of the JSON array in *file*.

    After the iteration, `is_complete`, `is_cut` and `end` say how the file ended. Raises SourceError,
    naming *name* and the byte offset, where the file is not an array of objects.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._buffer = bytearray()
        self._offset = 0  # of the buffer's first byte in the file
        self._at = 0  # in the buffer
        self.end = 0
        self.is_complete = False
        self.is_cut = False

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        self._refill(0)
        if self._buffer.startswith(_BOM):
            self._at = len(_BOM)
        expected = b"["
        while found := self._find_byte():
            if found not in expected:
                raise self._unexpected(expected, found)
            if found == b"{":
                self._drop_consumed()
                start = self._offset
                raw = self._take_object()
                if raw is None:
                    self.is_cut = True
                    return
                self.end = start + len(raw)
                yield start, raw
                expected = b",]"
            else:
                self._at += 1
                expected = _NEXT[found]
        if expected == b"[":
            raise self._unexpected(expected, b"")
        self.is_complete = expected == b""

    def _find_byte(self) -> bytes:
        """Return the next byte that is no blank, without taking it; nothing at the end of the file."""
        while True:
            self._at = _end(_BLANKS, self._buffer, self._at)
            if self._at < len(self._buffer):
                return bytes(self._buffer[self._at : self._at + 1])
            self._drop_consumed()
            if not self._refill(0):
                return b""

    def _take_object(self) -> bytes | None:
        """Return the object that begins at the buffer's first byte; None if the file ends inside it."""
        at, depth, in_string = 0, 0, False
        while True:
            at = _end(_INSIDE if in_string else _OUTSIDE, self._buffer, at)
            # A backslash stops _INSIDE only where the byte that it escapes is in the next block.
            if at >= len(self._buffer) or self._buffer[at] == _BACKSLASH:
                if not self._refill(len(self._buffer)):
                    return None
                continue
            byte = self._buffer[at]
            at += 1
            if byte == _QUOTE:
                in_string = not in_string
                continue
            depth += 1 if byte in b"{[" else -1
            if depth == 0:
                self._at = at
                return bytes(self._buffer[:at])

    def _refill(self, held: int) -> bool:
        if held > MAX_OBJECT_BYTES:
            raise SourceError(
                f"{self._name}: the object at byte {self._offset} is larger than {MAX_OBJECT_BYTES >> 20} MiB; "
                "expected conversations, so a quote or bracket before it is probably missing"
            )
        block = self._file.read(BLOCK_BYTES)
        self._buffer += block
        return bool(block)

    def _drop_consumed(self) -> None:
        del self._buffer[: self._at]
        self._offset += self._at
        self._at = 0

    def _unexpected(self, expected: bytes, found: bytes) -> SourceError:
        wanted = " or ".join(chr(byte) for byte in expected) or "nothing more"
        seen = repr(found.decode("latin-1")) if found else "the end of the file"
        return SourceError(
            f"{self._name}: expected a JSON array of objects; at byte {self._offset + self._at} "
            f"expected {wanted}, found {seen}"
        )


def _end(pattern: re.Pattern[bytes], buffer: bytearray, at: int) -> int:
    match = pattern.match(buffer, at)
    return match.end() if match else at

# The bytes of every answer on their way to the disk.
#
# Law: at the time of a read, one append and one row; joining, compressing and writing are the writer thread's,
# whose bounded queue stops the run when it cannot keep up. Nothing is decoded here.
#
# What a server sends may hold the key that it was sent: servers echo headers in their errors. A capture must not
# keep it, so it is covered with stars before the bytes go anywhere, one for each of its bytes, which leaves every
# length and every offset as it was. A key may be cut by the border between two reads: the end of a read that is
# the beginning of the key is remembered (and covered, if it is more than SHOWN_AT_MOST bytes), and the rest is
# covered when it comes. What cannot be found is a key that the server wrote in another way: in base64, or spread
# over the events of a stream.

"""Tape: raw response bytes, in independent zstd frames with an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import zstandard

from loadshape.capture import FRAMES, write_seek_table
from loadshape.plan import NULL
from loadshape.replayer.recorder import RowWriter, WriterThread
from loadshape.secret import SHOWN_AT_MOST, Secret

FRAME_BYTES = 1 << 20
LEVEL = 3


class Tape:
    """Takes the reads of one worker; a Sink of the writer thread."""

    table = FRAMES

    def __init__(self, path: Path, index: RowWriter, writer: WriterThread, keys: Iterable[Secret | None] = ()) -> None:
        self.path = path
        self.rows = 0  # frames handed over
        self._index = index
        self._writer = writer
        self._veil = Veil([key for key in keys if key is not None])
        self._parts: list[bytes] = []
        self._size = 0
        self._written: list[tuple[int, int]] = []  # (compressed, decompressed) bytes; the thread's

    def take(self, request: int, at_ns: int, seen_ns: int, data: bytes) -> None:
        """Keep the bytes of one read."""
        self._index.append(request, at_ns, seen_ns, len(data), self.rows, self._size, NULL)
        self._parts.append(self._veil.cover(request, data))
        self._size += len(data)
        if self._size >= FRAME_BYTES:
            self.flush()

    def note_end(self, request: int, at_ns: int, *, reset: bool) -> None:
        """Keep that the connection of a request ended, and how."""
        self._index.append(request, at_ns, at_ns, 0, self.rows, self._size, int(reset))

    def flush(self) -> None:
        """Hand the current frame to the writer thread, and then the rows that speak of it."""
        if self._parts:
            parts, self._parts, self._size = self._parts, [], 0
            self.rows += 1
            self._writer.put(self, parts, 0)
        self._index.flush()

    def open(self) -> None:
        """Create the file."""
        self._file = self.path.open("wb", buffering=0)
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)

    def write(self, block: list[bytes]) -> None:
        """Write one frame."""
        data = b"".join(block)
        frame = self._compressor.compress(data)
        self._write_all(frame)
        self._written.append((len(frame), len(data)))

    def close(self) -> None:
        """Write where the frames are, and close the file."""
        try:
            self._write_all(write_seek_table(self._written))
        finally:
            self._file.close()

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # a raw file may take only a part
            rest = rest[self._file.write(rest) :]


class Veil:
    """Covers keys in streams that come in pieces."""

    def __init__(self, keys: Sequence[Secret]) -> None:
        self._keys = sorted({form for key in keys for form in _list_forms(key)}, key=len, reverse=True)
        self._begun: dict[int, list[tuple[bytes, int]]] = {}  # of a request: a key, and how much of it has passed

    def cover(self, request: int, data: bytes) -> bytes:
        """Return *data* with stars for what is of a key."""
        if not self._keys:
            return data
        begun = self._begun.pop(request, ())
        ends = [(key, passed) for key, passed in begun if _continues(data, key[passed:])]
        whole = data
        for key in self._keys:
            data = data.replace(key, b"*" * len(key))
        for key, passed in ends:
            if passed + len(whole) > SHOWN_AT_MOST:
                data = _cover_start(data, len(key) - passed)
        if passing := [(key, passed + len(whole)) for key, passed in ends if passed + len(whole) < len(key)]:
            self._begun[request] = passing
        if whole and any(whole[-1] in key for key in self._keys):
            data = self._cover_end(request, whole, data)
        return data

    def _cover_end(self, request: int, whole: bytes, data: bytes) -> bytes:
        """Remember, and cover, the end of a read that may be the beginning of a key."""
        begun = [(key, passed) for key in self._keys for passed in range(1, len(key)) if whole.endswith(key[:passed])]
        if not begun:
            return data
        self._begun.setdefault(request, []).extend(begun)
        longest = max(passed for _, passed in begun)
        return data[:-longest] + b"*" * longest if longest > SHOWN_AT_MOST else data


def _list_forms(key: Secret) -> set[bytes]:
    """Return a key as it may be written: as it is, and inside a JSON string, with or without escaped slashes."""
    escaped = msgspec.json.encode(key.reveal())[1:-1]
    return {key.reveal().encode(), escaped, escaped.replace(b"/", b"\\/")}


def _continues(data: bytes, rest: bytes) -> bool:
    return data.startswith(rest) or rest.startswith(data)


def _cover_start(data: bytes, count: int) -> bytes:
    count = min(count, len(data))
    return b"*" * count + data[count:]

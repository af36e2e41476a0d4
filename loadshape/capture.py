# The raw answers of a run, read back.
#
# Law: the part of the second door that holds bytes. A capture says what arrived and when, and nothing of what it
# means; whoever wants to know decodes it again. It belongs to a log and is covered by its hashes.
#
#     NAME.log/worker-00/capture.zst      the bytes, in arrival order, in zstd frames of about a megabyte
#     NAME.log/worker-00/capture.arrows   one row a read: whose, when, and where in which frame
#
# The frames are independent, and a table at the end of the file says where each begins: the zstd seekable format,
# version 0.1.0 (facebook/zstd, contrib/seekable_format). Any zstd reads the file from the front, since the
# table is a skippable frame (RFC 8878 3.1.2). A file that was cut has no table; its frames are then found by
# reading through them.

"""Capture: response bytes a read, with both stamps."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import zstandard

from loadshape.errors import LogError
from loadshape.log import VERSION, LogManifest, read_stream
from loadshape.manifest import find_member, read_manifest

BYTES_NAME = "capture.zst"
INDEX_NAME = "capture.arrows"
FRAMES = "frames"  # what the manifest calls the bytes; its rows are frames
INDEX = "capture"
CAPTURE = pa.schema(
    [
        pa.field("request", pa.uint32(), nullable=False),
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("seen_ns", pa.int64(), nullable=False),
        pa.field("bytes", pa.uint32(), nullable=False),
        pa.field("frame", pa.uint32(), nullable=False),
        pa.field("offset", pa.uint32(), nullable=False),  # within the frame, decompressed
        pa.field("reset", pa.bool_()),  # null: bytes came; else the connection ended, in order or by a reset
    ]
)
FRAMES_AT_HAND = 64

SKIPPABLE_MAGIC, SEEKABLE_MAGIC = 0x184D2A5E, 0x8F92EAB1
_HEAD, _ENTRY, _FOOT = struct.Struct("<II"), struct.Struct("<II"), struct.Struct("<IBI")


class Piece(NamedTuple):
    """One read of one answer, or its end: then there are no bytes, and `reset` says how."""

    request: int
    at_ns: int
    seen_ns: int
    data: bytes
    reset: bool | None


@dataclass(frozen=True, slots=True)
class Capture:
    """The raw answers of one log, a folder a worker."""

    folders: list[Path]
    index: list[pa.Table]

    @classmethod
    def open(cls, log: str | Path) -> Capture:
        """Read the index of the capture in the complete log at *log*. Raises LogError when there is none."""
        folder = Path(log)
        manifest = read_manifest(folder, LogManifest, "log", VERSION, LogError)
        shards = [shard for shard in manifest.shards if shard.table == INDEX]
        if not shards:
            raise LogError(f"{folder}: has no capture; replay with capture = true in the section [replay]")
        paths = [find_member(folder, shard.path, LogError) for shard in shards]
        return cls([path.parent for path in paths], [read_stream(path, CAPTURE) for path in paths])

    def pieces(self) -> Iterator[Piece]:
        """Yield every read of every answer, those of one request in their order, a frame in memory at a time."""
        for folder, index in zip(self.folders, self.index, strict=True):
            yield from _read_pieces(folder / BYTES_NAME, index)

    def answer(self, request: int) -> list[Piece]:
        """Return the reads of one request; only the frames that hold them are read."""
        found: list[Piece] = []
        for folder, index in zip(self.folders, self.index, strict=True):
            rows = np.flatnonzero(np.asarray(index["request"]) == request)
            found += _read_pieces(folder / BYTES_NAME, index.take(pa.array(rows)))
        return found


def write_seek_table(frames: list[tuple[int, int]]) -> bytes:
    """Return the skippable frame that lists (compressed, decompressed) bytes of each frame."""
    entries = b"".join(_ENTRY.pack(*frame) for frame in frames)
    body = entries + _FOOT.pack(len(frames), 0, SEEKABLE_MAGIC)
    return _HEAD.pack(SKIPPABLE_MAGIC, len(body)) + body


def list_frames(path: Path) -> list[tuple[int, int]]:
    """Return (where it begins, how many bytes) of each frame of a file. Raises LogError when it has no seek table."""
    data_bytes = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, data_bytes - _FOOT.size))
        foot = file.read()
        count, flags, magic = _FOOT.unpack(foot) if len(foot) == _FOOT.size else (0, 0, 0)
        table_bytes = _HEAD.size + count * _ENTRY.size + _FOOT.size
        if magic != SEEKABLE_MAGIC or flags or table_bytes > data_bytes:
            raise LogError(f"{path}: cut or damaged: it does not end with the table of its frames")
        file.seek(data_bytes - table_bytes + _HEAD.size)
        sizes = [_ENTRY.unpack(file.read(_ENTRY.size))[0] for _ in range(count)]
    starts = np.cumsum([0, *sizes]).tolist()
    return list(zip(starts, sizes, strict=False))


def _read_pieces(path: Path, index: pa.Table) -> Iterator[Piece]:
    frames = list_frames(path)
    with path.open("rb") as file:

        @lru_cache(maxsize=FRAMES_AT_HAND)
        def read_frame(number: int) -> bytes:
            if number >= len(frames):
                raise LogError(f"{path}: has {len(frames)} frames, its index speaks of number {number}")
            start, size = frames[number]
            file.seek(start)
            try:
                return zstandard.decompress(file.read(size))
            except zstandard.ZstdError as problem:
                raise LogError(f"{path}: frame {number} is damaged: {problem}") from None

        columns = [index[name].to_pylist() for name in CAPTURE.names]
        for request, at_ns, seen_ns, size, frame, offset, reset in zip(*columns, strict=True):
            data = read_frame(frame)[offset : offset + size] if size else b""
            yield Piece(request, at_ns, seen_ns, data, reset)

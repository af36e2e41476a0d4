# What a data set is wrapped in: JSON lines, a JSON array, CSV or Parquet, as they are or in gzip or Zstandard.
#
# Law: rows in, dictionaries out; no data set and no column is known here. What a container is, its first
# bytes say (RFC 1952, RFC 8878, "PAR1", "[", "{"), never its name, so a renamed file reads the same. One
# row is in memory at a time; from Parquet, one batch.
#
#     .gz .zst   ->   [ ...   JSON array      { ...   JSON lines, or one JSON value
#                     PAR1    Parquet         else    CSV with a header
#
# A line that is no JSON object is handed on as None: whoever reads counts it, with its reason. A file that
# cannot be read to its end is an error that names it. `hub:OWNER/NAME` is a data set of the Hugging Face
# hub, streamed by the library `datasets` (extra `hub`); nothing else here goes over a network.

"""Rows of a file, whatever it is wrapped in."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from loadshape.errors import SourceError, require
from loadshape.sources.json_array import BLOCK_BYTES, MAX_OBJECT_BYTES, ArrayReader

Row = dict[str, Any]

HUB = "hub:"
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # Arrow's readers notice where a stream is cut
_PARQUET = b"PAR1"
_BATCH_ROWS = 1024
_DAMAGED = (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException)

_decode = msgspec.json.Decoder().decode


def read_rows(path: Path) -> Iterator[Row | None]:
    """Yield the rows of *path*; None for a line or an element that is no JSON object. Raises SourceError."""
    if str(path).startswith(HUB):
        yield from _read_hub(str(path).removeprefix(HUB))
        return
    with opening(path) as file:
        begin = file.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")
        if begin.startswith(_PARQUET):
            yield from _read_parquet(path)
        elif begin.startswith(b"["):
            array = ArrayReader(cast("BinaryIO", file), str(path))
            yield from (_decode_row(raw) for _, raw in array)
            if not array.is_complete:
                raise SourceError(f"{path}: the JSON array is not closed: the file ends early; get the whole file")
        elif begin.startswith(b"{"):
            yield from _read_json(file)
        else:
            yield from _read_csv(file)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file; bytes that are no UTF-8 are replaced. Raises SourceError."""
    with opening(path) as file:
        yield from (line.decode(errors="replace") for line in file)


@contextmanager
def opening(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading, unpacked if it is packed. Raises SourceError, naming it, for what cannot be read."""
    try:
        with path.open("rb") as file:
            packed = next((name for magic, name in _PACKED.items() if file.peek(4).startswith(magic)), None)
            if packed is None:
                yield file
                return
            with pa.CompressedInputStream(file, packed) as stream, io.BufferedReader(stream) as unpacked:
                yield unpacked
    except _DAMAGED as problem:
        if isinstance(problem, OSError) and problem.strerror:
            raise SourceError(f"{path}: cannot be read: {problem.strerror}") from None
        line = str(problem).partition("\n")[0]
        raise SourceError(f"{path}: cannot be read to its end: {line or type(problem).__name__}") from None


@contextmanager
def opening_anywhere(path: Path) -> Iterator[BinaryIO]:
    """Open a file as `opening` does, for reading at any place: a packed one is unpacked into a file without a name."""
    with opening(path) as file:
        if file.seekable():
            yield file
            return
        with tempfile.TemporaryFile() as whole:
            shutil.copyfileobj(file, whole, BLOCK_BYTES)
            whole.seek(0)
            yield cast("BinaryIO", whole)


def _read_json(file: io.BufferedReader) -> Iterator[Row | None]:
    first = file.readline(MAX_OBJECT_BYTES)
    row = _decode_row(first)
    if row is None:  # one value over many lines, or a first line that is damaged
        rest = file.read(MAX_OBJECT_BYTES)
        whole = _decode_row(first + rest)
        yield whole
        if whole is None:
            yield from (_decode_row(line) for line in rest.splitlines() if line.strip())
        return
    yield row
    while line := file.readline(MAX_OBJECT_BYTES):
        if line.strip():
            yield _decode_row(line)


def _decode_row(raw: bytes) -> Row | None:
    try:
        row = _decode(raw)
    except msgspec.DecodeError:
        row = _decode_leniently(raw)
    return row if isinstance(row, dict) else None


def _decode_leniently(raw: bytes) -> Any:
    """Read NaN and Infinity, which JSON does not have and Python writes."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _read_csv(file: io.BufferedReader) -> Iterator[Row | None]:
    csv.field_size_limit(MAX_OBJECT_BYTES)  # a prompt may be longer than the 128 KiB that the module allows
    for row in csv.DictReader(line.decode("utf-8-sig") for line in file):
        yield None if None in row or None in row.values() else row  # more cells than heads, or fewer


def _read_parquet(path: Path) -> Iterator[Row]:
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(_BATCH_ROWS):
            yield from batch.to_pylist()


def _read_hub(name: str) -> Iterator[Row]:
    name, _, split = name.partition(":")
    datasets = require("datasets", "hub")
    try:
        yield from datasets.load_dataset(name, split=split or "train", streaming=True)
    except Exception as problem:  # the library raises what its own libraries raise
        line = str(problem).partition("\n")[0]
        raise SourceError(f"{HUB}{name}: cannot be read from the hub: {line}") from None

# What a table says, as one hash that does not depend on how it was written.
#
# Law: only logical content counts. The digest is the same for any compression, chunking, dictionary
# encoding, slice offset, column order, string/large_string choice and writer version, and different for
# any changed value. File hashes cannot do this: the same table written by three pyarrow versions gives
# three different Parquet files.
#
# Theory: a table is a bag of leaves. Walking a column down (list -> item, struct -> field) ends in flat
# arrays, and every step contributes plain byte sequences to a hasher of its own:
#
#     path?    one byte a row: valid or null
#     path#    the lengths of lists, strings and binaries, int64 little-endian, 0 for null
#     path     the values: little-endian, nulls as zero, -0.0 and NaN normalized; string bytes end to end
#
# All three are concatenations over rows, so feeding a table in any pieces gives the same hashers. The
# top hash covers a version string and, sorted by path, every (path, logical type, digest). Names of list
# children are not part of a path (Parquet renames "item" to "element"), and metadata never counts.

"""Canonical content digests of Arrow tables and JSON values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

VERSION = b"loadshape content digest 1\n"


def digest_table(table: pa.Table) -> str:
    """Return the SHA-256 (hex) of the logical content of *table*."""
    leaves = _Leaves()
    for name, column_type in zip(table.schema.names, table.schema.types, strict=True):
        leaves.add(name, pa.array([], column_type))  # an empty column still has its leaves
        for chunk in table.column(name).chunks:
            leaves.add(name, chunk)
    return leaves.digest(table.num_rows)


def digest_json(value: Any) -> str:
    """Return the SHA-256 (hex) of *value* as JSON with sorted keys and no blanks."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def digest_parts(noun: str, parts: Mapping[str, str]) -> str:
    """Return one digest for a thing made of named, digested parts."""
    return "sha256:" + digest_json([noun, dict(parts)])


def digest_file(path: Path) -> str:
    """Return the SHA-256 (hex) of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Leaves:
    """Hashers by path; arrays are fed in, in row order."""

    def __init__(self) -> None:
        self._hashers: dict[str, Any] = {}
        self._types: dict[str, str] = {}

    def add(self, path: str, array: pa.Array) -> None:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        self._feed(path + "?", "valid", np.asarray(array.is_valid(), dtype=np.uint8))
        kind = array.type
        if pa.types.is_struct(kind):
            self._feed(path, "struct", np.empty(0, np.uint8))
            for field, child in zip(kind, array.flatten(), strict=True):
                self.add(f"{path}.{field.name}", child)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            self._feed(path + "#", "list", _int64(pc.list_value_length(array)))
            self.add(path + "[]", array.flatten())
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self._add_bytes(path, "utf8", array.cast(pa.large_string()).fill_null("").cast(pa.large_binary()))
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            self._add_bytes(path, "binary", array.cast(pa.large_binary()).fill_null(b""))
        else:
            self._feed(path, *_numbers(array))

    def _add_bytes(self, path: str, kind: str, array: pa.Array) -> None:
        self._feed(path + "#", kind, _int64(pc.binary_length(array)))
        _, offsets, values = array.buffers()
        if values is None or len(array) == 0:
            self._feed(path, kind, np.empty(0, np.uint8))
            return
        ends = np.frombuffer(offsets, np.int64, array.offset + len(array) + 1)[array.offset :]
        self._feed(path, kind, np.frombuffer(values, np.uint8)[ends[0] : ends[-1]])

    def _feed(self, path: str, kind: str, values: np.ndarray[Any, Any]) -> None:
        self._types[path] = kind
        self._hashers.setdefault(path, hashlib.sha256()).update(np.ascontiguousarray(values).data)

    def digest(self, rows: int) -> str:
        top = hashlib.sha256(VERSION + b"%d rows\n" % rows)
        for path in sorted(self._hashers):
            line = [path, self._types[path], self._hashers[path].hexdigest()]
            top.update(msgspec.json.encode(line) + b"\n")
        return top.hexdigest()


def _int64(lengths: pa.Array) -> np.ndarray[Any, Any]:
    return np.asarray(lengths.fill_null(0).cast(pa.int64()), dtype="<i8")


def _numbers(array: pa.Array) -> tuple[str, np.ndarray[Any, Any]]:
    kind = array.type
    if pa.types.is_null(kind):
        return "null", np.empty(0, np.uint8)
    if pa.types.is_boolean(kind):
        return "bool", np.asarray(array.fill_null(False), dtype=np.uint8)
    if pa.types.is_floating(kind):
        values = np.asarray(array.fill_null(0), dtype=f"<f{kind.bit_width // 8}") + 0.0  # -0.0 -> 0.0
        values[np.isnan(values)] = np.nan
        return str(kind), values
    name = str(kind)  # of a time: with its unit and zone
    if pa.types.is_temporal(kind) and kind.bit_width <= 64:
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if not pa.types.is_integer(array.type):
        raise TypeError(f"no canonical form for {kind}")
    code = ("i" if pa.types.is_signed_integer(array.type) else "u") + str(kind.bit_width // 8)
    return name, np.asarray(array.fill_null(0), dtype="<" + code)

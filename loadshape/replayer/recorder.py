# Rows on their way to the disk, without stopping the loop.
#
# Law: the loop only stores integers. A row is one struct.pack_into a preallocated block; a full block, or
# one that is a second old, is handed to a writer thread through a queue. The thread turns blocks
# into Arrow record batches and appends them, zstd-compressed, to an IPC stream: compression and file
# writing release the interpreter lock. A batch once written survives a kill of this process.
#
# If the writer cannot keep up, the queue grows past its bound and `behind` turns true: the worker then stops
# the run, since sending unlogged load is worse than sending none. The loop never waits for the disk, and no
# row is dropped. After the run there is time: `is_patient` waits for the thread instead.
#
# Inside a block every value is an int64 and NULL stands for null; strings lie beside it in lists. The
# conversion to the types of the schema is one vectorized cast per column and batch.

"""Recorder: preallocated blocks of rows, flushed to Arrow IPC streams by a thread."""

from __future__ import annotations

import os
import queue
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from loadshape.digest import digest_file
from loadshape.errors import ReplayError
from loadshape.log import OUTCOMES, Shard
from loadshape.plan import NULL

BLOCK_ROWS = 4_000  # 0.5 ms of a shared core a block and 6.4 bytes a read; 10,000 rows take 1.1 ms and 6.0 bytes
QUEUED_BLOCKS = 160  # 640,000 rows: several seconds at the ceiling of one worker


class Sink(Protocol):
    """A file of the log that the writer thread writes: it opens it, writes what was put, and closes it."""

    path: Path
    table: str  # what the manifest calls its content
    rows: int

    def open(self) -> None:
        """Create the file. Raises OSError."""
        ...

    def write(self, block: Any) -> None:
        """Write one block, whole or with an error. Called by the thread."""
        ...

    def close(self) -> None:
        """End the file, whatever happened before."""
        ...

    def flush(self) -> None:
        """Put what there is. Called by the loop."""
        ...


@dataclass(slots=True)
class _Block:
    numbers: bytearray
    texts: list[list[str | None]]
    rows: int = 0


class RowWriter:
    """Appends rows of one schema to one Arrow IPC stream."""

    def __init__(self, path: Path, schema: pa.Schema, writer: WriterThread, *, block_rows: int = BLOCK_ROWS) -> None:
        self.path = path
        self.schema = schema
        self.table = path.stem
        self.block_rows = block_rows
        self.rows = 0
        self._writer = writer
        self._texts = [name for name, kind in zip(schema.names, schema.types, strict=True) if pa.types.is_string(kind)]
        self._packer = struct.Struct(f"<{len(schema) - len(self._texts)}q")
        self._block = self._new_block()

    def append(self, *numbers: int) -> None:
        """Add a row of a schema without strings; values in the order of the schema, NULL for null."""
        block = self._block
        self._packer.pack_into(block.numbers, block.rows * self._packer.size, *numbers)
        block.rows += 1
        if block.rows == self.block_rows:
            self.flush()

    def append_with_texts(self, numbers: tuple[int, ...], texts: tuple[str | None, ...]) -> None:
        """Add a row: the numbers and the strings, each in the order of the schema."""
        for column, text in zip(self._block.texts, texts, strict=True):
            column.append(text)
        self.append(*numbers)

    @property
    def pending(self) -> int:
        """Rows that are not yet on their way."""
        return self._block.rows

    def flush(self) -> None:
        """Hand the current block to the writer thread."""
        if self._block.rows:
            block, self._block = self._block, self._new_block()
            self.rows += block.rows
            self._writer.put(self, block, block.rows)

    def _new_block(self) -> _Block:
        return _Block(bytearray(self.block_rows * self._packer.size), [[] for _ in self._texts])

    def open(self) -> None:
        """Create the file."""
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
        self._file = pa.OSFile(str(self.path), mode="wb")  # writes through, whole or with an error
        self._stream = pa.ipc.new_stream(self._file, self.schema, options=options)

    def write(self, block: _Block) -> None:
        """Write one block as one batch."""
        self._stream.write_batch(self.make_batch(block))

    def close(self) -> None:
        """End the stream."""
        try:
            self._stream.close()
        finally:
            self._file.close()

    def make_batch(self, block: _Block) -> pa.RecordBatch:
        """Return the block as a record batch of the schema."""
        width = self._packer.size // 8
        numbers = np.frombuffer(block.numbers, "<i8", count=block.rows * width).reshape(block.rows, width)
        columns, texts, position = [], iter(block.texts), 0
        for item in self.schema:
            if pa.types.is_string(item.type):
                columns.append(pa.array(next(texts), pa.string()))
            else:
                columns.append(_cast(numbers[:, position], item))
                position += 1
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(slots=True)
class WriterThread:
    """One thread that writes the blocks of all files of a process."""

    error: Exception | None = None
    behind: bool = False
    is_patient: bool = False
    _queued_rows: int = 0  # written by the loop only
    _written_rows: int = 0  # written by the thread only
    _queue: queue.Queue[tuple[Sink, Any, int] | None] = field(default_factory=queue.Queue)
    _sinks: list[Sink] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def open(self, *sinks: Sink) -> None:
        """Create the files and start; raises OSError when a file cannot be made."""
        for sink in sinks:
            sink.open()
            self._sinks.append(sink)
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def backlog_rows(self) -> int:
        """Rows that are queued and not yet written."""
        return self._queued_rows - self._written_rows

    def put(self, sink: Sink, block: Any, rows: int) -> None:
        """Queue a block of some rows; a queue past its bound sets `behind`, or is waited for once the run is over."""
        if self._queue.qsize() >= QUEUED_BLOCKS:
            if self.is_patient:
                self._queue.join()
            else:
                self.behind = True
        self._queued_rows += rows
        self._queue.put((sink, block, rows))

    def close(self) -> None:
        """Write what is queued, end the streams, and raise ReplayError if anything could not be written."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        if self.error is not None:
            raise ReplayError(f"log: cannot be written: {self.reason}") from self.error

    @property
    def reason(self) -> str:
        """What the system said of the first write that failed."""
        number = getattr(self.error, "errno", None)
        return os.strerror(number) if number else str(self.error)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            sink, block, rows = item
            try:
                if self.error is None:
                    sink.write(block)
            except Exception as problem:  # whatever it is, the rows are not on the disk
                self.error = problem
            self._written_rows += rows
            self._queue.task_done()
        for sink in self._sinks:
            try:
                sink.close()
            except OSError as problem:
                self.error = self.error or problem


def describe_shards(root: Path, sinks: Sequence[Sink]) -> list[Shard]:
    """Return what the manifest says of each closed file."""
    return [Shard(str(it.path.relative_to(root)), it.table, it.rows, digest_file(it.path)) for it in sinks]


def _cast(values: np.ndarray[Any, Any], item: pa.Field) -> pa.Array:
    mask = values == NULL if item.nullable else None
    if pa.types.is_dictionary(item.type):
        return pa.DictionaryArray.from_arrays(pa.array(values.astype(np.int8)), pa.array(OUTCOMES))
    if pa.types.is_boolean(item.type):
        return pa.array(values.astype(np.bool_), mask=mask)
    return pa.array(values.astype(item.type.to_pandas_dtype()), item.type, mask=mask)

# Rows go in as integers and come back through Arrow; what cannot be written is said, never dropped.

from __future__ import annotations

import errno
import io
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.digest import digest_file
from loadshape.errors import LogError, ReplayError
from loadshape.log import HEALTH, OUTCOMES, READS, REQUESTS, SCHEMAS, read_stream
from loadshape.plan import NULL
from loadshape.recovery import salvage_stream
from loadshape.replayer import recorder
from loadshape.replayer.recorder import RowWriter, WriterThread, describe_shards

READ = (1, 2, 3, 4, 5, 6, 7, 8)


def write(path: Path, schema: pa.Schema, rows: list[Any], *, block_rows: int = 4) -> pa.Table:
    """Write *rows* and return what can be read back."""
    writer = WriterThread()
    table = RowWriter(path, schema, writer, block_rows=block_rows)
    writer.open(table)
    for row in rows:
        if schema is REQUESTS:
            table.append_with_texts(*row)
        else:
            table.append(*row)
    table.flush()
    writer.close()
    assert table.rows == len(rows)
    return read_stream(path, schema)


def numbers_of(schema: pa.Schema, value: int) -> tuple[int, ...]:
    """Return *value* for every column that is no string."""
    return tuple(value for kind in schema.types if not pa.types.is_string(kind))


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 8, 9])
def test_all_rows_come_back_whatever_the_block(tmp_path: Path, rows: int) -> None:
    given_rows = [(at, at + 1, at + 2, 3, 4, 5, 6, at) for at in range(rows)]
    table = write(tmp_path / "reads.arrows", READS, given_rows)
    assert table.num_rows == rows
    assert [tuple(row.values()) for row in table.to_pylist()] == given_rows


def test_null_stands_for_null_where_the_schema_has_it_and_nowhere_else(tmp_path: Path) -> None:
    numbers = tuple(NULL if item.nullable else 0 for item in REQUESTS if not pa.types.is_string(item.type))
    table = write(tmp_path / "requests.arrows", REQUESTS, [(numbers, (None, None, None))])
    (row,) = table.to_pylist()
    nullable = {item.name for item in REQUESTS if item.nullable}
    assert {name for name, value in row.items() if value is None} == nullable
    assert not any(table[name].null_count for name in set(REQUESTS.names) - nullable)


def test_zero_is_not_null(tmp_path: Path) -> None:
    (row,) = write(tmp_path / "requests.arrows", REQUESTS, [(numbers_of(REQUESTS, 0), ("", "", ""))]).to_pylist()
    assert None not in row.values()
    assert row["outcome"] == "ok"
    assert row["reused"] is False


def test_the_largest_values_of_every_type_survive(tmp_path: Path) -> None:
    high = tuple(min(2**63, 2**item.type.bit_width) - 1 for item in READS)
    signed = tuple(2**63 - 1 if pa.types.is_int64(item.type) else top for item, top in zip(READS, high, strict=True))
    (row,) = write(tmp_path / "reads.arrows", READS, [signed]).to_pylist()
    assert tuple(row.values()) == signed


def test_every_batch_has_the_one_full_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "requests.arrows"
    numbers = list(numbers_of(REQUESTS, 0))
    at = [item.name for item in REQUESTS if not pa.types.is_string(item.type)].index("outcome")
    rows = []
    for code in (3, 0, 15, 1, 1):
        numbers[at] = code
        rows.append((tuple(numbers), (None, None, None)))
    table = write(path, REQUESTS, rows, block_rows=2)
    assert table["outcome"].to_pylist() == [OUTCOMES[code] for code in (3, 0, 15, 1, 1)]
    with pa.ipc.open_stream(path) as stream:
        assert [batch["outcome"].dictionary.to_pylist() for batch in stream] == [list(OUTCOMES)] * 3


def test_texts_stay_with_their_rows(tmp_path: Path) -> None:
    rows = [((at, *numbers_of(REQUESTS, 0)[1:]), (f"error {at} 日本 🙂", None, str(at))) for at in range(9)]
    table = write(tmp_path / "requests.arrows", REQUESTS, rows)
    assert table["error"].to_pylist() == [f"error {at} 日本 🙂" for at in range(9)]
    assert table["server_request_id"].to_pylist() == [str(at) for at in range(9)]


def test_what_is_acknowledged_survives_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "reads.arrows"
    write(path, READS, [READ] * 9)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])  # the end of the stream, and a part of the last batch
    with pytest.raises(LogError, match="damaged, not a whole Arrow stream"):
        read_stream(path, READS)
    with pa.ipc.open_stream(path) as stream:
        assert [stream.read_next_batch().num_rows for _ in range(2)] == [4, 4]


def test_shards_say_rows_and_hash(tmp_path: Path) -> None:
    writer = WriterThread()
    folder = tmp_path / "worker-00"
    folder.mkdir()
    reads, health = (RowWriter(folder / f"{name}.arrows", SCHEMAS[name], writer) for name in ("reads", "health"))
    writer.open(reads, health)
    reads.append(*READ)
    reads.flush()
    writer.close()
    shards = describe_shards(tmp_path, [reads, health])
    assert [(shard.path, shard.table, shard.rows) for shard in shards] == [
        ("worker-00/reads.arrows", "reads", 1),
        ("worker-00/health.arrows", "health", 0),
    ]
    assert shards[0].sha256 == digest_file(folder / "reads.arrows")
    assert read_stream(folder / "health.arrows", HEALTH).num_rows == 0


# What goes wrong.


def test_a_full_disk_is_an_error_with_the_reason() -> None:
    writer = WriterThread()
    reads = RowWriter(Path("/dev/full"), READS, writer, block_rows=2)
    writer.open(reads)
    for _ in range(6):
        reads.append(*READ)
    with pytest.raises(ReplayError, match="log: cannot be written: No space left on device"):
        writer.close()
    assert isinstance(writer.error, OSError)
    assert writer.error.errno == errno.ENOSPC
    assert writer.backlog_rows == 0


@dataclass
class FailingDisk(io.RawIOBase):
    """A file that takes so many bytes, and says EIO to all others."""

    path: Path
    room_bytes: int

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.path.stat().st_size + len(data) > self.room_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        with self.path.open("ab") as file:
            return file.write(data)


def test_a_disk_that_fails_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reads.arrows"
    path.touch()
    monkeypatch.setattr(pa, "OSFile", lambda *_, **__: pa.PythonFile(FailingDisk(path, 4000), mode="w"))
    writer = WriterThread()
    reads = RowWriter(path, READS, writer, block_rows=2)
    writer.open(reads)
    for _ in range(40):
        reads.append(*READ)
    with pytest.raises(ReplayError, match="log: cannot be written: Input/output error"):
        writer.close()
    assert isinstance(writer.error, OSError)
    assert writer.error.errno == errno.EIO
    monkeypatch.undo()
    kept = salvage_stream(path, READS)
    assert 2 <= kept.table.num_rows < 40
    assert [tuple(row.values()) for row in kept.table.to_pylist()] == [READ] * kept.table.num_rows


def test_any_other_failure_of_the_thread_is_an_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = WriterThread()
    reads = RowWriter(tmp_path / "reads.arrows", READS, writer, block_rows=1)
    writer.open(reads)
    monkeypatch.setattr(RowWriter, "make_batch", lambda *_: 1 / 0)
    reads.append(*READ)
    with pytest.raises(ReplayError, match="log: cannot be written: division by zero"):
        writer.close()


def test_a_file_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    writer = WriterThread()
    with pytest.raises(FileNotFoundError):
        writer.open(RowWriter(tmp_path / "nowhere" / "reads.arrows", READS, writer))


def test_a_writer_that_falls_behind_says_so_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "QUEUED_BLOCKS", 3)
    disk = threading.Event()
    make_batch = RowWriter.make_batch
    monkeypatch.setattr(RowWriter, "make_batch", lambda *given: disk.wait(10) and make_batch(*given))
    writer = WriterThread()
    reads = RowWriter(tmp_path / "reads.arrows", READS, writer, block_rows=1)
    writer.open(reads)
    for _ in range(3):
        reads.append(*READ)
    assert not writer.behind
    for _ in range(7):
        reads.append(*READ)  # never waits
    assert writer.behind
    assert writer.backlog_rows == 10
    disk.set()
    writer.close()
    assert (writer.backlog_rows, read_stream(reads.path, READS).num_rows) == (0, 10)


def test_after_the_run_the_writer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "QUEUED_BLOCKS", 2)
    writer = WriterThread(is_patient=True)
    reads = RowWriter(tmp_path / "reads.arrows", READS, writer, block_rows=1)
    writer.open(reads)
    for _ in range(200):
        reads.append(*READ)
    writer.close()
    assert not writer.behind
    assert read_stream(reads.path, READS).num_rows == 200


# Properties

NUMBER = st.integers(-1, 2**16 - 1)


@given(st.lists(st.tuples(*[NUMBER] * len(READS)), max_size=30), st.integers(1, 7))
def test_any_rows_come_back_equal(rows: list[tuple[int, ...]], block_rows: int) -> None:
    path = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp") / f"loadshape-test-{threading.get_native_id()}"
    try:
        given_rows = [tuple(max(0, value) for value in row[:-1]) + row[-1:] for row in rows]
        table = write(path, READS, given_rows, block_rows=block_rows)
        back = [tuple(NULL if value is None else value for value in row.values()) for row in table.to_pylist()]
        assert back == given_rows
    finally:
        path.unlink(missing_ok=True)

"""Content digests: equal for equal content however it is stored, different for any difference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.digest import digest_file, digest_json, digest_parts, digest_table

ITEM = pa.struct([("role", pa.string()), ("segments", pa.list_(pa.uint32()))])
SCHEMA = pa.schema(
    [
        ("number", pa.uint32()),
        ("due_ns", pa.int64()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("share", pa.float64()),
        ("messages", pa.list_(ITEM)),
        ("patience", pa.struct([("after_ns", pa.int64()), ("after_tokens", pa.uint32())])),
        ("pair", pa.list_(pa.int32(), 2)),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "number": number,
        "due_ns": None if number % 5 == 4 else number * 1_000_003,
        "name": [None, "", "chat", "a longer name", "é"][number % 5],
        "raw": [b"", b"\0\1", None][number % 3],
        "flag": [True, False, None][number % 3],
        "share": [0.0, -1.5, math.nan, None][number % 4],
        "messages": None
        if number % 7 == 6
        else [{"role": "user", "segments": list(range(k))} for k in range(number % 4)],
        "patience": None if number % 2 else {"after_ns": number, "after_tokens": None},
        "pair": [number, -number],  # never null: Parquet of pyarrow 18 cannot write null fixed lists
    }
    for number in range(41)
]
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)
DIGEST = digest_table(TABLE)


def cast(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    place = SCHEMA.get_field_index(name)
    return lambda table: table.set_column(place, name, table[name].cast(kind))


def through_parquet(**options: Any) -> Callable[[pa.Table], pa.Table]:
    def write_and_read(table: pa.Table) -> pa.Table:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        return pq.read_table(pa.BufferReader(sink.getvalue()))

    return write_and_read


def through_ipc(compression: str | None) -> Callable[[pa.Table], pa.Table]:
    def write_and_read(table: pa.Table) -> pa.Table:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as file:
            file.write_table(table, max_chunksize=7)
        return pa.ipc.open_file(sink.getvalue()).read_all()

    return write_and_read


SAME: dict[str, Callable[[pa.Table], pa.Table]] = {
    "chunked": lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1, 20), table.slice(21)]),
    "sliced": lambda table: pa.concat_tables([table, table]).slice(41),
    "combined": lambda table: pa.concat_tables([table.slice(0, 13), table.slice(13)]).combine_chunks(),
    "empty chunks": lambda table: pa.concat_tables([table.slice(0, 0), table, table.slice(0, 0)]),
    "columns in another order": lambda table: table.select(sorted(table.column_names)),
    "metadata": lambda table: table.replace_schema_metadata({"made": "elsewhere"}),
    "dictionary": lambda table: table.set_column(2, "name", table["name"].dictionary_encode()),
    "large_string": cast("name", pa.large_string()),
    "large_binary": cast("raw", pa.large_binary()),
    "large_list": cast("messages", pa.large_list(ITEM)),
    "ipc": through_ipc(None),
    "ipc zstd": through_ipc("zstd"),
    "ipc lz4": through_ipc("lz4"),
    "parquet": through_parquet(),
    "parquet zstd, small row groups, no dictionaries": through_parquet(
        compression="zstd", row_group_size=5, use_dictionary=False
    ),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_storage_does_not_count(change: Callable[[pa.Table], pa.Table]) -> None:
    assert digest_table(change(TABLE)) == DIGEST


def test_the_digest_is_the_pinned_one() -> None:
    # Another value makes every published digest of a fixture, trace or log wrong: then VERSION must change too.
    assert DIGEST == "3f28cdc6bbf0490f9c4136595dac3892af8ce1d2f1b4433f574d3502fddc4021"


def change_value(name: str, row: int, value: Any) -> pa.Table:
    rows = [dict(entry) for entry in ROWS]
    assert rows[row][name] != value
    rows[row][name] = value
    return pa.Table.from_pylist(rows, SCHEMA)


DIFFERENT: dict[str, pa.Table] = {
    "a number": change_value("number", 3, 4),
    "null becomes zero": change_value("due_ns", 4, 0),
    "zero becomes null": change_value("due_ns", 0, None),
    "null becomes empty": change_value("name", 0, ""),
    "a letter": change_value("name", 2, "chaT"),
    "a byte": change_value("raw", 1, b"\0\2"),
    "a flag": change_value("flag", 0, False),
    "false becomes null": change_value("flag", 1, None),
    "nan becomes null": change_value("share", 2, None),
    "a float": change_value("share", 1, -1.5000000000000002),
    "a list becomes null": change_value("messages", 0, None),
    "a null list becomes empty": change_value("messages", 6, []),
    "an item": change_value("messages", 2, [{"role": "user", "segments": []}, {"role": "user", "segments": [1]}]),
    "an item moves": change_value("messages", 2, [{"role": "user", "segments": [0]}, {"role": "user", "segments": []}]),
    "a null struct becomes one of nulls": change_value("patience", 1, {"after_ns": None, "after_tokens": None}),
    "a member": change_value("patience", 2, {"after_ns": 2, "after_tokens": 0}),
    "a fixed list": change_value("pair", 0, [0, 1]),
    "a row less": TABLE.slice(0, 40),
    "rows in another order": TABLE.take(list(range(40, -1, -1))),
    "a column less": TABLE.drop_columns(["pair"]),
    "another name": TABLE.rename_columns([f"{name}_" if name == "pair" else name for name in TABLE.column_names]),
    "another type": cast("number", pa.int64())(TABLE),
}


@pytest.mark.parametrize("table", DIFFERENT.values(), ids=DIFFERENT)
def test_every_difference_counts(table: pa.Table) -> None:
    assert digest_table(table) != DIGEST


def test_no_two_differences_have_the_same_digest() -> None:
    assert len({digest_table(table) for table in DIFFERENT.values()}) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]),
        ([["a"], []], [[], ["a"]]),
        ([0], [None]),
        ([None, 1], [1, None]),
    ],
)
def test_values_do_not_run_into_each_other(one: list[Any], other: list[Any]) -> None:
    kind = pa.array(one).type
    assert digest_table(pa.table({"x": pa.array(one, kind)})) != digest_table(pa.table({"x": pa.array(other, kind)}))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_that_are_equal_count_as_equal(kind: type[np.floating[Any]]) -> None:
    signed = np.array([-0.0, np.nan, 1.0], kind)
    odd = signed.copy()
    odd.view(f"u{odd.itemsize}")[1] |= 5  # another NaN
    plain = np.array([0.0, np.nan, 1.0], kind)
    assert len({digest_table(pa.table({"x": pa.array(values)})) for values in (signed, odd, plain)}) == 1


def test_a_time_is_told_from_one_in_another_unit() -> None:
    kinds = [pa.int64(), *map(pa.timestamp, ("s", "ms", "us", "ns")), pa.timestamp("s", "UTC"), pa.duration("s")]
    kinds += [pa.int32(), pa.date32(), pa.time32("s")]
    columns = [pa.array([5, None], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind) for kind in kinds]
    assert len({digest_table(pa.table({"x": column})) for column in columns}) == len(kinds)


def test_an_empty_table_still_has_its_columns() -> None:
    empty = {digest_table(TABLE.slice(0, 0)), digest_table(TABLE.slice(0, 0).drop_columns(["pair"]))}
    assert len(empty) == 2
    assert digest_table(SCHEMA.empty_table()) in empty


def test_what_has_no_canonical_form_is_refused() -> None:
    with pytest.raises(TypeError, match="no canonical form for decimal"):
        digest_table(pa.table({"x": pa.array([1], pa.decimal128(5))}))


def test_json_is_digested_by_value() -> None:
    assert digest_json({"a": 1, "b": [2]}) == digest_json({"b": [2], "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": "1"})
    assert digest_parts("trace 1", {"x": "0"}).startswith("sha256:")
    assert digest_parts("trace 1", {"x": "0"}) != digest_parts("log 1", {"x": "0"})


def test_a_file_is_digested_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert digest_file(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@given(st.lists(st.one_of(st.none(), st.text()), max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_any_chunking_of_any_strings_is_the_same(values: list[str | None], cuts: list[int]) -> None:
    table = pa.table({"x": pa.array(values, pa.string())})
    ends = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    chunks = [table.slice(begin, end - begin) for begin, end in itertools.pairwise(ends)] or [table]
    assert digest_table(pa.concat_tables(chunks)) == digest_table(table)

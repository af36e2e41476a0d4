# Rows come out the same, whatever they are wrapped in; what is damaged is said or counted.

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from loadshape.errors import MissingExtra, SourceError
from loadshape.sources.container import read_lines, read_rows

ROWS = [{"a": "1", "b": "x y"}, {"a": "2", "b": 'with "quotes", and a comma'}, {"a": "3", "b": "두 번째"}]


def to_jsonl(path: Path) -> None:
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n", encoding="utf-8")


def to_array(path: Path) -> None:
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")


def to_csv(path: Path) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, ["a", "b"], lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(ROWS)


def to_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path)


WRAPPERS: list[Callable[[Path], None]] = [to_jsonl, to_array, to_csv, to_parquet]
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstandard": lambda raw: zstandard.compress(raw[:9]) + zstandard.compress(raw[9:]),  # two frames
}


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("pack", PACKERS)
def test_rows_are_the_same_in_every_container(tmp_path: Path, wrap: Callable[[Path], None], pack: str) -> None:
    if wrap is to_parquet and pack != "plain":
        pytest.skip("Parquet is packed inside")
    path = tmp_path / "without-a-suffix"
    wrap(path)
    path.write_bytes(PACKERS[pack](path.read_bytes()))
    assert list(read_rows(path)) == ROWS


def test_one_value_over_many_lines_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"resourceSpans": [1, 2]}, indent=2))
    assert list(read_rows(path)) == [{"resourceSpans": [1, 2]}]


DAMAGED: dict[str, tuple[bytes, list[Any]]] = {
    "a line that is cut": (b'{"a": 1}\n{"a": ', [{"a": 1}, None]),
    "a first line that is cut": (b'{"a": \n{"a": 1}\n', [None, {"a": 1}]),
    "a line of another type": (b'{"a": 1}\n[2]\n3\n', [{"a": 1}, None, None]),
    "a row of CSV that is too short, and one that is too long": (
        b"a,b\n1,2\n3\n4,5,6\n",
        [{"a": "1", "b": "2"}, None, None],
    ),
    "not a number, as Python writes it": (
        b'{"a": NaN, "b": 1}\n',
        [{"a": pytest.approx(float("nan"), nan_ok=True), "b": 1}],
    ),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_row_is_none(tmp_path: Path, name: str) -> None:
    raw, rows = DAMAGED[name]
    path = tmp_path / "rows"
    path.write_bytes(raw)
    assert list(read_rows(path)) == rows


UNREADABLE: dict[str, bytes] = {
    "gzip, cut": gzip.compress(b'{"a": 1}\n' * 1000)[:-20],
    "zstandard, spoilt": zstandard.compress(b'{"a": 1}\n' * 1000)[:10] + b"\0\0\0\0",
    "Parquet, cut": b"PAR1" + b"\0" * 20,
    "no UTF-8": b"a,b\n\xff\xfe,2\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(UNREADABLE[name])
    with pytest.raises(SourceError, match=r"rows: cannot be read"):
        list(read_rows(path))


def test_an_array_that_is_not_closed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text('[{"a": 1}, {"a": ')
    with pytest.raises(SourceError, match="the file ends early"):
        list(read_rows(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere: cannot be read: No such file"):
        list(read_rows(tmp_path / "nowhere"))


def test_lines_keep_what_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b"one\n\xfftwo\n"))
    assert list(read_lines(path)) == ["one\n", "\ufffdtwo\n"]


def test_the_hub_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"loadshape-llm\[hub\]"):
        list(read_rows(Path("hub:example/chats")))

# What was captured is what arrived: the same bytes decode into the same log.

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from loadshape.capture import BYTES_NAME, CAPTURE, INDEX_NAME, Capture, Piece, list_frames
from loadshape.endpoint import FAULTS, Script, running
from loadshape.errors import LogError
from loadshape.log import READS, Log, Outcome, read_stream
from loadshape.plan import NULL
from loadshape.replayer import Settings, replay
from loadshape.replayer.body import Prepared
from loadshape.replayer.exchange import Exchange
from loadshape.replayer.recorder import RowWriter, WriterThread
from loadshape.replayer.tape import FRAME_BYTES, Tape, Veil
from loadshape.secret import Secret
from loadshape.target import Target
from traces import open_loop

KEY = "sk-planted-7f3a9c"
FAULTY = Script(ttft_s=0.005, itl_s=0.002, faults=tuple(FAULTS), fault_rate=0.5)
FACTS = ("head_ns", "first_byte_ns", "first_token_ns", "first_content_ns", "last_token_ns")
COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "status", "finish_reason")


def tape(folder: Path, *reads: tuple[int, bytes], key: str | None = None) -> Capture:
    """Write reads, in turn, and return what can be read of them."""
    folder.mkdir(exist_ok=True)
    writer = WriterThread()
    index = RowWriter(folder / INDEX_NAME, CAPTURE, writer)
    it = Tape(folder / BYTES_NAME, index, writer, [Secret(key)] if key else [])
    writer.open(it, index)
    for at, (request, data) in enumerate(reads):
        it.take(request, at, at + 1, data)
    it.flush()
    writer.close()
    return Capture([folder], [read_stream(folder / INDEX_NAME, CAPTURE)])


# The file


def test_reads_come_back_one_by_one(tmp_path: Path) -> None:
    capture = tape(tmp_path, (3, b"one"), (4, b"two"), (3, b"three"))
    assert list(capture.pieces()) == [
        Piece(3, 0, 1, b"one", None),
        Piece(4, 1, 2, b"two", None),
        Piece(3, 2, 3, b"three", None),
    ]
    assert [piece.data for piece in capture.answer(3)] == [b"one", b"three"]
    assert capture.answer(5) == []


def test_frames_are_independent_and_listed(tmp_path: Path) -> None:
    reads = [(at % 7, np.random.default_rng(at).bytes(FRAME_BYTES // 3)) for at in range(10)]
    capture = tape(tmp_path, *reads)
    frames = list_frames(tmp_path / BYTES_NAME)
    assert len(frames) == 3
    data = (tmp_path / BYTES_NAME).read_bytes()
    whole = [zstandard.decompress(data[start : start + size]) for start, size in reversed(frames)]
    assert b"".join(reversed(whole)) == b"".join(data for _, data in reads)
    assert [(piece.request, piece.data) for piece in capture.pieces()] == reads


def test_any_zstd_reads_it_from_the_front(tmp_path: Path) -> None:
    tape(tmp_path, *[(at, b"%d " % at * 100_000) for at in range(10)])
    with zstandard.ZstdDecompressor().stream_reader(
        io.BytesIO((tmp_path / BYTES_NAME).read_bytes()), read_across_frames=True
    ) as reader:
        assert reader.read() == b"".join(b"%d " % at * 100_000 for at in range(10))


def test_nothing_arrived(tmp_path: Path) -> None:
    assert list(tape(tmp_path).pieces()) == []
    assert list_frames(tmp_path / BYTES_NAME) == []


@pytest.mark.parametrize("cut", [0, 5, -1])
def test_a_file_that_was_cut_says_so(tmp_path: Path, cut: int) -> None:
    capture = tape(tmp_path, (1, b"one"))
    path = tmp_path / BYTES_NAME
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(LogError, match="cut or damaged"):
        list(capture.pieces())


def test_a_damaged_frame_says_so(tmp_path: Path) -> None:
    capture = tape(tmp_path, (1, b"one" * 100))
    path = tmp_path / BYTES_NAME
    data = bytearray(path.read_bytes())
    data[10] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(LogError, match="frame 0 is damaged"):
        list(capture.pieces())


# Keys


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([b"nothing here\n"], b"nothing here\n"),
        ([b"key sk-planted-7f3a9c and sk-planted-7f3a9c\n"], b"key ***************** and *****************\n"),
        ([b"key sk-pl", b"anted-7f3a9c.\n"], b"key *****************.\n"),
        ([b"key sk-p", b"lanted", b"-7f3a9c.\n"], b"key *****************.\n"),
        ([b"key sk", b"-planted-7f3a9c.\n"], b"key sk***************.\n"),  # too short to tell, alone
        ([b"sk", b"y is the limit\n"], b"sky is the limit\n"),
        ([*(bytes([char]) for char in KEY.encode()), b"\n"], b"sk-**************\n"),
    ],
)
def test_a_key_is_covered(reads: list[bytes], expected: bytes) -> None:
    veil = Veil([Secret(KEY)])
    assert b"".join(veil.cover(1, data) for data in reads) == expected


def test_streams_are_kept_apart(tmp_path: Path) -> None:
    capture = tape(tmp_path, (1, b"sk-planted"), (2, b"-7f3a9c"), (1, b"-7f3a9c\n"), key=KEY)
    assert [piece.data for piece in capture.pieces()] == [b"**********", b"-7f3a9c", b"*******\n"]


def test_a_key_with_slashes_in_json() -> None:
    veil = Veil([Secret('a/b"c-secret')])
    assert veil.cover(1, rb'{"error": "a\/b\"c-secret"}') == b'{"error": "**************"}'


@given(
    st.lists(st.sampled_from(["aab-aac", "aa", "aab", "-", "b-aac", "x"]), max_size=12),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_however_it_is_cut_no_key_is_left_and_no_length_changes(words: list[str], cuts: list[int]) -> None:
    data, key = "".join(words).encode(), "aab-aac"
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [data[start:end] for start, end in pairwise(edges)]
    veil = Veil([Secret(key)])
    covered = [veil.cover(1, part) for part in parts]
    assert [len(part) for part in covered] == [len(part) for part in parts]
    assert key.encode() not in b"".join(covered)


# A run


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A captured run against a server that fails in every way."""
    with running(FAULTY) as url:
        yield replay(
            open_loop(160, 5, output_tokens=12),
            Target(url),
            log=tmp_path_factory.mktemp("captured") / "a.log",
            settings=Settings(processes=2, capture=True, timeout_idle_s=1.2),
        )


def decode(pieces: list[Piece]) -> tuple[Exchange, list[tuple[Any, ...]]]:
    """Return what the reads of one answer say, and their rows."""
    exchange, rows = Exchange(0, pieces[0].request, Prepared([], 0)), []
    for request, at_ns, seen_ns, data, reset in pieces:
        if reset is None:
            gain = exchange.absorb(at_ns, data)
            rows.append((request, at_ns, seen_ns, len(data), gain.events, gain.deltas, gain.kinds, gain.tokens))
        else:
            exchange.count(at_ns, exchange.response.end_of_stream(reset=reset))
    return exchange, rows


@pytest.mark.slow
def test_a_capture_decodes_into_the_log_of_its_run(played: Log) -> None:
    played.verify()
    pieces: dict[int, list[Piece]] = defaultdict(list)
    for piece in Capture.open(played.path).pieces():
        pieces[piece.request].append(piece)
    reads = []
    for row in played.requests.to_pylist():
        if row["request"] not in pieces:
            assert row["reads"] == 0
            continue
        exchange, rows = decode(pieces[row["request"]])
        reads += rows
        response = exchange.response
        assert [getattr(exchange, name) for name in FACTS] == [NULL if row[it] is None else row[it] for it in FACTS]
        assert [getattr(response, name) for name in COUNTS] == [row[name] for name in COUNTS]
        assert (exchange.reads, exchange.events, exchange.bytes_in) == (row["reads"], row["events"], row["bytes_in"])
        if exchange.reads and not row["outcome"].startswith("timeout"):
            assert (response.outcome or Outcome.truncated.name) == row["outcome"]
    columns = [pa.array(column, it.type) for column, it in zip(zip(*reads, strict=True), READS, strict=True)]
    assert pa.table(columns, schema=READS).equals(played.reads)


@pytest.mark.slow
def test_one_answer_of_a_run(played: Log) -> None:
    capture = Capture.open(played.path)
    (row,) = [row for row in played.requests.to_pylist() if row["outcome"] == "ok"][:1]
    pieces = capture.answer(row["request"])
    assert sum(len(piece.data) for piece in pieces) == row["bytes_in"]
    assert pieces[0].data.startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_run_without_a_capture(tmp_path: Path) -> None:
    with running(Script(ttft_s=0.005, itl_s=0.001)) as url:
        replay(open_loop(2, 2), Target(url), log=tmp_path / "a.log")
    with pytest.raises(LogError, match="has no capture; replay with capture = true"):
        Capture.open(tmp_path / "a.log")

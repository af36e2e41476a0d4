from __future__ import annotations

import contextlib
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import RemoteWireError
from loadshape.wire import Event, EventStream
from loadshape.wire.sse import MAX_EVENT_BYTES

from .cases import RELAXED

BOM = b"\xef\xbb\xbf"

# (bytes, events as (type, text)), after the examples and the parsing rules of the WHATWG text.
STREAMS: list[tuple[bytes, list[tuple[str, str]]]] = [
    (b"data: a\n\n", [("message", "a")]),
    (b"data: a\r\n\r\n", [("message", "a")]),
    (b"data: a\r\r", [("message", "a")]),
    (b"data: a\r\n\n", [("message", "a")]),
    (b"data: a\n\r\n", [("message", "a")]),
    (b"data: a\n\rdata: b\r\n\r", [("message", "a"), ("message", "b")]),
    (b"data:a\n\n", [("message", "a")]),
    (b"data:  a \n\n", [("message", " a ")]),
    (b"data: a\ndata: b\n\n", [("message", "a\nb")]),
    (b"data\n\ndata\ndata\n\ndata:", [("message", ""), ("message", "\n")]),
    (b"data:test\n\ndata: test\n\n", [("message", "test"), ("message", "test")]),
    (b": note\n\ndata: a\n\n", [("message", "a")]),
    (b":\n:\ndata: a\n: c\n\n", [("message", "a")]),
    (b"data: a\n", []),
    (b"data: a", []),
    (b"data: a\n\ndata: b", [("message", "a")]),
    (b"event: x\ndata: a\n\ndata: b\n\n", [("x", "a"), ("message", "b")]),
    (b"data: a\nevent: x\n\n", [("x", "a")]),
    (b"event: x\n\ndata: a\n\n", [("message", "a")]),
    (b"event\ndata: a\n\n", [("message", "a")]),
    (b"event: x\nevent: y\ndata: a\n\n", [("y", "a")]),
    (b"\n\n\ndata: a\n\n\n\n", [("message", "a")]),
    (b"foo: a\nDATA: b\n data: c\ndata : d\n\n", []),
    (b"data: a:b: c\n\n", [("message", "a:b: c")]),
    (BOM + b"data: a\n\n", [("message", "a")]),
    (BOM + BOM + b"data: a\n\n", []),
    (b"data: a\n\n" + BOM + b"data: b\n\n", [("message", "a")]),
    (BOM[:2] + b"data: a\n\ndata: b\n\n", [("message", "b")]),
    (b"data: \xff\xc3\n\n", [("message", "\ufffd\ufffd")]),
    (b"event: \xff\ndata: a\n\n", [("\ufffd", "a")]),
    ("data: é日🙂\u2028\x85\x0b\x0c\n\n".encode(), [("message", "é日🙂\u2028\x85\x0b\x0c")]),
    (b"data: a\0b\n\n", [("message", "a\0b")]),
    (b"id: 1\nretry: 5\ndata: a\n\n", [("message", "a")]),
    (b"", []),
]


def read(data: bytes, *cuts: int) -> tuple[list[tuple[str, str]], int]:
    stream = EventStream()
    edges = [0, *cuts, len(data)]
    events: list[Event] = []
    for start, end in itertools.pairwise(edges):
        events += stream.feed(data[start:end])
    return [(event.type, event.text) for event in events], stream.comments


@pytest.mark.parametrize(("data", "events"), STREAMS)
def test_streams(data: bytes, events: list[tuple[str, str]]) -> None:
    assert read(data)[0] == events
    assert read(data, *range(1, len(data)))[0] == events
    for first, second in itertools.combinations(range(len(data) + 1), 2):
        assert read(data, first, second)[0] == events
    assert consult_oracle(data)[0] == events


def consult_oracle(data: bytes) -> tuple[list[tuple[str, str]], int]:
    """Follow the WHATWG text to the letter, on text and at once: decode, cut into lines, interpret."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = re.split("\r\n|\n|\r", text)[:-1]  # what follows the last line end is no line
    events, comments, buffer, kind = [], 0, "", ""
    for line in lines:
        name, colon, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if line == "":
            if buffer != "":
                events.append((kind or "message", buffer[:-1]))
            buffer, kind = "", ""
        elif name == "" and colon:
            comments += 1
        elif name == "event":
            kind = value
        elif name == "data":
            buffer += value + "\n"
    return events, comments


TOKENS = [b"data", b"data:", b"data: ", b"event: x", b"id: 1", b":", b" ", b"\r", b"\n", b"\r\n", b"\n\n", BOM, b"\xef"]
PIECES = st.lists(st.sampled_from([*TOKENS, "é🙂".encode(), b"data: a\n\n"]) | st.binary(max_size=8), max_size=20)


@RELAXED
@given(PIECES)
def test_any_pieces_agree_with_the_oracle(pieces: list[bytes]) -> None:
    stream, events = EventStream(), []
    for piece in pieces:
        events += [(event.type, event.text) for event in stream.feed(piece)]
    assert (events, stream.comments) == consult_oracle(b"".join(pieces))


@RELAXED
@given(PIECES)
def test_any_bytes_agree_byte_by_byte(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert read(data) == read(data, *range(1, len(data)))


def test_a_carriage_return_ends_its_line_at_once() -> None:
    stream = EventStream()
    assert [event.data for event in stream.feed(b"data: a\r\r")] == [b"a"]
    assert stream.feed(b"\n") == []
    assert [event.data for event in stream.feed(b"data: b\r\n\r")] == [b"b"]
    assert [event.data for event in stream.feed(b"\ndata: c\n\n")] == [b"c"]


@pytest.mark.parametrize(
    ("data", "pending"),
    [(b"data: a\n\n", False), (b"data: a\n", True), (b"data: a", True), (b"da", True), (b"", False), (b": x\n", False)],
)
def test_pending_tells_of_an_event_without_its_end(data: bytes, pending: bool) -> None:
    stream = EventStream()
    stream.feed(data)
    assert stream.pending is pending


@pytest.mark.parametrize(
    ("data", "last_event_id", "retry_ms"),
    [
        (b"id: 7\nretry: 250\n\n", "7", 250),
        (b"id: 7\nid: 8\0\n\n", "7", None),
        (b"id: 7\nid\n\n", "", None),
        (b"retry: 2x\n\n", "", None),
        (b"retry: -2\n\n", "", None),
        (b"retry: \xd9\xa3\n\n", "", None),
        (b"retry: 5\nretry: 999999999999999999\n\n", "", 5),
        (b"retry\n\n", "", None),
    ],
)
def test_id_and_retry(data: bytes, last_event_id: str, retry_ms: int | None) -> None:
    stream = EventStream()
    assert stream.feed(data) == []
    assert (stream.last_event_id, stream.retry_ms) == (last_event_id, retry_ms)


FILLER = b"x" * 50


@pytest.mark.parametrize(
    ("begin", "more"),
    [(b"data: ", FILLER), (b": ", FILLER), (b"event: ", FILLER), (b"", b"data: " + FILLER + b"\n"), (b"", b"data\n")],
    ids=["line", "comment", "type", "lines", "empty lines"],
)
def test_an_event_without_end_is_refused(begin: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadshape.wire.sse.MAX_EVENT_BYTES", 1000)
    stream = EventStream()
    stream.feed(begin + more * (900 // len(more)))
    with pytest.raises(RemoteWireError, match="more than 1000 bytes"):
        stream.feed(more * (1000 // len(more)))


@pytest.mark.parametrize("extra", [0, 1])
def test_the_limit_is_the_same_for_one_piece_and_for_many(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadshape.wire.sse.MAX_EVENT_BYTES", 1000)
    data = b"data: " + b"x" * (994 + extra) + b"\n\n"
    for size in (1, 7, len(data)):
        stream = EventStream()
        stream.feed(b"\n")
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        with pytest.raises(RemoteWireError) if extra else contextlib.nullcontext():
            assert sum(len(stream.feed(piece)) for piece in pieces) == 1


def test_the_limit_is_of_one_event_not_of_the_stream() -> None:
    stream = EventStream()
    half = b"data: " + b"x" * (MAX_EVENT_BYTES // 2) + b"\n\n"
    assert sum(len(stream.feed(half)) for _ in range(3)) == 3


def test_a_long_event_in_small_pieces_is_linear() -> None:
    stream, data = EventStream(), b"data: " + b"y" * 4_000_000 + b"\n\n"
    events: list[Event] = []
    for start in range(0, len(data), 100):
        events += stream.feed(data[start : start + 100])
    assert len(events) == 1
    assert len(events[0].data) == 4_000_000

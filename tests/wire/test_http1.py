from __future__ import annotations

import gc
import itertools
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import RemoteWireError
from loadshape.wire import ResponseParser
from loadshape.wire.http1 import MAX_OVERHEAD_BYTES

from .cases import HTTP_CASES, RELAXED, WHOLE_CASES, Case, chunk, framed, head, measured, streamed


def parse(data: bytes) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    return parser, b"".join(parser.feed(data))


FRAMINGS = [
    ("chunked", streamed(b"ab", b"c"), b"abc", True, True),
    ("length", measured(b"abc"), b"abc", True, True),
    ("length", head("content-length: 0"), b"", True, True),
    ("close", head("content-type: text/plain") + b"abc", b"abc", False, False),
    ("close", head("transfer-encoding: gzip") + b"abc", b"abc", False, False),
    ("none", head("content-length: 3", status="304 Not Modified"), b"", True, True),
    ("none", head(status="204 No Content"), b"", True, True),
    ("length", head("content-length: 1", "connection: close") + b"a", b"a", True, False),
    ("length", b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na", b"a", True, False),
    ("length", b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\na", b"a", True, True),
]


@pytest.mark.parametrize(("framing", "data", "body", "complete", "keep_alive"), FRAMINGS)
def test_framing_says_when_a_response_is_complete(
    framing: str, data: bytes, body: bytes, complete: bool, keep_alive: bool
) -> None:
    parser, found = parse(data)
    assert (parser.framing, found) == (framing, body)
    assert (parser.complete, parser.keep_alive) == (complete, keep_alive)


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (head("content-type: text/plain") + b"abc", True),
        (head("content-type: text/plain"), True),
        (measured(b"abc")[:-1], False),
        (streamed(b"abc")[:-1], False),
        (head("content-length: 3")[:-2], False),
        (b"", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
    ],
)
def test_the_end_of_the_connection_completes_only_what_it_delimits(data: bytes, complete: bool) -> None:
    parser, _ = parse(data)
    parser.end_of_stream()
    assert (parser.complete, parser.truncated) == (complete, not complete)
    assert not parser.keep_alive


def test_the_end_of_the_connection_after_the_end_of_the_response_truncates_nothing() -> None:
    parser, _ = parse(measured(b"abc"))
    parser.end_of_stream()
    assert (parser.complete, parser.truncated, parser.keep_alive) == (True, False, True)


def test_headers_and_trailers_are_apart() -> None:
    parser, body = parse(streamed(b"abc", end=b"0\r\nX-Took: 5\r\nContent-Type: no\r\n\r\n", media_type="a/b"))
    assert body == b"abc"
    assert parser.headers == {"content-type": "a/b", "transfer-encoding": "chunked"}
    assert parser.trailers == {"x-took": "5", "content-type": "no"}


def test_repeated_headers_are_joined() -> None:
    parser, _ = parse(head("Vary: a", "VARY: b", "X-Empty:", "X-Latin: é", "content-length: 0"))
    assert parser.headers == {"vary": "a, b", "x-empty": "", "x-latin": "é", "content-length": "0"}


def test_informational_responses_leave_nothing_behind() -> None:
    parser = ResponseParser()
    assert parser.feed(head("link: <a>", status="103 Early Hints")) == []
    assert (parser.head_seen, parser.status, parser.headers, parser.complete) == (False, 0, {}, False)
    assert b"".join(parser.feed(head(status="100 Continue") + measured(b"abc", status="404 X"))) == b"abc"
    assert (parser.status, parser.complete) == (404, True)
    assert "link" not in parser.headers


def test_pieces_follow_the_chunks() -> None:
    parser = ResponseParser()
    assert parser.feed(framed() + chunk(b"ab") + chunk(b"cd")[:4]) == [b"ab", b"c"]
    assert parser.feed(chunk(b"cd")[4:]) == [b"d"]


@pytest.mark.parametrize("tail", [b"H", b"x", measured(b"zz"), b"\r\n\r\nHTTP/1.1 500"])
def test_a_surplus_is_not_body(tail: bytes) -> None:
    for data in (measured(b"abc"), streamed(b"abc"), head("connection: close", "content-length: 3") + b"abc"):
        parser, body = parse(data + tail)
        assert (body, parser.complete, parser.surplus, parser.keep_alive) == (b"abc", True, True, False)
        assert parser.status == 200
        parser, _ = parse(data)
        assert not parser.surplus
        assert parser.feed(tail) == []
        assert (parser.surplus, parser.keep_alive) == (True, False)


def test_empty_lines_after_the_end_are_no_surplus() -> None:
    for data in (measured(b"abc"), streamed(b"abc")):
        parser, _ = parse(data + b"\r\n")
        assert parser.feed(b"\r\n") == []
        assert (parser.complete, parser.surplus, parser.keep_alive) == (True, False, True)
        following, body = parse(b"\r\n\r\n" + data)
        assert (following.status, body) == (200, b"abc")


BROKEN = [
    (b"SSH-2.0-x\r\n", "not HTTP/1.1"),
    (b"HTTP/1.1 2x0 OK\r\n\r\n", "not HTTP/1.1"),
    (head("no colon"), "not HTTP/1.1"),
    (head("content-length: 3", "content-length: 4"), "not HTTP/1.1"),
    (head("content-length: -1"), "not HTTP/1.1"),
    (head("content-length: 3", "transfer-encoding: chunked"), "not HTTP/1.1"),
    (framed() + b"xyz\r\n", "not HTTP/1.1"),
    (framed() + b"3\r\nabcd\r\n", "not HTTP/1.1"),
    (framed() + b"fffffffffffffffff\r\n", "not HTTP/1.1"),
    (head(status="101 Switching Protocols"), "switched protocols"),
]


@pytest.mark.parametrize(("data", "message"), BROKEN)
def test_what_is_not_http_is_the_servers_fault(data: bytes, message: str) -> None:
    with pytest.raises(RemoteWireError, match=message):
        ResponseParser().feed(data)


def test_pieces_before_a_fault_are_kept() -> None:
    parser = ResponseParser()
    with pytest.raises(RemoteWireError):
        parser.feed(framed() + chunk(b"abc") + b"zz\r\n")
    assert parser.pieces == [b"abc"]


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\n", framed() + b"0\r\n", b""], ids=["head", "trailers", "1xx"])
def test_a_head_without_end_is_refused(begin: bytes) -> None:
    parser = ResponseParser()
    parser.feed(begin)
    line = b"x-a: " + b"b" * 1000 + b"\r\n" if begin else head("x-a: " + "b" * 1000, status="103 Early Hints")
    for _ in range(MAX_OVERHEAD_BYTES // len(line) - 1):
        parser.feed(line)
    with pytest.raises(RemoteWireError, match="without an end"):
        parser.feed(line * 2)


CODINGS = [
    ([], ""),
    (["content-encoding: identity"], ""),
    (["content-encoding: GZip"], "gzip"),
    (["content-encoding: br, gzip"], "br, gzip"),
    (["transfer-encoding: gzip, chunked"], "gzip"),
    (["content-encoding: zstd", "transfer-encoding: chunked"], "zstd"),
]


@pytest.mark.parametrize(("lines", "coding"), CODINGS)
def test_compression_is_told(lines: list[str], coding: str) -> None:
    parser, _ = parse(head(*lines))
    assert parser.coding == coding


def test_a_parser_dies_with_its_last_reference() -> None:
    gc.disable()
    try:
        parser, _ = parse(streamed(b"abc")[:-3])
        trace = weakref.ref(parser)
        del parser
        assert trace() is None
    finally:
        gc.enable()


# Differential: h11 is another implementation, strict and readable.

COMPLETE = [
    case
    for case in [*HTTP_CASES, *WHOLE_CASES]
    if case.outcome not in ("reset", "truncated", "protocol_error") and case.error is None and case.then != "reset"
]


def ask_h11(data: bytes, ends: bool) -> tuple[int, dict[str, str], bytes]:
    h11 = pytest.importorskip("h11")
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    if ends:
        connection.receive_data(b"")
    status, headers, body = 0, {}, b""
    while (event := connection.next_event()) is not h11.NEED_DATA:
        if isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, headers, body
    raise AssertionError("h11 wants more")


@pytest.mark.parametrize("case", COMPLETE, ids=lambda case: case.name)
def test_h11_reads_the_same(case: Case) -> None:
    data, ends = case.data, case.then == "close"
    parser, body = parse(data)
    status, headers, expected = ask_h11(data, ends)
    assert (parser.status, body) == (status, expected)
    fields = ("content-type", "transfer-encoding", "content-length")
    for name in set(headers) & set(fields):
        assert parser.headers[name].lower() == headers[name].lower()


@RELAXED
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6), st.lists(st.integers(0, 600), max_size=8))
def test_any_cut_of_a_chunked_body_gives_the_body(parts: list[bytes], cuts: list[int]) -> None:
    data = streamed(*parts)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parser, body = ResponseParser(), b""
    for start, end in itertools.pairwise(edges):
        body += b"".join(parser.feed(data[start:end]))
    assert (body, parser.complete, parser.keep_alive) == (b"".join(parts), True, True)

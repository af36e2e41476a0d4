"""The responder: what it writes, when, and what it says of it. Real sockets on loopback, no sleeps."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.responder import CHUNK, INTERVAL_HEADER, TRUTH, Busyness, Responder, measure_writes
from loadshape.wire.response import Response


class Serving:
    """A responder in a thread: its port, and its account on request."""

    def __init__(self, port: int, orders: int, reports: int) -> None:
        self.port = port
        self._orders, self._reports = orders, reports

    def ask(self, tokens: int | None, *, interval_us: int = 500, name: str = "ls-5eed0001-0") -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        sock.sendall(write_request(tokens, interval_us, name))
        return sock

    def gather(self, path: Path) -> tuple[pa.Table, Busyness]:
        os.write(self._orders, os.fsencode(path) + b"\n")
        account = msgspec.json.decode(os.read(self._reports, 1 << 16), type=Busyness)
        with pa.ipc.open_stream(str(path)) as stream:
            return stream.read_all(), account


def write_request(tokens: int | None, interval_us: int = 500, name: str = "ls-5eed0001-0") -> bytes:
    body = b'{"messages":[]}' if tokens is None else b'{"messages":[],"max_tokens":%d,"stream":true}' % tokens
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{INTERVAL_HEADER}: {interval_us}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}X-Request-Id: {name}\r\n\r\n".encode() + body


@contextmanager
def serving() -> Iterator[Serving]:
    orders, say = os.pipe()
    hear, report = os.pipe()
    responder = Responder(0, orders, lambda line: os.write(report, line))
    thread = threading.Thread(target=responder.serve)
    thread.start()
    try:
        yield Serving(responder.port, say, hear)
    finally:
        os.close(say)  # nobody gives orders any more: it ends by itself
        thread.join(5)
        for fd in (orders, hear, report):
            os.close(fd)
    assert not thread.is_alive()


def read_answer(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(1 << 16)
    return data


@pytest.mark.parametrize(("tokens", "writes"), [(1, 1), (2, 2), (5, 5), (None, 1)])
def test_an_answer_is_a_write_a_token_and_understood_by_our_own_reader(
    tokens: int | None, writes: int, tmp_path: Path
) -> None:
    sizes = measure_writes(writes)
    with serving() as served, served.ask(tokens) as sock:
        data = read_answer(sock, int(sizes.sum()))
        truth, account = served.gather(tmp_path / "truth.arrows")
    assert len(data) == sizes.sum()
    response = Response()
    response.feed(data)
    assert (response.complete, response.outcome) == (True, "ok")
    assert truth.schema.equals(TRUTH)
    (row,) = truth.to_pylist()
    assert (row["request"], row["left"], len(row["writes_ns"])) == ("ls-5eed0001-0", 0, writes)
    assert account.blocked == 0


def test_no_write_is_early_and_due_times_are_absolute(tmp_path: Path) -> None:
    with serving() as served, served.ask(20, interval_us=1000) as sock:
        read_answer(sock, int(measure_writes(20).sum()))
        truth, account = served.gather(tmp_path / "truth.arrows")
    (row,) = truth.to_pylist()
    late_ns = [at - row["due_ns"] - k * row["interval_ns"] for k, at in enumerate(row["writes_ns"])]
    assert row["interval_ns"] == 1_000_000
    assert min(late_ns) >= 0
    assert [cpu for _, cpu, _ in account.samples] == sorted(cpu for _, cpu, _ in account.samples)


def test_streams_that_come_one_after_another_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with serving() as served:
        socks = [served.ask(10, interval_us=2000, name=f"ls-5eed0001-{number}") for number in range(20)]
        for sock in socks:
            read_answer(sock, int(measure_writes(10).sum()))
            sock.close()
        truth, _ = served.gather(tmp_path / "truth.arrows")
    firsts = {row["request"]: row["due_ns"] for row in truth.to_pylist()}
    order = [firsts[f"ls-5eed0001-{number}"] for number in range(20)]
    assert order == sorted(order)


def test_a_request_in_pieces_is_one_request() -> None:
    request = write_request(2)
    with serving() as served, socket.create_connection(("127.0.0.1", served.port), timeout=5) as sock:
        for at in range(0, len(request), 40):
            sock.sendall(request[at : at + 40])
        assert len(read_answer(sock, int(measure_writes(2).sum()))) == measure_writes(2).sum()


def test_a_connection_serves_again() -> None:
    with serving() as served, served.ask(3) as sock:
        for _ in range(2):
            read_answer(sock, int(measure_writes(3).sum()))
            sock.sendall(write_request(3))
        assert read_answer(sock, int(measure_writes(3).sum())).endswith(b"0\r\n\r\n")


def test_what_a_peer_that_left_did_not_get_is_counted(tmp_path: Path) -> None:
    with serving() as served:
        with served.ask(1000, interval_us=1000) as sock:
            read_answer(sock, int(measure_writes(1, left=1).sum()))
        truth, _ = served.gather(tmp_path / "first.arrows")
        again, _ = served.gather(tmp_path / "second.arrows")
    (row,) = truth.to_pylist()
    assert len(row["writes_ns"]) + row["left"] == 1000
    assert again.num_rows == 0


@given(st.integers(1, 50), st.integers(0, 50))
def test_an_unfinished_answer_is_the_beginning_of_a_whole_one(count: int, left: int) -> None:
    assert measure_writes(count, left).tolist() == measure_writes(count + left).tolist()[:count]


def test_chunks_have_the_size_of_real_ones() -> None:
    assert 200 <= len(CHUNK) <= 260

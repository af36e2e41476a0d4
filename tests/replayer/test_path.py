# What the kernel knows of a connection, and what nobody knows.

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from loadshape.plan import NULL
from loadshape.replayer.connection import Connection
from loadshape.replayer.path import measure_path


def test_a_connection_has_a_round_trip_time_and_has_sent_nothing_again() -> None:
    if sys.platform != "linux":
        pytest.skip("TCP_INFO has another form elsewhere")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handle = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
        with handle, peer:
            handle.sendall(b"x")
            peer.recv(1)
            rtt_ns, retransmits = measure_path(Connection(0, handle))
            assert 0 < rtt_ns < 1_000_000_000
            assert retransmits == 0


def test_retransmissions_count_since_the_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 3, 5])

    class Handle(socket.socket):
        def getsockopt(self, *_: int) -> bytes:  # type: ignore[override]
            return bytes(68) + (1500).to_bytes(4, sys.byteorder) + bytes(28) + next(counts).to_bytes(4, sys.byteorder)

    monkeypatch.setattr(sys, "platform", "linux")
    with Handle() as handle:
        connection = Connection(0, handle)
        assert [measure_path(connection) for _ in range(3)] == [(1_500_000, 3), (1_500_000, 0), (1_500_000, 2)]


@pytest.mark.parametrize("handle", [None, SimpleNamespace()])
def test_what_is_no_socket_has_no_path(handle: object) -> None:
    assert measure_path(Connection(0, handle)) == (NULL, NULL)


def test_a_closed_socket_has_no_path() -> None:
    handle = socket.socket()
    handle.close()
    assert measure_path(Connection(0, handle)) == (NULL, NULL)

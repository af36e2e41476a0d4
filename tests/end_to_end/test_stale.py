# A server that closes a connection as it is used again: what the log says of it, and the one retry that there is.

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest

from loadshape.capture import Capture
from loadshape.log import Log
from loadshape.report import render
from loadshape.summary import summarize
from loadshape.target import Target
from loadshape.validity import judge
from traces import open_loop

from .conftest import play, read_columns

pytestmark = pytest.mark.slow
TRACE = open_loop(20, 20)
NETWORKS = ["user"] + ["kernel"] * (sys.platform == "linux")
BODY = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
BODY += b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
ABRUPT = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class Forgetful:
    """Answers the first request of each connection, and closes at the second without a word."""

    def __init__(self, *, resets: bool, answers: int = 1) -> None:
        self.heard = 0
        self._resets = resets
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(peer,)))
            self._threads[-1].start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as lines:
            for number in range(self._answers + 1):
                head = {}
                while line := lines.readline().rstrip():
                    name, _, value = line.partition(b":")
                    head[name.lower()] = value
                if not head:
                    return
                lines.read(int(head[b"content-length"]))
                self.heard += 1
                if number < self._answers:
                    peer.sendall(ANSWER)
            if self._resets:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)


@pytest.fixture(params=[False, True], ids=["closes", "resets"])
def server(request: pytest.FixtureRequest) -> Iterator[Forgetful]:
    forgetful = Forgetful(resets=request.param)
    yield forgetful
    forgetful.close()


def replay_it(server: Forgetful, path: Path, network: str, **settings: bool) -> Log:
    return play(TRACE, Target(server.url), path, receive=network, preflight=False, scrape_s=0, **settings)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_stale_connection_can_be_told_from_another_end(server: Forgetful, tmp_path: Path, network: str) -> None:
    log = replay_it(server, tmp_path / "a.log", network)
    assert set(log.manifest.outcomes) == {"ok", "reset"}
    lost = log.requests.filter(pc.equal(log.requests["outcome"].cast("string"), "reset"))
    assert set(lost["error"].to_pylist()) == {"stale connection: closed before an answer when it was used again"}
    assert set(lost["reused"].to_pylist()) == {True}
    assert log.requests["resent_ns"].null_count == server.heard == 20
    assert "sent again" not in {check.name for check in judge(log).checks}


@pytest.mark.parametrize("network", NETWORKS)
def test_what_it_loses_is_sent_once_more(server: Forgetful, tmp_path: Path, network: str) -> None:
    log = replay_it(server, tmp_path / "a.log", network, retry_stale=True, capture=True)
    assert log.manifest.outcomes == {"ok": 20}
    resent = log.requests.filter(pc.is_valid(log.requests["resent_ns"]))
    assert 1 <= resent.num_rows == server.heard - 20
    assert set(resent["reused"].to_pylist()) == {True}
    due_ns, sent_ns, resent_ns, token_ns = read_columns(resent, "due_ns", "sent_ns", "resent_ns", "first_token_ns")
    assert (due_ns <= sent_ns).all()
    assert (sent_ns < resent_ns).all()
    assert (resent_ns < token_ns + 100_000).all()  # the kernel's stamps are translated from another clock
    assert resent["connected_ns"].null_count == resent.num_rows
    planned_ns, told_ns = read_columns(TRACE.requests, "due_ns")[0], read_columns(log.requests, "due_ns")[0]
    assert (planned_ns == told_ns).all()
    assert {piece.request for piece in Capture.open(log.path).pieces()} == set(range(20))
    (check,) = [it for it in judge(log).checks if it.name == "sent again"]
    assert (check.status, check.measured) == ("suspect", f"{resent.num_rows * 5} % ({resent.num_rows} of 20)")
    assert f"{resent.num_rows} requests sent twice" in " ".join(render(summarize(log), "text").split())


@pytest.mark.parametrize("network", NETWORKS)
def test_a_fresh_connection_that_closes_is_no_stale_one(tmp_path: Path, network: str) -> None:
    server = Forgetful(resets=False, answers=0)
    log = replay_it(server, tmp_path / "a.log", network, retry_stale=True)
    server.close()
    assert log.manifest.outcomes == {"reset": 20}
    assert set(log.requests["error"].to_pylist()) == {"closed before an answer"}
    assert server.heard == 20

# What a load generator must not do: follow, detour, hide who it is, or go on against a server that only fails.

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from loadshape.capture import Capture
from loadshape.endpoint import Script, running
from loadshape.target import Target
from loadshape.version import __version__
from traces import open_loop

from .conftest import play

pytestmark = pytest.mark.slow
KEY = "planted-key-7f3a9c"
TRACE = open_loop(5, 2)
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class Stranger(ThreadingHTTPServer):
    """A server that answers every request with a redirect and remembers what it was told."""

    def __init__(self, location: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Redirection)
        self.location = location
        self.heard: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Redirection(BaseHTTPRequestHandler):
    """The answer of a Stranger."""

    protocol_version = "HTTP/1.1"
    server: Stranger

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(307)
        self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def strangers() -> Iterator[tuple[Stranger, Stranger]]:
    """Two servers; the first sends everybody on to the second."""
    far = Stranger()
    near = Stranger(f"{far.url}/chat/completions")
    threads = [threading.Thread(target=server.serve_forever) for server in (near, far)]
    for thread in threads:
        thread.start()
    yield near, far
    for server, thread in zip((near, far), threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


def test_redirects_are_not_followed(
    strangers: tuple[Stranger, Stranger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = strangers
    monkeypatch.setenv("SOME_KEY", KEY)
    target = Target(near.url, key="env:SOME_KEY", headers={"x-tenant": "a"})
    log = play(TRACE, target, tmp_path / "a.log", preflight=False)
    assert log.manifest.outcomes == {"http_error": 5}
    assert set(log.requests["error"].to_pylist()) == {"HTTP 307: redirect to 127.0.0.1, not followed"}
    assert len(near.heard) == 5
    assert far.heard == []  # a key would have followed


class Echo(BaseHTTPRequestHandler):
    """Says in every answer what it was told, also in two halves."""

    protocol_version = "HTTP/1.1"
    status = 200

    def do_GET(self) -> None:
        self.say()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.status = 418
        self.say()

    def say(self) -> None:
        heard = self.headers["Authorization"]
        body = json.dumps({"error": {"message": f"who is {heard}?"}, "version": heard}).encode()
        self.send_response(self.status, f"No {heard}")
        self.send_header("X-Request-Id", heard)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        middle = body.index(KEY.encode()) + len(KEY) // 2
        self.wfile.write(body[:middle])
        time.sleep(0.01)
        self.wfile.write(body[middle:])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_key_that_the_server_repeats_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        target = Target(f"http://127.0.0.1:{server.server_address[1]}/v1", key="env:SOME_KEY")
        log = play(TRACE, target, tmp_path / "a.log", capture=True)
        server.shutdown()
        thread.join()
    assert log.manifest.outcomes == {"http_error": 5}
    pieces = list(Capture.open(log.path).pieces())
    assert max(np.bincount([piece.request for piece in pieces])) > 1  # in two halves
    assert "who is Bearer ***?" in log.requests["error"][0].as_py()
    tables = [log.requests, log.reads, log.health, *Capture.open(log.path).index]
    for text in [repr(table.to_pylist()) for table in tables] + [b"".join(it.data for it in pieces).decode()]:
        assert KEY not in text
    assert b"*" * len(KEY) in b"".join(piece.data for piece in pieces)
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holding == []


def test_it_says_who_it_is_and_what_it_was_told_to(
    strangers: tuple[Stranger, Stranger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = strangers
    monkeypatch.setenv("SOME_KEY", KEY)
    target = Target(near.url, key="env:SOME_KEY", headers={"x-tenant": "a"})
    log = play(TRACE, target, tmp_path / "a.log", preflight=False)
    for heard in near.heard:
        assert heard["user-agent"] == f"loadshape/{__version__}"
        assert heard["authorization"] == f"Bearer {KEY}"
        assert heard["accept-encoding"] == "identity"
        assert heard["x-tenant"] == "a"
        assert heard["x-request-id"].startswith(f"ls-{log.run.run}-")


@pytest.mark.parametrize("network", ["kernel", "user"])
def test_proxies_of_the_environment_are_not_used(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in (*PROXIES, *(name.upper() for name in PROXIES)):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        log = play(TRACE, Target(url), tmp_path / "a.log", receive=network)
        assert log.manifest.outcomes == {"ok": 5}
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_the_breaker_stops_all_workers(tmp_path: Path) -> None:
    with running(Script(faults=("503",), fault_rate=1.0)) as url:
        log = play(open_loop(900, 30), Target(url), tmp_path / "a.log", processes=2, breaker=True)
    assert log.manifest.ended == "stopped: more than 50% of the requests failed within 10 s"
    assert 10e9 < log.manifest.ended_ns < 15e9
    assert {"http_error", "not_reached"} <= set(log.manifest.outcomes) <= {"http_error", "not_reached", "cancelled"}
    assert log.run.settings["breaker"] is True


def test_a_private_target_may_be_loaded_until_it_fails(url: str, tmp_path: Path) -> None:
    assert play(TRACE, Target(url), tmp_path / "a.log").run.settings["breaker"] is False

# TLS with an authority of our own: verified, refused without it, and not looked at when told so. The server
# is the plain endpoint behind a proxy that ends the encryption.

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.compute as pc
import pytest
from certificates import make_certificate, make_server_context

from loadshape.errors import TargetError
from loadshape.replayer import replay
from loadshape.target import Target
from traces import open_loop

from .conftest import SLACK_NS, play, read_columns

pytestmark = pytest.mark.slow
TRACE = open_loop(20, 5, messages=(("user", ("word " * 20_000,)),))


@dataclass(frozen=True)
class Secured:
    """A TLS address and the authority that vouches for it."""

    url: str
    ca_file: str


@pytest.fixture(scope="module")
def secured(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Serve the endpoint of this session under TLS."""
    certificate = make_certificate(tmp_path_factory.mktemp("tls"))
    context = make_server_context(certificate)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(open_proxy(context, url), loop).result(10)
    yield Secured(f"https://localhost:{server.sockets[0].getsockname()[1]}/v1", str(certificate))
    loop.call_soon_threadsafe(server.close)
    asyncio.run_coroutine_threadsafe(close_all(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def open_proxy(context: ssl.SSLContext, url: str) -> asyncio.Server:
    """Pass on what comes under TLS."""
    behind = urlsplit(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(behind.hostname, behind.port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until either end is gone."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except (OSError, asyncio.CancelledError):
        pass
    writer.close()


async def close_all() -> None:
    """End every task of the loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_an_own_authority_is_trusted(secured: Secured, tmp_path: Path) -> None:
    log = play(TRACE, Target(secured.url, ca_file=secured.ca_file), tmp_path / "a.log")
    assert log.manifest.outcomes == {"ok": 20}
    assert log.run.receive == ("kernel" if sys.platform == "linux" else "user")
    assert log.run.targets[0]["tls"] == {"verify": True, "ca_file": secured.ca_file}
    assert log.environment["server"]["tls"]["version"] == "TLSv1.3"
    assert log.environment["server"]["tls"]["cipher"].startswith("TLS_")


def test_the_stamps_under_tls_are_the_kernels(secured: Secured, tmp_path: Path) -> None:
    log = play(TRACE, Target(secured.url, ca_file=secured.ca_file), tmp_path / "a.log")
    if log.run.receive != "kernel":
        pytest.skip("no kernel stamps on this system")
    at_ns, seen_ns = read_columns(log.reads, "at_ns", "seen_ns")
    assert (at_ns <= seen_ns + SLACK_NS).all()
    assert (at_ns < seen_ns).mean() > 0.99  # our own stamp would be equal
    connected = log.requests.filter(pc.is_valid(log.requests["connected_ns"]))
    begun_ns, connected_ns = read_columns(connected, "begun_ns", "connected_ns")
    assert (connected_ns - begun_ns > 200_000).all()  # a handshake is in it


def test_user_stamps_on_request(secured: Secured, tmp_path: Path) -> None:
    log = play(TRACE, Target(secured.url, ca_file=secured.ca_file), tmp_path / "a.log", receive="user")
    assert log.manifest.outcomes == {"ok": 20}
    assert log.run.receive == "user"
    assert log.reads["at_ns"].equals(log.reads["seen_ns"])


def test_an_unknown_authority_is_refused_before_the_start(secured: Secured, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="certificate verify failed"):
        replay(TRACE, Target(secured.url), log=tmp_path / "a.log")


def test_an_unknown_authority_is_an_outcome_of_each_request(secured: Secured, tmp_path: Path) -> None:
    log = play(TRACE, Target(secured.url), tmp_path / "a.log", preflight=False)
    assert log.manifest.outcomes == {"protocol_error": 20}
    assert all(reason.startswith("TLS: ") for reason in log.requests["error"].to_pylist())


def test_insecure_is_recorded(secured: Secured, tmp_path: Path) -> None:
    log = play(TRACE, Target(secured.url, insecure=True), tmp_path / "a.log")
    assert log.manifest.outcomes == {"ok": 20}
    assert log.run.targets[0]["tls"]["verify"] is False


def test_plain_http_at_a_tls_port(secured: Secured, tmp_path: Path) -> None:
    target = Target(secured.url.replace("https:", "http:"))
    with pytest.raises(TargetError, match="nobody answers at"):
        replay(TRACE, target, log=tmp_path / "a.log")
    log = play(TRACE, target, tmp_path / "b.log", preflight=False)
    assert set(log.manifest.outcomes) <= {"reset", "protocol_error", "truncated"}

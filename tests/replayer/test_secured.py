# TLS on our own sockets, against a server whose every record is in the hands of the test.

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from certificates import make_certificate, make_server_context

from loadshape.log import Outcome
from loadshape.replayer.channel import PIECE_BYTES, Channel
from loadshape.replayer.connection import Connection, translate_error
from loadshape.replayer.portable import make_tls
from loadshape.replayer.roads import list_roads
from loadshape.replayer.secured import Secured
from loadshape.replayer.streams import Streams
from loadshape.target import Target

from .test_network import SLACK_NS, Side

uvloop = pytest.importorskip("uvloop")
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, which is its own authority."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(certificate: Path) -> Peer:
    return Peer(make_server_context(certificate))


@pytest.fixture
def channel(certificate: Path) -> Channel:
    return make_channel(certificate)


def make_channel(certificate: Path, host: str = "localhost") -> Channel:
    context = make_tls(Target("https://localhost/v1", ca_file=str(certificate)))
    assert context is not None
    return Channel(context, host)


class Peer:
    """The server's side of one TLS connection, over bytes or over a socket."""

    def __init__(self, context: ssl.SSLContext, handle: socket.socket | None = None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.handle = handle
        self.is_open = False

    def shake(self, sealed: bytes) -> bytes:
        self.incoming.write(sealed)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
            self.is_open = True
        return self.outgoing.read()

    def seal(self, data: bytes) -> bytes:
        assert self.tls.write(data) == len(data)
        return self.outgoing.read()

    def unseal(self, sealed: bytes) -> bytes:
        self.incoming.write(sealed)
        data = b""
        try:
            while piece := self.tls.read(1 << 16):
                data += piece
        except ssl.SSLWantReadError:
            pass
        return data

    def part(self) -> bytes:
        """Return a close_notify."""
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self.outgoing.read()


def greet(channel: Channel, server: Peer) -> None:
    """Shake hands without a network."""
    channel.shake()
    while not channel.is_open:
        channel.shake(server.shake(channel.seal()))
    if rest := server.shake(channel.seal()):
        assert channel.unseal(rest) == (b"", False)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_channel_says_what_the_server_said(certificate: Path, version: ssl.TLSVersion) -> None:
    context = make_server_context(certificate)
    context.maximum_version = version
    channel, server = make_channel(certificate), Peer(context)
    greet(channel, server)
    assert channel.unseal(server.seal(b"one")) == (b"one", False)
    assert channel.unseal(server.seal(b"two") + server.seal(b"three")) == (b"twothree", False)
    channel.load([b"head ", b"and ", b"body"])
    assert server.unseal(channel.seal()) == b"head and body"
    assert channel.seal() == b""


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 100, -1])
def test_half_a_record_says_nothing(channel: Channel, server: Peer, cut: int) -> None:
    greet(channel, server)
    sealed = server.seal(b"x" * 200)
    assert channel.unseal(sealed[:cut]) == (b"", False)
    assert channel.unseal(sealed[cut:]) == (b"x" * 200, False)


def test_a_record_and_a_half(channel: Channel, server: Peer) -> None:
    greet(channel, server)
    first, second = server.seal(b"first"), server.seal(b"second")
    assert channel.unseal(first + second[:9]) == (b"first", False)
    assert channel.unseal(second[9:]) == (b"second", False)


def test_more_than_a_record(channel: Channel, server: Peer) -> None:
    greet(channel, server)
    data = os.urandom(300_000)
    assert channel.unseal(server.seal(data)) == (data, False)


def test_a_large_request_is_sealed_in_pieces(channel: Channel, server: Peer) -> None:
    greet(channel, server)
    data = os.urandom(2 * PIECE_BYTES + 1)
    channel.load([data])
    pieces = [channel.seal() for _ in range(3)]
    assert channel.seal() == b""
    assert server.unseal(b"".join(pieces)) == data


def test_the_last_word_comes_with_the_last_bytes(channel: Channel, server: Peer) -> None:
    greet(channel, server)
    assert channel.unseal(server.seal(b"bye") + server.part()) == (b"bye", True)


def test_a_forged_record(channel: Channel, server: Peer) -> None:
    greet(channel, server)
    sealed = bytearray(server.seal(b"true"))
    sealed[-1] ^= 1
    with pytest.raises(ssl.SSLError):
        channel.unseal(bytes(sealed))


def test_the_certificate_of_another_host(certificate: Path, server: Peer) -> None:
    channel = make_channel(certificate, "other.example.com")
    channel.shake()
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        channel.shake(server.shake(channel.seal()))
    assert channel.seal()  # the alert


def test_no_session_is_taken_up_again(certificate: Path) -> None:
    context = make_server_context(certificate)
    tls = make_tls(Target("https://localhost/v1", ca_file=str(certificate)))
    assert tls is not None
    assert tls.options & ssl.OP_NO_TICKET
    for _ in range(3):
        peer = Peer(context)
        greet(Channel(tls, "localhost"), peer)
        assert not peer.tls.session_reused


class Host:
    """A Secured network, its owner, and the server that it talks to."""

    def __init__(self, certificate: Path, host: str = "localhost", proxy: str | None = None) -> None:
        self.side = Side("kernel")
        self.context = make_server_context(certificate)
        self.context.num_tickets = 0  # which would wait unread and unacknowledged, and move what a test looks at
        target = Target(f"https://{host}:{self.side.port}/v1", ca_file=str(certificate), proxy=proxy)
        self.side.network.shut()
        streams = Streams(self.side.loop, [list_roads(["127.0.0.1"], self.side.port)])
        self.side.network = self.network = Secured(streams, self.side.loop, [target])
        self.network.listen(self.side, self.side._ready)

    async def receive(self, peer: Peer) -> bytes:
        assert peer.handle is not None
        return await asyncio.wait_for(self.side.loop.sock_recv(peer.handle, 1 << 20), 10)

    async def say(self, peer: Peer, sealed: bytes) -> None:
        assert peer.handle is not None
        await self.side.loop.sock_sendall(peer.handle, sealed)

    async def connect(self) -> tuple[Connection, Peer]:
        """Return both ends of a new connection."""
        connection = self.network.open()
        peer = Peer(self.context, await self.side.accept())
        assert peer.handle is not None
        peer.handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return await self.greet(connection, peer)

    async def greet(self, connection: Connection, peer: Peer) -> tuple[Connection, Peer]:
        """Shake hands."""
        while not peer.is_open:
            await self.say(peer, peer.shake(await self.receive(peer)))
        await self.side.until(lambda: ("opened", connection) in self.side.said)
        return connection, peer


Scene = Callable[[Host], Awaitable[None]]
Play = Callable[[Scene], None]


@pytest.fixture
def play(certificate: Path) -> Iterator[Play]:
    """Play a scene."""
    if sys.platform != "linux":
        pytest.skip("the inner epoll is Linux only")

    async def act(scene: Scene) -> None:
        host = Host(certificate)
        try:
            await scene(host)
        finally:
            host.side.close()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield lambda scene: runner.run(act(scene))


def test_the_stamp_is_the_kernels(play: Play) -> None:
    async def scene(host: Host) -> None:
        for _ in range(10):
            connection, peer = await host.connect()
            host.side.arrivals.clear()
            before_ns = time.monotonic_ns()
            await host.say(peer, peer.seal(b"x"))
            busy_until_ns = time.monotonic_ns() + 20_000_000
            while time.monotonic_ns() < busy_until_ns:
                pass  # our own delay, which the kernel's stamp does not have
            await host.side.until(lambda peer=connection: host.side.heard(peer))
            (_, at_ns, seen_ns, what), *_ = host.side.arrivals
            assert what == b"x"
            assert before_ns - SLACK_NS <= at_ns < busy_until_ns
            if seen_ns >= busy_until_ns:
                return
        pytest.fail("it was always read before we were busy")

    play(scene)


def test_a_record_has_the_stamp_of_the_read_that_completed_it(play: Play) -> None:
    async def scene(host: Host) -> None:
        connection, peer = await host.connect()
        sealed = peer.seal(b"whole")
        drains = host.side.drains
        await host.say(peer, sealed[:10])
        await host.side.until(lambda: host.side.drains > drains)
        assert host.side.heard(connection) == b""
        between_ns = time.monotonic_ns()
        await host.say(peer, sealed[10:])
        await host.side.until(lambda: host.side.heard(connection))
        ((_, at_ns, seen_ns, what),) = host.side.arrivals
        assert what == b"whole"
        assert between_ns - SLACK_NS <= at_ns <= seen_ns + SLACK_NS

    play(scene)


def test_what_is_sent_arrives_and_is_answered(play: Play) -> None:
    async def scene(host: Host) -> None:
        connection, peer = await host.connect()
        assert host.network.send(connection, [b"head ", b"body"])
        assert peer.unseal(await host.receive(peer)) == b"head body"
        await host.say(peer, peer.seal(b"answer"))
        await host.side.until(lambda: host.side.heard(connection))
        assert host.side.heard(connection) == b"answer"

    play(scene)


def test_more_than_the_socket_takes_is_sealed_as_room_comes(play: Play) -> None:
    async def scene(host: Host) -> None:
        connection, peer = await host.connect()
        data = os.urandom(24 << 20)
        assert not host.network.send(connection, [data[:5], data[5:]])
        assert connection.outgoing
        assert sum(map(len, connection.outgoing)) < 2 * PIECE_BYTES  # the rest is not sealed yet
        got = bytearray()
        while len(got) < len(data):
            got += peer.unseal(await host.receive(peer))
        assert got == data
        await host.side.until(lambda: ("written", connection) in host.side.said)
        assert host.side.said.count(("written", connection)) == 1
        assert not connection.outgoing

    play(scene)


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_the_end_of_a_stream_is_told_once_after_its_last_bytes(play: Play, says_goodbye: bool) -> None:
    async def scene(host: Host) -> None:
        connection, peer = await host.connect()
        assert peer.handle is not None
        await host.say(peer, peer.seal(b"last words") + (peer.part() if says_goodbye else b""))
        peer.handle.shutdown(socket.SHUT_WR)
        await host.side.until(lambda: host.side.ends(connection))
        other, other_peer = await host.connect()  # time enough for a second end to come
        await host.say(other_peer, other_peer.seal(b"x"))
        await host.side.until(lambda: host.side.heard(other))
        assert [what for where, _, _, what in host.side.arrivals if where is connection] == [b"last words", b""]
        assert not connection.open

    play(scene)


def test_a_forged_record_ends_the_stream_with_an_error(play: Play) -> None:
    async def scene(host: Host) -> None:
        connection, peer = await host.connect()
        sealed = bytearray(peer.seal(b"true"))
        sealed[-1] ^= 1
        await host.say(peer, bytes(sealed))
        await host.side.until(lambda: host.side.ends(connection))
        assert isinstance(host.side.ends(connection)[0], ssl.SSLError)
        assert not connection.open

    play(scene)


def test_a_closed_connection_says_goodbye(play: Play) -> None:
    async def scene(host: Host) -> None:
        connection, peer = await host.connect()
        host.network.close(connection)
        host.network.close(connection)
        peer.incoming.write(await host.receive(peer))
        assert peer.tls.read(10) == b""  # a close_notify, not a bare end
        assert await host.receive(peer) == b""

    play(scene)


def test_a_server_that_speaks_no_tls(play: Play) -> None:
    async def scene(host: Host) -> None:
        connection = host.network.open()
        peer = await host.side.accept()
        await host.side.loop.sock_sendall(peer, b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await host.side.until(lambda: host.side.said)
        assert host.side.said == [("failed", connection)]
        outcome, reason = translate_error(host.side.errors[0])
        assert outcome is Outcome.protocol_error
        assert reason.startswith("TLS: ")

    play(scene)


def test_a_server_that_closes_during_the_handshake(play: Play) -> None:
    async def scene(host: Host) -> None:
        connection = host.network.open()
        peer = await host.side.accept()
        peer.close()
        await host.side.until(lambda: host.side.said)
        assert host.side.said == [("failed", connection)]
        assert translate_error(host.side.errors[0])[0] is Outcome.reset

    play(scene)


def test_nobody_listens(play: Play) -> None:
    async def scene(host: Host) -> None:
        host.side.listener.close()
        connection = host.network.open()
        await host.side.until(lambda: host.side.said)
        assert host.side.said == [("failed", connection)]
        assert translate_error(host.side.errors[0]) == (Outcome.refused, "Connection refused")

    play(scene)


def test_a_connection_that_is_still_shaking_hands_can_be_closed(play: Play) -> None:
    async def scene(host: Host) -> None:
        connection = host.network.open()
        await host.side.accept()
        host.network.close(connection)
        other, _ = await host.connect()
        assert host.side.said == [("opened", other)]

    play(scene)


@pytest.mark.skipif(sys.platform != "linux", reason="the inner epoll is Linux only")
@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 403 Forbidden\r\n\r\n", b""])
def test_behind_a_proxy_a_tunnel_comes_before_the_handshake(certificate: Path, answer: bytes) -> None:
    async def act() -> None:
        host = Host(certificate, proxy="http://127.0.0.1:3128")
        connection = host.network.open()
        peer = Peer(host.context, await host.side.accept())
        assert (await host.receive(peer)).startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % host.side.port)
        for half in (answer[:9], answer[9:]):
            await host.say(peer, half)
        if b"200" in answer:
            await host.greet(connection, peer)
            assert host.network.send(connection, [b"request"])
            assert peer.unseal(await host.receive(peer)) == b"request"
        else:
            assert peer.handle is not None
            peer.handle.shutdown(socket.SHUT_WR)
            await host.side.until(lambda: host.side.said)
            assert host.side.said == [("failed", connection)]
            outcome, reason = translate_error(host.side.errors[0])
            assert outcome is (Outcome.refused if answer else Outcome.reset)
            assert reason.startswith("the proxy 127.0.0.1:3128 ")
        host.side.close()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(act())

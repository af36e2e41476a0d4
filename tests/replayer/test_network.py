# Both ways of moving bytes against a raw socket in the same event loop: what one says, the other says.

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from loadshape.log import Outcome
from loadshape.replayer import streams
from loadshape.replayer.connection import Arrival, Connection, Network, translate_error
from loadshape.replayer.portable import Portable
from loadshape.replayer.roads import list_roads
from loadshape.replayer.streams import Streams
from loadshape.target import Target

uvloop = pytest.importorskip("uvloop")

SLACK_NS = 50_000  # the kernel's clock is translated within a bracket
ABRUPT = struct.pack("ii", 1, 0)
KINDS = ["user"] + ["kernel"] * (sys.platform == "linux")


class Side:
    """The owner of a network, and the raw server that it talks to."""

    def __init__(self, kind: str, backlog: int = 16) -> None:
        self.loop = asyncio.get_running_loop()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.said: list[tuple[str, Connection]] = []
        self.errors: list[OSError] = []
        self.peers: list[socket.socket] = []
        self.arrivals: list[Arrival] = []
        self.wakes = 0
        self.drains = 0
        self.on_wake: Callable[[], None] = lambda: None
        self._news = asyncio.Event()
        self.network = self._make(kind)
        self.network.listen(self, self._ready)

    def _make(self, kind: str) -> Network:
        roads = [list_roads(["127.0.0.1"], self.port)]
        if kind == "kernel":
            return Streams(self.loop, roads)
        return Portable(self.loop, roads, [Target(f"http://127.0.0.1:{self.port}/v1")])

    def _ready(self) -> None:
        self.drains += 1
        self.network.drain()
        self.arrivals += self.network.inbox
        self.network.inbox.clear()
        self._news.set()

    def opened(self, connection: Connection) -> None:
        self._say("opened", connection)

    def failed(self, connection: Connection, error: OSError) -> None:
        self.errors.append(error)
        self._say("failed", connection)

    def written(self, connection: Connection) -> None:
        self._say("written", connection)

    def wake(self) -> None:
        self.wakes += 1
        self.on_wake()

    def _say(self, what: str, connection: Connection) -> None:
        self.said.append((what, connection))
        self._news.set()

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait for news until *holds*."""
        while not holds():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 10)

    async def accept(self) -> socket.socket:
        """Return the server's end of the next connection."""
        peer, _ = await self.loop.sock_accept(self.listener)
        peer.setblocking(False)
        self.peers.append(peer)
        return peer

    async def connect(self) -> tuple[Connection, socket.socket]:
        """Return both ends of a new connection."""
        connection = self.network.open()
        peer = await self.accept()
        await self.until(lambda: ("opened", connection) in self.said)
        return connection, peer

    def heard(self, connection: Connection) -> bytes:
        """Return all bytes that came over *connection*."""
        return b"".join(what for what in self._what(connection) if isinstance(what, bytes))

    def ends(self, connection: Connection) -> list[bytes | OSError]:
        """Return how the stream of *connection* ended."""
        return [what for what in self._what(connection) if what == b"" or isinstance(what, OSError)]

    def _what(self, connection: Connection) -> list[bytes | OSError]:
        return [what for where, _, _, what in self.arrivals if where is connection]

    def close(self) -> None:
        self.network.shut()
        for end in (self.listener, *self.peers):
            end.close()


Scene = Callable[[Side], Awaitable[None]]
Play = Callable[[Scene], None]


@pytest.fixture(params=KINDS)
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """Play a scene with each network."""

    async def act(scene: Scene) -> None:
        side = Side(request.param)
        try:
            await scene(side)
        finally:
            side.close()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield lambda scene: runner.run(act(scene))


def test_bytes_arrive_in_order_with_stamps_that_never_go_back(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        before_ns = time.monotonic_ns()
        for at in range(50):
            await side.loop.sock_sendall(peer, b"%d," % at)
        await side.until(lambda: side.heard(connection).endswith(b"49,"))
        assert side.heard(connection) == b"".join(b"%d," % at for at in range(50))
        at_ns = [at for _, at, _, _ in side.arrivals]
        seen_ns = [seen for _, _, seen, _ in side.arrivals]
        assert at_ns == sorted(at_ns)
        assert seen_ns == sorted(seen_ns)
        assert all(at <= seen + SLACK_NS for at, seen in zip(at_ns, seen_ns, strict=True))
        assert at_ns[0] >= before_ns - SLACK_NS

    play(scene)


def test_what_is_sent_arrives_part_by_part(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        parts = [b"part %d;" % at for at in range(1500)]  # more than one sendmsg takes
        assert side.network.send(connection, list(parts))
        assert await read(side, peer, sum(map(len, parts))) == b"".join(parts)
        assert connection.outgoing == []

    play(scene)


def test_more_than_the_socket_takes_is_written_later(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        parts = [os.urandom(1 << 20) for _ in range(24)]
        assert not side.network.send(connection, list(parts))
        assert connection.outgoing
        assert ("written", connection) not in side.said
        assert await read(side, peer, 24 << 20) == b"".join(parts)
        await side.until(lambda: ("written", connection) in side.said)
        assert side.said.count(("written", connection)) == 1
        assert not connection.outgoing
        await side.loop.sock_sendall(peer, b"answer")
        await side.until(lambda: side.heard(connection))

    play(scene)


def test_an_answer_while_the_request_is_still_being_written(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        assert not side.network.send(connection, [b"x" * (24 << 20)])
        await side.loop.sock_sendall(peer, b"HTTP/1.1 413 Content Too Large\r\n\r\n")
        await side.until(lambda: side.heard(connection).endswith(b"\r\n\r\n"))
        side.network.close(connection)

    play(scene)


def test_a_large_answer_is_read_whole(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        data = os.urandom(3 << 20)
        sending = side.loop.create_task(side.loop.sock_sendall(peer, data))
        await side.until(lambda: len(side.heard(connection)) == len(data))
        assert side.heard(connection) == data
        await sending

    play(scene)


def test_the_end_of_a_stream_is_told_after_its_last_bytes(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        await side.loop.sock_sendall(peer, b"last words")
        peer.close()
        await side.until(lambda: side.ends(connection))
        assert [what for _, _, _, what in side.arrivals][:2] == [b"last words", b""]
        assert not connection.open  # nothing more may be sent on it
        assert not connection.closed  # that is its owner's to do

    play(scene)


def test_a_reset_is_an_error(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
        peer.close()
        await side.until(lambda: side.ends(connection))
        (error,) = side.ends(connection)
        assert isinstance(error, ConnectionResetError)
        assert translate_error(error)[0] is Outcome.reset

    play(scene)


def test_sending_into_a_connection_that_is_gone_is_no_exception(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
        peer.close()
        await side.until(lambda: side.ends(connection))
        side.network.send(connection, [b"x" * (24 << 20)])
        side.network.close(connection)

    play(scene)


def test_a_request_on_a_connection_whose_end_was_just_read_is_no_exception(play: Play) -> None:
    # The server closed it as idle, the inbox has not been looked at yet, and a large request is due.
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        peer.shutdown(socket.SHUT_WR)
        await side.until(lambda: side.ends(connection))
        assert not side.network.send(connection, [b"x" * (24 << 20)])
        assert await read(side, peer, 1000)
        side.network.close(connection)

    play(scene)


def test_nobody_listens(play: Play) -> None:
    async def scene(side: Side) -> None:
        side.listener.close()
        connection = side.network.open()
        await side.until(lambda: side.said)
        assert side.said == [("failed", connection)]
        assert translate_error(side.errors[0]) == (Outcome.refused, "Connection refused")
        assert not connection.open
        await side.until(lambda: side.drains)  # the owner has a look at what is due next

    play(scene)


def test_nothing_is_heard_after_a_close(play: Play) -> None:
    async def scene(side: Side) -> None:
        closed, peer = await side.connect()
        side.network.close(closed)
        side.network.close(closed)
        assert await read(side, peer, 1) == b""
        other, other_peer = await side.connect()
        await side.loop.sock_sendall(other_peer, b"x")
        await side.until(lambda: side.heard(other))
        assert [connection for connection, *_ in side.arrivals] == [other]

    play(scene)


def test_a_connection_that_is_still_opening_can_be_closed(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection = side.network.open()
        side.network.close(connection)
        other = side.network.open()
        await side.until(lambda: ("opened", other) in side.said)
        assert side.said == [("opened", other)]

    play(scene)


def test_a_descriptor_that_is_used_again_within_a_callback(play: Play) -> None:
    # Two streams are ready at once. The callback for one closes the other and opens a third, which gets the
    # descriptor of the closed one: what was ready there is not the third's.
    async def scene(side: Side) -> None:
        first, first_peer = await side.connect()
        second, second_peer = await side.connect()
        opened: list[Connection] = []

        def swap() -> None:
            if not opened:
                side.network.close(second)
                opened.append(side.network.open())

        side.on_wake, side.network.due_at_ns = swap, 0
        first_peer.send(b"one")
        second_peer.send(b"two")
        await side.until(lambda: side.heard(first))
        if not opened:
            swap()
        await side.until(lambda: ("opened", opened[0]) in side.said)
        accepted = await side.accept()
        await side.loop.sock_sendall(accepted, b"three")
        await side.until(lambda: side.heard(opened[0]))
        assert side.heard(opened[0]) == b"three"
        assert side.ends(opened[0]) == []

    play(scene)


def test_a_due_request_is_not_held_up_by_a_long_drain() -> None:
    if sys.platform != "linux":
        pytest.skip("the inner epoll is Linux only")

    async def scene() -> None:
        side = Side("kernel", backlog=128)
        pairs = [await side.connect() for _ in range(40)]
        for _, peer in pairs:
            peer.send(b"x")
        side.network.due_at_ns = 0  # overdue
        await side.until(lambda: len(side.arrivals) == 40)
        assert side.wakes >= 3  # every 16 reads
        side.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())


def test_the_stamp_is_the_kernels(play: Play) -> None:
    async def scene(side: Side) -> None:
        connection, peer = await side.connect()
        await side.loop.sock_sendall(peer, b"x")
        busy_until_ns = time.monotonic_ns() + 20_000_000
        while time.monotonic_ns() < busy_until_ns:
            pass  # our own delay, which the kernel's stamp does not have
        await side.until(lambda: side.heard(connection))
        (_, at_ns, seen_ns, _), *_ = side.arrivals
        assert seen_ns >= busy_until_ns
        assert (at_ns < busy_until_ns) is (side.network.receive == "kernel")
        # The best of a few: between two readings of the clocks anybody may be preempted.
        errors = [abs(side.network.tune() - (time.time_ns() - time.monotonic_ns())) for _ in range(20)]
        assert min(errors) < 10_000_000

    play(scene)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_small_request_waits_for_nothing(run: Callable[..., int]) -> None:
    async def connect() -> int:
        side = Side("user")
        connection, peer = await side.connect()
        delayed = connection.handle.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        peer.close()
        side.close()
        await asyncio.sleep(0)
        return int(delayed)

    assert run(connect()) != 0


async def read(side: Side, peer: socket.socket, size: int) -> bytes:
    """Return *size* bytes that arrived at the server, fewer at the end of the stream."""
    data = bytearray()
    while len(data) < size:
        more = await asyncio.wait_for(side.loop.sock_recv(peer, 1 << 20), 10)
        if not more:
            break
        data += more
    return bytes(data)


@pytest.mark.skipif(sys.platform != "linux", reason="only epoll has a drain of its own")
def test_a_drain_stops_when_enough_waits_to_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "READ_BYTES", 10)

    async def drain_twice() -> tuple[int, int]:
        side = Side("kernel")
        _, peer = await side.connect()
        side.loop.remove_reader(side.network._epoll.fileno())  # type: ignore[attr-defined]
        peer.send(bytes(100))
        monkeypatch.setattr(streams, "AHEAD_READS", 3)
        side.network.drain()
        some = len(side.network.inbox)
        monkeypatch.setattr(streams, "AHEAD_READS", 1000)
        side.network.drain()
        found = some, len(side.network.inbox)
        side.network.shut()
        peer.close()
        side.listener.close()
        return found

    assert uvloop.run(drain_twice()) == (3, 10)

# The network that runs everywhere: asyncio transports, for TLS and for systems without epoll.
#
# Law: the same Network, with our own stamps instead of the kernel's, and the log says so. The stamp is
# taken first thing in data_received, before anything looks at the bytes. It includes whatever the event
# loop did before it came to this socket, so the verdict judges such a run by its loop lag.

"""Portable: the network over asyncio transports, with user stamps, for TLS and other systems."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from loadshape.clock import measure_offset_ns
from loadshape.errors import TargetError
from loadshape.replayer.connection import Connection, Inbox, Owner
from loadshape.replayer.roads import Road
from loadshape.replayer.scheduler import NEVER
from loadshape.replayer.tunnel import Tunnel, prepare_tunnel
from loadshape.target import Target

READ_BYTES = 1 << 14  # of what a proxy answers, at once


class Portable:
    """The portable network: user stamps, any platform, TLS."""

    receive = "user"

    owner: Owner

    def __init__(
        self, loop: asyncio.AbstractEventLoop, roads: Sequence[Sequence[Road]], targets: Sequence[Target]
    ) -> None:
        self.inbox: Inbox = deque()
        self.due_at_ns = NEVER
        self._loop = loop
        self._roads = [cycle(of_target) for of_target in roads]
        self._secured = [(make_tls(target), target.host if target.tls else None) for target in targets]
        self._tunnels = [prepare_tunnel(target) for target in targets]
        self._opened = 0
        self._open: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}

    def listen(self, owner: Owner, ready: Callable[[], None]) -> None:
        """Say whom to call; nothing is watched here, since transports call by themselves."""
        self.owner = owner
        self._ready = ready

    def open(self, target: int = 0) -> Connection:
        """Begin to connect on the next of the target's roads, and to shake hands under TLS."""
        connection = Connection(self._opened, None, target)
        self._opened += 1
        self._open[connection.number] = connection
        self._opening[connection.number] = self._loop.create_task(self._connect(connection, next(self._roads[target])))
        return connection

    async def _connect(self, connection: Connection, road: Road) -> None:
        context, host = self._secured[connection.target]
        try:
            sock = await self._reach(road, self._tunnels[connection.target]())
            await self._loop.create_connection(
                lambda: _Stream(self, connection), sock=sock, ssl=context, server_hostname=host
            )
        except OSError as error:
            self._open.pop(connection.number, None)
            self.owner.failed(connection, error)
            self._ready()  # a request that ended may make another due
        finally:
            self._opening.pop(connection.number, None)

    async def _reach(self, road: Road, tunnel: Tunnel | None) -> socket.socket:
        """Return a socket that leads to the target, through the *tunnel* if there is one. Raises OSError."""
        sock = socket.socket(road.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: else asyncio leaves Nagle on
        try:
            sock.setblocking(False)
            road.bind(sock)
            try:
                await self._loop.sock_connect(sock, (road.address, road.port))
            except OSError as error:
                raise (road.explain(error.errno) if error.errno and error.errno > 0 else error) from None
            if tunnel is not None:
                await self._loop.sock_sendall(sock, tunnel.request)
                while not tunnel.feed(await self._loop.sock_recv(sock, READ_BYTES)):
                    pass
        except BaseException:
            sock.close()
            raise
        return sock

    def send(self, connection: Connection, parts: list[bytes]) -> bool:
        """Hand all parts to the transport; False when it could not pass them on at once."""
        if connection.handle.is_closing():
            return False  # lost a moment ago: the inbox says so, and ends the request
        connection.handle.writelines(parts)
        connection.outgoing = list(parts) if connection.handle.get_write_buffer_size() else []
        return not connection.outgoing

    def close(self, connection: Connection) -> None:
        """Close at once, also while connecting."""
        if self._open.pop(connection.number, None) is None:
            return
        connection.open = False
        if connection.handle is not None:
            connection.handle.abort()
        elif task := self._opening.get(connection.number):
            task.cancel()

    def drain(self) -> None:
        """Do nothing: transports fill the inbox by themselves."""

    def tune(self) -> int:
        """Return CLOCK_REALTIME - CLOCK_MONOTONIC; our own stamps do not need it."""
        return measure_offset_ns()[0]

    def shut(self) -> None:
        """Close every connection."""
        for connection in list(self._open.values()):
            self.close(connection)

    def hear(self, connection: Connection, what: bytes | OSError) -> None:
        """Stamp and append; the owner looks at the inbox once, after all transports that are ready."""
        seen_ns = time.monotonic_ns()
        if connection.number not in self._open:
            return
        if not isinstance(what, bytes) or not what:
            connection.open = False
        if not self.inbox:
            self._loop.call_soon(self._ready)
        self.inbox.append((connection, seen_ns, seen_ns, what))


class _Stream(asyncio.Protocol):
    """One transport's callbacks."""

    def __init__(self, network: Portable, connection: Connection) -> None:
        self._network = network
        self._connection = connection

    def connection_made(self, transport: Any) -> None:  # uvloop's are no subclasses of asyncio.WriteTransport
        self._connection.handle = transport
        self._connection.open = True
        transport.set_write_buffer_limits(high=0)
        self._network.owner.opened(self._connection)

    def data_received(self, data: bytes) -> None:
        self._network.hear(self._connection, bytes(data))

    def eof_received(self) -> bool:
        self._network.hear(self._connection, b"")
        return True  # the owner closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._network.hear(self._connection, exc if isinstance(exc, OSError) else b"")

    def resume_writing(self) -> None:
        if self._connection.outgoing:
            self._connection.outgoing = []
            self._network.owner.written(self._connection)


def make_tls(target: Target) -> ssl.SSLContext | None:
    """Return the TLS context that *target* asks for, None for http. Raises TargetError for a bad CA file."""
    if not target.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=target.ca_file)
    except OSError as problem:
        raise TargetError(f"target.ca_file: {target.ca_file} cannot be used: {problem}") from None
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION  # every connection is a full one, and like the others
    if target.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

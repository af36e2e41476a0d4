# The hot path: thousands of sockets in one epoll, read, stamped, appended.
#
# Law: per read, one system call, one clock, one append. No parsing, no asyncio transport, no allocation but
# the bytes themselves. Whatever is worth doing with them is done after the stamp.
#
# uvloop owns the process; our sockets live in an epoll of our own, whose descriptor uvloop watches. One
# callback then drains every socket that is ready: this costs what a bare epoll loop costs, while uvloop
# keeps timers, signals and pipes. aiohttp's client in the same place is 2.5 ms wrong at 1,000 streams that
# step together, at 27 % CPU.
#
# The kernel stamps what it receives (SO_TIMESTAMPING with RX_SOFTWARE | SOFTWARE: a control message of
# three timespecs on CLOCK_REALTIME, of which the first is set; Linux
# Documentation/networking/timestamping.rst). On TCP it is the stamp of the last byte returned, so a read
# that holds several events has an interval, not a time. The stamp is immune to our own delays; our clock
# minus the stamp is the delay itself, logged for every read. The kernel begins to stamp a moment after the first
# socket on the host asked for it, and stops after the last (net/core/dev.c, netstamp_work). So one socket asks for
# it as long as there are streams, and the first bytes of the only connection have a stamp, too.
#
# A drain goes on until nothing is ready: what is decoded in between would make the stamps of the rest of a step late.
# It takes milliseconds when thousands are ready, and a request may become due meanwhile: every LOOK_EVERY reads the
# next due time is looked at. Past AHEAD_READS, what comes waits in the sockets, where TCP may merge it.

"""Streams: non-blocking sockets in an inner epoll, with kernel receive stamps."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle

from loadshape.clock import measure_offset_ns
from loadshape.replayer.connection import Connection, Inbox, Owner
from loadshape.replayer.roads import Road
from loadshape.replayer.scheduler import NEVER

SO_TIMESTAMPING = 37
RX_SOFTWARE, SOFTWARE = 1 << 3, 1 << 4
CONTROL_BYTES = 128
READ_BYTES = 1 << 14  # asked of one read: more is left for the next
READY_AT_ONCE = 4096
LOOK_EVERY = 16
AHEAD_READS = 16_384  # a step of 10,000 streams is read before it is decoded; what comes beyond waits in the sockets
AHEAD_BYTES = 8 << 20
SENDMSG_PARTS = 512  # below the IOV_MAX of 1024

_TIMESPEC = struct.Struct("@qq")


class Streams:
    """The exact network: kernel stamps on every read. Linux, plain TCP."""

    receive = "kernel"

    def __init__(self, loop: asyncio.AbstractEventLoop, roads: Sequence[Sequence[Road]]) -> None:
        self.inbox: Inbox = deque()
        self.due_at_ns = NEVER
        self.offset_ns, _ = measure_offset_ns()
        self._loop = loop
        self._roads = [cycle(of_target) for of_target in roads]
        self._explain = [of_target[0].explain for of_target in roads]
        self._opened = 0
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._sentry = _open_socket(socket.AF_INET)

    def listen(self, owner: Owner, ready: Callable[[], None]) -> None:
        """Watch the epoll; from now on the owner is called."""
        self._owner = owner
        self._loop.add_reader(self._epoll.fileno(), ready)

    def open(self, target: int = 0) -> Connection:
        """Begin to connect on the next of the target's roads."""
        road = next(self._roads[target])
        sock = _open_socket(road.family)
        try:
            road.bind(sock)
            code = sock.connect_ex((road.address, road.port))
            if code not in (0, errno.EINPROGRESS):
                raise road.explain(code)
        except OSError:
            sock.close()
            raise
        connection = Connection(self._opened, sock, target)
        connection.receive = sock.recvmsg
        self._opened += 1
        self._connections[sock.fileno()] = connection
        self._epoll.register(sock.fileno(), select.EPOLLOUT)
        return connection

    def send(self, connection: Connection, parts: list[bytes]) -> bool:
        """Hand over all parts; False when the socket is full and the rest waits for room."""
        connection.outgoing = list(parts)
        done = self._push(connection)
        if connection.outgoing:
            with contextlib.suppress(FileNotFoundError):  # its end was read a moment ago: the inbox says so
                self._epoll.modify(connection.handle.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return done

    def close(self, connection: Connection) -> None:
        """Close at once; the kernel takes the socket out of the epoll."""
        if self._connections.pop(connection.handle.fileno(), None) is not None:
            connection.open = False
            connection.handle.close()

    def tune(self) -> int:
        """Measure the offset of the kernel's clock again. NTP slews it slowly; a step shows in the log."""
        self.offset_ns, _ = measure_offset_ns()
        return self.offset_ns

    def shut(self) -> None:
        """Close every socket and the epoll."""
        self._loop.remove_reader(self._epoll.fileno())
        for connection in list(self._connections.values()):
            self.close(connection)
        self._epoll.close()
        self._sentry.close()

    def drain(self) -> None:
        """Read the ready sockets until none is ready, or enough waits to be decoded."""
        poll, inbox = self._epoll.poll, self.inbox
        held_bytes = 0
        while len(inbox) < AHEAD_READS and held_bytes < AHEAD_BYTES and (ready := poll(0, READY_AT_ONCE)):
            held_bytes += self._read(ready)

    def _read(self, ready: list[tuple[int, int]]) -> int:
        """Read every socket of the list once and return how many bytes came."""
        connections, inbox, now_ns = self._connections, self.inbox, time.monotonic_ns
        offset_ns, unpack, writable = self.offset_ns, _TIMESPEC.unpack_from, select.EPOLLOUT
        taken_bytes = 0
        for index, (fd, mask) in enumerate(ready):
            connection = connections.get(fd)
            if connection is None:
                continue
            if mask & writable and not self._advance(connection):
                continue
            try:
                data, control, _, _ = connection.receive(READ_BYTES, CONTROL_BYTES)  # type: ignore[misc]
            except BlockingIOError:
                continue
            except OSError as error:
                self._end(connection, error)
                continue
            seen_ns = now_ns()
            if not data:
                self._end(connection, b"")
                continue
            at_ns = seen_ns
            if control:
                seconds, nanoseconds = unpack(control[0][2])
                at_ns = seconds * 1_000_000_000 + nanoseconds - offset_ns
            inbox.append((connection, at_ns, seen_ns, data))
            taken_bytes += len(data)
            if index % LOOK_EVERY == 0 and seen_ns >= self.due_at_ns:
                self._owner.wake()
        return taken_bytes

    def _end(self, connection: Connection, how: bytes | OSError) -> None:
        """Stop listening to a stream that is over, so that it does not stay ready for ever."""
        with contextlib.suppress(OSError):
            self._epoll.unregister(connection.handle.fileno())
        connection.open = False
        now_ns = time.monotonic_ns()
        self.inbox.append((connection, now_ns, now_ns, how))

    def _advance(self, connection: Connection) -> bool:
        """Act on a socket that can be written: connected, failed, or room for the rest. True: read it too."""
        code = connection.handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not connection.open:
            if code:
                self.close(connection)
                self._owner.failed(connection, self._explain[connection.target](code))
                return False
            connection.open = True
            self._epoll.modify(connection.handle.fileno(), select.EPOLLIN)
            self._owner.opened(connection)
        elif connection.outgoing and self._push(connection):
            self._epoll.modify(connection.handle.fileno(), select.EPOLLIN)
            self._owner.written(connection)
        return connection.open

    def _push(self, connection: Connection) -> bool:
        """Send as much of the outgoing parts as the socket takes; True when the last byte is handed over."""
        parts = connection.outgoing
        while parts:
            try:
                count = connection.handle.sendmsg(parts[:SENDMSG_PARTS])
            except BlockingIOError:
                return False
            except OSError:
                parts.clear()  # the read side will tell what the server said, or that it is gone
                return False
            while parts and count >= len(parts[0]):
                count -= len(parts.pop(0))
            if count:
                parts[0] = memoryview(parts[0])[count:]
        return True


def _open_socket(family: socket.AddressFamily) -> socket.socket:
    """Return a socket whose reads the kernel stamps."""
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE | SOFTWARE)
    return sock

# TLS on the hot path: the sockets and the stamps of Streams, with a Channel on every connection.
#
# Law: bytes move as in `streams`, whose reads are unsealed after they were stamped. An arrival has the stamp of
# the read that completed its record, so under TLS, too, our own delays are not in the times.
#
#     kernel --> streams.drain --> (connection, at_ns, seen_ns, sealed) --> channel.unseal --> inbox
#
# It is the network to its owner and the owner of its streams: a connection counts as opened when the handshake
# is done, so the connect time in the log has the handshake in it.
#
# Behind a proxy the handshake goes through a tunnel, which the channel asks for first.
#
# A handshake costs the client about a millisecond of CPU (ECDHE, and the certificate's signatures), five hundred
# times a read. Its steps are therefore not taken within a drain but one a turn of the loop, between other work.
# asyncio cannot do this: no transport of it hands out the kernel's control messages.

"""Secured: the exact network under TLS, with kernel stamps."""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence

from loadshape.replayer.channel import Channel
from loadshape.replayer.connection import Arrival, Connection, Inbox, Owner
from loadshape.replayer.portable import make_tls
from loadshape.replayer.scheduler import NEVER
from loadshape.replayer.streams import LOOK_EVERY, Streams
from loadshape.replayer.tunnel import Tunnel, prepare_tunnel
from loadshape.target import Target


class Secured:
    """The exact network for https: kernel stamps on every read. Linux."""

    receive = "kernel"

    def __init__(self, streams: Streams, loop: asyncio.AbstractEventLoop, targets: Sequence[Target]) -> None:
        self.inbox: Inbox = deque()
        self.due_at_ns = NEVER
        self._secured = [(make_tls(target), target.host) for target in targets]
        self._tunnels = [prepare_tunnel(target) for target in targets]
        self._loop = loop
        self._streams = streams
        self._open: set[Connection] = set()
        self._shaking: Inbox = deque()
        self._is_shaking = False

    def listen(self, owner: Owner, ready: Callable[[], None]) -> None:
        """Watch the sockets; from now on the owner is called."""
        self._owner, self._ready = owner, ready
        self._streams.listen(self, ready)

    def open(self, target: int = 0) -> Connection:
        """Begin to connect on the next of the target's roads; its name is what the certificate must show."""
        connection = self._streams.open(target)
        context, host = self._secured[target]
        connection.channel = None if context is None else Channel(context, host, self._tunnels[target]())
        self._open.add(connection)
        return connection

    def send(self, connection: Connection, parts: list[bytes]) -> bool:
        """Seal and hand over all parts; False when the socket is full and the rest waits for room."""
        channel = connection.channel
        if channel is None:
            return self._streams.send(connection, parts)
        channel.load(parts)
        channel.is_waiting = not _push(self._streams, connection, channel)
        return not channel.is_waiting

    def close(self, connection: Connection) -> None:
        """Close at once, with a close_notify where nothing stands before it."""
        channel, connection.channel = connection.channel, None
        if channel is not None and channel.is_open and connection.open and not connection.outgoing:
            self._streams.send(connection, [channel.part()])
        self._open.discard(connection)
        self._streams.close(connection)

    def drain(self) -> None:
        """Read every ready socket once, and unseal what was read."""
        self._streams.due_at_ns = self.due_at_ns
        self._streams.drain()
        sealed = self._streams.inbox
        turn = 0
        while sealed:
            arrival = sealed.popleft()
            channel = arrival[0].channel
            if channel is None:
                if arrival[0] in self._open:  # a plain one; others were closed in the meantime
                    self.inbox.append(arrival)
            elif channel.is_open and not channel.queued:
                self._unseal(channel, arrival)
            else:
                channel.queued += 1
                self._shaking.append(arrival)
            turn += 1
            if turn % LOOK_EVERY == 0 and time.monotonic_ns() >= self.due_at_ns:
                self._owner.wake()
        if self._shaking and not self._is_shaking:
            self._is_shaking = True
            self._loop.call_soon(self._shake)

    def tune(self) -> int:
        """Measure the offset of the kernel's clock again."""
        return self._streams.tune()

    def shut(self) -> None:
        """Close every connection and the epoll."""
        for connection in list(self._open):
            self.close(connection)
        self._streams.shut()

    def opened(self, connection: Connection) -> None:
        """Greet the server on a socket that has just been connected."""
        channel = connection.channel
        if channel is None:
            self._owner.opened(connection)
        else:
            channel.shake()
            _push(self._streams, connection, channel)

    def failed(self, connection: Connection, error: OSError) -> None:
        """Pass on that there is no connection, or no trust in it."""
        self.close(connection)
        self._owner.failed(connection, error)

    def written(self, connection: Connection) -> None:
        """Seal more of a large request, now that there is room."""
        channel = connection.channel
        if channel is None:
            self._owner.written(connection)
        elif _push(self._streams, connection, channel) and channel.is_waiting:
            channel.is_waiting = False
            self._owner.written(connection)

    def wake(self) -> None:
        """Pass on that the next due instant has come."""
        self._owner.wake()
        self._streams.due_at_ns = self.due_at_ns

    def _unseal(self, channel: Channel, arrival: Arrival) -> None:
        """Put into the inbox what one read says, with the stamps of that read."""
        connection, at_ns, seen_ns, what = arrival
        if channel.is_over:
            return
        is_over = True
        if isinstance(what, bytes) and what:
            try:
                what, is_over = channel.unseal(what)
            except ssl.SSLError as error:
                what = error
        if what and not isinstance(what, OSError):
            self.inbox.append((connection, at_ns, seen_ns, what))
            what = b""
        if is_over:
            channel.is_over, connection.open = True, False
            self.inbox.append((connection, at_ns, seen_ns, what))
        elif channel.owes_answer:
            _push(self._streams, connection, channel)

    def _shake(self) -> None:
        """Take one step of one handshake, and come back for the next."""
        connection, _, _, what = arrival = self._shaking.popleft()
        self._is_shaking = bool(self._shaking)
        if self._is_shaking:
            self._loop.call_soon(self._shake)
        channel = connection.channel
        if channel is None:
            return
        channel.queued -= 1
        if channel.is_open:
            self._unseal(channel, arrival)
        else:
            is_done, error = False, None
            try:
                is_done = channel.shake(_expect_bytes(what, channel.tunnel))
            except OSError as problem:
                error = problem
            _push(self._streams, connection, channel)  # an answer, or the alert that tells the server why
            if error is not None:
                self.failed(connection, error)
            elif is_done:
                self._owner.opened(connection)
        self._ready()


def _expect_bytes(what: bytes | OSError, tunnel: Tunnel | None) -> bytes:
    if isinstance(what, OSError):
        raise what
    if not what and tunnel is None:
        raise ConnectionResetError(errno.ECONNRESET, "the server closed during the TLS handshake")
    return what


def _push(streams: Streams, connection: Connection, channel: Channel) -> bool:
    """Hand over what is sealed until the socket is full; True when nothing is left."""
    while sealed := channel.seal():
        if connection.outgoing:  # what was sealed first goes first
            connection.outgoing.append(sealed)
            return False
        if not streams.send(connection, [sealed]):
            return False
    return True

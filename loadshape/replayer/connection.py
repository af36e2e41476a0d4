# What the worker and the two ways of moving bytes agree on.
#
# Law: a Network moves bytes and stamps them; it knows nothing of HTTP, plans or logs. It tells its owner
# four things (opened, failed, written, and, through the inbox, what was read) and never decides anything.
# `streams` is the exact one, `secured` the same under TLS, `portable` the one that runs everywhere.

"""Connection, Network and Owner: the seam between sockets and requests."""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from loadshape.log import Outcome

if TYPE_CHECKING:
    from loadshape.replayer.channel import Channel
    from loadshape.replayer.exchange import Exchange

# (connection, at_ns, seen_ns, what): bytes, b"" at the end of the stream, or the error that ended it.
Arrival = tuple["Connection", int, int, "bytes | OSError"]
Inbox = deque[Arrival]


class Connection:
    """One TCP connection; `handle` is a socket or an asyncio transport, `channel` its TLS where that is ours.

    `open` says that it may be written to: it is connected, and the end of its stream has not come.
    """

    __slots__ = (
        "channel",
        "closed",
        "exchange",
        "handle",
        "idle_since_ns",
        "number",
        "open",
        "outgoing",
        "receive",
        "requests",
        "retransmits",
        "target",
    )

    def __init__(self, number: int, handle: Any, target: int = 0) -> None:
        self.number = number
        self.handle = handle
        self.target = target
        self.receive: Callable[..., Any] | None = None
        self.exchange: Exchange | None = None
        self.channel: Channel | None = None
        self.outgoing: list[bytes | memoryview] = []
        self.idle_since_ns = 0
        self.requests = 0
        self.retransmits = 0
        self.open = False
        self.closed = False


class Owner(Protocol):
    """Whoever sends requests over a Network."""

    def opened(self, connection: Connection) -> None:
        """Say that *connection* may be written to."""
        ...

    def failed(self, connection: Connection, error: OSError) -> None:
        """Say that *connection* could not be opened."""
        ...

    def written(self, connection: Connection) -> None:
        """Say that the last byte of a large request was handed over."""
        ...

    def wake(self) -> None:
        """Say that the next due instant has come while the network was busy reading."""
        ...


class Network(Protocol):
    """A way of moving bytes. `receive` says whose stamps the inbox carries: "kernel" or "user"."""

    receive: str
    due_at_ns: int  # monotonic; the network calls Owner.wake when it passes during a drain
    inbox: Inbox

    def listen(self, owner: Owner, ready: Callable[[], None]) -> None:
        """Say whom to call, and what to call when something can be drained."""
        ...

    def open(self, target: int = 0) -> Connection:
        """Begin to connect to one of the targets. Raises OSError when this host has no socket left to give."""
        ...

    def send(self, connection: Connection, parts: list[bytes]) -> bool:
        """Hand over all parts; False when some wait for room, and `written` will be called."""
        ...

    def close(self, connection: Connection) -> None:
        """Close at once; nothing more is heard of this connection."""
        ...

    def drain(self) -> None:
        """Move what has arrived into the inbox."""
        ...

    def tune(self) -> int:
        """Measure CLOCK_REALTIME - CLOCK_MONOTONIC again, use it for the stamps, and return it."""
        ...

    def shut(self) -> None:
        """Close everything."""
        ...


NOT_OURS = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
OURS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EACCES}


def translate_error(error: OSError) -> tuple[Outcome, str]:
    """Return the outcome of a request whose connection ended with *error*, and one line about it."""
    reason = error.strerror or str(error) or type(error).__name__
    if type(error).__module__ == "ssl":  # before the numbers: OpenSSL's are others, and 1 is EPERM
        return Outcome.protocol_error, f"TLS: {reason}"
    if isinstance(error, socket.gaierror) or error.errno in NOT_OURS:
        return Outcome.refused, reason
    if error.errno in OURS:
        return Outcome.not_sent, f"this host has no connection left: {reason}"
    if error.errno == errno.EPROTO:
        return Outcome.protocol_error, reason
    if error.errno == errno.ETIMEDOUT:
        return Outcome.timeout_connect, reason
    return Outcome.reset, reason

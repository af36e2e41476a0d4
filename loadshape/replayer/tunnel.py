# A way through a proxy to a server under TLS, as bytes in and bytes out: no socket, no clock, no loop.
#
# Law: one CONNECT, once at the beginning of a connection. What the proxy says is for us until the end of its head,
# and for the server's side of the connection after it. A 2xx opens the tunnel whatever its headers say of a body.
# Every other answer is the end of the connection, as an OSError that `translate_error` knows, like everything that
# keeps a connection from being made: no request was sent, so no outcome of a request may be made of its status.
#
#     407, 403, 502 ...          ECONNREFUSED   refused
#     closed before an answer    ECONNRESET     reset
#     no HTTP, or more of it     EPROTO         protocol_error
#     no answer at all           the limit for connecting, as timeout_connect
#
# Under TLS the client speaks first, so whatever follows the head came too early: nobody can have meant it for us.
#
# Sources: RFC 9110 9.3.6 (CONNECT), 15.5.8 (407); RFC 7617 (Basic).

"""Tunnel: the conversation with a proxy that opens the way to a server under TLS."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from loadshape.errors import RemoteWireError
from loadshape.target import Target
from loadshape.version import __version__
from loadshape.wire.http1 import ResponseParser

_REMEDIES = {407: "; it wants a user and a password: proxy_key in the section [target] of the run file"}


class Tunnel:
    """One CONNECT under way; `proxy` is what the proxy is called in messages."""

    __slots__ = ("_parser", "proxy", "request")

    def __init__(self, request: bytes, proxy: str) -> None:
        self.request = request
        self.proxy = proxy
        self._parser = ResponseParser()

    def feed(self, data: bytes) -> bool:
        """Take what the proxy said, nothing at its end; True once the tunnel is open.

        Raises OSError when it will not be.
        """
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, f"the proxy {self.proxy} closed before it answered CONNECT")
        parser = self._parser
        try:
            pieces = parser.feed(data)
        except RemoteWireError as problem:
            raise OSError(errno.EPROTO, f"the proxy {self.proxy}, asked for a tunnel: {problem}") from None
        if not parser.head_seen:
            return False
        status = parser.status
        if not 200 <= status < 300:
            told = f"HTTP {status} {_name_status(status)}".rstrip() + _REMEDIES.get(status, "")
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"the proxy {self.proxy} refused the tunnel: {told}")
        if pieces or parser.surplus:
            raise OSError(errno.EPROTO, f"the proxy {self.proxy} said more than its answer to CONNECT")
        return True


def prepare_tunnel(target: Target) -> Callable[[], Tunnel | None]:
    """Return what makes the tunnel of each new connection to *target*, None where it needs none. Raises TargetError."""
    if target.via is None or not target.tls:
        return lambda: None
    fields = {"Host": target.authority, "User-Agent": f"loadshape/{__version__}"} | target.via.list_fields()
    lines = [f"CONNECT {target.authority} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return partial(Tunnel, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), target.via.name)


def _name_status(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""

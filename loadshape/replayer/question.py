# A question to a server beside the traffic: one small page, bounded in time and in size.
#
# Law: its own connection, never one of the traffic's, but on the same road: to an address that was checked, through the
# proxy if there is one. Redirects are not followed, as a key would follow them. What is asked here generates no token.
# An answer is what the server said, whatever its status; that nobody answers is an OSError or an HTTPException, as they
# come.
#
# vLLM serves what is about itself (/version, /metrics, /reset_prefix_cache) beside /v1 and not below it.

"""Ask a server for a page."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from loadshape.replayer.portable import make_tls
from loadshape.replayer.roads import find_roads
from loadshape.replayer.tunnel import prepare_tunnel
from loadshape.secret import Secret
from loadshape.target import Target
from loadshape.version import __version__

MAX_ANSWER_BYTES = 4 << 20
HEAD_BYTES = 1 << 14  # of what a proxy answers, at once

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """What a server answered: the status, the body, and what TLS was agreed upon."""

    status: int
    body: bytes
    tls: dict[str, str | None] | None = None

    @property
    def value(self) -> Any:
        """The body as JSON, None where it is none."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None


def ask_page(target: Target, path: str, *, method: str = "GET", timeout_s: float, address: str | None = None) -> Page:
    """Return what the server at *target*, or at that *address* of it, answers. Raises OSError and HTTPException."""
    key = target.read_key()
    headers = {"User-Agent": f"loadshape/{__version__}", "Accept": "application/json, text/plain", **target.headers}
    if key is not None:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    headers |= target.list_proxy_fields()
    connection = http.client.HTTPConnection(target.host, target.port)
    try:
        connection.sock = _connect(target, address or target.resolve()[0], timeout_s)
        tls = _describe_tls(connection.sock)
        connection.request(method, target.write_path(path), headers=headers)
        answer = connection.getresponse()
        return Page(answer.status, answer.read(MAX_ANSWER_BYTES), tls)
    finally:
        connection.close()


def find_root(target: Target) -> str:
    """Return the path below which a server tells about itself: that of the API without its /v1."""
    return target.path.removesuffix("/v1")


def conceal(page: Any, secrets: Sequence[Secret]) -> Any:
    """Return a page without our secrets: it goes into the log, and a server may repeat what it was told."""
    if not secrets:
        return page
    if isinstance(page, str):
        for secret in secrets:
            page = secret.conceal(page)
        return page
    if isinstance(page, list):
        return [conceal(item, secrets) for item in page]
    if isinstance(page, dict):
        return {conceal(name, secrets): conceal(item, secrets) for name, item in page.items()}
    return page


def _connect(target: Target, address: str, timeout_s: float) -> socket.socket:
    """Connect to an address that was checked, not to whatever the name means by now."""
    (road,) = find_roads(target, [address])
    try:
        sock = socket.create_connection((address, road.port), timeout_s)
    except OSError as error:
        raise (error if error.errno is None else road.explain(error.errno)) from None
    try:
        if (tunnel := prepare_tunnel(target)()) is not None:
            sock.sendall(tunnel.request)
            while not tunnel.feed(sock.recv(HEAD_BYTES)):
                pass
        context = make_tls(target)
        return sock if context is None else context.wrap_socket(sock, server_hostname=target.host)
    except BaseException:
        sock.close()
        raise


def _describe_tls(sock: socket.socket) -> dict[str, str | None] | None:
    """Return the version, the cipher and the protocol that the server chose; all connections of a run are alike."""
    if not isinstance(sock, ssl.SSLSocket):
        return None
    cipher = sock.cipher()
    return {"version": sock.version(), "cipher": cipher and cipher[0], "alpn": sock.selected_alpn_protocol()}

# The conversation with a proxy before TLS, byte by byte; no socket.

from __future__ import annotations

import pytest

from loadshape.replayer.connection import translate_error
from loadshape.replayer.tunnel import Tunnel, prepare_tunnel
from loadshape.target import Target

PROXY = "http://192.0.2.1:3128"
OPEN = b"HTTP/1.1 200 Connection established\r\nProxy-Agent: x\r\n\r\n"


def dig(**about: str) -> Tunnel:
    tunnel = prepare_tunnel(Target("https://model.example.com/v1", proxy=PROXY, **about))()  # type: ignore[arg-type]
    assert tunnel is not None
    return tunnel


def test_only_tls_behind_a_proxy_needs_a_tunnel() -> None:
    assert prepare_tunnel(Target("https://model.example.com/v1"))() is None
    assert prepare_tunnel(Target("http://model.example.com/v1", proxy=PROXY))() is None


def test_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    head, *fields = dig().request.decode().split("\r\n")
    assert head == "CONNECT model.example.com:443 HTTP/1.1"
    assert fields[0] == "Host: model.example.com:443"
    assert fields[1].startswith("User-Agent: loadshape/")
    assert fields[2:] == ["", ""]
    monkeypatch.setenv("PROXY_LOGIN", "Aladdin:open sesame")
    asked = dig(proxy_key="env:PROXY_LOGIN").request.decode()
    assert "\r\nProxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n" in asked  # RFC 7617, section 2


@pytest.mark.parametrize(
    "said",
    [
        OPEN,
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",  # of what is in the tunnel nothing can be said here
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + OPEN,
    ],
)
def test_a_tunnel_is_open_after_the_head(said: bytes) -> None:
    assert dig().feed(said)
    for cut in range(1, len(said)):
        tunnel = dig()
        assert not tunnel.feed(said[:cut])
        assert tunnel.feed(said[cut:])


@pytest.mark.parametrize(
    ("said", "outcome", "reason"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "refused", "refused the tunnel: HTTP 403 Forbidden"),
        (b"HTTP/1.1 407 Who\r\n\r\n", "refused", "HTTP 407 Proxy Authentication Required; it wants a user and a pass"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "refused", "refused the tunnel: HTTP 502 Bad Gateway"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\n\r\n", "refused", "refused the tunnel: HTTP 302"),
        (b"HTTP/1.1 599 \x1b[31m\r\n\r\n", "refused", "refused the tunnel: HTTP 599"),
        (b"\x16\x03\x01 no HTTP\r\n\r\n", "protocol_error", "asked for a tunnel: not HTTP/1.1"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "protocol_error", "asked for a tunnel: the server"),
        (OPEN + b"hello", "protocol_error", "said more than its answer to CONNECT"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nhello", "protocol_error", "said more than its answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, "protocol_error", "bytes of head"),
        (b"", "reset", "closed before it answered CONNECT"),
    ],
)
def test_a_tunnel_that_there_will_not_be(said: bytes, outcome: str, reason: str) -> None:
    with pytest.raises(OSError, match=r"the proxy 192\.0\.2\.1:3128") as caught:
        dig().feed(said)
    found, told = translate_error(caught.value)
    assert found.name == outcome
    assert reason in told
    assert told.isprintable()

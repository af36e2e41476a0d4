# Through a proxy: what it is told, what is answered, what is recorded, and what becomes of a request that it refuses.

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forwarding import Forwarder, forwarding

from loadshape.errors import TargetError
from loadshape.log import Log
from loadshape.replayer import replay
from loadshape.replayer.job import Settings
from loadshape.replayer.terms import tell_terms
from loadshape.report import render
from loadshape.summary import summarize
from loadshape.target import Target
from loadshape.validity import Limits, judge
from traces import open_loop

from .conftest import play
from .test_tls import Secured, secured  # noqa: F401

pytestmark = pytest.mark.slow
TRACE = open_loop(6, 2)
NETWORKS = ["user"] + ["kernel"] * (sys.platform == "linux")
LOGIN, PASSWORD = "tester:planted-pass-51c0", "planted-pass-51c0"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def proxy() -> Iterator[Forwarder]:
    with forwarding(Forwarder()) as forwarder:
        yield forwarder


@pytest.mark.parametrize("network", NETWORKS)
def test_plain_requests_name_the_whole_url(url: str, proxy: Forwarder, tmp_path: Path, network: str) -> None:
    log = play(TRACE, Target(url, proxy=proxy.url), tmp_path / "a.log", receive=network)
    assert (log.manifest.outcomes, log.run.receive) == ({"ok": 6}, network)
    root = url.removesuffix("/v1")
    assert proxy.lines.count(f"POST {url}/chat/completions HTTP/1.1") == 6
    assert f"GET {url}/models HTTP/1.1" in proxy.lines
    assert f"GET {root}/metrics HTTP/1.1" in proxy.lines
    hosts = {line for head in proxy.heads for line in head.split("\r\n") if line.lower().startswith("host:")}
    assert hosts == {f"Host: {root.removeprefix('http://')}"}
    assert "proxy-authorization" not in "".join(proxy.heads).lower()


@pytest.mark.parametrize("network", NETWORKS)
def test_under_tls_everything_goes_through_tunnels(
    secured: Secured,  # noqa: F811
    proxy: Forwarder,
    tmp_path: Path,
    network: str,
) -> None:
    target = Target(secured.url, ca_file=secured.ca_file, proxy=proxy.url)
    log = play(TRACE, target, tmp_path / "a.log", receive=network)
    assert (log.manifest.outcomes, log.run.receive) == ({"ok": 6}, network)
    assert set(proxy.lines) == {f"CONNECT {target.authority} HTTP/1.1"}
    assert log.environment["server"]["tls"]["version"] == "TLSv1.3"  # the server's: nobody reads along


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_a_password_gets_it_and_nobody_else(
    url: str,
    secured: Secured,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    network: str,
) -> None:
    monkeypatch.setenv("PROXY_LOGIN", LOGIN)
    about = {"url": url} if scheme == "http" else {"url": secured.url, "ca_file": secured.ca_file}
    with forwarding(Forwarder(login=LOGIN)) as proxy:
        target = Target(**about, proxy=proxy.url, proxy_key="env:PROXY_LOGIN")
        log = play(TRACE, target, tmp_path / "a.log", receive=network, capture=True)
        assert log.manifest.outcomes == {"ok": 6}
        with pytest.raises(TargetError, match=r"HTTP 407.*proxy_key"):
            replay(TRACE, Target(**about, proxy=proxy.url), log=tmp_path / "b.log")
        refused = play(TRACE, Target(**about, proxy=proxy.url), tmp_path / "c.log", receive=network, preflight=False)
    if scheme == "http":  # the request was answered, by the proxy
        assert refused.manifest.outcomes == {"http_error": 6}
        assert set(refused.requests["status"].to_pylist()) == {407}
    else:
        assert refused.manifest.outcomes == {"refused": 6}
        (reason,) = set(refused.requests["error"].to_pylist())
        assert f"the proxy 127.0.0.1:{proxy.port} refused the tunnel: HTTP 407 Proxy Authentication Required" in reason
        assert set(refused.requests["sent_ns"].to_pylist()) == {None}
    assert log.run.targets[0]["proxy"] == {"url": proxy.url, "key": "env"}
    held = [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert held == []


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("verdict", "outcome", "reason"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "refused", "refused the tunnel: HTTP 403 Forbidden"),
        (b"\x16\x03\x01 no HTTP\r\n\r\n", "protocol_error", "asked for a tunnel: not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n", "reset", "closed before it answered CONNECT"),
    ],
)
def test_a_tunnel_that_is_refused(tmp_path: Path, network: str, verdict: bytes, outcome: str, reason: str) -> None:
    with forwarding(Forwarder(verdict=verdict)) as proxy:
        target = Target("https://127.0.0.1:9/v1", insecure=True, proxy=proxy.url)
        log = play(TRACE, target, tmp_path / "a.log", receive=network, preflight=False)
        with pytest.raises(TargetError, match="the proxy"):
            replay(TRACE, target, log=tmp_path / "b.log")
    assert log.manifest.outcomes == {outcome: 6}
    for told in log.requests["error"].to_pylist():
        assert told.startswith(f"the proxy 127.0.0.1:{proxy.port}")
        assert reason in told


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "https://127.0.0.1:9/v1"])
def test_a_proxy_that_does_not_answer(tmp_path: Path, url: str, network: str) -> None:
    log = play(TRACE, Target(url, proxy=NOBODY), tmp_path / "a.log", receive=network, preflight=False)
    assert log.manifest.outcomes == {"refused": 6}
    assert set(log.requests["error"].to_pylist()) == {"the proxy 127.0.0.1:9: Connection refused"}
    with pytest.raises(TargetError, match=r"nobody answers at .*: the proxy 127\.0\.0\.1:9: Connection refused"):
        replay(TRACE, Target(url, proxy=NOBODY), log=tmp_path / "b.log")
    with forwarding(Forwarder(verdict=b"")) as proxy:
        limits = {"timeout_connect_s": 0.2, "timeout_first_s": 0.2}
        log = play(TRACE, Target(url, proxy=proxy.url), tmp_path / "c.log", receive=network, preflight=False, **limits)
    assert log.manifest.outcomes == {"timeout_connect" if url.startswith("https") else "timeout_first": 6}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_server_that_the_proxy_cannot_reach(proxy: Forwarder, tmp_path: Path, network: str) -> None:
    target = Target("http://127.0.0.1:9/v1", proxy=proxy.url)
    log = play(TRACE, target, tmp_path / "a.log", receive=network, preflight=False)
    assert log.manifest.outcomes == {"http_error": 6}
    with pytest.raises(TargetError, match=r"nobody answers at http://127\.0\.0\.1:9/v1: the proxy .* says HTTP 502"):
        replay(TRACE, target, log=tmp_path / "b.log")


@pytest.mark.parametrize("network", NETWORKS)
def test_connections_to_a_proxy_come_from_the_sources(url: str, proxy: Forwarder, tmp_path: Path, network: str) -> None:
    sources = ["127.0.0.2", "127.0.0.3"]
    target = Target(url, proxy=proxy.url)
    log = play(TRACE, target, tmp_path / "a.log", receive=network, preflight=False, scrape_s=0, source_ips=sources)
    assert log.manifest.outcomes == {"ok": 6}
    assert set(proxy.peers) == set(sources)


@pytest.fixture
def told(url: str, proxy: Forwarder, tmp_path: Path) -> Log:
    return play(TRACE, Target(url, proxy=proxy.url), tmp_path / "a.log")


def test_a_proxy_is_told_before_and_after_a_run(told: Log, url: str, proxy: Forwarder) -> None:
    before = tell_terms(TRACE, [Target(url, proxy=proxy.url)], Settings(processes=1))
    assert f"connections go through the proxy 127.0.0.1:{proxy.port}: what it takes is in every latency" in before
    (check,) = [it for it in judge(told).checks if it.name == "proxy"]
    assert (check.status, check.measured) == ("suspect", f"100 % of the targets ({proxy.url})")
    (check,) = [it for it in judge(told, Limits(proxied=1)).checks if it.name == "proxy"]
    assert check.status == "ok"
    assert f"through the proxy {proxy.url}" in " ".join(render(summarize(told), "text").split())
    assert told.run.targets[0]["addresses"] == ["127.0.0.1"]

# Where load may go, and what is never shown. Names are resolved by a table: no look-up leaves this machine.

from __future__ import annotations

import copy
import json
import pickle
import socket
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadshape.errors import TargetError
from loadshape.replayer.connection import translate_error
from loadshape.replayer.job import Job, Settings, read_order, write_line
from loadshape.replayer.portable import make_tls
from loadshape.secret import Secret
from loadshape.target import METADATA_ADDRESSES, Target, is_foreign

KEY = "planted-key-0001"


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make every name resolve to these addresses."""
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)


# URLs


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "tls"),
    [
        ("http://127.0.0.1:8000/v1", "127.0.0.1", 8000, "/v1", False),
        ("http://localhost/v1/", "localhost", 80, "/v1", False),
        ("https://model.example.com", "model.example.com", 443, "", True),
        ("HTTPS://model.example.com/v1", "model.example.com", 443, "/v1", True),
        ("https://model.example.com:8443/a/b", "model.example.com", 8443, "/a/b", True),
        ("http://[::1]:8000/v1", "::1", 8000, "/v1", False),
        ("http://[fe80::1%25eth0]/v1", "fe80::1%25eth0", 80, "/v1", False),
        ("http://HOST.example.com/V1", "host.example.com", 80, "/V1", False),
    ],
)
def test_parts_of_a_url(url: str, host: str, port: int, path: str, tls: bool) -> None:
    target = Target(url)
    assert (target.host, target.port, target.path, target.tls) == (host, port, path, tls)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "expected http://host:port/v1 or https://"),
        ("127.0.0.1:8000", "expected http://"),
        ("localhost:8000/v1", "expected http://"),
        ("ftp://localhost/v1", "expected http://"),
        ("unix:///run/vllm.sock", "expected http://"),
        ("http://", "expected a base URL"),
        ("http:///v1", "expected a base URL"),
        ("http://localhost/v1?a=b", "expected a base URL without query"),
        ("http://localhost/v1#a", "expected a base URL without query"),
        ("http://localhost:port/v1", "(?i)port"),
        ("http://localhost:99999/v1", "(?i)port"),
        ("http://localhost:-1/v1", "(?i)port"),
        ("http://local host/v1", "without blanks"),
        ("http://localhost/v 1", "without blanks"),
        ("http://localhost/v1\r\nX-Evil: 1", "plain ASCII"),
        ("http://localhost/\u00fc", "plain ASCII"),
        ("http://m\u00f6del.example.com/v1", "plain ASCII"),
        ("http://[::1/v1", "(?i)invalid|expected"),
    ],
)
def test_urls_that_cannot_be_a_target(url: str, message: str) -> None:
    with pytest.raises(TargetError, match=message) as caught:
        Target(url)
    assert str(caught.value).startswith("target: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{KEY}@localhost/v1",
        f"http://{KEY}@localhost/v1",
        f"ftp://user:{KEY}@localhost/v1",
        f"http://localhost/v1?api_key={KEY}",
        f"http://user:{KEY}@localhost:x/v1",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(TargetError) as caught:
        Target(url)
    assert KEY not in str(caught.value)


# Permission


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.1.1", "100.64.0.1"),
        *("::1", "fd00::1", "fe80::1", "fe80::1%lo", "::ffff:10.0.0.1"),
    ],
)
def test_private_addresses_may_be_loaded(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolve_to(monkeypatch, address)
    assert Target("http://model.example.com/v1").resolve() == [address]


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "1.1.1.1"])
def test_public_addresses_need_a_permission(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolve_to(monkeypatch, "127.0.0.1", address)
    permission = {"allow_public": "model.example.com", "max_rate_hz": 2.0}
    allowed = Target("http://model.example.com/v1", **permission)  # type: ignore[arg-type]
    assert allowed.resolve() == ["127.0.0.1", address]
    for missing in ({}, {"allow_public": "model.example.com"}, permission | {"allow_public": "other.example.com"}):
        with pytest.raises(TargetError, match=r"is a public address.*--allow-target model\.example\.com --max-rate"):
            Target("http://model.example.com/v1", **missing).resolve()  # type: ignore[arg-type]


@pytest.mark.parametrize("address", [*METADATA_ADDRESSES, "::ffff:169.254.169.254", "FD00:EC2:0:0::254"])
def test_metadata_addresses_are_never_loaded(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolve_to(monkeypatch, "127.0.0.1", address)
    with pytest.raises(TargetError, match="metadata address; it is never loaded"):
        Target("http://model.example.com/v1", allow_public="model.example.com", max_rate_hz=1).resolve()


def test_an_address_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "10.0.0.2", "10.0.0.1", "10.0.0.2")
    assert Target("http://model.example.com/v1").resolve() == ["10.0.0.2", "10.0.0.1"]


def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(TargetError, match=r"host 'model\.example\.com' has no address: Name or service not known"):
        Target("http://model.example.com/v1").resolve()


# Proxies

PROXY = "http://192.0.2.1:3128"


@pytest.mark.parametrize(
    ("proxy", "message"),
    [
        ("", "expected http://host:port"),
        ("127.0.0.1:3128", "expected http://host:port"),
        ("http://127.0.0.1", "expected http://host:port"),
        ("http://:3128", "expected http://host:port"),
        ("https://127.0.0.1:3128", "expected http://host:port"),
        ("socks5://127.0.0.1:1080", "expected http://host:port"),
        ("http://127.0.0.1:3128/path", "expected http://host:port"),
        ("http://127.0.0.1:3128?a=b", "expected http://host:port"),
        ("http://127.0.0.1:99999", "(?i)port"),
        ("http://127.0.0.1:x", "(?i)port"),
        ("http://a b:1", "expected http://host:port"),
        ("http://m\u00f6del.example.com:1", "expected http://host:port"),
        (f"http://user:{KEY}@127.0.0.1:3128", "a password in the URL would end up in logs; use proxy_key"),
        (f"http://{KEY}@127.0.0.1:3128", "a password in the URL would end up in logs; use proxy_key"),
        (f"ftp://user:{KEY}@127.0.0.1:99999", "a password in the URL"),
    ],
)
def test_urls_that_cannot_be_a_proxy(proxy: str, message: str) -> None:
    with pytest.raises(TargetError, match=message) as caught:
        Target("http://localhost/v1", proxy=proxy)
    assert str(caught.value).startswith("target.proxy")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"proxy_key": "env:LOGIN"}, "there is no proxy to show it to"),
        ({"proxy": PROXY, "proxy_key": f"user:{KEY}"}, "target.proxy_key: expected env:NAME or file:PATH"),
        ({"key": KEY}, "target.key: expected env:NAME or file:PATH"),
        ({"headers": {"Proxy-Authorization": KEY}}, "comes from proxy_key"),
    ],
)
def test_a_password_is_only_ever_a_reference(about: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message) as caught:
        Target("http://localhost/v1", **about)
    assert KEY not in str(caught.value)


def test_a_login_has_a_user_and_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("http://localhost/v1", proxy=PROXY, proxy_key="env:LOGIN")
    monkeypatch.setenv("LOGIN", KEY)
    with pytest.raises(TargetError, match="expected user:password in env:LOGIN") as caught:
        target.list_proxy_fields()
    assert KEY not in str(caught.value)
    monkeypatch.setenv("LOGIN", f"tester:{KEY}")
    (value,) = target.list_proxy_fields().values()
    assert target.describe()["proxy"] == {"url": PROXY, "key": "env"}
    assert Target("https://localhost/v1", proxy=PROXY, proxy_key="env:LOGIN").list_proxy_fields() == {}  # not for it
    told = f"no tester:{KEY}, no {KEY} and no {value.split()[1]} here"
    for secret in target.list_secrets(None):
        told = secret.conceal(told)
    assert told == "no ***, no *** and no *** here"
    assert KEY not in repr(target) + repr(target.via) + json.dumps(target.describe())


@pytest.mark.parametrize(
    ("url", "path", "wanted"),
    [
        ("http://model.example.com/v1", "/v1/models", "http://model.example.com:80/v1/models"),
        ("http://[::1]:8000/v1", "/metrics", "http://[::1]:8000/metrics"),
        ("https://model.example.com/v1", "/v1/models", "/v1/models"),  # inside of the tunnel
    ],
)
def test_what_a_request_line_names(url: str, path: str, wanted: str) -> None:
    assert Target(url, proxy=PROXY).write_path(path) == wanted
    assert Target(url).write_path(path) == path


NAMES = {"near.example.com": "10.0.0.1", "far.example.com": "8.8.8.8", "meta.example.com": "169.254.169.254"}


@pytest.mark.parametrize(
    ("host", "proxy", "allow", "message"),
    [
        ("near", "near", None, None),
        ("far", "near", "far.example.com", None),
        ("far", "far", "far.example.com", None),
        ("near", "far", "far.example.com", None),
        ("hidden", "near", "hidden.example.com", None),
        ("hidden", "far", "hidden.example.com,far.example.com", None),
        ("far", "near", None, r"target: far.example.com \(8.8.8.8\) is a public.*--allow-target far.example.com --"),
        (
            "near",
            "far",
            None,
            r"target.proxy: far.example.com \(8.8.8.8\) is a public.*--allow-target far.example.com ",
        ),
        (
            "hidden",
            "near",
            None,
            r"target: hidden.example.com has no address here, so it may be anybody's; .*--allow-ta",
        ),
        ("hidden", "far", "hidden.example.com", r"target.proxy: .*--allow-target hidden.example.com,far.example.com "),
        ("near", "hidden", None, "target.proxy: host 'hidden.example.com' has no address"),
        ("meta", "near", "meta.example.com", r"target: 169.254.169.254 is a cloud metadata address"),
        ("near", "meta", "meta.example.com", r"target.proxy: 169.254.169.254 is a cloud metadata address"),
    ],
)
def test_both_the_host_and_the_proxy_need_a_permission(
    monkeypatch: pytest.MonkeyPatch, host: str, proxy: str, allow: str | None, message: str | None
) -> None:
    def look_up(name: str, *_: Any, **__: Any) -> Any:
        if name not in NAMES:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (NAMES[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    target = Target(
        f"http://{host}.example.com/v1", proxy=f"http://{proxy}.example.com:3128", allow_public=allow, max_rate_hz=2.0
    )
    if message is None:
        addresses = target.resolve()
        assert addresses == [NAMES[f"{proxy}.example.com"]]
        assert is_foreign(target, addresses) is ({host, proxy} != {"near"})
    else:
        with pytest.raises(TargetError, match=message):
            target.resolve()


# Keys


def test_a_secret_does_not_show_itself() -> None:
    secret = Secret(KEY)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{[secret]} {(secret,)}", "%s" % secret):  # noqa: UP031
        assert KEY not in shown
        assert "***" in shown
    assert secret.reveal() == KEY
    assert not hasattr(secret, "__dict__")
    for encode in (json.dumps, msgspec.json.encode, msgspec.to_builtins):
        with pytest.raises(TypeError):
            encode(secret)  # type: ignore[operator]


def test_a_secret_does_not_travel() -> None:
    with pytest.raises(TypeError, match="Secret"):
        pickle.dumps(Secret(KEY))
    with pytest.raises(TypeError, match="Secret"):
        copy.deepcopy(Secret(KEY))


@pytest.mark.parametrize("content", [KEY, f"{KEY}\n", f"  {KEY}\r\n\n"])
def test_a_key_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("MODEL_KEY", content)
    path = tmp_path / "key: 1"
    path.write_text(content)
    for key in ("env:MODEL_KEY", f"file:{path}"):
        secret = Target("http://localhost/v1", key=key).read_key()
        assert secret is not None
        assert secret.reveal() == KEY


def test_without_a_key_there_is_none() -> None:
    assert Target("http://localhost/v1").read_key() is None


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (KEY, "expected env:NAME or file:PATH"),
        (f"bearer:{KEY}", "expected env:NAME or file:PATH"),
        ("env:", "expected env:NAME"),
        ("file:", "expected env:NAME"),
        ("env:LOADSHAPE_TEST_UNSET", "env LOADSHAPE_TEST_UNSET is empty or not set"),
        ("env:MODEL_KEY_BLANK", "is empty or not set"),
        ("env:MODEL_KEY_BROKEN", "characters that no HTTP header may carry"),
        ("env:MODEL_KEY_FOREIGN", "characters that no HTTP header may carry"),
        ("file:/nonexistent/key", "file /nonexistent/key cannot be read"),
        ("file:/", "cannot be read"),
    ],
)
def test_keys_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, key: str, message: str) -> None:
    monkeypatch.setenv("MODEL_KEY_BLANK", " \n")
    monkeypatch.setenv("MODEL_KEY_BROKEN", f"{KEY}\nX-Evil: 1")
    monkeypatch.setenv("MODEL_KEY_FOREIGN", f"{KEY}€")
    with pytest.raises(TargetError, match=message) as caught:
        Target("http://localhost/v1", key=key).read_key()
    assert KEY not in str(caught.value)


def test_a_binary_key_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"\xff\xfe" + KEY.encode())
    with pytest.raises(TargetError, match="cannot be read") as caught:
        Target("http://localhost/v1", key=f"file:{path}").read_key()
    assert KEY not in str(caught.value)


def test_what_a_log_may_say(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    target = Target(
        "https://localhost/v1", model="tiny", key=f"file:{tmp_path / 'key'}", headers={"X-Token": KEY}, insecure=True
    )
    described = target.describe()
    assert described == {
        "url": "https://localhost/v1",
        "model": "tiny",
        "weight": 1.0,
        "key": "file",
        "header_names": ["X-Token"],
        "tls": {"verify": False, "ca_file": None},
        "proxy": None,
    }
    assert KEY not in json.dumps(described) + repr(target) + str(target)
    assert Target("http://localhost/v1").describe()["tls"] is None


def test_a_job_carries_the_reference_and_not_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    target = Target("http://localhost/v1", key="env:MODEL_KEY", headers={"X-A": "b"})
    parts: dict[str, Any] = {"trace": "a.trace", "log": "a.log", "run": "5eed0001", "worker": 1, "addresses": [["::1"]]}
    job = Job(**parts, targets=[target], settings=Settings(body={"tools": ["x" * 100_000]}))
    line = write_line(job)
    assert line.count(b"\n") == 1
    assert KEY.encode() not in line
    assert read_order(line) == job


# TLS


def test_tls_is_verified_unless_said_otherwise() -> None:
    assert make_tls(Target("http://localhost/v1")) is None
    context = make_tls(Target("https://localhost/v1"))
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    insecure = make_tls(Target("https://localhost/v1", insecure=True))
    assert insecure is not None
    assert (insecure.verify_mode, insecure.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_bad_ca_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TargetError, match=r"target\.ca_file: .*ca\.pem cannot be used"):
        make_tls(Target("https://localhost/v1", ca_file=str(path)))


# What a failed connection means


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "refused", "Connection refused"),
        (OSError(113, "No route to host"), "refused", "No route to host"),
        (socket.gaierror(-2, "Name or service not known"), "refused", "Name or service not known"),
        (OSError(24, "Too many open files"), "not_sent", "this host has no connection left: Too many open files"),
        (OSError(99, "Cannot assign requested address"), "not_sent", "this host has no connection left"),
        (TimeoutError(110, "Connection timed out"), "timeout_connect", "Connection timed out"),
        (ConnectionResetError(104, "Connection reset by peer"), "reset", "Connection reset by peer"),
        (BrokenPipeError(32, "Broken pipe"), "reset", "Broken pipe"),
        (ConnectionAbortedError(), "reset", "ConnectionAbortedError"),
        (OSError(71, "the proxy said more"), "protocol_error", "the proxy said more"),
        (ssl.SSLError(1, "[SSL] record layer failure"), "protocol_error", r"TLS: \[SSL\] record layer failure"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "protocol_error", "TLS: certificate verify"),
        (ssl.SSLEOFError(8, "EOF occurred"), "protocol_error", "TLS: EOF occurred"),
    ],
)
def test_errors_become_outcomes(error: OSError, outcome: str, reason: str) -> None:
    found, text = translate_error(error)
    assert found.name == outcome
    assert text.startswith(reason.replace("\\", ""))


# What a server may repeat


@pytest.mark.parametrize(
    ("headers", "text", "told"),
    [
        ({"X-Token": "s3cret-token"}, "no s3cret-token here", "no *** here"),
        ({"Authorization": "Bearer s3cret-token"}, "token s3cret-token", "token ***"),
        ({"Authorization": "Bearer s3cret-token"}, "Bearer s3cret-token", "***"),
        ({"X-A": "long-value", "X-B": "long-value-and-more"}, "long-value-and-more", "***"),
        ({"X-Token": "s3cret-token"}, "cut at s3cret-t", "cut at ***"),
        ({"X-Tenant": "abc"}, "an abc of errors", "an abc of errors"),  # too short to be a secret
        ({"X-Empty": ""}, "nothing", "nothing"),
    ],
)
def test_values_of_headers_are_secrets(headers: dict[str, str], text: str, told: str) -> None:
    for secret in Target("http://192.0.2.1/v1", headers=headers).list_secrets(Secret(KEY)):
        text = secret.conceal(text)
    assert text == told


def test_a_key_is_a_secret_too() -> None:
    (secret,) = Target("http://192.0.2.1/v1").list_secrets(Secret(KEY))
    assert secret.conceal(f"wrong key {KEY}") == "wrong key ***"
    assert Target("http://192.0.2.1/v1").list_secrets(None) == []


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, float("nan"), float("inf")])
def test_a_permitted_rate_is_more_than_nothing(rate_hz: float) -> None:
    with pytest.raises(TargetError, match=r"target\.max_rate_hz \(--max-rate\): expected more than 0"):
        Target("http://192.0.2.1/v1", max_rate_hz=rate_hz)

# Where a trace is sent, and whether it may be.
#
# Law: everything about a target is decided before the first packet. Its name is resolved once, its
# addresses are pinned and written into the log, and an address outside of loopback and private ranges
# needs an explicit permission with a rate cap, since a load generator pointed at a stranger is an
# attack. Keys are references (secret.py).
#
# A proxy is used where one is named here, never because of the environment: its times would be taken for the
# server's. It changes where connections go, not whom they are for, so both the host and the proxy are looked at.
# A host that only the proxy can resolve may be anybody's, and is treated like a public one.
#
#     http    each request names the whole URL                     RFC 9112 3.2.2, absolute-form
#     https   each connection begins with a tunnel (tunnel.py)     RFC 9110 9.3.6, CONNECT

"""Target: an OpenAI-compatible endpoint, its addresses, the proxy before it, and permission to load it."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import re
import socket
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from loadshape.errors import TargetError
from loadshape.secret import SHOWN_AT_MOST, Secret, check_reference, read_secret

METADATA_ADDRESSES = ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")  # clouds hand out credentials there

OUR_HEADERS = {  # why no other value can be sent
    "content-length": "it frames the body",
    "transfer-encoding": "it frames the body",
    "x-request-id": "it joins the log with the server's",
    "host": "it names the host of the URL; another would make the log lie about the target",
    "proxy-authorization": "it is for a proxy alone, and comes from proxy_key",
}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 5.6.2


@dataclass(frozen=True, slots=True)
class Proxy:
    """The HTTP proxy before a target. `url` is http://host:port, `key` refers to its user:password."""

    url: str
    key: str | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_whole = parts.scheme == "http" and parts.hostname and parts.port
        except ValueError as problem:
            raise TargetError(f"target.proxy: {problem} in {_safe(self.url)!r}") from None
        if parts.username is not None:
            raise TargetError(
                'target.proxy: a password in the URL would end up in logs; use proxy_key = "env:NAME" or "file:PATH" '
                "in the section [target] of the run file"
            )
        is_plain = self.url.isascii() and self.url.isprintable() and " " not in self.url
        if not (is_whole and is_plain) or parts.path.strip("/") or parts.query or parts.fragment:
            raise TargetError(f"target.proxy (--proxy): expected http://host:port, found {_safe(self.url)!r}")
        check_reference(self.key, "target.proxy_key")

    @property
    def host(self) -> str:
        """The host name as given."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The TCP port."""
        return urlsplit(self.url).port or 0

    @property
    def name(self) -> str:
        """What it is called in messages and reports: host:port."""
        return _join(self.host, self.port)

    def read_login(self) -> Secret | None:
        """Return the user:password that `key` refers to. Raises TargetError naming the reference, never the value."""
        if self.key is None:
            return None
        login = read_secret(self.key, "target.proxy_key")
        if ":" not in login.reveal():
            raise TargetError(f"target.proxy_key: expected user:password in {self.key}, found no colon")
        return login

    def describe(self) -> dict[str, Any]:
        """Return what a log may say about the proxy: no user, no password."""
        return {"url": f"http://{self.name}", "key": _name_source(self.key)}

    def list_fields(self) -> dict[str, str]:
        """Return the header fields that are for the proxy: who we are, where it wants to know (RFC 7617)."""
        login = self.read_login()
        return {} if login is None else {"Proxy-Authorization": f"Basic {_encode(login)}"}

    def list_words(self) -> set[str]:
        """Return what no log may hold, in the forms in which a proxy may repeat it."""
        login = self.read_login()
        return set() if login is None else {login.reveal(), login.reveal().partition(":")[2], _encode(login)}


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint to send to.

    `url` is the base that ends before /chat/completions, e.g. http://127.0.0.1:8000/v1. `model` None means
    the only model that the endpoint serves. `key` is "env:NAME" or "file:PATH". `headers` are sent as they
    are and never logged. `ca_file` replaces the system's certificate authorities; `insecure` turns
    verification off and is recorded. `proxy` is http://host:port of an HTTP proxy to go through, and `proxy_key`
    refers to its user:password. `allow_public` names the host that may be loaded although it is public (or several,
    with commas: the proxy's, too), at `max_rate_hz` at most. `weight` is its part of the traffic where there are
    several targets.
    """

    url: str
    model: str | None = None
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    insecure: bool = False
    proxy: str | None = None
    proxy_key: str | None = None
    allow_public: str | None = None
    max_rate_hz: float | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError as problem:
            raise TargetError(f"target: {problem} in {_safe(self.url)!r}") from None
        if parts.scheme not in ("http", "https"):
            raise TargetError(f"target: expected http://host:port/v1 or https://..., found {_safe(self.url)!r}")
        if not parts.hostname or parts.query or parts.fragment:
            raise TargetError(f"target: expected a base URL without query, found {_safe(self.url)!r}")
        if parts.username or parts.password:
            raise TargetError(
                "target: a password in the URL would end up in logs; use --key env:NAME or --key file:PATH"
            )
        if not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise TargetError(f"target: expected a URL in plain ASCII without blanks, found {_safe(self.url)!r}")
        if self.max_rate_hz is not None and not 0 < self.max_rate_hz < math.inf:
            raise TargetError(
                f"target.max_rate_hz (--max-rate): expected more than 0 requests/s, found {self.max_rate_hz:g}"
            )
        if not 0 < self.weight < math.inf:
            raise TargetError(f"target.weight: expected more than 0, found {self.weight:g}")
        for name, value in self.headers.items():
            check_header("target.headers", name, value)
        check_reference(self.key, "target.key")
        if self.proxy_key is not None and self.proxy is None:
            raise TargetError(
                "target.proxy_key: there is no proxy to show it to; name one with --proxy http://host:port"
            )
        _ = self.via

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.url).scheme == "https"

    @property
    def host(self) -> str:
        """The host name as given."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The TCP port, by default that of the scheme."""
        return urlsplit(self.url).port or (443 if self.tls else 80)

    @property
    def path(self) -> str:
        """The path below which the API lies, without a trailing slash."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def authority(self) -> str:
        """Host and port, as a request names them."""
        return _join(self.host, self.port)

    @property
    def via(self) -> Proxy | None:
        """The proxy that connections go to, if there is one."""
        return None if self.proxy is None else Proxy(self.proxy, self.proxy_key)

    @property
    def is_relayed(self) -> bool:
        """Whether a proxy reads the requests and passes them on; through a tunnel it does not see them."""
        return self.proxy is not None and not self.tls

    def write_path(self, path: str) -> str:
        """Return what a request line has for *path*: the path, or the whole URL where a proxy reads it."""
        return f"http://{self.authority}{path}" if self.is_relayed else path

    def list_proxy_fields(self) -> dict[str, str]:
        """Return the header fields of each request that are for the proxy; none where it does not see them."""
        return self.via.list_fields() if self.via is not None and self.is_relayed else {}

    def resolve(self) -> list[str]:
        """Return the addresses that connections go to: of the host, or of the proxy.

        Raises TargetError when there are none, or when loading either of the two is not allowed.
        """
        via = self.via
        if via is None:
            addresses = _look_up("target", self.host, self.port)
            _permit(self, "target", self.host, addresses)
        else:
            addresses = _look_up("target.proxy", via.host, via.port)
            _permit(self, "target", self.host, _look_beyond(self))
            _permit(self, "target.proxy", via.host, addresses)
        return addresses

    def read_key(self) -> Secret | None:
        """Return the key that `key` refers to. Raises TargetError naming the reference, never the value."""
        return None if self.key is None else read_secret(self.key, "target.key")

    def list_secrets(self, key: Secret | None) -> list[Secret]:
        """Return what of ours might be repeated and no log may hold: *key*, values of headers, the proxy's password.

        A header's last word counts as well, the token of "Bearer TOKEN". What is as short as SHOWN_AT_MOST is left
        out: it is no secret, and would be found in every text.
        """
        words = {word for value in self.headers.values() for word in (value.strip(), *value.split()[-1:])}
        words |= set() if self.via is None else self.via.list_words()
        secrets = [Secret(word) for word in sorted(words, key=len, reverse=True) if len(word) > SHOWN_AT_MOST]
        return secrets if key is None else [key, *secrets]

    def describe(self) -> dict[str, Any]:
        """Return what a log may say about the target: no key, no header values."""
        return {
            "url": self.url,
            "model": self.model,
            "weight": self.weight,
            "key": _name_source(self.key),
            "header_names": sorted(self.headers),
            "tls": {"verify": not self.insecure, "ca_file": self.ca_file} if self.tls else None,
            "proxy": self.via and self.via.describe(),
        }


def is_foreign(target: Target, addresses: Sequence[str]) -> bool:
    """Return whether the host of *target*, or its proxy at *addresses*, is a stranger's, as far as can be told."""
    own = addresses if target.via is None else _look_beyond(target)
    return not own or any(is_public(address) for address in (*own, *addresses))


def is_public(address: str) -> bool:
    """Return whether *address* belongs to a stranger, as far as its number tells."""
    return _read_address(address).is_global


def _read_address(given: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(given.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address  # ::ffff:a.b.c.d is a.b.c.d


def _permit(target: Target, field: str, host: str, addresses: Sequence[str]) -> None:
    """Raise TargetError unless *host*, which is at *addresses*, may be loaded."""
    for address in addresses:
        if str(_read_address(address)) in METADATA_ADDRESSES:
            raise TargetError(f"{field}: {address} is a cloud metadata address; it is never loaded")
    public = next(filter(is_public, addresses), None)
    allowed = (target.allow_public or "").split(",")
    if (addresses and public is None) or (host in allowed and target.max_rate_hz):
        return
    whose = f"({public}) is a public address" if addresses else "has no address here, so it may be anybody's"
    names = ",".join(dict.fromkeys([*(it for it in allowed if it == target.host), host]))
    remedy = f"--allow-target {names} --max-rate REQUESTS_PER_SECOND"
    raise TargetError(f"{field}: {host} {whose}; if you may load it, say so: {remedy}")


def _look_beyond(target: Target) -> list[str]:
    """Return the addresses that the host has here; none where only the proxy knows its name."""
    with contextlib.suppress(TargetError):
        return _look_up("target", target.host, target.port)
    return []


def _look_up(field: str, host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise TargetError(f"{field}: host {host!r} has no address: {problem.strerror or problem}") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _encode(login: Secret) -> str:
    return b64encode(login.reveal().encode()).decode()


def _name_source(reference: str | None) -> str | None:
    return reference and reference.partition(":")[0]


def _safe(url: str) -> str:
    """Return a URL without what may be a password or a key."""
    return url.rpartition("@")[2].partition("?")[0][:80]


def check_header(field: str, name: str, value: str) -> None:
    """Raise TargetError, naming the *field* that it was given in, for a header that cannot be sent beside ours."""
    if not _TOKEN.fullmatch(name):
        raise TargetError(f"{field}: {name[:40]!r} is no header name")
    if reason := OUR_HEADERS.get(name.lower()):
        raise TargetError(f"{field}: {name!r} is set by the replayer ({reason}); leave it out")
    if any(char in value for char in "\r\n\0") or not all(ord(char) < 256 for char in value):
        raise TargetError(f"{field}: the value of {name!r} contains a line break or characters beyond Latin-1")

# Where a trace is sent, and whether it may be.
#
# Law: everything about a target is decided before the first packet. Its name is resolved once, its
# addresses are pinned and written into the log, and an address outside of loopback and private ranges
# needs an explicit permission with a rate cap, since a load generator pointed at a stranger is an
# attack. A key is only ever a reference ("env:NAME" or "file:PATH"); the value is read by the process
# that sends it, and no repr, log, manifest or traceback of ours contains it.

"""Target: an OpenAI-compatible endpoint, its addresses, its key by reference, and permission to load it."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from loadshape.errors import TargetError

METADATA_ADDRESSES = ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")  # clouds hand out credentials there

OUR_HEADERS = {  # why no other value can be sent
    "content-length": "it frames the body",
    "transfer-encoding": "it frames the body",
    "x-request-id": "it joins the log with the server's",
    "host": "it names the host of the URL; another would make the log lie about the target",
}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 5.6.2

SHOWN_AT_MOST = 3  # characters of a key that may be left at the end of a text that was cut


class Secret:
    """A string that does not show itself: repr and str give stars, and it cannot be pickled or copied."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value; called where bytes are put on the wire, nowhere else."""
        return self._value

    def conceal(self, text: str) -> str:
        """Return *text* without the value, and without a beginning of it that was cut off at the end.

        Servers echo keys in their error messages, and those go into logs.
        """
        text = text.replace(self._value, "***")
        for length in range(min(len(self._value), len(text)), SHOWN_AT_MOST, -1):
            if text.endswith(self._value[:length]):
                return text[:-length] + "***"
        return text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret does not travel: pass the reference to the key instead")


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint to send to.

    `url` is the base that ends before /chat/completions, e.g. http://127.0.0.1:8000/v1. `model` None means
    the only model that the endpoint serves. `key` is "env:NAME" or "file:PATH". `headers` are sent as they
    are and never logged. `ca_file` replaces the system's certificate authorities; `insecure` turns
    verification off and is recorded. `allow_public` names the host that may be loaded although it is public,
    at `max_rate_hz` at most. `weight` is its part of the traffic where there are several targets.
    """

    url: str
    model: str | None = None
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    insecure: bool = False
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

    def resolve(self) -> list[str]:
        """Return the addresses of the host. Raises TargetError when there are none or loading them is not allowed."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as problem:
            raise TargetError(f"target: host {self.host!r} has no address: {problem.strerror or problem}") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for address in addresses:
            self._permit(address)
        return addresses

    def _permit(self, given: str) -> None:
        address = _read_address(given)
        if str(address) in METADATA_ADDRESSES:
            raise TargetError(f"target: {address} is a cloud metadata address; it is never loaded")
        if not address.is_global or (self.allow_public == self.host and self.max_rate_hz):
            return
        raise TargetError(
            f"target: {self.host} ({address}) is a public address; if you may load it, say so: "
            f"--allow-target {self.host} --max-rate REQUESTS_PER_SECOND"
        )

    def read_key(self) -> Secret | None:
        """Return the key that `key` refers to. Raises TargetError naming the reference, never the value."""
        if self.key is None:
            return None
        source, _, name = self.key.partition(":")
        if source == "env" and name:
            value = os.environ.get(name, "")
        elif source == "file" and name:
            value = _read_key_file(Path(name))
        else:
            raise TargetError(
                "target.key: expected env:NAME or file:PATH; a key itself is never given on a command line"
            )
        value = value.strip()
        if not value:
            raise TargetError(f"target.key: {source} {name} is empty or not set")
        if not value.isascii() or not value.isprintable():
            raise TargetError(f"target.key: {source} {name} holds characters that no HTTP header may carry")
        return Secret(value)

    def list_secrets(self, key: Secret | None) -> list[Secret]:
        """Return what of ours a server might repeat and no log may hold: *key*, and the values of the headers.

        A header's last word counts as well, the token of "Bearer TOKEN". What is as short as SHOWN_AT_MOST is left
        out: it is no secret, and would be found in every text.
        """
        words = {word for value in self.headers.values() for word in (value.strip(), *value.split()[-1:])}
        secrets = [Secret(word) for word in sorted(words, key=len, reverse=True) if len(word) > SHOWN_AT_MOST]
        return secrets if key is None else [key, *secrets]

    def describe(self) -> dict[str, Any]:
        """Return what a log may say about the target: no key, no header values."""
        return {
            "url": self.url,
            "model": self.model,
            "weight": self.weight,
            "key": self.key.partition(":")[0] if self.key else None,
            "header_names": sorted(self.headers),
            "tls": {"verify": not self.insecure, "ca_file": self.ca_file} if self.tls else None,
        }


def is_public(address: str) -> bool:
    """Return whether *address* belongs to a stranger, as far as its number tells."""
    return _read_address(address).is_global


def _read_address(given: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(given.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address  # ::ffff:a.b.c.d is a.b.c.d


def _read_key_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise TargetError(f"target.key: file {path} cannot be read: {problem}") from None


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

# From where to where connections go.
#
# Law: decided before the first packet. A target has one road for each pair of a source address of ours and
# an address of its own; connections take them in turn. One source address has about 28,000 ports for one
# address of a target (net.ipv4.ip_local_port_range), so that more connections need more sources.
#
# Where a target lies behind a proxy, its roads lead to the proxy, and what goes wrong on them is told of the proxy.
#
# bind() alone would reserve a port for the source, whatever the target; IP_BIND_ADDRESS_NO_PORT (ip(7), Linux
# 4.2) leaves the choice to connect(), which knows both ends.

"""Road: a source address, and an address of a target."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from loadshape.errors import InputError
from loadshape.target import Target

IP_BIND_ADDRESS_NO_PORT = 24


class Road(NamedTuple):
    """Where a connection goes to, and where it comes from; without a source the kernel chooses.

    `proxy` is the name of the proxy at that address; empty where the target itself is there.
    """

    family: socket.AddressFamily
    address: str
    port: int
    source: str | None = None
    proxy: str = ""

    def bind(self, handle: socket.socket) -> None:
        """Give *handle* the source address, if there is one. Raises OSError."""
        if self.source is not None:
            with contextlib.suppress(OSError):  # not Linux: bind takes a port of its own
                handle.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            handle.bind((self.source, 0))

    def explain(self, code: int) -> OSError:
        """Return the error with the number *code* of a connection that could not be made."""
        reason = os.strerror(code)
        return OSError(code, f"the proxy {self.proxy}: {reason}" if self.proxy else reason)


def list_roads(addresses: Sequence[str], port: int, sources: Sequence[str] = ()) -> list[Road]:
    """Return the roads to one target, those of one source after another. Raises InputError when there is none."""
    if not sources:
        return [Road(find_family(address), address, port) for address in addresses]
    roads = [
        Road(find_family(address), address, port, source)
        for address in addresses
        for source in sources
        if find_family(address) is find_family(source)
    ]
    if not roads:
        raise InputError(
            f"source_ips: {', '.join(sources)} cannot reach {', '.join(addresses)}: "
            "expected sources of the target's own kind, IPv4 or IPv6"
        )
    return roads


def find_roads(target: Target, addresses: Sequence[str], sources: Sequence[str] = ()) -> list[Road]:
    """Return the roads to *target*, or to the proxy before it, at these addresses. Raises InputError."""
    if target.via is None:
        return list_roads(addresses, target.port, sources)
    return [road._replace(proxy=target.via.name) for road in list_roads(addresses, target.via.port, sources)]


def check_roads(targets: Sequence[Target], addresses: Sequence[Sequence[str]], sources: Sequence[str]) -> int:
    """Return how many different roads there are to all targets, some of which may share a proxy.

    Raises InputError unless every source is an address of this host, and every target can be reached.
    """
    check_sources(sources)
    pairs = zip(targets, addresses, strict=True)
    return len({road for target, of_target in pairs for road in find_roads(target, of_target, sources)})


def check_sources(sources: Sequence[str]) -> None:
    """Raise InputError unless every source is an address of this host."""
    for source in sources:
        with socket.socket(find_family(source)) as probe:
            try:
                probe.bind((source, 0))
            except OSError as problem:
                raise InputError(
                    f"source_ips: {source} is not an address of this host ({problem.strerror}); "
                    f"add it (ip address add {source} dev NAME) or leave it out"
                ) from None


def find_family(address: str) -> socket.AddressFamily:
    """Return the kind of an address. Raises ValueError when it is none."""
    version = ipaddress.ip_address(address.partition("%")[0]).version
    return socket.AF_INET6 if version == 6 else socket.AF_INET

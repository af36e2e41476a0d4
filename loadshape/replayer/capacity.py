# Connections that this host can have at once, and those that a trace will surely want.
#
# Law: arithmetic before the first packet; a run that cannot have its connections is refused, naming the
# limit and the remedy. The need is a lower bound (slots that can all be busy, sessions due at one instant),
# so that nothing that could work is refused: how long a server holds a request is not ours to guess.
#
#     descriptors   one a connection, in each worker process, up to the hard limit (it raises the soft one)
#     ports         one a connection for each (source address, target address, target port): the range of
#                   ip_local_port_range, 28,232 by default; the kernel may give one port to different targets
#
# A closed connection holds its port for another 60 s (TIME_WAIT) on the side that closed it; where requests do
# not keep their connections, that binds before these numbers do, and shows as failures to connect.

"""Capacity: descriptors and ports against the connections that a trace needs."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from loadshape.errors import InputError
from loadshape.replayer.job import Settings
from loadshape.replayer.terms import choose_loop
from loadshape.trace import Trace

OWN_DESCRIPTORS = 64  # files, pipes and libraries of a worker
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
DEFAULT_PORTS = (32768, 60999)


def read_descriptors() -> tuple[int, int]:
    """Return how many descriptors a process may have: the soft limit and the hard one, to which workers raise it."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def count_ports() -> int:
    """Return the ports that the kernel gives to outgoing connections, for each pair of source and target."""
    low, high = DEFAULT_PORTS
    with contextlib.suppress(OSError, ValueError):
        low, high = map(int, PORT_RANGE.read_text().split())
    return high - low + 1


def count_streams(*, processes: int = 1, roads: int = 1) -> int:
    """Return how many connections *processes* workers can have over so many pairs of source and target address."""
    each = count_free_descriptors()
    ports = count_ports() * roads
    return ports if each is None else min(each * processes, ports)


def count_free_descriptors() -> int | None:
    """Return how many connections a worker may have, None for any number."""
    hard = read_descriptors()[1]
    return None if hard == resource.RLIM_INFINITY else max(0, hard - OWN_DESCRIPTORS)


def count_needed(trace: Trace, settings: Settings) -> int:
    """Return how many connections a run needs at once at least."""
    loop = choose_loop(trace, settings)
    rows = trace.requests.slice(0, settings.requests)
    if loop.mode == "closed":
        most = min(loop.slots or 0, len(pc.unique(rows["session"])))
    else:
        due_ns = np.asarray(rows["due_ns"].drop_null())
        most = int(np.unique(due_ns, return_counts=True)[1].max()) if len(due_ns) else 0
    return most if loop.cap is None else min(most, loop.cap)


def check_capacity(trace: Trace, settings: Settings, *, roads: int) -> None:
    """Raise InputError when a run needs more connections at once than descriptors or ports allow.

    *roads* are the pairs of source and target address over all targets.
    """
    needed, processes = count_needed(trace, settings), settings.processes
    is_closed = choose_loop(trace, settings).mode == "closed"
    what = f"loop.slots: {needed:,} slots" if is_closed else f"requests.due_ns: {needed:,} requests due at one instant"
    each, free = -(-needed // processes), count_free_descriptors()
    if free is not None and each > free:
        raise InputError(
            f"{what} need {each:,} connections in each of {_count(processes, 'worker')}, and a process may have "
            f"{free:,} (ulimit -Hn is {free + OWN_DESCRIPTORS:,}): raise the limit to {each + OWN_DESCRIPTORS:,}, "
            f"set processes = {-(-needed // max(1, free))} in the run file, or ask for less"
        )
    ports = count_ports() * roads
    if needed > ports:
        raise InputError(
            f"{what} need a local port each, and there are {ports:,} over {_count(roads, 'pair')} of source and target "
            "address: give more addresses (source_ips in run.toml), widen net.ipv4.ip_local_port_range, or ask for less"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

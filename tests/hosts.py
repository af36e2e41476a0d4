# Several hosts on this one: a network namespace each, with an address of its own and a CLOCK_MONOTONIC that is ahead of
# this host's by a known number of seconds (time_namespaces(7)). CLOCK_REALTIME is the same in all of them. They are
# joined by a bridge on which this host is, too. Latency is emulated by a relay before the beacon, each way for itself:
# it sleeps most of the time and spins for the rest, since a sleep is late by 50 us.
#
# Needs root, and what is made goes away with the block. Run as a program, this file is what lives on a host.

"""Network namespaces with clocks of their own, and beacons in them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadshape.clock import measure_offset_ns
from loadshape.cluster.beacon import Beacon

SPUN_S = 0.0002
_NETS = itertools.count()


@dataclass(frozen=True)
class Host:
    """One namespace."""

    name: str
    address: str
    ahead_s: int  # its CLOCK_MONOTONIC - this host's

    def enter(self, *command: str) -> list[str]:
        """Return *command* as run on that host; it ends with the process that is started."""
        clock = ("unshare", "--time", "--monotonic", str(self.ahead_s), "--fork", "--kill-child")
        return ["ip", "netns", "exec", self.name, *clock, *command]


@dataclass(frozen=True)
class Place:
    """A beacon on a host, as it can be reached."""

    address: str
    port: int
    offset_ns: int  # this host's clock - the beacon's, by way of CLOCK_REALTIME
    width_ns: int  # of the two brackets together


def find_obstacle() -> str | None:
    """Return why there can be no such hosts here; None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} command"
    try:
        with building(ahead_s=(1,)) as (host,):
            _run(*host.enter("true"))
    except subprocess.CalledProcessError as problem:
        return f"{' '.join(problem.cmd)}: {problem.stderr.strip()}"
    return None


@contextlib.contextmanager
def building(ahead_s: Sequence[int]) -> Iterator[list[Host]]:
    """Give one host for each number, all on one bridge with this host."""
    number = next(_NETS)
    mark = f"{os.getpid()}n{number}"
    bridge, net = f"lb{mark}", f"198.18.{(os.getpid() + 101 * number) % 250}"  # for benchmarks: RFC 2544
    hosts = [Host(f"lh{mark}-{at}", f"{net}.{at + 1}", ahead) for at, ahead in enumerate(ahead_s)]
    with contextlib.ExitStack() as made:
        _run("ip", "link", "add", bridge, "type", "bridge")
        made.callback(_run, "ip", "link", "del", bridge)
        _run("ip", "addr", "add", f"{net}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for at, host in enumerate(hosts):
            _run("ip", "netns", "add", host.name)
            made.callback(_run, "ip", "netns", "del", host.name)
            line = f"lv{mark}-{at}"
            _run("ip", "link", "add", line, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            made.callback(_run, "ip", "link", "del", line)
            _run("ip", "link", "set", line, "master", bridge, "up")
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", host.name, "link", "set", device, "up")
        yield hosts


@contextlib.contextmanager
def telling(host: Host, token: bytes, *, out_s: float = 0, back_s: float = 0) -> Iterator[Place]:
    """Give a beacon on *host*, behind a way that takes *out_s* and *back_s* longer than it does."""
    command = host.enter(sys.executable, __file__, host.address, token.hex(), str(out_s), str(back_s))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        here_ns, width_ns = measure_offset_ns()
        yield Place(host.address, told["port"], told["realtime_ns"] - here_ns, told["width_ns"] + width_ns)
        process.stdin.close()


@contextlib.contextmanager
def relaying(address: str, port: int, out_s: float, back_s: float) -> Iterator[int]:
    """Give a port from which datagrams go on to *port* after *out_s*; an answer is passed back after *back_s*."""
    with _open(address) as front, _open(address) as rear:
        rear.connect((address, port))

        def relay() -> None:
            while (question := front.recvfrom(1000))[0]:
                _delay(out_s)
                rear.send(question[0])
                answer = rear.recv(1000)
                _delay(back_s)
                front.sendto(answer, question[1])

        thread = threading.Thread(target=relay)
        thread.start()
        yield front.getsockname()[1]
        front.sendto(b"", front.getsockname())
        thread.join()


def _open(address: str) -> socket.socket:
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    line.bind((address, 0))
    return line


def _delay(by_s: float) -> None:
    until_s = time.perf_counter() + by_s
    time.sleep(max(0.0, by_s - SPUN_S))
    while time.perf_counter() < until_s:
        pass


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def main(address: str, token: str, out_s: str, back_s: str) -> None:
    """Tell the clock of this host until the input ends."""
    with contextlib.ExitStack() as made:
        port = made.enter_context(Beacon(address, bytes.fromhex(token))).port
        if float(out_s) or float(back_s):
            port = made.enter_context(relaying(address, port, float(out_s), float(back_s)))
        realtime_ns, width_ns = measure_offset_ns()
        print(json.dumps({"port": port, "realtime_ns": realtime_ns, "width_ns": width_ns}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

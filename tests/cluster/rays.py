# A Ray cluster of several hosts on this one (hosts.py): a head that never loads, and nodes with clocks hours apart.
# Each is a process group of its own in a namespace of its own, so that a whole machine can be lost.

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hosts import Host, building

RAY = str(Path(sys.executable).with_name("ray"))
LOADSHAPE = str(Path(sys.executable).with_name("loadshape"))
PORT = 6379
AHEAD_S = (3_600, 86_400, 7)
START_S = 120.0
MOUNT = "mount -t tmpfs -o mode=755"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "200",
}


@dataclass(frozen=True)
class Ring:
    """The cluster: the head, from which runs are started, and the nodes that load, as long as they are there."""

    head: Host
    nodes: list[Host]
    gateway: str  # this host's address, as all of them see it
    disk: str  # a folder that is another on each node

    @property
    def address(self) -> str:
        """Where the head is reached."""
        return f"{self.head.address}:{PORT}"

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a program on the head, whose clock is this host's."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.head.name, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | QUIET,
        )

    def replay(self, trace: Path, log: Path, *flags: str, nodes: int = 2, url: str = "") -> subprocess.Popen[str]:
        """Start a replay by the command line."""
        where = ("--target", url, "--output", str(log), "--ray", self.address, "--nodes", str(nodes))
        return self.start(LOADSHAPE, "replay", str(trace), *where, *flags)

    def see_disk(self, node: Host) -> Path:
        """Return the folder `disk` of a node as it is seen from here."""
        return Path(f"/proc/{self.list_processes(node, 'raylet')[0]}/root{self.disk}")

    def list_processes(self, host: Host, name: str = "") -> list[int]:
        """Return the processes of *host* whose command line has *name* in it."""
        found = []
        for number in list_processes(host):
            with contextlib.suppress(OSError):
                if name.encode() in Path(f"/proc/{number}/cmdline").read_bytes():
                    found.append(number)
        return found


def list_processes(host: Host) -> list[int]:
    """Return all processes in the namespace of *host*."""
    told = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True, text=True, check=False)
    return [int(number) for number in told.stdout.split()]


def stop(host: Host) -> None:
    """Lose a machine: end everything on it at once."""
    deadline = time.monotonic() + 10
    while (left := list_processes(host)) and time.monotonic() < deadline:
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.05)


@contextlib.contextmanager
def forming(ahead_s: Sequence[int], disk: Sequence[str] = ()) -> Iterator[Ring]:
    """Give a cluster with one node of one CPU for each number of seconds by which its clock is ahead.

    Each has a disk of its own, of the size of *disk*, where `Ring.disk` is.
    """
    with building([0, *ahead_s]) as (head, *nodes), tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        ring = Ring(head, nodes, head.address.rpartition(".")[0] + ".254", f"{folder}/own")
        limits = ("--object-store-memory=80000000", "--disable-usage-stats")
        try:
            lead = ("--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={folder}")
            _finish([_start_ray(head, *lead, *limits)])
            join = (f"--address={ring.address}", "--num-cpus=1", *limits)
            sizes = itertools.chain(disk, itertools.repeat("500m"))
            _finish([_start_ray(node, *join, disk=(folder, size)) for node, size in zip(nodes, sizes, strict=False)])
            yield ring
        finally:
            for host in (*nodes, head):
                stop(host)


def _start_ray(host: Host, *flags: str, disk: tuple[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [RAY, "start", f"--node-ip-address={host.address}", *flags]
    if disk is None:
        command = ["ip", "netns", "exec", host.name, *command]
    else:
        mounted = f"{MOUNT} none $0 && mkdir $0/own && {MOUNT},size=$1 none $0/own && shift && exec $@"
        command = host.enter("unshare", "--mount", "sh", "-c", mounted, *disk, *command)
    # What it starts lives on with its pipes, so there are none.
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | QUIET)


def _finish(started: list[subprocess.Popen[bytes]]) -> None:
    codes = [process.wait(START_S) for process in started]
    assert not any(codes), f"ray start: exit codes {codes}"

# Is this host fit to measure with? What to know, and what to change, before a run is lost to it.
#
# Law: each examination looks at one thing, tries it where it can be tried, and says what it found beside a
# remedy that can be typed. It changes nothing, sends nothing but to itself, and takes about a second. Nothing
# here judges a run: the verdict does that, from the run's own log.
#
#     ok        as it should be
#     mind      works, with a limit that a large or an exact run will meet
#     bad       times or traffic will be wrong in a way that the remedy cures
#
# Facts are read from /proc and /sys below a root that tests replace; a file that is not there is a fact that
# this system does not have, and is left out. Kernel stamps and timers are tried on a real socket and a real
# timerfd, since container runtimes and sandboxes have them in name only.

"""Examine the host: limits, clocks, kernel stamps, timers, disk, and who else is there."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from loadshape.calibration import Calibration
from loadshape.clock import measure_offset_ns
from loadshape.pacer import TimerfdPacer, tighten_timers
from loadshape.replayer.capacity import count_free_descriptors, count_ports, count_streams, read_descriptors
from loadshape.replayer.streams import CONTROL_BYTES, RX_SOFTWARE, SO_TIMESTAMPING, SOFTWARE
from loadshape.responder import Poll
from loadshape.units import NS_PER_S, format_bytes, format_duration

Status = Literal["ok", "mind", "bad"]

PORTS = 28_000
FREE_BYTES = 1e9
SLOW_BYTES_PER_S = 20e6  # 100,000 reads a second are about 1 MB of log
PROBE_BYTES = 16 << 20
BACKLOG = 4096
CLOCK_S = 500e-9
TRIES = 20
SLACK_NS = 100_000  # between two clocks
FAST_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen")
TIMESPEC = struct.Struct("@qq")
PRESSURE = 10.0  # % of time in which somebody waited for a core


class Finding(msgspec.Struct, frozen=True):
    """What one examination found; `remedy` is empty where there is nothing to do."""

    name: str
    status: Status
    measured: str
    remedy: str = ""


Examination = Callable[[Path, Path], Finding | None]


def examine(folder: Path | None = None, *, root: Path = Path("/")) -> list[Finding]:
    """Return what is to be known of this host before measuring; logs will be written below *folder*."""
    folder = Path.cwd() if folder is None else folder
    found = (examination(root, folder) for examination in EXAMINATIONS)
    return [finding for finding in found if finding is not None]


def find_descriptors(_root: Path, _folder: Path) -> Finding:
    """How many connections a worker may have: it raises the soft limit to the hard one by itself."""
    soft, hard = read_descriptors()
    free = count_free_descriptors()
    told = f"soft {soft:,}, hard {hard:,}" if free is not None else f"soft {soft:,}, hard unlimited"
    measured = f"{told}: {count_streams():,} connections a worker"
    if free is None or free >= PORTS:
        return Finding("descriptors", "ok", measured)
    return Finding("descriptors", "mind", measured, "ulimit -Hn 65536 (or LimitNOFILE=65536), or use more processes")


def find_ports(root: Path, _folder: Path) -> Finding:
    """How many connections there can be from one address to one address and port of a target."""
    ports = count_ports()
    measured = f"{ports:,} for each pair of source and target address"
    if ports >= PORTS:
        return Finding("local ports", "ok", measured)
    remedy = 'sysctl -w net.ipv4.ip_local_port_range="1024 65535", or more addresses (source_ips in run.toml)'
    return Finding("local ports", "mind", measured, remedy)


def find_backlog(root: Path, _folder: Path) -> Finding | None:
    """How many connections may wait for a server on this host; one too many costs its client a second."""
    text = _read(root / "proc/sys/net/core/somaxconn")
    if text is None:
        return None
    if int(text) >= BACKLOG:
        return Finding("backlog of servers here", "ok", f"somaxconn {int(text):,}")
    remedy = f"sysctl -w net.core.somaxconn={BACKLOG}, if the server runs here"
    return Finding("backlog of servers here", "mind", f"somaxconn {int(text):,}", remedy)


def find_cores(_root: Path, _folder: Path) -> Finding:
    """How many cores there are for workers."""
    every = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
    measured = f"{allowed} of {every}"
    if allowed > 1:
        return Finding("cores", "ok", measured)
    return Finding("cores", "mind", measured, "give it a core beside that of everything else (taskset, cpuset)")


def find_quota(root: Path, _folder: Path) -> Finding | None:
    """Whether a CPU quota stops this group of processes for whole slices of time."""
    group = (_read(root / "proc/self/cgroup") or "").rpartition("::")[2].strip("/").split("\n")[0]
    texts = (_read(root / "sys/fs/cgroup" / group / "cpu.max"), _read(root / "sys/fs/cgroup/cpu.max"))
    text = next((text for text in texts if text), None)
    if text is None:
        quota_us, period_us = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us"), "100000"
    else:
        quota_us, period_us = text.split()
    if quota_us in (None, "max", "-1"):
        return Finding("CPU quota", "ok", "none")
    cores = int(quota_us) / int(period_us)
    return Finding("CPU quota", "bad", f"{cores:g} cores", "remove the container's CPU limit; pin it to cores instead")


def find_clock(root: Path, _folder: Path) -> Finding:
    """Which clock the kernel reads, and what a look at it costs."""
    source = _read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource") or "not told"
    begun_ns = time.perf_counter_ns()
    for _ in range(1000):
        time.monotonic_ns()
    cost_s = (time.perf_counter_ns() - begun_ns) / 1e12
    measured = f"{source}, {format_duration(cost_s)} a look"
    if cost_s <= CLOCK_S and source in (*FAST_CLOCKS, "not told"):
        return Finding("clock", "ok", measured)
    return Finding("clock", "bad", measured, "boot with clocksource=tsc, or use a host whose kernel trusts its TSC")


def find_stamps(_root: Path, _folder: Path) -> Finding:
    """Whether the kernel stamps what it receives, tried on a connection to ourselves."""
    remedy = "use Linux outside of a sandbox that has a network stack of its own; else stamps are ours, and later"
    try:
        lags_ns = sorted(_try_stamps())
    except (OSError, ValueError) as problem:
        return Finding("kernel stamps", "mind", f"none: {problem}", remedy)
    measured = (
        f"on {TRIES} of {TRIES} reads; ours follows by {format_duration(lags_ns[TRIES // 2] / 1e9)} at the median"
    )
    return Finding("kernel stamps", "ok", measured)


def find_timers(_root: Path, _folder: Path) -> Finding:
    """How exactly the pacer of the replayer wakes here."""
    if sys.platform != "linux":
        return Finding("timers", "mind", "no timerfd: the event loop's, to the millisecond", "replay on Linux")
    try:
        late_ns = sorted(_try_timers())
    except OSError as problem:
        return Finding("timers", "bad", f"no timerfd: {problem}", "use Linux outside of a sandbox")
    half, worst = (format_duration(value / 1e9) for value in (late_ns[len(late_ns) // 2], late_ns[-1]))
    measured = f"timerfd, {half} late at the median, {worst} at worst of {TRIES}"
    if late_ns[0] < 0:
        return Finding("timers", "bad", f"{measured}; fires early", "report it: the pacer must never fire early")
    if late_ns[len(late_ns) // 2] > 1e6:
        return Finding("timers", "bad", measured, "this host gives no core in time: stop other jobs, or use another")
    return Finding("timers", "ok", measured)


def find_disk(_root: Path, folder: Path) -> Finding:
    """How much room a log has, and how fast it can be written."""
    try:
        free = shutil.disk_usage(folder).free
        speed = _try_disk(folder)
    except OSError as problem:
        return Finding("disk", "bad", f"{folder}: {problem.strerror}", "log to a folder that can be written")
    measured = f"{format_bytes(free)} free, {format_bytes(speed)}/s written and synced"
    if free >= FREE_BYTES and speed >= SLOW_BYTES_PER_S:
        return Finding("disk", "ok", measured)
    return Finding("disk", "mind", measured, "log to another disk: 100,000 reads a second are about 1 MB/s")


def find_company(root: Path, _folder: Path) -> Finding:
    """Whether others are at work here: the load, and how often somebody waits for a core."""
    load = os.getloadavg()[0]
    measured, busy = f"load {load:.1f} on {os.cpu_count()} cores", load > 0.5 * (os.cpu_count() or 1)
    pressure = _read(root / "proc/pressure/cpu")
    if pressure is not None:
        share = float(pressure.split("avg10=")[1].split()[0])
        measured, busy = f"{measured}, somebody waited for a core in {share:g} % of the last 10 s", share > PRESSURE
    if not busy:
        return Finding("company", "ok", measured)
    return Finding("company", "mind", measured, "stop other jobs, or use a machine of its own")


def find_steal(root: Path, _folder: Path) -> Finding | None:
    """What the hypervisor has given to others since this host started."""
    fields = (_read(root / "proc/stat") or "").split("\n")[0].split()
    if len(fields) < 9:
        return None
    share = int(fields[8]) / max(1, sum(map(int, fields[1:9])))
    measured = f"{share:.2%} of all time since the start"
    if share <= 0.01:
        return Finding("steal", "ok", measured)
    return Finding("steal", "mind", measured, "use a machine with cores of its own")


def find_swap(root: Path, _folder: Path) -> Finding | None:
    """Whether memory is short: a page that comes back from disk stops a worker for milliseconds."""
    facts = dict(line.split(":", 1) for line in (_read(root / "proc/meminfo") or "").split("\n") if ":" in line)
    kilobytes = {name: int(value.split()[0]) for name, value in facts.items()}
    if "MemAvailable" not in kilobytes:
        return None
    used = 1000 * (kilobytes.get("SwapTotal", 0) - kilobytes.get("SwapFree", 0))
    measured = f"{format_bytes(1000 * kilobytes['MemAvailable'])} available, {format_bytes(used)} swapped out"
    if used == 0 and kilobytes["MemAvailable"] > 500_000:
        return Finding("memory", "ok", measured)
    return Finding("memory", "mind", measured, "free memory, then: swapoff -a")


def find_calibration(_root: Path, _folder: Path) -> Finding:
    """Whether the limits of this host are known."""
    known = Calibration.load()
    if known is None:
        return Finding("calibration", "mind", "none for this host and version", "loadshape calibrate")
    one = known.one
    told = f"{one.requests.rate_hz:,.0f} requests/s or {one.chunks.rate_hz:,.0f} chunks/s a worker"
    return Finding("calibration", "ok", f"{told}, {known.made_at[:10]}")


EXAMINATIONS: tuple[Examination, ...] = (
    find_descriptors,
    find_ports,
    find_backlog,
    find_cores,
    find_quota,
    find_clock,
    find_stamps,
    find_timers,
    find_disk,
    find_company,
    find_steal,
    find_swap,
    find_calibration,
)


def _try_stamps() -> list[int]:
    """Return our time minus the kernel's of reads from ourselves. Raises ValueError where there is no stamp."""
    offset_ns, _ = measure_offset_ns()
    reads = []
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE | SOFTWARE)
        reader.settimeout(1.0)
        reader.connect(listener.getsockname())
        writer, _ = listener.accept()
        with writer:
            for _ in range(2 * TRIES):
                before_ns = time.monotonic_ns()
                writer.send(b"chunk")
                _, control, _, _ = reader.recvmsg(16, CONTROL_BYTES)
                reads.append((before_ns, control, time.monotonic_ns()))
    # The kernel begins to stamp a moment after the first socket has asked for it.
    return [_read_lag_ns(*read, offset_ns) for read in reads[TRIES:]]


def _read_lag_ns(before_ns: int, control: list[tuple[int, int, bytes]], seen_ns: int, offset_ns: int) -> int:
    if not control:
        raise ValueError("a read came without one")
    seconds, nanoseconds = TIMESPEC.unpack_from(control[0][2])
    at_ns: int = seconds * NS_PER_S + nanoseconds - offset_ns
    if not before_ns - SLACK_NS <= at_ns <= seen_ns + SLACK_NS:
        raise ValueError(f"a stamp is {format_duration(abs(at_ns - before_ns) / NS_PER_S)} off")
    return seen_ns - at_ns


def _try_timers() -> Iterator[int]:
    """Yield how late the pacer woke, in ns."""
    tighten_timers()
    poll, woken_ns = Poll(), []
    pacer = TimerfdPacer(poll, lambda: woken_ns.append(time.monotonic_ns()))
    with contextlib.ExitStack() as stack:
        stack.callback(poll.close)
        stack.callback(pacer.close)
        for tried in range(1, TRIES + 1):
            at_ns = time.monotonic_ns() + 2_000_000
            pacer.arm(at_ns)
            while len(woken_ns) < tried:
                poll.wait(lambda _stream: None)
            yield woken_ns[-1] - at_ns


def _try_disk(folder: Path) -> float:
    """Return bytes per second of a file that is written, synced and removed."""
    with tempfile.TemporaryFile(dir=folder) as file:
        block = os.urandom(1 << 20)
        begun_s = time.monotonic()
        for _ in range(PROBE_BYTES >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return PROBE_BYTES / (time.monotonic() - begun_s)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None

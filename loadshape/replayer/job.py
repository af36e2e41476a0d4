# What the coordinator and its workers say to each other.
#
# Law: one JSON line a message, on the worker's standard input and output. A job holds everything that a
# worker needs except secrets: a key goes by reference, and the worker reads it itself. When the input
# ends, the coordinator is gone, and the worker stops by itself: no orphan goes on sending.

"""Settings, Job and the messages between the coordinator and a worker."""

from __future__ import annotations

import ipaddress
import math
from typing import Any

import msgspec

from loadshape.deal import space_probe
from loadshape.errors import InputError
from loadshape.log import Shard
from loadshape.target import Target, check_header
from loadshape.trace import RESERVED

MAX_SPIN_US = 1_000
MAX_PROCESSES = 256
RECEIVE = ("auto", "kernel", "user")
ROUTINGS = ("session", "round_robin", "weighted", "prefix")
MAX_PROBE_SHARE = 0.01  # a probe that carries more is one of those that it is to be compared with
MIN_SCRAPE_S = 0.1
ON_DEAD = (None, "end", "move")
ISOLATIONS = ("auto", "cache_salt", "slot", "none")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A window of a run in which the server profiles itself: from `after_s` for `for_s`."""

    after_s: float
    for_s: float

    def __post_init__(self) -> None:
        """Refuse a window that lies nowhere. Raises InputError."""
        if not (0 <= self.after_s < math.inf and 0 < self.for_s < math.inf):
            raise InputError(
                f"profile: expected after_s of 0 seconds or more, and for_s of more than 0, "
                f"found {self.after_s} and {self.for_s}"
            )


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a trace is replayed; printed before the start and stored in the log.

    Time limits are outcomes: a request that passes one ends as timeout_connect, timeout_first (no byte of
    answer content), timeout_idle (between two reads) or timeout_total; None means no limit. `grace_s` is how
    long requests may go on after the last due time, or after `duration_s`; None means until their own limits.
    Totals (`requests`, `slots`, `cap`) are of all workers.
    """

    processes: int = 0  # 0: as many as suit this host
    receive: str = "auto"  # kernel, user, or auto: kernel where there is one
    spin_us: int = 100
    timeout_connect_s: float | None = 10.0
    timeout_first_s: float | None = 600.0
    timeout_idle_s: float | None = 300.0
    timeout_total_s: float | None = None
    grace_s: float | None = None
    interrupt_grace_s: float = 5.0
    duration_s: float | None = None  # nothing is begun that falls due later
    requests: int | None = None  # only the first of the trace
    slots: int | None = None  # a closed loop, whatever the trace says
    cap: int | None = None  # instead of the trace's
    routing: str = "session"  # or round_robin, weighted, prefix: which target serves what
    on_dead: str | None = None  # end or move: what becomes of the requests of a lost target; None: they go on failing
    dead_after: int = 5  # connection failures in a row that make a target lost
    source_ips: list[str] = []  # addresses of ours, taken in turn
    retry_stale: bool = False  # send once more what an idle connection lost that was closed before an answer
    capture: bool = False  # keep the bytes of every answer
    breaker: bool | None = None  # stop when most requests fail; None: for public targets
    probe_share: float = 0.0  # of the sessions, for one more process that is never busy; 0: none
    prometheus_port: int = 0  # of 127.0.0.1, for a dashboard to look on; 0: none
    preflight: bool = True  # ask the server for its models before the first packet
    scrape_s: float = 1.0  # between two samples of the servers' metrics and of this host's GPUs; 0: none
    reset_cache: bool = False  # ask the servers for an empty prefix cache before the first packet
    profile: Profile | None = None  # a window in which the servers profile themselves: another kind of run
    declared: dict[str, Any] = {}  # facts that no server tells: GPUs, prices, flags, the state of the cache
    isolation: str = "auto"  # cache_salt, slot or none: what keeps this run's prompts out of an earlier run's cache
    tenant_header: str = "X-Tenant"  # carries the tenant of a request, where the trace names one; empty: nothing does
    body: dict[str, Any] = {}  # merged into every request's JSON body
    verbatim: str = ""  # the run file that these came from

    def __post_init__(self) -> None:
        """Refuse what cannot work, before the first packet. Raises InputError naming the field."""
        for name in ("connect", "first", "idle", "total"):
            limit_s = getattr(self, f"timeout_{name}_s")
            if limit_s is not None and not limit_s > 0:
                raise InputError(
                    f"timeout_{name}_s: expected more than 0 seconds, or nothing for no limit, found {limit_s}"
                )
        if self.grace_s is not None and not self.grace_s >= 0:
            raise InputError(f"grace_s: expected 0 seconds or more, or nothing to wait for all, found {self.grace_s}")
        if self.receive not in RECEIVE:
            raise InputError(f"receive: expected one of {', '.join(RECEIVE)}, found {self.receive!r}")
        if not self.interrupt_grace_s >= 0:
            raise InputError(f"interrupt_grace_s: expected 0 seconds or more, found {self.interrupt_grace_s}")
        if not 0 <= self.spin_us <= MAX_SPIN_US:
            raise InputError(f"spin_us: expected 0 to {MAX_SPIN_US:,} microseconds, found {self.spin_us}")
        if not 0 <= self.processes <= MAX_PROCESSES:
            raise InputError(f"processes: expected 0 (as many as suit) to {MAX_PROCESSES}, found {self.processes}")
        if reserved := [name for name in RESERVED if name in self.body]:
            raise InputError(f"body: {', '.join(reserved)} comes from the trace and the target, not from the settings")
        if not 0 <= self.probe_share <= MAX_PROBE_SHARE:
            raise InputError(f"probe_share: expected 0 to {MAX_PROBE_SHARE:g}, 0 for none, found {self.probe_share}")
        if not 0 <= self.prometheus_port < 1 << 16:
            raise InputError(f"prometheus_port: expected 1 to 65535, or 0 for none, found {self.prometheus_port}")
        if self.scrape_s and not MIN_SCRAPE_S <= self.scrape_s < math.inf:
            raise InputError(f"scrape_s: expected {MIN_SCRAPE_S:g} s or more, or 0 for none, found {self.scrape_s}")
        if self.isolation not in ISOLATIONS:
            raise InputError(f"isolation: expected one of {', '.join(ISOLATIONS)}, found {self.isolation!r}")
        if self.tenant_header:
            check_header("tenant_header", self.tenant_header, "")
        self._check_loop()
        self._check_targets()

    @property
    def workers(self) -> int:
        """How many processes there are, with the probe."""
        return self.processes + (self.probe_share > 0)

    @property
    def probe_every(self) -> int:
        """One session in so many is the probe's: fewer than its share says; 0 without a probe."""
        return space_probe(self.probe_share)

    def _check_loop(self) -> None:
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise InputError(f"duration_s: expected more than 0 seconds, found {self.duration_s}")
        for name in ("requests", "slots", "cap"):
            total = getattr(self, name)
            if total is not None and total < 1:
                raise InputError(f"{name}: expected 1 or more, or nothing for what the trace says, found {total}")

    def _check_targets(self) -> None:
        if self.routing not in ROUTINGS:
            raise InputError(f"routing: expected one of {', '.join(ROUTINGS)}, found {self.routing!r}")
        if self.on_dead not in ON_DEAD:
            raise InputError(f"on_dead: expected end or move, or nothing to go on sending, found {self.on_dead!r}")
        if self.dead_after < 1:
            raise InputError(f"dead_after: expected 1 connection failure or more, found {self.dead_after}")
        for source in self.source_ips:
            try:
                ipaddress.ip_address(source)
            except ValueError:
                raise InputError(f"source_ips: expected addresses of this host, found {source!r}") from None

    def tell(self) -> str:
        """Return one line with the values in force."""
        limits = ("connect", "first", "idle", "total")
        given = {name: getattr(self, f"timeout_{name}_s") for name in limits}
        told = ", ".join(f"{name} {limit_s:g} s" for name, limit_s in given.items() if limit_s is not None)
        grace = "for the last answer" if self.grace_s is None else f"{self.grace_s:g} s for what is in flight"
        breaker = {None: "on for public targets", True: "on", False: "off"}[self.breaker]
        probe = " and a probe" if self.probe_share else ""
        stale = "; what a stale connection loses is sent once more" if self.retry_stale else ""
        limited = f"processes {self.processes}{probe}, limits: {told or 'none'}{stale}"
        return f"{limited}; at the end waits {grace}; circuit breaker {breaker}; isolation {self.isolation}"


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """One worker's part of a run."""

    trace: str
    log: str
    run: str
    worker: int  # counted through all nodes: node n has n * settings.workers and the next ones
    targets: list[Target]
    addresses: list[list[str]]  # of each target
    settings: Settings
    node: int = 0


class Start(msgspec.Struct, frozen=True, tag="start"):
    """All workers are ready: time zero, on CLOCK_MONOTONIC."""

    epoch_ns: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Send nothing more; cut what is still in flight after the grace."""

    grace_s: float
    reason: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker has its plan and its first connections; what it will use."""

    receive: str
    pacing: str
    planned: int


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Counts of one worker, ten times a second at most."""

    begun: int
    ended: int
    failed: int
    in_flight: int
    reads: int
    late_ns: int  # the worst lateness since the last message
    outcomes: dict[str, int] = {}
    ttft: dict[int, int] = {}  # counts of Histograms since the start: about, of a sample, and for looking on only
    gaps: dict[int, int] = {}  # between token-bearing reads
    lateness: dict[int, int] = {}  # of the requests that have ended

    def tell(self, planned: int) -> str:
        """Return one line about a replay of *planned* requests under way."""
        late = f", latest {self.late_ns / 1e6:.1f} ms late" if self.late_ns > 1_000_000 else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.begun:,} of {planned:,} sent, {self.in_flight} in flight{failed}{late}"


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The worker's files are closed."""

    shards: list[Shard]
    outcomes: dict[str, int]
    ended_ns: int
    stopped: str | None = None
    notes: list[str] = []


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker cannot go on; one line says why, and whether the user can fix it."""

    reason: str
    is_input: bool = False


Order = Job | Start | Stop
Report = Ready | Progress | Done | Failed

_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_reports: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def write_line(message: Order | Report) -> bytes:
    """Return one message as one line."""
    return msgspec.json.encode(message) + b"\n"


def read_order(line: bytes) -> Order:
    """Return what the coordinator said."""
    return _orders.decode(line)


def read_report(line: bytes) -> Report:
    """Return what a worker said."""
    return _reports.decode(line)

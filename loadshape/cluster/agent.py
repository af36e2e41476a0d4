# What runs on a node: the coordinator's hands there.
#
# Law: no Ray and no request in here. An agent starts the same worker processes as a run on one host (crew.py), passes
# on what is said in both directions, answers pings, and hands out the files of its workers. The workers write to this
# node's disk and never wait for the network; what they write stays there until the coordinator has it whole.
#
#     describe -> prepare -> [ready] -> tell(start) -> hear, hear, ... -> list_files, read_piece -> clear
#
# Nobody is left behind: whoever ends the agent ends the pipes of its workers, and they stop by themselves; and an agent
# that the coordinator has not asked for SILENCE_S stops them, since nobody would come for the log of what they send.
#
# Ray starts its processes at niceness 15 (RAY_worker_niceness): everything else on the node would go first, and sends
# would be late. The agent goes back to 0 where it may, and says where it stands, because a verdict depends on it.

"""Agent: one node of a run."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from loadshape.clock import measure_offset_ns
from loadshape.cluster.beacon import Beacon
from loadshape.cluster.discipline import read_synchronization
from loadshape.digest import digest_file
from loadshape.environment import describe_host
from loadshape.errors import InputError, LoadshapeError, ReplayError, StartMissed
from loadshape.lease import holding
from loadshape.log import ENVIRONMENT_NAME
from loadshape.replayer.capacity import check_capacity
from loadshape.replayer.crew import STDERR_NAME, Crew
from loadshape.replayer.job import Job, Order, Progress, Report, Start, Stop
from loadshape.replayer.launcher import number_jobs
from loadshape.replayer.roads import check_roads
from loadshape.trace import Trace, digest_content
from loadshape.version import __version__

SILENCE_S = 30.0
LATE_NS = 100_000_000  # an order to start has to be here so long before T0
BITE_S = 0.1


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Who an agent is, and on what it runs."""

    version: str
    python: str
    name: str
    port: int  # of its beacon
    niceness: int
    environment: dict[str, object]
    synchronization: dict[str, object]


class Heard(msgspec.Struct, frozen=True):
    """What the workers of a node said since the last time; the first failure there, for as long as it lasts."""

    reports: list[tuple[int, Report]]
    failure: str = ""
    is_input: bool = False  # the user can mend it
    is_over: bool = False  # no worker will say anything more


class File(msgspec.Struct, frozen=True):
    """A file of the node's log."""

    path: str
    size_bytes: int
    sha256: str


class Agent:
    """One node. Its methods are called one from one thread and `hear` from another."""

    def __init__(self, address: str, token: bytes) -> None:
        self._niceness = _calm_down()
        self._beacon = Beacon(address, token)
        self._open = ExitStack()
        self._open.callback(self._beacon.close)
        self._changed = threading.Condition()
        self._reports: list[tuple[int, Report]] = []
        self._progress: dict[int, Progress] = {}
        self._error: LoadshapeError | None = None
        self._is_news = False  # the error is
        self._heard_at_s = time.monotonic()
        self._is_shared = False
        self._crew: Crew | None = None
        self._listener: threading.Thread | None = None
        self._home = Path()
        self._holds_log = False  # rows of the run are, or may be, below it

    def describe(self) -> Facts:
        """Say who this is."""
        return Facts(
            version=__version__,
            python=platform.python_version(),
            name=socket.gethostname(),
            port=self._beacon.port,
            niceness=self._niceness,
            environment=describe_host(),
            synchronization=read_synchronization(),
        )

    def prepare(self, job: Job, portion: Trace, *, scratch: str | None, is_shared: bool) -> str:
        """Write this node's *portion*, start its workers, and return where its log is.

        *job* is that of its first worker; the log goes to a folder of this node below *scratch*, or straight to the
        place that the job names if that *is_shared*. Raises InputError or ReplayError.
        """

        def leave() -> None:
            if not self._holds_log:
                self.clear()

        _check_portion(portion)
        _check_job(portion, job)
        name = f"loadshape-{job.run}-node-{job.node}"
        self._home = _make_folder(Path(scratch or tempfile.gettempdir()) / name)
        self._open.callback(leave)
        self._is_shared = is_shared
        trace = portion.write(self._home / "portion.trace")
        log = Path(job.log) if is_shared else _make_folder(self._home / "run.log")
        if not (log / ENVIRONMENT_NAME).is_file() and is_shared:
            raise InputError(f"is_shared: {log} is not there on this node; leave it out, and the logs are fetched")
        job = msgspec.structs.replace(job, trace=str(trace), log=str(log))
        lease = self._open.enter_context(holding(log))
        self._crew = self._open.enter_context(Crew(number_jobs(job), lease=lease))
        self._listener = threading.Thread(target=self._listen, args=(self._crew,), daemon=True)
        self._listener.start()
        return str(log)

    def tell(self, order: Order) -> tuple[int, int]:
        """Pass *order* on to the workers, and return T0 on the wall clock and on the monotonic one, if it was that.

        Raises StartMissed if it came too late for T0.
        """
        assert self._crew is not None
        epoch_ns = order.epoch_ns if isinstance(order, Start) else 0
        if epoch_ns and time.monotonic_ns() > epoch_ns - LATE_NS:
            raise StartMissed("the order to start came too late for T0: the node or the network to it is overloaded")
        self._holds_log |= bool(epoch_ns) and not self._is_shared
        self._crew.tell(order)
        return epoch_ns, epoch_ns + measure_offset_ns()[0]

    def hear(self, timeout_s: float) -> Heard:
        """Return what was said since the last time; waits up to *timeout_s* for more than progress."""
        with self._changed:
            self._heard_at_s = time.monotonic()
            self._changed.wait_for(lambda: self._reports or self._is_news or self._is_over, timeout_s)
            self._is_news = False
            reports = [*self._reports, *self._progress.items()]
            self._reports, self._progress = [], {}
            return Heard(
                reports=reports,
                failure=str(self._error or ""),
                is_input=isinstance(self._error, InputError),
                is_over=self._is_over,
            )

    def list_files(self) -> list[File]:
        """Return the files of the workers' folders, which nobody writes any more: who still did is ended."""
        self._open.close()
        log = self._home / "run.log"
        paths = sorted(path for path in log.glob("worker-*/*") if path.name != STDERR_NAME or path.stat().st_size)
        return [File(str(path.relative_to(log)), path.stat().st_size, digest_file(path)) for path in paths]

    def read_piece(self, path: str, start: int, size_bytes: int) -> bytes:
        """Return a piece of a file of the log."""
        with (self._home / "run.log" / path).open("rb") as file:
            file.seek(start)
            return file.read(size_bytes)

    def clear(self) -> None:
        """Forget the node's files: they are elsewhere, whole."""
        shutil.rmtree(self._home, ignore_errors=True)

    def close(self) -> None:
        """End the workers, if there still are any."""
        self._open.close()

    @property
    def _is_over(self) -> bool:
        return self._listener is not None and not self._crew_speaks

    @property
    def _crew_speaks(self) -> bool:
        return self._crew is not None and self._crew.is_listened_to

    def _listen(self, crew: Crew) -> None:
        """Collect what the workers say, until the last one has ended."""
        while crew.is_listened_to:
            try:
                for worker, report in crew.listen(BITE_S):
                    self._take(worker, report)
            except LoadshapeError as error:
                self._fail(crew, error)
            except Exception as error:  # nobody else would notice that this thread has ended
                self._fail(crew, ReplayError(f"a defect of loadshape: {type(error).__name__}: {error}"))
            if time.monotonic() - self._heard_at_s > SILENCE_S:
                self._fail(crew, ReplayError(f"the coordinator has not been heard for {SILENCE_S:.0f} s"))
        with self._changed:
            self._changed.notify_all()

    def _take(self, worker: int, report: Report) -> None:
        with self._changed:
            if isinstance(report, Progress):
                self._progress[worker] = report
                return
            self._reports.append((worker, report))
            self._changed.notify_all()

    def _fail(self, crew: Crew, error: LoadshapeError) -> None:
        """Note the first failure, and let nobody send what the run will not count."""
        with self._changed:
            if self._error is not None:
                return
            self._error, self._is_news = error, True
            self._changed.notify_all()
        with suppress(ValueError):  # they were ended meanwhile, and their pipes are closed
            crew.tell(Stop(grace_s=0.0, reason=f"stopped: {error}"))


def _make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True)
    except OSError as problem:
        raise InputError(f"scratch: {path} cannot be made: {problem.strerror}; choose another place") from None
    return path


def _check_portion(portion: Trace) -> None:
    found = digest_content(portion.requests, portion.segments, portion.manifest.loop)
    if found != portion.digest:
        raise ReplayError(f"its portion of the trace arrived as {found}, and was sent as {portion.digest}")


def _check_job(portion: Trace, job: Job) -> None:
    """Raise InputError when this node cannot have the connections or the keys of the run."""
    roads = check_roads(job.targets, job.addresses, job.settings.source_ips)
    check_capacity(portion, job.settings, roads=roads)
    for target in job.targets:
        target.read_key()


def _calm_down() -> int:
    """Go back to niceness 0 where that is permitted, and return where we stand."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    return os.getpriority(os.PRIO_PROCESS, 0)

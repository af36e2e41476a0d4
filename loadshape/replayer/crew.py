# The worker processes of a run, seen from the coordinator.
#
# Law: a worker is a separate interpreter started with nothing but `-m`, in a session of its own, so that a
# Ctrl-C at the terminal reaches the coordinator alone. All talk is JSON lines on its pipes. Whatever ends
# the coordinator ends the pipes, and the workers with them.

"""Crew: start worker processes, talk to them, and know when one is lost."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from loadshape.errors import InputError, ReplayError, WorkerLost
from loadshape.log import RUN_NAME
from loadshape.replayer.job import Failed, Job, Order, Progress, Ready, Report, read_report, write_line

LEAD_NS = 500_000_000
END_S = 10.0  # a worker that was told to end, and has not after so long, is killed
STDERR_NAME = "stderr.txt"

K = TypeVar("K", str, int)


class Crew:
    """The workers of one run. A context manager: nobody is left behind."""

    def __init__(self, jobs: list[Job], *, lease: int | None = None) -> None:
        self._jobs = jobs
        self._lease = [] if lease is None else [lease]  # the descriptor that holds the log, for as long as one writes
        self._processes: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._pending: list[bytes] = []

    def __enter__(self) -> Crew:
        try:
            for job in self._jobs:
                self._start(job)
        except BaseException:  # an interrupt, say: those that were started are ended all the same
            self.__exit__()
            raise
        return self

    def _start(self, job: Job) -> None:
        folder = Path(job.log) / f"worker-{job.worker:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / STDERR_NAME).open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "loadshape.replayer.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                pass_fds=self._lease,
            )
        self._processes.append(process)
        self._pending.append(b"")
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, len(self._processes) - 1)
        self._say(len(self._processes) - 1, job)

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # what it was told after it had ended is still in the buffer
                    process.stdin.close()
        deadline = time.monotonic() + END_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._selector.close()
        for job in self._jobs:
            errors = Path(job.log) / f"worker-{job.worker:02d}" / STDERR_NAME
            if errors.is_file() and errors.stat().st_size == 0:
                errors.unlink()

    @property
    def lead_ns(self) -> int:
        """How far ahead T0 is to lie: enough for the order to arrive, and for a few ticks."""
        return LEAD_NS

    @property
    def expected(self) -> int:
        """How many workers there are."""
        return len(self._jobs)

    @property
    def losses(self) -> list[str]:
        """Nothing: losing a worker of this host ends the run."""
        return []

    @property
    def is_listened_to(self) -> bool:
        """Whether any worker may still say something."""
        return bool(self._selector.get_map())

    def bring_home(self, epoch_ns: int) -> list[str]:
        """Do nothing: they write into the log itself."""
        return []

    def tell(self, order: Order) -> None:
        """Say the same to every worker that still listens."""
        for worker in range(len(self._processes)):
            self._say(worker, order)

    def listen(self, timeout_s: float) -> Iterator[tuple[int, Report]]:
        """Yield what the workers say within *timeout_s*. Raises WorkerLost, ReplayError or InputError."""
        for key, _ in self._selector.select(timeout_s):
            rank, worker = key.data, self._jobs[key.data].worker
            data = os.read(key.fd, 1 << 20)
            *lines, self._pending[rank] = (self._pending[rank] + data).split(b"\n")
            for line in lines:
                report = read_report(line)
                if isinstance(report, Failed):
                    raise explain_failure(report, Path(self._jobs[rank].log))
                yield worker, report
            if not data:
                self._selector.unregister(key.fileobj)
                self._check_exit(rank)

    def gather_ready(self, timeout_s: float) -> list[Ready]:
        """Wait until every worker is ready."""
        ready: dict[int, Ready] = {}
        deadline = time.monotonic() + timeout_s
        while len(ready) < len(self._processes):
            if time.monotonic() > deadline:
                raise ReplayError(f"workers: {len(ready)} of {len(self._processes)} were ready after {timeout_s:.0f} s")
            ready.update({worker: said for worker, said in self.listen(0.2) if isinstance(said, Ready)})
        return [ready[worker] for worker in sorted(ready)]

    def _say(self, worker: int, order: Order) -> None:
        stdin = self._processes[worker].stdin
        try:
            assert stdin is not None
            stdin.write(write_line(order))
            stdin.flush()
        except OSError:
            pass  # it has ended; what it said last, or its exit, tells the rest

    def _check_exit(self, rank: int) -> None:
        code, worker = self._processes[rank].wait(), self._jobs[rank].worker
        if code == 0:
            return
        folder = Path(self._jobs[rank].log) / f"worker-{worker:02d}"
        errors = (folder / STDERR_NAME).read_text(errors="replace").strip().splitlines()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        raise WorkerLost(
            f"worker {worker} {how}{': ' + errors[-1] if errors else ''}; the log is incomplete"
            + name_remedy(folder.parent)
        )


def explain_failure(failed: Failed, log: Path) -> InputError | ReplayError:
    """Return the error of a worker that could not go on."""
    return InputError(failed.reason) if failed.is_input else ReplayError(failed.reason + name_remedy(log))


def name_remedy(log: Path) -> str:
    """Return how to save what was written, once there may be something."""
    if not (log / RUN_NAME).is_file():
        return ""
    return f"; save what was written before with: loadshape recover {log} -o NEW.log"


def sum_progress(said: dict[int, Progress]) -> Progress:
    """Return the sum over workers of what each said last."""
    parts = said.values()
    return Progress(
        begun=sum(part.begun for part in parts),
        ended=sum(part.ended for part in parts),
        failed=sum(part.failed for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        reads=sum(part.reads for part in parts),
        late_ns=max((part.late_ns for part in parts), default=0),
        outcomes=_add_up(part.outcomes for part in parts),
        ttft=_add_up(part.ttft for part in parts),
        gaps=_add_up(part.gaps for part in parts),
        lateness=_add_up(part.lateness for part in parts),
    )


def _add_up(parts: Iterable[dict[K, int]]) -> dict[K, int]:
    total: Counter[K] = Counter()
    for part in parts:
        total.update(part)
    return total

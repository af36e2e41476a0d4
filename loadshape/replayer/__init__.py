# Playing: a trace and a target go in, a log comes out.
#
# Law: the coordinator decides before the start and after the end, and only watches in between. It checks
# the trace and the target, writes run.json, starts the workers behind a barrier, gives them one epoch T0,
# and writes the manifest when every worker has handed in its files. No request passes through it.
#
#     check -> preflight -> run.json -> workers ready -> T0 -> ... -> workers done -> manifest.json
#
# Ctrl-C stops the sending, lets what is in flight finish for interrupt_grace_s, and still closes a
# complete and honest log; a second one cuts at once.

"""Replay a trace against a target and write the log."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from loadshape.errors import StartMissed, TargetError
from loadshape.log import Log, Run
from loadshape.plan import check_loop
from loadshape.replayer.crew import Crew, sum_progress
from loadshape.replayer.job import Done, Job, Progress, Settings, Start, Stop
from loadshape.replayer.preflight import ask_target
from loadshape.replayer.stage import Stage, describe_run
from loadshape.target import Target
from loadshape.trace import Trace

READY_S = 60.0
INTERRUPTED = "interrupted by the user"

Watch = Callable[[Progress, float], None]


def replay(
    trace: Trace | str | Path,
    target: Target,
    *,
    log: str | Path,
    processes: int | None = None,
    settings: Settings | None = None,
    watch: Watch | None = None,
    force: bool = False,
) -> Log:
    """Replay *trace* against *target* and return the complete log, which is also written to *log*.

    `processes` is a short way to say how many workers there are (default: one below four cores, else half
    of the cores); `settings` says everything else. `watch` is called ten times a second with the progress
    and the seconds since T0.

    Raises TraceError, TargetError and LogError before the first packet, and ReplayError or one of its
    children when the run as a whole failed: its log then has no manifest.
    """
    settings = settings or Settings()
    settings = msgspec.structs.replace(settings, processes=processes or settings.processes or choose_processes())
    with Stage(trace, Path(log), force=force) as stage:
        check_loop(stage.trace.manifest.loop, settings.processes)
        _check_rate(stage.trace, target)
        addresses = target.resolve()
        run = secrets.token_hex(4)
        facts: dict[str, Any] = {"models": None}
        if settings.preflight:
            try:
                target, facts = ask_target(target)
            except TargetError as error:
                stage.refuse(describe_run(stage.trace, run, target, settings), error)
                raise
        stage.prepare(facts)
        jobs = [
            Job(
                trace=str(stage.trace_path),
                log=str(stage.log),
                run=run,
                worker=worker,
                target=target,
                addresses=addresses,
                settings=settings,
            )
            for worker in range(settings.processes)
        ]
        with Crew(jobs) as crew:
            ready = crew.gather_ready(READY_S)
            conditions = describe_run(stage.trace, run, target, settings, addresses=addresses, ready=ready[0])
            stage.announce(conditions)
            done, ended = _play(crew, conditions, settings, watch or _ignore)
        stage.conclude(conditions, done, ended)
    return Log.open(stage.log)


def choose_processes() -> int:
    """Return how many workers suit this host: one below four cores, else half of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if cores < 4 else cores // 2


def _play(crew: Crew, run: Run, settings: Settings, watch: Watch) -> tuple[list[Done], str]:
    """Start the workers at T0 and wait for all of them; return what they did and how the run ended."""
    epoch_ns = run.epoch_monotonic_ns
    if time.monotonic_ns() > epoch_ns - 50_000_000:
        raise StartMissed("the workers could not be told the start in time: this host is overloaded")
    crew.tell(Start(epoch_ns=epoch_ns))
    done: dict[int, Done] = {}
    said: dict[int, Progress] = {}
    told = 0
    with _count_interrupts() as interrupts:
        while len(done) < settings.processes:
            _hear(crew, said, done)
            watch(sum_progress(said), (time.monotonic_ns() - epoch_ns) / 1e9)
            if len(interrupts) > told:
                told = len(interrupts)
                crew.tell(Stop(grace_s=settings.interrupt_grace_s if told == 1 else 0.0, reason=INTERRUPTED))
    parts = [done[worker] for worker in sorted(done)]
    stopped = [part.stopped for part in parts if part.stopped]
    return parts, "interrupted" if interrupts else stopped[0] if stopped else "complete"


@contextmanager
def _count_interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C instead of raising it: an exception between two lines of a worker would lose the second."""
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts  # only the main thread gets signals, and may say what becomes of them
        return
    before = signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _hear(crew: Crew, said: dict[int, Progress], done: dict[int, Done]) -> None:
    """Note what the workers say."""
    for worker, report in crew.listen(0.1):
        if isinstance(report, Progress):
            said[worker] = report
        elif isinstance(report, Done):
            done[worker] = report


def _check_rate(trace: Trace, target: Target) -> None:
    """Refuse to load a target faster than the permission for it says."""
    rate_hz = trace.requests.num_rows / max(trace.manifest.duration_s, 1e-9)
    if target.max_rate_hz is not None and rate_hz > target.max_rate_hz:
        raise TargetError(f"target: the trace asks {rate_hz:.1f} requests/s, --max-rate allows {target.max_rate_hz:g}")


def _ignore(_progress: Progress, _elapsed_s: float) -> None:
    """Watch nothing."""

# Playing: a trace and a target go in, a log comes out.
#
# Law: the coordinator decides before the start and after the end, and only watches in between. It checks
# the trace and the target, writes run.json, starts the workers behind a barrier, gives them one epoch T0,
# and writes the manifest when every worker has handed in its files. No request passes through it.
#
#     check -> preflight -> run.json -> workers ready -> T0 -> ... -> workers done -> manifest.json
#
# Ctrl-C, and SIGTERM (which schedulers send), stops the sending, lets what is in flight finish for
# interrupt_grace_s, and still closes a complete and honest log; a second one cuts at once.

"""Replay a trace against a target and write the log."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from loadshape.environment import redact_secrets
from loadshape.errors import StartMissed, TargetError
from loadshape.interrupt import counting_interrupts
from loadshape.lease import holding
from loadshape.log import Log, Run
from loadshape.replayer.crew import sum_progress
from loadshape.replayer.isolation import choose_isolation
from loadshape.replayer.job import Done, Job, Progress, Settings, Start, Stop
from loadshape.replayer.launcher import Launcher, Local, Team
from loadshape.replayer.observer import Observer, choose_watched
from loadshape.replayer.preflight import ask_targets, list_names, reset_caches
from loadshape.replayer.prometheus import Exposition
from loadshape.replayer.question import Facts
from loadshape.replayer.roads import check_roads
from loadshape.replayer.stage import Stage, describe_run
from loadshape.replayer.terms import check_terms
from loadshape.target import Target, is_foreign
from loadshape.trace import Trace

READY_S = 60.0
PATIENCE = (1, 4, 16)
INTERRUPTED = "interrupted by the user"

Watch = Callable[[Progress, float], None]


def replay(
    trace: Trace | str | Path,
    target: Target | Sequence[Target],
    *,
    log: str | Path,
    processes: int | None = None,
    settings: Settings | None = None,
    launcher: Launcher | None = None,
    watch: Watch | None = None,
    force: bool = False,
) -> Log:
    """Replay *trace* against *target*, or several of them, and return the complete log, also written to *log*.

    `processes` is a short way to say how many workers there are (default: one below four cores, else half
    of the cores); `settings` says everything else. `launcher` says where they run: on this host, or on the
    nodes of a cluster (RayLauncher), each of which has `processes` of them. `watch` is called ten times a
    second with the progress and the seconds since T0.

    Raises TraceError, TargetError and LogError before the first packet, and ReplayError or one of its
    children when the run as a whole failed: its log then has no manifest.
    """
    settings, launcher = settings or Settings(), launcher or Local()
    settings = msgspec.structs.replace(settings, processes=processes or settings.processes or choose_processes())
    targets = [target] if isinstance(target, Target) else list(target)
    with Stage(trace, Path(log), force=force) as stage, Exposition(settings.prometheus_port) as exposition:
        check_terms(stage.trace, targets, settings, nodes=launcher.nodes)
        addresses = [it.resolve() for it in targets]
        settings = msgspec.structs.replace(settings, breaker=_choose_breaker(settings, targets, addresses))
        roads = check_roads(targets, addresses, settings.source_ips)
        launcher.check(stage.trace, settings, roads=roads)
        job = Job(
            trace=str(stage.trace_path),
            log=str(stage.log),
            run=secrets.token_hex(4),
            worker=0,
            targets=targets,
            addresses=addresses,
            settings=settings,
        )
        targets, servers = _ask(stage, job)
        isolation = choose_isolation(settings.isolation, stage.trace, servers)
        declared = redact_secrets(settings.declared)
        settings = msgspec.structs.replace(settings, isolation=isolation, declared=declared)
        job = msgspec.structs.replace(job, targets=targets, settings=settings)
        notes = reset_caches(targets) if settings.reset_cache else []
        stage.prepare(dict(zip((it.url for it in targets), servers, strict=False)), declared)
        watched = choose_watched(targets, addresses, servers, settings)
        observer = Observer(stage.log, targets, settings, watched=watched)
        _perform(stage, job, launcher, observer, _look_both(exposition.update, watch), notes)
    return Log.open(stage.log)


def _perform(stage: Stage, job: Job, launcher: Launcher, observer: Observer, watch: Watch, notes: list[str]) -> None:
    """Have the workers play, and close the log; from T0 on nothing but a kill keeps us from that."""
    with ExitStack() as counting:
        with holding(stage.log) as lease, launcher.launch(job, stage.trace, lease=lease) as team:
            with observer:
                run = _announce(stage, job, launcher, team)
                observer.begin(run.epoch_monotonic_ns)
                interrupts = counting.enter_context(counting_interrupts())
                done, ended = _play(team, run, job.settings, watch, interrupts)
            notes = [*notes, *team.bring_home(run.epoch_monotonic_ns), *observer.notes]
        stage.conclude(run, done, ended, notes, losses=team.losses)
    if interrupts and ended != "interrupted":
        raise KeyboardInterrupt  # pressed while the log was being closed


def _announce(stage: Stage, job: Job, launcher: Launcher, team: Team) -> Run:
    """Wait until all are ready, write down what is about to happen, and return it.

    Writing can take longer than T0 is ahead, on a busy disk; then T0 is farther ahead the next time.
    """
    ready = team.gather_ready(READY_S)
    for patience in PATIENCE:
        lead_ns = patience * team.lead_ns
        run = describe_run(stage.trace, job, ready=ready, lead_ns=lead_ns, launcher=launcher)
        stage.announce(run)
        if time.monotonic_ns() < run.epoch_monotonic_ns - lead_ns // 2:
            break
    return run


def choose_processes() -> int:
    """Return how many workers suit this host: one below four cores, else half of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if cores < 4 else cores // 2


def _ask(stage: Stage, job: Job) -> tuple[list[Target], list[Facts]]:
    """Return the targets as they are and what their servers say; a run that is refused there leaves a log."""
    if not job.settings.preflight:
        return job.targets, []
    try:
        return ask_targets(job.targets, list_names(stage.trace))
    except TargetError as error:
        stage.refuse(describe_run(stage.trace, job), error)
        raise


def _choose_breaker(settings: Settings, targets: list[Target], addresses: list[list[str]]) -> bool:
    """Return whether the circuit breaker is in force: as the settings say, else where a target is public."""
    if settings.breaker is not None:
        return settings.breaker
    return any(is_foreign(target, of_target) for target, of_target in zip(targets, addresses, strict=True))


def _play(team: Team, run: Run, settings: Settings, watch: Watch, interrupts: Sequence[int]) -> tuple[list[Done], str]:
    """Start the workers at T0 and wait for all of them; return what they did and how the run ended."""
    epoch_ns = run.epoch_monotonic_ns
    if time.monotonic_ns() > epoch_ns - 50_000_000:
        raise StartMissed("the workers could not be told the start in time: this host is overloaded")
    team.tell(Start(epoch_ns=epoch_ns))
    done: dict[int, Done] = {}
    said: dict[int, Progress] = {}
    told = 0
    while len(done) < team.expected:
        _hear(team, said, done)
        watch(sum_progress(said), (time.monotonic_ns() - epoch_ns) / 1e9)
        if len(interrupts) > told:
            told = len(interrupts)
            team.tell(Stop(grace_s=settings.interrupt_grace_s if told == 1 else 0.0, reason=INTERRUPTED))
    parts = [done[worker] for worker in sorted(done)]
    stopped = [part.stopped for part in parts if part.stopped]
    return parts, "interrupted" if interrupts else stopped[0] if stopped else "complete"


def _hear(team: Team, said: dict[int, Progress], done: dict[int, Done]) -> None:
    """Note what the workers say."""
    for worker, report in team.listen(0.1):
        if isinstance(report, Progress):
            said[worker] = report
        elif isinstance(report, Done):
            done[worker] = report
            if report.stopped not in (None, INTERRUPTED):
                team.tell(Stop(grace_s=0.0, reason=report.stopped))  # one worker's end is the end of the run


def _look_both(first: Watch, second: Watch | None) -> Watch:
    def look(progress: Progress, elapsed_s: float) -> None:
        first(progress, elapsed_s)
        if second is not None:
            second(progress, elapsed_s)

    return look

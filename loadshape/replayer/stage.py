# The folder of a run: what is written before the first packet, and what after the last.
#
# Law: run.json is written before anything is sent, the manifest after everything is on disk; between the
# two the folder belongs to the workers. A log that exists is never overwritten unless asked, or unless it
# is the log of a run that was refused before its start.

"""Stage: the log folder around a run."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from loadshape.calibration import Calibration
from loadshape.clock import measure_offset_ns
from loadshape.digest import digest_file
from loadshape.environment import describe_host
from loadshape.errors import InputError, LogError
from loadshape.lease import is_held
from loadshape.log import (
    ENVIRONMENT_NAME,
    HEALTH,
    OUTCOMES,
    READS,
    RUN_NAME,
    VERSION,
    LogManifest,
    Outcome,
    Run,
    Shard,
    digest_conditions,
    make_rows,
    write_planned,
)
from loadshape.manifest import NAME, check_free, read_manifest, sync_folder, write_manifest
from loadshape.recovery import recover
from loadshape.replayer.crew import END_S
from loadshape.replayer.isolation import KEEPING
from loadshape.replayer.job import Done, Job, Ready
from loadshape.replayer.launcher import Launcher, Local
from loadshape.replayer.terms import choose_loop, plan_duration_s
from loadshape.trace import Trace

REFUSED = "refused before the start"


class Stage:
    """Holds the trace and the log folder of one run. A context manager: a trace from memory is put on disk."""

    def __init__(self, trace: Trace | str | Path, log: Path, *, force: bool) -> None:
        self.log = log
        self._given = trace
        self._force = force
        self._scratch: Path | None = None

    def __enter__(self) -> Stage:
        for path in (self.log, *([] if isinstance(self._given, Trace) else [Path(self._given)])):
            _check_name(path)
        _check_free(self.log, force=self._force)
        self.trace = self._given if isinstance(self._given, Trace) else Trace.open(self._given)
        self.trace.verify()
        if isinstance(self._given, Trace):
            self._scratch = Path(tempfile.mkdtemp(prefix="loadshape-"))
            self.trace_path = self.trace.write(self._scratch / "memory.trace")
        else:
            self.trace_path = Path(self._given)
        return self

    def __exit__(self, *_: object) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def prepare(self, servers: dict[str, dict[str, Any]], declared: dict[str, Any] | None = None) -> None:
        """Make the folder with environment.json and what is planned.

        *servers* is what each said of itself, by URL; *declared* what their owner says of them.
        """
        try:
            if self.log.exists():
                shutil.rmtree(self.log)
            self.log.mkdir(parents=True)
        except OSError as problem:
            raise LogError(f"{self.log}: cannot be made: {problem.strerror}") from None
        calibration = Calibration.load()
        client = describe_host() | {"calibration": calibration.summarize() if calibration else None}
        server = next(iter(servers.values()), {"models": None}) if len(servers) < 2 else servers
        environment = {"client": client, "server": server, "declared": declared or {}}
        (self.log / ENVIRONMENT_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(environment)) + b"\n")
        write_planned(self.log, self.trace.requests)

    def announce(self, run: Run) -> None:
        """Write run.json: what is about to happen."""
        write_manifest(self.log, run, RUN_NAME)

    def conclude(
        self, run: Run, done: list[Done], ended: str, notes: Sequence[str] = (), *, losses: Sequence[str] = ()
    ) -> None:
        """Write the manifest: the log is complete. *notes* are the coordinator's own.

        Where something was lost of the run, what there is becomes the log, as after a crash.
        """
        if losses:
            self._conclude_partly(losses, ended, notes)
            return
        outcomes: Counter[str] = Counter()
        for part in done:
            outcomes.update(part.outcomes)
        if outcomes.total() != run.planned:
            raise LogError(f"{self.log}: {run.planned} requests were planned, {outcomes.total()} have a row")
        for part in done:
            sync_folder((self.log / part.shards[0].path).parent)
        manifest = LogManifest(
            run=run,
            shards=[shard for part in done for shard in part.shards],
            outcomes={name: outcomes[name] for name in OUTCOMES if outcomes[name]},
            ended=ended,
            ended_ns=max(part.ended_ns for part in done),
            notes=[*notes, *(note for part in done for note in part.notes)],
            files=digest_conditions(self.log),
        )
        write_manifest(self.log, manifest)

    def _conclude_partly(self, losses: Sequence[str], ended: str, notes: Sequence[str]) -> None:
        """Put the log of what there is in the place of what was written."""
        whole, cut = (self.log.with_name(f".{self.log.name}.{kind}") for kind in ("whole", "cut"))
        told = losses[0] if ended == "complete" else ended
        deadline_s = time.monotonic() + END_S
        while is_held(self.log) and time.monotonic() < deadline_s:
            time.sleep(0.05)  # on a shared disk the workers of a lost node may still be closing their files
        recover(self.log, whole, ended=f"incomplete: {told}", notes=[*losses, *notes])
        self.log.rename(cut)
        whole.rename(self.log)
        sync_folder(self.log.absolute().parent)
        shutil.rmtree(cut)

    def refuse(self, run: Run, error: InputError) -> None:
        """Write the complete log of a run that never started: every request not sent, with the reason."""
        self.prepare({})
        self.announce(run)
        folder = self.log / "worker-00"
        folder.mkdir()
        tables = {"requests": _make_refused(self.trace, str(error)), "reads": READS.empty_table()}
        shards = []
        for name, table in (tables | {"health": HEALTH.empty_table()}).items():
            path = folder / f"{name}.arrows"
            with pa.ipc.new_stream(str(path), table.schema) as stream:
                stream.write_table(table)
            shards.append(Shard(str(path.relative_to(self.log)), name, table.num_rows, digest_file(path)))
        outcomes = {Outcome.not_sent.name: run.planned}
        files = digest_conditions(self.log)
        manifest = LogManifest(run=run, shards=shards, outcomes=outcomes, ended=REFUSED, ended_ns=0, files=files)
        write_manifest(self.log, manifest)


def describe_run(
    trace: Trace, job: Job, *, ready: Sequence[Ready] = (), lead_ns: int = 0, launcher: Launcher | None = None
) -> Run:
    """Return the conditions of a run that begins *lead_ns* from now; *job* is that of its first worker."""
    settings, launcher = job.settings, launcher or Local()
    offset_ns, width_ns = measure_offset_ns(1000)
    epoch_ns = time.monotonic_ns() + lead_ns
    return Run(
        run=job.run,
        trace_digest=trace.digest,
        shares=[part.planned for part in ready],
        trace_path=str(trace.path.resolve()) if trace.path else "",
        arrivals=_read_arrivals(trace.manifest.recipe),
        trace_name=trace.manifest.name,
        planned=trace.requests.num_rows,
        duration_s=plan_duration_s(trace, settings),
        loop=msgspec.to_builtins(choose_loop(trace, settings)),
        targets=[
            it.describe() | {"addresses": addresses} for it, addresses in zip(job.targets, job.addresses, strict=True)
        ],
        receive=ready[0].receive if ready else "none",
        pacing=ready[0].pacing if ready else "none",
        processes=settings.processes,
        nodes=launcher.nodes,
        launcher=launcher.describe(),
        settings=msgspec.to_builtins(settings),
        salt=job.run if settings.isolation in KEEPING else "",
        epoch_monotonic_ns=epoch_ns,
        epoch_realtime_ns=epoch_ns + offset_ns,
        offset_width_ns=width_ns,
    )


def _read_arrivals(recipe: str | None) -> list[dict[str, Any]]:
    """Return the arrival processes that a recipe declares, as it says them: what the judge holds the sends against."""
    try:
        declared = tomllib.loads(recipe or "").get("arrivals", [])
    except tomllib.TOMLDecodeError:
        return []
    return [it for it in (declared if isinstance(declared, list) else [declared]) if isinstance(it, dict)]


def _check_name(path: Path) -> None:
    """Refuse a place whose name run.json, which is UTF-8, cannot hold."""
    whole = str(path.absolute())
    try:
        whole.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{ascii(whole)[1:-1]}: expected a path in UTF-8, since run.json keeps it; rename it"
        ) from None


def _check_free(log: Path, *, force: bool) -> None:
    if is_held(log):
        raise LogError(f"{log}: a run is writing into it; wait for its end, or choose another name")
    is_unfinished = not (log / NAME).exists() and any((log / name).is_file() for name in (RUN_NAME, ENVIRONMENT_NAME))
    if is_unfinished and force:
        return
    with contextlib.suppress(LogError):
        if read_manifest(log, LogManifest, "log", VERSION, LogError).ended == REFUSED:
            return  # nothing was ever sent
    check_free(log, "log", LogError, force=force)


def _make_refused(trace: Trace, reason: str) -> pa.Table:
    given = {name: trace.requests[name] for name in ("request", "session", "turn", "due_ns")}
    return make_rows(Outcome.not_sent, given | {"error": [reason[:200]] * trace.requests.num_rows})

# Faults while a run is under way, and what recovery makes of them: what was acknowledged is there, everybody is
# accounted for, nothing goes on sending what nobody logs, and the verdict tells it.

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logs import health_row, make_log

from loadshape.log import Log
from loadshape.recovery import recover
from loadshape.replayer import replay
from loadshape.replayer.job import Progress
from loadshape.replayer.worker import FLUSH_TICKS, TICK_NS
from loadshape.target import Target
from loadshape.trace import Trace
from loadshape.validity import judge
from traces import open_loop

from .conftest import Launch, check_books, find_workers, has_rows, salvage, wait_for

PLANNED = 1500
RUN = """
    try:
        replay(open_loop({planned}, 10), Target({url!r}), log="a.log", processes=2)
    except LoadshapeError as error:
        print(type(error).__name__, error)
"""


def start(launch: Launch, url: str) -> subprocess.Popen[str]:
    """Start a run of 15 s on two workers."""
    process: subprocess.Popen[str] = launch(RUN.format(planned=PLANNED, url=url))
    return process


def wait_for_rows(log: Path) -> list[int]:
    """Wait until both workers have written some of their requests, and return them in their order."""
    wait_for(lambda: has_rows(log) and salvage(log / "worker-01" / "requests.arrows"), "rows of both workers")
    workers = find_workers(log)
    assert len(workers) == 2
    return sorted(workers, key=lambda worker: not holds(worker, log / "worker-00"))


def holds(process: int, folder: Path) -> bool:
    return any(os.readlink(entry).startswith(f"{folder}/") for entry in Path(f"/proc/{process}/fd").iterdir())


def read_acknowledged(log: Path) -> list[dict[str, Any]]:
    """Return the rows of requests that lie on the disk in whole batches."""
    tables = [salvage(path) for path in sorted(log.glob("worker-*/requests.arrows"))]
    return sorted(pa.concat_tables([it for it in tables if it]).to_pylist(), key=lambda row: int(row["request"]))


def check_recovery(log: Path, trace: Trace) -> Log:
    """Recover a log, check what every recovered one must keep, and return it."""
    acknowledged = read_acknowledged(log)
    saved = recover(log, log.with_name("saved.log"), trace=trace)
    saved.verify(trace.digest)
    assert sum(saved.manifest.outcomes.values()) == saved.run.planned == trace.requests.num_rows
    assert [row for row in saved.requests.to_pylist() if row["outcome"] != "lost"] == acknowledged
    assert saved.requests["session"].equals(trace.requests["session"].cast("uint32"))
    assert saved.manifest.ended.startswith("recovered: ")
    verdict = judge(saved)
    assert verdict.status in ("SUSPECT", "INVALID")
    assert saved.manifest.ended in [check.measured for check in verdict.reasons]
    return saved


# Killed processes


@pytest.mark.slow
def test_a_killed_worker_loses_its_last_second(url: str, tmp_path: Path, launch: Launch) -> None:
    log = tmp_path / "a.log"
    process = start(launch, url)
    victim, other = wait_for_rows(log)
    os.kill(victim, signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    assert output.startswith("WorkerLost worker 0 was killed by signal 9; the log is incomplete; save")
    assert errors == ""
    assert not Path(f"/proc/{other}").exists()
    saved = check_recovery(log, open_loop(PLANNED, 10))
    counts = saved.manifest.outcomes
    assert counts["ok"] > 0
    assert counts["lost"] > PLANNED / 4
    lost = saved.requests.filter(pa.compute.equal(saved.requests["outcome"].cast("string"), "lost"))
    assert set(lost["session"].to_numpy() % 2) == {0}  # of worker 0 alone: worker 1 had the time to close its files
    flushes = FLUSH_TICKS * TICK_NS
    assert max(lost["due_ns"].to_numpy()) > flushes
    assert "requests not ended" in saved.manifest.notes[0]
    assert saved.manifest.notes[0].startswith(f"worker 0: {PLANNED // 2 - counts['lost']:,} of 750 requests have a row")
    assert saved.manifest.notes[1].startswith("worker 1: 750 of 750 requests have a row")
    assert judge(saved).status == "INVALID"


@pytest.mark.slow
def test_a_killed_coordinator_loses_nothing(url: str, tmp_path: Path, launch: Launch) -> None:
    log = tmp_path / "a.log"
    process = start(launch, url)
    workers = wait_for_rows(log)
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), "the workers to end")
    saved = check_recovery(log, open_loop(PLANNED, 10))
    check_books(saved)
    assert set(saved.manifest.outcomes) <= {"ok", "cancelled", "not_reached"}
    assert all(note.endswith("all files are whole") for note in saved.manifest.notes if note.startswith("worker"))
    reasons = {row["error"] for row in saved.requests.to_pylist() if row["outcome"] == "not_reached"}
    assert reasons == {"the coordinator is gone"}


@pytest.mark.slow
def test_when_all_are_killed_at_once_the_whole_batches_stay(url: str, tmp_path: Path, launch: Launch) -> None:
    log = tmp_path / "a.log"
    process = start(launch, url)
    workers = wait_for_rows(log)
    for victim in (process.pid, *workers):
        os.kill(victim, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), "the workers to end")
    saved = check_recovery(log, open_loop(PLANNED, 10))
    assert set(saved.manifest.outcomes) == {"ok", "lost"}
    assert saved.reads.num_rows > 0


# A disk that does not take it. The command line is run, since its exit code and its one line are the point.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of 128 kB that is full when it is."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"a small file system needs the right to mount: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def replay_until_full(url: str, log: Path, trace: Path, shell: str = "") -> tuple[str, float]:
    """Replay until the disk is full; check the exit code, and return the error line and how long it took."""
    program = [str(Path(sys.executable).with_name("loadshape")), "replay", str(trace), "--target", url, "-o", str(log)]
    began_s = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f'{shell} exec "$0" "$@"', *program, "--json"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    return done.stderr, time.monotonic() - began_s


def check_full(log: Path, trace: Trace, told: tuple[str, float], reason: str) -> None:
    """Check that the run ended soon, said why in one line, and that what was written before is there."""
    line, took_s = told
    remedy = f"save what was written before with: loadshape recover {log} -o NEW.log"
    assert line == f"loadshape: log: cannot be written: {reason}; {remedy}\n"
    assert took_s < 15  # of the 20 s that were planned
    assert find_workers(log) == []
    saved = recover(log, log.parent.parent / "saved.log")  # the trace lies where it was
    saved.verify(trace.digest)
    counts = saved.manifest.outcomes
    assert sum(counts.values()) == trace.requests.num_rows
    assert counts["ok"] > 0
    assert counts["lost"] > 0
    assert saved.reads.num_rows > 0
    assert any(" bytes behind " in note for note in saved.manifest.notes)
    assert judge(saved).status == "INVALID"


@pytest.mark.slow
def test_a_full_disk_stops_the_run(url: str, tmp_path: Path, small_disk: Path) -> None:
    trace = open_loop(2000, 10, output_tokens=40)
    log = small_disk / "a.log"
    told = replay_until_full(url, log, trace.write(tmp_path / "a.trace"))
    check_full(log, trace, told, "No space left on device")


@pytest.mark.slow
def test_a_file_that_may_not_grow_stops_the_run(url: str, tmp_path: Path) -> None:
    trace = open_loop(2000, 10, output_tokens=40)
    log = tmp_path / "logs" / "a.log"
    told = replay_until_full(url, log, trace.write(tmp_path / "a.trace"), shell="ulimit -f 128;")
    check_full(log, trace, told, "File too large")


# Time that jumps


@pytest.mark.slow
def test_a_worker_that_was_stopped_loses_nothing_and_is_not_valid(url: str, tmp_path: Path) -> None:
    log, stopped = tmp_path / "a.log", []

    def stop(progress: Progress, _elapsed_s: float) -> None:
        if progress.begun > 50 and not stopped:
            stopped.extend(find_workers(log))
            os.kill(stopped[0], signal.SIGSTOP)
            time.sleep(3)
            os.kill(stopped[0], signal.SIGCONT)

    played = replay(open_loop(400, 10, output_tokens=20), Target(url), log=log, processes=1, watch=stop)
    check_books(played)
    assert len(stopped) == 1
    assert played.manifest.outcomes == {"ok": 400}
    verdict = judge(played)
    assert verdict.status == "INVALID"
    assert {"lateness", "punctuality"} <= {check.name for check in verdict.reasons}


@pytest.mark.parametrize("step_ns", [1_000_000, -1_000_000])
def test_a_clock_that_is_set_during_the_run_is_seen(step_ns: int) -> None:
    epoch_ns = 1_900_000_000_000_000_000
    ticks = [health_row(100.0 * at, realtime_offset_ns=epoch_ns + (at >= 20) * step_ns) for at in range(40)]
    verdict = judge(make_log(health=ticks))
    (step,) = [check for check in verdict.checks if check.name == "clock step"]
    assert (step.status, verdict.status) == ("invalid", "INVALID")

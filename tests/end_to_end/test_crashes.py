# A run that is cut: by its user, by a killed worker, by a killed coordinator, by a server that dies. What was
# acknowledged survives, everybody is accounted for, and nobody is left behind.

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from loadshape.errors import LogError
from loadshape.lease import is_held
from loadshape.log import Log
from loadshape.recovery import recover
from loadshape.replayer import Settings, replay
from loadshape.replayer.job import Progress
from loadshape.target import Target
from traces import open_loop

from .conftest import Launch, check_books, find_workers, has_rows, salvage, wait_for

pytestmark = pytest.mark.slow

RUN = """
    target = Target({url!r}, headers={headers!r})
    try:
        log = replay(
            open_loop({count}, 10), target, log="a.log", processes={processes},
            settings=Settings(interrupt_grace_s={grace_s}),
        )
        print("ended", log.manifest.ended)
    except LoadshapeError as error:
        print(type(error).__name__, error)
"""


def start(
    launch: Launch, url: str, *, slow: bool = False, processes: int = 1, grace_s: float = 5.0
) -> subprocess.Popen[str]:
    """Start a run of 20 s, or one whose answers take for ever."""
    headers = {"x-itl-us": "60000000"} if slow else {}
    process: subprocess.Popen[str] = launch(
        RUN.format(url=url, headers=headers, count=2000, processes=processes, grace_s=grace_s)
    )
    return process


def test_ctrl_c_stops_the_sending_and_closes_an_honest_log(url: str, tmp_path: Path, launch: Launch) -> None:
    log = tmp_path / "a.log"
    process = start(launch, url)
    wait_for(lambda: has_rows(log), "the first rows")
    workers = find_workers(log)
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - began_s < 10
    assert (output, errors, process.returncode) == ("ended interrupted\n", "", 0)
    closed = Log.open(log)
    check_books(closed)
    counts = closed.manifest.outcomes
    assert set(counts) <= {"ok", "cancelled", "not_reached"}
    assert counts["ok"] > 0
    assert counts["not_reached"] > 0
    reasons = {row["error"] for row in closed.requests.to_pylist() if row["outcome"] == "not_reached"}
    assert reasons == {"interrupted by the user"}
    assert closed.duration_s < 20
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_a_second_ctrl_c_cuts_at_once(url: str, tmp_path: Path, launch: Launch) -> None:
    log = tmp_path / "a.log"
    process = start(launch, url, slow=True, grace_s=600)
    wait_for(lambda: salvage(log / "worker-00" / "reads.arrows"), "the first reads")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # the answers in flight have 600 s
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (output, errors) == ("ended interrupted\n", "")
    closed = Log.open(log)
    check_books(closed)
    assert set(closed.manifest.outcomes) == {"cancelled", "not_reached"}


def test_a_killed_worker(url: str, tmp_path: Path, launch: Launch) -> None:
    log = tmp_path / "a.log"
    process = start(launch, url, processes=2)
    wait_for(lambda: has_rows(log), "the first rows")
    workers = find_workers(log)
    assert len(workers) == 2
    (victim,) = [worker for worker in workers if holds(worker, log / "worker-00")]
    os.kill(victim, signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    assert output == (
        "WorkerLost worker 0 was killed by signal 9; the log is incomplete; "
        "save what was written before with: loadshape recover a.log -o NEW.log\n"
    )
    assert errors == ""
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert not (log / "manifest.json").exists()
    with pytest.raises(LogError, match="incomplete: the run was cut before its manifest was written"):
        Log.open(log)
    rows = salvage(log / "worker-00" / "requests.arrows")
    assert rows is not None
    assert set(rows["outcome"].to_pylist()) == {"ok"}


def holds(process: int, folder: Path) -> bool:
    """Whether a process has a file of *folder* open."""
    return any(os.readlink(entry).startswith(f"{folder}/") for entry in Path(f"/proc/{process}/fd").iterdir())


def test_a_killed_coordinator_leaves_no_orphan_that_sends(url: str, tmp_path: Path, launch: Launch) -> None:
    log = tmp_path / "a.log"
    process = start(launch, url, processes=2, slow=True)
    wait_for(lambda: salvage(log / "worker-01" / "reads.arrows"), "the first reads")
    workers = find_workers(log)
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), "the workers to end")
    for worker in ("worker-00", "worker-01"):  # they had the time to close their files
        rows = salvage(log / worker / "requests.arrows")
        assert rows is not None
        assert rows.num_rows == 1000
        assert set(rows["outcome"].to_pylist()) == {"cancelled", "not_reached"}
    with pytest.raises(LogError, match="incomplete"):
        Log.open(log)


def test_a_server_that_dies(tmp_path: Path, launch: Launch) -> None:
    server = launch(
        """
        from loadshape.endpoint import Script, serve
        serve(Script(ttft_s=0.02, itl_s=0.02), announce=lambda url: print(url, flush=True))
        """
    )
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    log = tmp_path / "a.log"
    run = launch(RUN.format(url=url, headers={}, count=150, processes=1, grace_s=5))
    wait_for(lambda: has_rows(log), "the first rows")
    server.kill()
    output, errors = run.communicate(timeout=60)
    assert (output, errors) == ("ended complete\n", "")
    closed = Log.open(log)
    check_books(closed)
    counts = closed.manifest.outcomes
    assert set(counts) <= {"ok", "truncated", "reset", "refused"}
    assert counts["ok"] > 0
    assert counts["refused"] > 0
    assert counts.get("truncated", 0) + counts.get("reset", 0) > 0


def test_a_log_that_cannot_be_written_ends_the_run(url: str, tmp_path: Path, launch: Launch) -> None:
    # A limit on the size of files stands for a full disk: the first block of reads does not fit.
    process = launch(
        f"""
        target = Target({url!r}, headers={{"x-itl-us": "1000"}})
        try:
            replay(open_loop(10, 10, output_tokens=30_000), target, log="a.log", processes=1)
        except LoadshapeError as error:
            print(type(error).__name__, error)
        """,
        shell="ulimit -f 64;",
    )
    output, errors = process.communicate(timeout=60)
    assert output.startswith("ReplayError log: cannot be written: File too large; save what was written before with: ")
    assert (output.count("\n"), errors) == (1, "")
    assert not (tmp_path / "a.log" / "manifest.json").exists()


def test_a_ctrl_c_before_the_start(url: str, tmp_path: Path, launch: Launch) -> None:
    log = tmp_path / "a.log"
    process = start(launch, url, processes=2)
    wait_for(lambda: (log / "worker-01").exists(), "the workers")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors == "" or "KeyboardInterrupt" in errors
    wait_for(lambda: not find_workers(log), "the workers to end")


def test_a_caller_that_fails_leaves_nobody_behind(url: str, tmp_path: Path) -> None:
    def fail(_progress: object, _elapsed_s: float) -> None:
        raise ZeroDivisionError

    log = tmp_path / "a.log"
    with pytest.raises(ZeroDivisionError):
        replay(open_loop(1000, 10), Target(url), log=log, processes=2, watch=fail)
    assert find_workers(log) == []
    assert not (log / "manifest.json").exists()


def test_a_run_in_a_thread_of_its_own(url: str, tmp_path: Path) -> None:
    done: list[Log] = []
    thread = threading.Thread(target=lambda: done.append(replay(open_loop(5, 2), Target(url), log=tmp_path / "a.log")))
    thread.start()
    thread.join(60)
    assert done[0].manifest.outcomes == {"ok": 5}


@pytest.mark.parametrize("network", ["kernel", "user"])
def test_a_stall_of_our_own_is_not_taken_for_silence_of_the_server(url: str, tmp_path: Path, network: str) -> None:
    # The worker is stopped for longer than the limit while answers go on arriving at its sockets.
    log, stalls = tmp_path / "a.log", []

    def stall(progress: Progress, _elapsed_s: float) -> None:
        if progress.reads > 20 and not stalls:
            stalls.extend(find_workers(log))
            os.kill(stalls[0], signal.SIGSTOP)
            time.sleep(2.0)
            os.kill(stalls[0], signal.SIGCONT)

    target = Target(url, headers={"x-itl-us": "20000"})
    settings = Settings(receive=network, timeout_idle_s=1.5)  # longer than a busy machine may keep the server waiting
    trace = open_loop(20, 5, output_tokens=130)
    played = replay(trace, target, log=log, processes=1, settings=settings, watch=stall)
    check_books(played)
    assert len(stalls) == 1
    assert played.manifest.outcomes == {"ok": 20}


def test_a_run_under_way_is_neither_recovered_nor_replaced(url: str, tmp_path: Path) -> None:
    log, told = tmp_path / "a.log", list[str]()

    def look(progress: Progress, _elapsed_s: float) -> None:
        if not progress.begun or told:
            return
        for attempt in (
            lambda: recover(log, tmp_path / "b.log"),
            lambda: replay(open_loop(5, 2), Target(url), log=log, force=True),
        ):
            with pytest.raises(LogError) as raised:
                attempt()
            told.append(str(raised.value))

    check_books(replay(open_loop(40, 20), Target(url), log=log, processes=2, watch=look))
    assert told == [
        f"{log}: the run is still going, and what it has not written is not lost; wait for its end, or end it with "
        "Ctrl-C, which closes the log in order",
        f"{log}: a run is writing into it; wait for its end, or choose another name",
    ]
    assert not is_held(log)

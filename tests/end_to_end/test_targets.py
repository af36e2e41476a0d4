# Several targets: who serves what, what the log and the report say of each, and a replica that is lost half way.

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from loadshape.endpoint import Script, running
from loadshape.errors import InputError, TargetError
from loadshape.log import Log
from loadshape.replayer import Settings, replay
from loadshape.replayer.job import ROUTINGS, Progress
from loadshape.replayer.routing import route_trace
from loadshape.report import render
from loadshape.summary import summarize
from loadshape.target import Target
from loadshape.trace import Trace
from traces import ask, make_trace, open_loop, partly_open

from .conftest import check_books, play, read_columns

pytestmark = pytest.mark.slow
SCRIPT = Script(ttft_s=0.01, itl_s=0.002)
WEIGHTS = {"session": (1.0, 3.0), "round_robin": (1.0, 1.0), "weighted": (3.0, 1.0), "prefix": (1.0, 1.0)}
TALKS = partly_open(24, 2, gap=8, think=5, output_tokens=6)


def mixed() -> Trace:
    """Return requests with six different beginnings, in turn."""
    starts = [[("system", [f"Handbook {at % 6}"]), ("user", [f"Question {at}"])] for at in range(36)]
    return make_trace(*(ask(at * 5, messages=start) for at, start in enumerate(starts)))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Trace, Log, list[list[int]]]]:
    """Play every routing over two endpoints; return trace, log, and which requests each endpoint says it had."""
    folder = tmp_path_factory.mktemp("targets")
    logs: dict[str, tuple[Trace, Log]] = {}
    records = [folder / f"truth{at}.arrows" for at in range(2)]
    with running(SCRIPT, truth=records[0]) as first, running(SCRIPT, truth=records[1]) as second:
        for routing in ROUTINGS:
            trace = mixed() if routing == "prefix" else TALKS
            targets = [
                Target(url, weight=weight) for url, weight in zip((first, second), WEIGHTS[routing], strict=True)
            ]
            log = replay(trace, targets, log=folder / f"{routing}.log", processes=2, settings=Settings(routing=routing))
            check_books(log)
            logs[routing] = trace, log
    return {name: (trace, log, [list_served(path, log) for path in records]) for name, (trace, log) in logs.items()}


def list_served(path: Path, log: Log) -> list[int]:
    """Return the requests of *log* that an endpoint has in its record."""
    with pa.ipc.open_stream(path) as stream:
        names = set(stream.read_all()["request"].to_pylist())
    prefix = f"ls-{log.run.run}-"
    return sorted(int(name.removeprefix(prefix)) for name in names if name.startswith(prefix))


Played = dict[str, tuple[Trace, Log, list[list[int]]]]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_request_goes_where_the_policy_says(played: Played, routing: str) -> None:
    trace, log, served = played[routing]
    home = route_trace(trace, routing, WEIGHTS[routing]).home
    assert log.manifest.outcomes == {"ok": trace.requests.num_rows}
    assert log.requests["target"].to_pylist() == home
    assert served == [[row for row, target in enumerate(home) if target == at] for at in range(2)]
    assert set(home) == {0, 1}


def test_sessions_and_beginnings_stay_together(played: Played) -> None:
    for routing, column in (("session", "session"), ("prefix", "start")):
        trace, log, _ = played[routing]
        group = [row % 6 for row in range(36)] if column == "start" else trace.requests["session"].to_pylist()
        pairs = set(zip(group, log.requests["target"].to_pylist(), strict=True))
        assert len(pairs) == len(set(group))


def test_a_connection_belongs_to_one_target(played: Played) -> None:
    for _, log, _ in played.values():
        worker, connection, target = read_columns(log.requests, "worker", "connection", "target")
        pairs = set(zip(worker, connection, target, strict=True))
        assert len(pairs) == len({pair[:2] for pair in pairs})


def test_the_run_and_the_report_have_a_row_for_each_target(played: Played) -> None:
    _, log, served = played["weighted"]
    assert [target["weight"] for target in log.run.targets] == [3.0, 1.0]
    assert all(target["addresses"] == ["127.0.0.1"] and target["model"] == "sim" for target in log.run.targets)
    assert set(log.environment["server"]) == {target["url"] for target in log.run.targets}
    summary = summarize(log)
    assert [it.requests for it in summary.by_target] == [len(numbers) for numbers in served] == [36, 12]
    document = json.loads(render(summary, "json"))["by_target"]
    assert [it["outcomes"] for it in document] == [{"ok": 36}, {"ok": 12}]
    assert all(it["ttft"]["count"] == it["requests"] and it["ttft"]["min_s"] >= 0.01 for it in document)
    assert sum(it["output_tokens_per_s"] for it in document) == pytest.approx(summary.throughput.output_tokens_per_s)
    text = render(summary, "text")
    assert max(map(len, text.splitlines())) <= 100
    for told in ("target 0", "target 1", *(target["url"] for target in log.run.targets)):
        assert told in text
        assert told in render(summary, "html")


def test_a_single_target_has_no_table_of_targets(url: str, tmp_path: Path) -> None:
    summary = summarize(play(open_loop(5, 5), Target(url), tmp_path / "a.log"))
    assert summary.by_target == ()
    assert "target 0" not in render(summary, "text")


# The lost replica


@contextmanager
def two_replicas() -> Iterator[tuple[list[str], int]]:
    """Run two endpoints; give their URLs and the process of the second one."""
    with running(SCRIPT) as first:
        before = {child.pid for child in multiprocessing.active_children()}
        with running(SCRIPT) as second:
            (pid,) = {child.pid for child in multiprocessing.active_children()} - before
            assert pid is not None
            yield [first, second], pid


def lose_replica(trace: Trace, log: Path, **settings: Any) -> tuple[Log, int]:
    """Replay over two replicas and kill the second after a third of the trace; return the log and when, in ns."""
    killed: list[float] = []
    with two_replicas() as (urls, pid):

        def kill(progress: Progress, elapsed_s: float) -> None:
            if progress.begun > trace.requests.num_rows // 3 and not killed:
                os.kill(pid, signal.SIGKILL)
                killed.append(elapsed_s)

        played = replay(
            trace, [Target(url) for url in urls], log=log, processes=1, settings=Settings(**settings), watch=kill
        )
    check_books(played)
    return played, round(killed[0] * 1e9)


def list_losses(log: Log) -> list[str]:
    """Return what the log notes of lost targets; it may note other things too."""
    return [note for note in log.manifest.notes if " was lost " in note]


def count_late(log: Log, after_ns: int) -> dict[tuple[str, int], int]:
    """Return {(outcome, target): requests} of those that fell due later."""
    late = log.requests.filter(pc.greater(log.requests["due_ns"], after_ns))
    pairs = list(zip(late["outcome"].to_pylist(), late["target"].to_pylist(), strict=True))
    return {pair: pairs.count(pair) for pair in pairs}


def test_without_a_policy_a_lost_target_goes_on_failing(tmp_path: Path) -> None:
    log, killed_ns = lose_replica(open_loop(150, 10), tmp_path / "a.log")
    late = count_late(log, killed_ns + 200_000_000)
    assert set(late) == {("ok", 0), ("refused", 1)}
    assert list_losses(log) == []


def test_the_requests_of_a_lost_target_end(tmp_path: Path) -> None:
    log, killed_ns = lose_replica(open_loop(150, 10), tmp_path / "a.log", on_dead="end", dead_after=3)
    late = count_late(log, killed_ns + 300_000_000)
    assert set(late) == {("ok", 0), ("not_reached", 1)}
    failed = log.manifest.outcomes.get("refused", 0) + log.manifest.outcomes.get("reset", 0)
    assert 3 <= failed < 20
    unreached = log.requests.filter(pc.equal(log.requests["outcome"].cast("string"), "not_reached"))
    assert set(unreached["error"].to_pylist()) == {"its target was lost"}
    (note,) = list_losses(log)
    assert note.startswith("worker 0: target 1 was lost ")
    assert "its requests ended as not_reached" in note
    text = render(summarize(log), "text")
    assert "target 1 was lost" in text


def test_the_sessions_of_a_lost_target_move(tmp_path: Path) -> None:
    trace = partly_open(60, 3, gap=25, think=100, output_tokens=4)
    log, killed_ns = lose_replica(trace, tmp_path / "a.log", on_dead="move", dead_after=2)
    session, target, due_ns = read_columns(log.requests, "session", "target", "due_ns")
    outcome = np.array(log.requests["outcome"].to_pylist())
    late = count_late(log, killed_ns + 500_000_000)
    assert ("ok", 1) not in late
    assert late["ok", 0] > 20
    moved = {number for number in set(session) if set(target[(session == number) & (outcome == "ok")]) == {0, 1}}
    assert moved  # sessions that had a turn there, and went on here
    home = route_trace(trace, "session", (1.0, 1.0)).home
    new = (np.array(home) == 1) & (due_ns > killed_ns + 500_000_000) & (outcome == "ok")
    assert set(target[new]) == {0}
    assert "its requests moved to the others" in list_losses(log)[0]


# Refusals


def test_two_targets_with_different_models_are_refused(tmp_path: Path) -> None:
    with running(SCRIPT, model="small") as small, running(SCRIPT, model="large") as large:
        with pytest.raises(TargetError, match=r"target\.model: expected one model for all targets, found 'small' at"):
            replay(open_loop(5, 5), [Target(small), Target(large)], log=tmp_path / "a.log")
        assert Log.open(tmp_path / "a.log").manifest.outcomes == {"not_sent": 5}


def test_a_source_that_is_not_ours_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"source_ips: 192\.0\.2\.9 is not an address of this host"):
        replay(open_loop(5, 5), Target(url), log=tmp_path / "a.log", settings=Settings(source_ips=["192.0.2.9"]))
    assert not (tmp_path / "a.log").exists()


# Source addresses


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Answer every connection with an error, and note where it came from."""
    peers: list[str] = []
    answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    def answer_all(listener: socket.socket) -> None:
        while True:
            try:
                peer, (address, _) = listener.accept()
            except OSError:
                return
            with peer:
                if peer.recv(65536):  # else it was opened ahead, and not used
                    peers.append(address)
                    peer.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_all, args=(listener,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", peers
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.mark.parametrize("network", ["kernel", "user"])
def test_connections_come_from_all_source_addresses_in_turn(tmp_path: Path, network: str) -> None:
    sources = ["127.0.0.2", "127.0.0.3"]
    with listening() as (url, peers):
        target = Target(url, model="tiny")
        log = play(open_loop(10, 20), target, tmp_path / "a.log", source_ips=sources, receive=network, preflight=False)
    assert log.manifest.outcomes == {"http_error": 10}
    assert sorted(peers) == ["127.0.0.2"] * 5 + ["127.0.0.3"] * 5
    assert log.run.settings["source_ips"] == sources

# Each outcome of the list, produced by its cause, over real sockets. Of times only orders are tested.

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadshape import replayer
from loadshape.endpoint import FAULTS, Script, running
from loadshape.log import Log
from loadshape.target import Target
from traces import ask, closed_loop, make_trace, open_loop, partly_open

from .conftest import Launch, play, read_columns

pytestmark = pytest.mark.slow
NETWORKS = ("kernel", "user")

# Every fault of the endpoint, and what it must be called.
CALLED = dict.fromkeys(FAULTS, "ok")
CALLED |= dict.fromkeys(("400", "429", "500", "503"), "http_error")
CALLED |= dict.fromkeys(("html200", "gzip_lie", "garbage"), "protocol_error")
CALLED |= dict.fromkeys(("truncate", "cutoff"), "truncated")
CALLED |= dict.fromkeys(("error_event", "abort"), "in_band_error")
CALLED |= dict.fromkeys(("empty", "role_only"), "no_token")
CALLED |= {"reset": "reset", "stall": "timeout_idle"}
FAULTY = Script(ttft_s=0.005, itl_s=0.002, faults=tuple(FAULTS), fault_rate=1.0)


def outcomes(log: Log) -> list[str]:
    found: list[str] = log.requests["outcome"].to_pylist()
    return found


# Faults of the server


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Log]]:
    """Replay the same 160 requests over both networks; the run's name, and so each fault, is the same."""
    folder = tmp_path_factory.mktemp("struck")
    trace = open_loop(160, 5, output_tokens=12)
    with running(FAULTY) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(replayer.secrets, "token_hex", lambda _: "5eed0001")
        yield {
            network: play(trace, Target(url), folder / f"{network}.log", receive=network, timeout_idle_s=1.2)
            for network in NETWORKS
        }


@pytest.mark.parametrize("network", NETWORKS)
def test_every_fault_has_its_outcome(struck: dict[str, Log], network: str) -> None:
    log = struck[network]
    assert log.run.receive == network
    faults = [FAULTY.draw(f"ls-{log.run.run}-{at}").fault for at in range(160)]
    assert set(faults) == set(FAULTS)
    wrong = [(fault, outcome) for fault, outcome in zip(faults, outcomes(log), strict=True) if CALLED[fault] != outcome]
    assert wrong == []


@pytest.mark.parametrize("column", ["outcome", "events", "status", "finish_reason", "completion_tokens", "error"])
def test_both_networks_say_the_same(struck: dict[str, Log], column: str) -> None:
    kernel, user = (struck[network].requests[column].to_pylist() for network in NETWORKS)
    assert kernel == user


@pytest.mark.parametrize("network", NETWORKS)
def test_an_error_is_explained_and_a_success_is_not(struck: dict[str, Log], network: str) -> None:
    for row in struck[network].requests.to_pylist():
        assert (row["error"] is None) == (row["outcome"] == "ok"), row
        assert row["error"] is None or ("\n" not in row["error"] and len(row["error"]) <= 200)


@pytest.mark.parametrize("network", NETWORKS)
def test_connections_are_used_again_only_after_a_whole_answer(struck: dict[str, Log], network: str) -> None:
    broken = {"reset", "timeout_idle", "protocol_error"}
    rows = sorted(struck[network].requests.to_pylist(), key=lambda row: row["sent_ns"])
    last: dict[int, dict[str, Any]] = {}
    for row in rows:
        before = last.get(row["connection"])
        assert row["reused"] == (before is not None)
        assert (row["connected_ns"] is None) or not row["reused"]
        if before is not None:
            assert before["outcome"] not in broken
            assert before["done_ns"] <= row["sent_ns"]
        last[row["connection"]] = row
    assert len(last) < len(rows)


# Limits and patience


@pytest.mark.parametrize("network", NETWORKS)
def test_patience_and_the_total_limit(url: str, tmp_path: Path, network: str) -> None:
    trace = make_trace(
        ask(0, output_tokens=100, patience=(300, None)),
        ask(0, output_tokens=100, patience=(None, 3)),
        ask(0, output_tokens=100),
        ask(0, output_tokens=4),
        ask(0, output_tokens=4, patience=(60_000, 50)),
    )
    target = Target(url, headers={"x-itl-us": "50000"})
    log = play(trace, target, tmp_path / "a.log", receive=network, timeout_total_s=0.8)
    assert outcomes(log) == ["cancelled", "cancelled", "timeout_total", "ok", "ok"]
    errors = log.requests["error"].to_pylist()
    assert errors[0] == "planned: the client gave up after its patience"
    assert errors[1] == "planned: the client had enough tokens"
    due_ns, done_ns, begun_ns = read_columns(log.requests, "due_ns", "done_ns", "begun_ns")
    assert done_ns[0] >= due_ns[0] + 300_000_000
    assert done_ns[2] >= begun_ns[2] + 800_000_000
    deltas = np.bincount(*read_columns(log.reads, "request", "deltas"))
    assert 3 <= deltas[1] <= 20
    assert done_ns[1] < done_ns[2]


def test_no_token_in_time(url: str, tmp_path: Path) -> None:
    # The limit to the first token is shorter than the one to connect: it must be kept all the same.
    target = Target(url, headers={"x-ttft-us": "30000000"})
    log = play(open_loop(3, 1), target, tmp_path / "a.log", timeout_first_s=0.3)
    assert outcomes(log) == ["timeout_first"] * 3
    sent_ns, done_ns = read_columns(log.requests, "sent_ns", "done_ns")
    assert (done_ns >= sent_ns + 300_000_000).all()
    assert (done_ns < sent_ns + 9_000_000_000).all()  # not when the limit to connect would have passed


# Servers that are not there


@pytest.mark.parametrize("network", NETWORKS)
def test_nobody_listens(tmp_path: Path, network: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    trace = partly_open(4, 3, gap=5, think=1)
    log = play(trace, Target(f"http://127.0.0.1:{port}/v1"), tmp_path / "a.log", preflight=False, receive=network)
    assert outcomes(log) == ["refused", "not_reached", "not_reached"] * 4
    row, unreached, *_ = log.requests.to_pylist()
    assert row["error"] == "Connection refused"
    assert (row["begun_ns"] >= row["due_ns"], row["sent_ns"], row["connection"] is None) == (True, None, True)
    assert (unreached["due_ns"], unreached["begun_ns"]) == (None, None)
    assert "predecessor" in unreached["error"]
    assert log.manifest.ended == "complete"
    assert log.manifest.ended_ns < 5_000_000_000  # over when the last request is, not when a limit passes


@pytest.mark.parametrize("network", NETWORKS)
def test_a_server_that_never_accepts(tmp_path: Path, network: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        full = [socket.socket() for _ in range(4)]
        for client in full:  # the queue is full, and a further SYN is dropped
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        target = Target(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        trace = make_trace(ask(400), ask(410))
        log = play(trace, target, tmp_path / "a.log", preflight=False, receive=network, timeout_connect_s=0.3)
        for client in full:
            client.close()
    assert outcomes(log) == ["timeout_connect"] * 2
    begun_ns, done_ns = read_columns(log.requests, "begun_ns", "done_ns")
    assert (done_ns >= begun_ns + 300_000_000).all()


def test_without_descriptors_requests_are_not_sent(url: str, tmp_path: Path, launch: Launch) -> None:
    script = f"""
        target = Target({url!r}, headers={{"x-ttft-us": "1000000"}})
        log = replay(open_loop(120, 2), target, log="a.log", processes=1)
        print(log.manifest.outcomes)
    """
    process = launch(script, shell="ulimit -n 100;")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    log = Log.open(tmp_path / "a.log")
    log.verify()
    assert set(log.manifest.outcomes) == {"ok", "not_sent"}, output
    (reason,) = {row["error"] for row in log.requests.to_pylist() if row["outcome"] == "not_sent"}
    assert reason == "this host has no connection left: Too many open files"
    assert log.manifest.ended == "complete"


# Every kind of request, and runs that end early


def test_every_kind_of_request_is_understood(url: str, tmp_path: Path) -> None:
    long_prompt = "word " * 40_000
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    trace = make_trace(
        ask(0, messages=(("system", (long_prompt[:60_000],)), ("user", ("Hello ", "there")))),
        ask(1, messages=(("system", (long_prompt[:60_000],)), ("user", ("日本 🙂",)))),
        ask(2, api="completions", messages=(("user", ("Once ", "upon")),)),
        ask(3, api="completions", messages=(("user", (("token_ids", [1, 2, 3]),)),)),
        ask(4, params={"max_tokens": 7, "tools": [tool]}),
        ask(5, messages=(("user", ("Look: ", ("json", {"type": "text", "text": "here"}))),)),
        ask(6, params={"stream": False}),
    )
    log = play(trace, Target(url), tmp_path / "a.log", body={"temperature": 0})
    assert outcomes(log) == ["ok"] * 7
    assert log.requests["completion_tokens"].to_pylist() == [4, 4, 4, 4, 7, 4, 4]
    assert log.requests["prompt_tokens"].to_pylist()[3] == 3
    assert log.run.settings["body"] == {"temperature": 0}


def test_more_processes_than_sessions(url: str, tmp_path: Path) -> None:
    log = play(make_trace(ask(0)), Target(url), tmp_path / "a.log", processes=2)
    assert outcomes(log) == ["ok"]


def test_the_grace_begins_when_the_last_request_was_taken(url: str, tmp_path: Path) -> None:
    # Two slots, six answers of 300 ms, and a grace shorter than one: only the last two are cut.
    target = Target(url, headers={"x-ttft-us": "300000"})
    log = play(closed_loop(6, 2), target, tmp_path / "a.log", grace_s=0.01)
    assert outcomes(log) == ["ok"] * 4 + ["cancelled"] * 2
    assert log.requests["error"].to_pylist()[4:] == ["cut at the end of the run"] * 2
    assert log.manifest.ended == "complete"

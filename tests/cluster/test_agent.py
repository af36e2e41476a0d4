# An agent without Ray: what it does on its node, and what it says when something breaks there.

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from end_to_end.conftest import find_workers, wait_for

from loadshape.cluster import agent as module
from loadshape.cluster.agent import Agent, Heard
from loadshape.cluster.beacon import Sounder, make_token
from loadshape.cluster.portion import cut_portions
from loadshape.endpoint import Script, running
from loadshape.errors import InputError, ReplayError, StartMissed, TargetError
from loadshape.log import ENVIRONMENT_NAME, READS, REQUESTS, SCHEMAS
from loadshape.replayer import capacity
from loadshape.replayer.job import Done, Job, Progress, Ready, Settings, Start, Stop
from loadshape.shard import read_stream
from loadshape.target import Target
from traces import closed_loop, open_loop

SOON_NS = 500_000_000
TOKEN = make_token()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(Script(ttft_s=0.01, itl_s=0.001)) as address:
        yield address


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent("127.0.0.1", TOKEN)
    yield made
    made.close()


def make_job(url: str, tmp_path: Path, **changes: Any) -> Job:
    """Return the job of the first worker of node 1, which has two."""
    job = Job(
        trace="",
        log=str(tmp_path / "shared.log"),
        run="0a1b2c3d",
        worker=2,
        targets=[Target(url, model="sim")],
        addresses=[["127.0.0.1"]],
        settings=Settings(processes=2),
        node=1,
    )
    return msgspec.structs.replace(job, **changes)


def hear_all(agent: Agent, until: type, count: int = 1) -> list[tuple[int, Any]]:
    """Return all that is said until *count* reports of a kind have come."""
    found: list[tuple[int, Any]] = []
    deadline = time.monotonic() + 60
    while sum(isinstance(it, until) for _, it in found) < count:
        assert time.monotonic() < deadline
        found += agent.hear(0.2).reports
    return found


def hear_end(agent: Agent) -> Heard:
    """Return what is said last."""
    deadline = time.monotonic() + 60
    while not (heard := agent.hear(0.2)).is_over:
        assert time.monotonic() < deadline
    return heard


def prepare(agent: Agent, job: Job, tmp_path: Path, *, requests: int = 8, gap: float = 10.0) -> Path:
    """Give the agent its part of a trace, and return where its log is."""
    portion = list(cut_portions(open_loop(requests, gap), 2))[1]
    return Path(agent.prepare(job, portion, scratch=str(tmp_path), is_shared=False))


def test_a_node_plays_its_portion_and_hands_over_what_it_wrote(agent: Agent, url: str, tmp_path: Path) -> None:
    log = prepare(agent, make_job(url, tmp_path), tmp_path)
    ready = [it for it in hear_all(agent, Ready, 2) if isinstance(it[1], Ready)]
    assert sorted((worker, said.planned) for worker, said in ready) == [(2, 2), (3, 2)]
    epoch_ns = time.monotonic_ns() + SOON_NS
    told = agent.tell(Start(epoch_ns=epoch_ns))
    assert told[0] == epoch_ns
    assert abs(told[1] - time.time_ns()) < 10 * SOON_NS
    heard = hear_all(agent, Done, 2)
    assert {worker for worker, it in heard if isinstance(it, Done)} == {2, 3}
    assert any(isinstance(it, Progress) for _, it in heard)
    assert hear_end(agent) == Heard([], is_over=True)
    files = {it.path: it for it in agent.list_files()}
    assert set(files) == {f"worker-0{worker}/{name}.arrows" for worker in (2, 3) for name in SCHEMAS}
    for path, file in files.items():
        content = (log / path).read_bytes()
        pieces = [agent.read_piece(path, start, 100) for start in range(0, file.size_bytes, 100)]
        assert b"".join(pieces) == content
        assert (file.size_bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    rows = [read_stream(log / f"worker-0{worker}/requests.arrows", REQUESTS) for worker in (2, 3)]
    assert [table["request"].to_pylist() for table in rows] == [[1, 5], [3, 7]]  # the numbers of the whole trace
    assert [set(table["worker"].to_pylist()) for table in rows] == [{2}, {3}]
    assert {node for table in rows for node in table["node"].to_pylist()} == {1}
    assert read_stream(log / "worker-02/reads.arrows", READS).num_rows > 0
    agent.clear()
    assert list(tmp_path.iterdir()) == []


def test_on_a_shared_disk_workers_write_into_the_log_itself(agent: Agent, url: str, tmp_path: Path) -> None:
    job, scratch = make_job(url, tmp_path), tmp_path / "scratch"
    portion = list(cut_portions(open_loop(4, 10), 2))[1]
    with pytest.raises(InputError, match=r"is_shared: .*/shared.log is not there on this node"):
        agent.prepare(job, portion, scratch=str(tmp_path / "other"), is_shared=True)
    Path(job.log).mkdir()
    (Path(job.log) / ENVIRONMENT_NAME).write_text("{}")  # as the coordinator leaves it
    assert agent.prepare(job, portion, scratch=str(scratch), is_shared=True) == job.log
    hear_all(agent, Ready, 2)
    agent.tell(Start(epoch_ns=time.monotonic_ns() + SOON_NS))
    hear_all(agent, Done, 2)
    assert sorted(it.name for it in Path(job.log).iterdir()) == [ENVIRONMENT_NAME, "worker-02", "worker-03"]
    agent.close()
    assert list(scratch.iterdir()) == []  # its portion is of no use any more
    assert (Path(job.log) / "worker-02" / "requests.arrows").exists()


def test_before_the_start_there_is_nothing_to_keep(agent: Agent, url: str, tmp_path: Path) -> None:
    prepare(agent, make_job(url, tmp_path), tmp_path)
    hear_all(agent, Ready, 2)
    agent.close()
    assert list(tmp_path.iterdir()) == []


def test_files_are_handed_out_when_nobody_writes_them_any_more(agent: Agent, url: str, tmp_path: Path) -> None:
    log = prepare(agent, make_job(url, tmp_path), tmp_path, requests=4000)
    hear_all(agent, Ready, 2)
    agent.tell(Start(epoch_ns=time.monotonic_ns() + SOON_NS))
    wait_for(lambda: len(find_workers(log)) == 2, "two workers")
    assert len(agent.list_files()) == 2 * len(SCHEMAS)
    assert find_workers(log) == []
    assert sum(read_stream(log / f"worker-0{it}/requests.arrows", REQUESTS).num_rows for it in (2, 3)) == 2000


def test_it_answers_pings_as_long_as_it_lives(tmp_path: Path) -> None:
    made = Agent("127.0.0.1", TOKEN)
    facts = made.describe()
    assert facts.niceness == os.getpriority(os.PRIO_PROCESS, 0)
    burst = Sounder({0: ("127.0.0.1", facts.port)}, TOKEN).sound(0)
    assert burst.heard == burst.sent
    assert abs(burst.offset_ns or 0) <= (burst.bound_ns or 0)  # one clock
    made.close()
    assert Sounder({0: ("127.0.0.1", facts.port)}, TOKEN).sound(0, 1).heard == 0


def test_an_order_to_start_that_comes_too_late_is_refused(agent: Agent, url: str, tmp_path: Path) -> None:
    prepare(agent, make_job(url, tmp_path), tmp_path)
    with pytest.raises(StartMissed, match="the order to start came too late for T0"):
        agent.tell(Start(epoch_ns=time.monotonic_ns() + 1_000_000))


def test_another_portion_than_was_sent_is_refused(agent: Agent, url: str, tmp_path: Path) -> None:
    portion = list(cut_portions(open_loop(4, 10), 2))[1]
    damaged = type(portion)(portion.manifest, portion.requests.slice(1), portion.segments)
    with pytest.raises(ReplayError, match=r"its portion of the trace arrived as sha256:.*, and was sent as sha256:"):
        agent.prepare(make_job(url, tmp_path), damaged, scratch=str(tmp_path), is_shared=False)
    assert list(tmp_path.iterdir()) == []


def test_what_this_node_does_not_have_is_refused(
    agent: Agent, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(url, tmp_path, targets=[Target(url, model="sim", key="env:LOADSHAPE_NO_SUCH_KEY")])
    with pytest.raises(TargetError, match="LOADSHAPE_NO_SUCH_KEY is empty or not set"):
        agent.prepare(job, list(cut_portions(open_loop(4, 10), 2))[1], scratch=str(tmp_path), is_shared=False)
    portion = next(cut_portions(closed_loop(300, 200), 2))
    with pytest.raises(InputError, match=r"scratch: /proc/.* cannot be made"):
        agent.prepare(make_job(url, tmp_path), portion, scratch="/proc/none", is_shared=False)
    monkeypatch.setattr(capacity, "read_descriptors", lambda: (100, 100))
    with pytest.raises(InputError, match="100 slots need 50 connections in each of 2 workers"):
        agent.prepare(make_job(url, tmp_path), portion, scratch=str(tmp_path), is_shared=False)


def test_a_worker_that_is_killed_stops_the_node_and_the_others_still_hand_in(
    agent: Agent, url: str, tmp_path: Path
) -> None:
    log = prepare(agent, make_job(url, tmp_path), tmp_path, requests=4000)
    hear_all(agent, Ready, 2)
    agent.tell(Start(epoch_ns=time.monotonic_ns() + SOON_NS))
    wait_for(lambda: len(find_workers(log)) == 2, "two workers")
    os.kill(find_workers(log)[0], signal.SIGKILL)
    heard = hear_all(agent, Done, 1)
    (done,) = [it for _, it in heard if isinstance(it, Done)]
    assert done.stopped is not None
    assert "was killed by signal 9" in done.stopped
    last = hear_end(agent)
    assert "was killed by signal 9" in last.failure
    assert not last.is_input


def test_without_a_coordinator_nobody_goes_on_sending(
    agent: Agent, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.5)
    log = prepare(agent, make_job(url, tmp_path), tmp_path, requests=4000)
    hear_all(agent, Ready, 2)
    agent.tell(Start(epoch_ns=time.monotonic_ns() + SOON_NS))
    wait_for(lambda: not find_workers(log), "the end of the workers")
    assert "the coordinator has not been heard for" in hear_end(agent).failure


def test_a_stop_is_passed_on(agent: Agent, url: str, tmp_path: Path) -> None:
    prepare(agent, make_job(url, tmp_path), tmp_path, requests=4000)
    hear_all(agent, Ready, 2)
    agent.tell(Start(epoch_ns=time.monotonic_ns() + SOON_NS))
    agent.tell(Stop(grace_s=0.0, reason="enough"))
    done = [it for _, it in hear_all(agent, Done, 2) if isinstance(it, Done)]
    assert [it.stopped for it in done] == ["enough", "enough"]

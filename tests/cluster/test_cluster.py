# Runs over a real Ray cluster: hosts in namespaces, each with its own address, clock and disk. What a run on one
# machine keeps, a run on several keeps too; whatever is lost on the way, the books balance and nobody is left behind.

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pytest
from end_to_end.conftest import check_books, wait_for
from hosts import find_obstacle

from loadshape.capture import Capture
from loadshape.cluster.portion import cut_portions
from loadshape.endpoint import Script, running
from loadshape.log import Log
from loadshape.nodes import Node
from loadshape.plan import split_trace
from loadshape.recovery import recover
from loadshape.survey import Sheet
from loadshape.trace import Loop, Trace
from loadshape.validity import judge
from traces import Messages, ask, make_trace, open_loop, partly_open

from .rays import AHEAD_S, LOADSHAPE, Ring, forming, stop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

END_S = 120.0
PLAYED = (0, 3)  # on a busy machine the verdict of a whole run may be INVALID
WORKER = "loadshape.replayer.worker"
ONE_MS = 1_000_000


@pytest.fixture(scope="module")
def ring() -> Iterator[Ring]:
    pytest.importorskip("ray", reason="comes with the extra ray")
    obstacle = find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    with forming(AHEAD_S) as made:
        yield made


@pytest.fixture(scope="module")
def url(ring: Ring) -> Iterator[str]:
    """Serve on the bridge: the first token after 20 ms, the next every 2 ms."""
    with running(Script(ttft_s=0.02, itl_s=0.002), host=ring.gateway) as address:
        yield address


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Return a trace of 3 s."""
    return open_loop(300, 10).write(tmp_path / "short.trace")


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Return a trace that nobody waits for the end of."""
    return open_loop(6000, 10).write(tmp_path / "long.trace")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and what was said of errors; nothing that we print may be a traceback."""
    _, errors = process.communicate(timeout=END_S)
    assert "Traceback" not in errors, errors
    return process.returncode, errors


def wait_until_sending(ring: Ring, log: Path, seconds: float = 1.0) -> None:
    """Wait until *seconds* after T0 of the run that writes *log*."""
    wait_for(lambda: (log / "run.json").exists(), "the start")
    epoch_ns = json.loads((log / "run.json").read_bytes())["epoch_realtime_ns"]
    wait_for(lambda: time.time_ns() > epoch_ns + seconds * 1e9, "the run to be under way")
    assert any(ring.list_processes(it, WORKER) for it in ring.nodes)


def check_nobody_left(ring: Ring) -> None:
    """Check that no worker and no agent is left on any node."""
    for name in (WORKER, "ray::Agent"):
        wait_for(lambda name=name: not any(ring.list_processes(it, name) for it in ring.nodes), f"the end of {name}")


def check_nodes(log: Log, trace: Trace, nodes: int) -> None:
    """Check what is said of the nodes against what can be known otherwise."""
    assert [it.node for it in log.nodes] == list(range(nodes))
    for node, portion in zip(log.nodes, cut_portions(trace, nodes), strict=True):
        assert node.portion_digest == portion.digest
        assert node.planned == portion.requests.num_rows
        assert node.niceness == 0  # Ray starts its processes at 15
        mine = log.requests.filter(pc.equal(log.requests["node"], node.node))
        assert sorted(mine["request"].to_pylist()) == sorted(portion.requests["request"].to_pylist())
        assert set(mine["worker"].to_pylist()) == set(node.workers)


def check_clocks(nodes: list[Node]) -> None:
    """Check every reading against the injected offset, and T0 of all nodes against one another.

    CLOCK_REALTIME is common to all hosts here, so it tells how far apart they began.
    """
    found = set()
    for node in nodes:
        offsets = [(it.at_ns, it.offset_ns, it.bound_ns) for it in node.bursts if it.offset_ns is not None]
        assert offsets[0][0] < 0 < offsets[-1][0]  # before and after
        ahead_s = min(AHEAD_S, key=lambda seconds: abs(offsets[0][1] + seconds * 10**9))
        assert all(abs(offset_ns + ahead_s * 10**9) <= (bound_ns or 0) for _, offset_ns, bound_ns in offsets)
        found.add(ahead_s)
    assert len(found) == len(nodes)
    starts = [node.epoch_realtime_ns for node in nodes]
    assert max(starts) - min(starts) < ONE_MS


def test_three_nodes_are_one_run(ring: Ring, url: str, tmp_path: Path) -> None:
    trace = partly_open(60, 3, 30.0, 10.0)
    path = trace.write(tmp_path / "t.trace")
    code, told = finish(ring.replay(path, tmp_path / "run.log", nodes=3, url=url))
    assert code in PLAYED, told
    assert "on 3 nodes" in told
    log = Log.open(tmp_path / "run.log")
    check_books(log)
    log.verify(trace.digest)
    assert log.manifest.ended == "complete"
    assert log.manifest.outcomes == {"ok": 180}
    assert (log.run.nodes, log.run.workers, log.run.processes) == (3, 3, 1)
    check_nodes(log, trace, 3)
    check_clocks(log.nodes)
    whole = split_trace(trace, 0, 1)
    assert log.requests["request"].to_pylist() == sorted(whole.request)
    check_nobody_left(ring)
    assert not list(Path(ring.disk).glob("loadshape-*"))


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_library_takes_a_launcher(ring: Ring, url: str, short: Path, tmp_path: Path, is_shared: bool) -> None:
    script = f"""
        import loadshape as ls
        launcher = ls.RayLauncher(
            nodes=2, address={ring.address!r}, scratch={ring.disk!r}, ping_s=1, is_shared={is_shared}
        )
        log = ls.replay({str(short)!r}, ls.Target({url!r}), log={str(tmp_path / "run.log")!r}, launcher=launcher)
        print(log.manifest.outcomes, len(log.nodes[0].bursts))
    """
    process = ring.start(sys.executable, "-c", textwrap.dedent(script))
    out, errors = process.communicate(timeout=END_S)
    assert process.returncode == 0, errors
    assert out.startswith("{'ok': 300}")
    assert int(out.split()[-1]) >= 4  # before, during, after
    folders = {it.folder for it in Log.open(tmp_path / "run.log").nodes}
    assert (folders == {str(tmp_path / "run.log")}) is is_shared
    assert not any(list(ring.see_disk(node).glob("loadshape-*")) for node in ring.nodes)


def test_turns_quote_what_the_server_said_and_the_bytes_of_every_answer_come_home(
    ring: Ring, url: str, tmp_path: Path
) -> None:
    later: Messages = (("user", ("Hi",)), ("assistant", (("answer", [0]),)), ("user", ("And then?",)))
    rows = [
        row
        for session in range(20)
        for row in (
            ask(session * 20, session=session, messages=(("user", ("Hi",)),), output_tokens=30),
            ask(None, session=session, turn=1, messages=later, output_tokens=30),
        )
    ]
    path = make_trace(*rows, loop=Loop("partly_open")).write(tmp_path / "t.trace")
    (tmp_path / "run.toml").write_text("[replay]\ncapture = true\n")
    code, told = finish(ring.replay(path, tmp_path / "run.log", "--run", str(tmp_path / "run.toml"), url=url))
    assert code in PLAYED, told
    log = Log.open(tmp_path / "run.log")
    check_books(log)
    assert log.manifest.outcomes == {"ok": 40}
    assert set(log.requests["node"].to_pylist()) == {0, 1}
    tokens = log.requests["prompt_tokens"].to_pylist()
    assert all(second > first + 20 for first, second in zip(tokens[::2], tokens[1::2], strict=True))
    received: Counter[int] = Counter()
    for piece in Capture.open(log.path).pieces():
        received[piece.request] += len(piece.data)
    assert [received[number] for number in range(40)] == log.requests["bytes_in"].to_pylist()


def test_a_run_on_one_machine_differs_by_the_node_alone(ring: Ring, url: str, short: Path, tmp_path: Path) -> None:
    assert finish(ring.replay(short, tmp_path / "two.log", url=url))[0] in PLAYED
    alone = ring.start(LOADSHAPE, "replay", str(short), "--target", url, "-o", str(tmp_path / "one.log"))
    code, told = finish(alone)
    assert code in PLAYED, told
    one, two = Log.open(tmp_path / "one.log"), Log.open(tmp_path / "two.log")
    same = ["request", "session", "turn", "target", "due_ns", "outcome", "status", "finish_reason", "completion_tokens"]
    assert one.requests.select(same).equals(two.requests.select(same))
    assert one.requests.schema.equals(two.requests.schema)
    assert one.run.trace_digest == two.run.trace_digest
    assert set(one.requests["node"].to_pylist()) == {0}
    assert one.nodes == []
    assert {it.name for it in one.path.iterdir()} | {"nodes.json", "worker-01"} == {
        it.name for it in two.path.iterdir()
    }


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_worker_that_is_killed(ring: Ring, url: str, short: Path, tmp_path: Path, policy: str) -> None:
    (tmp_path / "run.toml").write_text(f'[cluster]\nnodes = 2\non_lost = "{policy}"\n')
    process = ring.replay(short, tmp_path / "run.log", "--run", str(tmp_path / "run.toml"), url=url)
    wait_until_sending(ring, tmp_path / "run.log")
    victim = next(number for node in ring.nodes for number in ring.list_processes(node, WORKER))
    os.kill(victim, signal.SIGKILL)
    code, told = finish(process)
    assert code == 3, told
    log = Log.open(tmp_path / "run.log")
    log.verify()
    (lost,) = [it for it in log.nodes if it.lost]
    assert "was killed by signal 9" in lost.lost
    assert log.manifest.ended.startswith("incomplete: ")
    assert judge(log).status == "INVALID"
    others = log.requests.filter(pc.not_equal(log.requests["node"], lost.node))
    gone = log.requests.filter(pc.equal(log.requests["outcome"].cast("string"), "lost"))
    assert 0 < gone.num_rows < lost.planned  # what had been written down by then is kept
    assert set(gone["node"].to_pylist()) == {lost.node}
    outcomes = set(others["outcome"].cast("string").to_pylist())
    assert outcomes == {"ok"} if policy == "continue" else "not_reached" in outcomes
    check_nobody_left(ring)


def test_a_coordinator_that_is_killed_leaves_nobody_and_its_log_can_be_recovered(
    ring: Ring, url: str, long: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(f'[cluster]\nnodes = 2\nscratch = "{ring.disk}"\n')
    process = ring.replay(long, tmp_path / "run.log", "--run", str(tmp_path / "run.toml"), url=url)
    wait_until_sending(ring, tmp_path / "run.log", 2.5)
    process.kill()
    process.communicate()
    check_nobody_left(ring)
    for node in ring.nodes:
        for folder in ring.see_disk(node).glob("loadshape-*/run.log/worker-*"):
            shutil.copytree(folder, tmp_path / "run.log" / folder.name)
        for home in ring.see_disk(node).glob("loadshape-*"):
            shutil.rmtree(home)
    log = recover(tmp_path / "run.log", tmp_path / "whole.log")
    counted = log.requests["outcome"].cast("string").to_pylist()
    assert counted.count("lost") > 5000
    assert counted.count("ok") > 100
    assert {it.status for it in judge(log).checks} >= {"invalid"}


def test_an_interrupt_ends_all_nodes_in_order(ring: Ring, url: str, long: Path, tmp_path: Path) -> None:
    process = ring.replay(long, tmp_path / "run.log", url=url)
    wait_until_sending(ring, tmp_path / "run.log")
    process.send_signal(signal.SIGINT)
    code, told = finish(process)
    assert code == 130, told
    log = Log.open(tmp_path / "run.log")
    check_books(log)
    assert log.manifest.ended == "interrupted"
    assert [it.lost for it in log.nodes] == ["", ""]
    check_nobody_left(ring)


def test_a_full_disk_on_one_node(ring: Ring, url: str, long: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f'[cluster]\nnodes = 3\nscratch = "{ring.disk}"\n')
    process = ring.replay(long, tmp_path / "run.log", "--run", str(tmp_path / "run.toml"), nodes=3, url=url)
    wait_until_sending(ring, tmp_path / "run.log")
    filler = ring.see_disk(ring.nodes[2]) / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
    code, told = finish(process)
    filler.unlink()
    assert code == 3, told
    log = Log.open(tmp_path / "run.log")
    assert "cannot be written: No space left on device" in log.manifest.ended
    assert log.requests.num_rows == 6000
    assert judge(log).status == "INVALID"
    check_nobody_left(ring)


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_agent_that_stands_still(
    ring: Ring, url: str, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    monkeypatch.chdir(tmp_path)  # where the nodes are not: a log's name need not be a whole path
    Path("run.toml").write_text(f"[cluster]\nnodes = 2\nis_shared = {str(is_shared).lower()}\n")
    process = ring.replay(long, Path("run.log"), "--run", "run.toml", url=url)
    wait_until_sending(ring, tmp_path / "run.log")
    agents = [number for node in ring.nodes for number in ring.list_processes(node, "ray::Agent")]
    os.kill(agents[0], signal.SIGSTOP)
    if not is_shared:  # it wakes up in time for its log to be fetched, and ends what its worker was doing
        wait_for(lambda: sum(len(ring.list_processes(it, WORKER)) for it in ring.nodes) == 1, "the end of the others")
        os.kill(agents[0], signal.SIGCONT)
    code, told = finish(process)
    assert code == 3, told
    log = Log.open(tmp_path / "run.log")
    log.verify()
    (lost,) = [it for it in log.nodes if it.lost]
    assert lost.lost.startswith("was not heard for 10 s")
    assert "lost" not in log.manifest.outcomes  # every row was written, and all of them are here
    assert sum(log.manifest.outcomes.values()) == 6000
    check_nobody_left(ring)


def test_a_signal_before_the_start_ends_in_words(ring: Ring, url: str, short: Path, long: Path, tmp_path: Path) -> None:
    first = ring.replay(long, tmp_path / "first.log", nodes=3, url=url)
    wait_until_sending(ring, tmp_path / "first.log")
    for number, after_s in ((signal.SIGINT, 0), (signal.SIGTERM, 5)):  # while Ray is reached, and later
        log = tmp_path / f"{number}.log"
        second = ring.replay(short, log, nodes=3, url=url)
        until_s = time.monotonic() + after_s
        wait_for(lambda until_s=until_s: time.monotonic() > until_s, "the second to wait for CPUs")
        wait_for(lambda log=log: (log / "planned.arrow").exists(), "the second to be under way")
        second.send_signal(number)
        code, told = finish(second)
        assert (code, told.splitlines()[-1]) == (130, "loadshape: interrupted")
    first.send_signal(signal.SIGINT)
    first.send_signal(signal.SIGTERM)
    assert finish(first)[0] == 130
    log = Log.open(tmp_path / "first.log")
    check_books(log)
    assert log.manifest.ended == "interrupted"
    check_nobody_left(ring)


REFUSED = {
    "more nodes than there are": (
        "launcher = ls.RayLauncher(nodes=9, address=ADDRESS)",
        "InputError: nodes: 9 with 1 CPUs or more, and the cluster has 3",
    ),
    "no cluster": (
        "launcher = ls.RayLauncher(nodes=2, address='192.0.2.1:6379')",
        "InputError: ray: no cluster is reached at '192.0.2.1:6379'",
    ),
    "a target that is another machine for each": (
        "launcher = ls.RayLauncher(nodes=2, address=ADDRESS); target = ls.Target('http://127.0.0.1:9/v1')",
        "InputError: target: http://127.0.0.1:9/v1 is another machine for each node",
    ),
    "another version": (
        "launcher = ls.RayLauncher(nodes=2, address=ADDRESS); it.__version__ = '9.9'",
        "ReplayError: node 0 .* has loadshape .*, and here is 9.9",
    ),
    "another portion": (
        "launcher = ls.RayLauncher(nodes=2, address=ADDRESS); whole = it.cut_portions; "
        "it.cut_portions = lambda trace, nodes: "
        "(ls.Trace(trace.manifest, part.requests, part.segments) for part in whole(trace, nodes))",
        "ReplayError: node 0 .* its portion of the trace arrived as sha256:.*, and was sent as sha256:",
    ),
    "a target of this machine alone": (
        "launcher = ls.RayLauncher(nodes=1, address=ADDRESS); target = ls.Target('http://127.0.0.1:9/v1')",
        "InputError: target: http://127.0.0.1:9/v1 is another machine for each node",
    ),
    "a clock that nobody can ask": (
        "launcher = ls.RayLauncher(nodes=2, address=ADDRESS); true = it.Sounder; "
        "it.Sounder = lambda peers, token, **how: true(peers, bytes(16), count=2, **how)",
        "ReplayError: node 0 .* answers no ping: its clock is not known; let UDP through to port",
    ),
    "a key that is not there": (
        "launcher = ls.RayLauncher(nodes=2, address=ADDRESS); import os; os.environ['HERE_ONLY'] = 'k'; "
        "target = ls.Target(target.url, key='env:HERE_ONLY')",
        "TargetError: node 0 .* HERE_ONLY is empty or not set",
    ),
}


@pytest.mark.parametrize(("words", "error"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused(ring: Ring, url: str, short: Path, tmp_path: Path, words: str, error: str) -> None:
    script = f"""
import loadshape as ls, loadshape.cluster.launcher as it
ADDRESS, target = {ring.address!r}, ls.Target({url!r})
{words}
try:
    given = {{"log": {str(tmp_path / "run.log")!r}, "settings": ls.Settings(preflight=False)}}
    ls.replay({str(short)!r}, target, launcher=launcher, **given)
except ls.LoadshapeError as problem:
    print(type(problem).__name__ + ":", problem)
"""
    process = ring.start(sys.executable, "-c", script)
    out, errors = process.communicate(timeout=END_S)
    assert process.returncode == 0, errors
    assert re.search(error, out), out + errors
    check_nobody_left(ring)


def test_every_node_of_a_cluster_is_examined(ring: Ring) -> None:
    with socket.create_server((ring.gateway, 0)) as server:
        port = server.getsockname()[1]
        urls = (f"--target=http://{ring.gateway}:{port}/v1", f"--target=http://{ring.gateway}:{port + 1}/v1")
        asked = ring.start(LOADSHAPE, "doctor", "--ray", ring.address, *urls, "--json")
        out, err = asked.communicate(timeout=120)
    assert asked.returncode == 1, err
    sheets = msgspec.json.decode(out, type=list[Sheet])
    assert [sheet.node.partition("(")[2] for sheet in sheets] == [f"{node.address})" for node in ring.nodes]
    for sheet in sheets:
        found = {it.name: it for it in sheet.findings}
        assert found[f"target {ring.gateway} port {port}"].status == "ok"
        assert found[f"target {ring.gateway} port {port + 1}"].status == "bad"
        assert {"descriptors", "timers", "kernel stamps", "ports of Ray"} <= set(found)
        assert found["clock of the node"].measured.endswith("of 100 pings")
        assert (found["versions"].status, found["niceness"].status) == ("ok", "ok")


def test_a_machine_that_is_lost(ring: Ring, url: str, long: Path, tmp_path: Path) -> None:
    process = ring.replay(long, tmp_path / "run.log", nodes=3, url=url)
    wait_until_sending(ring, tmp_path / "run.log")
    gone = ring.nodes.pop(1)  # it stays away
    stop(gone)
    code, told = finish(process)
    assert code == 3, told
    log = Log.open(tmp_path / "run.log")
    log.verify()
    (lost,) = [it for it in log.nodes if it.lost]
    assert lost.address == gone.address
    assert any(
        note.startswith(f"node {lost.node} ({lost.address}): its log was not fetched") for note in log.manifest.notes
    )
    of_lost = log.requests.filter(pc.equal(log.requests["node"], lost.node))
    assert set(of_lost["outcome"].cast("string").to_pylist()) == {"lost"}
    assert judge(log).status == "INVALID"
    check_nobody_left(ring)

# The three loops and the cap over real sockets, seen from both sides: the log, and the endpoint's own record
# of what it sent and when. Of times only orders are tested, and that nothing is early.

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadshape.endpoint import Script, running
from loadshape.log import Log
from loadshape.target import Target
from loadshape.trace import Trace
from traces import MS, closed_loop, open_loop, partly_open

from .conftest import SLACK_NS, play, read_columns

pytestmark = pytest.mark.slow
TTFT_NS, ITL_NS, TOKENS = 20 * MS, 2 * MS, 8
SCRIPT = Script(ttft_s=TTFT_NS / 1e9, itl_s=ITL_NS / 1e9)
SCENES: dict[str, tuple[Trace, dict[str, Any]]] = {
    "open": (open_loop(150, 4, output_tokens=TOKENS), {"receive": "kernel", "processes": 2}),
    "open user": (open_loop(100, 4, output_tokens=TOKENS), {"receive": "user"}),
    "closed": (closed_loop(30, 5, output_tokens=TOKENS), {"processes": 2}),
    "closed thinking": (closed_loop(12, 4, turns=2, think=10, output_tokens=TOKENS), {}),
    "capped": (open_loop(30, 1, cap=3, output_tokens=TOKENS), {}),
    "partly open": (partly_open(8, 3, gap=20, think=30, output_tokens=TOKENS), {}),
}


class Scene:
    """One run: our log, and the endpoint's record of it."""

    def __init__(self, log: Log, truth: pa.Table) -> None:
        prefix = f"ls-{log.run.run}-"
        names = truth["request"].to_pylist()
        self.log = log
        self.truth = truth.filter(pa.array([name.startswith(prefix) for name in names]))
        numbers = [int(name.removeprefix(prefix)) for name in self.truth["request"].to_pylist()]
        self.number = np.array(numbers, np.int64)

    def writes(self, name: str) -> Any:
        """Return a column of the record."""
        return read_columns(self.truth, name)[0]

    def peak(self) -> int:
        """Return the most requests that the endpoint had in progress at one time."""
        arrivals = np.unique(np.stack([self.number, self.writes("received_ns")], 1), axis=0)[:, 1]
        ends = np.full(len(arrivals), 0, np.int64)
        np.maximum.at(ends, self.number, self.writes("write_ns"))
        steps = sorted([(at, 1) for at in arrivals] + [(at, -1) for at in ends])
        return int(np.cumsum([step for _, step in steps]).max())


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    """Play all scenes against one endpoint, and read its record when it has closed it."""
    folder = tmp_path_factory.mktemp("loops")
    with running(SCRIPT, truth=folder / "truth.arrows") as url:
        logs = {}
        for name, (trace, options) in SCENES.items():
            logs[name] = play(trace, Target(url), folder / f"{name}.log", **options)
    with pa.ipc.open_stream(folder / "truth.arrows") as stream:
        truth = stream.read_all()
    return {name: Scene(log, truth) for name, log in logs.items()}


every_scene = pytest.mark.parametrize("name", SCENES)


@every_scene
def test_everything_went_well(scenes: dict[str, Scene], name: str) -> None:
    log, trace = scenes[name].log, SCENES[name][0]
    assert log.manifest.outcomes == {"ok": trace.requests.num_rows}
    assert log.manifest.ended == "complete"
    log.verify(trace.digest)
    assert log.requests["completion_tokens"].to_pylist() == [TOKENS] * trace.requests.num_rows
    workers = log.requests["worker"].to_pylist()
    assert workers == [row % log.run.processes for row in log.requests["session"].to_pylist()]


@every_scene
def test_no_chunk_is_lost_doubled_or_early(scenes: dict[str, Scene], name: str) -> None:
    scene = scenes[name]
    epoch_ns = scene.log.run.epoch_monotonic_ns
    request, at_ns, deltas = read_columns(scene.log.reads, "request", "at_ns", "deltas")
    bearing = scene.writes("tokens") > 0
    order = np.lexsort((scene.writes("write")[bearing], scene.number[bearing]))
    assert np.array_equal(np.repeat(request, deltas), scene.number[bearing][order])
    write_ns = scene.writes("write_ns")[bearing][order]
    assert (np.repeat(at_ns, deltas) + epoch_ns >= write_ns - SLACK_NS).all()


@every_scene
def test_every_byte_arrives(scenes: dict[str, Scene], name: str) -> None:
    scene = scenes[name]
    (bytes_in,) = read_columns(scene.log.requests, "bytes_in")
    heads = bytes_in - np.bincount(scene.number, scene.writes("bytes")).astype(np.int64)
    digits = np.array([len(str(number)) for number in range(len(heads))])
    for length in set(digits):  # the head of an answer repeats the number of its request
        assert len(set(heads[digits == length])) == 1
    assert (heads > 100).all()


@every_scene
def test_no_answer_is_faster_than_the_script(scenes: dict[str, Scene], name: str) -> None:
    sent_ns, first_ns, last_ns = read_columns(scenes[name].log.requests, "sent_ns", "first_token_ns", "last_token_ns")
    assert (first_ns - sent_ns >= TTFT_NS - SLACK_NS).all()
    assert (last_ns - sent_ns >= TTFT_NS + (TOKENS - 1) * ITL_NS - SLACK_NS).all()


@every_scene
def test_due_times_of_the_plan_are_kept(scenes: dict[str, Scene], name: str) -> None:
    planned, due_ns = read_columns(SCENES[name][0].requests, "due_ns")[0], scenes[name].log.requests["due_ns"]
    clocked = planned >= 0
    assert due_ns.null_count == 0
    assert np.array_equal(np.asarray(due_ns)[clocked], planned[clocked])


def test_two_processes_share_the_work(scenes: dict[str, Scene]) -> None:
    log = scenes["open"].log
    assert sorted(path.name for path in log.path.glob("worker-*")) == ["worker-00", "worker-01"]
    (worker,) = read_columns(log.requests, "worker")
    assert np.bincount(worker).tolist() == [75, 75]
    assert set(log.health["worker"].to_pylist()) == {0, 1}


@pytest.mark.parametrize(("name", "slots"), [("closed", 5), ("closed thinking", 4), ("capped", 3)])
def test_the_server_never_sees_more_than_was_asked_for(scenes: dict[str, Scene], name: str, slots: int) -> None:
    assert scenes[name].peak() == slots


@pytest.mark.parametrize(("name", "slots", "think_ns"), [("closed", 5, 0), ("closed thinking", 4, 10 * MS)])
def test_a_slot_is_refilled_at_the_end_of_its_request(
    scenes: dict[str, Scene], name: str, slots: int, think_ns: int
) -> None:
    due_ns, done_ns = read_columns(scenes[name].log.requests, "due_ns", "done_ns")
    assert sorted(due_ns)[:slots] == [think_ns] * slots
    assert set(sorted(due_ns)[slots:]) <= set(done_ns + think_ns)


def test_a_later_turn_is_due_after_its_predecessor_and_think_time(scenes: dict[str, Scene]) -> None:
    turn, due_ns, begun_ns, done_ns = read_columns(
        scenes["partly open"].log.requests, "turn", "due_ns", "begun_ns", "done_ns"
    )
    later = np.flatnonzero(turn > 0)
    assert len(later) == 16
    assert np.array_equal(due_ns[later], done_ns[later - 1] + 30 * MS)
    assert (begun_ns[later] >= due_ns[later]).all()


def test_waiting_for_the_cap_is_lateness(scenes: dict[str, Scene]) -> None:
    due_ns, begun_ns, done_ns = read_columns(scenes["capped"].log.requests, "due_ns", "begun_ns", "done_ns")
    assert (begun_ns[3:] >= np.sort(done_ns)[:-3]).all()  # each waits for one to end
    assert begun_ns[-1] - due_ns[-1] > 9 * TTFT_NS


def test_a_stall_is_felt_by_all_who_became_due_in_it(tmp_path: Path) -> None:
    # Coordinated omission: one request at a time, 150 ms each, while one becomes due every 10 ms.
    service_ns = 150 * MS
    with running(Script(ttft_s=service_ns / 1e9, itl_s=0.0, max_running=1)) as url:
        log = play(open_loop(8, 10), Target(url), tmp_path / "a.log")
    due_ns, begun_ns, first_ns = read_columns(log.requests, "due_ns", "begun_ns", "first_token_ns")
    assert begun_ns.max() < np.sort(first_ns)[2]  # the generator did not wait for the server
    served = np.arange(1, 9) * service_ns
    assert (np.sort(first_ns) >= begun_ns[0] + served - SLACK_NS).all()
    response_ns = first_ns[np.argsort(first_ns)] - due_ns[np.argsort(first_ns)]
    assert (np.diff(response_ns) > 0).all()

"""What a run needs at least, what a host can have, and the refusal before the first packet."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from loadshape.errors import InputError
from loadshape.replayer import capacity, replay
from loadshape.replayer.capacity import check_capacity, count_needed, count_streams
from loadshape.replayer.job import Settings
from loadshape.target import Target
from loadshape.trace import Loop, Trace
from traces import ask, closed_loop, make_trace, open_loop

BURST = make_trace(*(ask(100.0) for _ in range(30)), ask(200.0))
CAPPED = make_trace(*(ask(100.0) for _ in range(30)), loop=Loop("open", cap=8))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 164 descriptors a process and 250 local ports."""
    monkeypatch.setattr(capacity, "read_descriptors", lambda: (64, 164))
    monkeypatch.setattr(capacity, "count_ports", lambda: 250)


@pytest.mark.parametrize(
    ("trace", "settings", "needed"),
    [
        (open_loop(50, 10.0), Settings(), 1),
        (BURST, Settings(), 30),
        (BURST, Settings(cap=5), 5),
        (BURST, Settings(requests=12), 12),
        (CAPPED, Settings(), 8),
        (closed_loop(40, 20), Settings(), 20),
        (closed_loop(10, 20), Settings(), 10),  # no more slots than sessions are ever busy
        (closed_loop(40, 20), Settings(slots=30), 30),
        (open_loop(50, 10.0), Settings(slots=7), 7),
    ],
)
def test_the_need_is_a_lower_bound(trace: Trace, settings: Settings, needed: int) -> None:
    assert count_needed(trace, settings) == needed


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("slots", "processes", "roads", "told"),
    [
        (100, 1, 1, None),
        (101, 1, 1, r"loop.slots: 101 slots .* 1 worker, .*ulimit -Hn is 164\): raise the limit to 165"),
        (101, 2, 1, None),
        (250, 2, 1, "set processes = 3 in the run file"),
        (250, 3, 1, None),
        (251, 3, 1, r"251 slots need a local port each, and there are 250 over 1 pair .*source_ips"),
        (251, 3, 2, None),
    ],
)
def test_limits(slots: int, processes: int, roads: int, told: str | None) -> None:
    trace, settings = closed_loop(300, slots), Settings(processes=processes)
    if told is None:
        check_capacity(trace, settings, roads=roads)
        return
    with pytest.raises(InputError, match=told):
        check_capacity(trace, settings, roads=roads)


@pytest.mark.usefixtures("small")
def test_a_burst_is_named_by_its_column() -> None:
    trace = make_trace(*(ask(0.0) for _ in range(101)))
    with pytest.raises(InputError, match=r"requests\.due_ns: 101 requests due at one instant"):
        check_capacity(trace, Settings(processes=1), roads=1)


def test_descriptors_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "read_descriptors", lambda: (64, resource.RLIM_INFINITY))
    monkeypatch.setattr(capacity, "count_ports", lambda: 250)
    assert count_streams(roads=2) == 500
    check_capacity(closed_loop(300, 240), Settings(processes=1), roads=1)


@pytest.mark.parametrize(("text", "ports"), [("32768\t60999\n", 28_232), ("1024 65535", 64_512), ("", 28_232)])
def test_the_port_range_is_the_kernels(text: str, ports: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(capacity, "PORT_RANGE", tmp_path / "range")
    assert capacity.count_ports() == ports


def test_fifty_thousand_slots_with_twenty_thousand_descriptors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(capacity, "read_descriptors", lambda: (20_000, 20_000))
    trace = closed_loop(50_000, 50_000)
    target = Target("http://127.0.0.1:9/v1")  # nobody listens: asked, it would say so
    with pytest.raises(InputError, match=r"50,000 slots need 50,000 connections in each of 1 worker.*processes = 3"):
        replay(trace, target, log=tmp_path / "a.log", processes=1)
    assert not (tmp_path / "a.log").exists()

# What the verdict says of the machines of a run, and that a run on one host is judged as before.

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import make_log, synthesize_log

from loadshape.errors import LogError
from loadshape.nodes import Node, read_nodes, write_nodes
from loadshape.report import render
from loadshape.summary import summarize
from loadshape.validity import Check, Limits, judge
from loadshape.validity.nodes import measure_apart_s

from .invented import KEPT, WALL_NS, burst, make_node, put, spread_log

NAMES = ("lost nodes", "clocks of the nodes", "start of the nodes", "niceness of the nodes", "lateness by node")


def find(name: str, limits: Limits | None = None, **about: Any) -> Check:
    """Return a check of a run whose node 1 is different."""
    (check,) = [it for it in judge(spread_log(about={1: about}), limits).checks if it.name == name]
    return check


def test_machines_without_blame_pass() -> None:
    found = {it.name: it.status for it in judge(spread_log(requests=2100)).checks}
    assert {name: found[name] for name in NAMES} == dict.fromkeys(NAMES, "ok")


def test_a_run_on_one_host_has_no_such_check() -> None:
    assert not set(NAMES) & {it.name for it in judge(synthesize_log()).checks}


def test_a_lost_node_makes_the_run_invalid() -> None:
    check = find("lost nodes", lost="not heard for 3 s at 12.0 s")
    assert (check.status, check.measured) == ("invalid", "node 1 (not heard for 3 s at 12.0 s)")


@pytest.mark.parametrize(
    ("bursts", "status", "measured"),
    [
        ([burst(-1, 1)], "ok", "up to 100 us apart"),
        ([burst(-1, 1), burst(10, 1, moved_us=300)], "ok", "up to 400 us apart"),
        ([burst(-1, 1), burst(10, 1, moved_us=300), burst(21, 1, moved_us=600)], "suspect", "up to 700 us apart"),
        ([burst(-60, 1, moved_us=-3000), burst(-1, 1), burst(-30, 1, moved_us=-900)], "ok", "up to 100 us apart"),
        ([burst(-1, 1, bound_us=2000)], "suspect", "up to 4.00 ms apart"),
        ([burst(-1, 1, moved_us=-6000)], "suspect", "up to 6.10 ms apart: figures across nodes are left out"),
        ([burst(-1, 1), burst(9, 1, offset_ns=None, bound_ns=None, heard=0)], "ok", "up to 100 us apart"),
        ([burst(9, 1, offset_ns=None, bound_ns=None, heard=0)], "unknown", "a node's clock was never read"),
        ([], "unknown", "a node's clock was never read"),
    ],
)
def test_clocks(bursts: list[Any], status: str, measured: str) -> None:
    check = find("clocks of the nodes", bursts=bursts)
    assert (check.status, check.measured) == (status, measured)


def test_clocks_never_make_a_run_invalid() -> None:
    assert find("clocks of the nodes", bursts=[burst(-1, 1, moved_us=9e9)]).status == "suspect"


@pytest.mark.parametrize(
    ("late_us", "synchronization", "status"),
    [
        (0, KEPT, "ok"),
        (1300, KEPT, "ok"),  # less than both errors and the limit
        (1500, KEPT, "suspect"),
        (-1500, KEPT, "suspect"),
        (9000, KEPT | {"max_error_us": 9000}, "ok"),
        (9000, KEPT | {"synchronized": False}, "ok"),  # the two others are judged
    ],
)
def test_start(late_us: int, synchronization: dict[str, Any], status: str) -> None:
    start = {"epoch_realtime_ns": WALL_NS + late_us * 1000, "synchronization": synchronization}
    assert find("start of the nodes", **start).status == status


def test_start_is_not_judged_by_clocks_that_nobody_keeps() -> None:
    log = spread_log(about={node: {"synchronization": {}} for node in range(3)})
    assert "start of the nodes" not in {it.name for it in judge(log).checks}


@pytest.mark.parametrize(("niceness", "status"), [(-5, "ok"), (0, "ok"), (15, "suspect")])
def test_niceness(niceness: int, status: str) -> None:
    check = find("niceness of the nodes", niceness=niceness)
    assert check.status == status
    assert ("RAY_worker_niceness=0" in check.remedy) == (status == "suspect")


def test_the_latest_node_is_found_among_many() -> None:
    log = spread_log(8, requests=8000)
    late = np.where(np.asarray(log.requests["node"]) == 5, 2_000_000, 10_000)
    late[np.arange(8000) % 80 != 5] = 10_000  # a tenth of one node's: not one in a hundred of all
    log = replace(log, requests=put(log.requests, "begun_ns", np.asarray(log.requests["due_ns"]) + late))
    found = {it.name: it for it in judge(log).checks}
    assert found["lateness by node"].status == "suspect"
    assert found["lateness by node"].measured.endswith("p99 of node 5")


def test_few_requests_a_node_have_no_p99() -> None:
    assert "lateness by node" not in {it.name for it in judge(spread_log(requests=90)).checks}


def test_limits_can_be_changed() -> None:
    assert find("clocks of the nodes", Limits(node_clock_s=0.00005)).status == "suspect"
    far = {"epoch_realtime_ns": WALL_NS + 1_500_000}
    assert find("start of the nodes", Limits(node_start_s=0.002), **far).status == "ok"


def test_the_ceiling_of_the_coordinator_is_not_claimed_for_others() -> None:
    ceiling = {"requests_hz": 10.0, "chunks_hz": 100.0}
    environment = {"client": {"cores": 2, "calibration": {"one": ceiling, "all": ceiling, "made_at": "2026-11-01"}}}
    alone = replace(synthesize_log(), environment=environment)
    assert "share of the calibrated ceiling" in {it.name for it in judge(alone).checks}
    assert "share of the calibrated ceiling" not in {
        it.name for it in judge(replace(spread_log(), environment=environment)).checks
    }
    assert "load" in render(summarize(alone))
    render(summarize(replace(spread_log(), environment=environment)))


def test_steal_is_a_share_of_the_nodes_own_cores() -> None:
    log = spread_log(health={2: {"steal_ns": 0.08}})
    steal = {it.name: it for it in judge(log).checks}["steal"]
    assert (steal.status, steal.measured) == ("suspect", "2 % of 4 cores' time")


def test_every_nodes_probe_is_a_probe() -> None:
    log = spread_log(2, requests=2400)
    number = np.asarray(log.requests["request"])
    worker = 3 * (number % 2) + np.where(number // 2 % 30 == 0, 2, number // 2 % 2)  # two workers and a probe each
    slow = np.where(worker % 3 == 2, 0, 60_000_000)
    table = put(log.requests, "worker", worker)
    for name in ("first_token_ns", "last_token_ns", "done_ns"):
        table = put(table, name, np.asarray(table[name]) + slow)
    spread = make_log(table, log.reads, nodes=2, processes=2, settings={"probe_share": 0.01})
    check = {it.name: it for it in judge(spread).checks}["probe against load"]
    assert check.status == "suspect"
    assert "TTFT p50" in check.measured


# The file


def test_what_is_written_is_read(tmp_path: Path) -> None:
    nodes = [make_node(0), make_node(1, drift_ppb=-12.5, lost="gone")]
    write_nodes(tmp_path, nodes)
    assert read_nodes(tmp_path) == nodes


def test_no_file_is_no_nodes(tmp_path: Path) -> None:
    assert read_nodes(tmp_path) == []


@pytest.mark.parametrize("text", ["[", '[{"node": 0}]', '{"node": 0}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(LogError, match=r"nodes\.json: not a list of nodes"):
        read_nodes(tmp_path)


# Property


@given(
    st.lists(st.tuples(st.integers(-(10**7), 10**7), st.integers(0, 10**6)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(-(10**7), 10**7), st.integers(0, 10**6)), min_size=1, max_size=5),
)
def test_no_two_clocks_are_farther_apart_than_told(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    """Wherever the true displacements lie within their bounds."""
    nodes = [tell(0, first), tell(1, second)]
    apart_s = measure_apart_s(replace(make_log(nodes=2), nodes=nodes))
    assert apart_s is not None
    for low, high in ((first, second), (second, first), (first, [(0, 0)]), ([(0, 0)], second)):
        most = max(at + bound for at, bound in high) - min(at - bound for at, bound in low)
        assert apart_s >= most / 1e9 - 1e-12


def tell(node: int, moved: list[tuple[int, int]]) -> Node:
    bursts = [burst(at, node, moved_us=ns / 1000, bound_us=bound / 1000) for at, (ns, bound) in enumerate(moved)]
    return make_node(node, bursts=bursts)

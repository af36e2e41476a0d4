# The nodes of a run side by side, in numbers and in every form; a slow node is told from a slow server.

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from checker import describe, measure
from logs import synthesize_log

from loadshape.breakdown import break_down
from loadshape.contract import compare_facts, list_facts
from loadshape.fleet import measure_machines
from loadshape.laggard import APART
from loadshape.log import OUTCOMES, Log
from loadshape.report import render
from loadshape.report.machines import MOST, list_machines
from loadshape.report.plots import draw_figures
from loadshape.summary import Objectives, summarize
from loadshape.symptoms import Symptom, find_symptoms

from .invented import burst, put, spread_log

LAX = Objectives(ttft_s=1000.0, tpot_s=None)
CROSS = {"In flight", "Gaps between requests, planned and realised"}


def look(log: Log, objectives: Objectives = LAX) -> list[Symptom]:
    """Return the symptoms that speak of nodes."""
    return [it for it in find_symptoms(summarize(log, objectives=objectives)) if "node" in it.pattern]


# In numbers


def test_every_number_is_that_of_another_program() -> None:
    log = spread_log(slow={1: 2.0}, columns={"rtt_ns": {0: 200_000, 1: 5_000_000}})
    rows = log.requests.to_pylist()
    for it in measure_machines(summarize(log)):
        own = [row for row in rows if row["node"] == it.node]
        assert (it.requests, it.outcomes) == (len(own), {"ok": len(own)})
        for found, stamps in ((it.ttft, ("due_ns", "first_token_ns")), (it.lateness, ("due_ns", "begun_ns"))):
            told = {"count": found.count, "p50_s": found.p50_s, "p95_s": found.p95_s, "p99_s": found.p99_s}
            assert told == pytest.approx(describe(list(measure(own, *stamps))))
        known = [row["rtt_ns"] / 1e9 for row in own if row["rtt_ns"] is not None]
        assert it.rtt_s == (median(known) if known else None)


def test_what_is_known_of_a_machine() -> None:
    log = spread_log(
        health={1: {"runqueue_ns": 0.03, "steal_ns": 0.02}},
        about={1: {"name": "far", "niceness": 15, "drift_ppb": 7.5, "bursts": [burst(-1, 1, moved_us=-900)]}},
        tokens={1: 2048},
    )
    one, two, _ = measure_machines(summarize(log))
    assert (two.name, two.niceness, two.drift_ppb, two.lost) == ("far", 15, 7.5, "")
    assert two.clock_s == pytest.approx(0.00095)
    assert (two.runqueue, two.steal) == pytest.approx((0.03, 0.02))
    assert (one.runqueue, one.input_tokens, two.input_tokens) == (0.0, 512, 2048)
    assert one.loop_lag_s is None or one.loop_lag_s == pytest.approx(0.00005)


def test_a_log_without_the_file_has_its_rows_all_the_same() -> None:
    machines = measure_machines(summarize(replace(spread_log(), nodes=[], planned=None)))
    assert [(it.node, it.name, it.requests, it.clock_s) for it in machines] == [(at, "", 300, None) for at in range(3)]


def test_one_host_has_no_rows() -> None:
    assert measure_machines(summarize(synthesize_log())) == ()


# A slow node, or a slow server


def test_like_nodes_have_no_symptom() -> None:
    assert look(spread_log()) == []


@pytest.mark.slow
def test_like_nodes_are_not_told_apart_by_chance() -> None:
    assert [seed for seed in range(25) if look(spread_log(4, requests=800, seed=seed))] == []


@pytest.mark.slow
def test_a_node_twice_as_slow_is_found_by_its_requests_alone() -> None:
    found = [look(spread_log(4, requests=800, seed=seed, slow={2: 2.0})) for seed in range(25)]
    assert [it[0].pattern[:17] for it in found if it] == ["node 2 is slower "] * len([it for it in found if it])
    assert sum(map(bool, found)) >= 22


REASONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "network": (
        {"columns": {"rtt_ns": {0: 200_000, 1: 40_000_000, 2: 300_000}}},
        "round trips of 40.0 ms, there 300 us",
        "the network between this node and the server",
    ),
    "core": ({"health": {1: {"runqueue_ns": 0.2}}}, "waiting for a core 20 %, there 0 %", "this machine"),
    "steal": ({"health": {1: {"steal_ns": 0.3}}}, "steal 30 %, there 0 %", "this machine"),
    "niceness": ({"about": {1: {"niceness": 15}}}, "niceness 15, there 0", "this machine"),
    "lengths": ({"tokens": {1: 4096}}, "prompts of 4,096 tokens, there 512", "its share of the traffic"),
    "nothing": ({}, "its round trips, its lateness and its prompts are like theirs", "something between"),
    "a little rtt": (
        {"columns": {"rtt_ns": {0: 200_000, 1: 500_000, 2: 300_000}}},
        "its round trips, its lateness and its prompts are like theirs",
        "something between",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_a_slow_node_is_slow_by(name: str) -> None:
    given, sign, hypothesis = REASONS[name]
    (found,) = look(spread_log(slow={1: 2.0}, **given))
    assert found.pattern.startswith("node 1 is slower than node ")
    assert "times as long on the same targets" in found.shown_by
    assert sign in found.shown_by
    assert found.hypothesis.startswith(hypothesis)
    assert found.next_evidence


def test_less_than_a_persons_time_is_not_told() -> None:
    assert look(spread_log(slow={1: APART - 0.1}, requests=3000)) == []


def test_few_requests_show_nothing() -> None:
    assert look(spread_log(slow={1: 3.0}, requests=240)) == []


def test_a_slow_replica_is_no_slow_node() -> None:
    log = spread_log(slow={1: 3.0}, columns={"target": {0: 0, 1: 1, 2: 0}})
    targets = [{"url": f"http://192.0.2.{at}:8000/v1"} for at in (1, 2)]
    manifest = msgspec.structs.replace(log.manifest, run=msgspec.structs.replace(log.run, targets=targets))
    assert look(replace(log, manifest=manifest)) == []


def test_many_slow_nodes_are_counted() -> None:
    found = look(spread_log(12, requests=3600, slow=dict.fromkeys(range(5), 3.0)))
    assert len(found) == 3
    assert found[0].pattern.endswith(", and so are 2 more")


def test_all_nodes_slow_alike_is_the_server() -> None:
    (found,) = look(spread_log(), Objectives(ttft_s=0.01))
    assert found.pattern == "all nodes are slow alike"
    assert found.hypothesis.startswith("it is the server")


def test_nodes_that_fail_alike_are_not_slow() -> None:
    log = spread_log()
    outcomes = pa.array(["http_error" if it % 5 == 0 else "ok" for it in range(900)])
    codes = pc.index_in(outcomes, pa.array(OUTCOMES)).cast(pa.int8())
    failed = put(log.requests, "outcome", pa.DictionaryArray.from_arrays(codes, pa.array(OUTCOMES)))
    assert look(replace(log, requests=failed)) == []


# In every form


def test_text_has_a_row_a_node_where_there_are_several() -> None:
    about = {1: {"name": "ray-worker-group-5f9-1234567.example.com"}, 2: {"lost": "not heard"}}
    text = render(summarize(spread_log(about=about)))
    assert "Nodes\n" in text
    rows = [line.split()[:5] for line in text.splitlines() if line.startswith("  node ")]
    assert rows == [
        ["node", "0", "host-0", "300", "300"],
        ["node", "1", "..up-5f9-1234567", "300", "300"],
        ["node", "2,", "lost", "300", "300"],
    ]
    assert "1 process on each of 3 nodes" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "Nodes\n" not in render(summarize(synthesize_log()))


def test_json_has_every_node() -> None:
    told = json.loads(render(summarize(spread_log(40, requests=400)), "json"))["by_node"]
    assert [it["node"] for it in told] == list(range(40))
    assert told[0] | {"ttft": None, "lateness": None} == {
        "node": 0,
        "name": "host-0",
        "requests": 10,
        "outcomes": {"ok": 10},
        "ttft": None,
        "lateness": None,
        "rtt_s": None,
        "input_tokens": 512.0,
        "loop_lag_s": None,
        "runqueue": 0.0,
        "steal": 0.0,
        "niceness": 0,
        "clock_s": pytest.approx(5e-05),
        "drift_ppb": None,
        "lost": "",
    }
    assert json.loads(render(summarize(synthesize_log()), "json"))["by_node"] == []


def test_of_many_nodes_the_slowest_are_shown() -> None:
    log = spread_log(40, requests=1600, slow={7: 4.0}, about={9: {"lost": "gone"}})
    rows = list_machines(summarize(log))
    assert (len(rows), rows[-1].label) == (MOST + 1, "10 others")
    assert {"node 7 host-7", "node 9, lost"} <= {row.label for row in rows}


def test_the_page_has_a_section_and_a_breakdown() -> None:
    page = render(summarize(spread_log()), "html")
    assert "<h2>Nodes</h2>" in page
    assert "By node" in page
    assert "<h2>Nodes</h2>" not in (alone := render(summarize(synthesize_log()), "html"))
    assert "By node" not in alone


def test_a_breakdown_by_node() -> None:
    found = break_down(summarize(spread_log(slow={1: 2.0})), "node")
    assert [(it.name, it.count) for it in found.parts] == [("node 0", 300), ("node 1", 300), ("node 2", 300)]
    assert [it.name for it in break_down(summarize(spread_log(40, requests=400)), "node").parts][-1] == "others"


@pytest.mark.parametrize(("moved_us", "left_out"), [(0, set()), (20_000, CROSS)])
def test_figures_across_nodes_need_one_clock(moved_us: float, left_out: set[str]) -> None:
    log = spread_log(about={1: {"bursts": [burst(10, 1, moved_us=moved_us)]}})
    titles = {figure.title for figure in draw_figures(summarize(log))}
    assert CROSS - titles == left_out
    assert "Latency over time" in titles


def test_nodes_are_conditions_of_the_client() -> None:
    before, after = spread_log(), spread_log(4, about={1: {"environment": {"cores": 8}}})
    changes = {str(it) for it in compare_facts(before, after)}
    assert "client.nodes: 3 -> 4" in changes
    assert "client.nodes.cores: 4 -> ['4', '8']" in changes
    assert list_facts(synthesize_log())["client", "nodes"] == 1

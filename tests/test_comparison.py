"""Comparisons: the contract first, then effects that are only called so when they are sure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from logs import make_log, request_row, synthesize_log
from msgspec import structs

from loadshape import reading
from loadshape.comparison import compare
from loadshape.contract import compare_facts
from loadshape.effect import decide
from loadshape.errors import InputError
from loadshape.interval import Interval
from loadshape.log import Log
from loadshape.quality import compare_scores, load_scores
from loadshape.reading import lighten, take_reading
from loadshape.report import render
from loadshape.summary import Summary, summarize


def side(*seeds: int, slowness: float = 1.0, **environment: Any) -> list[Summary]:
    logs = [synthesize_log(2000, 3, seed=seed, slowness=slowness) for seed in seeds]
    return [summarize(replace(log, environment=environment)) for log in logs]


def change_run(log: Log, **about: Any) -> Log:
    return replace(log, manifest=structs.replace(log.manifest, run=structs.replace(log.run, **about)))


@pytest.mark.parametrize(
    ("low", "high", "more", "decision"),
    [
        (0.80, 0.90, False, "better"),
        (0.80, 0.90, True, "worse"),
        (1.10, 1.20, False, "worse"),
        (1.10, 1.20, True, "better"),
        (0.97, 1.03, False, "equivalent"),
        (0.90, 1.02, False, "inconclusive"),
        (0.90, 1.30, False, "inconclusive"),
        (0.50, float("inf"), False, "inconclusive"),
    ],
)
def test_a_decision_is_one_of_the_whole_interval(low: float, high: float, more: bool, decision: str) -> None:
    assert decide(Interval(low, high, 9), more_is_better=more, is_share=False, margin=0.05) == decision


def test_shares_are_compared_in_points() -> None:
    assert decide(Interval(0.02, 0.04, 9), more_is_better=False, is_share=True, margin=0.05) == "worse"
    assert decide(Interval(-0.005, 0.005, 9), more_is_better=False, is_share=True, margin=0.05) == "equivalent"


def test_one_declared_change_that_helps_is_better() -> None:
    before, after = side(1, server={"flags": "a"}), side(1, slowness=0.5, server={"flags": "b"})
    found = compare(before, after)
    effects = {it.name: it for it in found.effects}
    assert [change.name for change in found.changes] == ["server.flags"]
    assert effects["ttft.p50"].decision == "better"
    assert effects["ttft.p50"].size == pytest.approx(0.5, rel=0.02)
    paired = {it.metric: it for it in found.pairings}["ttft"]
    assert paired.ratio == pytest.approx(0.5, rel=0.01)
    assert paired.improved == 1.0


def test_a_system_does_not_differ_from_itself() -> None:
    found = compare(side(1), side(1))
    assert {it.decision for it in found.effects} <= {"equivalent", "inconclusive", "unknown"}
    assert not found.changes
    assert "no changed fact" in " ".join(found.conditions)


def test_several_runs_are_compared_by_runs() -> None:
    found = compare(side(1, 2, 3), side(4, 5, 6, slowness=2.0))
    effect = next(it for it in found.effects if it.name == "ttft.p50")
    assert found.by_runs
    assert effect.decision == "worse"
    assert effect.interval is not None
    assert effect.interval.effective < 8  # runs, not thousands of requests


def test_a_profiled_run_is_refused_beside_an_ordinary_one() -> None:
    log = synthesize_log(400, 3)
    profiled = change_run(log, settings={"profile": {"after_s": 1.0, "for_s": 2.0}})
    assert compare([summarize(profiled)], [summarize(profiled)]).changes == ()
    with pytest.raises(InputError, match=r"one side was profiled.*instrument.profiled: False -> True"):
        compare([summarize(log)], [summarize(profiled)])


def test_the_state_of_the_cache_is_a_condition() -> None:
    log = synthesize_log(400, 3)
    reset = change_run(log, settings={"reset_cache": True})
    assert [str(it) for it in compare_facts(log, reset)] == ["server.cache_reset: False -> True"]


def test_runs_that_are_all_alike_are_not_certain() -> None:
    found = {it.name: it for it in compare(side(*[1] * 3), side(*[1] * 3)).effects}
    assert found["errors"].interval is not None
    assert found["errors"].interval.low < 0 < found["errors"].interval.high


def test_reservations_are_told_with_the_runs_that_have_them() -> None:
    (conditions,) = [it for it in compare(side(1), side(1)).conditions if it.startswith("SUSPECT")] or [""]
    assert "memory.log" in conditions or not conditions
    assert any("not pooled" in it for it in compare(side(1), side(1)).conditions)


def test_what_to_allow_is_named_whole() -> None:
    log = synthesize_log(400, 3)
    other = change_run(log, trace_digest="sha256:" + "cd" * 32, settings={"slots": 3})
    with pytest.raises(InputError, match=r"--allow traffic\.slots --allow traffic\.trace"):
        compare([summarize(log)], [summarize(other)])


def test_two_changes_are_refused_unless_one_is_allowed() -> None:
    before, after = side(1, server={"flags": "a", "version": "1"}), side(1, server={"flags": "b", "version": "2"})
    with pytest.raises(InputError, match="2 things were changed at once"):
        compare(before, after)
    assert len(compare(before, after, allow=["server.version"]).changes) == 2


@pytest.mark.parametrize(
    ("about", "complaint"),
    [({"trace_digest": "sha256:" + "cd" * 32}, "of different traces"), ({"settings": {"slots": 3}}, "traffic differs")],
)
def test_other_traffic_is_refused(about: dict[str, Any], complaint: str) -> None:
    log = synthesize_log(400, 3)
    with pytest.raises(InputError, match=complaint) as caught:
        compare([summarize(log)], [summarize(change_run(log, **about))])
    assert "--allow" in str(caught.value)


def test_another_client_is_refused() -> None:
    with pytest.raises(InputError, match="client differs"):
        compare(side(1, client={"cpu": "one"}), side(1, client={"cpu": "another"}))


def test_an_invalid_run_is_not_compared() -> None:
    late = [request_row(n, due=n, begun=n + 50, first_token=n + 60, last_token=n + 70, done=n + 71) for n in range(99)]
    with pytest.raises(InputError, match="INVALID"):
        compare([summarize(make_log(late))], [summarize(make_log(late))])


def test_a_folder_of_other_runs_is_no_repeat() -> None:
    mixed = [*side(1, server={"flags": "a"}), *side(2, server={"flags": "b"})]
    with pytest.raises(InputError, match="is no repeat of"):
        compare(mixed, side(3, server={"flags": "a"}))


def test_facts_that_always_differ_are_not_changes() -> None:
    models = [{"id": "m", "created": when, "max_model_len": 8} for when in (1, 2)]
    environments = [
        {"server": {"models": {"data": [it]}}, "client": {"load_average": [it["created"]]}} for it in models
    ]
    assert compare_facts(*(make_log(environment=it) for it in environments)) == ()


def test_text_and_json_tell_the_contract_and_every_reading() -> None:
    found = compare(side(1, server={"flags": "a"}), side(1, slowness=0.5, server={"flags": "b"}))
    text, document = render(found), json.loads(render(found, "json"))
    assert "server.flags: a -> b" in text
    assert "better" in text
    assert [it["reading"] for it in document["effects"]] == [it.name for it in found.effects]


def test_quality_stands_in_the_same_table() -> None:
    before = {f"item-{n}": 0.8 for n in range(200)}
    worse = before | {f"item-{n}": 0.2 for n in range(60)}
    found = compare(side(1), side(1), quality=(before, worse))
    effect = found.effects[-1]
    assert (effect.name, effect.decision) == ("quality", "worse")
    assert effect.size == pytest.approx(-0.18)
    assert "quality" in render(found)


def test_scores_of_other_items_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only one has b"):
        compare_scores({"a": 1.0}, {"a": 1.0, "b": 0.0})
    (tmp_path / "scores.json").write_text('{"a": 7}')
    with pytest.raises(InputError, match="from 0 to 1"):
        load_scores(tmp_path / "scores.json")


def test_light_summaries_have_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = side(1)[0]
    monkeypatch.setattr(reading, "MOST_VALUES", 500)
    light = lighten(whole)
    assert len(light.gaps.gap_ns) <= 500 < len(whole.gaps.gap_ns)
    names = ("itl.p50", "itl.p99", "icl.mean", "itl.max", "ttft.p97", "longest_gap.p95", "receive_lag.p99", "errors")
    for name in names:
        ours, theirs = take_reading(light, name), take_reading(whole, name)
        assert (ours.value, ours.count, ours.interval) == (theirs.value, theirs.count, theirs.interval)


def test_declared_prices_and_gpus_make_costs() -> None:
    one = side(1, declared={"gpus": 1, "price_per_hour": 4.0})
    four = side(1, declared={"gpus": 4, "price_per_hour": 16.0})
    found = compare(one, four)  # the GPUs are one change, and what they cost is no second one
    effects = {it.name: it for it in found.effects}
    assert [str(it) for it in found.changes] == ["server.gpus: 1 -> 4", "cost.price_per_hour: 4.0 -> 16.0"]
    assert found.scaling is not None
    assert (found.scaling.speedup, found.scaling.efficiency) == pytest.approx((1.0, 0.25))
    assert "4 GPUs against 1: 1.00 times the output tokens, an efficiency of 25.0%" in render(found)
    assert compare(one, one).scaling is None
    assert effects["price_per_million_tokens"].size == pytest.approx(4.0)
    assert "output_tokens_per_gpu_s" not in {it.name for it in compare(side(1), side(1)).effects}

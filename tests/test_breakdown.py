"""Parts of a run add up to it, and each has the numbers of its own requests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import make_log, make_planned, request_row, synthesize_log

from loadshape.breakdown import KINDS, MOST, break_down
from loadshape.errors import InputError
from loadshape.log import Log
from loadshape.report import render
from loadshape.summary import summarize


def served(number: int, **more: Any) -> dict[str, Any]:
    """A request that was due every second and took 100 ms for the first of 11 tokens, and 1 s for all."""
    due = 1000 * number
    stamps = {"due": due, "begun": due, "sent": due, "first_token": due + 100, "last_token": due + 1000}
    return request_row(number, **stamps, done=due + 1000, prompt_tokens=500, completion_tokens=11, **more)


ROWS = [
    served(0, target=0, cached_tokens=0),
    served(1, target=1, cached_tokens=400),
    request_row(2, "http_error", due=2000, begun=2000, done=2100, turn=1),
    served(3, target=1),
]
PLAN = make_planned(
    {"kind": "chat", "tenant": "a", "input_tokens": 63, "output_tokens": 64, "model": "m", "adapter": "x"},
    {"kind": "chat", "tenant": "b", "input_tokens": 64, "shared_tokens": 48, "output_tokens": 9000},
    {"kind": "code", "tenant": "b", "input_tokens": 127, "shared_tokens": 1},
    {"kind": "code", "input_tokens": 128, "shared_tokens": 32},
)
TARGETS = [{"url": "http://192.0.2.1:8000/v1"}, {"url": "http://192.0.2.2:8000/v1"}]


def small_log() -> Log:
    return replace(make_log(ROWS, duration_s=20.0, targets=TARGETS), planned=PLAN)


EXPECTED = {
    "kind": {"chat": [0, 1], "code": [2, 3]},
    "tenant": {"a": [0], "b": [1, 2], "none": [3]},
    "model": {"m": [0], "none": [1, 2, 3]},
    "adapter": {"none": [1, 2, 3], "x": [0]},
    "input": {"0 - 63 tokens": [0], "64 - 127 tokens": [1, 2], "128 - 255 tokens": [3]},
    "output": {"0 - 63 tokens": [2, 3], "64 - 127 tokens": [0], "8,192 - 16,383 tokens": [1]},
    "share": {"none": [0], "below 25 %": [2], "25 to 50 %": [3], "75 % and more": [1]},
    "cached": {"hit": [1], "no hit": [0], "not told": [2, 3]},
    "turn": {"turn 0": [0, 1, 3], "turn 1": [2]},
    "target": {"http://192.0.2.1:8000/v1": [0, 2], "http://192.0.2.2:8000/v1": [1, 3]},
    "node": {"node 0": [0, 1, 2, 3]},
    "time": {"0 - 10 s": [0, 1, 2, 3]},
}


@pytest.mark.parametrize("by", KINDS)
def test_every_request_is_in_its_part(by: str) -> None:
    found = break_down(summarize(small_log()), by)
    assert {part.name: part.count for part in found.parts} == {name: len(rows) for name, rows in EXPECTED[by].items()}
    assert sorted(part.name for part in found.parts) == sorted(EXPECTED[by])


def test_a_part_has_the_numbers_of_its_requests() -> None:
    chat, code = break_down(summarize(small_log()), "kind").parts
    assert (chat.outcomes, code.outcomes) == ({"ok": 2}, {"ok": 1, "http_error": 1})
    assert chat.ttft.mean_s == pytest.approx(0.1)
    assert chat.tpot.mean_s == pytest.approx(0.09)
    assert (chat.ttft.count, code.ttft.count, code.ttft.p50_s) == (2, 1, None)  # 14 values are needed
    assert (chat.output_tokens_per_s, code.output_tokens_per_s) == (22 / 20, 11 / 20)
    assert (chat.attainment, code.attainment) == (0.0, 0.0)  # TPOT of 90 ms


def test_tokens_of_a_slice_of_time_are_those_that_were_finished_in_it() -> None:
    rows = [served(number) for number in range(15)]  # the one due at 9 s is done at 10 s
    early, late = break_down(summarize(make_log(rows, duration_s=15.0)), "time").parts
    assert (early.name, early.count, late.name, late.count) == ("0 - 10 s", 10, "10 - 15 s", 5)
    assert (early.output_tokens_per_s, late.output_tokens_per_s) == (9 * 11 / 10, 6 * 11 / 5)


def test_of_many_names_the_rest_is_one_part() -> None:
    rows = [served(number) for number in range(MOST + 12)]
    plan = make_planned(*({"tenant": f"t{min(number, MOST + 4):03d}"} for number in range(MOST + 12)))
    found = break_down(summarize(replace(make_log(rows, duration_s=99.0), planned=plan)), "tenant")
    assert len(found.parts) == MOST + 1
    assert (found.parts[-1].name, found.parts[-1].count) == ("others", 5)
    assert f"t{MOST + 4:03d}" in [part.name for part in found.parts]  # the largest


def test_an_older_log_says_what_it_can_be_divided_by() -> None:
    summary = summarize(make_log(ROWS, targets=TARGETS))
    with pytest.raises(InputError, match=r"does not hold what was planned.*divide it by turn, target, cached or time"):
        break_down(summary, "kind")
    assert len(break_down(summary, "turn").parts) == 2
    with pytest.raises(InputError, match="by: expected one of kind, tenant"):
        break_down(summary, "colour")


@pytest.mark.parametrize("by", ["turn", "target", "cached", "time"])
def test_a_log_of_nothing_has_no_parts(by: str) -> None:
    found = break_down(summarize(make_log()), by)
    assert found.parts == ()
    assert f"By {by}" in render(found)


def test_forms() -> None:
    found = break_down(summarize(small_log()), "kind")
    text = render(found)
    assert "chat" in text
    assert "n/a" in text  # the percentiles
    assert max(map(len, text.splitlines())) <= 100
    told = json.loads(render(found, "json"))
    assert [part["name"] for part in told["parts"]] == ["chat", "code"]
    assert told["parts"][0]["ttft"]["mean_s"] == pytest.approx(0.1)


@settings(max_examples=20, deadline=None)  # each example builds a log
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(KINDS)), st.floats(0, 8))
def test_parts_add_up_to_the_window(seed: int, by: str, warmup_s: float) -> None:
    rng = np.random.default_rng(seed)
    log = synthesize_log(60, 3, seed=seed % 1000, failing=0.2)
    tokens = rng.integers(1, 10_000, (60, 2)).tolist()
    plan = make_planned(*({"input_tokens": max(it), "shared_tokens": min(it), "output_tokens": it[0]} for it in tokens))
    shuffled = log.requests.set_column(
        log.requests.schema.get_field_index("turn"), "turn", pa.array(rng.integers(0, 50, 60), pa.uint16())
    )
    summary = summarize(replace(log, requests=shuffled.cast(log.requests.schema), planned=plan), warmup_s=warmup_s)
    parts = break_down(summary, by).parts
    assert sum(part.count for part in parts) == summary.members.num_rows
    assert sum(part.ttft.count for part in parts) == summary.ttft.count
    good = sum((part.attainment or 0) * part.count for part in parts)
    assert good == pytest.approx((summary.attainment or 0) * summary.members.num_rows)

"""What other tools would say, against the worked example of docs/dialect.md and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logs import make_log, make_planned, read_row, request_row, synthesize_log
from test_metrics import read_tables

from loadshape.dialect import DIALECTS, Term, look_as, translate
from loadshape.errors import InputError
from loadshape.log import Log
from loadshape.report import render
from loadshape.summary import Objectives, Summary, summarize
from loadshape.wire.openai import Kind

PAGE = Path(__file__).parents[1] / "docs" / "dialect.md"
_, TERMS, REQUESTS, READS, VALUES, RATES = read_tables(PAGE)
KINDS = {kind.name.lower(): kind.value for kind in Kind if kind.name}


def worked_example() -> Log:
    rows = []
    for cells in REQUESTS:
        known: dict[str, Any] = {name: float(text) for name, text in cells.items() if text and name != "outcome"}
        counts = {name: int(known.pop(name)) for name in ("prompt_tokens", "completion_tokens") if name in known}
        rows.append(request_row(int(known.pop("request")), cells["outcome"], **known, **counts))
    reads = [read_row(int(row["request"]), float(row["at"]), int(row["deltas"])) | tell_events(row) for row in READS]
    return make_log(rows, reads, duration_s=2.0)


def tell_events(row: dict[str, str]) -> dict[str, int]:
    return {"events": int(row["events"]), "kinds": sum(KINDS[name] for name in row["holds"].split())}


def find_term(tool: str, name: str) -> Term:
    return next(term for term in DIALECTS[tool].terms if term.name == name)


def take_values(summary: Summary, tool: str, name: str) -> list[float]:
    term, view = find_term(tool, name), look_as(summary, tool)
    values = term.take(view)
    assert isinstance(values, np.ndarray)
    weights = np.ones(len(values)) if term.weigh is None else np.nan_to_num(term.weigh(view))
    return np.repeat(values * 1e3, weights.astype(int))[~np.isnan(np.repeat(values, weights.astype(int)))].tolist()


def test_page_lists_every_term() -> None:
    listed = [(row["tool"], row["term"], row["unit"], row["formula"]) for row in TERMS]
    assert listed == [(tool, it.name, it.unit, it.formula) for tool, of in DIALECTS.items() for it in of.terms]


@pytest.mark.parametrize("row", VALUES, ids=lambda row: f"{row['tool']} {row['term']}")
def test_worked_example(row: dict[str, str]) -> None:
    expected = [float(text) for text in row["values"].split(",")]
    summary = summarize(worked_example())
    assert sorted(take_values(summary, row["tool"], row["term"])) == pytest.approx(sorted(expected), abs=1e-3)
    (told,) = [it for it in translate(summary, row["tool"]).statements if it.term.name == row["term"]]
    assert told.mean == pytest.approx(np.mean(expected) / 1e3)


@pytest.mark.parametrize("row", RATES, ids=lambda row: f"{row['tool']} {row['rate']}")
def test_worked_rates(row: dict[str, str]) -> None:
    told = translate(summarize(worked_example()), row["tool"])
    (found,) = [it.mean for it in told.statements if it.term.name == row["rate"]]
    assert found == pytest.approx(float(row["value"]), abs=1e-4)


@pytest.mark.parametrize(("tool", "failed"), [("vllm", 0), ("sglang", 0), ("aiperf", 0), ("guidellm", 1)])
def test_an_error_in_the_stream_is_an_answer_to_some(tool: str, failed: int) -> None:
    told = translate(summarize(worked_example()), tool)
    assert (told.answered, told.failed) == (3 - failed, failed)


def test_what_the_program_uses_are_the_bits_of_the_log() -> None:
    dialect = __import__("loadshape.dialect", fromlist=["ROLE"])
    for name in ("ROLE", "CONTENT", "FINISH", "USAGE", "DONE", "COMMENT", "ERROR"):
        assert getattr(dialect, name) == Kind[name].value


def test_where_nobody_counted_sglang_takes_what_was_asked_for() -> None:
    row = request_row(0, due=0, begun=0, sent=0, first_token=100, last_token=300, done=400)
    log = make_log([row], [read_row(0, 100), read_row(0, 300)])
    known = replace(log, planned=make_planned({"output_tokens": 31}))
    assert np.isnan(look_as(summarize(log), "sglang").tokens).all()
    assert look_as(summarize(known), "sglang").mean_gap_s.tolist() == [pytest.approx(0.3 / 30)]
    assert np.isnan(look_as(summarize(known), "vllm").tokens).all()


def test_usage_in_every_chunk_is_no_chunk_of_its_own() -> None:
    both = int(Kind.CONTENT | Kind.USAGE)
    log = make_log(
        [request_row(0, due=0, begun=0, sent=0, first_token=10, last_token=30, done=40, completion_tokens=2)],
        [read_row(0, 10) | {"kinds": both}, read_row(0, 30) | {"kinds": both}],
    )
    assert look_as(summarize(log), "vllm").gap_ns.tolist() == [20_000_000]


def test_goodput_follows_the_stated_objectives() -> None:
    log = synthesize_log(300, 10, failing=0.0)
    strict, lax = (
        translate(summarize(log, objectives=Objectives(ttft_s=limit_s, tpot_s=None)), "vllm") for limit_s in (0.1, 99.0)
    )
    (few,), (all_of_them,) = (
        [it.mean for it in of.statements if it.term.name == "request_goodput"] for of in (strict, lax)
    )
    (every,) = [it.mean for it in lax.statements if it.term.name == "request_throughput"]
    assert few is not None
    assert every is not None
    assert 0 < few < every == all_of_them


@pytest.mark.parametrize("tool", DIALECTS)
def test_a_run_without_requests_has_no_figures(tool: str) -> None:
    told = translate(summarize(make_log()), tool)
    assert all(it.mean is None for it in told.statements if it.term.unit == "s")
    assert "0 requests answered" in render(told)


def test_forms_name_the_tool_and_its_formulas() -> None:
    told = translate(summarize(worked_example()), "vllm")
    assert "first chunk with choices - begun" in render(told)
    assert '"e2el"' in render(told, "json")
    with pytest.raises(InputError, match="tool: expected one of vllm, aiperf, guidellm, sglang; found 'wrk'"):
        translate(summarize(worked_example()), "wrk")

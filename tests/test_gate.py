"""Gates: objectives as people write them, and what is said of runs that keep, miss or cannot answer them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from logs import make_log, request_row, synthesize_log

from loadshape.errors import InputError
from loadshape.gate import Gate, Objective, rule
from loadshape.reading import take_reading
from loadshape.report import render
from loadshape.summary import Summary, summarize


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(synthesize_log(reads_each=4))


@pytest.mark.parametrize(
    ("text", "reading", "sense", "limit"),
    [
        ("ttft.p95 <= 1.5 s", "ttft.p95", "<=", 1.5),
        ("tpot.mean<40ms", "tpot.mean", "<", 0.04),
        ("errors < 1%", "errors", "<", 0.01),
        ("attainment >= 0.99", "attainment", ">=", 0.99),
        ("output_tokens_per_s > 500 tok/s", "output_tokens_per_s", ">", 500.0),
        ("request_hz >= 40/s", "request_hz", ">=", 40.0),
        ("e2e_with_failures.p99.9 <= 1 min", "e2e_with_failures.p99.9", "<=", 60.0),
        ("maximize goodput_hz", "goodput_hz", "maximize", None),
        ("itl.p99 minimize", "itl.p99", "minimize", None),
    ],
)
def test_objectives_are_read_as_written(text: str, reading: str, sense: str, limit: float | None) -> None:
    found = Objective.parse(text)
    assert (found.reading, found.sense) == (reading, sense)
    assert found.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ttft.p95", "expected one such as"),
        ("ttft <= 1 s", "expected a statistic such as ttft.p95"),
        ("tftt.p95 <= 1 s", "did you mean 'ttft'"),
        ("ttft.p95 <= 40", "with its unit"),
        ("errors < 1 s", "expected a share"),
        ("request_hz > 5%", "such as 40/s"),
        ("ttft.p100 <= 1 s", "expected a statistic"),
        ("outcome.http_eror < 1%", "did you mean 'outcome.http_error'"),
    ],
)
def test_what_cannot_be_an_objective_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Objective.parse(text)


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("objectives = []", "expected at least one"),
        ('objectives = ["ttft.p95 < 1 s"]\nobjektives = 3', "objektives"),
        ('objectives = ["nonsense < 1 s"]', "expected a metric"),
        ("objectives = [", "TOML"),
    ],
)
def test_a_bad_gate_names_its_file(tmp_path: Path, toml: str, complaint: str) -> None:
    path = tmp_path / "gate.toml"
    path.write_text(toml)
    with pytest.raises(InputError, match=complaint) as caught:
        Gate.load(path)
    assert str(path) in str(caught.value)


def test_a_gate_is_passed_missed_or_not_known(summary: Summary) -> None:
    gate = Gate(objectives=("ttft.p50 <= 10 s", "ttft.p50 <= 1 ms", "ttft.p99.9 <= 10 s"))
    decision = rule(gate, [summary])
    assert [it.status for it in decision.rulings] == ["met", "missed", "unknown"]
    assert decision.rulings[0].sure
    assert not decision.passed
    assert "p99.9 needs 6,640" in str(decision.rulings[2].reading)


def test_what_is_not_known_has_not_been_kept(summary: Summary) -> None:
    assert rule(Gate(objectives=("ttft.p99.9 <= 10 s",)), [summary]).exit_code in (1, 3)


def test_an_invalid_run_passes_no_gate() -> None:
    late = [request_row(n, due=n, begun=n + 50, first_token=n + 60, last_token=n + 70, done=n + 71) for n in range(99)]
    decision = rule(Gate(objectives=("ttft.p50 <= 10 s",)), [summarize(make_log(late))])
    assert decision.exit_code == 3
    assert "NO DECISION" in decision.headline
    assert [it.reading.value for it in decision.rulings] == [None]
    assert "found n/a (the run is INVALID)" in render(decision)


def test_an_objective_kept_by_a_hair_is_not_sure(summary: Summary) -> None:
    value = take_reading(summary, "ttft.p50").value
    assert value is not None
    ruling = rule(Gate(objectives=(f"ttft.p50 <= {value * 1000 + 0.01:.3f} ms",)), [summary]).rulings[0]
    assert (ruling.status, ruling.sure) == ("met", False)


def test_no_failure_among_few_does_not_prove_none() -> None:
    rows = [request_row(n, due=n, begun=n, first_token=n + 6, last_token=n + 7, done=n + 7) for n in range(50)]
    reading = take_reading(summarize(make_log(rows)), "errors")
    assert reading.value == 0.0
    assert reading.interval is not None
    assert reading.interval.high == pytest.approx(3 / 50)


def test_every_form_tells_the_same(summary: Summary) -> None:
    decision = rule(Gate(name="chat", objectives=("ttft.p50 <= 10 s", "errors < 50%")), [summary])
    document = json.loads(render(decision, "json"))
    assert document["passed"] == decision.passed
    assert [it["status"] for it in document["rulings"]] == ["met", "met"]
    assert "| met | `ttft.p50 <= 10 s` |" in render(decision, "markdown")
    assert render(decision).startswith("chat: ")

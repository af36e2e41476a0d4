"""The definitions, against the worked example of docs/metrics.md and by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import make_log, read_row, request_row, synthesize_log

from loadshape import metrics, stats
from loadshape.errors import InputError
from loadshape.log import OUTCOMES, Log
from loadshape.report import render
from loadshape.summary import Distribution, Objectives, Summary, meet_objectives, summarize

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def read_tables(page: Path = PAGE) -> list[list[dict[str, str]]]:
    """Return the Markdown tables of the page as rows of {heading: cell}."""
    tables: list[list[list[str]]] = [[]]
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            tables[-1].append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
        elif tables[-1]:
            tables.append([])
    return [[dict(zip(rows[0], row, strict=True)) for row in rows[2:]] for rows in tables if rows]


DEFINITIONS, REQUESTS, READS, VALUES, RATES = read_tables()


def worked_example() -> Log:
    rows = []
    for cells in REQUESTS:
        known: dict[str, Any] = {name: float(text) for name, text in cells.items() if text and name != "outcome"}
        counts = {name: int(known.pop(name)) for name in ("prompt_tokens", "completion_tokens") if name in known}
        rows.append(request_row(int(known.pop("request")), cells["outcome"], **known, **counts))
    reads = [read_row(int(row["request"]), float(row["at"]), int(row["deltas"])) for row in READS]
    return make_log(rows, reads, duration_s=2.0)


def test_page_lists_every_definition() -> None:
    listed = {row["metric"]: (row["unit"], row["formula"], row["over"]) for row in DEFINITIONS}
    assert listed == {name: (it.unit, it.formula, it.rows) for name, it in metrics.DEFINITIONS.items()}


@pytest.mark.parametrize("row", VALUES, ids=lambda row: row["metric"])
def test_worked_example(row: dict[str, str]) -> None:
    expected_s = [float(text) / 1e3 for text in row["values"].split(",")]
    found: Distribution = getattr(summarize(worked_example()), row["metric"])
    assert found.count == len(expected_s)
    assert found.mean_s == pytest.approx(np.mean(expected_s))
    assert (found.min_s, found.max_s) == pytest.approx((min(expected_s), max(expected_s)))
    assert found.p50_s is None  # 14 values are needed


@pytest.mark.parametrize("row", RATES, ids=lambda row: row["rate"])
def test_worked_rates(row: dict[str, str]) -> None:
    summary = summarize(worked_example())
    if row["rate"] == "goodput_hz":
        assert summary.goodput_hz(ttft_s=0.08) == float(row["value"])
    elif row["rate"] == "goodput_tokens_per_s":
        promised = summarize(summary.log, objectives=Objectives(ttft_s=0.08, tpot_s=None))
        assert promised.goodput_tokens_per_s == float(row["value"])
    else:
        assert round(getattr(summary.throughput, row["rate"]), 1) == float(row["value"])


def test_worked_example_shares_reads_and_names_its_token_rule() -> None:
    found = summarize(worked_example()).intervals
    assert (found.reads, found.shared, found.token_rule) == (6, 1, "one token a delta")


def test_itl_uses_the_servers_count_where_it_is_known() -> None:
    # one delta of 4 tokens 80 ms after the first: 20 ms each, four times
    log = make_log(
        [request_row(0, due=0, begun=0, first_token=10, last_token=90, done=91)],
        [read_row(0, 10, tokens=1), read_row(0, 90, tokens=4)],
    )
    summary = summarize(log)
    assert (summary.itl.count, summary.itl.min_s, summary.itl.max_s) == (4, 0.02, 0.02)
    assert summary.icl.mean_s == pytest.approx(0.08)
    assert summary.intervals.token_rule == "as the server counted them"


@pytest.mark.parametrize(
    ("columns", "tpot_s"),
    [
        ({"completion_tokens": 5}, 0.1),
        ({"completion_tokens": 2}, 0.4),
        ({"completion_tokens": 1}, None),
        ({"completion_tokens": None}, None),
        ({"completion_tokens": 5, "outcome": "truncated"}, None),
    ],
)
def test_tpot_needs_two_counted_tokens_and_an_ok(columns: dict[str, Any], tpot_s: float | None) -> None:
    row = request_row(0, due=0, begun=0, first_token=100, last_token=500, done=501) | columns
    assert summarize(make_log([row])).tpot.mean_s == (None if tpot_s is None else pytest.approx(tpot_s))


@pytest.mark.parametrize(
    ("columns", "good"),
    [
        ({}, True),
        ({"first_token_ns": 1_100_000_001}, False),  # TTFT of 1.1 s
        ({"outcome": "truncated"}, False),
        ({"completion_tokens": 3}, False),  # TPOT of 200 ms
        ({"completion_tokens": 1}, True),  # no TPOT to keep
        ({"completion_tokens": None}, False),  # cannot be shown to keep it
    ],
)
def test_objectives(columns: dict[str, Any], good: bool) -> None:
    row = request_row(0, due=0, begun=0, first_token=100, last_token=500, done=501, completion_tokens=21) | columns
    assert meet_objectives(make_log([row]).requests, Objectives(ttft_s=1.0, tpot_s=0.05)).tolist() == [good]


def test_window_is_decided_by_due_time_and_completions_count_where_they_fall() -> None:
    # due at 0, 1 ... 9 s; each takes 1.5 s
    rows = [
        request_row(n, due=1000 * n, begun=1000 * n, first_token=1000 * n + 50, last_token=1000 * n + 1500)
        | {"done_ns": (1000 * n + 1500) * 1_000_000}
        for n in range(10)
    ]
    summary = summarize(make_log(rows, duration_s=10.0), warmup_s=2.3, cooldown_s=2.7)
    assert summary.e2e.count == 5  # due at 3, 4, 5, 6, 7
    assert summary.throughput.completed == 5  # done at 2.5, 3.5, ..., 6.5; the window ends at 7.3
    assert summary.throughput.offered_hz == pytest.approx(1.0)
    assert summary.outcomes == {"ok": 10}


def test_rates_are_of_the_window_and_of_the_whole_run() -> None:
    log = synthesize_log(400, 4)
    whole, late = summarize(log), summarize(log, warmup_s=15)
    assert whole.throughput_of_run is whole.throughput
    assert late.throughput_of_run == whole.throughput
    assert late.throughput != whole.throughput
    assert "over the whole run" in render(late)
    assert "over the whole run" not in render(whole)


def test_goodput_in_tokens_counts_only_what_came_in_time() -> None:
    log = synthesize_log(400, 4)
    loose, strict = (summarize(log, objectives=Objectives(ttft_s=limit_s, tpot_s=None)) for limit_s in (1e3, 1e-9))
    assert loose.goodput_tokens_per_s == loose.throughput.output_tokens_per_s
    assert strict.goodput_tokens_per_s == 0.0
    assert summarize(make_log()).goodput_tokens_per_s is None


def test_percentiles_say_what_they_are_worth() -> None:
    summary = summarize(synthesize_log(800, 4))
    assert re.search(r"TTFT p95 .* ms to .* of 7\d\d", render(summary))
    assert "TTFT p99  " not in render(summarize(synthesize_log(300, 4)))  # too few for it, so no interval of it


@pytest.mark.parametrize(("warmup_s", "cooldown_s"), [(-1, 0), (0, -1), (20, 0), (12, 8)])
def test_window_must_leave_something(warmup_s: float, cooldown_s: float) -> None:
    with pytest.raises(InputError, match="warm-up and cool-down: expected"):
        summarize(synthesize_log(50), warmup_s=warmup_s, cooldown_s=cooldown_s)


def test_not_reached_is_an_outcome_and_nothing_else() -> None:
    rows = [request_row(0, due=0, begun=0, first_token=10, last_token=20, done=21), request_row(1, "not_reached")]
    summary = summarize(make_log(rows))
    assert summary.outcomes == {"ok": 1, "not_reached": 1}
    assert summary.ttft_with_failures.count == summary.ttft.count == 1
    assert summary.attainment == 0.0  # of one; without counted tokens its TPOT cannot be shown


def test_percentiles_stop_at_their_floor() -> None:
    found = [Distribution.of(np.arange(float(n))) for n in (13, 14, 132, 133, 663, 664)]
    assert [it.p50_s is None for it in found] == [True, False, False, False, False, False]
    assert [it.p95_s is None for it in found] == [True, True, True, False, False, False]
    assert [it.p99_s is None for it in found] == [True, True, True, True, True, False]


def test_failures_as_infinite_move_the_percentiles_that_they_reach() -> None:
    summary = summarize(synthesize_log(1000, failing=0.04))
    assert summary.ttft_with_failures.p99_s == math.inf
    assert summary.ttft.p99_s is not None
    assert math.isfinite(summary.ttft.p99_s)
    assert summary.ttft.p50_s is not None
    assert summary.ttft.p50_s < (summary.ttft_with_failures.p50_s or 0) < math.inf


def test_failures_carry_their_two_most_frequent_messages() -> None:
    texts = ["a"] * 3 + ["b"] * 2 + ["c"] + [None]
    rows = [request_row(n, "http_error", due=n, begun=n, done=n, error=text) for n, text in enumerate(texts)]
    (failure,) = summarize(make_log(rows)).failures
    assert (failure.outcome, failure.count, failure.messages) == ("http_error", 7, (("a", 3), ("b", 2)))


@pytest.mark.parametrize(
    "log",
    [
        make_log(),
        make_log(planned=5),
        make_log(duration_s=0.0),
        make_log([request_row(n, name) for n, name in enumerate(OUTCOMES)]),
        make_log([request_row(0, "refused", due=0, begun=1, done=2)]),
    ],
    ids=["empty", "no rows", "no length", "only outcomes", "refused"],
)
def test_a_log_of_nothing_has_no_numbers(log: Log) -> None:
    summary: Summary = summarize(log)
    assert summary.ttft.count == 0
    assert summary.ttft.mean_s is None
    assert not summary.goodput_hz(ttft_s=1.0)
    assert summary.throughput.output_tokens_per_s is None


def test_explain_names_the_formula_and_the_choices() -> None:
    assert "first_token - due" in metrics.explain("ttft")
    with pytest.raises(InputError, match="expected one of lateness"):
        metrics.explain("speed")


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)), min_size=1, max_size=60),
    st.floats(0, 0.95),
)
def test_weighted_quantiles_are_those_of_repeated_values(pairs: list[tuple[float, int]], q: float) -> None:
    values, weights = np.array([v for v, _ in pairs]), np.array([w for _, w in pairs])
    repeated = np.repeat(values, weights)
    (found,) = stats.quantiles(values, [q], weights)
    if len(repeated) < stats.count_floor(q):
        assert found is None
    else:
        assert found == pytest.approx(float(np.quantile(repeated, q)), abs=1e-9)
        assert found == pytest.approx(stats.quantile(repeated, q))


@pytest.mark.parametrize("shape", ["smooth", "stepped", "sorted", "one value"])
def test_many_weighted_values_are_looked_up_as_if_sorted(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.lognormal(0, 1, 300_000)
    values = {"smooth": values, "stepped": np.round(values), "sorted": np.sort(values), "one value": values * 0}[shape]
    weights = np.where(rng.random(len(values)) < 0.1, 9, 1).astype(np.uint16)
    qs = (0.0, 0.5, 0.99, 0.999)
    expected = stats.quantiles(values, qs, weights)
    monkeypatch.setattr(stats, "MANY", 1000)
    assert stats.quantiles(values, qs, weights) == expected


@given(st.lists(st.integers(0, 5)))
def test_rows_are_grouped_by_their_key_in_their_order(keys: list[int]) -> None:
    expected = {key: [at for at, it in enumerate(keys) if it == key] for key in sorted(set(keys))}
    found = stats.group_rows(np.array(keys, np.uint16))
    assert {key: rows.tolist() for key, rows in found.items()} == expected


@settings(max_examples=25, deadline=None)  # each example builds a log
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_gaps_of_a_request_add_up_to_its_time_between_first_and_last(requests: int, reads: int, seed: int) -> None:
    log = synthesize_log(requests, reads, seed=seed, failing=0.0)
    gaps = metrics.measure_gaps(log, np.arange(requests))
    total_s = np.bincount(gaps.request, gaps.gap_s, minlength=requests)
    assert total_s == pytest.approx(metrics.measure_span(log.requests, "first_token", "last_token"), abs=1e-8)

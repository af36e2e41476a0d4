"""The three forms: what stands where, what is n/a, and that foreign text stays text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from logs import health_row, make_log, request_row, synthesize_log

from loadshape.errors import InputError, MissingExtra
from loadshape.log import OUTCOMES, Log
from loadshape.report import render, tables
from loadshape.summary import summarize

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e %s {0} bold"
EMPTY = {
    "nothing": make_log(),
    "no length": make_log(duration_s=0.0),
    "only outcomes": make_log([request_row(n, name) for n, name in enumerate(OUTCOMES)]),
    "all refused": make_log([request_row(n, "refused", due=n, begun=n, done=n + 1, error=EVIL) for n in range(30)]),
    "one request": make_log([request_row(0, due=0, begun=0.1, first_token=5, last_token=9, done=9)]),
}


@pytest.fixture(scope="module")
def log() -> Log:
    return synthesize_log()


def evil_log() -> Log:
    rows = [request_row(0, "http_error", due=0, begun=0, done=4, error=EVIL)]
    target = {"url": EVIL, "model": EVIL}
    return make_log(rows, trace_name=EVIL, targets=[target], pacing=EVIL, environment={EVIL: {"x": EVIL}})


def test_text_puts_the_verdict_before_the_numbers(log: Log) -> None:
    lines = render(summarize(log), "text").splitlines()
    assert lines[0] == "VALID: the instrument was good enough for the numbers below"
    order = ["Conditions", "Latency", "Rate", "Outcomes"]
    assert [line for line in lines if line in order] == order
    assert max(map(len, lines)) <= 100


def test_text_tells_reasons_with_meaning_and_remedy(log: Log) -> None:
    health = [health_row(ms, cpu_ns=round(0.95e6 * ms)) for ms in range(0, 3000, 100)]
    text = render(summarize(make_log(log.requests, log.reads, health)), "text")
    assert text.startswith("SUSPECT: usable with the reservations below\n !   ")
    assert "CPU: 95 % of a core in the busiest second of worker 0 (limit: at most 70 %)" in text
    assert "A single-threaded loop this busy queues its own work" in text
    assert "\ndo   use more processes\n" in text
    assert re.search(r"^[12][0-9] of 2[0-9] checks of the instrument passed$", text, re.MULTILINE)


def test_text_prints_a_percentile_below_its_floor_as_na() -> None:
    text = render(summarize(synthesize_log(300, failing=0.0)), "text")
    (ttft,) = re.findall(r"^  TTFT  .*$", text, re.MULTILINE)
    assert ttft.split()[5] == "n/a"  # TTFT, p50, ms, p95, ms, p99
    assert "n/a: too few values for this percentile (needed: p50 14, p95 133, p99 664)" in text


def test_text_says_what_failed_and_how_often(log: Log) -> None:
    text = render(summarize(log), "text")
    assert re.search(r"^  http_error +\d+ +0\.\d+ %$", text, re.MULTILINE)
    assert " x 503 Service Unavailable: queue full" in text
    assert "TTFT, failed = inf" in text


def test_failures_get_no_row_where_there_are_none() -> None:
    assert "failed = inf" not in render(summarize(synthesize_log(300, failing=0.0)), "text")


def test_json_is_versioned_stable_and_in_si_units(log: Log) -> None:
    summary = summarize(log)
    text = render(summary, "json")
    found = json.loads(text)
    assert text == render(summarize(log), "json")
    assert (found["schema"], found["version"]) == ("loadshape report", 1)
    assert found["verdict"]["status"] == "VALID"
    assert found["latencies"]["ttft"]["p99_s"] == summary.ttft.p99_s
    assert found["latencies"]["ttft"]["p999_s"] is None
    assert found["latencies"]["ttft_with_failures"]["max_s"] == "inf"
    assert sum(found["outcomes"].values()) == found["planned"] == 800
    assert found["conditions"]["trace_digest"] == log.run.trace_digest


def test_page_documents_every_key_of_the_json(log: Log) -> None:
    found = json.loads(render(summarize(log), "json"))
    text = (Path(__file__).parents[1] / "docs" / "report.md").read_text(encoding="utf-8")
    nested = [*found["throughput"], *found["intervals"], *found["goodput"], *found["latencies"]["ttft"]]
    missing = [key for key in [*found, *nested, *found["verdict"], *found["window"]] if f"`{key}`" not in text]
    assert missing == []


@pytest.mark.parametrize("form", ["text", "json", "html"])
@pytest.mark.parametrize("name", EMPTY)
def test_every_form_survives_a_log_of_nothing(name: str, form: str) -> None:
    assert render(summarize(EMPTY[name]), form)


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_a_verdict_alone_has_every_form(log: Log, form: str) -> None:
    assert "VALID" in render(summarize(log).verdict, form)


def test_another_form_is_refused(log: Log) -> None:
    with pytest.raises(InputError, match="form: expected one of text, json, html; found 'pdf'"):
        render(summarize(log), "pdf")


def test_html_without_plotly_names_the_extra(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: str) -> None:
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(MissingExtra, match=r"loadshape-llm\[report\]"):
        render(summarize(log), "html")


@pytest.mark.parametrize("form", ["text", "html"])
def test_foreign_text_has_no_control_characters(form: str) -> None:
    shown = render(summarize(evil_log()), form)
    assert "\x1b" not in (shown if form == "text" else shown.partition("<script>")[0])
    assert "\u202e" not in (shown if form == "text" else shown.partition("<script>")[0])


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [("a\r\n\tb", "a b"), ("\x1b[2Jx", "[2Jx"), ("x" * 200, "x" * 157 + "..."), ("\u202eabc\u200b", "abc"), ("", "")],
)
def test_clean_text(text: str, cleaned: str) -> None:
    assert tables.clean_text(text) == cleaned

"""HTML pages as text: what stands on them, that they need no network, that foreign text stays text, and their size."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from logs import make_log, request_row, synthesize_log
from pages import make_comparison, make_curve, make_found, make_summary

from loadshape.cli import deciding, exploring
from loadshape.comparison import compare
from loadshape.log import OUTCOMES, Log
from loadshape.observation import NAME, SAMPLES
from loadshape.progress import Teller
from loadshape.report import crowd, plots, render, waterfall
from loadshape.report.figure import Figure, pack, scale_time
from loadshape.report.flight import draw_flight
from loadshape.search import Found, Result
from loadshape.summary import Summary, summarize

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e %s {0} bold"
FIGURES = {
    "report": [
        "Latency over time",
        "Distribution of TTFT",
        "Distribution of E2E",
        "Distribution of ICL, the gap between reads with output",
        "TTFT by length of the input",
        "ITL over time",
        "In flight",
        "Requests, phase by phase",
        "Lengths, planned and realised",
        "Gaps between requests, planned and realised",
        "The generator's own lateness",
    ],
    "comparison": [
        "Effects against the margin",
        "Effects on shares",
        "Shift",
        "Distribution of TTFT, before and after",
        "Distribution of E2E, before and after",
        "The same requests, before and after",
    ],
    "sweep": ["Throughput", "Latency", "Errors and attainment"],
    "search": ["Trials", "Objective: ttft.p95 <= 400 ms", "Objective: errors < 1%"],
}


@pytest.fixture(scope="module")
def summary() -> Summary:
    return make_summary()


@pytest.fixture(scope="module")
def pages(summary: Summary) -> dict[str, str]:
    made = {"report": summary, "comparison": make_comparison(), "sweep": make_curve(), "search": make_found()}
    return {name: render(it, "html") for name, it in made.items()}  # type: ignore[arg-type]


class Reader(HTMLParser):
    """Collects tags, addresses, and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)


@pytest.mark.parametrize("name", FIGURES)
def test_a_page_is_one_file_without_addresses(pages: dict[str, str], name: str) -> None:
    found = Reader(pages[name])
    assert found.addresses == []
    assert "link" not in found.tags
    assert found.tags.count("script") == 3
    assert "default-src 'none'" in pages[name]
    assert 'plotlyServerURL: ""' in pages[name]


@pytest.mark.parametrize("name", FIGURES)
def test_a_page_has_its_figures(pages: dict[str, str], name: str) -> None:
    figures = json.loads(Reader(pages[name]).scripts[1])
    assert [it["title"] for it in figures] == FIGURES[name]
    assert all(f'id="plot-{n}"' in pages[name] for n in range(len(figures)))
    assert all(it["data"] for it in figures)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("report", ["<h2>Conditions</h2>", "Contract: what a comparison looks at", "By kind", "All checks"]),
        ("comparison", ["Contract: what was changed", "decision better", "For what this holds", "median change"]),
        ("sweep", ["Sweep of arrivals.rate", "5 levels, 10 runs", "TTFT p95"]),
        ("search", ["the gate is kept at 20, and not at 40", "status so far", "120 s"]),
    ],
)
def test_a_page_tells_beside_its_figures(pages: dict[str, str], name: str, told: list[str]) -> None:
    shown = pages[name].partition("<script>")[0]
    assert [text for text in told if text not in shown] == []


def test_definitions_show_over_their_names(pages: dict[str, str]) -> None:
    assert '<abbr title="first_token - due, over requests that ended ok.' in pages["report"]
    assert "<h2><abbr title=" in pages["report"]


def evil_log(**server: str) -> Log:
    """Return a run of which every text that another program wrote is an attack."""
    log = synthesize_log(300, 4)
    errors = pa.array([EVIL] * log.requests.num_rows)
    requests = log.requests.set_column(log.requests.schema.get_field_index("error"), "error", errors)
    about = {"targets": [{"url": EVIL, "model": EVIL}], "pacing": EVIL, "trace_name": EVIL}
    environment = {EVIL: {"x": EVIL}, "server": {EVIL: EVIL} | server}
    return make_log(requests, log.reads, log.health, environment=environment, **about)


def test_foreign_text_stays_text_on_every_page() -> None:
    before, after = summarize(evil_log()), summarize(evil_log(version=EVIL))
    curve = make_curve(EVIL)
    for what in (before, compare([before], [after], allow=["all"]), curve):
        page = render(what, "html")  # type: ignore[arg-type]
        plain = Reader(page)
        assert plain.tags.count("script") == 3
        assert "img" not in plain.tags
        assert "&lt;img src=x onerror=alert(2)&gt;" in page
        assert "<img" not in plain.scripts[1]
        assert "\x1b" not in page.partition("<script>")[0]


def unpack(values: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(values["bdata"]), "<f4")


def draw(summary: Summary) -> dict[str, Figure]:
    return {figure.title: figure for figure in plots.draw_figures(summary)}


def test_many_points_become_a_grid() -> None:
    summary = summarize(synthesize_log(30_000, 2, duration_s=60.0, failing=0.1))
    marks = [mark for mark in draw(summary)["Latency over time"].data if mark["mode"] == "markers"]
    assert len(marks) == 4  # ok twice; two failures, which have no first token, in the lower panel only
    stands_for = 0
    for text in marks[0]["customdata"]:
        stands_for += 1 if text.isdigit() else 1 + int(text.split(" and ")[1].split()[0].replace(",", ""))
    assert stands_for == summary.outcomes["ok"]
    assert len(marks[0]["customdata"]) <= 140 * 40


def test_the_legend_names_every_group_once(summary: Summary) -> None:
    marks = draw(summary)["Latency over time"].data
    shown = [mark["name"] for mark in marks if mark["showlegend"]]
    assert len(shown) == len(set(shown)) == len({mark["name"] for mark in marks})


def test_every_token_after_the_first_is_in_the_heat_map(summary: Summary) -> None:
    (heat,) = draw(summary)["ITL over time"].data
    assert np.sum(heat["customdata"]) == summary.itl.count
    rows, columns = map(int, heat["z"]["shape"].split(", "))
    assert np.shape(heat["customdata"]) == (rows, columns)
    assert (len(unpack(heat["y"])), len(unpack(heat["x"]))) == (rows + 1, columns + 1)
    assert np.nanmax(unpack(heat["z"])) == pytest.approx(np.log10(np.max(heat["customdata"])), rel=1e-6)


def test_lengths_are_drawn_as_planned_and_as_counted(summary: Summary) -> None:
    lines = {mark["name"]: unpack(mark["x"]) for mark in draw(summary)["Lengths, planned and realised"].data}
    assert np.allclose(lines["input, counted"] - lines["input, planned"], 12, atol=0.01)
    assert set(lines["output, planned"]) == {64}
    assert set(lines["output, counted"]) == {40}


def test_the_waterfall_shows_what_is_rare() -> None:
    log = synthesize_log(5000, 2, failing=0.004)
    chosen = log.requests.take(pa.array(waterfall.choose_sample(log.requests)))
    assert chosen.num_rows == waterfall.SAMPLE
    outcomes = chosen["outcome"].cast(pa.string()).to_pylist()
    assert {name: outcomes.count(name) for name in set(outcomes)} == {"ok": 34, "http_error": 3, "truncated": 3}
    last, due = (np.asarray(log.requests[name].drop_null()) for name in ("last_token_ns", "due_ns"))
    ok = np.asarray(log.requests["outcome"].cast(pa.string())) == "ok"
    assert {int(np.argmax(last - due[ok])), int(np.argmin(last - due[ok]))} <= {
        int(np.count_nonzero(ok[:number])) for number in chosen["request"].to_pylist()
    }


@pytest.mark.parametrize(
    "rows", [[], [request_row(0, "not_sent", due=1)], [request_row(n, name) for n, name in enumerate(OUTCOMES)]]
)
def test_the_waterfall_of_nothing_is_left_out(rows: Sequence[dict[str, Any]]) -> None:
    assert waterfall.draw_waterfall(make_log(rows).requests).data == []


def test_the_waterfall_adds_up() -> None:
    rows = [request_row(0, due=0, begun=1, sent=2, first_token=12, last_token=42, done=43)]
    rows.append(request_row(1, "reset", due=10, begun=10, sent=10, done=15))
    bars = {mark["name"]: mark for mark in waterfall.draw_waterfall(make_log(rows).requests).data}
    assert {name: (mark["base"], mark["x"]) for name, mark in bars.items()} == {
        "until sent": ([0.0, 0.0], [0.002, 0.0]),
        "to the first token": ([0.002, 0.0], [0.01, 0.0]),
        "to the last token": ([0.012, 0.0], [0.03, 0.0]),
        "until it failed": ([0.0, 0.0], [0.0, 0.005]),
    }


def test_the_servers_queue_is_drawn_on_the_same_clock(tmp_path: Path) -> None:
    log = replace(synthesize_log(200, 4), path=tmp_path)
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    rows = [
        {"target": 0, "at_ns": at * 10**9, "width_ns": 10**6, "name": name, "labels": "{}", "value": at / 10}
        for name in names
        for at in range(5)
    ]
    with pa.OSFile(str(tmp_path / NAME), "wb") as sink, pa.ipc.new_stream(sink, SAMPLES) as stream:
        stream.write_table(pa.Table.from_pylist(rows, SAMPLES))
    figure = draw_flight(summarize(log))
    lines = {mark["name"]: mark for mark in figure.data}
    assert list(lines) == ["in flight", "server: running", "server: waiting", "KV cache in use"]
    assert unpack(lines["server: running"]["x"]).tolist() == [0, 1, 2, 3, 4]
    assert lines["KV cache in use"]["yaxis"] == "y2"


def test_a_page_does_not_grow_with_its_requests() -> None:
    sizes = []
    for requests in (20_000, 80_000):
        figures = plots.draw_figures(summarize(synthesize_log(requests, 3, duration_s=120.0)))
        sizes.append(len(json.dumps([[it.data, it.layout] for it in figures])))
    assert sizes[1] < 1.3 * sizes[0] < 2_000_000


def test_thin_keeps_the_lone_one() -> None:
    rng = np.random.default_rng(2)
    x, y = np.append(rng.uniform(0, 1, 50_000), 0.5), np.append(rng.uniform(1, 2, 50_000), 900.0)
    chosen, held = crowd.thin(x, y)
    assert held.sum() == len(x)
    assert held[chosen == 50_000].tolist() == [1]


def test_numbers_travel_with_their_shape() -> None:
    assert pack([[1, 2, 3], [4, 5, 6]])["shape"] == "2, 3"
    assert "shape" not in pack([1.5])
    assert unpack(pack([1.5])).tolist() == [1.5]


def test_an_axis_of_few_decades_has_finer_ticks() -> None:
    few, many = scale_time("x", decades=0.5), scale_time("x")
    assert "300 ms" in few["ticktext"]
    assert "300 ms" not in many["ticktext"]
    assert "200 ms" in many["ticktext"]


def test_a_search_that_found_nothing_has_a_page() -> None:
    page = render(Found(Result(None, 5.0, (), "not kept at the lowest level that may be tried"), {}), "html")
    assert "no level keeps the gate" in page
    assert "<script" not in page


def test_compare_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "open_logs", lambda path: [synthesize_log(slowness=float(path.name))])
    assert deciding.compare_runs(Path("1.3"), Path("1.0"), html=tmp_path / "c.html", json=True) == 0
    assert "Effects against the margin" in (tmp_path / "c.html").read_text(encoding="utf-8")


def test_a_sweep_without_the_extra_says_that_it_has_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(module: str) -> None:
        raise ImportError(f"No module named {module!r}")

    curve = make_curve()
    exploring._write_page(curve, tmp_path / "sweep.html", Teller())
    assert "Sweep of arrivals.rate" in (tmp_path / "sweep.html").read_text(encoding="utf-8")
    monkeypatch.setattr("importlib.import_module", fail)
    exploring._write_page(curve, tmp_path / "none.html", Teller())
    assert "no page: " in capsys.readouterr().err
    assert not (tmp_path / "none.html").exists()


@pytest.mark.slow
def test_a_million_requests_stay_small() -> None:
    summary = summarize(synthesize_log(1_000_000, 2, duration_s=600.0))
    start = time.process_time()
    page = render(summary, "html")
    assert len(page.encode()) < 10e6
    assert time.process_time() - start < 60

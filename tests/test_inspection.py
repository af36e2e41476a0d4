# What `inspect` says of a trace: load by hand, claims that hold and claims that do not, and every form of it.

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadshape.arrival import Arrival, Constant, Gamma, Mmpp, Poisson, Rate
from loadshape.cli import main
from loadshape.content import Author
from loadshape.errors import RecipeError
from loadshape.inspection.claim import Claim, claim_arrivals, claim_lengths, claim_share
from loadshape.inspection.declaration import Declaration
from loadshape.inspection.load import Load, Service, estimate_begins, estimate_load
from loadshape.inspection.page import write_page
from loadshape.inspection.section import list_head, list_sections, show_number
from loadshape.inspection.text import ASCII, BLOCKS, choose_marks, write_text
from loadshape.inspection.traffic import QUANTILES, Traffic, measure_traffic
from loadshape.length import Fixed, LogNormal
from loadshape.randomness import open_stream
from loadshape.recipe import Recipe
from loadshape.recording import Recording
from loadshape.stats import Floats
from loadshape.tokenizer import load_tokenizer
from loadshape.trace import Trace
from loadshape.transcription import transcribe
from traces import ask, closed_loop, make_trace, open_loop, partly_open

RECIPE = """
name = "small"
duration_s = 30
seed = 3

[arrivals]
process = "poisson"
rate = "20/s"

[inputs]
distribution = "lognormal"
median_tokens = 200
sigma = 0.5

[outputs]
distribution = "uniform"
min_tokens = 10
max_tokens = 90

[prefixes]
hit_rate = 0.5
depth = 2
"""
MIXED = """
name = "mixed"
duration_s = 60
[arrivals]
process = "gamma"
rate = "20/s"
cv = 2
[[classes]]
name = "long"
weight = 1
inputs = { distribution = "fixed", tokens = 400 }
outputs = { distribution = "fixed", tokens = 10 }
[[classes]]
name = "short"
weight = 3
inputs = { distribution = "fixed", tokens = 40 }
outputs = { distribution = "fixed", tokens = 30 }
[[classes]]
name = "tick"
arrivals = { process = "constant", rate = "2/s" }
inputs = { distribution = "fixed", tokens = 8 }
outputs = { distribution = "fixed", tokens = 1 }
"""
DURATION_S = 120.0


def estimate(trace: Trace, ttft_s: float, tpot_s: float) -> Load:
    service = Service(ttft_s, tpot_s)
    return estimate_load(trace, service, estimate_begins(trace, service))


class TestLoad:
    # Requests of 8 tokens that want 4: with 0.4 s and 0.2 s each lasts 1 s.
    def test_in_an_open_loop_requests_begin_when_they_are_due(self) -> None:
        found = estimate(open_loop(4, 500.0), 0.4, 0.2)
        assert found.peak_in_flight == 2
        assert found.mean_in_flight == pytest.approx((1.0 + 1.0 + 0.5) / 1.5)  # the plan ends with the last due time

    def test_the_mean_is_littles_law(self) -> None:
        found = estimate(open_loop(1000, 100.0), 0.4, 0.2)
        assert found.mean_in_flight == pytest.approx(10.0, rel=0.01)

    def test_turns_wait_for_the_answer_and_the_pause(self) -> None:
        begins_s = estimate_begins(partly_open(2, 3, gap=1000.0, think=500.0), Service(0.4, 0.2))
        assert begins_s.tolist() == pytest.approx([0, 1.5, 3.0, 1.0, 2.5, 4.0])

    def test_slots_take_the_next_session_when_they_are_free(self) -> None:
        begins_s = estimate_begins(closed_loop(3, 2, turns=2, think=500.0), Service(0.4, 0.2))
        # a slot thinks, asks, thinks and asks: 3 s a session
        assert begins_s.tolist() == pytest.approx([0.5, 2.0, 0.5, 2.0, 3.5, 5.0])

    def test_kv_tokens_are_the_prompt_and_what_was_answered(self) -> None:
        found = estimate(open_loop(1, 1.0), 0.4, 0.2)
        assert found.peak_kv_tokens == 8 + 3  # the last token comes with the end
        held = dict(zip(found.at_s.tolist(), found.kv_tokens.tolist(), strict=True))
        for at_s, tokens in held.items():
            assert tokens == pytest.approx(8 + max(0.0, at_s - 0.4) / 0.2, abs=1e-6)

    def test_nothing_is_left_at_the_end(self) -> None:
        found = estimate(open_loop(50, 10.0), 0.1, 0.01)
        assert (found.in_flight[-1], found.kv_tokens.min() >= -1e-6) == (pytest.approx(1, abs=1), True)

    def test_a_capacity_is_exceeded_for_a_part_of_the_time(self) -> None:
        found = estimate(open_loop(1, 1.0), 0.4, 0.2)
        share, since_s = found.find_excess(9)
        assert (share, since_s) == (pytest.approx(0.4, abs=0.01), pytest.approx(0.6, abs=0.01))
        assert found.find_excess(100) == (0.0, None)

    def test_answers_that_take_no_time_are_there_at_once(self) -> None:
        assert estimate(open_loop(3, 1000.0), 0.5, 0.0).peak_kv_tokens == 8

    def test_times_are_not_negative(self) -> None:
        with pytest.raises(RecipeError, match="ttft: expected a number at least 0"):
            Service(ttft_s=-1)


def draw(process: Arrival, seed: int = 0) -> Floats:
    return process.times_ns(open_stream(seed, "arrivals"), DURATION_S) / 1e9


PROCESSES: dict[str, Arrival] = {
    "constant": Constant(10),
    "poisson": Poisson(20),
    "gamma": Gamma(20, cv=3),
    "mmpp": Mmpp(rates_hz=(10, 60), sojourns_s=(10, 4)),
    "rate": Rate(points=((0, 2), (120, 30))),
}


class TestClaims:
    @pytest.mark.parametrize("name", PROCESSES)
    def test_a_process_is_what_it_is(self, name: str) -> None:
        claims = list(claim_arrivals(PROCESSES[name], draw(PROCESSES[name], 5), DURATION_S))
        assert [claim for claim in claims if claim.verdict == "off"] == []
        assert sum(claim.verdict == "as declared" for claim in claims) >= 6

    @pytest.mark.parametrize(
        ("declared", "came", "off"),
        [
            (Poisson(20), Poisson(24), "rate"),
            (Poisson(20), Constant(20), "CV of gaps"),
            (Poisson(20), Gamma(20, cv=1.5), "CV of gaps"),
            (Poisson(20), Gamma(20, cv=1.5), "KS distance of gaps"),
            (Poisson(20), Mmpp(rates_hz=(10, 60), sojourns_s=(10, 2.5)), "dispersion in 10 s"),
            (Rate(points=((0, 2), (120, 30))), Poisson(16), "dispersion in 10 s"),
            (Constant(10), Poisson(10), "dispersion in 1 s"),
        ],
    )
    def test_another_process_is_off(self, declared: Arrival, came: Arrival, off: str) -> None:
        claims = claim_arrivals(declared, draw(came, 1), DURATION_S)
        assert off in [claim.name for claim in claims if claim.verdict == "off"]

    def test_bursts_can_hide_from_the_rate_and_be_seen_in_windows(self) -> None:
        sorted_in_pairs = np.repeat(draw(Poisson(10), 2), 2)
        verdicts = {it.name: it.verdict for it in claim_arrivals(Poisson(20), sorted_in_pairs, DURATION_S)}
        assert verdicts["dispersion in 1 s"] == "off"

    def test_few_arrivals_are_not_judged(self) -> None:
        assert list(claim_arrivals(Poisson(0.1), draw(Poisson(0.1)), DURATION_S)) == []

    @pytest.mark.parametrize(("sigma", "verdict"), [(0.5, "as declared"), (0.8, "off")])
    def test_lengths(self, sigma: float, verdict: str) -> None:
        came = LogNormal(median_tokens=200, sigma=sigma).draw(open_stream(1, "lengths"), 3000)
        declared = LogNormal(median_tokens=200, sigma=0.5)
        claims = claim_lengths("input tokens", came, lambda n: declared.draw(open_stream(2, "lengths"), n))
        assert [claim.verdict for claim in claims] == [verdict, verdict]

    def test_fixed_lengths_have_no_slack(self) -> None:
        off = claim_lengths("output tokens", np.full(50, 9), lambda n: Fixed(10).draw(open_stream(0, "x"), n))
        assert {claim.verdict for claim in off} == {"off"}

    def test_shares(self) -> None:
        assert claim_share("long", 0.5, 0.52, trials=1000).verdict == "as declared"
        assert claim_share("long", 0.5, 0.58, trials=1000).verdict == "off"
        assert claim_share("hit rate", 0.6, 0.575, slack=0.01).verdict == "off"

    def test_theory_has_to_lie_in_the_range_too(self) -> None:
        assert Claim("rate", 12.0, 10.0, 9.0, 11.0).verdict == "off"
        assert Claim("rate", None, 10.0).verdict == "not judged"


class TestDeclaration:
    def test_a_recipe_is_held_against_its_trace(self) -> None:
        trace = Recipe.parse(RECIPE).trace()
        declaration = Declaration.of(trace)
        claims = {claim.name: claim for claim in declaration.list_claims(trace)}
        assert {claim.verdict for claim in claims.values()} == {"as declared", "not judged"}
        assert declaration.block_tokens == 16
        rate = claims["hit rate in blocks of 16 tokens"]
        assert rate.found == pytest.approx(0.5, abs=0.01)

    def test_known_reuse_is_not_measured_again(self) -> None:
        trace = Recipe.parse(RECIPE).trace()
        reuse = measure_traffic(trace, block_tokens=16).reuse
        declaration = Declaration.of(trace)
        assert declaration.list_claims(trace, reuse) == declaration.list_claims(trace)

    def test_settings_of_the_time_count(self) -> None:
        trace = Recipe.parse(RECIPE, settings={"arrivals.rate": "40/s"}).trace()
        rate = next(claim for claim in Declaration.of(trace).list_claims(trace) if claim.name == "rate")
        assert (rate.declared, rate.verdict) == (40, "as declared")

    def test_a_trace_that_is_not_the_recipes_is_off(self) -> None:
        trace = Recipe.parse(RECIPE).trace()
        other = Recipe.parse(RECIPE.replace("20/s", "30/s")).trace()
        off = [claim.name for claim in Declaration.of(trace).list_claims(other) if claim.verdict == "off"]
        assert "rate" in off

    def test_classes_are_told_apart(self) -> None:
        trace = Recipe.parse(MIXED).trace()
        claims = {claim.name: claim for claim in Declaration.of(trace).list_claims(trace)}
        assert claims["rate"].declared == 20
        assert claims["tick: rate"].found == 2
        assert claims["short: part of the sessions"].declared == 0.75
        assert claims["long: input tokens, mean"].found == 400
        assert [name for name, claim in claims.items() if claim.verdict == "off"] == []

    @pytest.mark.parametrize("name", ["rag", "agent", "shared-prefix", "diurnal"])
    def test_the_recipes_that_come_with_it(self, name: str) -> None:
        trace = Recipe.load(name).trace()
        claims = Declaration.of(trace).list_claims(trace)
        assert len(claims) > 8
        assert [claim for claim in claims if claim.verdict == "off"] == []

    @pytest.mark.parametrize(
        ("about", "silence"),
        [
            ({}, "made without a recipe"),
            ({"recording": {"format": "azure"}}, "converted from a recording"),
            ({"recipe": "name = 3"}, "cannot be read any more"),
        ],
    )
    def test_what_declares_nothing_is_not_judged(self, about: dict[str, Any], silence: str) -> None:
        trace = make_trace(ask(0.0), ask(1.0), **about)
        declaration = Declaration.of(trace)
        assert silence in declaration.silence
        assert declaration.list_claims(trace) == []


def inspect_rows(trace: Trace, marks: str = ASCII, kv_tokens: int | None = None) -> str:
    traffic = measure_traffic(trace)
    return write_text(list_head(traffic), list_sections(traffic, [], kv_tokens=kv_tokens), marks=marks)


class TestForms:
    @pytest.mark.parametrize(
        "trace", [open_loop(40, 25.0), closed_loop(3, 2, turns=2), partly_open(4, 3, 100.0, 50.0), make_trace(ask(0.0))]
    )
    def test_every_trace_has_every_form(self, trace: Trace) -> None:
        traffic = measure_traffic(trace)
        sections = list_sections(traffic, [], kv_tokens=100)
        text = write_text(list_head(traffic), sections)
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= 100
        page = write_page("a trace", list_head(traffic), sections)
        assert page.count("<svg") == page.count("</svg>") > 2
        assert re.search(r"\bnan\b|\binf\b", text + page) is None

    def test_blocks_are_drawn_where_they_can_be_shown(self) -> None:
        assert choose_marks("utf-8", is_terminal=True) == BLOCKS
        assert choose_marks("utf-8", is_terminal=False) == ASCII
        assert choose_marks("latin-1", is_terminal=True) == choose_marks(None, is_terminal=True) == ASCII
        assert BLOCKS[-1] in inspect_rows(open_loop(40, 25.0), BLOCKS)

    def test_names_are_text_and_never_markup(self) -> None:
        name = "<script>alert(1)</script>\x1b[31m"
        trace = make_trace(ask(0.0, tenant=name), ask(1.0, tenant="other"), name=name)
        traffic = measure_traffic(trace)
        sections = list_sections(traffic, [])
        assert "\x1b" not in write_text(list_head(traffic), sections)
        page = write_page(name, list_head(traffic), sections)
        assert "<script" not in page
        assert "&lt;script&gt;" in page

    def test_many_names_are_cut(self) -> None:
        trace = make_trace(*(ask(float(at), adapter=f"a{at}") for at in range(30)))
        text = inspect_rows(trace)
        assert "18 others" in text
        assert "adapter" in text

    def test_a_capacity_is_told(self) -> None:
        assert "9: exceeded" in inspect_rows(open_loop(40, 25.0), kv_tokens=9)
        assert "never exceeded" in inspect_rows(open_loop(40, 25.0), kv_tokens=10_000)

    @pytest.mark.parametrize(
        ("value", "unit", "text"),
        [
            (None, "", "n/a"),
            (0.0, "", "0"),
            (0.59992, "%", "60.0 %"),
            (12345.6, "", "12,346"),
            (3.14159, "/s", "3.14/s"),
        ],
    )
    def test_numbers(self, value: float | None, unit: str, text: str) -> None:
        assert show_number(value, unit) == text


class TestCommand:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return Recipe.parse(RECIPE).trace().write(tmp_path / "small.trace")

    def call(self, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["loadshape", "inspect", *map(str, arguments)])
        return main()

    def test_text(self, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.call(monkeypatch, path, "--ttft", "1s", "--tpot", "10ms", "--kv-tokens", "5000") == 0
        told = capsys.readouterr().out
        assert "as declared" in told
        assert "Load, if TTFT were 1.00 s and TPOT 10.0 ms" in told
        assert "Prefixes, in blocks of 16 tokens" in told

    def test_json(self, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.call(monkeypatch, path, "--block-tokens", "64", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["format"], told["traffic"]["schema"]) == ("loadshape trace", "loadshape inspection")
        assert told["traffic"]["reuse"]["block_tokens"] == 64
        assert sum(told["traffic"]["input_tokens"]["histogram"]["counts"]) == told["requests"]

    def test_page(self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.call(monkeypatch, path, "--html", tmp_path / "small.html") == 0
        assert (tmp_path / "small.html").stat().st_size < 150_000

    @pytest.mark.parametrize(
        ("flags", "problem"),
        [
            (("--kv-tokens", "0"), "--kv-tokens: expected at least 1"),
            (("--ttft", "soon"), "--ttft: expected a duration"),
            (("--block-tokens", "-1"), "block_tokens: expected a number at least 1"),
        ],
    )
    def test_mistakes(
        self,
        path: Path,
        flags: tuple[str, ...],
        problem: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert self.call(monkeypatch, path, *flags) == 2
        assert problem in capsys.readouterr().err


# rate, CV, dispersion at 1, 10, 60, 300 s (of the sample variance), p50 of input and output tokens
PUBLISHED = {
    "code": (2.57, 13.15, (13.2, 71.9, 167, 152), 1469, 13),
    "conv": (5.53, 1.09, (1.39, 3.87, 16.4, 61.7), 1020, 129),
}
DATA = os.environ.get("LOADSHAPE_DATA", "")


@pytest.mark.skipif(not DATA, reason="LOADSHAPE_DATA does not name a folder with the published traces")
class TestPublishedTraces:
    @pytest.mark.parametrize("name", PUBLISHED)
    def test_azure(self, name: str) -> None:
        rate_hz, gap_cv, dispersion, inputs, outputs = PUBLISHED[name]
        found = measure(Path(DATA) / "azure2023" / f"AzureLLMInferenceTrace_{name}.csv", "azure")
        assert found.arrivals.rate_hz == pytest.approx(rate_hz, rel=0.01)
        assert found.arrivals.gap_cv == pytest.approx(gap_cv, rel=0.01)
        assert list(found.arrivals.dispersion.values())[1:] == pytest.approx(dispersion, rel=0.01)
        assert (found.inputs.quantiles[2], found.outputs.quantiles[2]) == (inputs, outputs)

    def test_mooncake(self) -> None:
        path = Path(DATA) / "mooncake" / "conversation_trace.first3500.jsonl"
        seen, blocks, hits = set[int](), 0, 0
        for line in path.read_text(encoding="utf-8").splitlines():
            names = json.loads(line)["hash_ids"]
            blocks, hits = blocks + len(names), hits + sum(name in seen for name in names)
            seen.update(names)
        found = measure(path, "mooncake").reuse
        assert (found.block_tokens, found.blocks, found.distinct_blocks) == (512, blocks, len(seen))
        assert found.hit_rate == pytest.approx(hits / blocks)


def measure(path: Path, format: str) -> Traffic:
    return measure_traffic(transcribe(Recording.read(path, format), Author([], load_tokenizer(None), 0)))


def test_the_manifest_and_inspect_tell_the_same_percentiles(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(RECIPE)
    trace = Recipe.load(tmp_path / "small.toml").trace()
    stated = trace.manifest.statistics["input_tokens"]
    seen = dict(zip(QUANTILES, measure_traffic(trace).inputs.quantiles, strict=True))
    assert (stated["p50"], stated["p95"]) == (seen[0.5], seen[0.95])

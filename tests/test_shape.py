"""Shape: a trace is what its shape says, and says so itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from invention import InventedFixture

from loadshape.arrival import Burst, Constant, Gamma, Poisson
from loadshape.errors import RecipeError
from loadshape.length import Context, Empirical, Fixed, LogNormal, Observed, Uniform
from loadshape.packaged import list_packaged
from loadshape.patience import Patience
from loadshape.picture import Images
from loadshape.population import Population
from loadshape.prefix import PrefixTree
from loadshape.randomness import open_stream
from loadshape.recipe import Recipe
from loadshape.retrieval import Retrieval
from loadshape.shape import Shape
from loadshape.tokenizer import Estimate
from loadshape.trace import REQUESTS, SEGMENTS, Trace

FIXTURE = InventedFixture()
GOLDEN = Path(__file__).parent.parent / "traces" / "golden" / "digests.json"
LENGTHS = LogNormal(median_tokens=300, sigma=0.9)

PAIRS = Shape(Poisson(rate_hz=40), max_output_tokens=20, params={"temperature": 0, "ignore_eos": True})
COMPOSED = Shape(
    arrivals=Gamma(rate_hz=30, cv=2) + Burst(at_s=5, rate_hz=100, for_s=2),
    inputs=LENGTHS,
    outputs=Empirical.of(FIXTURE),
    prefixes=PrefixTree(share=0.6, depth=3),
)
QUOTED = Shape(Constant(rate_hz=20), outputs=Uniform(5, 9), prefixes=PrefixTree(share=0.5), api="completions")
SHAPES = {"pairs": PAIRS, "composed": COMPOSED, "quoted": QUOTED}


def draw(shape: Shape, duration_s: float = 20, seed: int = 7) -> Trace:
    return shape.trace(FIXTURE, duration_s=duration_s, seed=seed)


def column(trace: Trace, name: str) -> np.ndarray[Any, Any]:
    return np.asarray(trace.requests[name]).astype(np.int64)


def write_messages(trace: Trace) -> list[list[tuple[str, str]]]:
    """The messages of every request as (role, text)."""
    texts = trace.segments["text"].to_pylist()
    return [
        [(message["role"], "".join(texts[number] for number in message["segments"])) for message in messages]
        for messages in trace.requests["messages"].to_pylist()
    ]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_trace_has_the_format_and_survives_its_disk(shape: Shape, tmp_path: Path) -> None:
    trace = draw(shape)
    assert trace.requests.schema.equals(REQUESTS)
    assert trace.segments.schema.equals(SEGMENTS)
    opened = Trace.open(trace.write(tmp_path / "a.trace"))
    opened.verify()
    assert opened.digest == trace.digest
    assert opened.manifest == trace.manifest


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_same_seed_same_trace_and_another_seed_another(shape: Shape) -> None:
    assert draw(shape).digest == draw(shape).digest
    assert draw(shape).digest != draw(shape, seed=8).digest


def digest_all() -> dict[str, str]:
    found = {name: draw(shape).digest for name, shape in SHAPES.items()}
    for name in list_packaged("traces/recipes"):
        duration_s = None if name == "balanced-chat" else 10
        found[name] = Recipe.load(name).trace(FIXTURE, duration_s=duration_s).digest
    return found


def test_digests_are_the_published_ones() -> None:
    found = digest_all()
    assert found == json.loads(GOLDEN.read_text()), f"if the change is meant, {GOLDEN} becomes {json.dumps(found)}"


# Without these numpy's exponentials and logarithms differ in the last bit from those with them, on a CPU that has
# them. The names are those of numpy 2.0 to 2.3 and those since 2.4; each is told the other's too, hence -W ignore.
WIDE = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"


@pytest.mark.parametrize("disabled", [WIDE, f"{WIDE} AVX2 FMA3 X86_V3"])
def test_digests_do_not_depend_on_the_instruction_set(disabled: str) -> None:
    code = "import json, test_shape; print(json.dumps(test_shape.digest_all()))"
    places = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": disabled, "PYTHONPATH": places}
    command = [sys.executable, "-W", "ignore", "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    assert json.loads(found) == json.loads(GOLDEN.read_text())


def test_without_lengths_requests_are_the_pairs_of_the_fixture() -> None:
    trace = draw(PAIRS)
    tokens = dict(zip([p for p, _ in FIXTURE.pairs], Estimate().count([a for _, a in FIXTURE.pairs]), strict=True))
    for messages, outputs in zip(write_messages(trace), column(trace, "output_tokens").tolist(), strict=True):
        ((role, text),) = messages
        assert role == "user"
        assert outputs == min(20, tokens[text])


def test_every_prompt_comes_once_before_any_comes_again() -> None:
    texts = [messages[0][1] for messages in write_messages(draw(PAIRS))]
    size = len(FIXTURE.pairs)
    assert len(texts) > 2 * size
    assert len(set(texts[:size])) == size
    assert texts[size : 2 * size] == texts[:size]


def test_a_second_use_of_a_prompt_is_shared() -> None:
    trace = draw(PAIRS)
    size, shared = len(FIXTURE.pairs), column(trace, "shared_tokens")
    assert not shared[:size].any()
    assert (shared[size:] == column(trace, "input_tokens")[size:]).all()
    assert trace.manifest.statistics["distinct_prompts"] == size


def test_equal_prompts_of_a_fixture_are_one_segment() -> None:
    fixture = InventedFixture(3)
    fixture.pairs = [fixture.pairs[0], (fixture.pairs[0][0], "another answer"), fixture.pairs[1]]
    trace = Shape(Constant(rate_hz=3)).trace(fixture, duration_s=1, seed=7)
    assert trace.segments.num_rows == 2
    assert np.count_nonzero(column(trace, "shared_tokens")) == 1


@pytest.mark.parametrize("shape", [COMPOSED, QUOTED], ids=["composed", "quoted"])
def test_stated_tokens_are_those_of_the_finished_prompts(shape: Shape) -> None:
    trace = draw(shape)
    counted = [sum(Estimate().count([text for _, text in messages])) for messages in write_messages(trace)]
    assert counted == column(trace, "input_tokens").tolist()
    error = trace.manifest.statistics["input_tokens_error"]
    assert (error["exact"], error["least"], error["most"]) == (error["prompts"], 0, 0)


def test_asked_lengths_are_met_exactly() -> None:
    trace = draw(replace(COMPOSED, inputs=Fixed(333), outputs=Fixed(17)))
    assert set(column(trace, "input_tokens")) == {333}
    assert set(column(trace, "output_tokens")) == {17}


@pytest.mark.parametrize("shape", [COMPOSED, QUOTED], ids=["composed", "quoted"])
def test_the_asked_share_is_shared(shape: Shape) -> None:
    trace = draw(shape, duration_s=60)
    assert shape.prefixes is not None
    share = column(trace, "shared_tokens").sum() / column(trace, "input_tokens").sum()
    assert share == pytest.approx(shape.prefixes.share, abs=0.012)
    assert trace.manifest.statistics["shared_share"] == pytest.approx(share)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shared_tokens_are_what_the_texts_have_in_common(shape: Shape) -> None:
    trace = draw(shape, duration_s=6)
    texts = ["\0".join(text for _, text in messages) for messages in write_messages(trace)]
    for row, stated in enumerate(column(trace, "shared_tokens").tolist()):
        longest = max((count_common(texts[row], earlier) for earlier in texts[:row]), default=0)
        # a lower bound: what begins alike by chance, and characters where tokens are counted, add a few tokens
        assert stated - 1 <= longest / 4 <= stated + 12


def count_common(one: str, other: str) -> int:
    place = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return len(one[:place].encode())


def test_a_chat_has_its_prefix_in_the_system_message() -> None:
    chat, plain = write_messages(draw(COMPOSED)), write_messages(draw(QUOTED))
    assert {tuple(role for role, _ in messages) for messages in chat} <= {("system", "user"), ("user",)}
    assert len({messages[0][1] for messages in chat if len(messages) == 2}) < len(chat) / 4
    assert {tuple(role for role, _ in messages) for messages in plain} == {("user",)}


def test_no_text_is_stored_twice_or_in_vain() -> None:
    for shape in SHAPES.values():
        trace = draw(shape)
        texts = trace.segments["text"].to_pylist()
        used = pa.compute.unique(
            pa.compute.list_flatten(trace.requests["messages"].combine_chunks().flatten().field(1))
        )
        assert len(set(texts)) == len(texts)
        assert len(used) == len(texts) - bool(shape.params)


def test_parameters_of_all_requests_are_one_segment() -> None:
    trace = draw(PAIRS)
    (number,) = set(trace.requests["params"].to_pylist())
    segment = trace.segments.slice(number, 1).to_pylist()[0]
    assert (segment["kind"], segment["tokens"]) == ("json", 0)
    assert json.loads(segment["text"]) == {"temperature": 0, "ignore_eos": True}
    assert draw(QUOTED).requests["params"].null_count == draw(QUOTED).requests.num_rows


# What changes, and the columns that stay as they were: every decision has a random stream of its own.
CHANGES = [
    ({"outputs": Fixed(9)}, ["due_ns", "messages", "input_tokens", "shared_tokens"]),
    ({"inputs": Fixed(500), "prefixes": None}, ["due_ns", "output_tokens"]),
    ({"prefixes": PrefixTree(share=0.4)}, ["due_ns", "input_tokens", "output_tokens"]),
]


@pytest.mark.parametrize(("change", "kept"), CHANGES)
def test_changing_one_value_leaves_the_other_draws_alone(change: dict[str, Any], kept: list[str]) -> None:
    before, after = draw(COMPOSED).requests, draw(replace(COMPOSED, **change)).requests
    changed = [name for name in before.column_names if not before[name].equals(after[name])]
    assert changed
    assert not set(kept) & set(changed)


def test_a_longer_trace_begins_with_the_shorter_one() -> None:
    long, short = draw(PAIRS, duration_s=40), draw(PAIRS, duration_s=10)
    n = short.requests.num_rows
    assert long.requests["due_ns"][:n].equals(short.requests["due_ns"])
    assert write_messages(long)[:n] == write_messages(short)


def test_the_manifest_says_how_the_trace_was_made() -> None:
    manifest = draw(COMPOSED).manifest
    assert manifest.fixture is not None
    assert manifest.fixture["digest"] == FIXTURE.digest
    assert manifest.tokenizer["name"] == "estimate"
    assert (manifest.seed, manifest.duration_s, manifest.loop.mode) == (7, 20.0, "open")
    assert "arrivals" in manifest.streams


def test_statistics_are_those_of_the_columns() -> None:
    trace = draw(COMPOSED, duration_s=60)
    statistics, tokens = trace.manifest.statistics, column(trace, "input_tokens")
    assert statistics["rate_hz"] == trace.requests.num_rows / 60
    assert statistics["offered_hz"] == pytest.approx(30 + 200 / 60, rel=1e-3)
    assert statistics["input_tokens"]["mean"] == pytest.approx(tokens.mean())
    assert statistics["input_tokens"]["max"] == tokens.max()
    assert list(statistics["dispersion"]) == ["0.1 s", "1 s", "10 s", "60 s", "300 s"]
    assert statistics["dispersion"]["10 s"] is None  # fewer than ten windows
    assert draw(PAIRS, duration_s=600).manifest.statistics["dispersion"]["1 s"] == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: draw(PAIRS, duration_s=0), "duration_s: expected a number above 0"),
        (lambda: draw(PAIRS, duration_s=float("nan")), "duration_s: expected a number above 0"),
        (lambda: draw(Shape(Poisson(rate_hz=0.001)), duration_s=1), "arrivals: none in 1 s; lengthen"),
        (lambda: draw(PAIRS, seed=-1), "seed: expected"),
        (lambda: PAIRS.trace(InventedFixture(0), duration_s=1, seed=7), "fixture: no prompt"),
        (lambda: replace(PAIRS, api="chatt"), "api: expected one of chat, completions.*did you mean 'chat'"),
        (lambda: replace(PAIRS, max_output_tokens=0), "max_output_tokens: expected"),
        (lambda: replace(PAIRS, params={"max_tokens": 9}), r"params\.max_tokens: expected"),
        (lambda: replace(PAIRS, params={"temperature": float("nan")}), r"params\.temperature: expected a finite"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_without_a_fixture_texts_are_neutral_words() -> None:
    shape = replace(COMPOSED, inputs=Fixed(200), outputs=Fixed(9))
    trace = shape.trace(duration_s=10, seed=7)
    trace.verify()
    assert trace.manifest.fixture is None
    assert set(column(trace, "input_tokens")) == {200}
    assert trace.manifest.statistics["input_tokens_error"]["exact"] == min(256, trace.requests.num_rows)


def test_lengths_are_drawn_together_and_kept_inside_of_the_context() -> None:
    shape = Shape(Poisson(rate_hz=20), lengths=Observed((100, 400), (10, 700)))
    for context, longest in ((None, 700), (Context(tokens=512), 112)):
        trace = replace(shape, context=context).trace(duration_s=20, seed=7)
        pairs = zip(column(trace, "input_tokens"), column(trace, "output_tokens"), strict=True)
        assert set(pairs) == {(100, 10), (400, longest)}


def test_a_slot_stands_before_everything_and_is_counted() -> None:
    trace = draw(replace(COMPOSED, isolation="slot", inputs=Fixed(300), prefixes=PrefixTree(prefix_tokens=64)))
    kinds = [row["kind"] for row in trace.segments.to_pylist()]
    assert kinds.count("slot") == 1
    slot = trace.segments.slice(kinds.index("slot"), 1).to_pylist()[0]
    assert (slot["tokens"], len(set(json.loads(slot["text"])))) == (8, 16)
    for messages in trace.requests["messages"].to_pylist():
        named = [segment for message in messages for segment in message["segments"]]
        assert [kinds[segment] for segment in named].index("slot") == 0
    assert set(column(trace, "input_tokens")) == {300}
    assert trace.manifest.statistics["input_tokens_error"]["exact"] == 256
    assert column(trace, "shared_tokens")[1:].min() >= 72


def test_images_stand_after_the_text_and_are_stored_once() -> None:
    images = Images(width=8, height=8, count=2, share=0.5, distinct=3)
    trace, plain = draw(replace(COMPOSED, images=images)), draw(COMPOSED)
    kinds = [row["kind"] for row in trace.segments.to_pylist()]
    assert kinds.count("image") == 3
    shown = []
    for messages in trace.requests["messages"].to_pylist():
        named = [kinds[segment] for segment in messages[-1]["segments"]]
        shown.append(named.count("image"))
        assert named == sorted(named, reverse=True), "text before images"
    assert set(shown) == {0, 2}
    for name in ("input_tokens", "shared_tokens", "output_tokens", "due_ns"):
        assert trace.requests[name].equals(plain.requests[name])


def test_names_are_drawn_for_models_adapters_and_tenants() -> None:
    names = {
        "models": Population(names=("small", "large"), weights=(3, 1)),
        "adapters": Population(count=20, zipf=1.0),
        "tenants": Population(count=4),
    }
    trace = draw(replace(COMPOSED, **names), duration_s=60)
    models = trace.requests["model"].to_pylist()
    assert models.count("small") / len(models) == pytest.approx(0.75, abs=0.05)
    assert {"adapter-0", "adapter-1"} < set(trace.requests["adapter"].to_pylist())
    tenants = trace.requests["tenant"].to_pylist()
    assert set(tenants) == {f"tenant-{number}" for number in range(4)}
    systems: dict[str, set[int]] = {}
    for tenant, messages in zip(tenants, trace.requests["messages"].to_pylist(), strict=True):
        if messages[0]["role"] == "system" and len(messages[0]["segments"]) > 1:
            systems.setdefault(tenant, set()).add(messages[0]["segments"][1])
    branches = [segment for found in systems.values() for segment in found]
    assert len(set(branches)) == len(branches), "each tenant has the branch of the tree that is its own"


def test_token_ids_need_a_vocabulary() -> None:
    shape = Shape(Constant(rate_hz=5), inputs=Fixed(40), outputs=Fixed(4), api="completions", token_ids=True)
    with pytest.raises(RecipeError, match="token_ids: expected a tokenizer with a vocabulary"):
        draw(shape)


class Uneven:
    """As many arrivals as COMPOSED has, at other times."""

    def __init__(self, rate_hz: float) -> None:
        self.rate_hz = rate_hz

    def offered_hz(self, t_s: float) -> float:
        return self.rate_hz

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> np.ndarray[Any, Any]:
        return np.arange(len(COMPOSED.arrivals.times_ns(open_stream(7, "arrivals"), duration_s))) * 1000


STREAMED: list[tuple[dict[str, Any], set[str]]] = [
    ({"images": Images(width=8, height=8)}, {"messages"}),
    ({"models": Population(count=2)}, {"model"}),
    ({"adapters": Population(count=2)}, {"adapter"}),
    ({"patience": Patience(tokens=Fixed(3))}, {"patience"}),
    ({"tenants": Population(count=2)}, {"tenant", "messages", "shared_tokens"}),
    ({"arrivals": Uneven(30)}, {"due_ns"}),
]


@pytest.mark.parametrize(("change", "may_change"), STREAMED)
def test_what_is_added_draws_from_a_stream_of_its_own(change: dict[str, Any], may_change: set[str]) -> None:
    before, after = draw(COMPOSED).requests, draw(replace(COMPOSED, **change)).requests
    changed = {name for name in before.column_names if not before[name].equals(after[name])}
    assert changed
    assert changed <= may_change


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"lengths": Observed((1,), (1,))}, "lengths: draws inputs and outputs together"),
    ({"inputs": None, "retrieval": Retrieval(1, 10, 5)}, "retrieval: documents are part of a length"),
    ({"images": Images(width=8, height=8), "api": "completions"}, "images: expected api chat"),
    ({"token_ids": True}, "token_ids: only completions"),
    ({"isolation": "slots"}, "isolation: expected one of none, slot"),
    ({"isolation": "slot", "prefixes": PrefixTree(hit_rate=0.5)}, "isolation: a slot moves the blocks"),
    ({"prefixes": PrefixTree(prefix_tokens=10)}, r"prefixes\.block_tokens: expected at most the 10 tokens"),
    (
        {"prefixes": PrefixTree(prefix_tokens=40, depth=4)},
        r"block_tokens: expected at most the 10 tokens of each of its 4",
    ),
    ({"inputs": Fixed(16), "prefixes": PrefixTree(hit_rate=0.5)}, r"prefixes\.block_tokens: expected less than the 16"),
]


@pytest.mark.parametrize(("change", "message"), IMPOSSIBLE)
def test_what_is_impossible_together_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        replace(COMPOSED, **change)


def test_rows_are_sorted_and_numbered() -> None:
    trace = draw(COMPOSED)
    assert column(trace, "request").tolist() == list(range(trace.requests.num_rows))
    assert all(a <= b for a, b in pairwise(column(trace, "due_ns").tolist()))

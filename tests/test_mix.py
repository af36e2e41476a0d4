"""Mixes: classes share a run and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from invention import InventedFixture

from loadshape.arrival import Constant, Poisson
from loadshape.errors import RecipeError
from loadshape.length import Fixed, Uniform
from loadshape.mix import Following, Mix
from loadshape.prefix import PrefixTree
from loadshape.recipe import Recipe
from loadshape.session import Sessions
from loadshape.shape import Shape
from loadshape.trace import Loop, Trace
from loadshape.wait import FixedWait, UniformWait

FIXTURE = InventedFixture()
CHAT = Shape(kind="chat", max_output_tokens=20, params={"temperature": 0})
RAG = Shape(kind="rag", inputs=Uniform(200, 400), outputs=Fixed(7), prefixes=PrefixTree(prefix_tokens=64))
BATCH = Shape(Constant(rate_hz=2), kind="batch", inputs=Fixed(50), outputs=Fixed(5), api="completions")
SUB = Shape(kind="sub", inputs=Fixed(30), outputs=Fixed(3))
MIX = Mix(
    classes=(CHAT, RAG, BATCH, SUB),
    arrivals=Poisson(rate_hz=40),
    weights={"chat": 3, "rag": 1},
    follows={"sub": Following(name="rag", requests=2, after=FixedWait(wait_s=0.5))},
)


def draw(mix: Mix, duration_s: float = 10, seed: int = 7) -> Trace:
    return mix.trace(FIXTURE, duration_s=duration_s, seed=seed, name="mix")


def list_class(trace: Trace, kind: str) -> list[dict[str, Any]]:
    """The requests of a class, with what they say in place of numbers."""
    texts = trace.segments["text"].to_pylist()
    rows = [row for row in trace.requests.to_pylist() if row["kind"] == kind]
    for row in rows:
        row["messages"] = [(it["role"], "".join(texts[at] for at in it["segments"])) for it in row["messages"]]
        row["params"] = None if row["params"] is None else texts[row["params"]]
        del row["request"], row["session"], row["shared_tokens"]
    return rows


def times_of(trace: Trace, *kinds: str) -> np.ndarray[Any, Any]:
    return np.sort([row["due_ns"] for kind in kinds for row in list_class(trace, kind)])


def test_common_arrivals_are_divided_by_weight() -> None:
    trace = draw(MIX, duration_s=60)
    trace.verify()
    chat, rag = (len(list_class(trace, kind)) for kind in ("chat", "rag"))
    assert chat / (chat + rag) == pytest.approx(0.75, abs=0.03)
    assert trace.manifest.statistics["offered_hz"] == 40
    assert trace.manifest.statistics["classes"]["rag"]["output_tokens"]["max"] == 7


def test_each_class_is_the_traffic_of_its_shape() -> None:
    trace = draw(MIX)
    assert {row["output_tokens"] for row in list_class(trace, "rag")} == {7}
    assert {(row["api"], row["input_tokens"]) for row in list_class(trace, "batch")} == {("completions", 50)}
    assert {row["params"] for row in list_class(trace, "chat")} == {'{"temperature":0}'}
    assert np.array_equal(times_of(trace, "batch"), np.arange(20) * 500_000_000)


def test_followers_are_due_after_their_leaders() -> None:
    trace = draw(MIX)
    expected = np.repeat(times_of(trace, "rag"), 2) + 500_000_000
    assert np.array_equal(times_of(trace, "sub"), expected[expected < 10e9])


# A change of the mix, and the classes that do not notice.
CHANGES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"classes": (CHAT, replace(RAG, outputs=Fixed(9)), BATCH, SUB)}, ("chat", "batch", "sub")),
    ({"classes": (CHAT, RAG, replace(BATCH, arrivals=Constant(rate_hz=3)), SUB)}, ("chat", "rag", "sub")),
    ({"classes": (CHAT, RAG, SUB)}, ("chat", "rag", "sub")),
    ({"classes": (BATCH, SUB, CHAT, RAG)}, ("chat", "rag", "batch", "sub")),
    ({"classes": (CHAT, RAG, BATCH), "follows": {}}, ("chat", "rag", "batch")),
    ({"arrivals": Poisson(rate_hz=30)}, ("batch",)),
]


@pytest.mark.parametrize(("change", "kept"), CHANGES)
def test_changing_one_class_leaves_the_others_alone(change: dict[str, Any], kept: tuple[str, ...]) -> None:
    before, after = draw(MIX), draw(replace(MIX, **change))
    for kind in kept:
        assert list_class(before, kind) == list_class(after, kind)


def test_other_weights_divide_the_same_arrivals() -> None:
    other = draw(replace(MIX, weights={"chat": 1, "rag": 1}))
    assert np.array_equal(times_of(draw(MIX), "chat", "rag"), times_of(other, "chat", "rag"))


def test_same_seed_same_trace_and_another_seed_another() -> None:
    assert draw(MIX).digest == draw(MIX).digest != draw(MIX, seed=8).digest


def test_sessions_and_single_requests_go_together() -> None:
    talk = Shape(kind="talk", sessions=Sessions(think=UniformWait(min_s=1, max_s=2)))
    trace = draw(Mix((talk, CHAT), arrivals=Poisson(rate_hz=5), weights={"talk": 1, "chat": 1}))
    trace.verify()
    assert trace.manifest.loop == Loop("partly_open")
    assert {row["turn"] for row in list_class(trace, "chat")} == {0}
    assert max(row["turn"] for row in list_class(trace, "talk")) == 3


def test_a_closed_loop_gives_its_count_to_classes_by_weight() -> None:
    closed = Mix((CHAT, RAG), weights={"chat": 3, "rag": 1}, loop=Loop("closed", slots=4), count=400)
    trace = draw(closed)
    trace.verify()
    assert (trace.requests.num_rows, trace.requests["due_ns"].null_count) == (400, 400)
    kinds = trace.requests["kind"].to_pylist()
    for half in (kinds[:200], kinds[200:]):
        assert half.count("rag") == pytest.approx(50, abs=15)


def test_what_several_classes_say_is_shared_and_stored_once() -> None:
    other = Shape(kind="other", max_output_tokens=20)
    trace = draw(Mix((CHAT, other), arrivals=Constant(rate_hz=10), weights={"chat": 1, "other": 1}))
    assert trace.segments.num_rows <= len(FIXTURE.pairs) + 1
    assert trace.manifest.statistics["distinct_prompts"] == len(FIXTURE.pairs)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"classes": ()}, "classes: expected at least one"),
    ({"classes": (CHAT, RAG, BATCH, SUB, SUB)}, "all with different names"),
    ({"weights": {"chat": 3}}, r"classes\.rag: expected one of arrivals, weight and follows, found none"),
    ({"weights": {"chat": 3, "rag": 1, "batch": 1}}, r"classes\.batch: .* found arrivals and weight"),
    ({"weights": {"chat": 3, "rug": 1}}, "weights: expected one of .* found 'rug'; did you mean 'rag'"),
    ({"weights": {"chat": 3, "rag": 0}}, r"classes\.rag\.weight: expected a number above 0"),
    ({"follows": {"sub": Following(name="sub")}}, r"classes\.sub\.follows\.name: expected one of"),
    ({"arrivals": None}, "arrivals: expected common arrivals where classes have weights"),
    ({"count": 5}, "count: expected with a closed loop"),
    ({"loop": Loop("closed", slots=2), "count": 5, "arrivals": None}, "a closed loop has no arrivals; write a weight"),
]


@pytest.mark.parametrize(("change", "message"), IMPOSSIBLE)
def test_what_is_impossible_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        replace(MIX, **change)


def test_classes_that_follow_in_a_circle_are_refused() -> None:
    circle = {"a": Following(name="b"), "b": Following(name="a")}
    with pytest.raises(RecipeError, match="found a circle of a, b"):
        draw(Mix((replace(SUB, kind="a"), replace(SUB, kind="b")), follows=circle))


TOML = """
name = "two"
duration = "10 s"
seed = 7

[arrivals]
process = "poisson"
rate = "40/s"

[[classes]]
name = "chat"
weight = 3
max_output_tokens = 20
params = { temperature = 0 }

[[classes]]
name = "rag"
weight = 1
inputs = { distribution = "uniform", min_tokens = 200, max_tokens = 400 }
outputs = { distribution = "fixed", tokens = "7 tokens" }
prefixes = { prefix_tokens = 64 }

[[classes]]
name = "batch"
api = "completions"
arrivals = { process = "constant", rate_hz = 2 }
inputs = { distribution = "fixed", tokens = 50 }
outputs = { distribution = "fixed", tokens = 5 }

[[classes]]
name = "sub"
follows = { name = "rag", requests = 2, after = { distribution = "fixed", wait = "500 ms" } }
inputs = { distribution = "fixed", tokens = 30 }
outputs = { distribution = "fixed", tokens = 3 }
"""


def test_a_recipe_with_classes_is_a_mix() -> None:
    recipe = Recipe.parse(TOML)
    assert recipe.make(FIXTURE) == MIX
    assert recipe.trace(FIXTURE).digest == draw(MIX).digest


def test_a_setting_finds_a_class_by_its_name() -> None:
    recipe = Recipe.parse(TOML, settings={"classes.chat.weight": "5", "classes[1].outputs.tokens": "8"})
    mix = recipe.make(FIXTURE)
    assert isinstance(mix, Mix)
    assert (mix.weights, mix.classes[1].outputs) == ({"chat": 5, "rag": 1}, Fixed(8))


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("seed = 7", "seed = 7\napi = 'chat'", r"api: expected in a class, since there are \[\[classes\]\]"),
        ("weight = 3", "wieght = 3", r"classes\[0\]\.wieght: unknown key; did you mean 'weight'"),
        ("weight = 3", "weight = 0", r"classes\.chat\.weight: expected a number above 0"),
        ("requests = 2", "requests = 0", r"classes\[3\]\.follows\.requests: expected a number at least 1"),
        ("prefix_tokens = 64", "prefix_tokens = 4", r"classes\.rag\.prefixes\.block_tokens: expected at most the 4"),
    ],
)
def test_a_mistake_in_a_class_is_refused_with_its_place(line: str, instead: str, message: str) -> None:
    assert line in TOML
    with pytest.raises(RecipeError, match=rf"^mix\.toml, line \d+: {message}"):
        Recipe.parse(TOML.replace(line, instead, 1), "mix.toml")

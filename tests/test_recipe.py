"""Recipes: what a TOML file says is what is drawn; what it cannot mean is refused by name."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invention import InventedFixture

from loadshape.arrival import Burst, Poisson
from loadshape.errors import RecipeError
from loadshape.length import Empirical, LogNormal
from loadshape.packaged import find_packaged, list_packaged
from loadshape.prefix import PrefixTree
from loadshape.recipe import Recipe
from loadshape.shape import Shape

FIXTURE = InventedFixture()
WHOLE = """
name = "everything"
question = "Does every section become its value?"
duration_s = 10
seed = 3
api = "completions"
max_output_tokens = 99

[[arrivals]]
process = "poisson"
rate_hz = 40

[[arrivals]]
process = "burst"
at_s = 2
rate_hz = 100
for_s = 0.5

[inputs]
distribution = "lognormal"
median_tokens = 200
sigma = 0.5

[outputs]
distribution = "fixture"

[prefixes]
share = 0.5
depth = 2

[params]
temperature = 0.5
stop = ["\\n\\n"]
"""


def test_sections_are_the_values_of_a_shape() -> None:
    recipe = Recipe.parse(WHOLE)
    shape = recipe.shape(FIXTURE)
    expected = Shape(
        arrivals=Poisson(rate_hz=40) + Burst(at_s=2, rate_hz=100, for_s=0.5),
        inputs=LogNormal(median_tokens=200, sigma=0.5),
        outputs=Empirical.of(FIXTURE),
        prefixes=PrefixTree(share=0.5, depth=2),
        kind="everything",
        api="completions",
        max_output_tokens=99,
        params={"temperature": 0.5, "stop": ["\n\n"]},
    )
    assert shape == expected
    assert recipe.trace(FIXTURE).digest == expected.trace(FIXTURE, duration_s=10, seed=3).digest


def test_the_manifest_has_the_recipe_verbatim() -> None:
    manifest = Recipe.parse(WHOLE).trace(FIXTURE).manifest
    assert (manifest.recipe, manifest.name, manifest.seed) == (WHOLE, "everything", 3)


def test_duration_and_seed_can_be_given_instead() -> None:
    recipe = Recipe.parse(WHOLE)
    manifest = recipe.trace(FIXTURE, duration_s=5, seed=4).manifest
    assert (manifest.duration_s, manifest.seed) == (5.0, 4)
    assert recipe.trace(FIXTURE, seed=4).digest != recipe.trace(FIXTURE).digest


# A line of the whole recipe, what it is replaced by, and what the error says.
MISTAKES = [
    (
        "rate_hz = 40",
        "rate_hz = 0",
        r"arrivals\[0\]\.rate_hz: expected a number above 0 .* found 0.*; write requests per",
    ),
    ("rate_hz = 40", "rate_hz = nan", r"arrivals\[0\]\.rate_hz: .* found nan"),
    ("rate_hz = 40", "rat_hz = 40", r"arrivals\[0\]\.rat_hz: unknown key; did you mean 'rate_hz'\?"),
    ("rate_hz = 40", "", r"arrivals\[0\]: object missing required field `rate_hz`"),
    ("rate_hz = 40", 'rate_hz = "40/s"', r"arrivals\[0\]\.rate_hz: expected `float`, got `str`"),
    (
        '"burst"',
        '"bursts"',
        r"arrivals\[1\]\.process: expected one of constant, .*, found 'bursts'; did you mean 'burst'",
    ),
    ("at_s = 2", "at_s = -2", r"arrivals\[1\]\.at_s: expected a number at least 0, found -2"),
    ("duration_s = 10", "duration_s = -10", r"duration_s: expected a number above 0 .* found -10.*; write seconds"),
    ("duration_s = 10", "duration_s = inf", r"duration_s: .* found inf"),
    ("duration_s = 10", "duration = 10", r"duration: unknown key; did you mean 'duration_s'\?"),
    ("duration_s = 10", "", "recipe: object missing required field `duration_s`"),
    ("seed = 3", "seed = -3", "seed: expected a number at least 0, found -3"),
    ("seed = 3", "seed = 3.5", "seed: expected `int`, got `float`"),
    ("seed = 3", 'text = "x"', "text: unknown key"),
    (
        '"completions"',
        '"complete"',
        r"api: expected one of chat, completions, found 'complete'; did you mean 'completions'",
    ),
    ("max_output_tokens = 99", "max_output_tokens = 0", "max_output_tokens: expected a number at least 1, found 0"),
    ("sigma = 0.5", "sigma = -1", r"inputs\.sigma: expected a number at least 0"),
    ("sigma = 0.5", "", r"inputs: object missing required field `sigma`"),
    (
        "share = 0.5",
        "share = 1.5",
        r"prefixes\.share: expected a number above 0 and below 1, found 1\.5; it is the part",
    ),
    ("depth = 2", "dept = 2", r"prefixes\.dept: unknown key; did you mean 'depth'"),
    ("[prefixes]", "[prefix]", r"prefix: unknown key; did you mean 'prefixes'"),
    ("temperature = 0.5", "temperature = nan", r"params\.temperature: expected a finite number, found nan"),
    ("temperature = 0.5", "logit = { bias = [0.5, inf] }", r"params\.logit\.bias\.1: expected a finite"),
    ("temperature = 0.5", "max_tokens = 5", r"params\.max_tokens: .*set lengths by outputs"),
    ("temperature = 0.5", "temperature = [", "not valid TOML: .*line"),
]


@pytest.mark.parametrize(("line", "instead", "message"), MISTAKES)
def test_a_mistake_is_refused_with_the_file_the_key_and_the_remedy(line: str, instead: str, message: str) -> None:
    assert line in WHOLE
    text = WHOLE.replace(line, instead, 1)
    with pytest.raises(RecipeError, match=rf"^rush\.toml: {message}") as caught:
        Recipe.parse(text, "rush.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ("3", r"arrivals: expected a section \[arrivals\], found 3"),
        ("[]", "arrivals: expected at least one process, found none"),
        ("[3]", r"arrivals\[0\]: expected a section \[arrivals\], found 3"),
        ("{}", r"arrivals\.process: expected one of constant, poisson, gamma, burst, found None"),
    ],
)
def test_arrivals_are_one_section_or_several(arrivals: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"^recipe: {message}"):
        Recipe.parse(f'name = "a"\nduration_s = 1\narrivals = {arrivals}')


def test_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "rush.toml"
    path.write_text(WHOLE)
    assert Recipe.load(path) == Recipe.load(str(path)) == Recipe.parse(WHOLE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("balanced-chta", "balanced-chta: no file and no name of traces/recipes; did you mean 'balanced-chat'"),
        ("no/such.toml", r"no/such\.toml: expected a recipe in TOML; .*No such file"),
    ],
)
def test_a_file_that_is_not_there_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.load(name)


@pytest.mark.parametrize("name", list_packaged("traces/recipes"))
def test_every_recipe_that_comes_along_can_be_drawn(name: str) -> None:
    recipe = Recipe.load(name)
    assert recipe.name == find_packaged("traces/recipes", name).stem
    assert len(recipe.question) > 100
    recipe.trace(FIXTURE, duration_s=5).verify()


def test_balanced_chat_is_what_the_demonstration_needs() -> None:
    recipe = Recipe.load("balanced-chat")
    assert (recipe.api, recipe.arrivals, recipe.duration_s) == ("chat", Poisson(rate_hz=40), 20)
    assert (recipe.inputs, recipe.outputs, recipe.max_output_tokens, recipe.seed) == (None, None, 128, 7)
    assert recipe.params == {"temperature": 0, "ignore_eos": True}


@given(st.text(max_size=200))
def test_no_text_gives_anything_but_a_recipe_or_a_recipe_error(text: str) -> None:
    with contextlib.suppress(RecipeError):
        Recipe.parse(text)

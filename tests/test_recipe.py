"""Recipes: what a TOML file says is what is drawn; what it cannot mean is refused by name."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invention import InventedFixture

from loadshape.arrival import Burst, Poisson
from loadshape.cli.making import read_settings
from loadshape.errors import InputError, RecipeError
from loadshape.length import Empirical, LogNormal
from loadshape.notation import find_line
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
    shape = recipe.make(FIXTURE)
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
    ("rate_hz = 40", "rate_hz = [40]", r"arrivals\[0\]\.rate_hz: expected `float`, got `array`"),
    ("rate_hz = 40", 'rate_hz = "fast"', r"arrivals\[0\]\.rate_hz: expected a rate such as 40/s .*, found 'fast'"),
    ("rate_hz = 40", 'rate = "40 tokens"', r"arrivals\[0\]\.rate: expected a rate such as 40/s .*, found '40 tokens'"),
    (
        "rate_hz = 40",
        "rate = 40",
        r"arrivals\[0\]\.rate: .* with its unit, .*'40/s', found 40; or write rate_hz",
    ),
    ("rate_hz = 40", 'rate = "40"', r"arrivals\[0\]\.rate: expected a quantity with its unit"),
    ("rate_hz = 40", 'rate_hz = 40\nrate = "40/s"', r"arrivals\[0\]\.rate_hz: found twice"),
    ("sigma = 0.5", 'sigma = 0.5\nmax = "9 s"', r"inputs\.max: expected a whole number of tokens .*, found '9 s'"),
    ("[outputs]", "[sessions]\nturns = 0\n[outputs]", r"sessions\.turns: expected a number at least 1"),
    (
        "[outputs]",
        '[sessions]\nturns = {distribution = "geometrc", mean = 2}\n[outputs]',
        r"sessions\.turns\.distribution: .*did you mean 'geometric'",
    ),
    ("[outputs]", '[loop]\nmode = "closed"\nslots = 4\n[outputs]', "count: a closed loop has no arrivals"),
    (
        "share = 0.5",
        "prefix_tokens = 8",
        r"prefixes\.block_tokens: expected at most the \d+ tokens of ",
    ),
    ("seed = 3", "weight = 3", "weight: unknown key"),
    (
        '"burst"',
        '"bursts"',
        r"arrivals\[1\]\.process: expected one of constant, .*, found 'bursts'; did you mean 'burst'",
    ),
    ("at_s = 2", "at_s = -2", r"arrivals\[1\]\.at_s: expected a number at least 0, found -2"),
    ("duration_s = 10", "duration_s = -10", r"duration_s: expected a number above 0 .* found -10.*; write seconds"),
    ("duration_s = 10", "duration_s = inf", r"duration_s: .* found inf"),
    ("duration_s = 10", "duration = 10", r"duration: expected a quantity with its unit, .* or write duration_s = 10"),
    ("duration_s = 10", "durations_s = 10", r"durations_s: unknown key; did you mean 'duration_s'\?"),
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
    with pytest.raises(RecipeError, match=rf"^rush\.toml(, line \d+)?: {message}") as caught:
        Recipe.parse(text, "rush.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ("3", r"arrivals: expected a section \[arrivals\], found 3"),
        ("[]", "arrivals: expected at least one process, found none"),
        ("[3]", r"arrivals\[0\]: expected a section \[arrivals\], found 3"),
        ("{}", r"arrivals\.process: expected one of constant, poisson, .*, found None"),
    ],
)
def test_arrivals_are_one_section_or_several(arrivals: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"^recipe, line 3: {message}"):
        Recipe.parse(f'name = "a"\nduration_s = 1\narrivals = {arrivals}')


def test_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "rush.toml"
    path.write_text(WHOLE)
    assert Recipe.load(path) == Recipe.load(str(path)) == Recipe.parse(WHOLE, str(path))


LINES = """
name = "lines"                   # line 2
question = '''
[arrivals]
seed = 3
'''

[[arrivals]]
rate = "40/s"                    # line 9

[[arrivals]]                     # line 11
weights = [
  1,
]
rate_hz = 40                     # line 15

[[classes]]
name = "chat"
weight = 1                       # line 19

[classes.inputs]
median = "3 tokens"              # line 22

[[classes]]
name = 'agent'
sessions.turns = { meen = 3 }    # line 26

[[classes.params.tools]]
[[classes.params.tools]]
type = "function"                # line 30
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("name", 2),
        ("arrivals[0].rate", 9),
        ("arrivals[0].rate_hz", 9),  # as a value is named whose key has no unit
        ("arrivals[1].rate", 15),
        ("arrivals[1].process", 11),  # what is missing stands where it was to stand
        ("classes[0].inputs.median_tokens", 22),
        ("classes.chat.weight", 19),
        ("classes.chat.inputs.median", 22),
        ("classes[1].sessions.turns.meen", 26),
        ("classes.agent.sessions.turns", 26),
        ("classes[1].params.tools[1].type", 30),
        ("seed", None),
        ("classes.chatty.weight", None),
        ("not valid TOML", None),
        ("", None),
    ],
)
def test_a_place_is_found_by_its_line(place: str, line: int | None) -> None:
    assert find_line(LINES, place) == line


def test_a_mistake_that_is_set_beside_the_file_has_no_line() -> None:
    with pytest.raises(RecipeError, match=r"^rush\.toml: seed: expected a number"):
        Recipe.parse(WHOLE, "rush.toml", {"seed": "-3"})


def test_a_mistake_that_is_found_in_drawing_has_file_and_line() -> None:
    text = WHOLE.replace("share = 0.5", "share = 0.99")
    with pytest.raises(RecipeError, match=r"^rush\.toml, line 28: prefixes\.share: expected a reachable part"):
        Recipe.parse(text, "rush.toml").trace(FIXTURE)
    classes = f"""{SHORT}
[[classes]]
name = "chat"
arrivals = {{ process = "poisson", rate = "9/s" }}
inputs = {{ distribution = "fixed", tokens = 90 }}
outputs = {{ distribution = "fixed", tokens = 9 }}
context = {{ tokens = 50 }}
"""
    with pytest.raises(RecipeError, match=r"^rush\.toml, line 8: classes\.chat\.context\.beyond: expected no prompts"):
        Recipe.parse(classes, "rush.toml").trace()


SHORT = 'name = "short"\nduration_s = 5'


@pytest.mark.parametrize(
    ("arrivals", "requests"),
    [
        ('[arrivals]\nprocess = "recorded"\npath = "times.csv"', 3),
        ('[[arrivals]]\nprocess = "rate"\npath = "deep/rates.csv"\ncv = 0.01', 50),
    ],
)
def test_files_are_found_from_the_folder_of_the_recipe(tmp_path: Path, arrivals: str, requests: int) -> None:
    lengths = '[inputs]\ndistribution = "fixed"\ntokens = 9\n[outputs]\ndistribution = "fixed"\ntokens = 9'
    (tmp_path / "deep").mkdir()
    (tmp_path / "times.csv").write_text("t_s\n0\n1\n2.5\n")
    (tmp_path / "deep" / "rates.csv").write_text("t_s,rate_hz\n0,10\n")
    path = tmp_path / "filed.toml"
    path.write_text(f"{SHORT}\n{arrivals}\n{lengths}")
    assert abs(len(Recipe.load(path).trace().requests) - requests) <= 1
    there = Recipe.load(path, {"arrivals.path": str(tmp_path / "none.csv")}) if requests == 3 else None
    if there is not None:
        with pytest.raises(RecipeError, match=r"none\.csv: expected a CSV file"):
            there.trace()


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


QUANTITIES = [
    ("rate_hz = 40", 'rate_hz = "40/s"'),
    ("rate_hz = 40", 'rate = "2400/min"'),
    ("duration_s = 10", 'duration = "10 s"'),
    ("at_s = 2", 'at = "2000 ms"'),
    ("median_tokens = 200", 'median = "200 tokens"'),
    ("max_output_tokens = 99", 'max_output = "99 tokens"'),
]


@pytest.mark.parametrize(("line", "instead"), QUANTITIES)
def test_a_quantity_may_be_written_with_its_unit(line: str, instead: str) -> None:
    assert line in WHOLE
    changed = Recipe.parse(WHOLE.replace(line, instead, 1))
    assert changed.make(FIXTURE) == Recipe.parse(WHOLE).make(FIXTURE)
    assert changed.duration_s == 10


SETTINGS: list[tuple[dict[str, str], tuple[str, str]]] = [
    ({"arrivals[0].rate": "80/s"}, ("rate_hz = 40", "rate_hz = 80")),
    ({"arrivals[0].rate_hz": "80"}, ("rate_hz = 40", "rate_hz = 80")),
    ({"duration": "1 min"}, ("duration_s = 10", "duration_s = 60")),
    ({"inputs.median_tokens": "300"}, ("median_tokens = 200", "median_tokens = 300")),
    ({"prefixes.zipf": "0.5"}, ("depth = 2", "depth = 2\nzipf = 0.5")),
    ({"params.stop": '["a"]'}, ('stop = ["\\n\\n"]', 'stop = ["a"]')),
    ({"api": "chat"}, ('api = "completions"', 'api = "chat"')),
    ({"sessions.turns": "3"}, ("[outputs]", "[sessions]\nturns = 3\n[outputs]")),
]


@pytest.mark.parametrize(("settings", "change"), SETTINGS)
def test_a_setting_is_a_value_in_place_of_the_files(settings: dict[str, str], change: tuple[str, str]) -> None:
    assert change[0] in WHOLE
    set_so = Recipe.parse(WHOLE, settings=settings)
    written = Recipe.parse(WHOLE.replace(*change, 1))
    assert (set_so.make(FIXTURE), set_so.duration_s) == (written.make(FIXTURE), written.duration_s)
    assert (set_so.text, set_so.settings) == (WHOLE, settings)


def test_the_manifest_has_the_settings_beside_the_recipe() -> None:
    settings = {"arrivals[0].rate": "80/s", "seed": "5"}
    manifest = Recipe.parse(WHOLE, settings=settings).trace(FIXTURE).manifest
    assert (manifest.recipe, manifest.settings, manifest.seed) == (WHOLE, settings, 5)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("arivals.rate", "arivals: unknown key; did you mean 'arrivals'"),
        ("arrivals[2].rate", r"arrivals\[2\]\.rate: expected an entry that is there"),
        ("inputs.sigam", r"inputs\.sigam: unknown key; did you mean 'sigma'"),
        ("name.first", r"name\.first: expected a path of keys"),
        ("arrivals.first.rate", r"arrivals\.first\.rate: expected the name of an entry"),
        ("a..b", "expected a path of keys"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.parse(WHOLE, settings={path: "1"})


RECORDED = """
name = "again"
duration_s = 10
[arrivals]
process = "recorded"
stamps_ns = [0, 5, 9]
"""


def test_recorded_stamps_and_a_rate_exclude_each_other() -> None:
    with pytest.raises(RecipeError, match=r"arrivals\.rate: recorded stamps have a rate of their own"):
        Recipe.parse(RECORDED + 'rate = "40/s"')
    assert Recipe.parse(RECORDED).trace(FIXTURE).requests.num_rows == 3


def test_lengths_of_a_fixture_need_one() -> None:
    recipe = Recipe.parse(WHOLE)
    assert recipe.needs_fixture
    with pytest.raises(RecipeError, match="outputs: expected a fixture to take lengths from, found none"):
        recipe.trace()


@pytest.mark.parametrize("name", list_packaged("traces/recipes"))
def test_every_recipe_that_comes_along_can_be_drawn(name: str) -> None:
    recipe = Recipe.load(name)
    assert recipe.name == find_packaged("traces/recipes", name).stem
    assert len(recipe.question) > 100
    assert recipe.needs_fixture is (name in ("balanced-chat", "multi-turn-chat"))
    trace = recipe.trace(FIXTURE if recipe.needs_fixture else None, duration_s=5)
    trace.verify()
    error = trace.manifest.statistics.get("input_tokens_error")
    assert error is None or error["exact"] == error["prompts"]


def test_balanced_chat_is_what_the_demonstration_needs() -> None:
    recipe = Recipe.load("balanced-chat")
    shape = Shape(Poisson(rate_hz=40), kind="balanced-chat", max_output_tokens=128)
    assert recipe.make() == replace(shape, params={"temperature": 0, "ignore_eos": True})
    assert (recipe.duration_s, recipe.seed) == (20, 7)


@given(st.text(max_size=200))
def test_no_text_gives_anything_but_a_recipe_or_a_recipe_error(text: str) -> None:
    with contextlib.suppress(RecipeError):
        Recipe.parse(text)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["seed"], "--set: expected KEY=VALUE such as .*, found 'seed='"),
        (["=3"], "--set: expected KEY=VALUE"),
        (["seed=3", "seed=4"], "--set: expected each key once"),
    ],
)
def test_settings_of_the_command_line_are_keys_with_values(pairs: list[str], message: str) -> None:
    assert read_settings(["seed=3", "params.stop=a=b"]) == {"seed": "3", "params.stop": "a=b"}
    with pytest.raises(InputError, match=message):
        read_settings(pairs)

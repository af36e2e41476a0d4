"""Length distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from invention import InventedFixture

from loadshape.errors import RecipeError
from loadshape.length import Empirical, Fixed, Length, LogNormal, Uniform
from loadshape.randomness import open_stream
from loadshape.tokenizer import Estimate

N = 40_000


def draw(length: Length, n: int = N) -> np.ndarray[Any, Any]:
    return length.draw(open_stream(7, "lengths.inputs"), n)


@pytest.mark.parametrize(
    "length", [Fixed(5), Uniform(1, 9), LogNormal(median_tokens=20, sigma=0.9), Empirical((3, 3, 8))], ids=str
)
def test_lengths_are_whole_positive_and_repeatable(length: Length) -> None:
    tokens = draw(length)
    assert isinstance(length, Length)
    assert tokens.dtype == np.int64
    assert tokens.min() >= 1
    assert np.array_equal(tokens, draw(length))
    assert np.array_equal(tokens[:100], draw(length, 100))


def test_uniform_takes_every_value_equally_often() -> None:
    values, counts = np.unique(draw(Uniform(3, 7)), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert abs(counts - N / 5).max() < 4 * math.sqrt(N * 0.16)


def test_lognormal_has_its_median_and_tail() -> None:
    tokens = draw(LogNormal(median_tokens=512, sigma=0.9))
    assert np.median(tokens) == pytest.approx(512, rel=0.02)
    assert tokens.mean() == pytest.approx(512 * math.exp(0.405), rel=0.03)
    assert np.quantile(tokens, 0.95) == pytest.approx(512 * math.exp(1.645 * 0.9), rel=0.04)


def test_lognormal_keeps_to_its_bounds() -> None:
    tokens = draw(LogNormal(median_tokens=512, sigma=0.9, min_tokens=100, max_tokens=1000))
    assert (tokens.min(), tokens.max()) == (100, 1000)


def test_empirical_draws_what_was_observed_as_often() -> None:
    values, counts = np.unique(draw(Empirical((3, 3, 8))), return_counts=True)
    assert values.tolist() == [3, 8]
    assert counts[0] / N == pytest.approx(2 / 3, abs=0.01)


def test_empirical_of_a_fixture_counts_its_answers() -> None:
    fixture = InventedFixture(10)
    answers = [answer for _, answer in fixture.pairs]
    assert Empirical.of(fixture).counts == tuple(Estimate().count(answers))
    assert Empirical.of_prompts(fixture).counts == tuple(Estimate().count([prompt for prompt, _ in fixture.pairs]))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Fixed(0), "tokens"),
        (lambda: Fixed(1.5), "tokens"),  # type: ignore[arg-type]
        (lambda: Uniform(5, 4), "max_tokens"),
        (lambda: LogNormal(median_tokens=0, sigma=1), "median_tokens"),
        (lambda: LogNormal(median_tokens=10, sigma=math.nan), "sigma"),
        (lambda: LogNormal(median_tokens=10, sigma=1, max_tokens=0), "max_tokens"),
        (lambda: Empirical(()), "counts"),
        (lambda: Empirical((3, 0)), "counts"),
    ],
)
def test_impossible_values_are_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}: expected .*, found "):
        make()

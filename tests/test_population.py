"""Populations: names as popular as they are told to be."""

from __future__ import annotations

import numpy as np
import pytest

from loadshape.errors import RecipeError
from loadshape.population import Population
from loadshape.randomness import open_stream

N = 40_000


@pytest.mark.parametrize(
    ("population", "shares"),
    [
        (Population(names=("a", "b")), [0.5, 0.5]),
        (Population(names=("a", "b", "c"), weights=(2, 0, 2)), [0.5, 0.0, 0.5]),
        (Population(count=3, zipf=1.0), [6 / 11, 3 / 11, 2 / 11]),
        (Population(count=1), [1.0]),
    ],
)
def test_shares_are_those_that_are_told(population: Population, shares: list[float]) -> None:
    drawn = population.draw(open_stream(7, "routing.model"), N)
    assert np.bincount(drawn, minlength=len(shares)) / N == pytest.approx(shares, abs=0.01)


def test_made_up_names_begin_with_what_they_name() -> None:
    assert Population(count=2).list_names("tenant") == ["tenant-0", "tenant-1"]
    assert Population(names=("x",)).list_names("tenant") == ["x"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "names: expected names, or a count of them to make up, found neither"),
        ({"names": ("a",), "count": 1}, "found both"),
        ({"names": ("a", "a")}, "names: expected different names"),
        ({"count": 0}, "count: expected a number at least 1"),
        ({"count": 2, "zipf": -1}, "zipf: expected a number at least 0"),
        ({"count": 2, "weights": (1, 2), "zipf": 1}, "weights: expected weights or zipf, found both"),
        ({"count": 2, "weights": (1,)}, "weights: expected one for each of the 2"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Population(**values)  # type: ignore[arg-type]

"""Bounds: one sentence that names the field, what was expected, what was found and the remedy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from loadshape.bounds import check_choice, check_count, check_number
from loadshape.errors import RecipeError

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (0, {"above": 0}, "x: expected a number above 0, found 0"),
    (math.nan, {"above": 0, "most": 1000}, "x: expected a number above 0 and at most 1,000, found nan"),
    (math.inf, {}, "x: expected a finite number, found inf"),
    (1, {"least": 0, "below": 1}, "x: expected a number at least 0 and below 1, found 1"),
    (True, {}, "x: expected a finite number, found True"),
    ("3", {}, "x: expected a finite number, found '3'"),
    (-1, {"least": 0, "remedy": "write 0"}, "x: expected a number at least 0, found -1; write 0"),
]


@pytest.mark.parametrize(("value", "bounds", "message"), REFUSED)
def test_a_number_out_of_bounds_is_refused_in_one_sentence(value: Any, bounds: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_number("x", value, **bounds)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float64(0.5), np.int64(1)])
def test_a_number_inside_passes(value: Any) -> None:
    check_number("x", value, least=0, most=1)


def test_a_count_is_whole() -> None:
    check_count("x", 1)
    check_count("x", np.int64(5), most=5)
    for value, message in (
        (1.5, "a whole number, found 1.5"),
        (0, "at least 1 and at most 5, found 0"),
        (6, "and at most 5, found 6"),
    ):
        with pytest.raises(RecipeError, match=message):
            check_count("x", value, most=5)


def test_a_choice_is_one_of_the_names_and_the_nearest_is_suggested() -> None:
    check_choice("x", "chat", ("chat", "completions"))
    with pytest.raises(RecipeError, match="x: expected one of chat, completions, found 'chta'; did you mean 'chat'"):
        check_choice("x", "chta", ("chat", "completions"))
    with pytest.raises(RecipeError, match=r"found None$"):
        check_choice("x", None, ("chat", "completions"))

# What a number or a name of the user's may be, and the sentence that says so.
#
# Law: one check, one wording. A value of a recipe or of the library is checked where it is made, so that
# nothing later has to ask whether a rate is positive or a duration is a number at all: nan is refused
# here by the same comparison that refuses zero.

"""Bounds of numbers and choices of names, and the error that names the field, what was found and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, NoReturn

from loadshape.errors import RecipeError


def check_number(
    field: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    remedy: str = "",
) -> None:
    """Raise RecipeError naming *field* unless *value* is a finite number inside of the bounds."""
    fits = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    fits = fits and (above is None or value > above) and (least is None or value >= least)
    fits = fits and (below is None or value < below) and (most is None or value <= most)
    if fits:
        return
    words = (("above", above), ("at least", least), ("below", below), ("at most", most))
    bounds = " and ".join(f"{word} {bound:,}" for word, bound in words if bound is not None)
    _refuse(field, f"number {bounds}" if bounds else "finite number", value, remedy)


def check_count(field: str, value: Any, *, least: int = 1, most: int | None = None, remedy: str = "") -> None:
    """Raise RecipeError naming *field* unless *value* is a whole number inside of the bounds."""
    if not isinstance(value, Integral):
        _refuse(field, "whole number", value, remedy)
    check_number(field, value, least=least, most=most, remedy=remedy)


def _refuse(field: str, expected: str, value: Any, remedy: str) -> NoReturn:
    hint = f"; {remedy}" if remedy else ""
    raise RecipeError(f"{field}: expected a {expected}, found {value!r}{hint}")


def check_choice(field: str, value: Any, names: Iterable[str]) -> None:
    """Raise RecipeError naming *field* unless *value* is one of *names*; the nearest one is suggested."""
    known = list(names)
    if value in known:
        return
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise RecipeError(f"{field}: expected one of {', '.join(known)}, found {value!r}{hint}")

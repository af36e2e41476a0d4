# How many turns a session has, and how long the pauses between them are.
#
# Law: numbers of turns and of nanoseconds; no text. What is said in a turn is composed or quoted in
# dialogue.py; when sessions begin is said by arrivals, which with sessions are those of first turns.
#
# Theory. A session that arrives by the clock and whose later turns wait for the answer before them, and then for a
# person to read it and think, is a partly open system: its load is neither that of an open nor that of a
# closed one (Schroeder, Wierman & Harchol-Balter, "Open Versus Closed: A Cautionary Tale", NSDI 2006). A geometric
# number of turns is one that goes on with the same probability after each; the more turns, the closer to closed.
#
#     partly open   first turns by the clock; a later one think time after the end of the one before (the default)
#     closed        a slot takes the next session when one has ended; the think time also precedes the first turn
#     open          every turn by the clock, think time after the one before was due, answered or not
#
# The history of a turn is all that was said before it, so input grows from turn to turn, and all of it but the
# newest message is a prefix that the server has seen. Answers in it are the recorded ones, the same bytes
# in every run, or the live ones: what this server said in this run.

"""Sessions as values: turns, think times, and where the answers in a history come from."""

from __future__ import annotations

import msgspec
import numpy as np

from loadshape.bounds import check_choice, check_count, check_number
from loadshape.errors import RecipeError
from loadshape.length import Empirical, Fixed, Histogram, LogNormal, Normal, ParetoMix, Uniform
from loadshape.length.distribution import check_weights, choose_weighted
from loadshape.stats import Integers
from loadshape.wait import AnyWait

HISTORIES = ("recorded", "live")
MAX_TURNS = 1000  # a history grows with the turns, so what a session sends grows with their square
_TURNS = "write how many, such as 4"


class Geometric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="geometric", tag_field="distribution"):
    """1, 2, 3, ... each less frequent than the one before by the same factor; `mean` of them, at most `most`."""

    mean: float
    most: int = MAX_TURNS

    def __post_init__(self) -> None:
        check_number("mean", self.mean, least=1, most=MAX_TURNS, remedy="it is how many there are on average")
        check_count("most", self.most, most=MAX_TURNS, remedy=_TURNS)

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* numbers; one double for each."""
        uniform = rng.random(n)
        if self.mean == 1:
            return np.ones(n, np.int64)
        more = np.floor(np.log1p(-uniform) / np.log1p(-1.0 / self.mean)).astype(np.int64)
        return np.asarray(np.minimum(1 + more, self.most))


class Weighted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="weighted", tag_field="distribution"):
    """1 with the first of `weights`, 2 with the second, and so on."""

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        check_count("weights", len(self.weights), most=MAX_TURNS, remedy="write one for each number, from 1 on")
        check_weights("weights", self.weights, len(self.weights))

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* numbers; one double for each."""
        return 1 + choose_weighted(self.weights, rng.random(n))


Number = int | Geometric | Weighted


def check_numbers(field: str, number: Number | None) -> None:
    """Raise RecipeError naming *field* for a number of turns, or of requests, that cannot be."""
    if isinstance(number, int):
        check_count(field, number, most=MAX_TURNS, remedy=_TURNS)


def draw_numbers(number: Number, rng: np.random.Generator, n: int) -> Integers:
    """Return *n* numbers; nothing is drawn for one that is always the same."""
    return np.full(n, number, np.int64) if isinstance(number, int) else number.draw(rng, n)


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that come as the turns of sessions.

    `turns` None takes as many as the fixture's conversation has; `think` is the pause before each later turn, none
    if left out. `history` "recorded" repeats the recorded answers, "live" those that the server gave. `inputs` are the
    lengths of later messages where they are not those of first ones.
    """

    turns: Number | None = None
    think: AnyWait | None = None
    history: str = "recorded"
    inputs: Fixed | Uniform | Normal | LogNormal | ParetoMix | Histogram | Empirical | None = None

    def __post_init__(self) -> None:
        check_numbers("turns", self.turns)
        check_choice("history", self.history, HISTORIES)

    def draw_turns(self, rng: np.random.Generator, n: int, available: Integers | None = None) -> Integers:
        """Return the turns of *n* sessions, at most those *available* in each. Raises RecipeError if nothing says."""
        if self.turns is None:
            if available is None:
                raise RecipeError("turns: expected a number, since lengths are drawn and no conversation has any")
            return np.minimum(available, MAX_TURNS)
        turns = draw_numbers(self.turns, rng, n)
        return turns if available is None else np.minimum(turns, available)

    def draw_think_ns(self, rng: np.random.Generator, rows: int) -> Integers:
        """Return the think time before each of *rows* turns."""
        return np.zeros(rows, np.int64) if self.think is None else self.think.draw_ns(rng, rows)

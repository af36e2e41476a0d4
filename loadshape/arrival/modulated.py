# Processes whose rate is itself at random: states that come and go.
#
# Theory. A Markov-modulated Poisson process has states, each with a rate of Poisson arrivals, that follow one
# another as a Markov chain with the generator Q (Fischer & Meier-Hellstern, "The Markov-modulated Poisson process
# cookbook", Performance Evaluation 18, 1993). Gaps depend on one another: the variation of gaps may be near 1
# while counts in long windows are far from Poisson. With p the stationary distribution, r the rates, R = diag(r),
# m = p r and Z = (1p - Q)^-1 - 1p (the time by which a state is felt), the count in a window t has the variance
#
#     m t + 2 p R (t Z - Z Z + Z Z e^(Q t)) r
#
# and a gap, as an arrival sees it, the CV^2  2 m p R (R - Q)^-2 1 ... - 1  (cookbook, sections 2.1 and 3).
#
# On-off is the case of two states, one of them silent; its sums over many sources are the classical model of
# talk spurts (Heffes & Lucantoni, IEEE JSAC 4, 1986).
#
# The chain starts in its stationary distribution, and sojourns are exponential, so that the run begins at a random
# instant. Its path is drawn from a stream forked off the process's own, and the arrivals by rescaling a
# unit process (rescaling.py), so a longer run begins with the shorter one.

"""Mmpp and OnOff: Poisson arrivals whose rate follows a Markov chain."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from loadshape.arrival.renewal import MAX_RATE_HZ, RATE, Poisson
from loadshape.arrival.rescaling import Profile
from loadshape.arrival.superposition import add
from loadshape.bounds import check_count, check_number
from loadshape.errors import RecipeError
from loadshape.randomness import draw_exponentials, fork_stream
from loadshape.stats import Floats, Integers

SHORTEST_S = 0.001  # a mean sojourn: a shorter state is over before its rate is felt
_BLOCK = 512  # sojourns a draw; a constant of the format, as BLOCK is


class Mmpp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="mmpp", tag_field="process"):
    """Poisson arrivals of `rates_hz[i]` in state i, where the states follow one another as a Markov chain.

    Either `sojourns_s`, the mean stay in each state, after which every other one is as likely; or the `generator`,
    a square of switches per second from row to column, whose diagonal is minus the rest of its row.
    """

    rates_hz: tuple[float, ...]
    sojourns_s: tuple[float, ...] | None = None
    generator: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        check_count("rates_hz", len(self.rates_hz), least=2, most=64, remedy="write one for each state")
        for at, rate_hz in enumerate(self.rates_hz):
            check_number(f"rates_hz[{at}]", rate_hz, least=0, most=MAX_RATE_HZ, remedy=RATE)
        check_number("highest of rates_hz", max(self.rates_hz), above=0, remedy="one state at least has traffic")
        if (self.sojourns_s is None) == (self.generator is None):
            raise RecipeError("sojourns_s: expected either sojourns_s or generator; the one gives the other")
        rows = self.sojourns_s if self.sojourns_s is not None else self.generator or ()
        check_count(
            "states", len(rows), least=len(self.rates_hz), most=len(self.rates_hz), remedy="as many as rates_hz"
        )
        for at, sojourn_s in enumerate(self.sojourns_s or ()):
            check_number(f"sojourns_s[{at}]", sojourn_s, least=SHORTEST_S, remedy="write the mean stay in seconds")
        _check_generator(self.generator or ())

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the mean rate."""
        return float(self._settle() @ np.array(self.rates_hz))

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        path = fork_stream(rng)
        edges_us, states = self._wander(path, round(duration_s * 1e6))
        rates_hz = np.array(self.rates_hz, np.float64)[states]
        return Profile(edges_us, rates_hz, rates_hz).rescale(Poisson(1.0).gaps_s(rng), duration_s)

    def expect_gap_cv(self) -> float | None:
        """Return the coefficient of variation of the gap that an arrival sees before it."""
        rates, settled = np.array(self.rates_hz), self._settle()
        mean_hz = float(settled @ rates)
        stay = np.linalg.inv(np.diag(rates) - self._switches())
        second = 2.0 * float((settled * rates) @ stay @ stay @ np.ones(len(rates))) / mean_hz
        return float(np.sqrt(second * mean_hz * mean_hz - 1.0))

    def expect_dispersion(self, window_s: float) -> float:
        """Return variance over mean of the count in a window of *window_s*."""
        rates, settled, switches = np.array(self.rates_hz), self._settle(), self._switches()
        always = np.outer(np.ones(len(rates)), settled)
        felt = np.linalg.inv(always - switches) - always
        decayed = felt @ felt @ (np.eye(len(rates)) - _exponential(switches * window_s))
        excess = float((settled * rates) @ (window_s * felt - decayed) @ rates)
        return 1.0 + 2.0 * excess / (float(settled @ rates) * window_s)

    def _switches(self) -> Floats:
        """The generator: switches per second, and on the diagonal what is left of 0."""
        if self.generator is not None:
            return np.array(self.generator, np.float64)
        leave_hz = 1.0 / np.array(self.sojourns_s, np.float64)
        others = (np.ones((len(leave_hz),) * 2) - np.eye(len(leave_hz))) / (len(leave_hz) - 1)
        return np.asarray(leave_hz[:, None] * (others - np.eye(len(leave_hz))))

    def _settle(self) -> Floats:
        """The stationary distribution: p Q = 0, sum 1."""
        switches = self._switches()
        system = np.vstack([switches.T[:-1], np.ones(len(switches))])
        return np.asarray(np.linalg.solve(system, np.r_[np.zeros(len(switches) - 1), 1.0]))

    def _wander(self, rng: np.random.Generator, end_us: int) -> tuple[Integers, Integers]:
        """Return the instants at which states begin, and one at or after *end_us*, and the states between them."""
        switches = self._switches()
        leave_hz = -np.diag(switches)
        jumps = np.cumsum(switches / leave_hz[:, None] + np.eye(len(switches)), axis=1)
        state = int(np.searchsorted(np.cumsum(self._settle())[:-1], rng.random(), side="right"))
        edges, states = [0], []
        for stay, turn in _draw_pairs(rng):
            if edges[-1] >= end_us:
                break
            states.append(state)
            edges.append(edges[-1] + max(1, round(stay / leave_hz[state] * 1e6)))
            state = int(np.searchsorted(jumps[state][:-1], turn, side="right"))
        return np.array(edges, np.int64), np.array(states, np.int64)


class OnOff(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="on_off", tag_field="process"):
    """A source that sends `rate_hz` of Poisson arrivals while it is on, for `on_s` on average, then is off for `off_s`.

    Both spells are exponential.
    """

    rate_hz: float
    on_s: float
    off_s: float

    def __post_init__(self) -> None:
        check_number("rate_hz", self.rate_hz, above=0, most=MAX_RATE_HZ, remedy="it is the rate while on")
        check_number("on_s", self.on_s, least=SHORTEST_S, remedy="write the mean spell in seconds")
        check_number("off_s", self.off_s, least=SHORTEST_S, remedy="write the mean spell in seconds")

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the mean rate, on or off."""
        return self.rate_hz * self.on_s / (self.on_s + self.off_s)

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the due times in [0, duration_s)."""
        return self._chain().times_ns(rng, duration_s)

    def expect_gap_cv(self) -> float | None:
        """Return the coefficient of variation of the gaps."""
        return self._chain().expect_gap_cv()

    def expect_dispersion(self, window_s: float) -> float:
        """Return variance over mean of the count in a window of *window_s*."""
        return self._chain().expect_dispersion(window_s)

    def _chain(self) -> Mmpp:
        return Mmpp(rates_hz=(self.rate_hz, 0.0), sojourns_s=(self.on_s, self.off_s))


def _check_generator(rows: tuple[tuple[float, ...], ...]) -> None:
    for at, row in enumerate(rows):
        check_count(f"generator[{at}]", len(row), least=len(rows), most=len(rows), remedy="it is a square")
        for to, switch_hz in enumerate(row):
            if to != at:
                check_number(f"generator[{at}][{to}]", switch_hz, least=0, remedy="write switches per second")
        away_hz = sum(row) - row[at]
        check_number(f"generator[{at}]", away_hz, above=0, most=1.0 / SHORTEST_S, remedy="every state is left again")
        check_number(
            f"generator[{at}][{at}]", row[at], least=-away_hz - 1e-9, most=-away_hz + 1e-9, remedy="minus the rest"
        )
    reach = np.array(rows, np.float64).reshape(len(rows), len(rows)) > 0
    for _ in rows:
        reach = reach | (reach @ reach)
    if not (reach | np.eye(len(rows), dtype=bool)).all():
        raise RecipeError("generator: expected that every state can be reached from every other, found one that cannot")


def _draw_pairs(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Draw (exponential of mean 1, uniform), without end."""
    while True:
        stays, turns = draw_exponentials(rng, _BLOCK), rng.random(_BLOCK)
        yield from zip(stays.tolist(), turns.tolist(), strict=True)


def _exponential(matrix: Floats) -> Floats:
    """Return e^matrix, by halving it until it is small, a Taylor series, and squaring."""
    halvings = max(0, int(np.ceil(np.log2(np.abs(matrix).sum(axis=1).max() + 1e-300))) + 4)
    small = matrix / 2.0**halvings
    term = result = np.eye(len(matrix))
    for n in range(1, 12):
        term = term @ small / n
        result = result + term
    for _ in range(halvings):
        result = result @ result
    return np.asarray(result)

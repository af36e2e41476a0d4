# A number that was declared, beside the number that came out.
#
# Law: statistics only; what a recipe declares is found out in declaration.py. A process at random gives another rate
# in every run, so the question is never whether two numbers are equal but whether what came out is one of the
# values that the declared process gives. For arrivals these are known by drawing it again, in other seeds: the
# range is that of Student's t for one more draw (99.9 %, both sides), of the cube roots where a statistic is a sum
# of squares or a distance (Wilson & Hilferty, "The distribution of chi-square", PNAS 17, 1931, makes those normal).
# This holds for every process, also where gaps depend on each other and the tables of Kolmogorov and Smirnov do
# not. Where theory has a value, it must lie in the range too: a generator cannot testify for itself.
#
# Lengths are drawn one by one, so there the distance of Kolmogorov and Smirnov between two samples has its known
# limit (Smirnov 1948: 1.95 is exceeded once in a thousand, less often where values repeat).

"""Claims: what was declared, what came out, and the range in which that had to lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from loadshape.arrival import Arrival, expect_dispersion, expect_gap_cv, measure_offered_hz
from loadshape.portrait import WINDOWS_S, measure_gap_autocorrelation
from loadshape.randomness import open_stream
from loadshape.stats import Floats, Integers, dispersion, distance, variation
from loadshape.units import NS_PER_S

FEWEST = 20  # arrivals, or lengths; fewer have no distribution to speak of
_MANY = 200_000  # arrivals, from where fewer draws are enough of work
_DRAWS, _FEW_DRAWS = 24, 12
_T = {_DRAWS: 3.768, _FEW_DRAWS: 4.437}  # Student's t of 23 and 11 degrees of freedom that 0.05 % exceed
_NORMAL = 3.291  # likewise, where the deviation is known
_SMIRNOV = 1.95
_POOL = 100_000  # gaps, or lengths, that stand for a distribution
_HALF_NS = 5e-10

Numbers = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Claim:
    """What was declared of one number and what came out; None is what is not known. `unit` is as it is printed.

    `low` and `high` are where 999 in 1000 draws of the declared would lie.
    """

    name: str
    declared: float | None
    found: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""

    @property
    def verdict(self) -> str:
        """ "as declared", "off", or "not judged" where nothing is declared or nothing came out."""
        if self.found is None or self.low is None or self.high is None:
            return "not judged"
        inside = [self.low <= value <= self.high for value in (self.found, self.declared) if value is not None]
        return "as declared" if all(inside) else "off"


def claim_arrivals(process: Arrival, times_s: Floats, duration_s: float) -> Iterator[Claim]:
    """Hold arrivals in [0, *duration_s*) against those of *process*, drawn again; nothing for very few."""
    if len(times_s) < FEWEST:
        return
    draws = [
        process.times_ns(open_stream(number, "inspection"), duration_s) / NS_PER_S
        for number in range(_FEW_DRAWS if len(times_s) > _MANY else _DRAWS)
    ]
    pool = np.concatenate([_thin(np.diff(draw), _POOL // len(draws)) for draw in draws])
    found = _measure(times_s, duration_s, pool)
    others = [_measure(draw, duration_s, pool) for draw in draws]
    theory = {"rate": measure_offered_hz(process, duration_s), "CV of gaps": expect_gap_cv(process)}
    theory |= {_name_window(window_s): expect_dispersion(process, window_s) for window_s in WINDOWS_S}
    for name, value in found.items():
        known = [other for it in others if (other := it[name]) is not None]
        low, high = _find_range(name, known, duration_s) if len(known) == len(others) else (None, None)
        yield Claim(name, theory.get(name), value, low, high, unit="/s" if name == "rate" else "")


def claim_lengths(name: str, tokens: Integers, draw: Callable[[int], Integers]) -> Iterator[Claim]:
    """Hold token counts against those that *draw* gives, for so many."""
    if len(tokens) < FEWEST:
        return
    drawn = draw(_POOL)
    mean, n = float(drawn.mean()), len(tokens)
    width = _NORMAL * float(drawn.std()) * (1 / n + 1 / len(drawn)) ** 0.5 + 1e-9
    yield Claim(f"{name}, mean", mean, float(tokens.mean()), mean - width, mean + width)
    away = distance(tokens.astype(np.float64), drawn.astype(np.float64))
    yield Claim(f"{name}, KS distance", None, away, 0.0, _SMIRNOV * (1 / n + 1 / len(drawn)) ** 0.5)


def claim_share(name: str, declared: float, found: float, *, trials: int = 0, slack: float = 0.0) -> Claim:
    """Hold a share against what was declared, with the spread of so many independent trials and a *slack*."""
    width = slack + (_NORMAL * (declared * (1 - declared) / trials) ** 0.5 + 0.5 / trials if trials else 0.0)
    return Claim(name, declared, found, declared - width, declared + width, unit="%")


def _measure(times_s: Floats, duration_s: float, pool_s: Floats) -> Numbers:
    gaps_s = np.diff(times_s)
    inside_s = times_s + _HALF_NS  # an instant on the edge of a window belongs to the one that it begins
    found: Numbers = {"rate": len(times_s) / duration_s, "CV of gaps": variation(gaps_s)}
    found |= {_name_window(it): dispersion(inside_s, it, duration_s=duration_s) for it in WINDOWS_S}
    found["lag-1 autocorrelation"] = measure_gap_autocorrelation(gaps_s)
    found["KS distance of gaps"] = distance(gaps_s, pool_s)
    return found


def _find_range(name: str, values: list[float], duration_s: float) -> tuple[float, float]:
    """Return where one more draw lies, 999 times in 1000."""
    is_signed = name in ("rate", "lag-1 autocorrelation")
    drawn = np.array(values) if is_signed else np.cbrt(np.array(values))
    width = _T[len(drawn)] * float(drawn.std(ddof=1)) * (1 + 1 / len(drawn)) ** 0.5
    low, high = float(drawn.mean()) - width, float(drawn.mean()) + width
    if not is_signed:
        low, high = max(low, 0.0) ** 3, high**3
    slack = 1 / duration_s if name == "rate" else 1e-3  # one request; what rounding to a clock's step may do
    return (0.0 if name.startswith("KS") else low - slack), high + slack


def _thin(values: Floats, most: int) -> Floats:
    return np.sort(values)[:: max(1, len(values) // max(1, most))]


def _name_window(window_s: float) -> str:
    return f"dispersion in {window_s:g} s"

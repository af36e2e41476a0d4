# Distributions of one length.
#
# Law: a value is checked where it is made and draws whole lengths of at least one token. A longer draw
# begins with the shorter one: each length takes its own doubles of the stream, one row after the other.
#
# What happens beyond a bound is part of a distribution. A lognormal and its Pareto tail are *clipped*: a
# drawn length beyond a bound becomes the bound, as a server's context limit does it, and the bound is then
# more frequent than its neighbours. A normal is *truncated*: what lies outside is drawn again.
#
# Heavy tails. A Pareto variate is tail_from * U^(-1/alpha); its mean is finite for alpha > 1 and its variance
# for alpha > 2. Prompt lengths of chat services have been fitted by a lognormal body with such a tail: "ServeGen:
# Workload Characterization and Generation of Large Language Model Serving in Production" (2025).
#
# Transcendental functions differ in the last bit between machines; every length is rounded to whole tokens.

"""Length distributions as values: Fixed, Uniform, Normal, LogNormal, ParetoMix, Histogram, Empirical."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from loadshape.bounds import check_count, check_number
from loadshape.errors import RecipeError
from loadshape.randomness import draw_normals, turn_normal
from loadshape.stats import Floats, Integers
from loadshape.tokenizer import Tokenizer, load_tokenizer

MAX_TOKENS = 10_000_000  # longer than any context; keeps a typing slip from filling the memory
LEAST_INSIDE = 0.01  # of a truncated normal: below, drawing again takes for ever, and the bounds are a mistake
_TOKENS = "write a number of tokens"


@runtime_checkable
class Length(Protocol):
    """Anything that draws lengths."""

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths in tokens, each at least 1."""
        ...


class Pairs(Protocol):
    """What this room asks of a fixture: its prompts, each with the answer that was given."""

    def prompts(self) -> Iterable[tuple[str, str]]:
        """Return (prompt, answer) pairs, in the order of the fixture."""
        ...


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fixed", tag_field="distribution"):
    """The same length always."""

    tokens: int

    def __post_init__(self) -> None:
        check_count("tokens", self.tokens, most=MAX_TOKENS, remedy=_TOKENS)

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* times the length; nothing is drawn."""
        return np.full(n, self.tokens, np.int64)


class Uniform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="uniform", tag_field="distribution"):
    """Every length from `min_tokens` to `max_tokens`, both included, equally often."""

    min_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        _check_range(self.min_tokens, self.max_tokens)

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths; one double for each."""
        width = self.max_tokens - self.min_tokens + 1
        return self.min_tokens + (rng.random(n) * width).astype(np.int64)


class Normal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="normal", tag_field="distribution"):
    """Lengths around a mean, truncated: one outside of the bounds is drawn again, not moved to the bound.

    `mean_tokens` and `deviation_tokens` are of the whole normal, before bounds take a part of it away.
    """

    mean_tokens: float
    deviation_tokens: float
    min_tokens: int = 1
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        check_number("mean_tokens", self.mean_tokens, least=1, most=MAX_TOKENS, remedy=_TOKENS)
        check_number("deviation_tokens", self.deviation_tokens, least=0, most=MAX_TOKENS, remedy=_TOKENS)
        _check_range(self.min_tokens, self.max_tokens)
        if self._inside() < LEAST_INSIDE:
            raise RecipeError(
                f"mean_tokens: expected at least {LEAST_INSIDE:.0%} of the lengths within {self.min_tokens} and "
                f"{self.max_tokens} tokens, found {self._inside():.2g}; move the mean or the bounds"
            )

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths; two doubles for each that was tried."""
        accepted = [np.empty(0, np.int64)]
        while sum(map(len, accepted)) < n:
            drawn = np.rint(self.mean_tokens + self.deviation_tokens * draw_normals(rng, max(n, 64))).astype(np.int64)
            accepted.append(drawn[(drawn >= self.min_tokens) & (drawn <= self.max_tokens)])
        return np.concatenate(accepted)[:n]

    def _inside(self) -> float:
        """The part of the normal that the bounds leave, each widened by what rounds to it."""
        bounds = (self.min_tokens - 0.5, self.max_tokens + 0.5)
        if self.deviation_tokens == 0:
            return float(bounds[0] <= self.mean_tokens <= bounds[1])
        low, high = (math.erf((bound - self.mean_tokens) / self.deviation_tokens / math.sqrt(2)) for bound in bounds)
        return (high - low) / 2


class LogNormal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="lognormal", tag_field="distribution"):
    """Lengths whose logarithm is normal: half of them below the median, a tail to the right.

    `sigma` is the standard deviation of the natural logarithm: the mean is median * exp(sigma^2 / 2), the 95th
    percentile median * exp(1.645 sigma), which for sigma 0.9 is 1.5 and 4.4 times the median.
    """

    median_tokens: float
    sigma: float
    min_tokens: int = 1
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        _check_lognormal(self.median_tokens, self.sigma)
        _check_range(self.min_tokens, self.max_tokens)

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths; two doubles for each."""
        tokens = self.median_tokens * np.exp(self.sigma * draw_normals(rng, n))
        return np.clip(np.rint(tokens), self.min_tokens, self.max_tokens).astype(np.int64)


class ParetoMix(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pareto_mix", tag_field="distribution"):
    """A lognormal body, and a Pareto tail for `tail_share` of the lengths.

    The tail begins at `tail_from_tokens`; a length of it exceeds k times that with probability k^-alpha: the
    smaller `alpha`, the heavier. At 1.5 one in a thousand is beyond 100 times the beginning.
    """

    median_tokens: float
    sigma: float
    tail_share: float
    tail_from_tokens: float
    alpha: float
    min_tokens: int = 1
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        _check_lognormal(self.median_tokens, self.sigma)
        check_number("tail_share", self.tail_share, above=0, below=1, remedy="it is a part of all, such as 0.05")
        check_number("tail_from_tokens", self.tail_from_tokens, least=1, most=MAX_TOKENS, remedy=_TOKENS)
        check_number("alpha", self.alpha, least=0.1, most=100, remedy="1 to 3 is usual; smaller is heavier")
        _check_range(self.min_tokens, self.max_tokens)

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths; three doubles for each."""
        uniform = rng.random((n, 3))
        body = self.median_tokens * np.exp(self.sigma * turn_normal(uniform[:, :2]))
        beyond = uniform[:, 2] / self.tail_share  # below 1 in the tail, and there uniform again
        tail = self.tail_from_tokens * (1.0 - np.minimum(beyond, 1.0 - 2**-53)) ** (-1.0 / self.alpha)
        tokens = np.where(beyond < 1.0, tail, body)
        return np.clip(np.rint(tokens), self.min_tokens, self.max_tokens).astype(np.int64)


class Histogram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="histogram", tag_field="distribution"):
    """Lengths of bins: one in [bounds[k], bounds[k + 1]) is drawn with weights[k], in its bin all are as frequent.

    A bin of one length n has the bounds n and n + 1. `csv` is the path of a file with the columns `from_tokens`,
    `to_tokens` (the next bin's beginning) and `weight`, in place of both; bins that it leaves out have no weight.
    """

    bounds: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    csv: str | None = None

    def __post_init__(self) -> None:
        if self.csv is not None:
            if self.bounds or self.weights:
                raise RecipeError("csv: expected no bounds and no weights beside it, found some; leave out one of them")
            bounds, weights = _read_bins(Path(self.csv))
            msgspec.structs.force_setattr(self, "bounds", bounds)
            msgspec.structs.force_setattr(self, "weights", weights)
        check_bounds("bounds", self.bounds)
        check_weights("weights", self.weights, len(self.bounds) - 1)

    @classmethod
    def of(cls, counts: Sequence[int], bounds: Sequence[int]) -> Histogram:
        """Return how many of the lengths *counts* lie in each bin; every one has to lie in some."""
        found, _ = np.histogram(counts, bins=[*bounds[:-1], bounds[-1] - 0.5])
        if found.sum() != len(counts):
            raise RecipeError(f"bounds: expected all lengths within, found {min(counts)} to {max(counts)}; widen them")
        return cls(tuple(bounds), tuple(found.tolist()))

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths; two doubles for each."""
        uniform = rng.random((n, 2))
        return place_inside(self.bounds, choose_weighted(self.weights, uniform[:, 0]), uniform[:, 1])


class Empirical(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="empirical", tag_field="distribution"):
    """The lengths that were observed, each as often as it was observed."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.counts:
            raise RecipeError("counts: expected at least one observed length, found none")
        check_count("counts", min(self.counts), remedy="leave out lengths of zero")
        check_count("counts", max(self.counts), most=MAX_TOKENS, remedy=_TOKENS)

    @classmethod
    def of(cls, fixture: Pairs, tokenizer: Tokenizer | None = None) -> Empirical:
        """Return the lengths of the answers in *fixture*, as *tokenizer* (else the estimate) counts them."""
        return cls(_observe([answer for _, answer in fixture.prompts()], tokenizer))

    @classmethod
    def of_prompts(cls, fixture: Pairs, tokenizer: Tokenizer | None = None) -> Empirical:
        """Return the lengths of the prompts in *fixture*."""
        return cls(_observe([prompt for prompt, _ in fixture.prompts()], tokenizer))

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths, drawn with replacement; one double for each."""
        observed = np.asarray(self.counts, np.int64)
        return observed[(rng.random(n) * len(observed)).astype(np.int64)]


def _observe(texts: list[str], tokenizer: Tokenizer | None) -> tuple[int, ...]:
    counts = (tokenizer or load_tokenizer()).count(texts)
    return tuple(count for count in counts if count > 0)


def _check_range(min_tokens: int, max_tokens: int) -> None:
    check_count("min_tokens", min_tokens, most=MAX_TOKENS, remedy=_TOKENS)
    check_count("max_tokens", max_tokens, least=min_tokens, most=MAX_TOKENS, remedy=_TOKENS)


def _check_lognormal(median_tokens: float, sigma: float) -> None:
    check_number("median_tokens", median_tokens, least=1, most=MAX_TOKENS, remedy=_TOKENS)
    check_number("sigma", sigma, least=0, most=5, remedy="it is a spread of logarithms: 0.5 to 1.5 is usual")


def check_bounds(field: str, bounds: Sequence[int]) -> None:
    """Raise RecipeError unless *bounds* rise and make at least one bin of lengths."""
    if len(bounds) < 2:
        raise RecipeError(f"{field}: expected at least two, the beginning and the end of a bin, found {len(bounds)}")
    check_count(f"{field}[0]", bounds[0], remedy="lengths begin with 1")
    for place, (low, high) in enumerate(pairwise(bounds), 1):
        check_count(f"{field}[{place}]", high, least=low + 1, most=MAX_TOKENS, remedy="bounds rise from bin to bin")


def check_weights(field: str, weights: Sequence[float], bins: int) -> None:
    """Raise RecipeError unless there is a weight for each of *bins* bins, and not all are zero."""
    if len(weights) != bins:
        raise RecipeError(f"{field}: expected one for each of the {bins} bins, found {len(weights)}")
    for place, weight in enumerate(weights):
        check_number(f"{field}[{place}]", weight, least=0, remedy="0 for a bin that never occurs")
    if not sum(weights) > 0:
        raise RecipeError(f"{field}: expected one above 0, found none")


def choose_weighted(weights: Sequence[float], uniform: Floats) -> Integers:
    """Return for each double in [0, 1) the number of a weight, chosen in proportion to it; never one of 0."""
    upto = np.cumsum(np.asarray(weights, np.float64))
    chosen = np.searchsorted(upto, uniform * upto[-1], side="right")
    return np.asarray(np.minimum(chosen, np.flatnonzero(weights)[-1]), np.int64)


def place_inside(bounds: Sequence[int], bins: Integers, uniform: Floats) -> Integers:
    """Return a whole length inside of each of *bins*, chosen by a double in [0, 1)."""
    edges = np.asarray(bounds, np.int64)
    width = np.diff(edges)[bins]
    return np.asarray(edges[bins] + np.minimum((uniform * width).astype(np.int64), width - 1))


def _read_bins(path: Path) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return bounds and weights of a CSV file; between two bins that do not touch there is one of no weight."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        bins = sorted((int(row["from_tokens"]), int(row["to_tokens"]), float(row["weight"])) for row in rows)
    except OSError as problem:
        raise RecipeError(f"csv: expected a readable file, found {str(path)!r}: {problem.strerror}") from None
    except (KeyError, TypeError, ValueError) as problem:
        raise RecipeError(
            f"csv: {path}: expected rows of numbers under from_tokens, to_tokens and weight; {problem}"
        ) from None
    bounds: list[int] = []
    weights: list[float] = []
    for low, high, weight in bins:
        if bounds and low < bounds[-1]:
            raise RecipeError(f"csv: {path}: expected bins apart from one another, found two at {low} tokens")
        if bounds and low > bounds[-1]:
            weights.append(0.0)
        if not bounds or low > bounds[-1]:
            bounds.append(low)
        bounds.append(high)
        weights.append(weight)
    return tuple(bounds), tuple(weights)

# How long prompts and answers are, in tokens.
#
# Law: a length distribution is a pure value with one method: for a generator and a number it returns as
# many whole lengths of at least one token. Extending needs no base class. Whose tokens they are is said
# by the trace's tokenizer, not here.
#
# Inputs and outputs given by two distributions are independent, which is right for chat and wrong for
# retrieval, where long contexts go with long answers (rank correlation 0.42 in RAGPulse; nearly 0 in the
# Azure 2023 traces). Traffic that leaves both to the fixture keeps prompt and answer together as a pair.
#
# A drawn length beyond a bound becomes the bound, as a server's context limit does it; the trace's
# statistics show what came out.

"""Length distributions as values: Fixed, Uniform, LogNormal, Empirical."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from loadshape.bounds import check_count, check_number
from loadshape.errors import RecipeError
from loadshape.randomness import draw_normals
from loadshape.stats import Integers
from loadshape.tokenizer import Tokenizer, load_tokenizer

MAX_TOKENS = 10_000_000  # longer than any context; keeps a typing slip from filling the memory
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
        check_count("min_tokens", self.min_tokens, most=MAX_TOKENS, remedy=_TOKENS)
        check_count("max_tokens", self.max_tokens, least=self.min_tokens, most=MAX_TOKENS, remedy=_TOKENS)

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths; one double for each."""
        width = self.max_tokens - self.min_tokens + 1
        return self.min_tokens + (rng.random(n) * width).astype(np.int64)


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
        check_number("median_tokens", self.median_tokens, least=1, most=MAX_TOKENS, remedy=_TOKENS)
        check_number("sigma", self.sigma, least=0, most=5, remedy="it is a spread of logarithms: 0.5 to 1.5 is usual")
        check_count("min_tokens", self.min_tokens, most=MAX_TOKENS, remedy=_TOKENS)
        check_count("max_tokens", self.max_tokens, least=self.min_tokens, most=MAX_TOKENS, remedy=_TOKENS)

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* lengths; two doubles for each."""
        tokens = self.median_tokens * np.exp(self.sigma * draw_normals(rng, n))
        return np.clip(np.rint(tokens), self.min_tokens, self.max_tokens).astype(np.int64)


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

# Lengths of a prompt and its answer, drawn together.
#
# Law: a joint distribution is a pure value with `draw_pairs`: for a generator and a number it returns as many
# prompt lengths and as many answer lengths, row by row one request. What both together must fit into is a
# value of its own, `Context`, which moves lengths and draws nothing.
#
#     observed     the pairs of a fixture, a trace or a log, drawn as pairs with replacement
#     grid         a histogram of two dimensions: what a production log may give away without its pairs
#     correlated   two distributions of their own, put into an order that gives them a rank correlation
#
# Theory of the last: Iman & Conover, "A distribution-free approach to inducing rank correlation among input
# variables" (1982). Two normals of correlation 2 sin(pi rho / 6) have the Spearman correlation rho (Kruskal 1958);
# inputs and outputs are given the ranks of two such normals. The lengths themselves do not change, only which
# answer goes with which prompt. Ties make a rank correlation smaller; so does a length that is always the same.

"""Joint lengths as values: Observed, Grid, Correlated; and Context, the bound of their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadshape.bounds import check_choice, check_count, check_number
from loadshape.errors import RecipeError
from loadshape.length.distribution import (
    MAX_TOKENS,
    Empirical,
    Fixed,
    Histogram,
    LogNormal,
    Normal,
    Pairs,
    ParetoMix,
    Uniform,
    check_bounds,
    check_weights,
    choose_weighted,
    place_inside,
)
from loadshape.randomness import draw_normals
from loadshape.stats import Integers
from loadshape.tokenizer import Tokenizer, load_tokenizer

RULES = ("cut_outputs", "cut_inputs", "refuse")
Distribution = Fixed | Uniform | Normal | LogNormal | ParetoMix | Histogram | Empirical


@runtime_checkable
class Joint(Protocol):
    """Anything that draws lengths of prompts together with those of their answers."""

    def draw_pairs(self, rng: np.random.Generator, n: int) -> tuple[Integers, Integers]:
        """Return *n* prompt lengths and the *n* answer lengths that go with them, each at least 1."""
        ...


class Observed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="observed", tag_field="joint"):
    """The pairs that were observed, each as often as it was: request i had inputs[i] and outputs[i] tokens."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.inputs or len(self.inputs) != len(self.outputs):
            raise RecipeError(
                f"outputs: expected one for each of the inputs, found {len(self.outputs)} and {len(self.inputs)}"
            )
        for field, counts in (("inputs", self.inputs), ("outputs", self.outputs)):
            check_count(field, min(counts), remedy="leave out pairs with a length of zero")
            check_count(field, max(counts), most=MAX_TOKENS)

    @classmethod
    def of(cls, fixture: Pairs, tokenizer: Tokenizer | None = None) -> Observed:
        """Return the prompts and answers of *fixture*, as *tokenizer* (else the estimate) counts them."""
        counter = tokenizer or load_tokenizer()
        prompts, answers = zip(*fixture.prompts(), strict=True)
        return cls.among(counter.count(prompts), counter.count(answers))

    @classmethod
    def of_trace(cls, trace: Any) -> Observed:
        """Return the wanted lengths of the requests of *trace*."""
        return cls.among(*(trace.requests[name].to_pylist() for name in ("input_tokens", "output_tokens")))

    @classmethod
    def among(cls, inputs: Sequence[int], outputs: Sequence[int]) -> Observed:
        """Return the pairs of which neither length is zero."""
        pairs = [pair for pair in zip(inputs, outputs, strict=True) if min(pair) > 0]
        return cls(tuple(prompt for prompt, _ in pairs), tuple(answer for _, answer in pairs))

    def draw_pairs(self, rng: np.random.Generator, n: int) -> tuple[Integers, Integers]:
        """Return *n* pairs, drawn with replacement; one double for each."""
        rows = (rng.random(n) * len(self.inputs)).astype(np.int64)
        return np.asarray(self.inputs, np.int64)[rows], np.asarray(self.outputs, np.int64)[rows]


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="grid", tag_field="joint"):
    """A histogram of pairs: weights[i][k] is that of prompts in input bin i with answers in output bin k.

    Inside of a cell all pairs are as frequent. Bounds are as those of `Histogram`.
    """

    input_bounds: tuple[int, ...]
    output_bounds: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        check_bounds("input_bounds", self.input_bounds)
        check_bounds("output_bounds", self.output_bounds)
        rows, columns = len(self.input_bounds) - 1, len(self.output_bounds) - 1
        if len(self.weights) != rows:
            raise RecipeError(f"weights: expected a row for each of the {rows} input bins, found {len(self.weights)}")
        for place, row in enumerate(self.weights):
            if len(row) != columns:
                raise RecipeError(f"weights[{place}]: expected {columns} output bins, found {len(row)}")
        check_weights("weights", self._flat(), rows * columns)

    @classmethod
    def of(cls, pairs: Observed, *, steps: int = 4) -> Grid:
        """Return the histogram of *pairs*, with *steps* bins for each doubling of a length."""
        bounds = [_double(max(lengths), steps) for lengths in (pairs.inputs, pairs.outputs)]
        counts, _, _ = np.histogram2d(pairs.inputs, pairs.outputs, bins=[np.array(edges) - 0.5 for edges in bounds])
        return cls(bounds[0], bounds[1], tuple(tuple(row) for row in counts.tolist()))

    def draw_pairs(self, rng: np.random.Generator, n: int) -> tuple[Integers, Integers]:
        """Return *n* pairs; three doubles for each."""
        uniform = rng.random((n, 3))
        row, column = np.divmod(choose_weighted(self._flat(), uniform[:, 0]), len(self.output_bounds) - 1)
        inputs = place_inside(self.input_bounds, row, uniform[:, 1])
        return inputs, place_inside(self.output_bounds, column, uniform[:, 2])

    def _flat(self) -> list[float]:
        return [weight for row in self.weights for weight in row]


class Correlated(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="correlated", tag_field="joint"):
    """Two distributions with a Spearman correlation `rank_correlation`: 0.42 in RAGPulse, 0 for independent ones.

    Both keep their distributions exactly; which answer goes with which prompt depends on all of a draw, so a
    longer one does not begin with a shorter one.
    """

    inputs: Distribution
    outputs: Distribution
    rank_correlation: float

    def __post_init__(self) -> None:
        remedy = "1 gives the longest answer to the longest prompt, -1 the shortest"
        check_number("rank_correlation", self.rank_correlation, least=-1, most=1, remedy=remedy)

    def draw_pairs(self, rng: np.random.Generator, n: int) -> tuple[Integers, Integers]:
        """Return *n* pairs: inputs as they were drawn, each with an output of the wanted rank."""
        inputs, outputs = self.inputs.draw(rng, n), self.outputs.draw(rng, n)
        correlation = 2.0 * math.sin(math.pi * self.rank_correlation / 6.0)
        rank = np.argsort(np.argsort(inputs + rng.random(n), kind="stable"), kind="stable")  # ties in random order
        score = np.sort(draw_normals(rng, n))[rank]
        score = correlation * score + math.sqrt(1.0 - correlation**2) * draw_normals(rng, n)
        paired = np.empty_like(outputs)
        paired[np.argsort(score, kind="stable")] = np.sort(outputs)
        return inputs, paired


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The context of a model, which prompt and answer have to fit into together: input + output <= `tokens`.

    `beyond` says what happens to a request that does not: "cut_outputs" shortens its answer, "cut_inputs" its
    prompt, "refuse" raises. What is not cut must leave at least one token for the other.
    """

    tokens: int
    beyond: str = "cut_outputs"

    def __post_init__(self) -> None:
        check_count("tokens", self.tokens, least=2, most=MAX_TOKENS, remedy="the model's longest context")
        check_choice("beyond", self.beyond, RULES)

    def fit(self, inputs: Integers, outputs: Integers) -> tuple[Integers, Integers]:
        """Return the lengths as they fit. Raises RecipeError when the rule cannot make them fit."""
        if self.beyond == "refuse":
            self._refuse("requests", inputs + outputs > self.tokens, "cut_outputs or cut_inputs")
            return inputs, outputs
        if self.beyond == "cut_outputs":
            self._refuse("prompts, which leave no room for an answer,", inputs >= self.tokens, "cut_inputs")
            return inputs, np.minimum(outputs, self.tokens - inputs)
        self._refuse("answers, which leave no room for a prompt,", outputs >= self.tokens, "cut_outputs")
        return np.minimum(inputs, self.tokens - outputs), outputs

    def _refuse(self, which: str, outside: NDArray[np.bool_], rule: str) -> None:
        if outside.any():
            raise RecipeError(
                f"context.beyond: expected no {which} beyond the context of {self.tokens} tokens, found "
                f"{outside.sum()} of {len(outside)}; bound the lengths by max_tokens, or write {rule}"
            )


def _double(longest: int, steps: int) -> tuple[int, ...]:
    """Return rising whole bounds from 1 to beyond *longest*, in equal steps of the logarithm."""
    octaves = math.ceil(math.log2(longest + 1))
    return tuple(sorted({round(2 ** (step / steps)) for step in range(octaves * steps + 1)}))

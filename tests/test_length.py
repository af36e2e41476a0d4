"""Length distributions, one length at a time and in pairs, and the context they fit into."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from invention import InventedFixture

from loadshape.errors import RecipeError
from loadshape.length import (
    DISTRIBUTIONS,
    JOINTS,
    Context,
    Correlated,
    Empirical,
    Fixed,
    Grid,
    Histogram,
    Joint,
    Length,
    LogNormal,
    Normal,
    Observed,
    ParetoMix,
    Uniform,
)
from loadshape.randomness import open_stream
from loadshape.tokenizer import Estimate

N = 40_000


def draw(length: Length, n: int = N) -> np.ndarray[Any, Any]:
    return length.draw(open_stream(7, "lengths.inputs"), n)


LENGTHS: list[Length] = [
    Fixed(5),
    Uniform(1, 9),
    Normal(20, 9),
    LogNormal(median_tokens=20, sigma=0.9),
    ParetoMix(20, 0.9, tail_share=0.1, tail_from_tokens=60, alpha=1.5),
    Histogram((1, 4, 9), (1, 3)),
    Empirical((3, 3, 8)),
]


def test_every_distribution_is_tried_here() -> None:
    assert tuple(type(length) for length in LENGTHS) == DISTRIBUTIONS
    assert tuple(type(pairs) for pairs in PAIRS) == JOINTS


@pytest.mark.parametrize("length", LENGTHS, ids=str)
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


def test_normal_is_truncated_and_not_clipped() -> None:
    tokens = draw(Normal(500, 100, min_tokens=400, max_tokens=600))
    assert (tokens.min(), tokens.max()) == (400, 600)
    assert (tokens == 400).mean() < 0.01  # a clipped one would have 16 % there
    assert tokens.mean() == pytest.approx(500, abs=1)
    assert tokens.std() == pytest.approx(100 * math.sqrt(1 - 2 * 0.24197 / 0.68269), rel=0.02)  # phi(1), P(|Z| < 1)


def test_pareto_mix_has_its_body_and_its_tail() -> None:
    tokens = draw(ParetoMix(100, 0.1, tail_share=0.1, tail_from_tokens=1000, alpha=1.5))
    tail = tokens[tokens >= 1000]
    assert len(tail) / N == pytest.approx(0.1, abs=0.006)
    assert np.median(tokens[tokens < 1000]) == pytest.approx(100, rel=0.01)
    assert (tail > 4000).mean() == pytest.approx(4**-1.5, abs=0.02)


def test_histogram_draws_bins_by_weight_and_their_lengths_alike() -> None:
    values, counts = np.unique(draw(Histogram((2, 3, 7, 9), (1, 2, 0))), return_counts=True)
    assert values.tolist() == [2, 3, 4, 5, 6]
    assert counts / N == pytest.approx(np.array([2, 1, 1, 1, 1]) / 6, abs=0.01)


def test_histogram_of_lengths_counts_them() -> None:
    histogram = Histogram.of([1, 1, 5, 9], (1, 5, 10))
    assert histogram.weights == (2, 2)
    with pytest.raises(RecipeError, match=r"^bounds: expected all lengths within, found 1 to 10"):
        Histogram.of([1, 10], (1, 5, 10))


def test_histogram_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bins.csv"
    path.write_text("weight,to_tokens,from_tokens\n3,9,5\n1,2,1\n")
    assert Histogram(csv=str(path)).bounds == (1, 2, 5, 9)
    assert Histogram(csv=str(path)).weights == (1, 0, 3)


CSV = [
    ("from_tokens,to_tokens\n1,2\n", "expected rows of numbers under from_tokens, to_tokens and weight"),
    ("from_tokens,to_tokens,weight\n1,2,many\n", "expected rows of numbers"),
    ("from_tokens,to_tokens,weight\n1,5,1\n4,9,1\n", "expected bins apart from one another, found two at 4 tokens"),
    ("from_tokens,to_tokens,weight\n", "^bounds: expected at least two"),
    (None, "^csv: expected a readable file, found "),
]


@pytest.mark.parametrize(("text", "message"), CSV)
def test_a_file_that_is_no_histogram_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bins.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        Histogram(csv=str(path))


def test_empirical_draws_what_was_observed_as_often() -> None:
    values, counts = np.unique(draw(Empirical((3, 3, 8))), return_counts=True)
    assert values.tolist() == [3, 8]
    assert counts[0] / N == pytest.approx(2 / 3, abs=0.01)


def test_empirical_of_a_fixture_counts_its_answers() -> None:
    fixture = InventedFixture(10)
    answers = [answer for _, answer in fixture.pairs]
    assert Empirical.of(fixture).counts == tuple(Estimate().count(answers))
    assert Empirical.of_prompts(fixture).counts == tuple(Estimate().count([prompt for prompt, _ in fixture.pairs]))


# Pairs.

PAIRS: list[Joint] = [
    Observed((3, 3, 8), (1, 2, 9)),
    Grid((1, 5, 9), (1, 3, 5), ((1, 0), (0, 3))),
    Correlated(LogNormal(512, 0.9), LogNormal(64, 0.9), 0.42),
]


def draw_pairs(joint: Joint, n: int = N) -> tuple[Any, Any]:
    return joint.draw_pairs(open_stream(7, "lengths"), n)


def correlate_ranks(inputs: Any, outputs: Any) -> float:
    """Spearman's correlation, ties in random order."""
    noise = np.random.default_rng(1).random((2, len(inputs)))
    ranks = [np.argsort(np.argsort(values + part)) for values, part in zip((inputs, outputs), noise, strict=True)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("joint", PAIRS, ids=lambda joint: type(joint).__name__)
def test_pairs_are_whole_positive_and_repeatable(joint: Joint) -> None:
    inputs, outputs = draw_pairs(joint)
    assert isinstance(joint, Joint)
    assert (inputs.dtype, outputs.dtype) == (np.int64, np.int64)
    assert len(inputs) == len(outputs) == N
    assert min(inputs.min(), outputs.min()) >= 1
    again = draw_pairs(joint)
    assert np.array_equal(again[0], inputs)
    assert np.array_equal(again[1], outputs)


def test_observed_pairs_stay_together() -> None:
    pairs = set(zip(*(lengths.tolist() for lengths in draw_pairs(PAIRS[0])), strict=True))
    assert pairs == {(3, 1), (3, 2), (8, 9)}


def test_observed_are_the_pairs_of_a_fixture() -> None:
    fixture = InventedFixture(10)
    prompts, answers = zip(*fixture.pairs, strict=True)
    assert Observed.of(fixture) == Observed(tuple(Estimate().count(prompts)), tuple(Estimate().count(answers)))
    assert Observed.among([0, 3], [5, 7]) == Observed((3,), (7,))


def test_observed_are_the_wanted_lengths_of_a_trace() -> None:
    trace = SimpleNamespace(requests=pa.table({"input_tokens": [5, 6], "output_tokens": [7, 0]}))
    assert Observed.of_trace(trace) == Observed((5,), (7,))


def test_a_grid_draws_cells_by_weight() -> None:
    inputs, outputs = draw_pairs(PAIRS[1])
    assert ((inputs < 5) == (outputs < 3)).all()
    assert (inputs < 5).mean() == pytest.approx(0.25, abs=0.01)
    assert set(inputs) == set(range(1, 9))


def test_a_grid_of_pairs_keeps_their_lengths_and_their_correlation() -> None:
    inputs, outputs = draw_pairs(PAIRS[2])
    again = draw_pairs(Grid.of(Observed.among(inputs.tolist(), outputs.tolist())))
    for found, expected in zip(again, (inputs, outputs), strict=True):
        assert np.median(found) == pytest.approx(np.median(expected), rel=0.03)
        assert np.quantile(found, 0.95) == pytest.approx(np.quantile(expected, 0.95), rel=0.05)
    assert correlate_ranks(*again) == pytest.approx(0.42, abs=0.02)


@pytest.mark.parametrize("wanted", [-1, -0.52, 0, 0.07, 0.42, 0.9, 1])
def test_rank_correlation_is_reached_and_lengths_are_kept(wanted: float) -> None:
    inputs, outputs = draw_pairs(Correlated(LogNormal(512, 0.9), ParetoMix(64, 0.9, 0.05, 500, 1.5), wanted))
    assert correlate_ranks(inputs, outputs) == pytest.approx(wanted, abs=0.015)
    assert np.array_equal(inputs, LogNormal(512, 0.9).draw(open_stream(7, "lengths"), N))
    assert np.median(outputs) == pytest.approx(67, abs=2)


def test_a_correlation_with_a_fixed_length_changes_nothing() -> None:
    inputs, outputs = draw_pairs(Correlated(LogNormal(512, 0.9), Fixed(9), 0.5))
    assert np.array_equal(inputs, LogNormal(512, 0.9).draw(open_stream(7, "lengths"), N))
    assert set(outputs) == {9}


CONTEXTS = [
    ("cut_outputs", ([90, 50], [10, 50])),
    ("cut_inputs", ([70, 50], [30, 50])),
]


@pytest.mark.parametrize(("beyond", "expected"), CONTEXTS)
def test_a_context_cuts_what_its_rule_names(beyond: str, expected: tuple[list[int], list[int]]) -> None:
    inputs, outputs = Context(100, beyond).fit(np.array([90, 50]), np.array([30, 50]))
    assert (inputs.tolist(), outputs.tolist()) == expected


REFUSED = [
    ("refuse", 90, 30, r"found 1 of 1; .* or write cut_outputs or cut_inputs"),
    ("cut_outputs", 100, 1, r"no prompts, which leave no room for an answer, beyond the context of 100 tokens"),
    ("cut_inputs", 1, 100, r"no answers, which leave no room for a prompt, beyond the context of 100 tokens"),
]


@pytest.mark.parametrize(("beyond", "prompt", "answer", "message"), REFUSED)
def test_a_context_that_cannot_hold_a_request_is_refused(beyond: str, prompt: int, answer: int, message: str) -> None:
    with pytest.raises(RecipeError, match=f"^context.beyond: expected .*{message}"):
        Context(100, beyond).fit(np.array([prompt]), np.array([answer]))
    inputs, outputs = Context(100, "refuse").fit(np.array([60]), np.array([40]))
    assert (inputs.tolist(), outputs.tolist()) == ([60], [40])


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Fixed(0), "tokens"),
        (lambda: Fixed(1.5), "tokens"),  # type: ignore[arg-type]
        (lambda: Uniform(5, 4), "max_tokens"),
        (lambda: LogNormal(median_tokens=0, sigma=1), "median_tokens"),
        (lambda: LogNormal(median_tokens=10, sigma=math.nan), "sigma"),
        (lambda: LogNormal(median_tokens=10, sigma=1, max_tokens=0), "max_tokens"),
        (lambda: Normal(500, 10, max_tokens=400), "mean_tokens"),
        (lambda: Normal(500, 0, max_tokens=400), "mean_tokens"),
        (lambda: Normal(500, -1), "deviation_tokens"),
        (lambda: ParetoMix(20, 0.9, tail_share=1.5, tail_from_tokens=60, alpha=1.5), "tail_share"),
        (lambda: ParetoMix(20, 0.9, tail_share=0.1, tail_from_tokens=60, alpha=0), "alpha"),
        (lambda: Histogram(), "bounds"),
        (lambda: Histogram((1, 4, 4), (1, 1)), r"bounds\[2\]"),
        (lambda: Histogram((0, 4), (1,)), r"bounds\[0\]"),
        (lambda: Histogram((1, 4), (1, 1)), "weights"),
        (lambda: Histogram((1, 4), (-1,)), r"weights\[0\]"),
        (lambda: Histogram((1, 4), (0,)), "weights"),
        (lambda: Histogram((1, 4), (1,), csv="bins.csv"), "csv"),
        (lambda: Empirical(()), "counts"),
        (lambda: Empirical((3, 0)), "counts"),
        (lambda: Observed((), ()), "outputs"),
        (lambda: Observed((1, 2), (1,)), "outputs"),
        (lambda: Observed((1, 0), (1, 1)), "inputs"),
        (lambda: Grid((1, 2), (1, 2), ((1,), (1,))), "weights"),
        (lambda: Grid((1, 2), (1, 2), ((1, 1),)), r"weights\[0\]"),
        (lambda: Correlated(Fixed(1), Fixed(1), 1.5), "rank_correlation"),
        (lambda: Context(1), "tokens"),
        (lambda: Context(100, "cut_all"), "beyond"),
    ],
)
def test_impossible_values_are_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}: expected .*, found "):
        make()

"""Named streams and the draws made from them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadshape.errors import RecipeError
from loadshape.randomness import draw_exponentials, draw_gammas, draw_normals, draw_order, open_stream

N = 20_000


def test_a_stream_is_its_seed_and_its_name() -> None:
    assert open_stream(7, "arrivals").random(5).tolist() == open_stream(7, "arrivals").random(5).tolist()
    first = {tuple(open_stream(seed, name).random(2)) for seed in (7, 8) for name in ("arrivals", "content", "a")}
    assert len(first) == 6


def test_the_bit_stream_is_the_pinned_one() -> None:
    # PCG64 seeded by SeedSequence(7, spawn_key=b"arrivals"); another value is another trace for every seed
    assert open_stream(7, "arrivals").random(2).tolist() == [0.5723869209605864, 0.180019465151108]


@pytest.mark.parametrize("seed", [-1, 0.5, math.nan])
def test_a_seed_is_a_whole_number(seed: float) -> None:
    with pytest.raises(RecipeError, match="seed"):
        open_stream(seed, "arrivals")  # type: ignore[arg-type]


def test_order_is_a_permutation() -> None:
    order = draw_order(open_stream(1, "content"), 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != list(range(1000))


@pytest.mark.parametrize("draw", [draw_exponentials, draw_normals])
def test_a_longer_draw_begins_like_a_shorter_one(draw) -> None:  # type: ignore[no-untyped-def]
    assert draw(open_stream(3, "x"), 100)[:10].tolist() == draw(open_stream(3, "x"), 10).tolist()


@pytest.mark.parametrize(
    ("values", "mean", "variance"),
    [
        (draw_exponentials(open_stream(1, "x"), N), 1.0, 1.0),
        (draw_normals(open_stream(1, "x"), N), 0.0, 1.0),
        *((draw_gammas(open_stream(1, "x"), shape, N), shape, shape) for shape in (0.05, 0.3, 1.0, 2.5, 400.0)),
    ],
)
def test_moments(values: np.ndarray, mean: float, variance: float) -> None:
    assert len(values) == N
    assert abs(values.mean() - mean) < 4.5 * math.sqrt(variance / N)
    assert values.var() == pytest.approx(variance, rel=0.15)  # gamma 0.05 has kurtosis 120


def test_gamma_of_shape_one_is_exponential() -> None:
    values = np.sort(draw_gammas(open_stream(5, "x"), 1.0, N))
    distance = np.abs(np.arange(1, N + 1) / N - (1 - np.exp(-values))).max()
    assert distance < 1.95 / math.sqrt(N)  # Kolmogorov, 0.1 %

"""Prefix trees, and what requests share with earlier ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.errors import RecipeError
from loadshape.prefix import BLOCK_TOKENS, PrefixTree, measure_shared
from loadshape.randomness import open_stream


def paths_of(tree: PrefixTree, n: int = 4000) -> np.ndarray[Any, Any]:
    return tree.draw_paths(open_stream(7, "prefix"), n)


def test_paths_go_from_the_root_to_a_leaf() -> None:
    paths = paths_of(PrefixTree(share=0.5, depth=3, fan_out=2))
    assert paths.shape == (4000, 3)
    assert set(paths[:, 0]) == {0}
    assert set(paths[:, 1]) == {1, 2}
    assert set(paths[:, 2]) == {3, 4, 5, 6}
    assert ((paths[:, 2] - 1) // 2 == paths[:, 1]).all()  # the parent of node v is (v - 1) // fan_out


@pytest.mark.parametrize(("zipf", "weights"), [(0.0, [1, 1, 1, 1]), (1.0, [12, 6, 4, 3])])
def test_popularity_falls_with_the_rank(zipf: float, weights: list[int]) -> None:
    paths = paths_of(PrefixTree(share=0.5, depth=2, fan_out=4, zipf=zipf), n=40_000)
    found = np.bincount(paths[:, 1], minlength=5)[1:] / 40_000
    assert found == pytest.approx(np.array(weights) / sum(weights), abs=0.01)


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("depth", [1, 3])
def test_prefixes_inside_of_given_lengths_reach_the_share(share: float, depth: int) -> None:
    tree = PrefixTree(share=share, depth=depth)
    paths = paths_of(tree)
    tokens = np.rint(512 * np.exp(0.9 * open_stream(7, "x").random(4000) * 3 - 1.3)).astype(np.int64)
    levels = tree.fit_within(paths, tokens, spare=3)
    carried = levels.sum(axis=1)
    assert (tokens - carried >= 3).all()
    assert ((carried == carried.max()) | (carried % BLOCK_TOKENS == 0)).all()
    assert measure_shared(paths, levels).sum() / tokens.sum() == pytest.approx(share, abs=0.01)


def test_prefixes_before_given_lengths_reach_the_share() -> None:
    tree = PrefixTree(share=0.6, depth=3)
    paths, tokens = paths_of(tree), np.full(4000, 50)
    levels = tree.fit_before(paths, tokens)
    total = levels.sum() + tokens.sum()
    assert measure_shared(paths, levels).sum() / total == pytest.approx(0.6, abs=0.01)


def test_a_share_out_of_reach_is_refused_with_the_nearest() -> None:
    tree = PrefixTree(share=0.9, depth=4, fan_out=50, zipf=0)  # nearly every request is the first of its leaf
    with pytest.raises(RecipeError, match=r"^share: .*, found 0\.9; .* the nearest is 0\.\d+"):
        tree.fit_before(paths_of(tree, n=200), np.full(200, 50))


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"share": 1.5}, "share"),
        ({"share": 0}, "share"),
        ({"share": math.nan}, "share"),
        ({"share": 0.5, "depth": 0}, "depth"),
        ({"share": 0.5, "fan_out": 0}, "fan_out"),
        ({"share": 0.5, "zipf": -1}, "zipf"),
        ({"share": 0.5, "depth": 30, "fan_out": 30}, "fan_out"),
    ],
)
def test_impossible_values_are_refused_by_name(values: dict[str, float], field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}.*: expected a .*, found "):
        PrefixTree(**values)  # type: ignore[arg-type]


# Requests as lists of (identity, tokens), and the longest prefix that each shares with an earlier one.
SHARED = [
    ([[(1, 5)], [(1, 5)], [(2, 5)]], [0, 5, 0]),
    ([[(1, 9)], [(1, 5)], [(1, 20)]], [0, 5, 9]),  # one identity: the shorter of the two
    ([[(1, 5), (2, 7)], [(1, 5), (3, 7)], [(1, 5), (2, 7)]], [0, 5, 12]),
    ([[(1, 5), (2, 7)], [(1, 4), (2, 7)]], [0, 4]),  # what follows a shorter element is not shared
    ([[(1, 5), (2, 7)], [(1, 5), (2, 3)], [(1, 5), (2, 9)]], [0, 8, 12]),
    ([[(1, 5), (0, 0)], [(1, 5), (2, 3)]], [0, 5]),  # an absent element shares nothing
    ([[(1, 5), (2, 4)], [(3, 5), (2, 4)]], [0, 0]),  # no middle without its beginning
]


@pytest.mark.parametrize(("requests", "shared"), SHARED)
def test_shared_tokens(requests: list[list[tuple[int, int]]], shared: list[int]) -> None:
    elements = np.array(requests)
    assert measure_shared(elements[:, :, 0], elements[:, :, 1]).tolist() == shared


def spell(request: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Token by token: token k of identity i is (i, k)."""
    return [(identity, token) for identity, tokens in request for token in range(tokens)]


def common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=3, max_size=3), min_size=1, max_size=12)
)
def test_shared_tokens_are_those_of_a_token_by_token_comparison(requests: list[list[tuple[int, int]]]) -> None:
    # identities of different levels never meet in a tree; without that, (1, 2)(1, 2) would spell like no (1, 4)
    spelled = [spell([(level * 10 + i, tokens) for level, (i, tokens) in enumerate(request)]) for request in requests]
    expected = [
        max((common(spelled[row], spelled[earlier]) for earlier in range(row)), default=0)
        for row in range(len(requests))
    ]
    elements = np.array(requests)
    assert measure_shared(elements[:, :, 0], elements[:, :, 1]).tolist() == expected

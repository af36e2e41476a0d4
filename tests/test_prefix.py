"""Prefix trees: paths, and how much of a prefix a goal asks for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from loadshape.errors import RecipeError
from loadshape.prefix import BLOCK_TOKENS, PrefixTree
from loadshape.randomness import open_stream
from loadshape.sharing import measure_hits, measure_shared


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
    with pytest.raises(RecipeError, match=r"^prefixes\.share: .*, found 0\.9; .* the nearest is 0\.\d+"):
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
        ({"share": 0.5, "roots": 0}, "roots"),
        ({"share": 0.5, "roots": 1000, "fan_out": 1001, "depth": 2}, "fan_out"),
        ({"hit_rate": 1}, "hit_rate"),
        ({"hit_rate": 0.5, "block_tokens": 0}, "block_tokens"),
        ({"prefix_tokens": 2, "depth": 3}, "prefix_tokens"),
    ],
)
def test_impossible_values_are_refused_by_name(values: dict[str, float], field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}.*: expected a .*, found "):
        PrefixTree(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{}, {"share": 0.5, "hit_rate": 0.5}, {"hit_rate": 0.5, "prefix_tokens": 100}])
def test_there_is_exactly_one_goal(values: dict[str, float]) -> None:
    with pytest.raises(
        RecipeError, match=r"^share: expected one of share, hit_rate, prefix_tokens, found (none|.* and )"
    ):
        PrefixTree(**values)  # type: ignore[arg-type]


def test_several_roots_are_as_popular_as_branches() -> None:
    paths = paths_of(PrefixTree(share=0.5, depth=2, fan_out=2, roots=3), n=40_000)
    assert np.bincount(paths[:, 0]) / 40_000 == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.01)
    assert set(paths[:, 1]) == set(range(3, 9))
    assert ((paths[:, 1] - 3) // 2 == paths[:, 0]).all()


@pytest.mark.parametrize("tree", [PrefixTree(share=0.5, roots=3), PrefixTree(share=0.5, depth=3, fan_out=3)])
def test_tenants_settle_the_first_branch(tree: PrefixTree) -> None:
    tenants = np.arange(300) % 3
    paths = tree.draw_paths(open_stream(7, "prefix"), 300, tenants=tenants)
    assert tree.tenants == 3
    assert tree.find_tenants(paths).tolist() == tenants.tolist()
    with pytest.raises(RecipeError, match="expected a branch for each of 4 tenants, found 3"):
        tree.draw_paths(open_stream(7, "prefix"), 300, tenants=np.arange(300) % 4)


def test_a_single_prefix_has_one_tenant() -> None:
    tree = PrefixTree(share=0.5)
    assert tree.find_tenants(paths_of(tree)).max() == 0
    with pytest.raises(RecipeError, match="expected a branch"):
        tree.draw_paths(open_stream(7, "prefix"), 3, tenants=np.array([0, 0, 0]))


LENGTHS = np.rint(512 * np.exp(0.9 * open_stream(7, "x").random(6000) * 3 - 1.3)).astype(np.int64)


@pytest.mark.parametrize("hit_rate", [0.2, 0.6, 0.85])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(("block_tokens", "lead"), [(16, 0), (16, 5), (64, 0)])
def test_a_hit_rate_is_reached_in_whole_blocks(hit_rate: float, depth: int, block_tokens: int, lead: int) -> None:
    tree = PrefixTree(hit_rate=hit_rate, depth=depth, block_tokens=block_tokens)
    paths, spare = paths_of(tree, 6000), 3 + lead
    levels = tree.fit_within(paths, LENGTHS, spare=spare, lead=lead)
    carried = levels.sum(axis=1)
    assert (LENGTHS - carried >= spare)[spare <= LENGTHS].all()
    assert ((carried + lead) % block_tokens == 0)[carried > 0].all()
    hits = measure_hits(measure_shared(paths, levels) + lead * (carried > 0), LENGTHS, block_tokens)
    assert hits.sum() / LENGTHS.sum() == pytest.approx(hit_rate, abs=0.005)


def test_a_hit_rate_before_given_lengths_is_reached_too() -> None:
    tree, own = PrefixTree(hit_rate=0.6, depth=2), np.full(6000, 53)
    paths = paths_of(tree, 6000)
    levels = tree.fit_before(paths, own, lead=5)
    total = own + levels.sum(axis=1)
    hits = measure_hits(measure_shared(paths, levels) + 5, total, 16)
    assert hits.sum() / total.sum() == pytest.approx(0.6, abs=0.005)


@pytest.mark.parametrize(
    ("tree", "lengths", "message"),
    [
        (
            PrefixTree(hit_rate=0.6, block_tokens=128),
            np.full(500, 100),
            r"^prefixes\.hit_rate: .* found 0\.6; .* is 0\.000",
        ),
        (
            PrefixTree(hit_rate=0.97),
            np.full(500, 100),
            r"^prefixes\.hit_rate: .* blocks of 16 tokens, .* the highest is 0\.9\d\d",
        ),
        (
            PrefixTree(hit_rate=0.2, depth=4, block_tokens=64),
            np.full(900, 512),
            r"^prefixes\.block_tokens: .* each of the 4 levels",
        ),
    ],
)
def test_a_block_that_cannot_be_filled_is_refused(tree: PrefixTree, lengths: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tree.fit_within(paths_of(tree, len(lengths)), lengths, spare=3)


def test_a_prefix_of_given_length_is_cut_in_blocks_where_there_is_no_room() -> None:
    tree, lengths = PrefixTree(prefix_tokens=100, depth=2), np.array([10, 60, 103, 900])
    levels = tree.fit_within(paths_of(tree, 4), lengths, spare=3)
    assert levels.tolist() == [[0, 0], [48, 0], [50, 50], [50, 50]]
    assert tree.fit_before(paths_of(tree, 2), np.array([5, 6])).tolist() == [[50, 50], [50, 50]]

"""What requests share with earlier ones: of tables, of block hashes, in whole blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.errors import RecipeError
from loadshape.sharing import Blocks, measure_hits, measure_shared, rank_values

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


def test_hits_are_whole_blocks_and_never_the_last_token() -> None:
    shared = np.array([0, 15, 16, 47, 48, 48, 48])
    tokens = np.array([90, 90, 90, 90, 90, 48, 49])
    assert measure_hits(shared, tokens, 16).tolist() == [0, 0, 16, 32, 48, 32, 48]


@given(st.lists(st.integers(-50, 50), max_size=40), st.sampled_from([1, 1_000_000]))
def test_ranks_are_those_of_unique(values: list[int], scale: int) -> None:
    array = np.array(values, np.int64) * scale
    distinct, ranks = rank_values(array)
    expected = np.unique(array, return_inverse=True)
    assert distinct[ranks].tolist() == array.tolist()
    assert ranks.tolist() == expected[1].tolist()


def blocks_of(requests: list[list[int]]) -> Blocks:
    hashes = [block for request in requests for block in request]
    return Blocks.of(np.array(hashes, np.int64), np.array([len(request) for request in requests]))


def test_hashes_are_numbered_by_their_first_use() -> None:
    blocks = blocks_of([[70, 5], [], [70, 3], [9]])
    assert blocks.number.tolist() == [0, 1, 0, 2, 3]
    assert blocks.row.tolist() == [0, 0, 2, 2, 3]
    assert blocks.place.tolist() == [0, 1, 0, 1, 0]
    assert blocks.distinct == 4


@pytest.mark.parametrize(
    ("requests", "strays"),
    [
        ([[1, 2], [1, 3], [1, 2, 4]], 0),
        ([[1, 2], [2]], 1),  # elsewhere
        ([[1, 2], [3, 2]], 1),  # after another
        ([[1, 1]], 1),
        ([[]], 0),
    ],
)
def test_strays_are_blocks_that_are_not_where_their_hash_was(requests: list[list[int]], strays: int) -> None:
    assert blocks_of(requests).count_strays() == strays


def test_fewer_hashes_than_blocks_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"^hashes: expected one a block, 3 in all, found 2"):
        Blocks.of(np.array([1, 2]), np.array([1, 2]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=10), st.integers(1, 3))
def test_shared_blocks_are_those_of_a_comparison_from_the_beginning(requests: list[list[int]], last: int) -> None:
    # any hashes, chained or not: equal blocks after equal blocks are shared, a partial one as far as both go
    blocks = blocks_of(requests)
    is_last = np.r_[blocks.row[1:] != blocks.row[:-1], True] if len(blocks.row) else np.empty(0, bool)
    sizes = np.where(is_last, last, 4)
    spelled = [
        [
            (block, token)
            for place, block in enumerate(request)
            for token in range(last if place == len(request) - 1 else 4)
        ]
        for request in requests
    ]
    expected = [max((common(spelled[row], spelled[i]) for i in range(row)), default=0) for row in range(len(requests))]
    assert blocks.measure_shared(sizes).tolist() == expected

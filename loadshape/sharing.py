# What requests have in common from their beginning on.
#
# Law: numbers only; no text. Content is compared by identity, element by element: an element is (identity,
# tokens), two of one identity agree in their first min(tokens), two of different identity differ at once.
# Texts of different identity that happen to begin alike are not counted: a number is a lower bound, by a few
# tokens.
#
#     measure_shared   few elements a request, as a table: levels of a prefix tree, documents, digits of a head
#     Blocks           many, as lists: the block hashes of a recorded trace
#     measure_hits     whole blocks of what is shared, as a server's cache counts them
#
# Block hashes are chain hashes: the hash of a block covers all before it, so a block never stands at two
# places or after two different predecessors (measured on both Mooncake traces). Where that holds, a hash is
# the identity of a whole prefix; where it does not, the chain is followed from the beginning here.

"""Shared prefixes, counted by identity: of tables, and of recorded block hashes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadshape.errors import RecipeError
from loadshape.stats import Integers


def measure_shared(identities: Integers, tokens: Integers) -> Integers:
    """Return, for each request, the tokens of the longest prefix that it shares with one earlier request.

    Both arguments are n x k: request i is the elements (identities[i, j], tokens[i, j]) in this order, rows
    in the order of the trace. An absent element has 0 tokens.
    """
    n, width = identities.shape
    same, before = np.zeros(n, np.int64), np.zeros(n, np.int64)
    shared = np.zeros(n, np.int64)
    for column in range(width):
        size = tokens[:, column]
        same = _number_pairs(same, identities[:, column])  # equal: the same elements up to here, sizes aside
        longest, settled = _find_longest_earlier(same, size)
        shared = np.where(longest >= 0, before + np.minimum(size, longest), shared)
        before = before + size
        if not settled:
            same = _number_pairs(same, size)
    return shared


def measure_hits(shared_tokens: Integers, input_tokens: Integers, block_tokens: int) -> Integers:
    """Return the tokens that a cache without limit, in blocks of *block_tokens*, serves of each request.

    Only whole blocks count, and never the last token of a request: a server has to compute that one itself.
    """
    return np.asarray(np.minimum(shared_tokens, input_tokens - 1) // block_tokens * block_tokens)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Requests as block hashes: entry j is block `place`[j] of request `row`[j], with the hash number `number`[j].

    Hashes are numbered from 0 in the order of their first use.
    """

    counts: Integers
    row: Integers
    place: Integers
    number: Integers

    @classmethod
    def of(cls, hashes: Integers, counts: Integers) -> Blocks:
        """Return the blocks of requests that have the next counts[i] of *hashes* each."""
        if counts.sum() != len(hashes):
            raise RecipeError(f"hashes: expected one a block, {counts.sum()} in all, found {len(hashes)}")
        row = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(hashes)) - np.repeat(np.cumsum(counts) - counts, counts)
        _, first, rank = np.unique(hashes, return_index=True, return_inverse=True)
        by_use = np.empty(len(first), np.int64)
        by_use[np.argsort(first, kind="stable")] = np.arange(len(first))
        return cls(counts, row, place, by_use[rank])

    @property
    def distinct(self) -> int:
        """How many different hashes there are."""
        return int(self.number.max(initial=-1)) + 1

    def count_uses(self) -> Integers:
        """Return for each block how many requests have it."""
        return np.asarray(np.bincount(self.number)[self.number])

    def count_strays(self) -> int:
        """Return how many blocks stand elsewhere, or after another block, than where their hash was first used."""
        before = np.where(self.place > 0, np.r_[-1, self.number[:-1]], -1)
        first = np.unique(self.number, return_index=True)[1][self.number]
        return int(np.count_nonzero((self.place != self.place[first]) | (before != before[first])))

    def follow(self) -> Integers:
        """Return for each block the number of its chain: equal for equal blocks with equal ones before them."""
        if not self.count_strays():
            return self.number
        chain, before = np.empty_like(self.number), np.zeros(len(self.counts), np.int64)
        starts, upto = np.cumsum(self.counts) - self.counts, 0
        for place in range(int(self.counts.max())):
            rows = np.flatnonzero(self.counts > place)
            here = starts[rows] + place
            chain[here] = before[rows] = upto + _number_pairs(before[rows], self.number[here])
            upto = int(chain[here].max()) + 1
        return chain

    def measure_shared(self, sizes: Integers) -> Integers:
        """Return `measure_shared` of the requests, whose blocks have *sizes* tokens."""
        longest, _ = _find_longest_earlier(self.follow(), sizes)
        found = np.minimum(sizes, np.maximum(longest, 0))
        return np.bincount(self.row, found, minlength=len(self.counts)).astype(np.int64)


def rank_values(values: Integers) -> tuple[Integers, Integers]:
    """Return the distinct values in order, and for each value its rank among them.

    The same as np.unique with its inverse, but counted in a table where that is small: no sorting, which
    took half of the time of a trace of a million requests (benchmarks/bench_shape.py).
    """
    low = values.min(initial=0)
    span = int(values.max(initial=0) - low) + 1
    if span > 8 * len(values) + 1024:
        distinct, ranks = np.unique(values, return_inverse=True)
        return distinct, np.asarray(ranks, np.int64)
    seen = np.zeros(span, bool)
    seen[values - low] = True
    return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[values - low]


def _number_pairs(first: Integers, second: Integers) -> Integers:
    low = second.min(initial=0)
    return rank_values(first * (second.max(initial=0) - low + 1) + second - low)[1]


def _find_longest_earlier(group: Integers, size: Integers) -> tuple[Integers, bool]:
    """Return the largest size among earlier rows of the same group, else -1; and whether all of a group agree."""
    some = np.empty(group.max(initial=0) + 1, np.int64)
    some[group] = size
    if (some[group] == size).all():  # no sorting to find the first of each group
        some[group[::-1]] = np.arange(len(group))[::-1]
        return np.where(some[group] < np.arange(len(group)), size, -1), True
    few = group.max(initial=0) <= np.iinfo(np.uint16).max  # numpy sorts 16 bits by counting, in a tenth of the time
    order = np.argsort(group.astype(np.uint16) if few else group, kind="stable")
    step = size.max(initial=0) + 1
    floor = group[order] * step  # sizes of one group lie in [floor, floor + step)
    running = np.maximum.accumulate(floor + size[order])
    longest = np.empty(len(group), np.int64)
    longest[order] = np.maximum(np.r_[-1, running[:-1]] - floor, -1)
    return longest, False

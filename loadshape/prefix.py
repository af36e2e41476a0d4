# Which leading tokens requests share.
#
# Law: arithmetic on numbers of nodes and tokens; no text. A prefix tree says which segments precede each
# request's own content, `measure_shared` says afterwards what a prefix cache without limit would find.
#
# Theory. A tree of `depth` levels has one root (the system prompt of all) and `fan_out` children under
# every node (tenants, tools, documents). A request takes one path from the root, at each level the child
# of rank r with weight 1 / r^zipf. Every request carries the whole prefix of its path, P tokens in levels
# of equal size; one that is too short for it carries as many whole blocks of BLOCK_TOKENS as leave room
# for something of its own, as a cache works in blocks. P is solved for, so that the *shared* tokens,
# first uses not counted, are the asked share of all input tokens:
#
#     sum over requests of min(P, room)  -  sum over used nodes of their tokens  =  share * all tokens
#
# The shared tokens of a request are the longest prefix that it has in common with any one earlier request.
# Content is compared by identity, element by element: an element is (identity, tokens), two of one
# identity agree in their first min(tokens), two of different identity differ at once. Texts of different
# identity that happen to begin alike are not counted: the number is a lower bound, by a few tokens.

"""Prefix trees as values, and the tokens that requests share with earlier ones."""

from __future__ import annotations

import msgspec
import numpy as np

from loadshape.bounds import check_count, check_number
from loadshape.errors import RecipeError
from loadshape.stats import Integers

BLOCK_TOKENS = 16  # vLLM's default block on GPUs
MAX_PREFIX_TOKENS = 1 << 17
MAX_NODES = 1_000_000
TOLERANCE = 0.01  # of the asked share; a whole token a request is the step that is left


class PrefixTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shared prefixes: `share` of all input tokens, in a tree of `depth` levels.

    `fan_out` is the number of children of a node, `zipf` the exponent of their popularity: 0 is uniform.
    """

    share: float
    depth: int = 1
    fan_out: int = 4
    zipf: float = 1.0

    def __post_init__(self) -> None:
        remedy = "it is the part of input tokens that an earlier request had too, such as 0.6"
        check_number("share", self.share, above=0, below=1, remedy=remedy)
        check_count("depth", self.depth, most=64, remedy="1 is one prefix common to all")
        check_count("fan_out", self.fan_out, most=MAX_NODES, remedy="write the children of a node")
        check_number("zipf", self.zipf, least=0, most=10, remedy="0 is uniform popularity, 1 is usual")
        check_count("fan_out ** (depth - 1)", self.fan_out ** (self.depth - 1), most=MAX_NODES, remedy="fewer leaves")

    def draw_paths(self, rng: np.random.Generator, n: int) -> Integers:
        """Return the nodes that *n* requests pass, root first, as an array of n x depth node numbers."""
        weights = np.arange(1, self.fan_out + 1) ** -self.zipf
        upto = np.cumsum(weights) / weights.sum()
        child = np.searchsorted(upto[:-1], rng.random((n, self.depth - 1)), side="right")
        paths = np.zeros((n, self.depth), np.int64)
        for level in range(1, self.depth):  # children of node v are fan_out * v + 1 and following
            paths[:, level] = self.fan_out * paths[:, level - 1] + 1 + child[:, level - 1]
        return paths

    def fit_within(self, paths: Integers, tokens: Integers, *, spare: int, reused: int = 0) -> Integers:
        """Return the prefix tokens of each level (n x depth) for requests of *tokens* tokens in all.

        At least *spare* tokens of each request are its own, of which all requests together share *reused*
        anyway. Raises RecipeError when the share is out of reach.
        """
        room = np.maximum(tokens - spare, 0)
        in_blocks = room // BLOCK_TOKENS * BLOCK_TOKENS
        prefix = self._candidates()
        order = np.argsort(room, kind="stable")
        below = np.searchsorted(room[order], prefix)  # requests that are too short for the whole prefix
        carried = np.r_[0, np.cumsum(in_blocks[order])][below] + prefix * (len(room) - below)
        shared = carried - self._first_uses(prefix, paths) + reused
        best = self._solve(prefix, shared, np.full(len(prefix), tokens.sum()))
        return self._divide(np.where(room >= best, best, in_blocks), best)

    def fit_before(self, paths: Integers, tokens: Integers, *, reused: int = 0) -> Integers:
        """Return the prefix tokens of each level (n x depth) to put before *tokens* tokens of each request's own.

        All requests together share *reused* of those anyway. Raises RecipeError when the share is out of reach.
        """
        prefix = self._candidates()
        shared = prefix * len(tokens) - self._first_uses(prefix, paths) + reused
        best = self._solve(prefix, shared, prefix * len(tokens) + tokens.sum())
        return self._divide(np.full(len(tokens), best), best)

    def _candidates(self) -> Integers:
        return np.arange(self.depth, MAX_PREFIX_TOKENS + 1)

    def _bounds(self, prefix: Integers) -> Integers:
        levels = np.arange(self.depth + 1, dtype=np.int64)
        return np.asarray(prefix[:, None] * levels // self.depth)

    def _first_uses(self, prefix: Integers, paths: Integers) -> Integers:
        used = np.array([len(np.unique(nodes)) for nodes in paths.T])
        return np.asarray(np.diff(self._bounds(prefix), axis=1) @ used)

    def _solve(self, prefix: Integers, shared: Integers, total: Integers) -> int:
        reached = shared / total
        rising = reached[: int(np.argmax(reached)) + 1]  # beyond, first uses cost more than is gained
        error = np.abs(rising - self.share)
        best = int(np.argmin(error))
        if error[best] > TOLERANCE:
            raise RecipeError(
                f"share: expected a reachable part of the input tokens, found {self.share:g}; with this depth, fan_out "
                f"and number of requests the nearest is {reached[best]:.3f}: ask for that, or change one of those"
            )
        return int(prefix[best])

    def _divide(self, carried: Integers, prefix: int) -> Integers:
        bounds = self._bounds(np.array([prefix]))[0]
        return np.asarray(np.clip(carried[:, None] - bounds[:-1], 0, np.diff(bounds)))


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
        longest = _find_longest_earlier(same, size)
        shared = np.where(longest >= 0, before + np.minimum(size, longest), shared)
        same = _number_pairs(same, size)
        before = before + size
    return shared


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
    low = second.min()
    return rank_values(first * (second.max() - low + 1) + second - low)[1]


def _find_longest_earlier(group: Integers, size: Integers) -> Integers:
    """Return the largest size among earlier rows of the same group, -1 where there is none."""
    few = group.max() <= np.iinfo(np.uint16).max  # numpy sorts 16 bits by counting, in a tenth of the time
    order = np.argsort(group.astype(np.uint16) if few else group, kind="stable")
    step = size.max() + 1
    floor = group[order] * step  # sizes of one group lie in [floor, floor + step)
    running = np.maximum.accumulate(floor + size[order])
    longest = np.empty(len(group), np.int64)
    longest[order] = np.maximum(np.r_[-1, running[:-1]] - floor, -1)
    return longest

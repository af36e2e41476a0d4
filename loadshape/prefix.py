# Which leading tokens requests share.
#
# Law: arithmetic on numbers of nodes and tokens; no text. A prefix tree says which segments precede each
# request's own content; what a cache then finds is counted afterwards (sharing.py).
#
# Theory. A tree of `depth` levels has `roots` (system prompts; one, common to all, if not said otherwise) and
# `fan_out` children under every node (tenants, tools, documents). A request takes one path from a root, at
# each level the child of rank r with weight 1 / r^zipf. Every request carries the whole prefix of its path, P
# tokens in levels of equal size; one that is too short for it carries as many whole blocks as leave room for
# something of its own, as a cache works in blocks. P is given, or solved for, so that the *shared* tokens, first
# uses not counted, are the asked share of all input tokens:
#
#     sum over requests of min(P, room)  -  sum over used nodes of their tokens  =  share * all tokens
#
# A hit rate counts whole blocks only. Then each level ends where a block ends, so that what is shared is what is
# served; blocks begin with the request, so the tokens that a chat template puts before the prefix (`lead`) are
# part of the first one. A block more or less is a coarse step: of the requests, as many carry one more as
# make up the difference. The last token of a request is never served, and never asked for: it is its own.

"""Prefix trees as values: what precedes each request, for a wanted share, hit rate or number of tokens."""

from __future__ import annotations

import msgspec
import numpy as np

from loadshape.bounds import check_count, check_number
from loadshape.errors import RecipeError
from loadshape.stats import Floats, Integers

BLOCK_TOKENS = 16  # vLLM's default block on GPUs
MAX_PREFIX_TOKENS = 1 << 17
MAX_NODES = 1_000_000
TOLERANCE = 0.01  # of the asked share; a whole token a request is the step that is left
_GOALS = ("share", "hit_rate", "prefix_tokens")


class PrefixTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shared prefixes in a tree of `depth` levels, as many tokens as one of three goals asks for.

    `share` is the part of all input tokens that an earlier request had too, `hit_rate` the part that a cache in
    blocks of `block_tokens` and without limit serves, `prefix_tokens` the length of the prefix itself. `fan_out` is
    the number of children of a node, `roots` that of different first levels, `zipf` the exponent of the popularity
    of both: 0 is uniform.
    """

    share: float | None = None
    depth: int = 1
    fan_out: int = 4
    zipf: float = 1.0
    roots: int = 1
    hit_rate: float | None = None
    prefix_tokens: int | None = None
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        asked = [goal for goal in _GOALS if getattr(self, goal) is not None]
        if len(asked) != 1:
            found = " and ".join(asked) or "none"
            raise RecipeError(f"share: expected one of {', '.join(_GOALS)}, found {found}")
        remedy = "it is the part of input tokens that an earlier request had too, such as 0.6"
        if asked != ["prefix_tokens"]:
            check_number(asked[0], getattr(self, asked[0]), above=0, below=1, remedy=remedy)
        check_count("depth", self.depth, most=64, remedy="1 is one prefix common to all")
        if self.prefix_tokens is not None:
            remedy = "at least one for each level"
            check_count("prefix_tokens", self.prefix_tokens, least=self.depth, most=MAX_PREFIX_TOKENS, remedy=remedy)
        check_count("fan_out", self.fan_out, most=MAX_NODES, remedy="write the children of a node")
        check_number("zipf", self.zipf, least=0, most=10, remedy="0 is uniform popularity, 1 is usual")
        check_count("roots", self.roots, most=MAX_NODES, remedy="1 is a system prompt common to all")
        check_count("block_tokens", self.block_tokens, most=MAX_PREFIX_TOKENS, remedy="16 is usual")
        leaves = self.fan_out ** (self.depth - 1)
        check_count("fan_out ** (depth - 1)", leaves, most=MAX_NODES // self.roots, remedy="fewer leaves")

    @property
    def tenants(self) -> int:
        """The number of branches at the first level that has several: who has a prefix of their own."""
        return self.roots if self.roots > 1 else self.fan_out if self.depth > 1 else 1

    def draw_paths(self, rng: np.random.Generator, n: int, *, tenants: Integers | None = None) -> Integers:
        """Return the nodes that *n* requests pass, root first, as an array of n x depth node numbers.

        *tenants*, each below `tenants`, settle the first branch of every request; else it is drawn like the others.
        """
        first = 1 if self.roots == 1 else 0
        uniform = rng.random((n, self.depth - first))
        branch = np.zeros((n, self.depth), np.int64)
        branch[:, 1:] = self._choose(self.fan_out, uniform[:, 1 - first :])
        if first == 0:
            branch[:, 0] = self._choose(self.roots, uniform[:, 0])
        if tenants is not None:
            if self.tenants == 1 or tenants.max(initial=0) >= self.tenants:
                raise RecipeError(
                    f"prefixes: expected a branch for each of {tenants.max(initial=0) + 1} tenants, found "
                    f"{self.tenants}; set roots, or fan_out and depth"
                )
            branch[:, first] = tenants
        paths = branch.copy()
        for level in range(1, self.depth):  # children of node v are fan_out * v + roots and following
            paths[:, level] = self.fan_out * paths[:, level - 1] + self.roots + branch[:, level]
        return paths

    def find_tenants(self, paths: Integers) -> Integers:
        """Return which branch each of *paths* takes at the first level that has several, from 0."""
        if self.tenants == 1:
            return np.zeros(len(paths), np.int64)
        return paths[:, 0] if self.roots > 1 else paths[:, 1] - 1

    def fit_within(
        self, paths: Integers, tokens: Integers, *, spare: Integers | int, reused: int = 0, lead: int = 0
    ) -> Integers:
        """Return the prefix tokens of each level (n x depth) for requests of *tokens* tokens in all.

        At least *spare* tokens of each request are not for the prefix; of those, all requests together share
        *reused* anyway (for a hit rate: have served), and *lead* stand before the prefix. Raises RecipeError
        when the goal is out of reach.
        """
        room = np.maximum(tokens - spare, 0)
        blocks = (room + lead) // self.block_tokens
        in_blocks = np.maximum(blocks * self.block_tokens - lead, 0)
        if self.hit_rate is not None:
            carried = self._carry(blocks)
            totals = np.full(len(carried), tokens.sum())
            return self._fit_blocks(paths, blocks, carried, totals, reused=reused, lead=lead)
        if self.prefix_tokens is not None:
            best = self.prefix_tokens
        else:
            prefix = self._candidates()
            order = np.argsort(room, kind="stable")
            below = np.searchsorted(room[order], prefix)  # requests that are too short for the whole prefix
            carried = np.r_[0, np.cumsum(in_blocks[order])][below] + prefix * (len(room) - below)
            shared = carried - self._first_uses(prefix, paths) + reused
            best = self._solve(prefix, shared, np.full(len(prefix), tokens.sum()))
        return _divide(np.where(room >= best, best, in_blocks), self._bounds(np.array([best]))[0])

    def fit_before(self, paths: Integers, tokens: Integers, *, reused: int = 0, lead: int = 0) -> Integers:
        """Return the prefix tokens of each level (n x depth) to put before *tokens* tokens of each request's own.

        All requests together share *reused* of those anyway, and *lead* of them stand before the prefix. Raises
        RecipeError when the goal is out of reach.
        """
        n = len(tokens)
        if self.hit_rate is not None:
            blocks = np.full(n, MAX_PREFIX_TOKENS // self.block_tokens)
            carried = self._carry(blocks)
            totals = carried * self.block_tokens - lead * n + tokens.sum()
            return self._fit_blocks(paths, blocks, carried, totals, reused=reused, lead=lead)
        if self.prefix_tokens is not None:
            best = self.prefix_tokens
        else:
            prefix = self._candidates()
            shared = prefix * n - self._first_uses(prefix, paths) + reused
            best = self._solve(prefix, shared, prefix * n + tokens.sum())
        return _divide(np.full(n, best), self._bounds(np.array([best]))[0])

    def _choose(self, branches: int, uniform: Floats) -> Integers:
        weights = np.arange(1, branches + 1) ** -self.zipf
        upto = np.cumsum(weights) / weights.sum()
        return np.asarray(np.searchsorted(upto[:-1], uniform, side="right"))

    def _candidates(self) -> Integers:
        return np.arange(self.depth, MAX_PREFIX_TOKENS + 1)

    def _bounds(self, prefix: Integers) -> Integers:
        levels = np.arange(self.depth + 1, dtype=np.int64)
        return np.asarray(prefix[:, None] * levels // self.depth)

    def _first_uses(self, prefix: Integers, paths: Integers) -> Integers:
        used = np.array([len(np.unique(nodes)) for nodes in paths.T])
        return np.asarray(np.diff(self._bounds(prefix), axis=1) @ used)

    def _solve(self, prefix: Integers, shared: Integers, total: Integers) -> int:
        assert self.share is not None
        reached = shared / total
        rising = reached[: int(np.argmax(reached)) + 1]  # beyond, first uses cost more than is gained
        error = np.abs(rising - self.share)
        best = int(np.argmin(error))
        if error[best] > TOLERANCE:
            raise RecipeError(
                f"prefixes.share: expected a reachable part of the input tokens, found {self.share:g}; with this "
                f"depth, fan_out and number of requests the nearest is {reached[best]:.3f}: ask for that, or change "
                "one of those"
            )
        return int(prefix[best])

    def _carry(self, blocks: Integers) -> Integers:
        """Return what all requests carry, which have room for *blocks*, if the prefix is 0, 1, 2, ... blocks long."""
        most = min(int(blocks.max(initial=0)), MAX_PREFIX_TOKENS // self.block_tokens)
        longer = len(blocks) - np.cumsum(np.bincount(np.minimum(blocks, most), minlength=most + 1))
        return np.asarray(np.r_[0, np.cumsum(longer[:-1])])

    def _fit_blocks(
        self, paths: Integers, blocks: Integers, carried: Integers, totals: Integers, *, reused: int, lead: int
    ) -> Integers:
        """The levels for `hit_rate`; with k blocks of prefix all carry carried[k] of them, in totals[k] tokens."""
        served = (carried - self._first_uses(np.arange(len(carried)), paths)) * self.block_tokens + reused
        length, part = self._solve_blocks(served / totals)
        n = np.arange(1, len(paths) + 1)
        whole = (n * part).astype(np.int64) > ((n - 1) * part).astype(np.int64)  # evenly among the requests
        taken = np.minimum(blocks, np.where(whole, length, length - 1))
        bounds = np.maximum(self._bounds(np.array([length]))[0] * self.block_tokens - lead, 0)
        return _divide(np.maximum(taken * self.block_tokens - lead, 0), bounds)

    def _solve_blocks(self, rates: Floats) -> tuple[int, float]:
        """Return the length of the prefix in blocks, and which part of the requests carries all of it."""
        assert self.hit_rate is not None
        nearest = float(rates.max())
        if nearest < self.hit_rate:
            raise RecipeError(
                f"prefixes.hit_rate: expected a reachable one, found {self.hit_rate:g}; with blocks of "
                f"{self.block_tokens} tokens, this depth, fan_out and number of requests the highest is "
                f"{max(nearest, 0):.3f}: ask for that, or change one of those"
            )
        length = int(np.argmax(rates >= self.hit_rate))
        if length < self.depth:
            raise RecipeError(
                f"prefixes.block_tokens: expected whole blocks to fill each of the {self.depth} levels, found a prefix "
                f"of {length} blocks of {self.block_tokens} tokens; lower block_tokens or depth, or raise hit_rate"
            )
        low, high = rates[length - 1], rates[length]
        return length, float((self.hit_rate - low) / (high - low))


def _divide(carried: Integers, bounds: Integers) -> Integers:
    """Return how many of *carried* tokens lie in each level between *bounds*."""
    return np.asarray(np.clip(carried[:, None] - bounds[:-1], 0, np.diff(bounds)))

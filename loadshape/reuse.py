# What of its prompts a trace has said before: the truth about its prefixes, whatever a recipe asked for.
#
# Law: looking only, at what segments are equal or begin alike (piece.py), so a number is a lower bound; what a chat
# template adds is not in the trace and not counted. A prompt is cut into blocks of a declared size, the last one as
# short as it is, and a block is equal to another when everything up to its end is. Requests come one after another,
# in the order of their begin; each has its blocks looked up and then kept.
#
#     block hit rate    blocks that came before, of all: what an infinite cache finds, as Mooncake counts it
#     served share      tokens in whole blocks that came before, never the last token of a prompt: what a server
#                       with automatic prefix caching reports as cached tokens
#
# A cache of C blocks that forgets the least recently used one finds those whose stack distance, the number of
# different blocks since their last use and itself, is at most C (Mattson et al., "Evaluation techniques for storage
# hierarchies", IBM Systems Journal 9, 1970): one pass says it for every C. Along a prompt distances never
# fall, so what such a cache finds of it is a prefix.
#
# Blocks that exactly the same requests have come and go together: such a run is one use of a weight. The distance
# of a use at i whose last was at p is the weight of the uses between that are the first since p. These are the uses
# before i whose own last one is not after p, without those up to p; the count of pairs, smaller and earlier, is made
# by sorting the uses bit by bit of their last one: n log n, in arrays.

"""Reuse: hit rates of a trace's prompts in an infinite cache and in one of any size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadshape.blocks import order_arrivals
from loadshape.bounds import check_count
from loadshape.piece import Pieces
from loadshape.portrait import spell_requests
from loadshape.sharing import Blocks, measure_hits, rank_values
from loadshape.stats import Floats, Integers
from loadshape.trace import Trace

MAX_BLOCK_TOKENS = 1 << 20
MOST_PIECES = 4_000_000  # of all requests; beyond, a prefix cut for a short prompt is hardly ever the only one so cut


@dataclass(frozen=True, slots=True)
class Reuse:
    """What requests have in common, in blocks of `block_tokens`.

    `request_hits` is the part of its blocks that each request finds in an infinite cache, in the order of arrival;
    `distances` are the stack distances, in blocks, of the uses that are not a first one, sorted, and `weights` the
    blocks that have each.
    """

    block_tokens: int
    requests: int
    distinct_prompts: int
    input_tokens: int
    shared_tokens: int
    served_tokens: int
    longest_shared_tokens: int
    blocks: int
    distinct_blocks: int
    once_blocks: int
    request_hits: Floats
    distances: Integers
    weights: Integers

    @property
    def hit_rate(self) -> float:
        """The part of all blocks that an infinite cache finds."""
        return 1 - self.distinct_blocks / max(1, self.blocks)

    @property
    def shared_share(self) -> float:
        """The part of all tokens that an earlier request begins with, too."""
        return self.shared_tokens / max(1, self.input_tokens)

    @property
    def served_share(self) -> float:
        """The part of all tokens that a server serves from a cache without limit."""
        return self.served_tokens / max(1, self.input_tokens)

    def find_hit_rate(self, cache_blocks: float) -> float:
        """Return the part of all blocks that a cache of so many blocks finds, which forgets the least recently used."""
        found = int(np.searchsorted(self.distances, cache_blocks, "right"))
        return int(self.weights[:found].sum()) / max(1, self.blocks)

    def find_cache_blocks(self, part: float) -> int:
        """Return the smallest cache that finds *part* of what an infinite one does; 0 where that is nothing."""
        upto = np.cumsum(self.weights)
        if len(upto) == 0:
            return 0
        place = int(np.searchsorted(upto, np.ceil(part * upto[-1] - 1e-9)))
        return int(self.distances[min(place, len(upto) - 1)])

    def draw_curve(self, points: int = 48) -> list[tuple[int, float]]:
        """Return (blocks of a cache, its hit rate) at sizes that grow by a factor, up to what loses nothing."""
        if len(self.distances) == 0:
            return []
        ends = np.geomspace(max(1, self.distances[0]), self.distances[-1], points)
        sizes = np.unique(np.r_[np.ceil(ends).astype(np.int64), self.distances[-1]])
        upto = np.r_[0, np.cumsum(self.weights)]
        found = upto[np.searchsorted(self.distances, sizes, "right")]
        return list(zip(sizes.tolist(), (found / max(1, self.blocks)).tolist(), strict=True))


def measure_reuse(trace: Trace, block_tokens: int, order: Integers | None = None) -> Reuse:
    """Return the reuse of *trace* in blocks of *block_tokens*, its rows taken in *order*: by due time if not given."""
    check_count("block_tokens", block_tokens, most=MAX_BLOCK_TOKENS, remedy="16 is usual")
    if order is None:
        order = order_arrivals(trace)
    rows = trace.requests.select(["messages", "session"])
    if (np.diff(order) < 0).any():
        rows = rows.take(order)
    elements, sizes = spell_requests(rows, trace.segments, _split(rows, trace.segments))
    ends = _measure_ends(elements, sizes)
    totals = np.bincount(elements.row, sizes, minlength=len(order)).astype(np.int64)
    chains = elements.follow()
    first = _find_first(chains)
    shared = np.bincount(elements.row, sizes * ~first, minlength=len(order)).astype(np.int64)
    uses = np.bincount(chains)[chains]
    nodes = int(chains.max(initial=-1)) + 1
    last = np.full(len(order), nodes)  # of a request without any element
    last[elements.row] = chains  # the last one of each stays
    item = _Uses.of(elements, chains, uses, (ends - sizes) // block_tokens, ends // block_tokens)
    item = item.close(last, totals % block_tokens > 0, nodes)
    distances, weights = item.measure_distances()
    hit_blocks = np.bincount(item.row, item.blocks * ~item.is_first, minlength=len(order))
    blocks = -(-totals // block_tokens)
    return Reuse(
        block_tokens=block_tokens,
        requests=len(order),
        distinct_prompts=len(np.unique(last)),
        input_tokens=int(totals.sum()),
        shared_tokens=int(totals.sum() - sizes[first].sum()),
        served_tokens=int(measure_hits(shared, np.maximum(totals, 1), block_tokens).sum()),
        longest_shared_tokens=int(shared.max(initial=0)),
        blocks=int(blocks.sum()),
        distinct_blocks=int(item.blocks[item.is_first].sum()),
        once_blocks=int(item.blocks[item.is_only].sum()),
        request_hits=hit_blocks / np.maximum(blocks, 1),
        distances=distances,
        weights=weights,
    )


@dataclass(frozen=True, slots=True)
class _Uses:
    """Uses of runs of blocks, in order: by which request, of which run, how many blocks that is."""

    row: Integers
    run: Integers
    blocks: Integers

    @classmethod
    def of(cls, elements: Blocks, chains: Integers, uses: Integers, begins: Integers, ends: Integers) -> _Uses:
        """Return the whole blocks of requests; a run begins where a request does, or where some go another way."""
        starts = np.flatnonzero((elements.place == 0) | (uses != np.r_[0, uses[:-1]]))
        stops = np.r_[starts[1:], len(chains)] - 1 if len(starts) else starts
        return cls(elements.row[starts], chains[starts], ends[stops] - begins[starts])

    def close(self, last: Integers, is_short: NDArray[np.bool_], nodes: int) -> _Uses:
        """Add the last blocks of requests where they are short: equal where all of a request is. Drop empty runs."""
        rows = np.flatnonzero(is_short)
        row = np.r_[self.row, rows]
        run, blocks = np.r_[self.run, last[rows] + nodes + 1], np.r_[self.blocks, np.ones_like(rows)]
        order = np.argsort(row, kind="stable")
        order = order[blocks[order] > 0]
        return _Uses(row[order], rank_values(run[order])[1], blocks[order])

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """Whether a use is the first of its run."""
        return _find_first(self.run)

    @property
    def is_only(self) -> NDArray[np.bool_]:
        """Whether a run has no other use."""
        return np.asarray(np.bincount(self.run)[self.run] == 1)

    def measure_distances(self) -> tuple[Integers, Integers]:
        """Return the stack distances of all but first uses, sorted, and the blocks that have each."""
        before = _find_last_use(self.run)
        again = np.flatnonzero(before >= 0)
        upto = np.r_[0, np.cumsum(self.blocks)]
        of_first = np.r_[0, np.cumsum(np.where(before < 0, self.blocks, 0))]
        weights, since = self.blocks[again], before[again]
        earlier = of_first[again] + sum_smaller_before(rank_values(since)[1], weights)
        distances = earlier - upto[since + 1] + weights
        order = np.argsort(distances, kind="stable")
        return distances[order], weights[order]


def sum_smaller_before(ranks: Integers, weights: Integers) -> Integers:
    """Return for each place the weights of the places before it that have a smaller rank; *ranks* are 0 to n - 1."""
    n = len(ranks)
    sums, at = np.zeros(n, np.int64), np.arange(n)
    rank, weight = ranks.copy(), weights.copy()
    for bit in reversed(range(max(0, n - 1).bit_length())):
        # Places of equal higher bits stand together, in their order; what has 0 here is smaller than what has 1.
        is_low = (rank >> bit) & 1 == 0
        group = np.arange(n) >> (bit + 1) << (bit + 1)
        lows = np.r_[0, np.cumsum(is_low)]
        weights_low = np.r_[0, np.cumsum(np.where(is_low, weight, 0))]
        low_before = lows[:-1] - lows[group]
        sums[at[~is_low]] += (weights_low[:-1] - weights_low[group])[~is_low]
        place = np.where(is_low, group + low_before, np.arange(n) - low_before + (1 << bit))
        moved = np.empty_like(place)
        moved[place] = np.arange(n)
        at, rank, weight = at[moved], rank[moved], weight[moved]
    return sums


def _split(requests: pa.Table, segments: pa.Table) -> Pieces | None:
    """Return the pieces of segments; None for whole ones, where these are too many to look at by pieces."""
    named = pc.list_flatten(pc.struct_field(pc.list_flatten(requests["messages"]), "segments")).to_numpy()
    if len(named) > MOST_PIECES:
        return None
    pieces = Pieces.split(segments)
    return pieces if pieces.counts[named].sum() <= MOST_PIECES else None


def _measure_ends(elements: Blocks, sizes: Integers) -> Integers:
    """Return for each element the tokens of its request up to its end."""
    upto = np.cumsum(sizes)
    before = np.r_[0, upto][np.cumsum(elements.counts) - elements.counts]
    return np.asarray(upto - before[elements.row])


def _find_first(values: Integers) -> NDArray[np.bool_]:
    """Return whether each value (dense, from 0) is the first of its kind."""
    some = np.empty(values.max(initial=-1) + 1, np.int64)
    some[values[::-1]] = np.arange(len(values))[::-1]
    return np.asarray(some[values] == np.arange(len(values)))


def _find_last_use(values: Integers) -> Integers:
    """Return the place of the value before that equals it, -1 where there is none."""
    order = np.argsort(values, kind="stable")
    before = np.full(len(values), -1)
    same = values[order][1:] == values[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before

# What the requests of a trace say: segments, and who uses which.
#
# Law: text and numbers of segments; no times, no lengths of answers, no Arrow. Content comes in two ways.
#
#   quoted     a request is a prompt of the fixture as it is. Prompts are taken in a random order, each
#              once before any comes again; a second use is a prefix shared with the first, unless a tree
#              says what is to be shared: then every prompt has a head of its own before it.
#   composed   a request is text of exactly the wanted number of tokens, made of passages of the fixture
#              and different from all others from its head on (passage.py).
#
# Either way a shared prefix may stand before it: the nodes of a path through a tree (prefix.py), each a
# composed text, whole, or cut at a block where the request is too short. What is shared follows from
# identities and not from comparing texts: the node of a prefix, the prompt that is quoted, the words
# of a head.

"""Content: the segments that requests are made of, quoted from a fixture or composed to a length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadshape.passage import Passages
from loadshape.prefix import PrefixTree, measure_shared, rank_values
from loadshape.randomness import draw_order, open_stream
from loadshape.stats import Integers
from loadshape.tokenizer import Tokenizer

NONE = -1


@dataclass(frozen=True, slots=True)
class Part:
    """One part of every request: the next counts[i] entries of `segments`, together tokens[i].

    `identities` and `sizes` (n x k) say what it is for the purpose of sharing; see `measure_shared`.
    """

    segments: Integers
    counts: Integers
    tokens: Integers
    identities: Integers
    sizes: Integers


@dataclass(frozen=True, slots=True)
class Content:
    """What n requests say: the distinct `texts` with their `text_tokens`, and each request's prefix and own part."""

    texts: list[str]
    text_tokens: Integers
    prefix: Part
    own: Part
    shared_tokens: Integers

    @property
    def input_tokens(self) -> Integers:
        """Tokens of each request, prefix and own."""
        return self.prefix.tokens + self.own.tokens

    def join_texts(self, part: Part, rows: Sequence[int]) -> list[str]:
        """Return the text of a *part* for some requests."""
        ends = np.cumsum(part.counts)
        spans = [part.segments[ends[row] - part.counts[row] : ends[row]].tolist() for row in rows]
        return ["".join(self.texts[segment] for segment in span) for span in spans]


@dataclass(frozen=True, slots=True)
class Author:
    """Writes content out of *prompts*, counted by *tokenizer*, in the random streams of *seed*."""

    prompts: Sequence[str]
    tokenizer: Tokenizer
    seed: int

    def choose(self, n: int) -> Integers:
        """Return which prompt each of *n* requests takes: a random order, over and over."""
        order = draw_order(open_stream(self.seed, "content"), len(self.prompts))
        return order[np.arange(n) % len(order)]

    def quote(self, chosen: Integers, tree: PrefixTree | None = None) -> Content:
        """Return content of whole prompts; with a *tree* each has shared prefixes and a head of its own before it."""
        n, numbers = len(chosen), dict[str, int]()
        which = np.array([numbers.setdefault(self.prompts[row], len(numbers)) for row in chosen.tolist()], np.int64)
        if tree is None:
            text_tokens = np.array(self.tokenizer.count(list(numbers)), np.int64)
            tokens = text_tokens[which]
            own = Part(which, np.ones(n, np.int64), tokens, which[:, None], tokens[:, None])
            return _join(own, list(numbers), text_tokens)
        passages = self._cut_passages()
        texts = [f" {prompt}" for prompt in numbers]  # after a head: the seam that adds up, as between passages
        text_tokens = np.r_[self.tokenizer.count(texts), passages.tokens]
        head = np.full(n, passages.count_head(n))
        opening = passages.compose(head, open_stream(self.seed, "content"))
        segments = np.column_stack([len(texts) + opening.passages.reshape(n, -1), which])
        own = Part(segments.ravel(), head + 1, head + text_tokens[which], opening.heads, np.ones_like(opening.heads))
        paths = self._draw_paths(tree, n)
        levels = tree.fit_before(paths, own.tokens, reused=_count_reused(paths, opening.heads))
        return self._prepend(paths, levels, passages, own, [*texts, *passages.texts], text_tokens)

    def compose(self, tokens: Integers, tree: PrefixTree | None = None) -> Content:
        """Return content of exactly so many *tokens* each, shared prefixes included if there is a *tree*."""
        passages, n = self._cut_passages(), len(tokens)
        paths = levels = np.empty((n, 0), np.int64)
        if tree is not None:
            paths = self._draw_paths(tree, n)
            heads = passages.number_heads(n)
            levels = tree.fit_within(paths, tokens, spare=heads.shape[1], reused=_count_reused(paths, heads))
        own_tokens = tokens - levels.sum(axis=1)
        text = passages.compose(own_tokens, open_stream(self.seed, "content"))
        own = Part(text.passages, text.counts, own_tokens, text.heads, (text.heads != NONE).astype(np.int64))
        return self._prepend(paths, levels, passages, own, list(passages.texts), passages.tokens)

    def _draw_paths(self, tree: PrefixTree, n: int) -> Integers:
        return tree.draw_paths(open_stream(self.seed, "prefix"), n)

    def _cut_passages(self) -> Passages:
        return Passages.of(self.prompts, self.tokenizer, open_stream(self.seed, "passages"))

    def _prepend(
        self, paths: Integers, levels: Integers, passages: Passages, own: Part, texts: list[str], tokens: Integers
    ) -> Content:
        """Put the nodes of *paths*, levels[i, k] tokens of each, before the part *own* that is made of *texts*."""
        present = levels > 0
        taken = levels[present]
        nodes, node = rank_values(paths[present])
        whole = np.zeros(len(nodes), np.int64)
        np.maximum.at(whole, node, taken)
        bodies = passages.write_texts(whole, open_stream(self.seed, "prefix.text"))
        step = taken.max(initial=0) + 1
        pieces, piece = rank_values(node * step + taken)
        of, sizes = pieces // step, pieces % step
        pairs = zip(of.tolist(), sizes.tolist(), strict=True)
        cut = [bodies[v] if size == whole[v] else self.tokenizer.cut(bodies[v], size) for v, size in pairs]
        prefix = Part(len(texts) + piece, present.sum(axis=1), levels.sum(axis=1), paths, levels)
        return _join(own, texts + cut, np.r_[tokens, sizes], prefix)


def _count_reused(paths: Integers, heads: Integers) -> int:
    """Return how many tokens of their heads requests of the same path share: with few words, some begin alike."""
    sizes = np.column_stack([np.zeros_like(paths), np.ones_like(heads)])
    return int(measure_shared(np.column_stack([paths, heads]), sizes).sum())


def _join(own: Part, texts: list[str], tokens: Integers, prefix: Part | None = None) -> Content:
    """Return the content of both parts, with the texts that are used, each once, in the order of their numbers."""
    if prefix is None:
        none = np.empty((len(own.counts), 0), np.int64)
        prefix = Part(none.ravel(), np.zeros_like(own.counts), np.zeros_like(own.tokens), none, none)
    used, places = rank_values(np.r_[own.segments, prefix.segments])
    first: dict[str, int] = {}
    place = np.array([first.setdefault(texts[number], len(first)) for number in used.tolist()], np.int64)
    kept = np.unique(place, return_index=True)[1]
    own_segments, prefix_segments = np.split(place[places], [len(own.segments)])
    return Content(
        texts=list(first),
        text_tokens=tokens[used[kept]],
        prefix=replace(prefix, segments=prefix_segments),
        own=replace(own, segments=own_segments),
        shared_tokens=measure_shared(
            np.column_stack([prefix.identities, own.identities]), np.column_stack([prefix.sizes, own.sizes])
        ),
    )

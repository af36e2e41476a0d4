# What the requests of a trace say: segments, and who uses which.
#
# Law: text and numbers of segments; no times, no lengths of answers, no Arrow. Content comes in three ways.
#
#   quoted     a request is a prompt of the fixture as it is. Prompts are taken in a random order, each
#              once before any comes again; a second use is a prefix shared with the first, unless a tree
#              says what is to be shared: then every prompt has a head of its own before it.
#   composed   a request is text of exactly the wanted number of tokens, made of passages of the fixture
#              and different from all others from its head on (passage.py).
#   woven      a request is the blocks whose hashes were recorded: equal hashes are equal text, different ones
#              differ from their first tokens on. No word of the recorded traffic is needed.
#
# Before the first two a shared prefix may stand: the nodes of a path through a tree (prefix.py), each a
# composed text, whole, or cut at a block where the request is too short; and documents (retrieval.py). What
# is shared follows from identities and not from comparing texts (sharing.py). Lengths that are asked for are
# those that the server counts: what the envelope adds is taken off before a text is made.

"""Content: the segments that requests are made of, quoted, composed to a length, or woven from block hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from loadshape.envelope import NO_ENVELOPE, Envelope
from loadshape.errors import RecipeError
from loadshape.passage import Passages, spread
from loadshape.prefix import PrefixTree
from loadshape.randomness import draw_order, open_stream
from loadshape.retrieval import Retrieval
from loadshape.sharing import Blocks, measure_shared, rank_values
from loadshape.stats import Integers
from loadshape.tokenizer import LocalTokenizer, Tokenizer

NONE = -1
_REFITS = 4  # of a prefix before documents
Element = tuple[Integers, Integers]  # n x k identities and as many sizes, see `measure_shared`


@dataclass(frozen=True, slots=True)
class Part:
    """One part of every request: the next counts[i] entries of `segments`, together tokens[i]."""

    segments: Integers
    counts: Integers
    tokens: Integers

    @classmethod
    def none(cls, n: int) -> Part:
        """Return the part of *n* requests that do not have it."""
        return cls(np.empty(0, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))

    def shift(self, by: int) -> Part:
        """Return the part with larger numbers of segments."""
        return replace(self, segments=self.segments + by)

    def follow(self, other: Part) -> Part:
        """Return the part that is this one and *other* behind it."""
        counts = np.column_stack([self.counts, other.counts])
        starts = np.column_stack([np.cumsum(self.counts), len(self.segments) + np.cumsum(other.counts)]) - counts
        segments = np.r_[self.segments, other.segments][spread(starts.ravel(), counts.ravel())]
        return Part(segments, counts.sum(axis=1), self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class Content:
    """What n requests say: the distinct `texts` with their `text_tokens`, and each request's prefix and own part.

    `template_tokens` is what the envelope adds to each, `tenants` the branch of the prefix tree that each took.
    """

    texts: list[str]
    text_tokens: Integers
    prefix: Part
    own: Part
    shared_tokens: Integers
    template_tokens: Integers
    tenants: Integers | None = None

    @property
    def input_tokens(self) -> Integers:
        """Tokens of each request: prefix, own, and what the envelope adds."""
        return self.prefix.tokens + self.own.tokens + self.template_tokens

    def join_texts(self, part: Part, rows: Sequence[int]) -> list[str]:
        """Return the text of a *part* for some requests."""
        starts = np.cumsum(part.counts) - part.counts
        segments = part.segments[spread(starts[rows], part.counts[rows])]
        return _join_texts(segments, part.counts[rows], self.texts)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A part with the texts that its segments name, and the elements that tell what of it is shared."""

    part: Part
    texts: Sequence[str]
    tokens: Integers
    elements: Sequence[Element] = ()


@dataclass(frozen=True, slots=True)
class Author:
    """Writes content out of *prompts*, counted by *tokenizer*, in the random streams of *seed*.

    Without prompts it takes neutral words. *envelope* is what the server will put around the texts.
    """

    prompts: Sequence[str]
    tokenizer: Tokenizer
    seed: int
    envelope: Envelope = NO_ENVELOPE
    _cut: list[Passages] = field(default_factory=list, init=False, repr=False, compare=False)  # once for all classes

    def choose(self, n: int) -> Integers:
        """Return which prompt each of *n* requests takes: a random order, over and over."""
        order = draw_order(open_stream(self.seed, "content"), len(self.prompts))
        return order[np.arange(n) % len(order)]

    def quote(self, chosen: Integers, tree: PrefixTree | None = None, *, tenants: Integers | None = None) -> Content:
        """Return content of whole prompts; with a *tree* each has shared prefixes and a head of its own before it."""
        n, numbers = len(chosen), dict[str, int]()
        which = np.array([numbers.setdefault(self.prompts[row], len(numbers)) for row in chosen.tolist()], np.int64)
        if tree is None:
            text_tokens = np.array(self.tokenizer.count(list(numbers)), np.int64)
            tokens = text_tokens[which]
            part = Part(which, np.ones(n, np.int64), tokens)
            return self._finish(_Draft(part, list(numbers), text_tokens, [(which[:, None], tokens[:, None])]))
        passages = self._cut_passages()
        texts = [f" {prompt}" for prompt in numbers]  # after a head: the seam that adds up, as between passages
        text_tokens = np.r_[self.tokenizer.count(texts), passages.tokens]
        head = np.full(n, passages.count_head(n))
        opening = passages.compose(head, open_stream(self.seed, "content"))
        segments = np.column_stack([len(texts) + opening.passages.reshape(n, -1), which])
        part = Part(segments.ravel(), head + 1, head + text_tokens[which])
        own = _Draft(part, [*texts, *passages.texts], text_tokens, [_number_heads(opening.heads)])
        paths = tree.draw_paths(open_stream(self.seed, "prefix"), n, tenants=tenants)
        lead, between, trail = self.envelope.surround(prefixed=True)
        levels = tree.fit_before(
            paths,
            part.tokens + lead + between + trail,
            reused=self._count_reused(tree, paths, np.zeros_like(paths), own.elements),
            lead=lead,
        )
        return self._finish(own, self._write_prefix(paths, levels, passages), tree.find_tenants(paths))

    def compose(
        self,
        tokens: Integers,
        tree: PrefixTree | None = None,
        *,
        retrieval: Retrieval | None = None,
        tenants: Integers | None = None,
    ) -> Content:
        """Return content of exactly so many *tokens* each, everything included.

        Shared prefixes come first if there is a *tree*, then the documents of a *retrieval*, then text of its own.
        A length that leaves no token for the last, beside what the envelope adds, becomes the least that does.
        *tenants* settle which branch of the tree each request takes.
        """
        passages, prefix, branch = self._cut_passages(), None, None
        documents = self._quote_documents(retrieval, tokens, tree, passages)
        if tree is not None:
            paths, levels = self._fit_prefix(tree, tokens, documents, passages, tenants)
            branch = tree.find_tenants(paths)
            if retrieval is not None:  # documents are the same whichever prefix there was no room for
                paths = np.where(levels > 0, paths, NONE)
            prefix = self._write_prefix(paths, levels, passages)
        others = documents.part.tokens if prefix is None else documents.part.tokens + prefix.part.tokens
        own_tokens = tokens - others - self._count_template(None if prefix is None else prefix.part)
        if not self.envelope.is_empty:
            own_tokens = np.maximum(own_tokens, 1)
        text = passages.compose(own_tokens, open_stream(self.seed, "content"))
        part = Part(text.passages, text.counts, own_tokens)
        own = _Draft(part, passages.texts, passages.tokens, [_number_heads(text.heads)])
        return self._finish(own if retrieval is None else _append(documents, own), prefix, branch)

    def weave(self, hashes: Integers, counts: Integers, tokens: Integers, *, block_tokens: int) -> Content:
        """Return content with the sharing of recorded block hashes: request i is the next counts[i] of *hashes*.

        It has tokens[i] tokens in all. Each block has *block_tokens* but the last, which has what is left; tokens
        beyond the hashed blocks are text of the request's own. A block of equal hash is equal text, as far as both
        go; of different hashes, different from its first tokens on. Where the end of a chat template would fall into
        a whole block that others share, the request is longer by that. Raises RecipeError when a request has
        more blocks than tokens for them, or blocks are too small to tell them apart.
        """
        blocks, passages = Blocks.of(hashes, counts), self._cut_passages()
        _check_blocks(counts, tokens, block_tokens)
        lead, trail = self.envelope.measure(("user",))
        begins, ends = blocks.place * block_tokens - lead, (blocks.place + 1) * block_tokens - lead
        whole = np.where(blocks.count_uses() > 1, ends, 0) * (ends + lead <= tokens[blocks.row])
        text_tokens = np.maximum(tokens - lead - trail, 1)
        np.maximum.at(text_tokens, blocks.row, whole)
        sizes = np.maximum(np.minimum(ends, text_tokens[blocks.row]) - np.maximum(begins, 0), 0)
        rest = text_tokens - _sum_rows(blocks.row, sizes, len(counts))
        shared = blocks.measure_shared(sizes)
        again = np.arange(len(counts)) > 0
        shared = shared + again * lead + np.where(again & (shared == text_tokens), trail, 0)
        return replace(self._finish(self._weave_blocks(blocks, sizes, rest, passages)), shared_tokens=shared)

    def encode(self, content: Content) -> list[list[int]]:
        """Return the token ids of each text of *content*, for prompts that are ids: as many as `text_tokens` says.

        Raises RecipeError when the tokenizer has no vocabulary, or a text has a special token in it.
        """
        if not isinstance(self.tokenizer, LocalTokenizer):
            raise RecipeError("token_ids: expected a tokenizer with a vocabulary, found an estimate; name a folder")
        return self.tokenizer.encode(content.texts)

    def list_slot_words(self) -> tuple[str, ...]:
        """Return 16 texts of one token each, one for every hexadecimal digit of a run, for the isolation slot."""
        return self._cut_passages().list_slot_words(self.tokenizer)

    def _cut_passages(self) -> Passages:
        if not self._cut:
            stream = open_stream(self.seed, "passages")
            self._cut.append(Passages.of(self.prompts, self.tokenizer, stream, self.envelope))
        return self._cut[0]

    def _count_template(self, prefix: Part | None) -> Integers | int:
        alone = sum(self.envelope.surround(prefixed=False))
        if prefix is None:
            return alone
        return np.where(prefix.counts > 0, sum(self.envelope.surround(prefixed=True)), alone)

    def _count_reused(self, tree: PrefixTree, paths: Integers, levels: Integers, elements: Sequence[Element]) -> int:
        """Return how many tokens around a prefix of *levels* all requests share: with few words, some begin alike."""
        lead, between, _ = self.envelope.surround(prefixed=True)
        ahead = _fill(len(paths), lead)
        behind = [*_fill(len(paths), between), *elements]
        if tree.hit_rate is not None and not levels.any():
            ahead = []  # blocks will end where the prefix does
        step = tree.block_tokens if tree.hit_rate is not None else 1
        whole = _measure([*ahead, (paths, levels), *behind]) // step
        alone = _measure([*(ahead if step > 1 else []), (paths, levels)]) // step if levels.any() else 0
        return int((whole - alone).sum()) * step

    def _fit_prefix(
        self, tree: PrefixTree, tokens: Integers, documents: _Draft, passages: Passages, tenants: Integers | None
    ) -> tuple[Integers, Integers]:
        """Return the paths of requests of *tokens* tokens in all, and the prefix tokens of each level."""
        n = len(tokens)
        paths = tree.draw_paths(open_stream(self.seed, "prefix"), n, tenants=tenants)
        heads = passages.number_heads(n)
        lead, between, trail = self.envelope.surround(prefixed=True)
        elements = [*documents.elements, (heads, np.ones_like(heads))]
        spare = documents.part.tokens + heads.shape[1] + lead + between + trail
        levels = np.zeros_like(paths)
        for _ in range(_REFITS if documents.elements else 1):  # what documents share depends on the prefix before them
            reused = self._count_reused(tree, paths, levels, elements)
            levels = tree.fit_within(paths, tokens, spare=spare, reused=reused, lead=lead)
        return paths, levels

    def _write_prefix(self, paths: Integers, levels: Integers, passages: Passages) -> _Draft:
        """Return the part that is the nodes of *paths*, levels[i, k] tokens of each."""
        present = levels > 0
        taken = levels[present]
        nodes, node = rank_values(paths[present])
        whole = np.zeros(len(nodes), np.int64)
        np.maximum.at(whole, node, taken)
        body = passages.compose(whole, open_stream(self.seed, "prefix.text"))
        step = taken.max(initial=0) + 1
        pieces, piece = rank_values(node * step + taken)
        of, sizes = pieces // step, pieces % step
        segments, counts, cuts = passages.cut(body, of, sizes, self.tokenizer)
        written = _join_texts(segments, counts, [*passages.texts, *cuts])
        return _Draft(Part(piece, present.sum(axis=1), levels.sum(axis=1)), written, sizes, [(paths, levels)])

    def _quote_documents(
        self, retrieval: Retrieval | None, tokens: Integers, tree: PrefixTree | None, passages: Passages
    ) -> _Draft:
        """Return the part that is the documents of a *retrieval*, as many as leave room for a head."""
        if retrieval is None:
            return _Draft(Part.none(len(tokens)), [], np.empty(0, np.int64))
        documents = retrieval.draw_documents(open_stream(self.seed, "documents"), len(tokens))
        around = sum(self.envelope.surround(prefixed=tree is not None))
        levels = retrieval.fit(tokens, spare=around + passages.count_head(len(tokens)))
        present = levels > 0
        used, which = rank_values(documents[present])
        size = np.full(retrieval.corpus, retrieval.document_tokens)  # of all, so that each says the same in any trace
        texts = passages.write_texts(size, open_stream(self.seed, "documents.text"))
        part = Part(which, present.sum(axis=1), levels.sum(axis=1))
        return _Draft(part, [texts[number] for number in used.tolist()], size[used], [(documents, levels)])

    def _weave_blocks(self, blocks: Blocks, sizes: Integers, rest: Integers, passages: Passages) -> _Draft:
        """Return the part of *blocks* with their *sizes*, and after them *rest* tokens that nobody shares."""
        whole = np.zeros(blocks.distinct, np.int64)
        np.maximum.at(whole, blocks.number, sizes)
        open_rows = np.flatnonzero(rest)
        head = passages.count_head(len(whole) + len(open_rows))
        if 0 < whole.max(initial=0) < head:
            raise RecipeError(f"block_tokens: expected at least {head}, to tell {len(whole)} blocks apart; found fewer")
        text = passages.compose(np.r_[whole, rest[open_rows]], open_stream(self.seed, "content"))
        row = np.r_[blocks.row, open_rows]
        order = np.argsort(row, kind="stable")  # the rest of a request behind its blocks
        cell = np.r_[blocks.number, len(whole) + np.arange(len(open_rows))][order]
        row, size = row[order], np.r_[sizes, rest[open_rows]][order]
        segments, counts, cuts = passages.cut(text, cell, size, self.tokenizer)
        part = Part(segments, _sum_rows(row, counts, len(rest)), _sum_rows(row, size, len(rest)))
        tokens = np.r_[passages.tokens, np.array(self.tokenizer.count(cuts), np.int64)]
        return _Draft(part, [*passages.texts, *cuts], tokens)

    def _finish(self, own: _Draft, prefix: _Draft | None = None, tenants: Integers | None = None) -> Content:
        """Return the content of both parts, with the texts that are used, each once, in the order of their numbers."""
        n = len(own.part.counts)
        before = prefix or _Draft(Part.none(n), [], np.empty(0, np.int64))
        there = before.part.counts > 0
        lead, between, trail = self.envelope.surround(prefixed=prefix is not None)
        gap = _fill(n, between)
        elements = [
            *((there[:, None].astype(np.int64), sizes) for _, sizes in _fill(n, lead)),
            *before.elements,
            *((identities, sizes * there[:, None]) for identities, sizes in gap),
            *own.elements,
            *_fill(n, trail),
        ]
        texts, tokens = [*own.texts, *before.texts], np.r_[own.tokens, before.tokens]
        used, places = rank_values(np.r_[own.part.segments, before.part.segments + len(own.texts)])
        first: dict[str, int] = {}
        place = np.array([first.setdefault(texts[number], len(first)) for number in used.tolist()], np.int64)
        kept = np.unique(place, return_index=True)[1]
        own_segments, prefix_segments = np.split(place[places], [len(own.part.segments)])
        return Content(
            texts=list(first),
            text_tokens=tokens[used[kept]],
            prefix=replace(before.part, segments=prefix_segments),
            own=replace(own.part, segments=own_segments),
            shared_tokens=_measure(elements) if elements else np.zeros(n, np.int64),
            template_tokens=self._count_template(None if prefix is None else prefix.part) + np.zeros(n, np.int64),
            tenants=tenants,
        )


def _check_blocks(counts: Integers, tokens: Integers, block_tokens: int) -> None:
    if len(counts) != len(tokens):
        raise RecipeError(f"tokens: expected a number for each of {len(counts)} requests, found {len(tokens)}")
    beyond = np.flatnonzero(counts > -(-tokens // block_tokens))
    if len(beyond):
        row = int(beyond[0])
        raise RecipeError(
            f"hashes: expected at most one for each {block_tokens} tokens, found {counts[row]} for the {tokens[row]} "
            f"tokens of request {row}; check block_tokens"
        )


def _append(first: _Draft, second: _Draft) -> _Draft:
    """Return the part that is *first* and *second* behind it."""
    return _Draft(
        part=first.part.shift(len(second.texts)).follow(second.part),
        texts=[*second.texts, *first.texts],
        tokens=np.r_[second.tokens, first.tokens],
        elements=[*first.elements, *second.elements],
    )


def _measure(elements: Sequence[Element]) -> Integers:
    identities, sizes = zip(*elements, strict=True)
    return measure_shared(np.column_stack(identities), np.column_stack(sizes))


def _fill(n: int, tokens: int) -> list[Element]:
    """Return the element that all requests have in common, or none where it has no tokens."""
    return [(np.zeros((n, 1), np.int64), np.full((n, 1), tokens))] if tokens else []


def _number_heads(heads: Integers) -> Element:
    return heads, (heads != NONE).astype(np.int64)


def _sum_rows(row: Integers, values: Integers, n: int) -> Integers:
    return np.bincount(row, values, minlength=n).astype(np.int64)


def _join_texts(segments: Integers, counts: Integers, texts: Sequence[str]) -> list[str]:
    """Return one text for each of *counts*: that of the next counts[i] of *segments*, joined."""
    ends = np.cumsum(np.r_[0, counts]).tolist()
    pieces = [texts[segment] for segment in segments.tolist()]
    return ["".join(pieces[begin:end]) for begin, end in pairwise(ends)]

# Text of any wanted number of tokens, without counting tokens.
#
# Law: a passage is a piece of the fixture's own prompts whose number of tokens is known and adds up. Text
# of n tokens is then a sum of passages, as n is a sum of powers of two: 700 = 512 + 128 + 32 + 16 + 8 + 4.
# A million prompts need a few hundred passages, no tokenizing each, and are stored by reference.
#
# Counts of tokens do not add up in general: a byte-pair vocabulary may merge across a seam. They do
# where its pre-tokenizer splits, and practically all split before a blank with a letter behind it; so
# every passage begins with " word". That is not believed but tried: a passage is kept if four in a row
# count four times as much (four, so that an estimate by bytes cannot hide a remainder). What is left
# over is measured on finished prompts and stands in the manifest (shape.py).
#
# Every text begins with a head of its own: its number, written with passages of one token for digits, the
# lowest first. Two texts with different numbers differ within the head, mostly at its first token, so
# that a prefix cache has nothing to find in what is not meant to be shared.

"""Passages: pieces of fixture text with token counts that add up, and texts composed of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadshape.errors import RecipeError
from loadshape.randomness import draw_order
from loadshape.stats import Integers
from loadshape.tokenizer import Tokenizer

SIZES = tuple(1 << bit for bit in range(9, -1, -1))  # 512 to 1
VARIANTS = 32  # different passages of each size
DIGITS = 1024  # different passages of one token, at most
_WORDS = 50_000  # words of the fixture to look at
_COMMON = (" the", " and", " for", " you", " are", " not", " but", " can")  # where a fixture is very small
_SEAMS = 4


@dataclass(frozen=True, slots=True)
class Composition:
    """Texts as passages: row i has the next counts[i] entries of `passages`; `heads` (n x h) has -1 for none."""

    passages: Integers
    counts: Integers
    heads: Integers


@dataclass(frozen=True, slots=True)
class Passages:
    """Pieces of text: `texts` with their `tokens`, those of SIZES[k] from number starts[k] to starts[k + 1]."""

    texts: tuple[str, ...]
    tokens: Integers
    starts: Integers

    @classmethod
    def of(cls, prompts: Sequence[str], tokenizer: Tokenizer, rng: np.random.Generator) -> Passages:
        """Cut passages of every size out of *prompts*, which are joined in a random order."""
        words = _list_words(prompts, rng)
        digits = _find_digits(words, tokenizer)
        by_size = {1: digits}
        for size in reversed(SIZES[:-1]):  # a size that no text fills is made of two of half the size
            halves = by_size[size // 2]
            doubled = [one + other for one, other in zip(halves, halves[1:] + halves[:1], strict=True)]
            by_size[size] = _find_size(words, size, tokenizer, rng) or doubled[:VARIANTS]
        texts = [by_size[size] for size in SIZES]
        lengths = [len(variants) for variants in texts]
        return cls(
            texts=tuple(text for variants in texts for text in variants),
            tokens=np.repeat(SIZES, lengths),
            starts=np.cumsum([0, *lengths]),
        )

    def count_head(self, n: int) -> int:
        """Return how many tokens the heads of *n* different texts take."""
        base, tokens = self._variants[-1], 1
        while base**tokens < n:
            tokens += 1
        return tokens

    def number_heads(self, n: int) -> Integers:
        """Return the digits of the heads of *n* different texts (n x count_head(n)), the lowest first."""
        base = self._variants[-1]
        return np.asarray(np.arange(n)[:, None] // base ** np.arange(self.count_head(n)) % base)

    def compose(self, tokens: Integers, rng: np.random.Generator) -> Composition:
        """Return one text for each of *tokens*, exactly so long and with a head of its own.

        A text that is shorter than a head has as much of it as fits, and then may not be the only one.
        """
        head = self.count_head(len(tokens))
        digits = self.number_heads(len(tokens))
        is_head = np.arange(head) < tokens[:, None]
        rest = np.maximum(tokens - head, 0)
        pieces = np.column_stack([rest // SIZES[0], *(rest // size % 2 for size in SIZES[1:])])
        first = (rng.random(pieces.shape) * self._variants).astype(np.int64)
        passages = _repeat(
            repeats=np.column_stack([is_head, pieces]),
            starts=np.r_[np.full(head, self.starts[-2]), self.starts[:-1]],
            first=np.column_stack([digits, first]),
            variants=np.r_[np.full(head, self._variants[-1]), self._variants],
        )
        counts = is_head.sum(axis=1) + pieces.sum(axis=1)
        return Composition(passages, counts, np.where(is_head, digits, -1))

    def write_texts(self, tokens: Integers, rng: np.random.Generator) -> list[str]:
        """Return composed texts as strings."""
        composition = self.compose(tokens, rng)
        ends = np.cumsum(np.r_[0, composition.counts]).tolist()
        pieces = [self.texts[passage] for passage in composition.passages.tolist()]
        return ["".join(pieces[begin:end]) for begin, end in pairwise(ends)]

    @property
    def _variants(self) -> Integers:
        return np.diff(self.starts)


def _repeat(*, repeats: Integers, starts: Integers, first: Integers, variants: Integers) -> Integers:
    """Return passages row by row: repeats[i, k] of size k, going round its variants from first[i, k]."""
    flat = repeats.ravel().astype(np.int64)
    begin = np.cumsum(flat) - flat
    place = np.arange(flat.sum()) - np.repeat(begin, flat)
    cell = np.repeat(np.arange(flat.size), flat)
    size = cell % len(starts)
    return np.asarray(starts[size] + (first.ravel()[cell] + place) % variants[size])


def _list_words(prompts: Sequence[str], rng: np.random.Generator) -> list[str]:
    words: list[str] = []
    for number in draw_order(rng, len(prompts)).tolist():
        words += prompts[number].split()
        if len(words) >= _WORDS:
            break
    return words or [word.strip() for word in _COMMON]


def _find_digits(words: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    whole = [f" {word}" for word in words]
    cut = (tokenizer.cut(text, 1) for text in dict.fromkeys(whole[:DIGITS]))
    candidates = list(dict.fromkeys([*whole, *_COMMON]))
    found = _keep_additive(candidates, 1, tokenizer)[:DIGITS]
    if len(found) < len(_COMMON):
        found = list(dict.fromkeys([*found, *_keep_additive(list(dict.fromkeys(cut)), 1, tokenizer)]))
    if len(found) < 2:
        raise RecipeError("tokenizer: no two texts of one token add up; leave inputs and prefixes to the fixture")
    return found


def _find_size(words: Sequence[str], size: int, tokenizer: Tokenizer, rng: np.random.Generator) -> list[str]:
    span = 2 * size + 2  # words that suffice: even one letter and its blank are half a token of the estimate
    ring = [*words] * (2 + span // len(words))
    begins = (rng.random(2 * VARIANTS) * len(words)).astype(np.int64).tolist()
    candidates = [tokenizer.cut(" " + " ".join(ring[begin : begin + span]), size) for begin in begins]
    return _keep_additive(list(dict.fromkeys(candidates)), size, tokenizer)[:VARIANTS]


def _keep_additive(candidates: Sequence[str], size: int, tokenizer: Tokenizer) -> list[str]:
    counts = tokenizer.count([text * _SEAMS for text in candidates])
    return [text for text, count in zip(candidates, counts, strict=True) if text and count == size * _SEAMS]

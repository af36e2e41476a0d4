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
# that a prefix cache has nothing to find in what is not meant to be shared. Where a chat template is counted,
# digits are words that it leaves as they are (envelope.py).
#
# Without a fixture the words are NEUTRAL: of three letters, which with their blank are one token of the
# estimate and of practically every vocabulary.

"""Passages: pieces of fixture text with token counts that add up, and texts composed of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadshape.envelope import NO_ENVELOPE, Envelope
from loadshape.errors import RecipeError
from loadshape.randomness import draw_order
from loadshape.stats import Integers
from loadshape.tokenizer import Tokenizer

SIZES = tuple(1 << bit for bit in range(9, -1, -1))  # 512 to 1
VARIANTS = 32  # different passages of each size
DIGITS = 1024  # different passages of one token, at most
_WORDS = 50_000  # words of the fixture to look at
SLOT_WORDS = 16  # one for each hexadecimal digit
_COMMON = (" the", " and", " for", " you", " are", " not", " but", " can")  # where a fixture is very small
NEUTRAL = """
    the and for you are not but can was all one had her out who get has him his how man new now old see two way day
    use any its may say she too own end put set try ask men run boy did let far off air sea car eye arm red top low
    big ten six few add act age ago art bad bag bar bed bit box bus buy cat cup cut dog dry ear eat egg fly fun gas
    god got gun guy hat hit hot ice job key kid law lay leg lie lot map met mix net nor odd oil pay pen per pet pop
    raw row sad sat sir sit sky son sun tax tea tie tip toy war wet win won yes yet
""".split()  # noqa: SIM905 (a list of strings is four times as long)
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
    def of(
        cls,
        prompts: Sequence[str],
        tokenizer: Tokenizer,
        rng: np.random.Generator,
        envelope: Envelope = NO_ENVELOPE,
    ) -> Passages:
        """Cut passages of every size out of *prompts*, which are joined in a random order; without any, of NEUTRAL.

        Texts of them have the same number of tokens inside of *envelope* as alone.
        """
        words = _list_words(prompts, rng) if prompts else NEUTRAL
        digits = _keep_enveloped(_find_digits(words, tokenizer), envelope)
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

    def list_slot_words(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return SLOT_WORDS different texts of one token, which add up like all passages. Raises RecipeError."""
        digits = self.texts[self.starts[-2] :]
        more = _keep_additive([f" {word}" for word in NEUTRAL], 1, tokenizer) if len(digits) < SLOT_WORDS else []
        words = tuple(dict.fromkeys([*digits, *more]))[:SLOT_WORDS]
        if len(words) < SLOT_WORDS:
            raise RecipeError(
                f"isolation: expected {SLOT_WORDS} words of one token, found {len(words)}; use cache_salt"
            )
        return words

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

    def cut(
        self, text: Composition, rows: Integers, tokens: Integers, tokenizer: Tokenizer
    ) -> tuple[Integers, Integers, list[str]]:
        """Return beginnings of texts: the first tokens[i] tokens of row rows[i] of *text*, at most what it has.

        They are the next counts[i] entries of passages, where numbers from len(texts) on are the third, passages cut.
        """
        upto = np.r_[0, np.cumsum(self.tokens[text.passages])]
        starts = (np.cumsum(text.counts) - text.counts)[rows]
        goal = upto[starts] + tokens
        counts = np.searchsorted(upto, goal) - starts  # passages begun, of which the last may be cut
        segments = text.passages[spread(starts, counts)]
        over = upto[starts + counts] - goal
        last, pieces = np.cumsum(counts) - 1, dict[tuple[int, int], int]()
        for row in np.flatnonzero(over).tolist():
            passage = int(segments[last[row]])
            piece = (passage, int(self.tokens[passage] - over[row]))
            segments[last[row]] = len(self.texts) + pieces.setdefault(piece, len(pieces))
        return segments, counts, [self._cut_passage(passage, kept, tokenizer) for passage, kept in pieces]

    def write_texts(self, tokens: Integers, rng: np.random.Generator) -> list[str]:
        """Return composed texts as strings."""
        composition = self.compose(tokens, rng)
        ends = np.cumsum(np.r_[0, composition.counts]).tolist()
        pieces = [self.texts[passage] for passage in composition.passages.tolist()]
        return ["".join(pieces[begin:end]) for begin, end in pairwise(ends)]

    def _cut_passage(self, passage: int, tokens: int, tokenizer: Tokenizer) -> str:
        """Return the beginning of a passage; where no cut has so many tokens, one of fewer and other words."""
        for fewer in range(tokens):
            text = tokenizer.cut(self.texts[passage], tokens - fewer) + self.texts[-1] * fewer
            if tokenizer.count([text])[0] == tokens:
                return text
        return self.texts[-1] * tokens

    @property
    def _variants(self) -> Integers:
        return np.diff(self.starts)


def spread(starts: Integers, counts: Integers) -> Integers:
    """Return starts[0], starts[0] + 1, ... counts[0] of them, then likewise from starts[1] on, and so forth."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts))


def _repeat(*, repeats: Integers, starts: Integers, first: Integers, variants: Integers) -> Integers:
    """Return passages row by row: repeats[i, k] of size k, going round its variants from first[i, k]."""
    flat = repeats.ravel().astype(np.int64)
    passages = np.repeat((starts + first).ravel(), flat)
    many = np.flatnonzero(flat > 1)  # only these go on to other variants, and they are few
    place = spread(np.zeros(len(many), np.int64), flat[many])
    size = np.repeat(many % len(starts), flat[many])
    there = spread((np.cumsum(flat) - flat)[many], flat[many])
    passages[there] = starts[size] + (np.repeat(first.ravel()[many], flat[many]) + place) % variants[size]
    return passages


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


def _keep_enveloped(digits: list[str], envelope: Envelope) -> list[str]:
    """Return those words that may begin a text: a template that strips texts must not change their count."""
    if envelope.is_empty:
        return digits
    counts = envelope.count([[("user", digit * 2)] for digit in digits])
    added = sum(envelope.measure(("user",)))
    kept = [digit for digit, count in zip(digits, counts, strict=True) if count == 2 + added]
    if len(kept) < 2:
        raise RecipeError(
            "tokenizer: its chat template changes every text; name its tokenizer.json instead of the folder"
        )
    return kept

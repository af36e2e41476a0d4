# Segments that begin as another one does.
#
# Law: texts are compared here, and nowhere else in what measures sharing: everybody else goes by identity. A prefix
# that was cut for a short prompt is a segment of its own, and yet what it says is the beginning of a longer one. So
# segments are put into a tree, each below the longest other that it begins with, and are spelled as pieces: those of
# the one above, then what is new. Equal pieces from the beginning on are equal text.
#
# The longer one goes on with a blank where the shorter one ends, so that what a tokenizer makes of the common part
# is the same in both: tokenizers of the GPT and Llama families never join across the blank before a word.
# What two texts have in common of which neither begins the other is not seen; nor is what begins two lists of token
# ids, or an answer that is not known yet. So what is measured by pieces is still a lower bound.

"""Pieces: segments spelled so that what begins alike is alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadshape.stats import Integers


@dataclass(frozen=True, slots=True)
class Pieces:
    """Segment i is the next counts[i] of `pieces`, of which piece p has tokens[p] tokens."""

    counts: Integers
    pieces: Integers
    tokens: Integers

    @classmethod
    def whole(cls, segments: pa.Table) -> Pieces:
        """Return segments (schema SEGMENTS) as one piece each."""
        number = np.arange(segments.num_rows)
        return cls(np.ones_like(number), number, np.asarray(segments["tokens"].to_numpy(), np.int64))

    @classmethod
    def split(cls, segments: pa.Table) -> Pieces:
        """Return segments with the beginnings of others as pieces of their own."""
        sizes = segments["tokens"].to_pylist()
        above = _find_beginnings(segments["text"].to_pylist(), sizes)
        counts, pieces, tokens = [], [], []
        for segment, size in enumerate(sizes):
            path = [segment]
            while (upper := above[path[-1]]) is not None:
                path.append(upper)
            counts.append(len(path))
            pieces += path[::-1]
            tokens.append(size if len(path) == 1 else size - sizes[path[1]])
        return cls(np.array(counts, np.int64), np.array(pieces, np.int64), np.array(tokens, np.int64))

    def expand(self, segments: Integers) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        """Return the pieces of *segments*, in this order; of each its place among them; whether it is the first."""
        counts = self.counts[segments]
        of = np.repeat(np.arange(len(segments)), counts)
        place = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        begin = np.cumsum(self.counts) - self.counts
        return self.pieces[begin[segments][of] + place], of, place == 0


def _find_beginnings(texts: list[str | None], sizes: list[int]) -> list[int | None]:
    """Return for each text the longest other one that it begins with."""
    above: list[int | None] = [None] * len(texts)
    open_texts: list[int] = []
    for number in sorted((it for it, text in enumerate(texts) if text), key=lambda it: (texts[it], it)):
        text = texts[number] or ""
        while open_texts and not text.startswith(texts[open_texts[-1]] or ""):
            open_texts.pop()
        for other in reversed(open_texts):
            length = len(texts[other] or "")
            if length < len(text) and text[length].isspace() and sizes[other] < sizes[number]:
                above[number] = other
                break
        open_texts.append(number)
    return above

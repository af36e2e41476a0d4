# Documents that requests quote from a corpus, as retrieval puts them before a question.
#
# Law: numbers of documents and of tokens; no text. What the documents say is composed like every other text
# (content.py), each stored once however many requests quote it.
#
# Theory. A corpus has `corpus` documents, the one of rank r with the popularity 1 / r^zipf. A request takes
# `documents` different ones, one after the other, each in proportion to its popularity among those not taken.
# Their order decides what a prefix cache finds, since it finds only what is equal from the beginning on: sorted,
# two requests with the same popular documents begin alike; shuffled, hardly ever. Retrieval by relevance is a
# shuffle in this sense.

"""Retrieval as a value: how many documents a request quotes, of which corpus, in which order."""

from __future__ import annotations

import msgspec
import numpy as np

from loadshape.bounds import check_choice, check_count, check_number
from loadshape.errors import RecipeError
from loadshape.stats import Floats, Integers

ORDERS = ("shuffled", "sorted")
MAX_CORPUS = 10_000_000
_ROUNDS = 64  # of drawing doubles again; what then is still double takes the most popular documents left


class Retrieval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`documents` of `document_tokens` tokens each before every question, out of a corpus of `corpus` of them.

    `zipf` is the exponent of their popularity, 0 is uniform; `order` is "shuffled", or "sorted" by rank.
    """

    documents: int
    document_tokens: int
    corpus: int
    zipf: float = 1.0
    order: str = "shuffled"

    def __post_init__(self) -> None:
        check_count("documents", self.documents, most=1000, remedy="write the documents of a request, such as 5")
        check_count("document_tokens", self.document_tokens, most=1_000_000, remedy="write the tokens of a document")
        check_count("corpus", self.corpus, most=MAX_CORPUS, remedy="write the documents that there are")
        check_number("zipf", self.zipf, least=0, most=10, remedy="0 is uniform popularity, 1 is usual")
        check_choice("order", self.order, ORDERS)
        if self.corpus < self.documents:
            raise RecipeError(
                f"corpus: expected at least the {self.documents} documents of a request, found {self.corpus}"
            )

    def draw_documents(self, rng: np.random.Generator, n: int) -> Integers:
        """Return which documents *n* requests quote, an array of n x documents; all of a row are different."""
        upto = np.cumsum(np.arange(1, self.corpus + 1, dtype=np.float64) ** -self.zipf)
        taken = self._draw(rng, upto, (n, self.documents))
        for _ in range(_ROUNDS):
            again = _find_doubles(taken)
            if not again.any():
                break
            taken[again] = self._draw(rng, upto, (int(again.sum()),))
        for row in np.flatnonzero(_find_doubles(taken).any(axis=1)).tolist():
            taken[row] = _complete(taken[row].tolist())
        return np.sort(taken, axis=1) if self.order == "sorted" else taken

    def fit(self, tokens: Integers, *, spare: Integers | int) -> Integers:
        """Return the tokens of each document (n x documents): whole ones, as many as leave *spare* of *tokens*."""
        whole = np.clip((tokens - spare) // self.document_tokens, 0, self.documents)
        return np.where(np.arange(self.documents) < whole[:, None], self.document_tokens, 0).astype(np.int64)

    def _draw(self, rng: np.random.Generator, upto: Floats, size: tuple[int, ...]) -> Integers:
        found = np.searchsorted(upto, rng.random(size) * upto[-1], side="right")
        return np.asarray(np.minimum(found, self.corpus - 1), np.int64)


def _find_doubles(taken: Integers) -> Integers:
    """Return where a row has a document that stands before it in the row already."""
    order = np.argsort(taken, axis=1, kind="stable")
    ranked = np.take_along_axis(taken, order, axis=1)
    double = np.zeros(taken.shape, bool)
    np.put_along_axis(double, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
    return np.asarray(double)


def _complete(row: list[int]) -> list[int]:
    distinct = list(dict.fromkeys(row))
    spare = (document for document in range(len(row)) if document not in distinct)
    return [*distinct, *(next(spare) for _ in range(len(row) - len(distinct)))]

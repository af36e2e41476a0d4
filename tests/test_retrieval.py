"""Which documents requests quote, and how many fit."""

from __future__ import annotations

import numpy as np
import pytest

from loadshape.errors import RecipeError
from loadshape.randomness import open_stream
from loadshape.retrieval import Retrieval


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
@pytest.mark.parametrize(("documents", "corpus", "zipf"), [(1, 1, 1.0), (5, 5, 0.0), (5, 6, 10.0), (4, 1000, 1.0)])
def test_a_request_never_quotes_a_document_twice(order: str, documents: int, corpus: int, zipf: float) -> None:
    taken = Retrieval(documents, 100, corpus, zipf, order).draw_documents(open_stream(7, "documents"), 500)
    assert taken.shape == (500, documents)
    assert all(len(set(row)) == documents for row in taken.tolist())
    assert 0 <= taken.min() <= taken.max() < corpus
    assert order == "shuffled" or (np.diff(taken, axis=1) > 0).all()


def test_popularity_falls_with_the_rank() -> None:
    taken = Retrieval(1, 100, 4).draw_documents(open_stream(7, "documents"), 40_000)
    assert np.bincount(taken[:, 0]) / 40_000 == pytest.approx(np.array([12, 6, 4, 3]) / 25, abs=0.01)


def test_the_second_document_is_drawn_among_those_that_are_left() -> None:
    taken = Retrieval(2, 100, 3).draw_documents(open_stream(7, "documents"), 40_000)
    after_first = taken[taken[:, 0] == 0, 1]
    assert np.bincount(after_first)[1:] / len(after_first) == pytest.approx(np.array([3, 2]) / 5, abs=0.01)


def test_only_whole_documents_are_quoted_where_there_is_room() -> None:
    sizes = Retrieval(3, 100, 10).fit(np.array([50, 210, 211, 5000]), spare=11)
    assert sizes.tolist() == [[0, 0, 0], [100, 0, 0], [100, 100, 0], [100, 100, 100]]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((0, 100, 10), "documents"),
        ((3, 0, 10), "document_tokens"),
        ((3, 100, 2), "corpus"),
        ((3, 100, 10, -1.0), "zipf"),
        ((3, 100, 10, 1.0, "random"), "order"),
    ],
)
def test_impossible_values_are_refused_by_name(values: tuple[float, ...], field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}: expected .*, found "):
        Retrieval(*values)  # type: ignore[arg-type]

# Segments that begin as others do are spelled with common pieces.

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from loadshape.piece import Pieces
from loadshape.trace import SEGMENT_KINDS, SEGMENTS, enumerate_column


def lay(*texts: str | None, tokens: list[int] | None = None) -> pa.Table:
    """Return segments; a text has as many tokens as words."""
    sizes = tokens or [len((text or "").split()) for text in texts]
    columns = [enumerate_column(["text"] * len(texts), SEGMENT_KINDS), pa.array(texts, pa.large_string())]
    columns += [pa.nulls(len(texts), pa.list_(pa.int32())), pa.array(sizes, pa.uint32())]
    return pa.table(columns, schema=SEGMENTS)


def spell(*texts: str | None, tokens: list[int] | None = None) -> list[list[int]]:
    found = Pieces.split(lay(*texts, tokens=tokens))
    return [found.expand(np.array([segment]))[0].tolist() for segment in range(len(texts))]


CASES: dict[str, tuple[tuple[str | None, ...], list[list[int]]]] = {
    "nothing in common": (("one two", "three"), [[0], [1]]),
    "a beginning": (("one two three", "one two"), [[1, 0], [1]]),
    "two of them": (("one", "one two three", "one two"), [[0], [0, 2, 1], [0, 2]]),
    "branches": (("one two", "one", "one six"), [[1, 0], [1], [1, 2]]),
    "no beginning inside of a word": (("one twofold", "one two"), [[0], [1]]),
    "but of a shorter one": (("one twofold", "one two", "one"), [[2, 0], [2, 1], [2]]),
    "an end is nothing": (("one two", "two"), [[0], [1]]),
    "no text": ((None, "one", None), [[0], [1], [2]]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_begins_alike_has_common_pieces(case: str) -> None:
    texts, expected = CASES[case]
    assert spell(*texts) == expected


def test_pieces_have_the_tokens_that_are_new() -> None:
    found = Pieces.split(lay("one two three four", "one", "one two"))
    assert found.tokens.tolist() == [2, 1, 1]
    pieces, of, is_first = found.expand(np.array([0, 0, 1]))
    assert np.bincount(of, found.tokens[pieces]).tolist() == [4, 4, 1]
    assert np.flatnonzero(is_first).tolist() == [0, 3, 6]


def test_a_beginning_that_has_no_fewer_tokens_is_none() -> None:
    assert spell("one", "one  ", tokens=[1, 1]) == [[0], [1]]


def test_whole_segments_are_one_piece_each() -> None:
    found = Pieces.whole(lay("one two", "one"))
    assert (found.counts.tolist(), found.pieces.tolist(), found.tokens.tolist()) == ([1, 1], [0, 1], [2, 1])

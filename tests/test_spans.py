# Span arithmetic: what is covered goes, all of it, and nothing else.

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.spans import Span, replace_spans, unite_spans


def span(start: int, end: int, rank: int = 0, score: float = 1.0) -> Span:
    return Span(start, end, rank, f"rule {rank}", score)


CASES = {
    "none": ([], []),
    "unsorted": ([span(5, 7), span(1, 2)], [span(1, 2), span(5, 7)]),
    "touching stay apart": ([span(0, 3), span(3, 6), span(6, 9)], [span(0, 3), span(3, 6), span(6, 9)]),
    "equal": ([span(0, 3, 1), span(0, 3, 0)], [span(0, 3, 0)]),
    "the first rule names the union": ([span(0, 5, 2), span(3, 9, 1)], [span(0, 9, 1)]),
    "nested": ([span(0, 9, 1), span(3, 4, 0), span(5, 6, 2)], [span(0, 9, 0)]),
    "a chain": ([span(0, 4, 3), span(3, 8, 2), span(7, 12, 1)], [span(0, 12, 1)]),
    "empty ones are nothing": ([span(4, 4)], []),
}


@pytest.mark.parametrize("case", CASES)
def test_spans_are_united(case: str) -> None:
    spans, united = CASES[case]
    assert unite_spans(spans, "x" * 20) == united


def test_combining_marks_go_with_their_letter() -> None:
    text = "Ana\u0301 spoke"  # the mark would combine with the placeholder's bracket
    (found,) = unite_spans([span(0, 3)], text)
    assert replace_spans(text, [found], ["<PERSON_1>"]) == "<PERSON_1> spoke"


def test_three_in_a_row_stay_three() -> None:
    text = "a@x.io b@x.io c@x.io"
    united = unite_spans([span(0, 6), span(7, 13), span(14, 20)], text)
    assert replace_spans(text, united, ["<1>", "<2>", "<3>"]) == "<1> <2> <3>"


LETTERS = st.text("abc é\u0301😀\n", max_size=30)


@st.composite
def texts_with_spans(draw: st.DrawFn) -> tuple[str, list[Span]]:
    text = draw(LETTERS)
    ends = st.integers(0, len(text))
    pairs = draw(st.lists(st.tuples(ends, ends, st.integers(0, 3), st.sampled_from([0.5, 1.0])), max_size=8))
    return text, [span(min(a, b), max(a, b), rank, score) for a, b, rank, score in pairs]


@given(texts_with_spans(), st.randoms())
def test_what_is_covered_goes_and_the_rest_stays(given_spans: tuple[str, list[Span]], random: object) -> None:
    text, spans = given_spans
    united = unite_spans(spans, text)
    marks = [f"<{number}>" for number in range(len(united))]
    clean = replace_spans(text, united, marks)

    gone = {place for each in united for place in range(each.start, each.end)}
    asked = {place for each in spans for place in range(each.start, each.end)}
    assert asked <= gone, "no character of a finding survives"
    assert all(unicodedata.combining(text[place]) for place in gone - asked), "and no other goes, but marks"
    assert len(clean) == len(text) - len(gone) + sum(map(len, marks))
    assert [mark for mark in marks if mark in clean] == marks, "no placeholder is cut by another"

    outside = clean
    for mark in marks:
        before, _, after = outside.partition(mark)
        outside = before + after
    assert outside == "".join(text[place] for place in range(len(text)) if place not in gone)
    assert all(first.end <= second.start for first, second in itertools.pairwise(united))


@given(texts_with_spans(), st.permutations(range(8)))
def test_the_order_of_findings_does_not_matter(given_spans: tuple[str, list[Span]], order: list[int]) -> None:
    text, spans = given_spans
    shuffled = [spans[index] for index in order if index < len(spans)]
    assert unite_spans(shuffled, text) == unite_spans(spans, text)

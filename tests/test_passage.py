"""Passages: sums of pieces have exactly the tokens that were asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invention import InventedFixture

from loadshape.errors import RecipeError
from loadshape.passage import SIZES, Passages
from loadshape.randomness import open_stream
from loadshape.tokenizer import Estimate

PROMPTS = [prompt for prompt, _ in InventedFixture().pairs]
PASSAGES = Passages.of(PROMPTS, Estimate(), open_stream(7, "passages"))


def test_every_size_has_its_passages() -> None:
    assert np.diff(PASSAGES.starts).min() >= 2
    assert len(PASSAGES.texts) == len(PASSAGES.tokens) == PASSAGES.starts[-1]
    assert Estimate().count(PASSAGES.texts) == PASSAGES.tokens.tolist()
    assert sorted(set(PASSAGES.tokens.tolist()), reverse=True) == list(SIZES)


def test_passages_are_words_of_the_fixture() -> None:
    words = {word for prompt in PROMPTS for word in prompt.split()} | {"the", "and", "for", "you", "are", "not"}
    digits = PASSAGES.texts[PASSAGES.starts[-2] :]
    assert {digit.strip() for digit in digits} <= words | {"but", "can"}


@settings(max_examples=30, deadline=None)
@given(tokens=st.lists(st.integers(1, 5000), min_size=1, max_size=50), seed=st.integers(0, 1000))
def test_texts_are_exactly_so_long_and_all_different(tokens: list[int], seed: int) -> None:
    lengths = np.array(tokens)
    texts = PASSAGES.write_texts(lengths, open_stream(seed, "content"))
    assert Estimate().count(texts) == tokens
    head = PASSAGES.count_head(len(tokens))
    whole = [text for text, length in zip(texts, tokens, strict=True) if length >= head]
    assert len(set(whole)) == len(whole)


def test_different_texts_differ_within_the_head() -> None:
    n = 3000
    texts = PASSAGES.compose(np.full(n, 40), open_stream(7, "content"))
    assert texts.heads.shape == (n, PASSAGES.count_head(n))
    assert len(np.unique(texts.heads, axis=0)) == n
    assert (texts.heads[1:, 0] != texts.heads[:-1, 0]).all()  # neighbours at the first token


@pytest.mark.parametrize("prompts", [["one"], ["漢字かな交じり文" * 20], [""], ["🙂" * 50]])
def test_the_smallest_and_the_strangest_fixtures_will_do(prompts: list[str]) -> None:
    passages = Passages.of(prompts, Estimate(), open_stream(7, "passages"))
    lengths = np.array([1, 2, 3, 700, 4097])
    assert Estimate().count(passages.write_texts(lengths, open_stream(7, "content"))) == lengths.tolist()


class Whole:
    """A tokenizer for which every text is one token: nothing adds up."""

    about: dict[str, str] = {}  # noqa: RUF012

    def count(self, texts: list[str]) -> list[int]:
        return [1 for _ in texts]

    def cut(self, text: str, tokens: int) -> str:
        return text


def test_a_tokenizer_whose_counts_do_not_add_up_is_refused() -> None:
    with pytest.raises(RecipeError, match="tokenizer: no two texts of one token add up"):
        Passages.of(PROMPTS, Whole(), open_stream(7, "passages"))

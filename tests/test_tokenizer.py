"""Counting and cutting: the estimate, and a small tokenizer.json made here."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from invention import WORDS, invent_text
from tokenizers import decoders, models, pre_tokenizers, trainers

from loadshape.errors import RecipeError
from loadshape.tokenizer import Estimate, Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level byte-pair tokenizer with 400 tokens, trained on the invented words."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([invent_text(number, 30) for number in range(50)], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("four", 1), ("fives", 2), ("é" * 4, 2), ("日本", 2)])
def test_the_estimate_is_four_bytes_a_token(text: str, tokens: int) -> None:
    assert Estimate().count([text]) == [tokens]


@given(text=st.text(st.characters(exclude_categories=["Cs"])), tokens=st.integers(0, 40))
def test_the_estimate_cuts_exactly(text: str, tokens: int) -> None:
    cut = Estimate().cut(text, tokens)
    assert text.startswith(cut)
    assert Estimate().count([cut]) == [min(tokens, *Estimate().count([text]))]


@pytest.mark.parametrize("by_folder", [False, True])
def test_a_tokenizer_json_is_loaded_from_its_path(path: Path, by_folder: bool) -> None:
    tokenizer = load_tokenizer(path.parent if by_folder else path)
    assert tokenizer.count(["", " the", " the the"]) == [0, *tokenizer.count([" the", " the the"])]
    assert set(tokenizer.about) == {"name", "sha256", "rule"}
    assert len(tokenizer.about["sha256"]) == 64


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 30, 10_000])
def test_a_tokenizer_cuts_to_the_count_that_the_cut_text_has(path: Path, tokens: int) -> None:
    tokenizer: Tokenizer = load_tokenizer(path)
    text = " ".join(WORDS)
    cut = tokenizer.cut(text, tokens)
    assert text.startswith(cut)
    assert tokenizer.count([cut]) == [min(tokens, *tokenizer.count([text]))]


def test_a_name_that_is_no_file_is_refused_and_never_downloaded() -> None:
    with pytest.raises(RecipeError, match=r"^tokenizer: expected the path of a tokenizer\.json.*deepseek.*'org/model'"):
        load_tokenizer("org/model")


def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "tokenizer.json"
    other.write_text("{}")
    with pytest.raises(RecipeError, match=r"tokenizer\.json: expected a tokenizer\.json"):
        load_tokenizer(other)

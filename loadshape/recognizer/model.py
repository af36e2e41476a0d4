# Models that know names: spaCy pipelines, and token classifiers in ONNX form.
#
# Law: a model reads pieces of text and says where names are, with its own labels. It is loaded from an
# installed package of the version that the policy states, never downloaded, and runs on one thread: the
# processes of `sanitize` are what uses more cores.
#
# Theory: of spaCy only the tokenizer and `ner` run. Its `ner` has a tok2vec of its own (the pipe of that
# name serves the tagger and the parser), so leaving the rest out changes nothing that `ner` says. It reads only the
# lines that could hold a name: those with a word that begins with a capital, or beyond ASCII, and that is not one of
# the policy's `ignore`. On ShareGPT that is half of the prose.
#
# A token classifier labels word pieces with B- and I- labels (Ramshaw & Marcus 1995). It was trained on short
# texts: it reads windows of 480 characters, cut at blanks, that overlap by 64, and findings of two windows
# that overlap are united later, like all others. A name that begins within a word is the whole word. Where it sees no
# name it still says which one it holds possible, for second opinions: such a label begins with "?".

"""Models of a policy, loaded: pieces of text in, labelled stretches out."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from loadshape.errors import PolicyError, require
from loadshape.policy import Model
from loadshape.recognizer.matcher import EXTRA, THOROUGH
from loadshape.recognizer.outline import choose_lines

BATCH_CHARACTERS = 40_000  # one batch for spaCy: its arrays are as long as all texts of the batch
NER_SCORE = 0.85  # spaCy gives none; Presidio's convention for it
WINDOW_CHARACTERS, OVERLAP_CHARACTERS = 480, 64
_TOKENS = 510  # of a window, without the two at its ends

_UNUSED_PIPES = ["tok2vec", "tagger", "parser", "senter", "lemmatizer", "attribute_ruler", "morphologizer"]
NO_NAME = "O"
POSSIBLE, POSSIBLE_SCORE = "?", 0.005  # before a label that is not the best one, and how likely it must be
Named = tuple[int, int, str, float]  # start, end, label, score


class NameModel(Protocol):
    """Anything that finds names in pieces of text."""

    def find(self, pieces: Sequence[str]) -> Iterator[list[Named]]:
        """Yield, for each piece, its names."""
        ...


def load_model(model: Model, ignore: Iterable[str]) -> NameModel:
    """Return the model, loaded; raises MissingExtra or PolicyError if it cannot be. Words of *ignore* are no names."""
    return _Spacy(model, ignore) if model.kind == "spacy" else _Classifier(model)


class _Spacy:
    def __init__(self, model: Model, ignore: Iterable[str]) -> None:
        spacy = require("spacy", EXTRA)
        require(model.package, EXTRA)
        self._nlp = spacy.load(model.package, exclude=_UNUSED_PIPES)
        self._common = frozenset(word.casefold() for word in ignore)

    def find(self, pieces: Sequence[str]) -> Iterator[list[Named]]:
        stretches = [
            (index, *bounds) for index, piece in enumerate(pieces) for bounds in choose_lines(piece, self._common)
        ]
        named: list[list[Named]] = [[] for _ in pieces]
        found = self._find([pieces[index][start:end] for index, start, end in stretches])
        for (index, offset, _), names in zip(stretches, found, strict=True):
            named[index] += [(offset + start, offset + end, label, NER_SCORE) for start, end, label in names]
        return iter(named)

    def _find(self, texts: Sequence[str]) -> Iterator[list[tuple[int, int, str]]]:
        for batch in _batch(texts):
            with self._nlp.memory_zone():  # else every word ever seen would be kept
                found = [
                    [(entity.start_char, entity.end_char, entity.label_) for entity in doc.ents]
                    for doc in self._nlp.pipe(batch, batch_size=4 * len(batch))  # `ner` reads a quarter at once
                ]
            yield from found


def _batch(pieces: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for piece in pieces:
        if batch and characters + len(piece) > BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
        batch.append(piece)
        characters += len(piece)
    if batch:
        yield batch


class _Classifier:
    def __init__(self, model: Model) -> None:
        runtime, tokenizers = require("onnxruntime", THOROUGH), importlib.import_module("tokenizers")
        folder = Path(str(require(model.package.replace("-", "_"), THOROUGH).__file__)).parent
        files = sorted(folder.rglob("*.onnx"))
        if len(files) != 1:
            raise PolicyError(f"model {model.name!r}: expected one *.onnx in {model.package}, found {len(files)}")
        home = next(parent for parent in files[0].parents if (parent / "tokenizer.json").is_file())
        labels = json.loads((home / "config.json").read_text(encoding="utf-8"))["id2label"]
        self._labels = [str(labels[str(at)]) for at in range(len(labels))]
        self._kinds = sorted({label[2:] for label in self._labels if label != NO_NAME})
        self._members = np.array([[label[2:] == kind for kind in self._kinds] for label in self._labels], np.float32)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(home / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = runtime.InferenceSession(str(files[0]), options, providers=["CPUExecutionProvider"])
        self._inputs = [each.name for each in self._session.get_inputs()]

    def find(self, pieces: Sequence[str]) -> Iterator[list[Named]]:
        for piece in pieces:
            yield [
                (start + begin, start + stop, label, score)
                for start, end in _cut_windows(piece)
                for begin, stop, label, score in self._read(piece[start:end])
            ]

    def _read(self, window: str) -> Iterator[Named]:
        encoding = self._tokenizer.encode(window)
        ids = np.array([encoding.ids[: _TOKENS + 2]], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        logits = self._session.run(None, {name: feed[name] for name in self._inputs})[0][0]
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        chances = odds / odds.sum(axis=-1, keepdims=True)
        tokens = [
            (*_whole_word(window, *offsets), *judged)
            for offsets, judged in zip(encoding.offsets, self._judge(chances), strict=False)
            if offsets[0] < offsets[1]
        ]
        return _join_tokens(tokens, window)

    def _judge(self, chances: npt.NDArray[np.float32]) -> Iterator[tuple[str, float]]:
        """Yield each token's label and score; where the best is no name, the kind of name that it could still be."""
        likely = chances @ self._members  # of a kind: as its first word, or as a later one
        for best, score, kind, chance in zip(
            chances.argmax(-1), chances.max(-1), likely.argmax(-1), likely.max(-1), strict=True
        ):
            if self._labels[best] == NO_NAME and chance >= POSSIBLE_SCORE:
                yield f"B-{POSSIBLE}{self._kinds[kind]}", round(float(chance), 3)
            else:
                yield self._labels[best], round(float(score), 3)


def _cut_windows(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while len(text) - start > WINDOW_CHARACTERS:
        end = start + WINDOW_CHARACTERS
        blank = max(text.rfind(" ", start + OVERLAP_CHARACTERS, end), text.rfind("\n", start + OVERLAP_CHARACTERS, end))
        end = blank if blank > start + 2 * OVERLAP_CHARACTERS else end
        yield start, end
        back = max(text.rfind(" ", start + 1, end - OVERLAP_CHARACTERS), end - 2 * OVERLAP_CHARACTERS)
        start = back + 1
    if start < len(text):
        yield start, len(text)


def _whole_word(text: str, start: int, end: int) -> tuple[int, int]:
    while start > 0 and text[start - 1].isalnum() and text[start].isalnum():
        start -= 1
    while end < len(text) and text[end - 1].isalnum() and text[end].isalnum():
        end += 1
    return start, end


def _join_tokens(tokens: Sequence[Named], text: str) -> Iterator[Named]:
    """Yield stretches of one kind: tokens that follow one another with nothing but blanks between them."""
    at: Named | None = None
    for start, end, label, score in tokens:
        kind = label[2:]
        if at is not None and at[2] == kind and start <= at[1]:
            at = (at[0], max(at[1], end), kind, max(at[3], score))
        elif at is not None and at[2] == kind and label[0] == "I" and text[at[1] : start].isspace():
            at = (at[0], end, kind, max(at[3], score))
        else:
            if at is not None and at[2]:
                yield at
            at = (start, end, kind, score) if kind else None
    if at is not None and at[2]:
        yield at

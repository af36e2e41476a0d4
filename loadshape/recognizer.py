# What a policy looks for, found in text: spans, never decisions.
#
# Law: the only module that touches Presidio and spaCy; both are loaded when a policy needs them, from
# installed packages, without a download. What a finding leads to is decided by the sanitizer.
#
# Theory: of Presidio we take the recognizers, which know checksums and number plans, and leave its
# engine, whose defaults misfire on chat and code: it boosts scores by context found inside of words
# ("lic" in "public"), tries to download a model, and asks the network for a suffix list. Of spaCy we run
# the tokenizer, tok2vec and ner, nothing else; in a sample of 8,639 entities that changed five.
#
# Everything a result depends on is the conversation itself: its messages are one batch, cut the same
# way every time, so neither the number of processes nor the neighbours change a finding. Long texts are cut
# at line ends, because spaCy needs 4.5 kB of memory per character of one text.

"""Recognizers of a policy: Presidio classes, a spaCy model, and patterns."""

from __future__ import annotations

import difflib
import importlib.metadata
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from loadshape.errors import MissingExtra, PolicyError, require
from loadshape.policy import PRESIDIO, Model, Policy, Rule
from loadshape.spans import Span

EXTRA = "sanitize"
PIECE_CHARACTERS = 10_000  # one text for spaCy or a Presidio recognizer; 1.8 GB was measured for 394,465
BATCH_CHARACTERS = 40_000  # one batch for spaCy: its arrays are as long as all texts of the batch
NER_SCORE = 0.85  # spaCy gives none; Presidio's convention for it
CONTEXT_CHARACTERS = 60

_UNUSED_PIPES = ["tagger", "parser", "senter", "lemmatizer", "attribute_ruler", "morphologizer"]
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_LINE = re.compile(r"[^\n]+")
_ASKS_THE_NETWORK = ("EmailRecognizer", "UrlRecognizer")  # both check the domain with tldextract

Match = tuple[int, int, float]


class Recognizers:
    """All recognizers of one policy, loaded; raises MissingExtra or PolicyError if one cannot be."""

    def __init__(self, policy: Policy) -> None:
        self._matchers: list[tuple[int, Rule, _Conditions, Callable[[str], Iterable[Match]]]] = []
        self._names: list[tuple[int, Rule, _Conditions]] = []
        for rank, rule in enumerate(policy.rules):
            if rule.recognizer == "ner":
                conditions = _Conditions(rule, (*rule.ignore, *policy.ignore))
                self._names.append((rank, rule, conditions))
            else:
                matcher = _find_patterns(rule) if rule.recognizer == "pattern" else _load_presidio(rule, policy)
                self._matchers.append((rank, rule, _Conditions(rule, rule.ignore), matcher))
        self._skips_code = all(rule.where == "outside_code" for _, rule, _ in self._names)
        self._nlp = _load_model(policy.model) if self._names and policy.model else None

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return, for each of the texts of one conversation, all spans that any rule accepts; unsorted."""
        code = [find_code(text) for text in texts]
        found = [list(self._match(text, fences)) for text, fences in zip(texts, code, strict=True)]
        if self._nlp is not None:
            self._find_names(texts, code, found)
        return found

    def _match(self, text: str, fences: Sequence[tuple[int, int]]) -> Iterator[Span]:
        for rank, rule, conditions, matcher in self._matchers:
            for start, end, score in matcher(text):
                if score >= rule.score and conditions.hold(text, start, end, fences):
                    yield Span(start, end, rank, rule.recognizer, score)

    def _find_names(self, texts: Sequence[str], code: Sequence[list[tuple[int, int]]], found: list[list[Span]]) -> None:
        pieces = [
            (index, start, text[start:end])
            for index, text in enumerate(texts)
            for begin, stop in (_gaps(code[index], len(text)) if self._skips_code else [(0, len(text))])
            for start, end in cut_lines(text, begin, stop)
            if not text[start:end].isspace()
        ]
        for batch in _batches(pieces):
            docs = self._nlp.pipe((piece for _, _, piece in batch), batch_size=len(batch))  # type: ignore[union-attr]
            for (index, offset, _), doc in zip(batch, docs, strict=True):
                for entity in doc.ents:
                    start, end = offset + entity.start_char, offset + entity.end_char
                    found[index] += self._name_spans(texts[index], start, end, entity.label_, code[index])

    def _name_spans(
        self, text: str, start: int, end: int, label: str, fences: Sequence[tuple[int, int]]
    ) -> Iterator[Span]:
        """Yield the lines of one entity that a rule accepts: no name goes on over a line end."""
        for rank, rule, conditions in self._names:
            if label not in rule.labels or rule.score > NER_SCORE:
                continue
            for line in _LINE.finditer(text, start, end):
                if conditions.hold(text, line.start(), line.end(), fences):
                    yield Span(line.start(), line.end(), rank, f"ner:{label}", NER_SCORE)


class _Conditions:
    """The conditions of one rule, compiled."""

    def __init__(self, rule: Rule, ignore: Iterable[str]) -> None:
        self._accept = re.compile(rule.accept or r".*", re.DOTALL)
        self._reject = re.compile(rule.reject) if rule.reject else None
        self._ignore = frozenset(word.casefold() for word in ignore)
        self._luhn = rule.check == "luhn"
        self._outside_code = rule.where == "outside_code"
        words = "|".join(map(re.escape, rule.context))
        self._context = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE) if words else None

    def hold(self, text: str, start: int, end: int, fences: Sequence[tuple[int, int]]) -> bool:
        surface = text[start:end]
        if not surface.strip() or surface.strip().casefold() in self._ignore:
            return False
        if not self._accept.fullmatch(surface) or (self._reject and self._reject.search(surface)):
            return False
        if self._outside_code and any(begin <= start and end <= stop for begin, stop in fences):
            return False
        if self._luhn and not has_luhn_checksum(surface):
            return False
        near = max(0, start - CONTEXT_CHARACTERS), min(len(text), end + CONTEXT_CHARACTERS)
        return self._context is None or bool(self._context.search(text, *near))


def find_code(text: str) -> list[tuple[int, int]]:
    """Return the fenced code blocks of *text* with their fences; an open one runs to the end (CommonMark)."""
    blocks: list[tuple[int, int]] = []
    begin, mark = 0, ""
    for fence in _FENCE.finditer(text):
        run, rest = fence.groups()
        if not mark:
            begin, mark = fence.start(), run
        elif run[0] == mark[0] and len(run) >= len(mark) and not rest.strip():
            blocks.append((begin, fence.end()))
            mark = ""
    return [*blocks, (begin, len(text))] if mark else blocks


def cut_lines(text: str, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield stretches of text[begin:stop] of at most PIECE_CHARACTERS, cut at a line end, else at a blank."""
    while stop - begin > PIECE_CHARACTERS:
        limit = begin + PIECE_CHARACTERS
        cut = max(text.rfind("\n", begin, limit), 0) or max(text.rfind(" ", begin, limit), 0)
        end = cut + 1 if cut > begin else limit
        yield begin, end
        begin = end
    if begin < stop:
        yield begin, stop


def has_luhn_checksum(text: str) -> bool:
    """Tell whether the digits of *text* end in their Luhn check digit (ISO/IEC 7812-1)."""
    digits = [int(character) for character in reversed(text) if character.isdecimal()]
    doubled = (digit * 2 for digit in digits[1::2])
    return (sum(digits[::2]) + sum(digit - 9 * (digit > 9) for digit in doubled)) % 10 == 0


def list_versions(policy: Policy) -> dict[str, str]:
    """Return the packages that decide what *policy* finds, with their versions, without loading them.

    Raises MissingExtra for one that is not installed, PolicyError for a model of another version.
    """
    recognizers = {rule.recognizer for rule in policy.rules}
    packages = ["presidio-analyzer", "phonenumbers"] if any(PRESIDIO in name for name in recognizers) else []
    if "ner" in recognizers and policy.model:
        packages += ["spacy", policy.model.package]
    try:
        versions = {package: importlib.metadata.version(package) for package in packages}
    except importlib.metadata.PackageNotFoundError as problem:
        raise MissingExtra(
            f"policy {policy.name!r} needs the package {problem.name}, which is not installed; "
            f"install it with: pip install 'loadshape-llm[{EXTRA}]'"
        ) from None
    model = policy.model
    if model and versions.get(model.package, model.version) != model.version:
        raise PolicyError(
            f"policy {policy.name!r}: model: expected {model.package} {model.version}, "
            f"found {versions[model.package]}; install that version, or name yours in a policy of your own"
        )
    return versions


def _find_patterns(rule: Rule) -> Callable[[str], Iterator[Match]]:
    patterns = [re.compile(pattern) for pattern in rule.patterns]

    def match(text: str) -> Iterator[Match]:
        for pattern in patterns:
            group = "value" if "value" in pattern.groupindex else 0
            yield from ((*found.span(group), 1.0) for found in pattern.finditer(text))

    return match


def _load_presidio(rule: Rule, policy: Policy) -> Callable[[str], Iterator[Match]]:
    classes = require("presidio_analyzer.predefined_recognizers", EXTRA)
    name = rule.recognizer.removeprefix(PRESIDIO)
    if name not in classes.__all__:
        near = difflib.get_close_matches(name, classes.__all__, n=1)
        raise PolicyError(
            f"policy {policy.name!r}: recognizer: Presidio has no {name}"
            + (f"; did you mean {near[0]}?" if near else "")
        )
    try:
        recognizer = getattr(classes, name)(**{"supported_language": policy.language, **rule.options})
    except TypeError as problem:
        raise PolicyError(f"policy {policy.name!r}: options of {rule.recognizer}: {problem}") from None
    if name in _ASKS_THE_NETWORK:
        recognizer.validate_result = _know_domain()
    entities = recognizer.supported_entities

    def match(text: str) -> Iterator[Match]:
        for start, end in cut_lines(text, 0, len(text)):
            for result in recognizer.analyze(text[start:end], entities, None) or ():
                yield start + result.start, start + result.end, result.score

    return match


def _know_domain() -> Callable[[str], bool]:
    """Return Presidio's test of a domain, with the suffix list that tldextract ships instead of today's."""
    extract = require("tldextract", EXTRA).TLDExtract(suffix_list_urls=(), cache_dir=None)
    return lambda text: bool(extract(text).fqdn)


def _load_model(model: Model) -> Any:
    spacy = require("spacy", EXTRA)
    require(model.package, EXTRA)
    return spacy.load(model.package, exclude=_UNUSED_PIPES)


def _gaps(blocks: Sequence[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    at = 0
    for begin, stop in (*blocks, (length, length)):
        if at < begin:
            yield at, begin
        at = stop


def _batches(pieces: Iterable[tuple[int, int, str]]) -> Iterator[list[tuple[int, int, str]]]:
    batch: list[tuple[int, int, str]] = []
    characters = 0
    for piece in pieces:
        if batch and characters + len(piece[2]) > BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
        batch.append(piece)
        characters += len(piece[2])
    if batch:
        yield batch

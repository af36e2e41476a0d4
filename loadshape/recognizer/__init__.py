# What a policy looks for, found in text: spans, never decisions.
#
# Law: recognizers are loaded when a policy needs them, from installed packages, without a download. What a
# finding leads to is decided by the sanitizer. Below: `outline` (code, pieces), `condition` (when a match
# counts), `matcher` (patterns and libraries), `model` (names).
#
# Everything a result depends on is the conversation itself: its short messages are one batch, cut the same
# way every time, and each long one is a batch of its own, so neither the number of processes nor the neighbours
# change a finding. What was found in long ones is kept by a hash of the text: on ShareGPT, turns repeat. All that any
# recognizer finds is handed on; opinions of two models are united by the spans, not here.

"""Recognizers of a policy: Presidio classes, models, detect-secrets plugins, and patterns."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from loadshape.digest import digest_json
from loadshape.errors import MissingExtra, PolicyError
from loadshape.policy import NER, PRESIDIO, SECRETS, Policy, Rule, Second
from loadshape.recognizer.condition import Conditions
from loadshape.recognizer.matcher import EXTRA, THOROUGH, Matcher, Need, compile_need, load_matcher
from loadshape.recognizer.model import POSSIBLE, Named, load_model
from loadshape.recognizer.outline import cut_lines, find_code, find_prose
from loadshape.spans import Span

ALONE_CHARACTERS = 1_000  # a text of this length is read alone: that costs nothing more, and 84 % of ShareGPT is such
KEPT_TEXTS, KEPT_SPANS = 4_096, 100  # texts with more findings are looked at again: it bounds memory

_LINE = re.compile(r"[^\n]+")
_PACKAGES = {PRESIDIO: (EXTRA, "presidio-analyzer", "phonenumbers"), SECRETS: (THOROUGH, "detect-secrets")}
_RUNTIMES = {"spacy": (EXTRA, "spacy"), "onnx": (THOROUGH, "onnxruntime")}


@dataclass(frozen=True, slots=True)
class _Entry:
    rank: int
    rule: Rule
    conditions: Conditions
    matcher: Matcher


@dataclass(frozen=True, slots=True)
class _Naming:
    """A rule about names; `join` is what may stand between two that are one."""

    rank: int
    rule: Rule
    conditions: Conditions
    join: re.Pattern[str] | None


class Recognizers:
    """All recognizers of one policy, loaded; raises MissingExtra or PolicyError if one cannot be."""

    def __init__(self, policy: Policy) -> None:
        self._entries: list[_Entry] = []
        self._namings: list[_Naming] = []
        for rank, rule in enumerate(policy.rules):
            if rule.recognizer.startswith(NER):
                join = re.compile(rule.join) if rule.join else None
                self._namings.append(_Naming(rank, rule, Conditions(rule, (*rule.ignore, *policy.ignore)), join))
            else:
                conditions = Conditions(rule, rule.ignore)
                self._entries.append(_Entry(rank, rule, conditions, load_matcher(rule, policy)))
        needs = {need for entry in self._entries for need in entry.rule.needs}
        self._needs: dict[str, Need] = {need: compile_need(need) for need in needs}
        self._kept: dict[bytes, list[Span]] = {}
        asked = [rule for rule in policy.rules if rule.recognizer.startswith(NER)]
        self._reads_code = {name for rule in asked if rule.where == "anywhere" for name in _list_models(rule)}
        used = {name for rule in asked for name in _list_models(rule)}
        self._models = {model.name: load_model(model, policy.ignore) for model in policy.models if model.name in used}

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return, for each of the texts of one conversation, all spans that any rule accepts; unsorted."""
        short = iter(self._find_together([text for text in texts if len(text) < ALONE_CHARACTERS]))
        return [next(short) if len(text) < ALONE_CHARACTERS else self._find_alone(text) for text in texts]

    def _find_alone(self, text: str) -> list[Span]:
        key = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        found = self._kept.pop(key, None)
        if found is None:
            (found,) = self._find_together([text])
        if len(found) <= KEPT_SPANS:
            self._kept[key] = found  # the latest stands last, so the first is the one to go
        if len(self._kept) > KEPT_TEXTS:
            del self._kept[next(iter(self._kept))]
        return list(found)

    def _find_together(self, texts: Sequence[str]) -> list[list[Span]]:
        code = [find_code(text) for text in texts]
        tried = list(self._choose("\n".join(texts), self._entries))
        read = {name: self._read(name, texts, code) for name in self._models}
        return [
            [
                *_match(text, fences, tried if len(texts) == 1 else self._choose(text, tried)),
                *self._accept({name: named[index] for name, named in read.items()}, text, fences),
            ]
            for index, (text, fences) in enumerate(zip(texts, code, strict=True))
        ]

    def _choose(self, text: str, entries: Iterable[_Entry]) -> Iterator[_Entry]:
        """Yield those that may find something: asked of a whole conversation first, most have nothing to look for."""
        lower = text.lower()
        held = cache(lambda need: self._needs[need](text, lower))  # rules share needs
        return (entry for entry in entries if not entry.rule.needs or any(map(held, entry.rule.needs)))

    def _read(self, name: str, texts: Sequence[str], code: Sequence[list[tuple[int, int]]]) -> list[list[Named]]:
        """Return, for each text, where the model called *name* sees names."""
        pieces = [
            (index, start, text[start:end])
            for index, text in enumerate(texts)
            for begin, stop in ([(0, len(text))] if name in self._reads_code else find_prose(code[index], len(text)))
            for start, end in cut_lines(text, begin, stop)
            if not text[start:end].isspace()
        ]
        read: list[list[Named]] = [[] for _ in texts]
        for (index, offset, _), named in zip(
            pieces, self._models[name].find([piece for _, _, piece in pieces]), strict=True
        ):
            read[index] += [(offset + start, offset + end, label, score) for start, end, label, score in named]
        return read

    def _accept(
        self, read: Mapping[str, Sequence[Named]], text: str, fences: Sequence[tuple[int, int]]
    ) -> Iterator[Span]:
        for naming in self._namings:
            rule, conditions = naming.rule, naming.conditions
            mine = [each for each in read[rule.recognizer.removeprefix(NER)] if each[2] in rule.labels]
            seconded = _compile_second(rule.second, read[rule.second.model]) if rule.second else None
            for start, end, label, given in _join_names(mine, text, naming.join):
                score = conditions.weigh(text, start, end, given)
                if score is None or not conditions.hold(text, start, end, fences):
                    continue
                if seconded is None or seconded(start, end):
                    yield Span(start, end, naming.rank, f"{rule.recognizer}:{label}", score)


def _match(text: str, fences: Sequence[tuple[int, int]], entries: Iterable[_Entry]) -> Iterator[Span]:
    for entry in entries:
        for start, end, given in entry.matcher(text):
            score = entry.conditions.weigh(text, start, end, given)
            if score is not None and entry.conditions.hold(text, start, end, fences):
                yield Span(start, end, entry.rank, entry.rule.recognizer, score)


def _list_models(rule: Rule) -> list[str]:
    return [rule.recognizer.removeprefix(NER), *([rule.second.model] if rule.second else [])]


def _compile_second(second: Second, named: Sequence[Named]) -> Callable[[int, int], bool]:
    """Return a test: does anything that *second* holds possible overlap these bounds?"""
    possible = sorted(
        (begin, stop)
        for begin, stop, label, score in named
        if score >= second.score and label.removeprefix(POSSIBLE) in second.labels
    )
    begins = [begin for begin, _ in possible]
    reached = [0, *accumulate((stop for _, stop in possible), max)]  # by all that begin before
    return lambda start, end: reached[bisect_left(begins, end)] > start


def _join_names(named: Sequence[Named], text: str, join: re.Pattern[str] | None) -> Iterator[Named]:
    """Yield names, those that belong together as one; without `join` no name goes on over a line end."""
    if join is None:
        for start, end, label, score in named:
            for line in _LINE.finditer(text, start, end):
                yield line.start(), line.end(), label, score
        return
    at: Named | None = None
    for name in sorted(named):
        if at is not None and (name[0] <= at[1] or join.fullmatch(text, at[1], name[0])):
            at = (at[0], max(at[1], name[1]), at[2], max(at[3], name[3]))
        else:
            if at is not None:
                yield at
            at = name
    if at is not None:
        yield at


def list_versions(policy: Policy) -> dict[str, str]:
    """Return the packages that decide what *policy* finds, with their versions, without loading them.

    Raises MissingExtra for one that is not installed, PolicyError for a model of another version.
    """
    needed: dict[str, str] = {}  # package: the extra that brings it
    for kind, (extra, *packages) in _PACKAGES.items():
        if any(rule.recognizer.startswith(kind) for rule in policy.rules):
            needed |= dict.fromkeys(packages, extra)
    used = {name for rule in policy.rules for name in _list_models(rule)}
    models = [model for model in policy.models if model.name in used]
    for model in models:
        extra, *packages = _RUNTIMES[model.kind]
        needed |= dict.fromkeys((*packages, model.package), extra)
    versions = _look_up(needed)
    for model in models:
        found = versions[model.package]
        if found != model.version:
            raise PolicyError(
                f"policy {policy.name!r}: model: expected {model.package} {model.version}, found {found}; install "
                "that version, or state this one (which makes it another policy)"
            )
    return versions


def _look_up(needed: dict[str, str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for package, extra in needed.items():
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise MissingExtra(
                f"{package} is not installed; install it with: pip install 'loadshape-llm[{extra}]'"
            ) from None
    return versions


def digest_packages(names: Iterable[str]) -> dict[str, str]:
    """Return a SHA-256 over the contents of each installed package, as its installer recorded them."""
    return {name: _digest_package(name) for name in names}


@cache
def _digest_package(name: str) -> str:
    files = importlib.metadata.distribution(name).files or []  # with a hash of each, but of what was compiled here
    return digest_json(sorted((str(it), it.hash.value) for it in files if it.hash and ".dist-info" not in it.parts[0]))


__all__ = ["Recognizers", "digest_packages", "list_versions"]

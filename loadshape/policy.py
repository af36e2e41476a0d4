# A sanitization policy as a value: what to look for, how sure one must be, and what to do then.
#
# Law: a policy is data (TOML), decoded once into frozen values; this module looks at no text and loads
# no model. Unknown keys are refused by name. The order of the rules matters: where findings overlap, the
# rule that stands first gives the name.
#
# A policy may be put together from others: `include` names them, their rules stand first and in that order,
# `actions` says what the whole does about a kind of finding, and `second` which model must not rule out what
# another one found. What is kept, hashed and written into a
# fixture is the policy with everything included: it can be read without its parts, and a changed part is
# another digest. The digest covers the decoded value, not comments or layout, and leaves defaults out, so
# a new optional key does not change the digest of old policies.

"""Sanitization policies: `Policy.load("default")` or a path to a TOML file."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from loadshape.digest import digest_json
from loadshape.errors import PolicyError
from loadshape.packaged import find_packaged

Action = Literal["mask", "surrogate", "hash", "drop_turn", "drop_conversation"]
Place = Literal["anywhere", "outside_code"]
Check = Literal["none", "luhn", "iban", "kr_rrn", "kr_brn"]
Script = Literal["any", "hangul"]

NER, PRESIDIO, SECRETS = "ner:", "presidio:", "secrets:"
KINDS = "pattern, ner:<model>, presidio:<class> or secrets:<class>"

_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_ENTITY = re.compile(r"[A-Z][A-Z0-9_]*")


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model in an installed package of an exact version; it is never downloaded.

    `kind` is "spacy", or "onnx" for a token classifier: one *.onnx, tokenizer.json and config.json in the package.
    """

    name: str
    package: str
    version: str
    kind: Literal["spacy", "onnx"] = "spacy"


class Second(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A second opinion: `model` has to hold one of its `labels` possible somewhere in a finding, with this `score`."""

    model: str
    labels: tuple[str, ...]
    score: float = 0.005


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One kind of finding: who looks for it, which of its results count, and what happens to them.

    `recognizer` is "pattern" (with `patterns`; where a pattern has a group named `value`, only that group
    is the finding), "ner:<model>" (with `labels` of a model of the policy), "presidio:<class>" of a Presidio
    recognizer (with `options` for its constructor) or "secrets:<class>" of a detect-secrets plugin.

    `needs` are words, or patterns, one of which a text must hold before the recognizer is tried at all: it is
    for speed. A result counts when its score is at least `score`, the whole of its text matches `accept`,
    nothing in it matches `reject`, it passes `check`, its characters have `entropy` bits each, it is not
    made of words of `ignore` (nor, for names, of the policy's), the text has a letter of `script`, and one of the words
    of `context` stands within 60 characters. Empty means no condition. A pattern's score is `confidence`, and 1
    where `confirm` passes: a check digit that not every valid number has. Names of the same rule become one
    where `join` matches what stands between them. What `second` rules out is none of the rule's.
    """

    entity: str
    recognizer: str
    score: float = 0.0
    labels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    options: dict[str, str | int | list[str]] = {}
    needs: tuple[str, ...] = ()
    accept: str = ""
    reject: str = ""
    check: Check = "none"
    confidence: float = 1.0
    confirm: Check = "none"
    entropy: float = 0.0
    ignore: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    script: Script = "any"
    join: str = ""
    second: Second | None = None
    where: Place = "anywhere"
    action: Action = "mask"

    def __post_init__(self) -> None:
        if not _ENTITY.fullmatch(self.entity):
            raise ValueError(f"entity: expected capitals, digits and _ such as EMAIL_ADDRESS, found {self.entity!r}")
        if self.recognizer != "pattern" and not re.match(f"(?:{NER}|{PRESIDIO}|{SECRETS}).", self.recognizer):
            raise ValueError(f"recognizer: expected {KINDS}, found {self.recognizer!r}")
        for key in ("score", "confidence"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}: expected 0 to 1, found {getattr(self, key)}")
        for key, owner in (("labels", NER), ("patterns", "pattern")):
            if bool(getattr(self, key)) != self.recognizer.startswith(owner):
                raise ValueError(f"{key}: needed by the recognizer {owner!r}, and only by it")
        if self.options and not self.recognizer.startswith(PRESIDIO):
            raise ValueError("options: only a Presidio recognizer has options")
        for pattern in (*self.patterns, *self.needs, self.accept, self.reject, self.join):
            _compile(pattern)


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, dict=True):
    """What to remove from conversations and how; decoded from TOML by `Policy.load`.

    With text = "synthetic" nothing is looked for: every word is replaced. `tokenizer` counts tokens ("" is the
    estimate), and a replacement is padded where it would otherwise be more than `tolerance_tokens` shorter.
    """

    name: str
    version: int
    description: str = ""
    languages: tuple[str, ...] = ("en",)
    text: Literal["clean", "synthetic"] = "clean"
    tokenizer: str = ""
    tolerance_tokens: int = 8
    seed: int = 0
    include: tuple[str, ...] = ()
    parts: dict[str, int] = {}
    actions: dict[str, Action] = {}
    second: dict[str, Second] = {}
    ignore: tuple[str, ...] = ()
    models: tuple[Model, ...] = msgspec.field(name="model", default=())
    rules: tuple[Rule, ...] = msgspec.field(name="rule", default=())

    def __post_init__(self) -> None:
        if not self.languages:
            raise ValueError("languages: expected at least one, such as 'en'")
        if self.tolerance_tokens < 0 or self.seed < 0:
            raise ValueError("tolerance_tokens, seed: expected 0 or more")
        if not (self.rules or self.include or self.ignore or self.text == "synthetic"):
            raise ValueError("rule: expected at least one [[rule]]")

    @classmethod
    def load(cls, name: str | Path) -> Policy:
        """Return the policy in a TOML file, or the one that comes with loadshape under a bare name.

        Raises PolicyError, naming the file and the key, for anything that is not a policy.
        """
        return _load(name, Path(), ())

    @classmethod
    def parse(cls, text: str, origin: str = "policy") -> Policy:
        """Return the policy in a TOML text; *origin* names it in errors."""
        return _complete(_decode(text, origin), origin, Path(), ())

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the decoded policy."""
        return digest_json(self.content)

    @property
    def content(self) -> dict[str, Any]:
        """The policy as plain JSON values, defaults left out; decoding it gives the policy back."""
        return msgspec.json.decode(msgspec.json.encode(self), type=dict[str, Any])


def _load(name: str | Path, folder: Path, above: tuple[str, ...]) -> Policy:
    path = folder / find_packaged("sanitizers", name, PolicyError)
    if str(path) in above:
        raise PolicyError(f"{path}: include: the policy includes itself, by way of {', '.join(above)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise PolicyError(f"{path}: expected a policy in TOML; {problem}") from None
    return _complete(_decode(text, str(path)), str(path), path.parent, (*above, str(path)))


def _decode(text: str, origin: str) -> Policy:
    try:
        return msgspec.convert(tomllib.loads(text), Policy)
    except tomllib.TOMLDecodeError as problem:
        raise PolicyError(f"{origin}: not valid TOML: {problem}") from None
    except msgspec.ValidationError as problem:
        _refuse(origin, problem)


def _complete(own: Policy, origin: str, folder: Path, above: tuple[str, ...]) -> Policy:
    """Return a policy with what it includes, its actions given to its rules, and its models checked."""
    parts = [_load(name, folder, above) for name in own.include]
    whole = [*parts, own]
    rules = [rule for part in whole for rule in part.rules]
    for key, entities in (("actions", own.actions), ("second", own.second)):
        unknown = sorted(set(entities) - {rule.entity for rule in rules})
        if unknown:
            raise PolicyError(f"{origin}: {key}: no rule finds {', '.join(unknown)}")
    models = tuple(dict.fromkeys(model for part in whole for model in part.models))
    rules = [_settle(rule, own) for index, rule in enumerate(rules) if rule not in rules[:index]]  # two include a third
    _check_models(rules, models, origin)
    return msgspec.structs.replace(
        own,
        include=(),
        parts={name: version for part in parts for name, version in {**part.parts, part.name: part.version}.items()},
        actions={},
        second={},
        languages=tuple(dict.fromkeys(language for part in whole for language in part.languages)),
        ignore=tuple(dict.fromkeys(word for part in whole for word in part.ignore)),
        models=models,
        rules=tuple(rules),
    )


def _settle(rule: Rule, whole: Policy) -> Rule:
    """Return a rule with what the whole policy says about its kind: its action, and its second opinion."""
    rule = msgspec.structs.replace(rule, action=whole.actions.get(rule.entity, rule.action))
    second = whole.second.get(rule.entity)
    if second is None or not rule.recognizer.startswith(NER) or rule.recognizer == NER + second.model:
        return rule
    return msgspec.structs.replace(rule, second=second)


def _check_models(rules: Sequence[Rule], models: Sequence[Model], origin: str) -> None:
    names = [model.name for model in models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PolicyError(f"{origin}: model: two different models are called {', '.join(twice)}")
    used = [rule.recognizer for rule in rules if rule.recognizer.startswith(NER)]
    used += [NER + rule.second.model for rule in rules if rule.second]
    for recognizer in used:
        if recognizer.removeprefix(NER) not in names:
            known = ", ".join(names) or "none: a [[model]] must name its package"
            raise PolicyError(f"{origin}: model: a rule uses {recognizer!r}; models of the policy: {known}")


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as problem:
        raise ValueError(f"not a regular expression: {pattern!r}: {problem}") from None


def _refuse(origin: str, problem: msgspec.ValidationError) -> NoReturn:
    message = str(problem)
    unknown = _UNKNOWN_FIELD.search(message)
    if unknown:
        fields = {field.encode_name for kind in (Policy, Rule, Model, Second) for field in msgspec.structs.fields(kind)}
        near = difflib.get_close_matches(unknown[1], fields, n=1)
        message += f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(fields))}"
    raise PolicyError(f"{origin}: {message}") from None

# A sanitization policy as a value: what to look for, how sure one must be, and what to do then.
#
# Law: a policy is data (TOML), decoded once into frozen values; this module looks at no text and loads
# no model. Unknown keys are refused by name. The order of the rules matters: where findings overlap, the
# rule that stands first gives the name. The digest covers the decoded value, not comments or layout, and
# leaves defaults out, so a new optional key does not change the digest of old policies.

"""Sanitization policies: `Policy.load("default")` or a path to a TOML file."""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from loadshape.digest import digest_json
from loadshape.errors import PolicyError
from loadshape.packaged import find_packaged

Action = Literal["mask", "drop_turn", "drop_conversation"]
Place = Literal["anywhere", "outside_code"]
Check = Literal["none", "luhn"]

PRESIDIO = "presidio:"

_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_ENTITY = re.compile(r"[A-Z][A-Z0-9_]*")


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The spaCy model, as an installed package of an exact version. It is never downloaded."""

    package: str
    version: str


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One kind of finding: who looks for it, which of its results count, and what happens to them.

    `recognizer` is "ner" (with `labels` of the model), "pattern" (with `patterns`; where a pattern has a
    group named `value`, only that group is the finding) or "presidio:<class of a Presidio recognizer>"
    (with `options` for its constructor). A result counts when its score is at least `score`, the whole
    of its text matches `accept`, nothing in it matches `reject`, it passes `check`, it is not a word of
    `ignore` (nor, for "ner", of the policy's), and one of the words in `context` stands within 60
    characters. Empty means no condition.
    """

    entity: str
    recognizer: str
    score: float = 0.0
    labels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    options: dict[str, str | int | list[str]] = {}
    accept: str = ""
    reject: str = ""
    check: Check = "none"
    ignore: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    where: Place = "anywhere"
    action: Action = "mask"

    def __post_init__(self) -> None:
        if not _ENTITY.fullmatch(self.entity):
            raise ValueError(f"entity: expected capitals, digits and _ such as EMAIL_ADDRESS, found {self.entity!r}")
        if not (self.recognizer in ("ner", "pattern") or self.recognizer.startswith(PRESIDIO)):
            raise ValueError(f"recognizer: expected ner, pattern or presidio:<class>, found {self.recognizer!r}")
        if not 0 <= self.score <= 1:
            raise ValueError(f"score: expected 0 to 1, found {self.score}")
        for key, owner in (("labels", "ner"), ("patterns", "pattern")):
            if bool(getattr(self, key)) != (self.recognizer == owner):
                raise ValueError(f"{key}: needed by the recognizer {owner!r}, and only by it")
        if self.options and not self.recognizer.startswith(PRESIDIO):
            raise ValueError("options: only a Presidio recognizer has options")
        for pattern in (*self.patterns, self.accept, self.reject):
            _compile(pattern)


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, dict=True):
    """What to remove from conversations and how; decoded from TOML by `Policy.load`."""

    name: str
    version: int
    language: str = "en"
    description: str = ""
    model: Model | None = None
    ignore: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = msgspec.field(name="rule")

    def __post_init__(self) -> None:
        if not self.rules:
            raise ValueError("rule: expected at least one [[rule]]")
        if self.model is None and any(rule.recognizer == "ner" for rule in self.rules):
            raise ValueError("model: a rule uses the recognizer 'ner', so [model] must name a spaCy package")

    @classmethod
    def load(cls, name: str | Path) -> Policy:
        """Return the policy in a TOML file, or the one that comes with loadshape under a bare name.

        Raises PolicyError, naming the file and the key, for anything that is not a policy.
        """
        path = find_packaged("sanitizers", name, PolicyError)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise PolicyError(f"{path}: expected a policy in TOML; {problem}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, origin: str = "policy") -> Policy:
        """Return the policy in a TOML text; *origin* names it in errors."""
        try:
            return msgspec.convert(tomllib.loads(text), cls)
        except tomllib.TOMLDecodeError as problem:
            raise PolicyError(f"{origin}: not valid TOML: {problem}") from None
        except msgspec.ValidationError as problem:
            _refuse(origin, problem)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the decoded policy."""
        return digest_json(self.content)

    @property
    def content(self) -> dict[str, Any]:
        """The policy as plain JSON values, defaults left out; decoding it gives the policy back."""
        return msgspec.json.decode(msgspec.json.encode(self), type=dict[str, Any])


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as problem:
        raise ValueError(f"not a regular expression: {pattern!r}: {problem}") from None


def _refuse(origin: str, problem: msgspec.ValidationError) -> NoReturn:
    message = str(problem)
    unknown = _UNKNOWN_FIELD.search(message)
    if unknown:
        fields = {field.encode_name for kind in (Policy, Rule, Model) for field in msgspec.structs.fields(kind)}
        near = difflib.get_close_matches(unknown[1], fields, n=1)
        message += f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(fields))}"
    raise PolicyError(f"{origin}: {message}") from None

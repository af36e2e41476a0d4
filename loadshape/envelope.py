# What a server puts around the texts of a request before it counts tokens.
#
# Law: templates and special tokens, never a length that somebody wants. A tokenizer counts a text alone; here
# is what stands before, between and after the messages once the model's chat template has been applied, or the
# special tokens that begin a completion. Only a folder that has the model's tokenizer says so; for any other
# tokenizer an envelope is empty, and counts are of the texts alone.
#
# The template is rendered as `transformers` renders it (jinja2, sandboxed, with trim_blocks and lstrip_blocks), and
# the result is counted without further special tokens, as vLLM does. The clock of a template stands still
# (`strftime_now`): equal recipes give equal traces, and a date has as many tokens on most days.
#
# A template adds a fixed number of tokens for a list of roles, if it leaves texts as they are. Some strip them:
# then the first word stands without its blank. So the number is measured on a text, and passages are only
# begun with words that give the same number (passage.py); finished requests are counted again (shape.py).

"""Envelopes: the tokens that a chat template, or a completion's special tokens, add to the texts of a request."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from loadshape.errors import RecipeError, require
from loadshape.tokenizer import LocalTokenizer, Tokenizer

Messages = Sequence[tuple[str, str]]  # (role, text)

_PROBES = (" the and for", " you are not", " but can the")  # one a message, told apart from its neighbours
_TODAY = datetime(2024, 7, 26)  # the date that templates of Llama 3 fall back to


@dataclass(frozen=True, slots=True)
class Envelope:
    """What surrounds the texts of requests to one *api*; without a `render` that is nothing, in a completion, too."""

    tokenizer: Tokenizer | None = None
    render: Callable[[Messages], str] | None = None
    special: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, api: str) -> Envelope:
        """Return the envelope of requests to *api*: that of the tokenizer's folder, else an empty one.

        Raises MissingExtra when the folder has a chat template and jinja2 is not installed.
        """
        folder = tokenizer.folder if isinstance(tokenizer, LocalTokenizer) else None
        if folder is None:
            return cls(tokenizer)
        if api == "completions":
            return cls(tokenizer, _join_texts, special=True)
        return cls(tokenizer, _compile(folder))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is added to the texts."""
        return self.render is None

    def measure(self, roles: tuple[str, ...]) -> tuple[int, ...]:
        """Return the tokens before, between and after the texts of messages of these *roles*: len(roles) + 1 numbers.

        Raises RecipeError when the template takes no such messages.
        """
        if self.render is None:
            return (0,) * (len(roles) + 1)
        return _measure(self, roles)

    def surround(self, *, prefixed: bool) -> tuple[int, int, int]:
        """Return the tokens before the prefix (or the own part), between both, and after the own part of a request.

        The prefix of a chat is a system message of its own; a completion is one text.
        """
        if prefixed and not self.special:
            before, between, after = self.measure(("system", "user"))
            return before, between, after
        before, after = self.measure(("user",))
        return before, 0, after

    def count(self, requests: Sequence[Messages]) -> list[int]:
        """Return the tokens of each request as the server counts them; of its texts alone in an empty envelope."""
        assert self.tokenizer is not None, "nobody counts"
        if self.render is None:
            counts = iter(self.tokenizer.count([text for messages in requests for _, text in messages]))
            return [sum(next(counts) for _ in messages) for messages in requests]
        whole = [self.render(messages) for messages in requests]
        return [len(spans) for spans in self._encode(whole)]

    def _encode(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        assert isinstance(self.tokenizer, LocalTokenizer)
        return self.tokenizer.locate(texts, special=self.special)


NO_ENVELOPE = Envelope()


@functools.lru_cache(maxsize=64)
def _measure(envelope: Envelope, roles: tuple[str, ...]) -> tuple[int, ...]:
    assert envelope.render is not None
    assert envelope.tokenizer is not None
    probes = [_PROBES[place % len(_PROBES)] for place in range(len(roles))]
    text = envelope.render(list(zip(roles, probes, strict=True)))
    spans = envelope._encode([text])[0]  # the class is of this module
    gaps, upto, token = [], 0, 0
    for probe in probes:
        begin = text.find(probe.strip(), upto)
        if begin < 0:
            raise RecipeError(f"chat template: expected the text of each of {', '.join(roles)}, found one left out")
        upto = begin + len(probe.strip())
        inside = next(place for place, (_, end) in enumerate(spans) if place >= token and end > begin)
        gaps.append(inside - token)
        token = inside + envelope.tokenizer.count([probe])[0]
    return (*gaps, len(spans) - token)


def _join_texts(messages: Messages) -> str:
    return "".join(text for _, text in messages)


@functools.cache
def _compile(folder: Path) -> Callable[[Messages], str] | None:
    """Return the chat template of a model's folder as a function of messages, None if it has none."""
    source = _find_template(folder)
    if source is None:
        return None
    sandbox = require("jinja2.sandbox", "template")
    engine = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    engine.filters["tojson"] = lambda value, **kinds: json.dumps(value, ensure_ascii=False, **kinds)
    engine.globals |= {"raise_exception": _refuse, "strftime_now": _TODAY.strftime}
    try:
        template = engine.from_string(source)
    except Exception as problem:
        raise RecipeError(f"{folder}: expected a chat template in jinja; {problem}") from None
    words = {"tools": None, "documents": None, **_read_special(folder)}

    def render(messages: Messages) -> str:
        listed = [{"role": role, "content": text} for role, text in messages]
        try:
            return str(template.render(messages=listed, add_generation_prompt=True, **words))
        except Exception as problem:  # whatever a template of somebody else does
            roles = ", ".join(role for role, _ in messages)
            raise RecipeError(f"{folder}: the chat template refuses messages of {roles}: {problem}") from None

    return render


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _find_template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    stated = [
        _read_json(folder / name).get("chat_template") for name in ("chat_template.json", "tokenizer_config.json")
    ]
    for template in filter(None, stated):
        if isinstance(template, str):
            return template
        named = {entry["name"]: entry["template"] for entry in template}
        return str(named.get("default") or next(iter(named.values())))
    return None


def _read_special(folder: Path) -> dict[str, str]:
    """Return the special tokens that templates name, such as bos_token."""
    said = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    tokens = {key: value.get("content") if isinstance(value, dict) else value for key, value in said.items()}
    return {key: value for key, value in tokens.items() if key.endswith("_token") and isinstance(value, str)}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise RecipeError(f"{path}: not valid JSON: {problem}") from None
    return found if isinstance(found, dict) else {}

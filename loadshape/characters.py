# The control-sequence filter: text must not be able to change the structure of a request.
#
# Law: this filter removes characters and chat-template tokens; it judges no meaning and is no protection
# against prompt injection. Its steps are named, counted and versioned: a change of any step is a new
# VERSION, because it changes what a fixture contains.
#
# Theory: the order matters. Invisible characters go first, as they can hide inside a token; then the text
# is composed (NFC); then tokens are replaced by one blank, never by nothing, so that what stood left and
# right of one cannot join to a new one. Calls of tools go as whole JSON objects, found by their beginning: a
# name, then arguments. JSON that is broken off, or longer than 64 Ki characters, is no call and stays.
#
# Recognizers read the filtered text; findings are reported in the text as it was, so the filter keeps, where it
# changed anything, where each character came from.
#
# Sources: Unicode 15 chapters 23.2 (layout controls), 23.9 (tags), UAX 15 (NFC); the control tokens of
# Llama 2 and 3, Mistral, Gemma, Qwen, ChatML, GPT-2, Phi and DeepSeek templates; the calls of Hermes, Llama 3,
# Mistral, OpenAI, Anthropic and LangChain.

"""Remove control characters, invisible characters and chat-template tokens from text, and count them."""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

NAME = "control-sequence filter"
VERSION = 3

_INVISIBLE = {
    "controls": "\x00-\x08\x0b-\x1f\x7f-\x9f",  # C0 and C1 without \t and \n
    "surrogates": "\ud800-\udfff",
    "bidi": "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "zero_width": "\u00ad\u180e\u200b-\u200d\u2060-\u2064\ufeff",
    "tags": "\U000e0000-\U000e01ef",  # tags, and the variation selectors that can carry hidden bytes
}
_STEPS = re.compile(
    r"(?P<line_ends>\r\n?)|" + "|".join(f"(?P<{name}>[{members}])" for name, members in _INVISIBLE.items())
)
_TOKENS = re.compile(
    r"<\|[A-Za-z0-9_]{1,64}\|>"  # ChatML, GPT-2, Llama 3, Qwen, Phi
    r"|<\uff5c[^\uff5c<>\s]{1,64}\uff5c>"  # DeepSeek
    r"|</?s>|<<?/?SYS>>?|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]"  # Llama 2, Mistral
    r"|<(?:start_of_turn|end_of_turn|bos|eos|pad|unk)>"  # Gemma
    r"|</?tool_(?:call|response)s?>"  # Hermes, Qwen
)
_ROLES = re.compile(
    r"^[ \t]*(?:#{2,4}[ \t]*(?:Instruction|Response|Input|Human|User|Assistant|System)[ \t]*:"
    r"|(?:Human|User|Assistant|System|AI|Bot|ChatGPT|USER|ASSISTANT|SYSTEM)[ \t]*:)",
    re.MULTILINE,
)
_IMAGES = re.compile(r"!\[([^\]\n]{0,500})\]\(\s{0,4}[^)\s]{1,4000}(?:\s{1,4}[\"'][^\"'\n]{0,300}[\"'])?\s{0,4}\)")
_ARGUMENTS = r'"(?:arguments|parameters|args|input|tool_input|action_input)"\s{0,8}:'
_CALL = re.compile(
    r'\{(?:\s{0,200}"(?:type|id|call_id)"\s{0,8}:\s{0,8}"[^"\n]{0,100}"\s{0,8},){0,3}'
    r'\s{0,200}"(?:name|tool|tool_name|function|action)"\s{0,8}:\s{0,8}"[^"\n]{1,100}"\s{0,8},\s{0,200}' + _ARGUMENTS
)
_CALL_CHARACTERS = 65_536
_DEFINES = ("description", "properties", "required")  # beside parameters: what a tool takes, not a call of it
_SUSPECT = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0300-\U0010ffff]|<[|\uff5c/s<Sebput]|\[/?[IATS]|!\[|(?:[nrtTIMR]|\bAI)[ \t]*:"
    "|" + _ARGUMENTS
)
_JSON = json.JSONDecoder(strict=False)
_CLUSTER = re.compile(r"[\x00-\x7f]?[\x80-\U0010ffff]*", re.DOTALL)  # no ASCII character composes backwards


@dataclass(frozen=True, slots=True)
class Filtered:
    """The filtered text, and `origins`: for each of its characters, and for its end, where it came from.

    `origins` is None where the filter changed nothing.
    """

    text: str
    origins: array[int] | None = None

    def locate(self, start: int, end: int) -> tuple[int, int]:
        """Return the stretch of the original text that became text[start:end]."""
        if self.origins is None:
            return start, end
        while end < len(self.text) and self.origins[end] == self.origins[end - 1]:
            end += 1  # several characters that were composed together: their origin is one stretch
        return self.origins[start], self.origins[end]


def filter_text(text: str, counts: Counter[str]) -> Filtered:
    """Return *text* without control sequences, adding to *counts* what each step removed."""
    if not _SUSPECT.search(text):
        return Filtered(text)
    origins = array("I", range(len(text) + 1))
    original = text
    for step in (_strip, _compose, _show_images, _blank_tokens, _blank_calls, _blank_roles):
        text, origins = step(text, origins, counts)
    return Filtered(text) if text == original else Filtered(text, origins)


_Step: TypeAlias = "tuple[str, array[int]]"


def _strip(text: str, origins: array[int], counts: Counter[str]) -> _Step:
    def removals() -> Iterator[tuple[int, int, str]]:
        for match in _STEPS.finditer(text):
            counts[match.lastgroup or ""] += 1
            yield match.start(), match.end(), "\n" if match.lastgroup == "line_ends" else ""

    return _rewrite(text, origins, removals())


def _compose(text: str, origins: array[int], counts: Counter[str]) -> _Step:
    if unicodedata.is_normalized("NFC", text):
        return text, origins

    def compositions() -> Iterator[tuple[int, int, str]]:
        for match in _CLUSTER.finditer(text):
            composed = unicodedata.normalize("NFC", match[0])
            if composed != match[0]:
                counts["nfc"] += 1
                yield match.start(), match.end(), composed

    return _rewrite(text, origins, compositions())


def _show_images(text: str, origins: array[int], counts: Counter[str]) -> _Step:
    def descriptions() -> Iterator[tuple[int, int, str]]:
        for match in _IMAGES.finditer(text):
            counts["images"] += 1
            yield match.start(), match.end(), match[1]

    return _rewrite(text, origins, descriptions())


def _blank_tokens(text: str, origins: array[int], counts: Counter[str]) -> _Step:
    return _rewrite(text, origins, _blanks(_TOKENS, text, counts, "template_tokens"))


def _blank_calls(text: str, origins: array[int], counts: Counter[str]) -> _Step:
    def calls() -> Iterator[tuple[int, int, str]]:
        at = 0
        while found := _CALL.search(text, at):
            at, is_call = _read_call(text, found.start())
            if is_call:
                counts["tool_calls"] += 1
                yield found.start(), at, " "

    return _rewrite(text, origins, calls())


def _read_call(text: str, start: int) -> tuple[int, bool]:
    """Return where the JSON at *start* ends, or breaks, and whether it is the call of a tool."""
    piece = text[start : start + _CALL_CHARACTERS]
    try:
        value, length = _JSON.raw_decode(piece)
    except json.JSONDecodeError as problem:
        return start + max(1, problem.pos), False
    except (RecursionError, ValueError):  # too deep, or a number of more digits than Python reads
        return start + len(piece), False
    schema = value.get("parameters")
    defines = any(key in value or (isinstance(schema, dict) and key in schema) for key in _DEFINES)
    return start + length, not defines


def _blank_roles(text: str, origins: array[int], counts: Counter[str]) -> _Step:
    return _rewrite(text, origins, _blanks(_ROLES, text, counts, "role_prefixes"))


def _blanks(pattern: re.Pattern[str], text: str, counts: Counter[str], name: str) -> Iterator[tuple[int, int, str]]:
    for match in pattern.finditer(text):
        counts[name] += 1
        yield match.start(), match.end(), " "


def _rewrite(text: str, origins: array[int], changes: Iterator[tuple[int, int, str]]) -> _Step:
    """Apply sorted, disjoint changes (start, end, new text); new characters come from the change's start."""
    parts: list[str] = []
    places = array("I")
    at = 0
    for start, end, new in changes:
        parts += (text[at:start], new)
        places.extend(origins[at:start])
        same_length = len(new) == end - start
        places.extend(origins[start:end] if same_length else origins[start : start + 1] * len(new))
        at = end
    if not parts:
        return text, origins
    places.extend(origins[at:])
    return "".join((*parts, text[at:])), places

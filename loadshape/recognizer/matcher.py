# Recognizers without a model: patterns, Presidio's classes, detect-secrets' plugins.
#
# Law: a matcher says where something of a kind could be; whether it is a finding is up to the conditions of its
# rule. Of the two libraries we take the recognizers, which know number plans and key formats, and leave the
# engines. Presidio's boosts scores by context found inside of words ("lic" in "public"), tries to download a
# model, and asks the network for a suffix list; detect-secrets' reads files line by line at 63,000 characters
# per CPU-second (measured on 1,000 lines with secrets).
#
# Theory: most texts hold nothing of most kinds. What a rule needs ("@", "://", seven digits) is looked for
# first; a word with `in`, which is a scan of memory, a pattern with one search. Only a text that has it is
# given to the recognizer, and of such a text Presidio sees only the lines that have it.

"""Matchers: functions from a text to (start, end, score)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from loadshape.errors import PolicyError, require
from loadshape.policy import PRESIDIO, SECRETS, Policy, Rule
from loadshape.recognizer.outline import cut_lines

EXTRA, THOROUGH = "sanitize", "thorough"
_ASKS_THE_NETWORK = ("EmailRecognizer", "UrlRecognizer")  # both check the domain with tldextract
_LINE = re.compile(r"[^\n]+")
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")

Match = tuple[int, int, float]
Matcher = Callable[[str], Iterable[Match]]
Need = Callable[[str, str], bool]


def load_matcher(rule: Rule, policy: Policy) -> Matcher:
    """Return the matcher of a rule; raises MissingExtra or PolicyError if there is none."""
    if rule.recognizer.startswith(PRESIDIO):
        return _load_presidio(rule, policy)
    if rule.recognizer.startswith(SECRETS):
        return _find_patterns([re.compile(p.pattern, p.flags) for p in _load_plugin(rule, policy)], 1.0)
    return _find_patterns([re.compile(pattern) for pattern in rule.patterns], rule.confidence)


def compile_need(need: str) -> Need:
    """Return a test of (one text or more lines of them, the same in lower case): is *need* anywhere in there?"""
    word = need.replace("\\.", ".").lower()
    if _SPECIAL.search(need.replace("\\.", "")):
        search = re.compile(need, re.MULTILINE).search
        return lambda text, lower: bool(search(text))
    return lambda text, lower: word in lower


def _find_patterns(patterns: Sequence[re.Pattern[str]], score: float) -> Matcher:
    named = [(pattern, "value" if "value" in pattern.groupindex else 0) for pattern in patterns]

    def match(text: str) -> Iterator[Match]:
        for pattern, group in named:
            for found in pattern.finditer(text):
                start, end = found.span(group)
                if start >= 0:
                    yield start, end, score

    return match


def _load_plugin(rule: Rule, policy: Policy) -> Sequence[re.Pattern[str]]:
    """Return the patterns of a detect-secrets plugin; a whole match is the secret."""
    name = rule.recognizer.removeprefix(SECRETS)
    known = require("detect_secrets.core.plugins.util", THOROUGH).get_mapping_from_secret_type_to_class()
    plugins = {plugin.__name__: plugin for plugin in known.values() if hasattr(plugin, "denylist")}
    if name not in plugins:
        raise PolicyError(_refuse(policy, "detect-secrets has no pattern plugin", name, list(plugins)))
    return list(plugins[name]().denylist)


def _load_presidio(rule: Rule, policy: Policy) -> Matcher:
    classes = require("presidio_analyzer.predefined_recognizers", EXTRA)
    name = rule.recognizer.removeprefix(PRESIDIO)
    if name not in classes.__all__:
        raise PolicyError(_refuse(policy, "Presidio has no", name, classes.__all__))
    try:
        recognizer = getattr(classes, name)(**{"supported_language": policy.languages[0], **rule.options})
    except TypeError as problem:
        raise PolicyError(f"policy {policy.name!r}: options of {rule.recognizer}: {problem}") from None
    if name in _ASKS_THE_NETWORK:
        recognizer.validate_result = _know_domain()
    entities = recognizer.supported_entities
    needs = [compile_need(need) for need in rule.needs]

    def match(text: str) -> Iterator[Match]:
        for start, end in _list_lines(text):
            line = text[start:end]
            if not needs or any(has(line, line) for has in needs):
                for result in recognizer.analyze(line, entities, None) or ():
                    yield start + result.start, start + result.end, result.score

    return match


def _list_lines(text: str) -> Iterator[tuple[int, int]]:
    for line in _LINE.finditer(text):
        yield from cut_lines(text, line.start(), line.end())


def _refuse(policy: Policy, what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"policy {policy.name!r}: recognizer: {what} {name}" + (f"; did you mean {near[0]}?" if near else "")


def _know_domain() -> Callable[[str], Any]:
    """Return Presidio's test of a domain, with the suffix list that tldextract ships instead of today's."""
    extract = require("tldextract", EXTRA).TLDExtract(suffix_list_urls=(), cache_dir=None)
    return lambda text: bool(extract(text).fqdn)

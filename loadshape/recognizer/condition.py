# When a match is a finding: the conditions of one rule, compiled, and check digits.
#
# Law: a condition looks at a match and at the text around it; it finds nothing itself. A check digit vetoes
# only as `check`. As `confirm` it raises the score, because not every valid number has one: Korean resident
# numbers issued since October 2020 end in a random digit.
#
# Sources: Luhn, ISO/IEC 7812-1; IBAN, ISO 13616 (mod 97-10); the resident number's weights 2..9, 2..5 mod 11
# (of foreigners plus 2) and the business number's 1, 3, 7, 1, 3, 7, 1, 3, 5 as Korean authorities publish them;
# entropy, Shannon (1948), over the characters of the match itself.

"""The conditions of a rule, and the check digits that they ask for."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from loadshape.policy import Rule

CONTEXT_CHARACTERS = 60

_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]")
_WORD = re.compile(r"[^\s/&,:()-]+")
_POSSESSIVE = re.compile(r"['’]s\b")
_RRN_WEIGHTS = (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)
_BRN_WEIGHTS = (1, 3, 7, 1, 3, 7, 1, 3, 5)


class Conditions:
    """The conditions of one rule."""

    def __init__(self, rule: Rule, ignore: Iterable[str]) -> None:
        self._floor = rule.score
        self._accept = re.compile(rule.accept, re.DOTALL) if rule.accept else None
        self._reject = re.compile(rule.reject) if rule.reject else None
        self._ignore = frozenset(word.casefold() for word in ignore)
        self._check = CHECKS.get(rule.check)
        self._confirm = CHECKS.get(rule.confirm)
        self._entropy = rule.entropy
        self._hangul = rule.script == "hangul"
        self._outside_code = rule.where == "outside_code"
        words = "|".join(map(re.escape, rule.context))
        self._context = _compile_words(words) if words else None

    def weigh(self, text: str, start: int, end: int, score: float) -> float | None:
        """Return the score of the match text[start:end], or None where it is no finding of the rule."""
        surface = text[start:end]
        bare = surface.strip()
        if not bare or self._ignores(bare.casefold()):
            return None
        if self._accept and not self._accept.fullmatch(surface):
            return None
        if self._reject and self._reject.search(surface):
            return None
        if self._check and not self._check(surface):
            return None
        if self._confirm and self._confirm(surface):
            score = 1.0
        return score if score >= self._floor else None

    def _ignores(self, bare: str) -> bool:
        words = _WORD.findall(_POSSESSIVE.sub("", bare))
        return bare in self._ignore or bool(self._ignore and all(map(self._ignore.__contains__, words)))

    def hold(self, text: str, start: int, end: int, fences: Sequence[tuple[int, int]]) -> bool:
        """Tell whether the surroundings of text[start:end] are such that it counts."""
        if self._outside_code and any(begin <= start and end <= stop for begin, stop in fences):
            return False
        if self._entropy and measure_entropy(text[start:end]) < self._entropy:
            return False
        near = max(0, start - CONTEXT_CHARACTERS), min(len(text), end + CONTEXT_CHARACTERS)
        if self._hangul and not _HANGUL.search(text, *near):
            return False
        return self._context is None or bool(self._context.search(text, *near))


def _compile_words(words: str) -> re.Pattern[str]:
    """No letter before a word; none behind it either, but in Hangul, where particles attach directly."""
    return re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_\uac00-\ud7a3])", re.IGNORECASE)


def measure_entropy(text: str) -> float:
    """Return the Shannon entropy of the characters of *text*, in bits a character."""
    counts = Counter(text).values()
    return sum(count * math.log2(len(text) / count) for count in counts) / max(1, len(text))


def has_luhn_digit(text: str) -> bool:
    """Tell whether the digits of *text* end in their Luhn check digit (ISO/IEC 7812-1)."""
    digits = _digits(text)[::-1]
    doubled = (digit * 2 for digit in digits[1::2])
    return (sum(digits[::2]) + sum(digit - 9 * (digit > 9) for digit in doubled)) % 10 == 0


def has_iban_digits(text: str) -> bool:
    """Tell whether *text*, blanks left out, is 1 modulo 97 as an IBAN (ISO 13616) has to be."""
    plain = "".join(text.split()).upper()
    if not re.fullmatch(r"[A-Z]{2}\d\d[A-Z0-9]{11,30}", plain, re.ASCII):
        return False
    return int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1


def has_rrn_digit(text: str) -> bool:
    """Tell whether a Korean resident or foreigner number ends in its check digit."""
    digits = _digits(text)
    if len(digits) != 13:
        return False
    expected = 11 - sum(digit * weight for digit, weight in zip(digits, _RRN_WEIGHTS, strict=False)) % 11
    foreign = 2 if digits[6] in (5, 6, 7, 8) else 0
    return digits[12] in (expected % 10, (expected + foreign) % 10)


def has_brn_digit(text: str) -> bool:
    """Tell whether a Korean business number ends in its check digit."""
    digits = _digits(text)
    if len(digits) != 10:
        return False
    total = sum(digit * weight for digit, weight in zip(digits, _BRN_WEIGHTS, strict=False)) + digits[8] * 5 // 10
    return digits[9] == (10 - total % 10) % 10


def _digits(text: str) -> list[int]:
    return [int(character) for character in text if character in "0123456789"]


CHECKS: dict[str, Callable[[str], bool]] = {
    "luhn": has_luhn_digit,
    "iban": has_iban_digits,
    "kr_rrn": has_rrn_digit,
    "kr_brn": has_brn_digit,
}

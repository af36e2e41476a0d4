# What stands in the place of what was removed: masks, hashes, and surrogates of the same kind.
#
# Law: the same text has the same stand-in in all turns of one conversation, and a stand-in says nothing about
# the text but its kind and roughly its length. Masks and surrogates are numbered by first appearance, so there
# is nothing to reverse; a hash is keyed (HMAC-SHA-256, RFC 2104) with a key of the user's that is never stored,
# because a plain hash of a phone number is undone by trying all phone numbers.
#
# Surrogates keep the form: a digit for a digit and a letter for a letter, inside of ranges that belong to
# nobody: example.com (RFC 2606), 192.0.2.0/24 and 2001:db8::/32 (RFC 5737, 3849), 555-01xx, area 000 of social
# security, month 00 of resident numbers.
#
# Length: a stand-in that is more than the tolerance shorter than what it stands for, in tokens, is filled up
# with words that say nothing. It can be longer by the few tokens of its own name; the largest difference is
# reported.

"""Stand-ins for findings, the same for the same text within a conversation."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable

from loadshape.errors import PolicyError
from loadshape.filler import write_filler
from loadshape.policy import Action, Policy
from loadshape.randomness import open_stream
from loadshape.tokenizer import Tokenizer

KEY_BYTES = 16  # the shortest key of a hash
HASH_DIGITS = 12

_GIVEN = ("Ada", "Bo", "Cleo", "Dara", "Elin", "Fenja", "Gustav", "Henrik", "Isolde", "Jaromir", "Kassandra")
_FAMILY = ("Example", "Sample", "Muster", "Placeholder", "Doe", "Roe", "Fictus", "Nemo", "Persona", "Invented")
_TOWNS = ("Anytown", "Sampleton", "Exampleville", "Nowhere", "Port Example", "Mustertal", "Fictia", "Utopia")


class StandIns:
    """The stand-ins of one conversation; `changes` are the differences in tokens, one for each different text."""

    def __init__(self, policy: Policy, tokenizer: Tokenizer, key: bytes = b"") -> None:
        self._policy = policy
        self._tokenizer = tokenizer
        self._key = key
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self.changes: list[int] = []

    def find(self, entity: str, surface: str, action: Action = "mask") -> str:
        """Return the stand-in for *surface*; case and blanks do not matter."""
        plain = " ".join(surface.casefold().split())
        if (entity, plain) not in self._known:
            self._counts[entity] = self._counts.get(entity, 0) + 1
            self._known[entity, plain] = self._write(entity, surface, plain, action)
        return self._known[entity, plain]

    def _write(self, entity: str, surface: str, plain: str, action: Action) -> str:
        number = self._counts[entity]
        if action == "hash":
            code = hmac.digest(self._key, f"{entity} {plain}".encode(), "sha256").hex()[:HASH_DIGITS]
            text = f"<{entity}_{code}>"
        elif action == "surrogate":
            text = invent_surrogate(entity, surface, number, self._policy.seed)
        else:
            text = f"https://example.invalid/{number}" if entity == "URL" else f"<{entity}_{number}>"
        before, after = self._tokenizer.count([surface, text])
        if before - after > self._policy.tolerance_tokens:
            text = _fill(text, before - after)
            after = self._tokenizer.count([text])[0]
        self.changes.append(after - before)
        return text


def check_key(policy: Policy, key: bytes) -> None:
    """Raise PolicyError where *policy* hashes and *key* is too short to keep a hash from being undone."""
    if len(key) < KEY_BYTES and any(rule.action == "hash" for rule in policy.rules):
        raise PolicyError(
            f"policy {policy.name!r}: action: hash needs a secret key of {KEY_BYTES} bytes or more, found {len(key)}; "
            "pass one as key=..., or use the action mask"
        )


def invent_surrogate(entity: str, surface: str, number: int, seed: int = 0) -> str:
    """Return the *number*-th invented value of a kind, in the form of *surface*."""
    write = _FORMS.get(entity)
    return write(surface, number, seed) if write else _keep_form(surface, number, "0", "x")


def _fill(text: str, tokens: int) -> str:
    if text.startswith("https://"):
        return f"{text}/{write_filler(tokens).replace(' ', '/')}"
    return f"{text[:-1]} {write_filler(tokens)}>" if text.endswith(">") else f"{text} {write_filler(tokens)}"


def _keep_form(surface: str, number: int, digit: str, letter: str) -> str:
    """Return *surface* with other digits and letters, and *number* in its last digits, or letters if it has none."""
    text = re.sub(r"\d", digit, re.sub(r"[^\W\d_]", letter, surface))
    places = [place for place, each in enumerate(text) if each == digit] or [
        place for place, each in enumerate(text) if each == letter
    ]
    characters = list(text)
    for place, each in zip(reversed(places), reversed(str(number)), strict=False):
        characters[place] = each
    return "".join(characters)


def _fit_digits(surface: str, digits: str, lead: str) -> str:
    """Return *surface* with *digits* in its last digits, and *lead* repeated before them."""
    asked = len(re.findall(r"\d", surface))
    filled = iter((lead * asked + digits)[-asked:] if asked else "")
    return re.sub(r"\d", lambda _: next(filled), surface)


def _person(surface: str, number: int, seed: int) -> str:
    rng = open_stream(seed, "surrogates")
    turn = int(rng.random() * len(_GIVEN)) + number - 1
    given, family = _GIVEN[turn % len(_GIVEN)], _FAMILY[turn % len(_FAMILY)]  # 11 and 10: 110 pairs before one recurs
    return f"{given} {family}" if " " in surface.strip() or number > len(_GIVEN) else given


def _place(surface: str, number: int, seed: int) -> str:
    turn = int(open_stream(seed, "surrogates").random() * len(_TOWNS)) + number - 1
    again = turn // len(_TOWNS)
    return _TOWNS[turn % len(_TOWNS)] + (f" {again + 1}" if again else "")


def _email(surface: str, number: int, _: int) -> str:
    tail = f"{number}@example.com"
    return "user".ljust(max(4, len(surface) - len(tail)), "x") + tail


def _url(surface: str, number: int, _: int) -> str:
    head = f"https://example.invalid/{number}"
    return head + ("/" + "x" * (len(surface) - len(head) - 1) if len(surface) > len(head) + 1 else "")


def _ip(surface: str, number: int, _: int) -> str:
    return f"2001:db8::{number:x}" if ":" in surface else f"192.0.2.{number % 256}"


def _phone(surface: str, number: int, _: int) -> str:
    return _fit_digits(surface, f"55501{number % 100:02d}", "9" if surface.lstrip().startswith("+") else "0")


_FORMS: dict[str, Callable[[str, int, int], str]] = {
    "PERSON": _person,
    "LOCATION": _place,
    "EMAIL_ADDRESS": _email,
    "URL": _url,
    "IP_ADDRESS": _ip,
    "PHONE_NUMBER": _phone,
    "STREET_ADDRESS": lambda surface, number, _: f"{number} Example Street",
    "MAC_ADDRESS": lambda surface, number, _: f"00:00:5E:00:53:{number % 256:02x}",
}

# An invented, labelled corpus: what a policy must find, and what it must leave alone.
#
# Law: nobody in it exists. Hosts and addresses come from example.com and its like (RFC 2606), IP addresses from
# 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24 and 2001:db8::/32 (RFC 5737, 3849), American phones from
# 555-01xx, British ones from Ofcom's ranges for drama, MAC addresses from 00:00:5E:00:53 (RFC 7042); keys are
# drawn at random, and card, account and identity numbers have right check digits but no owner. Nothing is
# stored: the corpus is made from a seed when it is needed, so that no key-shaped string lies in the repository.
#
# A template names kinds in braces. There are two sets with different names, streets and templates: "shown" is
# what the policies were written against, "unseen" was written once, before, and only measured.
#
# Every text is either English or Korean, and about people, secrets or code; those of the kind "negative" hold
# nothing that a policy should touch: they are of the classes in which recognizers are known to misfire on chat
# and code.

"""Labelled texts from a seed: `invent("shown", seed=7, n=1000)`."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import string
from collections.abc import Callable, Iterator
from typing import NamedTuple

from names import NAMES, NEGATIVES, PLACES, STREETS, TEMPLATES

Draw = Callable[[random.Random], str]

_PART = re.compile(r"\{([A-Z_]+)\}")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_LETTERS = string.ascii_letters + string.digits


class Label(NamedTuple):
    """A stretch of a text, in code points, and what it is."""

    start: int
    end: int
    kind: str


class Labelled(NamedTuple):
    """A text with all that is in it; `negative` says that nothing is."""

    text: str
    labels: tuple[Label, ...]
    negative: bool


def invent(split: str, *, seed: int, n: int) -> Iterator[Labelled]:
    """Yield *n* labelled texts of a set: its templates in turn, one of its hard negatives after every two."""
    rng = random.Random(f"{split} {seed}")
    templates, negatives = TEMPLATES[split], NEGATIVES[split]
    for number in range(n):
        if number % 3 == 2:
            yield Labelled(_vary(negatives[number // 3 % len(negatives)], rng), (), True)
        else:
            yield _fill(templates[(number - number // 3) % len(templates)], split, rng)


def _fill(template: str, split: str, rng: random.Random) -> Labelled:
    parts: list[str] = []
    labels: list[Label] = []
    length = at = 0
    person = rng.choice(NAMES[split]["en"])
    for match in _PART.finditer(template):
        kind = match[1]
        value = person if kind == "PERSON" else _draw(kind, split, rng)
        before = template[at : match.start()]
        parts += (before, value)
        start = length + len(before)
        labels.append(Label(start, start + len(value), kind))
        length, at = start + len(value), match.end()
    return Labelled("".join((*parts, template[at:])), tuple(labels), False)


def _vary(text: str, rng: random.Random) -> str:
    """Other digits in a negative, so that no two are alike; version numbers and the like keep their form."""
    return re.sub(r"7(?!\.0\.0\.1)", lambda _: str(rng.randrange(1, 10)), text)


def _draw(kind: str, split: str, rng: random.Random) -> str:
    if kind == "PERSON_KO":
        return rng.choice(NAMES[split]["ko"])
    if kind in ("LOCATION", "LOCATION_KO"):
        return rng.choice(PLACES[split]["ko" if kind.endswith("KO") else "en"])
    if kind in ("STREET_ADDRESS", "STREET_ADDRESS_KO"):
        form = rng.choice(STREETS[split]["ko" if kind.endswith("KO") else "en"])
        return re.sub("9", lambda _: str(rng.randrange(1, 10)), form)
    return KINDS[kind](rng)


def _digits(rng: random.Random, n: int) -> str:
    return "".join(rng.choice(string.digits) for _ in range(n))


def _token(rng: random.Random, n: int, alphabet: str = _LETTERS) -> str:
    """Letters and at least one digit, as every generator of keys makes them but once in thousands."""
    text = "".join(rng.choice(alphabet) for _ in range(n - 1))
    at = rng.randrange(n)
    return text[:at] + rng.choice(string.digits) + text[at:]


def _number(rng: random.Random, form: str) -> str:
    """Return *form* with a digit for each #."""
    return re.sub("#", lambda _: rng.choice(string.digits), form)


def _email(rng: random.Random) -> str:
    user = rng.choice(("ada", "k.lind", "sales", "o_neal", "m.rossi", "first.last", "kim")) + _digits(rng, 2)
    return f"{user}@{rng.choice(('', 'mail.', 'eu.'))}example.{rng.choice(('com', 'org', 'net'))}"


def _phone(rng: random.Random) -> str:
    area, line = rng.choice(("212", "305", "415", "503", "617", "702")), _number(rng, "01##")
    forms = (
        f"({area}) 555-{line}",
        f"{area}-555-{line}",
        f"+1 {area} 555 {line}",
        f"{area}.555.{line}",
        f"1-{area}-555-{line}",
    )
    others = (
        _number(rng, "+44 20 7946 0###"),
        _number(rng, "020 7946 0###"),
        _number(rng, "+44 7700 900###"),
        _number(rng, "07700 900###"),
    )
    return rng.choice((*forms, *others))


def _korean_phone(rng: random.Random) -> str:
    mobile = _number(rng, f"{rng.randrange(2, 10)}###"), _number(rng, "####")
    forms = (
        f"010-{mobile[0]}-{mobile[1]}",
        f"010{''.join(mobile)}",
        f"010 {mobile[0]} {mobile[1]}",
        f"+82 10-{mobile[0]}-{mobile[1]}",
    )
    return rng.choice(
        (*forms, _number(rng, "02-7##-####"), _number(rng, "031-8##-####"), _number(rng, "070-4###-####"))
    )


def _resident(rng: random.Random, sexes: str, valid: bool = True) -> str:
    born = f"{rng.randrange(100):02d}{rng.randrange(1, 13):02d}{rng.randrange(1, 29):02d}"
    body = f"{born}{rng.choice(sexes)}{_digits(rng, 5)}"
    total = sum(int(digit) * weight for digit, weight in zip(body, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5), strict=True))
    check = (11 - total % 11 + (2 if sexes[0] in "5678" else 0)) % 10
    check = check if valid else (check + rng.randrange(1, 10)) % 10
    return f"{body[:6]}-{body[6:]}{check}"


def _business(rng: random.Random) -> str:
    body = [rng.randrange(1, 10), *(rng.randrange(10) for _ in range(8))]
    total = sum(a * b for a, b in zip(body, (1, 3, 7, 1, 3, 7, 1, 3, 5), strict=True)) + body[8] * 5 // 10
    text = "".join(map(str, (*body, (10 - total % 10) % 10)))
    return f"{text[:3]}-{text[3:5]}-{text[5:]}"


def _card(rng: random.Random) -> str:
    start = rng.choice(("4", "51", "55", "37", "6011"))
    body = start + _digits(rng, (14 if start == "37" else 15) - len(start))
    total = sum(
        sum(divmod(int(digit) * (2 if place % 2 == 0 else 1), 10)) for place, digit in enumerate(reversed(body))
    )
    text = body + str(-total % 10)
    separator = rng.choice(("", " ", "-")) if len(text) == 16 else ""
    return separator.join(text[at : at + 4] for at in range(0, 16, 4))


def _iban(rng: random.Random) -> str:
    country, account = rng.choice(
        (("DE", _digits(rng, 18)), ("GB", "WEST" + _digits(rng, 14)), ("FR", _digits(rng, 23)))
    )
    check = 98 - int("".join(str(int(each, 36)) for each in account + country + "00")) % 97
    text = f"{country}{check:02d}{account}"
    return text if rng.random() < 0.5 else " ".join(text[at : at + 4] for at in range(0, len(text), 4))


def _bitcoin(rng: random.Random) -> str:
    raw = bytes([0]) + rng.randbytes(20)
    raw += hashlib.sha256(hashlib.sha256(raw).digest()).digest()[:4]
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _BASE58[digit] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + text


def _web_token(rng: random.Random) -> str:
    parts = (b'{"alg":"HS256","typ":"JWT"}', json.dumps({"sub": _digits(rng, 10)}).encode(), rng.randbytes(32))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def _private_key(rng: random.Random) -> str:
    body = "\n".join(base64.b64encode(rng.randbytes(48)).decode() for _ in range(6))
    return f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{body}\n-----END RSA PRIVATE {'KEY'}-----"


_PREFIXED = {  # kind: prefix, length of the rest, alphabet
    "AWS_KEY": ("AKIA", 16, string.ascii_uppercase + "234567"),
    "GITHUB_TOKEN": ("ghp_", 36, _LETTERS),
    "SLACK_TOKEN": ("xoxb-", 48, string.digits + string.ascii_lowercase),
    "STRIPE_KEY": ("sk_live_", 24, _LETTERS),
    "GOOGLE_KEY": ("AIza", 35, _LETTERS + "_-"),
    "HUB_TOKEN": ("hf_", 34, _LETTERS),
    "GITLAB_TOKEN": ("glpat-", 20, _LETTERS),
}

KINDS: dict[str, Draw] = {
    **{
        kind: lambda rng, form=form: form[0] + _token(rng, form[1], form[2])  # type: ignore[misc]
        for kind, form in _PREFIXED.items()
    },
    "EMAIL_ADDRESS": _email,
    "PHONE_NUMBER": _phone,
    "PHONE_KO": _korean_phone,
    "IP_ADDRESS": lambda rng: rng.choice(
        (
            f"203.0.113.{rng.randrange(1, 255)}",
            f"198.51.100.{rng.randrange(1, 255)}",
            f"2001:db8:{rng.randrange(65536):x}::{rng.randrange(1, 65536):x}",
        )
    ),
    "MAC_ADDRESS": lambda rng: f"00:00:5E:00:53:{rng.randrange(256):02x}",
    "CREDIT_CARD": _card,
    "IBAN_CODE": _iban,
    "US_SSN": lambda rng: f"{rng.randrange(100, 665)}-{rng.randrange(10, 99)}-{rng.randrange(1000, 9999)}",
    "KR_RRN": lambda rng: _resident(rng, "1234"),
    "KR_RRN_UNCHECKED": lambda rng: _resident(rng, "34", valid=False),
    "KR_RRN_FOREIGN": lambda rng: _resident(rng, "5678"),
    "KR_BRN": _business,
    "KR_DRIVER_LICENSE": lambda rng: _number(rng, f"{rng.randrange(11, 29)}-##-######-##"),
    "KR_PASSPORT": lambda rng: _number(rng, f"M###{rng.choice(string.ascii_uppercase)}####"),
    "KR_BANK_ACCOUNT": lambda rng: _number(rng, rng.choice(("1##-2#-######", "3##-####-####-##", "110-###-######"))),
    "BITCOIN": _bitcoin,
    "ETHEREUM": lambda rng: "0x" + _token(rng, 40, "0123456789abcdef"),
    "AWS_SECRET": lambda rng: _token(rng, 40, _LETTERS + "/+"),
    "OPENAI_KEY": lambda rng: f"sk-{_token(rng, 20)}T3BlbkFJ{_token(rng, 20)}",
    "WEB_TOKEN": _web_token,
    "PRIVATE_KEY": _private_key,
    "PASSWORD": lambda rng: _token(rng, 14, _LETTERS + "!#%&*+-"),
    "URL_TOKEN": lambda rng: f"https://files.example.com/d?id={_digits(rng, 4)}&access_token={_token(rng, 32)}",
    "URL": lambda rng: f"https://www.example.org/{rng.choice(('a', 'blog', 'u/ada'))}/{_digits(rng, 3)}.html",
    "URL_CREDENTIAL": lambda rng: f"{rng.choice(('app', 'root', 'ada'))}:{_token(rng, 14)}",
}

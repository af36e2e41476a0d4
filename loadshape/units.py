# Parse and print quantities; the only place that does.
#
# Inside loadshape a number carries its unit in its name (_ns, _s, _hz, _bytes, _tokens). People write
# "250 ms", "5 min" and "40/s": that text is turned into numbers here, and numbers into text here.

"""Durations, rates and sizes as people write them."""

from __future__ import annotations

import math
import re

from loadshape.errors import InputError

NS_PER_S = 1_000_000_000

_DURATION_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?:/|per)\s*([a-z]+)\s*")
_TOKENS = re.compile(r"\s*([0-9]+)\s*(?:tokens?)?\s*")
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")


def parse_duration_s(text: str, field: str = "duration") -> float:
    """Return seconds from "90", "90s", "1.5 min", "250 ms" or "1h30m".

    Raises InputError naming *field* for anything else, and for a negative or non-finite value.
    """
    total_s, position = 0.0, 0
    while position < len(text) or position == 0:
        part = _QUANTITY.match(text, position)
        if part is None:
            raise InputError(f"{field}: expected a duration such as 20s, 1.5min or 250ms, found {text!r}")
        number, unit = part.groups()
        if unit not in _DURATION_S and unit:
            known = ", ".join(_DURATION_S)
            raise InputError(f"{field}: unknown unit {unit!r} in {text!r}; use one of {known}")
        total_s += float(number) * _DURATION_S[unit or "s"]
        position = part.end()
    if math.isinf(total_s):
        raise InputError(f"{field}: expected a finite duration, found {text[:40]!r}")
    return total_s


def parse_span_s(text: str, field: str = "span") -> tuple[float, float]:
    """Return (begin, end) in seconds from "10min-20min". Raises InputError naming *field*."""
    begin, mark, end = text.partition("-")
    if not mark:
        raise InputError(f"{field}: expected two times such as 10min-20min, found {text!r}")
    begin_s, end_s = parse_duration_s(begin, field), parse_duration_s(end, field)
    if begin_s >= end_s:
        raise InputError(f"{field}: expected the end behind the begin, found {text!r}")
    return begin_s, end_s


def parse_rate_hz(text: str, field: str = "rate") -> float:
    """Return the events per second of "40/s", "2400/min" or "0.5 per h". Raises InputError naming *field*."""
    found = _RATE.fullmatch(text)
    if found is None or found[2] not in _DURATION_S:
        raise InputError(f"{field}: expected a rate such as 40/s or 2400/min, found {text!r}")
    return float(found[1]) / _DURATION_S[found[2]]


def parse_tokens(text: str, field: str = "tokens") -> int:
    """Return the number in "512 tokens" or "1 token". Raises InputError naming *field*."""
    found = _TOKENS.fullmatch(text)
    if found is None:
        raise InputError(f"{field}: expected a whole number of tokens such as 512 tokens, found {text!r}")
    return int(found[1])


def to_ns(seconds: float) -> int:
    """Return whole nanoseconds."""
    return round(seconds * NS_PER_S)


def format_duration(seconds: float | None) -> str:
    """Return a duration with three significant digits and a fitting unit; "n/a" for None and nan."""
    if seconds is None or math.isnan(seconds):
        return "n/a"
    if math.isinf(seconds):
        return "inf" if seconds > 0 else "-inf"
    size = abs(seconds)
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if size < limit:
            return f"{_three_digits(seconds * scale)} {unit}"
    return f"{_three_digits(seconds / 60)} min" if size < 7200 else f"{_three_digits(seconds / 3600)} h"


def format_bytes(count: float) -> str:
    """Return a size in B, kB, MB or GB (powers of 1000)."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= scale:
            return f"{_three_digits(count / scale)} {unit}"
    return f"{count:.0f} B"


def format_rate(per_s: float | None, noun: str = "") -> str:
    """Return "12.3 NOUN/s"; "n/a" for None and nan."""
    if per_s is None or math.isnan(per_s):
        return "n/a"
    return f"{_three_digits(per_s)}{' ' + noun if noun else ''}/s"


def _three_digits(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 3)}f}"

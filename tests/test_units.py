from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import InputError
from loadshape.units import format_bytes, format_duration, format_rate, parse_duration_s, to_ns


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        (" 90 s ", 90.0),
        ("1.5 min", 90.0),
        ("2m", 120.0),
        ("250 ms", 0.25),
        ("250us", 0.00025),
        ("3ns", 3e-9),
        ("1h30m", 5400.0),
        ("1h 30min 5s", 5405.0),
        ("2d", 172_800.0),
        (".5s", 0.5),
        ("5.s", 5.0),
        ("0", 0.0),
    ],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "-5s",
        "+5s",
        "5 parsecs",
        "5 S",
        "1e3",
        "nan",
        "inf",
        "5s x",
        "1,5s",
        "5..s",
        "٣s",
        "1h-30m",
        "9" * 400,
    ],
)
def test_what_is_no_duration_names_its_field(text: str) -> None:
    with pytest.raises(InputError, match=re.escape("--duration: ")) as caught:
        parse_duration_s(text, "--duration")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ns"),
        (0.000_000_25, "250 ns"),
        (0.000_012_3, "12.3 us"),
        (0.001, "1.00 ms"),
        (0.123_4, "123 ms"),
        (-0.05, "-50.0 ms"),
        (1.0, "1.00 s"),
        (20, "20.0 s"),
        (119.9, "120 s"),
        (300, "5.00 min"),
        (7200, "2.00 h"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "n/a"),
        (None, "n/a"),
    ],
)
def test_durations_have_three_digits_and_a_fitting_unit(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (132e6, "132 MB"), (2.5e9, "2.50 GB")]
)
def test_sizes(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("per_s", "noun", "text"),
    [
        (40, "requests", "40.0 requests/s"),
        (1234.5, "tokens", "1,234 tokens/s"),
        (0.5, "", "0.500/s"),
        (0, "", "0/s"),
        (None, "requests", "n/a"),
        (math.nan, "requests", "n/a"),
    ],
)
def test_rates(per_s: float | None, noun: str, text: str) -> None:
    assert format_rate(per_s, noun) == text


@pytest.mark.parametrize(("seconds", "ns"), [(0.1, 100_000_000), (1e-9, 1), (4e-10, 0), (20, 20 * 10**9)])
def test_seconds_become_whole_nanoseconds(seconds: float, ns: int) -> None:
    assert to_ns(seconds) == ns
    assert isinstance(to_ns(seconds), int)


# Properties


@given(st.integers(0, 10**6), st.sampled_from(["", "s", "ms", "us", "min", "h"]), st.sampled_from(["", " "]))
def test_a_unit_scales_its_number(number: int, unit: str, blank: str) -> None:
    one_s = parse_duration_s(f"1{unit}")
    assert parse_duration_s(f"{number}{blank}{unit}") == pytest.approx(number * one_s)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_an_input_error(text: str) -> None:
    try:
        seconds = parse_duration_s(text)
    except InputError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0


@given(st.floats(1e-9, 1e9))
def test_a_printed_duration_is_within_half_a_percent(seconds: float) -> None:
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    number, unit = format_duration(seconds).split()
    assert float(number.replace(",", "")) * units[unit] == pytest.approx(seconds, rel=0.0051)

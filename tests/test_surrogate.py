# Stand-ins: the same for the same text, of the same kind and length, and nothing to reverse.

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import PolicyError
from loadshape.policy import Policy
from loadshape.surrogate import StandIns, check_key, invent_surrogate
from loadshape.tokenizer import Estimate

KEY = b"0123456789abcdef"


def make(action: str = "mask", tolerance: int = 8) -> Policy:
    return Policy.parse(
        f"name = 'p'\nversion = 1\ntolerance_tokens = {tolerance}\n"
        f"[[rule]]\nentity = 'E'\nrecognizer = 'pattern'\npatterns = ['x']\naction = '{action}'"
    )


def test_one_text_has_one_name() -> None:
    names = StandIns(make(), Estimate())
    asked = [("PERSON", "Ada  Example"), ("PERSON", "Bob"), ("CITY", "Ada Example"), ("PERSON", "ADA example")]
    assert [names.find(*each) for each in asked] == ["<PERSON_1>", "<PERSON_2>", "<CITY_1>", "<PERSON_1>"]


def test_urls_stay_urls() -> None:
    assert StandIns(make(), Estimate()).find("URL", "https://www.example.com/") == "https://example.invalid/1"


def test_a_hash_needs_a_key_and_keeps_it() -> None:
    first, again, other = (
        StandIns(make("hash"), Estimate(), key).find("E", "x", "hash") for key in (KEY, KEY, KEY[::-1])
    )
    assert re.fullmatch("<E_[0-9a-f]{12}>", first)
    assert first == again != other
    for key in (b"", b"short"):
        with pytest.raises(PolicyError, match="action: hash needs a secret key of 16 bytes"):
            check_key(make("hash"), key)
    check_key(make("hash"), KEY)
    check_key(make(), b"")


SURROGATES = {
    ("PERSON", "Maren Holloway"): r"[A-Z][a-z]+ [A-Z][a-z]+",
    ("PERSON", "Maren"): r"[A-Z][a-z]+",
    ("LOCATION", "Norway"): r"[A-Z][A-Za-z ]+",
    ("EMAIL_ADDRESS", "maren.holloway@example.org"): r"userx*1@example\.com",
    ("URL", "https://files.example.org/d?id=4&access_token=abcdef"): r"https://example\.invalid/1/x+",
    ("IP_ADDRESS", "203.0.113.77"): r"192\.0\.2\.1",
    ("IP_ADDRESS", "2001:db8:17::42"): r"2001:db8::1",
    ("PHONE_NUMBER", "(212) 555-0143"): r"\(000\) 555-0101",
    ("PHONE_NUMBER", "+44 20 7946 0123"): r"\+99 99 9555 0101",
    ("US_SSN", "219-09-9999"): r"000-00-0001",
    ("KR_RRN", "900101-1234568"): r"000000-0000001",
    ("CREDIT_CARD", "4111 1111 1111 1111"): r"0000 0000 0000 0001",
    ("SECRET", "hunter2hunter2"): r"xxxxxx0xxxxxx1",
    ("STREET_ADDRESS", "1482 Larkspur Lane"): r"1 Example Street",
}


@pytest.mark.parametrize("case", SURROGATES)
def test_surrogates_are_of_the_same_kind(case: tuple[str, str]) -> None:
    assert re.fullmatch(SURROGATES[case], invent_surrogate(*case, 1))


def test_surrogates_follow_the_seed_and_the_order_alone() -> None:
    assert invent_surrogate("PERSON", "Maren", 1, 3) == invent_surrogate("PERSON", "Tobias", 1, 3)
    assert len({invent_surrogate("PERSON", "Maren Holloway", number, 3) for number in range(1, 60)}) == 59


ENTITIES = st.sampled_from(["PERSON", "URL", "SECRET", "EMAIL_ADDRESS", "PHONE_NUMBER", "STREET_ADDRESS", "KR_RRN"])
TEXTS = st.text(st.sampled_from("aB3 -@.한"), min_size=1, max_size=200)


@given(ENTITIES, TEXTS, st.sampled_from(["mask", "hash", "surrogate"]), st.integers(0, 12))
def test_no_stand_in_is_too_short_and_none_repeats_the_text(
    entity: str, text: str, action: str, tolerance: int
) -> None:
    names = StandIns(make(tolerance=tolerance), Estimate(), KEY)
    stand_in = names.find(entity, text, action)  # type: ignore[arg-type]
    (change,) = names.changes
    assert change == Estimate().count([stand_in])[0] - Estimate().count([text])[0]
    assert -tolerance <= change
    assert len(text) < 12 or text not in stand_in

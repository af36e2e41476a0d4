# The page of a fixture: its numbers, and never its text.

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.audit import examine_fixture
from loadshape.conversation import Conversation, Message
from loadshape.fixture import Fixture
from loadshape.leaflet import measure_lengths, write_leaflet
from loadshape.policy import Policy
from loadshape.sanitizer import sanitize

POLICY = Policy.parse("""
name = "<b>names</b>"
version = 1
tolerance_tokens = 3

[[rule]]
entity = "NAME"
recognizer = "pattern"
patterns = ['Ada(?: Ada)*|Bob']

[[rule]]
entity = "RISK"
recognizer = "pattern"
patterns = ['risk']
action = "drop_conversation"
""")
GIVEN = [
    Conversation(
        "secret-identity", (Message("user", "I am Ada. zebra"), Message("assistant", "Hi Ada.")), (), ("lab",)
    ),
    Conversation("B", (Message("user", "risk"), Message("assistant", "none"))),
    Conversation("C", (Message("user", "\x00Bob"), Message("assistant", "giraffe"))),
]


def test_the_page_shows_numbers_and_no_text(tmp_path: Path) -> None:
    fixture = Fixture.write(tmp_path / "a<i>.fixture", sanitize(GIVEN, POLICY))
    page = write_leaflet(fixture)
    assert "3 read = 2 kept + 1 dropped" in page
    for row in (
        'kept</th><td class="number">2',
        'policy:RISK</th><td class="number">1',
        'NAME</th><td class="number">3',
    ):
        assert row in page
    assert "&lt;b&gt;names&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "a&lt;i&gt;.fixture" in page
    assert "Not measured" in page
    assert "Nobody has looked" in page
    for text in ("zebra", "giraffe", "NAME_1", "secret-identity", "lab<", "Hi "):
        assert text not in page
    assert not re.search(r"<script|https?://|url\(", page)


def test_the_audit_is_on_the_page(tmp_path: Path) -> None:
    fixture = Fixture.write(tmp_path / "a.fixture", sanitize(GIVEN, POLICY))
    rule = '[[rule]]\nentity = "ANIMAL"\nrecognizer = "pattern"\npatterns = ["zebra", "giraffe"]'
    examine_fixture(fixture, Policy.parse(f'name = "zoo"\nversion = 1\n{rule}'))
    page = write_leaflet(fixture)
    assert "zoo finds ANIMAL 2, in 2 of 2 conversations" in page
    assert "zebra" not in page


def test_an_empty_fixture_has_a_page(tmp_path: Path) -> None:
    assert "0 read = 0 kept" in write_leaflet(Fixture.write(tmp_path / "a.fixture", sanitize([], POLICY)))


@settings(max_examples=15)  # each writes a folder, and waits for the disk
@given(st.lists(st.lists(st.sampled_from(["Ada", "Bob", "one", "한국", "😀 two"]), min_size=1, max_size=6), max_size=5))
def test_lengths_are_those_of_the_texts(texts: list[list[str]]) -> None:
    given = [
        Conversation(f"X{n}", (Message("user", " ".join(words)), Message("assistant", "well Bob")))
        for n, words in enumerate(texts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        fixture = Fixture.write(Path(folder) / "a.fixture", sanitize(given, POLICY))
        before, after = measure_lengths(fixture)
        assert before == [len(message.text) for it in given for message in it.messages]
        assert after == [len(message.text) for it in fixture for message in it.messages]

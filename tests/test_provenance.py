# Where data came from, and that every row of it is accounted for.

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.errors import SourceError
from loadshape.fixture import Fixture
from loadshape.policy import Policy
from loadshape.provenance import NOT_STATED, Account, Provenance, Tally, date_file
from loadshape.sanitizer import sanitize
from loadshape.sources import read

ORIGIN = Provenance(source="messages", name="a.jsonl", bytes=3, sha256="00", revision="r1")
POLICY = Policy.parse("""
name = "rows"
version = 1

[[rule]]
entity = "RISK"
recognizer = "pattern"
patterns = ['risk']
action = "drop_conversation"

[[rule]]
entity = "TURN"
recognizer = "pattern"
patterns = ['turn']
action = "drop_turn"
""")


def test_what_is_stated_is_marked_as_such() -> None:
    assert ORIGIN.licence == NOT_STATED
    said = ORIGIN.state({"licence": "CC0-1.0", "uri": "https://example.com"})
    assert (said.licence, said.uri, said.stated) == ("CC0-1.0", "https://example.com", ("licence", "uri"))
    assert said.state({"retrieved_at": "2026"}).stated == ("licence", "retrieved_at", "uri")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"license": "MIT"}, "expected licence, uri, revision, retrieved_at"),
        ({"licence": ""}, "with a value each, found licence=''"),
        ({"sha256": "11"}, "found sha256='11'"),
        ({"revision": "r2"}, "revision: the bytes of a.jsonl are known as 'r1', found 'r2'"),
    ],
)
def test_what_cannot_be_stated_is_refused(said: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        ORIGIN.state(said)


def test_the_time_of_retrieval_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    os.utime(path, (0, 86_400))
    assert date_file(path) == "1970-01-02T00:00:00+00:00"


def test_an_account_balances_or_is_refused() -> None:
    assert Account(3, 1, {"empty": 2}).kept == 1
    with pytest.raises(ValueError, match="rows read 3 != kept 1"):
        Account(3, 1, {"empty": 1})


def test_a_tally_counts_nothing_as_nothing() -> None:
    tally = Tally()
    tally.drop("empty", 0)
    assert tally.account() == Account()


WORDS = st.sampled_from(["", " ", "hello", "risk", "turn", "bye", "한국"])
SPEAKERS = st.sampled_from(["human", "gpt", "system", "nobody"])
TURNS = st.lists(st.fixed_dictionaries({"from": SPEAKERS, "value": WORDS}), max_size=5)
IDS = st.builds("{}_{}".format, st.sampled_from("XY"), st.integers(0, 6)) | st.none()
ODD = st.sampled_from([{}, {"id": 3}, {"conversations": "no"}, {"conversations": [{"from": 1}]}])
ROWS = st.lists(st.fixed_dictionaries({"id": IDS, "conversations": TURNS}) | ODD, max_size=12)


def write_fixture(folder: Path, source: str, rows: list[Any], **limits: int) -> Fixture:
    (folder / "rows.json").write_text(json.dumps(rows))
    return Fixture.write(folder / "a.fixture", sanitize(read(source, folder / "rows.json", **limits), POLICY))  # type: ignore[arg-type]


@settings(max_examples=40)  # each writes a folder, and waits for the disk
@given(ROWS, st.sampled_from(["sharegpt", "messages"]), st.integers(1, 9), st.integers(1, 30))
def test_every_row_is_kept_or_dropped_for_a_reason(rows: list[Any], source: str, limit: int, longest: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            fixture = write_fixture(Path(folder), source, rows, limit=limit, max_characters=longest)
        except SourceError:
            assert not any("id" in row and "conversations" in row for row in rows), "none is in the format"
            return
        account = fixture.manifest.account
        fixture.verify()
        assert account.read == len(rows) == account.kept + sum(account.dropped.values())
        assert account.conversations == len(fixture) <= limit
        kept = [row for conversation in fixture for row in conversation.rows]
        assert len(kept) == account.kept
        texts = [message.text for conversation in fixture for message in conversation.messages]
        assert fixture.manifest.repeated_messages == len(texts) - len(set(texts))

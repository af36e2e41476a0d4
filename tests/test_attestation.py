# What a fixture says of itself to other programs: complete, true, and never more than is known.

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from loadshape.attestation import describe_croissant, describe_statement, export_fixture
from loadshape.errors import InputError
from loadshape.fixture import Fixture
from loadshape.policy import Policy
from loadshape.sanitizer import sanitize
from loadshape.sources import read

POLICY = Policy.parse("""
name = "names"
version = 1

[[rule]]
entity = "NAME"
recognizer = "pattern"
patterns = ['Ada|Bob']
""")
STATED = {"licence": "CC0-1.0", "uri": "https://example.com/chats", "revision": "r7", "retrieved_at": "2026-01-02"}


def write(folder: Path, stated: dict[str, str] | None = None) -> Fixture:
    messages = [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello Ada."}]
    (folder / "chats.jsonl").write_text(json.dumps({"id": "X", "messages": messages}))
    source = read("messages", folder / "chats.jsonl")
    return Fixture.write(folder / "chats.fixture", sanitize(source, POLICY), stated=stated, force=True)


def list_texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in list_texts(each)]
    return [text for each in value for text in list_texts(each)] if isinstance(value, list) else [str(value)]


def test_croissant_names_tables_with_their_hashes(tmp_path: Path) -> None:
    fixture = write(tmp_path, STATED)
    described = json.loads(export_fixture(fixture, tmp_path / "c.json", "croissant").read_text())
    assert described == describe_croissant(fixture)
    assert (described["@type"], described["conformsTo"]) == ("sc:Dataset", "http://mlcommons.org/croissant/1.0")
    assert {"name", "description", "license", "url", "creator", "datePublished", "version"} <= set(described)
    assert (described["license"], described["url"], described["version"]) == (
        "CC0-1.0",
        "https://example.com/chats",
        fixture.digest,
    )
    for file in described["distribution"]:
        raw = (fixture.path / file["contentUrl"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(raw).hexdigest()
        assert file["contentSize"] == f"{len(raw)} B"
    known = {file["@id"] for file in described["distribution"]}
    fields = [field for record in described["recordSet"] for field in record["field"]]
    assert {field["source"]["fileObject"]["@id"] for field in fields} == known
    assert len({field["@id"] for field in fields}) == len(fields) == 12


def test_the_statement_names_what_went_in(tmp_path: Path) -> None:
    fixture = write(tmp_path, STATED)
    statement = describe_statement(fixture)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert [subject["name"] for subject in statement["subject"]] == ["conversations.arrow", "findings.arrow"]
    source, policy = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    raw = (tmp_path / "chats.jsonl").read_bytes()
    assert source["digest"] == {"sha256": hashlib.sha256(raw).hexdigest()}
    assert source["uri"] == "https://example.com/chats"
    assert source["annotations"]["retrieved_at"] == "2026-01-02"
    assert list(source["annotations"]["stated"]) == ["licence", "retrieved_at", "revision", "uri"]
    assert policy == {"name": "policy names", "digest": {"sha256": POLICY.digest}}


def test_packages_that_decided_have_digests(tmp_path: Path) -> None:
    pytest.importorskip("presidio_analyzer")
    rule = '[[rule]]\nentity = "IP"\nrecognizer = "presidio:IpRecognizer"'
    policy = Policy.parse(f'name = "p"\nversion = 1\n{rule}')
    fixture = Fixture.write(tmp_path / "a.fixture", sanitize([], policy))
    packages = describe_statement(fixture)["predicate"]["buildDefinition"]["resolvedDependencies"][1:]
    assert [each["name"] for each in packages] == ["presidio-analyzer", "phonenumbers"]
    assert all(len(each["digest"]["sha256"]) == 64 for each in packages)


@pytest.mark.parametrize("describe", [describe_croissant, describe_statement])
def test_descriptions_hold_no_text_and_no_guess(describe: Any, tmp_path: Path) -> None:
    texts = list_texts(describe(write(tmp_path)))
    assert "not stated" in texts
    assert not [text for text in texts if "Hello" in text or "NAME_1" in text or str(tmp_path) in text]


def test_text_without_a_licence_wants_to_be_asked_for(tmp_path: Path) -> None:
    fixture = write(tmp_path)
    with pytest.raises(InputError, match=r"licence of its text is not stated.*--with-text"):
        export_fixture(fixture, tmp_path / "out.jsonl", "messages")
    assert not (tmp_path / "out.jsonl").exists()
    export_fixture(fixture, tmp_path / "out.jsonl", "messages", with_text=True)
    assert next(iter(read("messages", tmp_path / "out.jsonl"))).messages == next(iter(fixture)).messages
    export_fixture(write(tmp_path, STATED), tmp_path / "other.jsonl", "messages")


def test_what_exists_stays(tmp_path: Path) -> None:
    fixture = write(tmp_path)
    path = export_fixture(fixture, tmp_path / "c.json", "croissant")
    with pytest.raises(InputError, match="exists; "):
        export_fixture(fixture, path, "in-toto")
    export_fixture(fixture, path, "in-toto", force=True)
    with pytest.raises(InputError, match="format: expected one of croissant, in-toto, messages, found 'croisant'"):
        export_fixture(fixture, tmp_path / "d.json", "croisant")

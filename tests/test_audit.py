# Audits: what is counted as left, what is not, and that no text gets out.

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadshape.audit import NAME, Residue, examine_fixture, read_audit
from loadshape.conversation import Conversation, Message
from loadshape.errors import FixtureError
from loadshape.fixture import Fixture
from loadshape.policy import Policy
from loadshape.sanitizer import sanitize


def policy(*patterns: str, entity: str = "NAME", action: str = "mask") -> Policy:
    rule = f'[[rule]]\nentity = "{entity}"\nrecognizer = "pattern"\naction = "{action}"\npatterns = {list(patterns)}\n'
    return Policy.parse(f'name = "p"\nversion = 1\n{rule}')


def write(path: Path, *prompts: str, cleaned_by: Policy) -> Fixture:
    conversations = [
        Conversation(f"X{n}", (Message("user", text), Message("assistant", "Well."))) for n, text in enumerate(prompts)
    ]
    return Fixture.write(path, sanitize(conversations, cleaned_by))


CASES = {
    # what: (prompt, cleaned by, detectors, findings left)
    "nothing left": ("I am Ada.", policy("Ada"), policy("Ada"), 0),
    "missed": ("I am Ada, not Bob.", policy("Ada"), policy("Ada", "Bob"), 1),
    "a stand-in is no finding": ("I am Ada.", policy("Ada"), policy("[A-Z]+_[0-9]"), 0),
    "nor with a bit beside it": ("It is Ada's.", policy("Ada"), policy("<[^ ]*"), 0),
    "half a name": ("I am Ada Muster.", policy("Ada"), policy("<[^.]*"), 1),
    "a surrogate is no finding": ("Ask Ada now", policy("Ada", action="surrogate"), policy("[^ ]+(?= now)"), 0),
    "short, but whole": ("I am Bo.", policy("Ada"), policy("Bo"), 1),
    "detectors do not drop": ("I am Bob.", policy("Ada"), policy("Bob", action="drop_conversation"), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_left(case: str, tmp_path: Path) -> None:
    prompt, cleaned_by, detectors, left = CASES[case]
    audit = examine_fixture(write(tmp_path / "a.fixture", prompt, cleaned_by=cleaned_by), detectors)
    assert audit.residue == ({"NAME": Residue(left, 1)} if left else {})
    assert audit.flagged == bool(left)


def test_an_audit_is_kept_with_its_fixture(tmp_path: Path) -> None:
    fixture = write(tmp_path / "a.fixture", "I am Bob Secretive.", "Bob and Bob", "Ada", cleaned_by=policy("Ada"))
    assert read_audit(fixture) is None
    audit = examine_fixture(fixture, policy("Bob", "Secretive"))
    assert (audit.residue, audit.flagged) == ({"NAME": Residue(4, 2)}, 2)
    assert audit.summary == "p finds NAME 4, in 2 of 3 conversations"
    assert read_audit(Fixture.open(fixture.path)) == audit
    assert "Secretive" not in (fixture.path / NAME).read_text()
    fixture.verify()


def test_the_number_of_processes_does_not_matter(tmp_path: Path) -> None:
    fixture = write(tmp_path / "a.fixture", *(f"Bob {n}" for n in range(9)), cleaned_by=policy("Ada"))
    audits = [examine_fixture(fixture, policy("Bob"), processes=processes) for processes in (1, 2)]
    first, second = (msgspec.structs.replace(audit, audited_at="") for audit in audits)
    assert first == second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.replace(b"sha256:", b"sha256:0"), "is of sha256:0"),
        (lambda raw: raw[:-9], "not an audit of ours"),
        (lambda raw: raw.replace(b'"flagged"', b'"flogged"'), "not an audit of ours"),
    ],
)
def test_another_audit_is_refused(change: object, message: str, tmp_path: Path) -> None:
    fixture = write(tmp_path / "a.fixture", "Bob", cleaned_by=policy("Ada"))
    examine_fixture(fixture, policy("Bob"))
    path = fixture.path / NAME
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(FixtureError, match=message):
        read_audit(fixture)


FOUND = [
    ("EMAIL_ADDRESS", "write to ada@example.com"),
    ("PHONE_NUMBER", "call +44 20 7946 0958"),
    ("SECRET", "the password: hunter2hunter2"),
    ("STREET_ADDRESS", "I live at 12 Elm Street"),
    ("PERSON", "my name is Ada"),
    ("PERSON", "Hello <PERSON_1> Muster"),
    ("US_SSN", "it is 000-12-3456"),
    ("IP_ADDRESS", "from 203.0.113.9"),
    ("URL", "see https://files.example.test/a"),
    ("HANDLE", "ask @ada_example"),
]
LEFT_ALONE = [
    "a = b[0] @ c",
    "at 127.0.0.1:80",
    "https://example.invalid/1",
    "version 1.2.3.4",
    "Dear Sir",
    "h2 x2 3.14159",
]


def test_the_packaged_detectors_find_much(tmp_path: Path) -> None:
    pytest.importorskip("presidio_analyzer")
    nothing = policy("never")
    detectors = Policy.load("audit")
    fixture = write(tmp_path / "a.fixture", *(text for _, text in FOUND), cleaned_by=nothing)
    kinds = {kind for kind, _ in FOUND}
    assert set(examine_fixture(fixture, detectors).residue) == kinds
    quiet = write(tmp_path / "b.fixture", *LEFT_ALONE, cleaned_by=nothing)
    assert examine_fixture(quiet, detectors).residue == {}

# Fixtures on disk: round trip, digest, damage, replacement, comparison.

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from loadshape import fixture as fixture_module
from loadshape.conversation import Conversation, Message
from loadshape.errors import FixtureError
from loadshape.fixture import CONVERSATION_SCHEMA, CONVERSATIONS, FINDINGS, Fixture
from loadshape.policy import Policy
from loadshape.sanitizer import Sanitized, sanitize
from loadshape.sources import read

POLICY = Policy.parse("""
name = "names"
version = 1

[[rule]]
entity = "NAME"
recognizer = "pattern"
patterns = ['Ada|Bob']
""")

CONVERSATIONS_GIVEN = [
    Conversation("A", (Message("user", "I am Ada."), Message("assistant", "Hi Ada, 안녕 😀!")), ("r1", "r2"), ("en",)),
    Conversation("B", (Message("system", "Be kind."), Message("user", "Who?"), Message("assistant", "Bob."))),
    Conversation("C", (Message("user", "one"), Message("assistant", "two"), Message("user", "three"))),
]


def clean(conversations: list[Conversation] | None = None) -> Sanitized:
    return sanitize(CONVERSATIONS_GIVEN if conversations is None else conversations, POLICY)


@pytest.fixture
def written(tmp_path: Path) -> Fixture:
    return Fixture.write(tmp_path / "a.fixture", clean())


def test_what_is_written_can_be_read(written: Fixture) -> None:
    fixture = Fixture.open(written.path)
    fixture.verify()
    assert [conversation.identity for conversation in fixture] == ["A", "B", "C"]
    assert next(iter(fixture)).messages[1] == Message("assistant", "Hi <NAME_1>, 안녕 😀!")
    assert [(each.rows, each.labels) for each in fixture] == [(("r1", "r2"), ("en",)), ((), ()), ((), ())]
    assert list(fixture.prompts()) == [
        ("I am <NAME_1>.", "Hi <NAME_1>, 안녕 😀!"),
        ("Who?", "<NAME_1>."),
        ("one", "two"),
    ]
    assert (len(fixture), fixture.findings) == (3, {"NAME": 3})
    assert fixture.findings_table.column("start").to_pylist() == [5, 3, 0]
    assert fixture.findings_table.column("conversation").to_pylist() == [0, 0, 1]


def test_the_manifest_says_how_it_was_made(written: Fixture) -> None:
    manifest = written.manifest
    assert (manifest.conversations, manifest.messages, manifest.policy.digest) == (3, 8, POLICY.digest)
    assert manifest.policy.content == POLICY.content
    assert manifest.characters == sum(conversation.characters for conversation in written)
    assert manifest.account.read == 4, "the two rows of A, and one each for conversations without rows"
    assert [record.name for record in manifest.filters] == ["control-sequence filter"]
    assert str(written.path.parent) not in (written.path / "manifest.json").read_text()


def test_the_text_that_was_removed_is_nowhere(written: Fixture) -> None:
    content = b"".join((written.path / name).read_bytes() for name in (CONVERSATIONS, FINDINGS))
    assert b"Ada" not in content
    assert b"Bob" not in content


def test_the_same_input_gives_the_same_digest(written: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixture_module, "BATCH_ROWS", 2)  # other batches, the same content
    again = Fixture.write(written.path.with_name("b.fixture"), clean())
    again.verify()
    assert again.digest == written.digest
    assert again.difference(written.conversation_digests()) == []


def test_the_digest_leaves_out_scores_and_covers_the_policy(written: Fixture) -> None:
    table = written.findings_table
    scored = table.set_column(table.schema.get_field_index("score"), "score", pa.array([0.5] * 3, pa.float32()))
    digest = fixture_module._digest
    assert digest(written.conversations, scored, POLICY.digest) == written.digest
    assert digest(written.conversations, table, "other") != written.digest
    assert digest(written.conversations, table.slice(1), POLICY.digest) != written.digest


def test_conversations_that_differ_are_named(written: Fixture) -> None:
    changed = [*CONVERSATIONS_GIVEN[:1], Conversation("B", (Message("user", "Bob?"), Message("assistant", "No.")))]
    other = Fixture.write(written.path.with_name("b.fixture"), clean(changed))
    assert other.digest != written.digest
    assert other.difference(written.conversation_digests()) == ["B", "C"]


def test_an_empty_fixture_is_a_fixture(tmp_path: Path) -> None:
    fixture = Fixture.write(tmp_path / "none.fixture", clean([]))
    fixture.verify()
    assert (len(fixture), fixture.findings, list(fixture.prompts())) == (0, {}, [])


def test_an_existing_fixture_is_replaced_only_with_force(written: Fixture) -> None:
    started: list[int] = []
    other = sanitize(CONVERSATIONS_GIVEN[:1], POLICY, progress=started.append)
    with pytest.raises(FixtureError, match=r"a\.fixture: exists; "):
        Fixture.write(written.path, other)
    assert not started, "refused before the work"
    assert len(Fixture.write(written.path, other, force=True)) == 1
    assert sorted(path.name for path in written.path.parent.iterdir()) == ["a.fixture"]


def test_nothing_but_a_fixture_is_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "photos"
    precious.mkdir()
    (precious / "one.jpg").write_bytes(b"x")
    with pytest.raises(FixtureError, match="is no fixture but something else"):
        Fixture.write(precious, clean(), force=True)
    assert (precious / "one.jpg").exists()


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> object:
        yield CONVERSATIONS_GIVEN[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Fixture.write(tmp_path / "a.fixture", sanitize(broken(), POLICY))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def edit(**fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def flip(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        assert old in raw
        (folder / name).write_bytes(raw.replace(old, new))

    return change


def other_columns(folder: Path) -> None:
    with pa.ipc.new_file(folder / CONVERSATIONS, pa.schema([("a", pa.int8())])):
        pass


def an_account_that_does_not_balance(folder: Path) -> None:
    edit(account={"read": 5, "kept": 4, "dropped": {}, "turns": {}, "conversations": 3})(folder)


DAMAGE = {
    # what happened: (how, what the error says)
    "a changed word": (flip(CONVERSATIONS, b"Be kind.", b"Be evil."), "digest: states sha256:"),
    "bad UTF-8": (flip(CONVERSATIONS, b"Be kind.", b"Be kin\xff\xff"), "a table is damaged: .*UTF8"),
    "a changed finding": (flip(FINDINGS, b"<NAME_1>", b"<NAME_2>"), "digest: states sha256:"),
    "a cut table": (
        lambda folder: (folder / FINDINGS).write_bytes(b"ARROW1"),
        r"findings\.arrow: expected an Arrow IPC file",
    ),
    "no table": (lambda folder: (folder / FINDINGS).unlink(), r"findings\.arrow: named by the manifest, but missing"),
    "other columns": (other_columns, r"conversations\.arrow: expected the columns"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "never finished"),
    "a later version": (edit(version=2), r"reads fixture versions 1 to 1, found 2; upgrade"),
    "another thing": (edit(format="loadshape trace"), "format: expected 'loadshape fixture', found 'loadshape trace'"),
    "another digest": (edit(digest="sha256:00"), "digest: states sha256:00"),
    "other findings": (edit(findings={"NAME": 1}), "findings: states {'NAME': 1}, but the content gives {'NAME': 3}"),
    "another policy": (edit(policy={"name": "x", "digest": POLICY.digest, "content": {}}), r"policy\.digest: states"),
    "an unknown key": (edit(secret=1), "unknown field `secret`"),
    "an account that does not balance": (an_account_that_does_not_balance, "rows read 5 != kept 4"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_told_in_one_line(case: str, written: Fixture) -> None:
    damage, message = DAMAGE[case]
    del_path = written.path.with_name("damaged.fixture")
    written.path.rename(del_path)
    damage(del_path)
    with pytest.raises(FixtureError, match=message):
        Fixture.open(del_path).verify()


def test_the_path_from_a_file_to_a_fixture(tmp_path: Path) -> None:
    rows = [
        {"id": f"X{n}_0", "conversations": [{"from": "human", "value": f"Ada {n}"}, {"from": "gpt", "value": "Bob"}]}
        for n in range(5)
    ]
    (tmp_path / "chats.json").write_text(json.dumps(rows))
    source = read("sharegpt", tmp_path / "chats.json", limit=4)
    digests = set()
    for processes in (1, 2):
        fixture = Fixture.write(tmp_path / f"{processes}.fixture", sanitize(source, POLICY, processes=processes))
        fixture.verify()
        digests.add(fixture.digest)
    assert len(digests) == 1
    assert fixture.manifest.account.dropped == {"beyond_limit": 1}
    assert fixture.manifest.provenance == source.provenance


def test_the_schema_is_the_published_one() -> None:
    assert CONVERSATION_SCHEMA.field("messages").type.value_type.field("role").type == pa.dictionary(
        pa.int8(), pa.utf8()
    )

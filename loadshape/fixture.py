# The fixture: clean conversations on disk, known by what they say.
#
#     NAME.fixture/manifest.json         provenance, policy verbatim, versions, accounts, digest
#                  conversations.arrow   who said what, row by row
#                  findings.arrow        what was removed and where, never the text
#
# Law: written once, whole or not at all (a scratch folder beside the target is renamed when it is
# complete), and never changed. The digest covers the conversations, the findings without their scores
# (floats that differ between CPUs) and the policy: not the file format, not the time of making. Arrow
# files are not compressed, so that they are mapped and not read.

"""Content-addressed store of clean conversations: write, open, verify, compare."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from loadshape import characters
from loadshape.conversation import ROLES, Conversation, Message
from loadshape.digest import digest_json, digest_parts, digest_table
from loadshape.errors import FixtureError
from loadshape.manifest import NAME, building, find_member, read_manifest, write_manifest
from loadshape.provenance import Account, Provenance
from loadshape.sanitizer import Clean, Finding, Lengths, Sanitized
from loadshape.version import __version__

VERSION = 1
CONVERSATIONS, FINDINGS = "conversations.arrow", "findings.arrow"
BATCH_ROWS = 1024  # conversations held in memory while writing

_ROLE = pa.dictionary(pa.int8(), pa.utf8())
_MESSAGE = pa.struct([pa.field("role", _ROLE, False), pa.field("text", pa.large_utf8(), False)])
CONVERSATION_SCHEMA = pa.schema(
    [
        pa.field("identity", pa.utf8(), False),
        pa.field("rows", pa.list_(pa.utf8()), False),
        pa.field("labels", pa.list_(pa.utf8()), False),
        pa.field("messages", pa.list_(_MESSAGE), False),
    ]
)
FINDING_SCHEMA = pa.schema(
    [
        pa.field("conversation", pa.uint32(), False),
        pa.field("message", pa.uint16(), False),
        pa.field("entity", pa.utf8(), False),
        pa.field("recognizer", pa.utf8(), False),
        pa.field("score", pa.float32(), False),
        pa.field("start", pa.uint32(), False),
        pa.field("end", pa.uint32(), False),
        pa.field("placeholder", pa.utf8(), False),
    ]
)


class PolicyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy that made a fixture: name, SHA-256, and all of it as plain values."""

    name: str
    digest: str
    content: dict[str, Any]


class FilterRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text filter that made a fixture, and how often each of its steps removed something."""

    name: str
    version: int
    removed: dict[str, int]


class FixtureManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a fixture says about itself; everything but `created_at` and `tool` follows from input and policy."""

    format: str = "loadshape fixture"
    version: int = VERSION
    digest: str
    conversations: int
    messages: int
    characters: int
    findings: dict[str, int]
    account: Account
    provenance: Provenance | None
    policy: PolicyRecord
    filters: list[FilterRecord]
    recognizers: dict[str, str]
    lengths: Lengths | None = None
    files: list[str]
    tool: str
    created_at: str


class Fixture:
    """A fixture on disk; made by `Fixture.write`, opened by `Fixture.open`.

    `conversations` and `findings_table` are pyarrow tables over mapped files; iterating gives Conversation
    values.
    """

    def __init__(
        self, path: Path, manifest: FixtureManifest, conversations: pa.Table, findings_table: pa.Table
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.conversations = conversations
        self.findings_table = findings_table

    @classmethod
    def write(cls, path: str | Path, clean: Sanitized, *, force: bool = False) -> Fixture:
        """Write the conversations of *clean* and what was removed from them as a new fixture.

        An existing fixture at *path* is replaced only with *force*; anything else there never is. Raises
        FixtureError.
        """
        path = Path(path)
        with building(path, "fixture", FixtureError, force=force) as scratch:
            totals = _write_tables(scratch, clean)
            write_manifest(scratch, _describe(scratch, clean, totals))
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> Fixture:
        """Open a fixture without reading its text; raises FixtureError if it is none, or damaged at first sight."""
        path = Path(path)
        manifest = read_manifest(path, FixtureManifest, "fixture", VERSION, FixtureError)
        conversations = _map(find_member(path, CONVERSATIONS, FixtureError), CONVERSATION_SCHEMA)
        findings = _map(find_member(path, FINDINGS, FixtureError), FINDING_SCHEMA)
        return cls(path, manifest, conversations, findings)

    def verify(self) -> None:
        """Read everything and compare it with the manifest; raises FixtureError naming the first difference."""
        try:
            self.conversations.validate(full=True)
            self.findings_table.validate(full=True)
        except pa.ArrowException as problem:
            raise FixtureError(f"{self.path}: a table is damaged: {problem}") from None
        policy = self.manifest.policy
        checks = (
            ("policy.digest", policy.digest, digest_json(policy.content)),
            ("digest", self.digest, _digest(self.conversations, self.findings_table, policy.digest)),
            ("conversations", self.manifest.conversations, len(self)),
            ("account.conversations", self.manifest.account.conversations, len(self)),
            ("findings", self.findings, _count_entities(self.findings_table)),
        )
        for field, stated, found in checks:
            if stated != found:
                raise FixtureError(
                    f"{self.path / NAME}: {field}: states {stated}, but the content gives {found}: "
                    "the fixture was changed or damaged; make it again from its source"
                )

    @property
    def digest(self) -> str:
        """ "sha256:..." of the content, as the manifest states it; `verify` recomputes it."""
        return self.manifest.digest

    @property
    def findings(self) -> dict[str, int]:
        """What was removed, counted by entity."""
        return self.manifest.findings

    def __len__(self) -> int:
        return int(self.conversations.num_rows)

    def __iter__(self) -> Iterator[Conversation]:
        for batch in self.conversations.to_batches(max_chunksize=BATCH_ROWS):
            yield from map(_to_conversation, batch.to_pylist())

    def prompts(self) -> Iterator[tuple[str, str]]:
        """Yield (prompt, answer) for every user message that an assistant message follows."""
        for conversation in self:
            messages = conversation.messages
            for prompt, answer in itertools.pairwise(messages):
                if (prompt.role, answer.role) == ("user", "assistant"):
                    yield prompt.text, answer.text

    def conversation_digests(self) -> dict[str, str]:
        """Return the SHA-256 (hex) of every conversation and its findings, by the conversation's identity.

        Where two fixtures that should be equal are not (a model's floats can differ between CPUs), this
        small table tells which conversations differ, without their text.
        """
        removed: dict[int, list[Any]] = {}
        for row in self.findings_table.drop_columns(["score"]).to_pylist():
            removed.setdefault(row.pop("conversation"), []).append(row)
        return {
            conversation.identity: digest_json([conversation, removed.get(index, [])])
            for index, conversation in enumerate(self)
        }

    def difference(self, digests: Mapping[str, str]) -> list[str]:
        """Return the identities, sorted, that another fixture's `conversation_digests` lack, add, or have otherwise."""
        mine = self.conversation_digests()
        return sorted(name for name in {*mine, *digests} if mine.get(name) != digests.get(name))


class _Totals(msgspec.Struct):
    messages: int = 0
    characters: int = 0


def _write_tables(folder: Path, clean: Iterable[Clean]) -> _Totals:
    totals = _Totals()
    with (
        pa.ipc.new_file(folder / CONVERSATIONS, CONVERSATION_SCHEMA) as conversations,
        pa.ipc.new_file(folder / FINDINGS, FINDING_SCHEMA) as findings,
    ):
        for first, batch in _batches(clean):
            conversations.write(_conversation_batch([item.conversation for item in batch], totals))
            rows = [(first + place, finding) for place, item in enumerate(batch) for finding in item.findings]
            if rows:
                findings.write(_finding_batch(rows))
    for name in (CONVERSATIONS, FINDINGS):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    return totals


def _batches(clean: Iterable[Clean]) -> Iterator[tuple[int, list[Clean]]]:
    first, batch = 0, list[Clean]()
    for item in clean:
        batch.append(item)
        if len(batch) == BATCH_ROWS:
            yield first, batch
            first, batch = first + BATCH_ROWS, []
    if batch:
        yield first, batch


def _conversation_batch(conversations: list[Conversation], totals: _Totals) -> pa.RecordBatch:
    messages = [message for conversation in conversations for message in conversation.messages]
    totals.messages += len(messages)
    totals.characters += sum(len(message.text) for message in messages)
    codes = pa.array([ROLES.index(message.role) for message in messages], pa.int8())
    roles = pa.DictionaryArray.from_arrays(codes, pa.array(ROLES))  # the same whole list in every batch
    texts = pa.array([message.text for message in messages], pa.large_utf8())
    offsets = [0]
    for conversation in conversations:
        offsets.append(offsets[-1] + len(conversation.messages))
    structs = pa.StructArray.from_arrays([roles, texts], fields=list(_MESSAGE))
    columns = [
        pa.array([conversation.identity for conversation in conversations], pa.utf8()),
        pa.array([list(conversation.rows) for conversation in conversations], pa.list_(pa.utf8())),
        pa.array([list(conversation.labels) for conversation in conversations], pa.list_(pa.utf8())),
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, type=pa.list_(_MESSAGE)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CONVERSATION_SCHEMA)


def _finding_batch(rows: list[tuple[int, Finding]]) -> pa.RecordBatch:
    values: dict[str, list[Any]] = {"conversation": [conversation for conversation, _ in rows]}
    for name in FINDING_SCHEMA.names[1:]:
        values[name] = [getattr(finding, name) for _, finding in rows]
    return pa.RecordBatch.from_pydict(values, schema=FINDING_SCHEMA)


def _describe(folder: Path, clean: Sanitized, totals: _Totals) -> FixtureManifest:
    conversations = _map(folder / CONVERSATIONS, CONVERSATION_SCHEMA)
    findings = _map(folder / FINDINGS, FINDING_SCHEMA)
    policy = clean.policy
    return FixtureManifest(
        digest=_digest(conversations, findings, policy.digest),
        conversations=conversations.num_rows,
        messages=totals.messages,
        characters=totals.characters,
        findings=_count_entities(findings),
        account=clean.account,
        provenance=clean.provenance,
        policy=PolicyRecord(policy.name, policy.digest, policy.content),
        filters=[FilterRecord(characters.NAME, characters.VERSION, clean.filtered)],
        recognizers=clean.versions,
        lengths=clean.lengths,
        files=[CONVERSATIONS, FINDINGS],
        tool=f"loadshape {__version__}",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _digest(conversations: pa.Table, findings: pa.Table, policy: str) -> str:
    parts = {
        "conversations": digest_table(conversations),
        "findings": digest_table(findings.drop_columns(["score"])),
        "policy": policy,
    }
    return digest_parts("fixture", parts)


def _count_entities(findings: pa.Table) -> dict[str, int]:
    return dict(sorted(Counter(findings.column("entity").to_pylist()).items()))


def _map(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
    except (pa.ArrowException, OSError) as problem:
        raise FixtureError(f"{path}: expected an Arrow IPC file; it is damaged or of another kind: {problem}") from None
    if not table.schema.equals(schema):
        raise FixtureError(f"{path}: expected the columns {schema.names}, found {table.schema.names} or other types")
    return table


def _to_conversation(row: Mapping[str, Any]) -> Conversation:
    messages = tuple(Message(message["role"], message["text"]) for message in row["messages"])
    return Conversation(row["identity"], messages, tuple(row["rows"]), tuple(row["labels"]))

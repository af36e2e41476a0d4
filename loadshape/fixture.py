# The fixture: clean conversations on disk, known by what they say.
#
#     NAME.fixture/manifest.json         provenance, policy verbatim, versions, accounts, digest
#                  conversations.arrow   who said what, row by row
#                  findings.arrow        what was removed and where, never the text
#                  audit.json            what other detectors still find in it, if somebody looked (audit.py)
#     .NAME.fixture.work/                of one that is being made, or whose making was cut: a journal to go on from
#
# Law: written once, whole or not at all (a scratch folder beside the target is renamed when it is
# complete), and never changed; an audit may be added. The digest covers the conversations, the findings
# without their scores (floats that differ between CPUs) and the policy: not the file format, not the time of
# making. Arrow files are not compressed, so that they are mapped and not read.

"""Content-addressed store of clean conversations: write, open, verify, compare."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape import characters
from loadshape.conversation import ROLES, Conversation, Message
from loadshape.digest import digest_json, digest_parts, digest_table
from loadshape.errors import FixtureError
from loadshape.figures import Figures, find_figures
from loadshape.manifest import NAME, building, find_member, read_manifest, write_manifest
from loadshape.provenance import Account, Provenance
from loadshape.recognizer import digest_packages
from loadshape.sanitizer import Clean, Finding, Lengths, Sanitized
from loadshape.version import __version__

VERSION = 1
CONVERSATIONS, FINDINGS = "conversations.arrow", "findings.arrow"
BATCH_ROWS = 1024  # conversations held in memory while writing, and
BATCH_CHARACTERS = 16 << 20  # what they may come to together, since one may be as long as a book

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
    """What a fixture says about itself.

    Everything but `created_at`, `tool` and the provenance's `retrieved_at` follows from input and policy. `figures` are
    those that were published for this very policy, by the set that it was measured on.
    """

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
    packages_sha256: dict[str, str] = {}
    figures: dict[str, Figures] | Literal["not measured"] = "not measured"
    repeated_messages: int = 0
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
    def write(
        cls,
        path: str | Path,
        clean: Sanitized,
        *,
        force: bool = False,
        resume: bool = False,
        stated: Mapping[str, str] | None = None,
    ) -> Fixture:
        """Write the conversations of *clean* and what was removed from them as a new fixture.

        An existing fixture at *path* is replaced only with *force*; anything else there never is. With *resume*,
        results are kept beside *path* as they come, and a call that was cut, however, goes on when it is made again.
        *stated* is what you know of the data and its bytes do not say: see `Provenance.state`. Raises FixtureError.
        """
        path = Path(path)
        origin = clean.provenance.state(stated) if clean.provenance and stated else clean.provenance
        with (
            _keeping(path, clean, resume) as work,
            building(path, "fixture", FixtureError, force=force, within=work) as scratch,
        ):
            totals = _write_tables(scratch, clean)
            write_manifest(scratch, _describe(scratch, clean, origin, totals))
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
            ("account.kept", self.manifest.account.kept, self._count_rows()),
        )
        for field, stated, found in checks:
            if stated != found:
                raise FixtureError(
                    f"{self.path / NAME}: {field}: states {stated}, but the content gives {found}: "
                    "the fixture was changed or damaged; make it again from its source"
                )

    def _count_rows(self) -> int:
        """Count the source rows of all conversations; silhouettes have none, so there the account is believed."""
        counts = pc.list_value_length(self.conversations.column("rows"))
        if self.manifest.policy.content.get("text") == "synthetic":
            return self.manifest.account.kept
        return int(pc.sum(pc.max_element_wise(counts, 1)).as_py() or 0)

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


class _Totals:
    """What is counted while writing; of messages, 8 bytes of a hash each, so that millions of them are little."""

    def __init__(self) -> None:
        self.messages = self.characters = 0
        self.hashes = array("Q")

    def add(self, message: Message) -> None:
        self.messages += 1
        self.characters += len(message.text)
        self.hashes.frombytes(hashlib.blake2b(message.text.encode(), digest_size=8).digest())

    @property
    def repeated(self) -> int:
        """Messages whose text another one had before."""
        return len(self.hashes) - len(np.unique(np.frombuffer(self.hashes, np.uint64)))


@contextmanager
def _keeping(path: Path, clean: Sanitized, resume: bool) -> Iterator[Path | None]:
    """Have *clean* keep its results in a folder beside *path*; give it, and remove it at the end if that is reached."""
    work = path.with_name(f".{path.name}.work")
    journal = clean.keep(work) if resume else None
    if journal is None:
        yield None
        return
    for left in work.glob(f".{path.name}.*"):  # of a writer that was killed; NAME.old is what it was to replace
        if left.suffix != ".old" or path.exists():
            shutil.rmtree(left, ignore_errors=True)
    yield work
    journal.remove()


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
    first, batch, characters = 0, list[Clean](), 0
    for item in clean:
        batch.append(item)
        characters += item.conversation.characters
        if len(batch) == BATCH_ROWS or characters >= BATCH_CHARACTERS:
            yield first, batch
            first, batch, characters = first + len(batch), [], 0
    if batch:
        yield first, batch


def _conversation_batch(conversations: list[Conversation], totals: _Totals) -> pa.RecordBatch:
    messages = [message for conversation in conversations for message in conversation.messages]
    for message in messages:
        totals.add(message)
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


def _describe(folder: Path, clean: Sanitized, origin: Provenance | None, totals: _Totals) -> FixtureManifest:
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
        provenance=origin,
        policy=PolicyRecord(policy.name, policy.digest, policy.content),
        filters=[FilterRecord(characters.NAME, characters.VERSION, clean.filtered)],
        recognizers=clean.versions,
        packages_sha256=digest_packages(clean.versions),
        figures=find_figures(policy.digest) or "not measured",
        repeated_messages=totals.repeated,
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
    return dict(sorted((it["values"], it["counts"]) for it in findings.column("entity").value_counts().to_pylist()))


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

# What a second set of detectors still finds in clean text: an estimate of what the first one missed.
#
# Law: an audit looks at a finished fixture and changes nothing of it. It says how many findings there are, of what
# kind, in how many conversations: never the text, nor where. Its detectors are a policy like any other, whose
# actions do not count here; `audit` (packaged) uses other recognizers and wider patterns than `default`.
#
# Theory: two detectors that err independently, as in capture and recapture: what the second finds after the first
# has removed its own is the part of the second's finds that the first missed, mixed with the second's own errors.
# So a figure of an audit is no recall. It says where to look, and whether another policy left less.
#
# What stands in the place of a finding is no finding: of each one, stretches of stand-ins are taken away first, and
# what is left counts if it still has three letters or digits in a row.
#
# audit.json lies beside the tables. It names the fixture's digest, so one of another fixture is refused.

"""Audit a fixture: `examine_fixture(fixture, Policy.load("audit"))`."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np

from loadshape.conversation import Conversation
from loadshape.errors import FixtureError
from loadshape.fixture import Fixture
from loadshape.manifest import read_plain, write_manifest
from loadshape.policy import Policy
from loadshape.sanitizer import Finding, sanitize

NAME = "audit.json"
DETECTORS = "audit"  # the packaged policy

_WORD = re.compile(r"[^\W_]{3}")


class Residue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Findings of one kind that are left, and the conversations that have any."""

    findings: int
    conversations: int


class Audit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the detectors of one policy find in a fixture, by kind; `fixture` is its digest.

    `flagged` counts the conversations with any finding.
    """

    fixture: str
    detectors: str
    detectors_digest: str
    recognizers: dict[str, str]
    conversations: int
    characters: int
    flagged: int
    residue: dict[str, Residue]
    audited_at: str

    @property
    def summary(self) -> str:
        """What is left, in a line."""
        left = ", ".join(f"{kind} {it.findings:,}" for kind, it in self.residue.items()) or "nothing"
        return f"{self.detectors} finds {left}, in {self.flagged:,} of {self.conversations:,} conversations"


def examine_fixture(
    fixture: Fixture, detectors: Policy, *, processes: int = 1, progress: Callable[[int], None] | None = None
) -> Audit:
    """Look through *fixture* with the rules of *detectors*; write audit.json into it, and return what that says.

    Raises MissingExtra or PolicyError if the detectors need what is not installed.
    """
    masks = tuple(msgspec.structs.replace(rule, action="mask") for rule in detectors.rules)
    found = sanitize(fixture, msgspec.structs.replace(detectors, rules=masks), processes=processes, progress=progress)
    findings, conversations = Counter[str](), Counter[str]()
    flagged = 0
    for before, clean, stand_ins in zip(fixture, found, _list_stand_ins(fixture), strict=True):
        kinds = Counter(_list_kinds(before, clean.findings, stand_ins))
        findings.update(kinds)
        conversations.update(kinds.keys())
        flagged += bool(kinds)
    audit = Audit(
        fixture=fixture.digest,
        detectors=detectors.name,
        detectors_digest=detectors.digest,
        recognizers=found.versions,
        conversations=len(fixture),
        characters=fixture.manifest.characters,
        flagged=flagged,
        residue={kind: Residue(findings[kind], conversations[kind]) for kind in sorted(findings)},
        audited_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_manifest(fixture.path, audit, NAME)
    return audit


def read_audit(fixture: Fixture) -> Audit | None:
    """Return what was found in *fixture*, if somebody looked. Raises FixtureError for an audit of another one."""
    path = fixture.path / NAME
    if not path.exists():
        return None
    try:
        audit = msgspec.json.decode(read_plain(path), type=Audit)
    except (OSError, msgspec.DecodeError) as problem:
        raise FixtureError(f"{path}: not an audit of ours: {problem}; make it again with loadshape audit") from None
    if audit.fixture != fixture.digest:
        raise FixtureError(f"{path}: is of {audit.fixture}, and this fixture is {fixture.digest}; make it again")
    return audit


def _list_stand_ins(fixture: Fixture) -> Iterator[set[str]]:
    """Yield what stands in the place of findings, a set for each conversation."""
    table = fixture.findings_table
    ends = np.searchsorted(table.column("conversation").to_numpy(), np.arange(len(fixture)), side="right")
    for start, end in itertools.pairwise((0, *ends.tolist())):
        yield set(table.column("placeholder").slice(start, end - start).to_pylist())


def _list_kinds(conversation: Conversation, findings: Sequence[Finding], stand_ins: set[str]) -> Iterator[str]:
    """Yield the kinds of the findings in which more is left than stand-ins."""
    if not findings:
        return
    longest_first = sorted(map(re.escape, stand_ins), key=len, reverse=True)
    known = re.compile("|".join(longest_first) or "(?!)")
    blanked = [known.sub(lambda match: " " * len(match[0]), message.text) for message in conversation.messages]
    for finding in findings:
        where = slice(finding.start, finding.end)
        rest = blanked[finding.message][where]
        if rest == conversation.messages[finding.message].text[where] or _WORD.search(rest):
            yield finding.entity

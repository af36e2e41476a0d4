# Where data came from, and what became of every row of it.
#
# Law: values only; no hashing, no text of the data. A provenance never holds a folder of the
# machine that made it, and a licence that the data set does not state is written as "not stated", never
# guessed. An account balances: rows read = rows kept + rows dropped, per reason. One that does not is
# refused when it is made, so also when it is decoded from a manifest.

"""Provenance and Account: what a fixture was made from, and what was left out, counted exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from loadshape.errors import SourceError

NOT_STATED = "not stated"
STATABLE = ("licence", "uri", "revision", "retrieved_at")


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One input: its format, file name (without folders), size, hash, licence and completeness.

    `complete` is False for an input that is known to be a part of something larger; `note` says of what,
    and `bytes_dropped` counts the bytes after its last whole row. `retrieved_at` is when the file came to lie where
    it was read, in UTC, unless somebody knows better. `stated` names what was not known from the bytes, but said by
    whoever made the fixture.
    """

    source: str
    name: str
    bytes: int
    sha256: str
    licence: str = NOT_STATED
    uri: str | None = None
    revision: str | None = None
    complete: bool = True
    note: str = ""
    bytes_dropped: int = 0
    retrieved_at: str | None = None
    stated: tuple[str, ...] = ()

    def state(self, said: Mapping[str, str]) -> Provenance:
        """Return this with what somebody says of `licence`, `uri`, `revision` or `retrieved_at`.

        Raises SourceError for other keys, and where the bytes are known to be of another licence, address or revision.
        """
        for key, value in said.items():
            if key not in STATABLE or not value:
                raise SourceError(f"stated: expected {', '.join(STATABLE)} with a value each, found {key}={value!r}")
            known = getattr(self, key)
            if known not in (None, NOT_STATED, value) and key != "retrieved_at":
                raise SourceError(f"stated: {key}: the bytes of {self.name} are known as {known!r}, found {value!r}")
        return msgspec.structs.replace(self, **said, stated=tuple(sorted({*self.stated, *said})))


def date_file(path: Path) -> str:
    """Return when a file was last written, as a time in UTC: when it was retrieved, as far as one can tell."""
    return datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat()


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows read = rows kept + rows dropped per reason; and the turns that left kept conversations.

    `conversations` counts what the kept rows were put together to. Raises ValueError if it does not balance.
    """

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = {}
    turns: dict[str, int] = {}
    conversations: int = 0

    def __post_init__(self) -> None:
        if self.read != self.kept + sum(self.dropped.values()):
            raise ValueError(f"rows read {self.read} != kept {self.kept} + dropped {self.dropped}")


class Tally:
    """An account in the making."""

    def __init__(self, account: Account | None = None) -> None:
        account = account or Account()
        self.read, self.kept, self.conversations = account.read, account.kept, account.conversations
        self.dropped, self.turns = Counter(account.dropped), Counter(account.turns)

    def keep(self, rows: int) -> None:
        """Count one conversation put together from *rows* rows."""
        self.kept += rows
        self.conversations += 1

    def drop(self, reason: str, rows: int = 1) -> None:
        """Count *rows* rows as dropped."""
        if rows:
            self.dropped[reason] += rows

    def expel(self, reason: str, rows: int) -> None:
        """Count one conversation, kept until now, as dropped."""
        self.kept -= rows
        self.conversations -= 1
        self.drop(reason, rows)

    def account(self) -> Account:
        """Return the balanced account, reasons in alphabetical order."""
        dropped, turns = (dict(sorted(counts.items())) for counts in (self.dropped, self.turns))
        return Account(self.read, self.kept, dropped, turns, self.conversations)

# Conversations that lie whole in a row: LMSYS, WildChat, OpenAssistant trees, and plain lists of messages.
#
# Law: a format is a row of CHATS, from a decoded row to its turns; every row is kept or dropped for one named
# reason. What wraps the rows (JSON lines, an array, CSV, Parquet, gzip, Zstandard, the hub) is container.py's.
#
#     lmsys      {"conversation_id", "conversation": [{"role", "content"}], "language", "redacted"}
#     wildchat   {"conversation_hash", "conversation": [{"role", "content", ...}], "language"}
#     oasst      {"prompt": {"text", "role", "replies": [...]}}, or such a message by itself
#     messages   {"messages": [{"role", "content"}]}; "conversation" or "conversations" do as well, so do the
#                keys "from" and "value"
#
# Of a tree the best ranked reply is followed at each message (the first, where none is ranked): one
# conversation a tree, since the other branches repeat its beginning. What WildChat says of people beside
# their words (hashed addresses, headers, countries) is not read.

"""Read conversations that lie whole in a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from loadshape.conversation import Conversation
from loadshape.digest import digest_file, digest_json
from loadshape.errors import SourceError
from loadshape.provenance import Account, Provenance, Tally, date_file
from loadshape.sources.container import HUB, Row, read_rows
from loadshape.sources.turns import Turn, find_fault, to_messages


@dataclass(frozen=True, slots=True)
class Chat:
    """Where a format keeps the name, the turns and the labels of a conversation."""

    identity: tuple[str, ...]
    turns: Callable[[Row], Iterable[Turn]]
    labels: tuple[str, ...] = ()


def list_turns(row: Row) -> list[Turn]:
    """Return the turns of a list of messages, whatever it is called."""
    said = next(row[name] for name in ("messages", "conversation", "conversations") if row.get(name) is not None)
    return [_to_turn(message) for message in said]


def follow_tree(row: Row) -> list[Turn]:
    """Return the turns along the best ranked replies of a tree of messages."""
    message, turns = row.get("prompt", row), []
    while message:
        turns.append(Turn(message["role"], message["text"]))
        replies = message.get("replies") or [None]
        message = min(replies, key=_rank)
    return turns


CHATS: dict[str, Chat] = {
    "lmsys": Chat(("conversation_id",), list_turns, ("language",)),
    "wildchat": Chat(("conversation_hash", "conversation_id"), list_turns, ("language",)),
    "oasst": Chat(("message_tree_id", "message_id"), follow_tree, ("lang",)),
    "messages": Chat(("id", "conversation_id"), list_turns),
}


class ChatFile:
    """The conversations of one file; made by `loadshape.sources.read`.

    `provenance` is known at once, `account` after an iteration to the end.
    """

    def __init__(self, path: Path, name: str, *, limit: int | None, max_characters: int | None) -> None:
        self.provenance = _describe(path, name)
        self.account = Account()
        self._path = path
        self._chat = CHATS[name]
        self._limit = limit
        self._max_characters = max_characters

    def __iter__(self) -> Iterator[Conversation]:
        tally, seen = Tally(), set[str]()
        for number, row in enumerate(read_rows(self._path), 1):
            tally.read += 1
            if self._limit is not None and tally.conversations >= self._limit:
                tally.drop("beyond_limit")
                continue
            found = self._read(row, number, seen, tally)
            if isinstance(found, Conversation):
                tally.keep(1)
                yield found
            else:
                tally.drop(found)
        if tally.read and tally.dropped.get("malformed") == tally.read:
            wanted = f"objects with messages in the format {self.provenance.source}"
            raise SourceError(f"{self._path}: expected {wanted}, found {tally.read:,} rows and none of them")
        self.account = tally.account()

    def _read(self, row: Row | None, number: int, seen: set[str], tally: Tally) -> Conversation | str:
        """Return the conversation of a row, or why it is not kept."""
        try:
            turns = [] if row is None else list(self._chat.turns(row))
        except (KeyError, TypeError, AttributeError, StopIteration):
            return "malformed"
        if row is None or any(not isinstance(part, str) for turn in turns for part in turn):
            return "malformed"
        if not turns:
            return "empty"
        messages, changed = to_messages(turns)
        identity = next((str(row[name]) for name in self._chat.identity if row.get(name)), f"row-{number}")
        labels = tuple(str(row[name]) for name in self._chat.labels if row.get(name))
        conversation = Conversation(identity, messages, (digest_json([list(turn) for turn in turns]),), labels)
        reason = find_fault(turns, messages) or self._refuse(conversation, seen)
        if reason:
            return reason
        tally.turns.update(changed)
        return conversation

    def _refuse(self, conversation: Conversation, seen: set[str]) -> str | None:
        digest = digest_json(conversation.messages)
        if digest in seen:
            return "duplicate"
        seen.add(digest)
        is_long = self._max_characters is not None and conversation.characters > self._max_characters
        return "oversize" if is_long else None


def _to_turn(message: Row) -> Turn:
    speaker = message["role"] if "role" in message else message["from"]
    value = message["content"] if "content" in message else message["value"]
    return Turn(speaker, "" if value is None else value)


def _rank(reply: Row | None) -> float:
    rank = None if reply is None else reply.get("rank")
    return float("inf") if rank is None else float(rank)


def _describe(path: Path, name: str) -> Provenance:
    if str(path).startswith(HUB):
        note, now = "streamed from the hub: no hash", datetime.now(UTC).isoformat(timespec="seconds")
        return Provenance(source=name, name=str(path), bytes=0, sha256="", note=note, retrieved_at=now)
    try:
        sha256, retrieved = digest_file(path), date_file(path)
        return Provenance(source=name, name=path.name, bytes=path.stat().st_size, sha256=sha256, retrieved_at=retrieved)
    except OSError as problem:
        raise SourceError(f"{path}: expected a file in the format {name}; {problem.strerror}") from None

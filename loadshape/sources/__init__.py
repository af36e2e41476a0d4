# Public data sets, each in its own format.
#
# Law: a reader turns rows into conversations, or into recorded requests, and accounts for every row. Readers
# are looked up by name; formats that differ in names and units only are rows of a table (layout.py for
# requests, chats.py for conversations), others are a module of their own. A source of conversations keeps no
# text between two iterations and may be iterated again.
#
#     conversations   __init__: read()       chats, sharegpt, turns
#     requests        requests.py            layout, prompts, telemetry, vllm_log, servegen; entry, shredder
#     both            container, json_array, known

"""Sources of conversations: `read("sharegpt", path)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from loadshape.conversation import Conversation
from loadshape.errors import SourceError
from loadshape.provenance import Account, Provenance
from loadshape.sources.chats import CHATS, ChatFile
from loadshape.sources.sharegpt import read_sharegpt


@runtime_checkable
class Source(Protocol):
    """Conversations that can be iterated again, their provenance, and (after an iteration) their account."""

    @property
    def provenance(self) -> Provenance:
        """What the conversations were read from."""

    @property
    def account(self) -> Account:
        """What became of every row in the last whole iteration."""

    def __iter__(self) -> Iterator[Conversation]: ...


def _read_chats(name: str) -> Callable[..., Source]:
    def read_file(path: Path, *, limit: int | None, max_characters: int | None, partial: bool) -> Source:
        return ChatFile(path, name, limit=limit, max_characters=max_characters)

    return read_file


READERS: dict[str, Callable[..., Source]] = {"sharegpt": read_sharegpt, **{name: _read_chats(name) for name in CHATS}}


def read(
    source: str,
    path: str | Path,
    *,
    limit: int | None = None,
    max_characters: int | None = None,
    partial: bool = False,
) -> Source:
    """Open a data set in the format *source*.

    At most *limit* conversations are kept, none of them longer than *max_characters*. A file that ends
    early is refused unless it is a known partial input, or *partial* is true. Raises SourceError.
    """
    reader = READERS.get(source)
    if reader is None:
        raise SourceError(f"source: expected one of {', '.join(READERS)}, found {source!r}")
    for name, most in (("limit", limit), ("max_characters", max_characters)):
        if most is not None and most < 1:
            raise SourceError(f"{name}: expected 1 or more, or nothing for no limit, found {most}")
    return reader(Path(path), limit=limit, max_characters=max_characters, partial=partial)

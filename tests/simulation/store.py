# What stands in place of the log: rows in memory, and a disk that may fail.
#
# A row is safe once it was flushed. From a random row on, flushing fails or does not keep up; like the real writer, the
# store goes on taking rows and says so, and the run has to stop by itself.

from __future__ import annotations

from random import Random
from typing import NamedTuple

from loadshape.log import READS, REQUESTS
from loadshape.plan import NULL

TEXTS = ("error", "finish_reason", "server_request_id")
NUMBERS = [name for name in REQUESTS.names if name not in TEXTS]
TROUBLES = ("the log cannot be written: No space left on device", "the log could not be written as fast as it grew")


class Read(NamedTuple):
    """One row of reads."""

    request: int
    at_ns: int
    seen_ns: int
    bytes: int
    events: int
    deltas: int
    kinds: int
    tokens: int


assert list(Read._fields) == READS.names


class Row:
    """One row of requests; NULL is -1, as in the replayer."""

    def __init__(self, numbers: tuple[int, ...], texts: tuple[str | None, ...]) -> None:
        self.stamps = dict(zip(NUMBERS, numbers, strict=True))
        self.error = texts[0]

    def __getattr__(self, name: str) -> int:
        return self.stamps[name]

    def list_stamps(self, *names: str) -> list[tuple[str, int]]:
        """Return those of the stamps *names* that are known."""
        return [(name, self.stamps[f"{name}_ns"]) for name in names if self.stamps[f"{name}_ns"] != NULL]


class Store:
    """Takes the rows of requests and reads; `trouble` says why no more can be written."""

    def __init__(self, random: Random, *, is_faulty: bool) -> None:
        self.requests: list[Row] = []
        self.reads: dict[int, list[Read]] = {}
        self.order: dict[tuple[str, int, int], int] = {}  # when a row was taken: the how manieth of both tables
        self.begun_rows = 0  # of requests that were begun
        self.safe_rows = 0
        self.trouble = ""
        self._taken_rows = 0
        self._room_rows = random.randrange(80) if is_faulty else 1 << 62
        self._failure = random.choice(TROUBLES)

    def append(self, *numbers: int) -> None:
        self._taken_rows += 1
        read = Read(*numbers)
        reads = self.reads.setdefault(read.request, [])
        self.order["read", read.request, len(reads)] = self._taken_rows
        reads.append(read)

    def append_with_texts(self, numbers: tuple[int, ...], texts: tuple[str | None, ...]) -> None:
        self._taken_rows += 1
        row = Row(numbers, texts)
        self.order["request", row.request, 0] = self._taken_rows
        self.requests.append(row)
        self.begun_rows += row.begun_ns != NULL

    def flush(self) -> None:
        """Write what was taken, or as much as there is room for."""
        self.safe_rows = min(self._taken_rows, self._room_rows)
        if self.safe_rows < self._taken_rows:
            self.trouble = self._failure

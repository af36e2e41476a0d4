# Which connections exist, over a network that only takes notes.

from __future__ import annotations

import pytest

from loadshape.clock import FakeClock
from loadshape.replayer.body import Prepared
from loadshape.replayer.connection import Connection
from loadshape.replayer.exchange import Exchange
from loadshape.replayer.lines import CLOSES_A_SLICE, DIALS_A_SLICE, OPENING_AT_ONCE, Lines
from loadshape.replayer.routing import Routes, Routing


class Notes:
    """A network without sockets."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.closed: list[Connection] = []
        self.is_exhausted = False

    def open(self, target: int = 0) -> Connection:
        if self.is_exhausted:
            raise OSError(24, "Too many open files")
        self.opened.append(Connection(len(self.opened), None, target))
        self.opened[-1].open = True
        return self.opened[-1]

    def close(self, connection: Connection) -> None:
        self.closed.append(connection)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(5_000_000_000)


@pytest.fixture
def lines(notes: Notes, clock: FakeClock) -> Lines:
    return Lines(notes, clock, Routes(Routing([], []), (1.0, 1.0)))  # type: ignore[arg-type]


def dial_all(lines: Lines, wanted: int) -> None:
    """Open ahead, slice by slice, until no more is asked for."""
    while lines.dial_ahead(wanted):
        pass


def warm(lines: Lines, notes: Notes, count: int) -> list[Connection]:
    """Open *count* connections ahead and let them come up."""
    dial_all(lines, count)
    for connection in notes.opened[-count:]:
        lines.keep(connection)
    return notes.opened[-count:]


def test_what_is_opened_ahead_is_there_when_needed(lines: Lines, notes: Notes, clock: FakeClock) -> None:
    lines.dial_ahead(2)
    assert (lines.opening, lines.open) == (2, 2)
    assert lines.take(clock.now_ns()) is None  # not up yet
    first, second = notes.opened
    lines.keep(first)
    assert (lines.opening, lines.open) == (1, 2)
    assert lines.take(clock.now_ns()) is first
    lines.keep(second)
    assert lines.take(clock.now_ns()) is second


def test_targets_share_no_connections(lines: Lines, notes: Notes, clock: FakeClock) -> None:
    lines.dial_ahead(1, 1)
    lines.keep(notes.opened[0])
    assert lines.take(clock.now_ns(), 0) is None
    assert lines.take(clock.now_ns(), 1) is notes.opened[0]
    lines.release(notes.opened[0], reusable=True)
    assert lines.take(clock.now_ns(), 0) is None
    lines.drop(notes.opened[0])
    assert lines.take(clock.now_ns(), 1) is None
    lines.dial_ahead(1, 0)
    lines.lose(notes.opened[1])  # a pause for this one only
    lines.dial_ahead(1, 0)
    lines.dial_ahead(1, 1)
    assert [connection.target for connection in notes.opened] == [1, 0, 1]


def test_only_what_is_missing_is_opened(lines: Lines, notes: Notes) -> None:
    warm(lines, notes, 3)
    dial_all(lines, 3)
    dial_all(lines, 0)
    assert len(notes.opened) == 3
    dial_all(lines, 5)
    dial_all(lines, 5)  # two are on their way
    assert len(notes.opened) == 5


def test_a_server_is_not_flooded(lines: Lines, notes: Notes) -> None:
    assert lines.dial_ahead(10_000)
    assert len(notes.opened) == DIALS_A_SLICE  # a request may become due meanwhile
    dial_all(lines, 10_000)
    assert len(notes.opened) == OPENING_AT_ONCE
    lines.keep(notes.opened[0])
    dial_all(lines, 10_000)
    assert len(notes.opened) == OPENING_AT_ONCE + 1


def test_after_a_failure_nothing_is_opened_ahead_for_a_while(lines: Lines, notes: Notes) -> None:
    lines.dial_ahead(1)
    lines.lose(notes.opened[0])
    assert (lines.opening, lines.open) == (0, 0)
    lines.dial_ahead(5)
    assert len(notes.opened) == 1
    lines.dial()  # but a request that is due tries
    assert len(notes.opened) == 2


def test_a_failure_of_a_request_s_own_connection_is_not_one_of_the_pool(lines: Lines) -> None:
    connection = lines.dial()
    connection.exchange = Exchange(0, 0, Prepared([b""], 0))
    lines.lose(connection)
    assert (lines.opening, lines.open) == (0, 0)


def test_without_descriptors_opening_ahead_gives_up_quietly(lines: Lines, notes: Notes) -> None:
    notes.is_exhausted = True
    assert not lines.dial_ahead(3)
    assert (lines.opening, lines.open) == (0, 0)
    with pytest.raises(OSError, match="Too many open files"):
        lines.dial()
    assert lines.open == 0


@pytest.mark.parametrize("reusable", [True, False])
def test_what_becomes_of_the_connection_of_a_request_that_ended(
    lines: Lines, notes: Notes, reusable: bool, clock: FakeClock
) -> None:
    connection = lines.dial()
    connection.exchange = Exchange(0, 0, Prepared([b""], 0))
    lines.release(connection, reusable=reusable)
    assert connection.exchange is None
    assert (lines.take(clock.now_ns()) is connection) is reusable
    assert (notes.closed == [connection]) is not reusable
    assert lines.open == int(reusable)


def test_a_connection_whose_end_has_come_is_not_taken(lines: Lines, notes: Notes, clock: FakeClock) -> None:
    older, newer = warm(lines, notes, 2)
    newer.open = False  # the network has seen its end; the decoder has not come to it
    assert lines.take(clock.now_ns()) is older
    assert lines.take(clock.now_ns()) is None
    lines.drop(newer)
    assert notes.closed == [newer]


def test_a_dropped_connection_is_closed_and_forgotten(lines: Lines, notes: Notes, clock: FakeClock) -> None:
    (connection,) = warm(lines, notes, 1)
    lines.drop(connection)
    assert notes.closed == [connection]
    assert lines.take(clock.now_ns()) is None
    assert lines.open == 0


def test_many_idle_connections_are_closed_a_few_at_a_time(lines: Lines, notes: Notes, clock: FakeClock) -> None:
    warm(lines, notes, CLOSES_A_SLICE + 1)
    clock.advance(9_000_000_000)
    assert lines.close_idle()
    assert len(notes.closed) == CLOSES_A_SLICE
    assert not lines.close_idle()
    assert lines.open == 0


def test_what_was_idle_for_too_long_is_closed(lines: Lines, notes: Notes, clock: FakeClock) -> None:
    warm(lines, notes, 2)
    lines.close_idle()
    assert notes.closed == []
    clock.advance(9_000_000_000)
    lines.close_idle()
    assert notes.closed == notes.opened
    assert lines.open == 0

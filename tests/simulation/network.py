# The other end of every connection, and the kernel between.
#
# SimNetwork is a replayer.connection.Network. What a server will do to a connection is decided when it connects and
# when a request reaches it, as a queue of arrivals with their instants; a drain hands over what has arrived by then,
# coalesced as TCP would. So a process that sleeps finds everything that came meanwhile, in one read.
#
# Two manners, those of the real networks: "kernel" tells of connections inside a drain, one read a socket, and looks
# for the next due request in between; "user" calls back by itself, stamps late, and its drain does nothing.

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Protocol

from loadshape.replayer.connection import Connection, Owner
from loadshape.replayer.scheduler import NEVER

from .answers import FAULTY, TOO_LATE, Answer, make_stray, make_stream

US, MS, S = 1_000, 1_000_000, 1_000_000_000
ARENA_BYTES = 1 << 18

What = bytes | OSError
REFUSED = OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
TIMED_OUT = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
RESET = OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class Violation(AssertionError):
    """A law that did not hold."""


class Host(Protocol):
    """What the network needs of the world."""

    def now_ns(self) -> int: ...
    def at(self, at_ns: int, call: Callable[[], None], what: str) -> None: ...
    def note(self, what: str) -> None: ...


@dataclass(frozen=True)
class Weather:
    """How often what goes wrong in one run; most of it is 0 in most runs."""

    latency_ns: int
    pace_ns: int  # between two tokens
    idle_close_ns: int  # when the server closes; uvicorn: 5 s
    refused: float = 0.0
    lost: float = 0.0  # a SYN that nobody answers
    exhausted: float = 0.0  # open() fails on this host
    faulty: float = 0.0  # answers that are not a plain stream
    split: float = 0.0  # a piece that comes in two, at any byte
    stray: float = 0.0  # idle connections on which the server says something before it closes them
    slow_write: float = 0.0  # a request that does not fit into the socket
    step: tuple[int, int] | None = None  # (ns from the first connection on, ns): CLOCK_REALTIME jumps
    dies: dict[int, int] = field(default_factory=dict)  # target -> ns from the first connection on until it is gone


@dataclass
class Served:
    """One request as the far end knows it: when it was sent, what was answered, and what was handed over."""

    request: int
    sent_ns: int
    idle_ns: int  # of its connection until then
    target: int
    answer: Answer
    arrivals: list[tuple[int, int, str | None]] = field(default_factory=list)  # (instant, bytes so far, end)
    reads: list[tuple[int, int, int]] = field(default_factory=list)  # (at, seen, bytes) of the client's reads
    end: str | None = None  # "fin" or "rst", once it was handed over
    ended_ns: int = 0  # when that was

    def note_end(self, at_ns: int, end: str) -> None:
        """Note that the end of the connection was handed over."""
        self.end, self.ended_ns = end, at_ns
        if not any(how for _, _, how in self.arrivals):  # it was on its way before the request was
            self.arrivals.append((at_ns, sum(size for _, _, size in self.reads), end))

    def arrived(self, at_ns: int) -> tuple[int, str | None]:
        """Return the bytes, and the end, that had come to this host before *at_ns*."""
        size, end = 0, None
        for arrived_ns, so_far, how in self.arrivals:
            if arrived_ns >= at_ns:
                break
            size, end = so_far, how or end
        return size, end


@dataclass
class Link:
    """The far end of one connection."""

    connection: Connection
    connect_ns: int
    error: OSError | None
    arrivals: deque[tuple[int, What]] = field(default_factory=deque)
    served: Served | None = None
    free_ns: int = 0  # when the last byte of the answer under way leaves the server; it may be in the future
    closes_ns: int = NEVER  # when the server closes
    is_known: bool = False  # the owner has been told that it is open

    def next_ns(self) -> int:
        """Return when this host hears of it next."""
        if not self.is_known:
            return self.connect_ns
        return self.arrivals[0][0] if self.arrivals else NEVER


class SimNetwork:
    """Connections to one simulated server."""

    def __init__(self, host: Host, random: Random, weather: Weather, *, receive: str) -> None:
        self.receive = receive
        self.due_at_ns = NEVER
        self.inbox: deque[tuple[Connection, int, int, What]] = deque()
        self.served: dict[int, Served] = {}
        self.stale: dict[int, Served] = {}  # the first sending of what was sent twice
        self.links: dict[int, Link] = {}
        self.opened = self.closed = 0
        self._host, self._random, self._weather = host, random, weather
        self._waiting: list[tuple[int, int]] = []  # heap of (instant, connection)
        self._is_shut = False
        self._born_ns = host.now_ns()
        self.is_misled = False  # a stamp was wrong by the step of a clock
        self._is_tuned = weather.step is None

    def listen(self, owner: Owner, ready: Callable[[], None]) -> None:
        self._owner, self._ready = owner, ready

    def open(self, target: int = 0) -> Connection:
        if self._is_shut:
            raise Violation("a connection was opened after the end")
        random, weather, now_ns = self._random.random, self._weather, self._host.now_ns()
        if random() < weather.exhausted:
            code = self._random.choice((errno.EMFILE, errno.EADDRNOTAVAIL, errno.ECONNREFUSED))
            raise OSError(code, os.strerror(code))
        connection = Connection(self.opened, None, target)
        link = Link(connection, now_ns + self._travel(), None)
        if random() < weather.refused or self._is_dead(target, now_ns):
            link.error = REFUSED
        elif self.served and random() < weather.lost:  # at the warm-up it would only be long
            link.connect_ns, link.error = now_ns + 20 * S, TIMED_OUT
        link.closes_ns = link.connect_ns + weather.idle_close_ns
        self.links[self.opened] = link
        self.opened += 1
        self._expect(link)
        return connection

    def send(self, connection: Connection, parts: list[bytes]) -> bool:
        link = self.links.get(connection.number)
        if link is None or not connection.open:
            raise Violation(f"a request was sent on connection {connection.number}, which is closed")
        now_ns = self._host.now_ns()
        request = int(b"".join(parts).rpartition(b" ")[2])
        if (first := self.served.get(request)) is not None:
            if request in self.stale or first.reads or first.end is None or link.served is not None:
                raise Violation(f"request {request} was sent twice")
            self.stale[request] = first
        if link.served is not None and sum(read[2] for read in link.served.reads) < link.served.answer.whole_at:
            raise Violation(f"request {request} was sent before the answer to {link.served.request} had ended")
        idle_ns = now_ns - max(link.connect_ns, link.served.reads[-1][1] if link.served is not None else 0)
        answer = make_stream(self._random)
        if self._random.random() < self._weather.faulty:
            answer = self._random.choice(FAULTY)(self._random)
        link.served = self.served[request] = Served(request, now_ns, idle_ns, connection.target, answer)
        self._host.note(f"request {request} on connection {connection.number}: {answer.kind}, then {answer.then}")
        if link.arrivals and link.arrivals[0][0] <= now_ns and self._random.random() < 0.5:
            connection.outgoing = []  # EPIPE: what has arrived will say why
            self._cross(link)
            return False
        if self._random.random() < self._weather.slow_write:
            connection.outgoing = list(parts)
            written_ns = now_ns + self._travel() + self._random.randrange(40 * MS)
            self._host.at(written_ns, lambda: self._write_on(link), "room to write")
            return False
        self._answer(link, now_ns)
        return True

    def close(self, connection: Connection) -> None:
        if self.links.pop(connection.number, None) is not None:
            connection.open = False
            self.closed += 1

    def drain(self) -> None:
        if self.receive == "kernel":
            self._read(look_up=True)

    def tune(self) -> int:
        self._is_tuned = self._is_tuned or self._misleads(self._host.now_ns())
        return 0

    def shut(self) -> None:
        self._is_shut = True
        for link in list(self.links.values()):
            self.close(link.connection)

    def has_news(self, now_ns: int) -> bool:
        """Return whether a drain would find something."""
        return bool(self._waiting) and self._waiting[0][0] <= now_ns

    def _notify(self) -> None:
        """Be called by the loop because something can be read."""
        if self._is_shut:
            return
        if self.receive == "kernel":
            self._ready()
        elif self._read(look_up=False):
            self._host.at(0, self._ready, "ready")
        if self.has_news(self._host.now_ns()):  # one read a socket was not all: it is ready again at once
            self._host.at(0, self._notify, "readable")

    def _read(self, *, look_up: bool) -> bool:
        """Read every socket once that has something by now; True when the inbox was empty and is not any more."""
        now_ns, was_empty = self._host.now_ns(), not self.inbox
        again: list[int] = []
        while self.has_news(now_ns):
            _, number = heappop(self._waiting)
            link = self.links.get(number)
            if link is None or link.next_ns() > now_ns:
                continue
            if not link.is_known:
                self._tell(link)
            else:
                self._hand_over(link, now_ns)
                if look_up and self._host.now_ns() >= self.due_at_ns:
                    self._owner.wake()
            again.append(number)
        for number in again:
            if number in self.links:
                self._expect(self.links[number])
        return was_empty and bool(self.inbox)

    def _tell(self, link: Link) -> None:
        link.is_known = True
        connection = link.connection
        if link.error is None:
            connection.open = True
            self._plan_close(link)
            self._owner.opened(connection)
            return
        self.close(connection)
        self._host.note(f"connection {connection.number} failed: {link.error.strerror}")
        self._owner.failed(connection, link.error)
        if self.receive == "user":
            self._ready()

    def _hand_over(self, link: Link, now_ns: int) -> None:
        """Move into the inbox what one recv would return."""
        at_ns, what = link.arrivals.popleft()
        if isinstance(what, bytes) and what:
            data = bytearray(what)
            while link.arrivals and link.arrivals[0][0] <= now_ns and len(data) < ARENA_BYTES:
                if isinstance(link.arrivals[0][1], OSError) or not link.arrivals[0][1]:
                    break
                at_ns, more = link.arrivals.popleft()
                data += more  # type: ignore[arg-type]
            what = bytes(data)
            if link.connection.outgoing and link.served is not None:
                link.served.answer = make_stray()  # the request is still here
        else:
            link.connection.open = False
            link.arrivals.clear()
        seen_ns = self._host.now_ns()
        if self._misleads(seen_ns) and self._weather.step is not None:
            at_ns += self._weather.step[1]
            self.is_misled = True
        if self.receive == "user" or not isinstance(what, bytes) or not what:
            at_ns = seen_ns
        if link.served is not None:
            if isinstance(what, bytes) and what:
                link.served.reads.append((at_ns, seen_ns, len(what)))
            else:
                link.served.note_end(at_ns, "fin" if isinstance(what, bytes) else "rst")
        self.inbox.append((link.connection, at_ns, seen_ns, what))

    def _write_on(self, link: Link) -> None:
        connection = link.connection
        if connection.number not in self.links or not connection.outgoing:
            return
        connection.outgoing = []
        self._answer(link, self._host.now_ns())
        self._owner.written(connection)

    def _answer(self, link: Link, sent_ns: int) -> None:
        """Decide what the server does about a request that left here at *sent_ns*."""
        served = link.served
        assert served is not None
        at_ns = sent_ns + self._travel()
        if self._is_dead(link.connection.target, at_ns):
            link.arrivals.clear()
            link.arrivals.append((at_ns + self._travel(), RESET))
            link.closes_ns = at_ns
            self._expect(link)
        if at_ns >= link.closes_ns or not link.connection.open:
            self._cross(link)
            return
        link.arrivals.clear()  # the end that was coming if nothing was asked
        answer = served.answer
        at_ns += self._random.randrange(self._weather.pace_ns * 3)
        for start, stop in self._cut(answer):
            served.arrivals.append((at_ns, stop, None))
            link.arrivals.append((at_ns, answer.said[start:stop]))
            pause_ns = self._weather.pace_ns if start in answer.pauses else 20 * US
            at_ns += 1 + int(self._random.random() * 2 * pause_ns)
        link.closes_ns = (
            NEVER if answer.then == "hang" else at_ns + (self._weather.idle_close_ns if answer.then == "stay" else 0)
        )
        if answer.then == "stay":
            self._plan_close(link)
        elif answer.then != "hang":
            link.arrivals.append((at_ns, RESET if answer.then == "rst" else b""))
            served.arrivals.append((at_ns, len(answer.said), answer.then))
        self._expect(link)

    def _cross(self, link: Link) -> None:
        """Let a request meet the closing on its way: what is coming, or a reset, is all that there will be."""
        served = link.served
        assert served is not None
        size = 0
        if link.arrivals and self._random.random() < 0.5:
            link.arrivals[-1] = (link.arrivals[-1][0], RESET)
        for at_ns, what in link.arrivals:
            if isinstance(what, bytes) and what:
                served.answer = make_stray()
                size += len(what)
                served.arrivals.append((at_ns, size, None))
            else:
                served.arrivals.append((at_ns, size, "fin" if isinstance(what, bytes) else "rst"))

    def _plan_close(self, link: Link) -> None:
        """Let the server close if nothing is asked until then, with or without a word."""
        at_ns = link.closes_ns + self._travel()
        if self._random.random() < self._weather.stray:
            link.arrivals.append((at_ns, TOO_LATE))
            at_ns += self._random.randrange(1, MS)
        link.arrivals.append((at_ns, b""))

    def _cut(self, answer: Answer) -> list[tuple[int, int]]:
        """Return the pieces of an answer: its events, some of them torn."""
        edges = [offset for offset in answer.pauses if 0 < offset < len(answer.said)]
        torn = [
            self._random.randrange(1, len(answer.said))
            for _ in range(len(edges))
            if len(answer.said) > 1 and self._random.random() < self._weather.split
        ]
        offsets = sorted({0, *edges, *torn, len(answer.said)})
        return list(pairwise(offsets))

    def _misleads(self, now_ns: int) -> bool:
        step = self._weather.step
        return not self._is_tuned and step is not None and now_ns >= self._born_ns + step[0]

    def _is_dead(self, target: int, now_ns: int) -> bool:
        return now_ns >= self._born_ns + self._weather.dies.get(target, NEVER)

    def _travel(self) -> int:
        return 1 + int(self._weather.latency_ns * (0.5 + self._random.random()))

    def _expect(self, link: Link) -> None:
        if (next_ns := link.next_ns()) < NEVER:
            heappush(self._waiting, (next_ns, link.connection.number))
            self._host.at(next_ns, self._notify, "readable")

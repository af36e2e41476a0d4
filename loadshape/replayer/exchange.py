# One request in flight: the stamps and counts that become its row.
#
# Law: plain integers, NULL until known, ns since the run's epoch. Nothing is computed here that the judge
# can compute later; nothing is kept that no column has.

"""Exchange: one request in flight, and its row in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from loadshape.log import Outcome
from loadshape.plan import NULL
from loadshape.wire.response import Gain, Response

if TYPE_CHECKING:
    from loadshape.replayer.body import Prepared
    from loadshape.replayer.connection import Connection

Row = tuple[tuple[int, ...], tuple[str | None, ...]]


class Place(NamedTuple):
    """Where a request belongs: its session and turn, its target, and the worker with its node."""

    session: int
    turn: int
    target: int
    worker: int
    node: int


class Exchange:
    """One request from its due instant to its outcome."""

    __slots__ = (
        "begun_ns",
        "bytes_in",
        "connected_ns",
        "connection",
        "due_ns",
        "events",
        "first_byte_ns",
        "first_content_ns",
        "first_token_ns",
        "head_ns",
        "last_read_ns",
        "last_token_ns",
        "parts",
        "position",
        "reads",
        "request",
        "resent_ns",
        "response",
        "retransmits",
        "reused",
        "rtt_ns",
        "said_ns",
        "sent_ns",
        "size_bytes",
        "stale_ns",
        "target",
        "tokens",
        "written_ns",
    )

    def __init__(
        self, position: int, request: int, prepared: Prepared, target: int = 0, *, keep_text: bool = False
    ) -> None:
        self.position = position
        self.target = target
        self.request = request
        self.due_ns = self.begun_ns = NULL
        self.parts = prepared.parts
        self.size_bytes = prepared.size_bytes
        self.response = Response(keep_text=keep_text)
        self.connection: Connection | None = None
        self.reused = NULL
        self.connected_ns = self.sent_ns = self.written_ns = self.said_ns = NULL
        self.head_ns = self.first_byte_ns = self.first_token_ns = self.first_content_ns = NULL
        self.last_token_ns = self.last_read_ns = NULL
        self.rtt_ns = self.retransmits = NULL
        self.stale_ns = self.resent_ns = NULL  # its connection was found stale; it was sent again, on another one
        self.reads = self.events = self.tokens = self.bytes_in = 0

    def skim(self, at_ns: int, data: bytes) -> bool:
        """Take a read that is one more token like those before, which is what nearly every read is; else absorb it."""
        if not self.response.skim(data):
            return False
        self.reads += 1
        self.events += 1
        self.tokens += 1
        self.bytes_in += len(data)
        self.last_read_ns = self.last_token_ns = at_ns
        return True

    def absorb(self, at_ns: int, data: bytes) -> Gain:
        """Take one read that arrived at *at_ns* and return what it contained."""
        gain = self.response.feed(data)
        self.reads += 1
        self.bytes_in += len(data)
        self.last_read_ns = at_ns
        if self.head_ns == NULL:
            self._open(at_ns)
        if gain.events:
            self.count(at_ns, gain)
        return gain

    def _open(self, at_ns: int) -> None:
        if self.first_byte_ns == NULL:
            self.first_byte_ns = at_ns
        if self.response.head_seen:
            self.head_ns = at_ns

    def count(self, at_ns: int, gain: Gain) -> None:
        """Count the events of a read, and stamp the first and last that bore a token."""
        self.events += gain.events
        if not gain.deltas:
            return
        self.tokens += gain.deltas if gain.tokens is None else gain.tokens
        self.last_token_ns = at_ns
        if self.first_token_ns == NULL:
            self.first_token_ns = at_ns
        if self.first_content_ns == NULL and gain.content:
            self.first_content_ns = at_ns


def make_row(exchange: Exchange, place: Place, outcome: Outcome, done_ns: int, error: str | None) -> Row:
    """Return (numbers, texts) of a finished exchange in the order of log.REQUESTS."""
    response = exchange.response
    connection = exchange.connection.number if exchange.connection is not None else NULL
    written = exchange.size_bytes * (1 + (exchange.resent_ns != NULL)) if exchange.written_ns != NULL else 0
    numbers = (
        *(exchange.request, place.session, place.turn, place.target, place.node, place.worker),
        *(connection, exchange.reused),
        *(exchange.due_ns, exchange.begun_ns, exchange.connected_ns, exchange.sent_ns, exchange.written_ns),
        *(exchange.head_ns, exchange.first_byte_ns, exchange.first_token_ns, exchange.first_content_ns),
        *(exchange.last_token_ns, done_ns, int(outcome)),
        *(_or_null(response.status), exchange.reads, exchange.events, exchange.bytes_in, written),
        *(_or_null(response.prompt_tokens), _or_null(response.completion_tokens)),
        *(_or_null(response.cached_tokens), _or_null(response.reasoning_tokens)),
        *(exchange.rtt_ns, exchange.retransmits, exchange.resent_ns),
    )
    return numbers, (error, response.finish_reason, response.request_id)


def make_unsent_row(request: int, place: Place, due_ns: int, outcome: Outcome, error: str) -> Row:
    """Return the row of a request that no exchange was ever begun for."""
    stamps = (NULL,) * 10
    numbers = (request, place.session, place.turn, place.target, place.node, place.worker, NULL, NULL, due_ns, *stamps)
    return (*numbers, int(outcome), NULL, 0, 0, 0, 0, *(NULL,) * 7), (error, None, None)


def _or_null(value: int | None) -> int:
    return NULL if value is None else value

# From stamped bytes to rows, a few milliseconds behind the stamps at most.
#
# Law: the stamps are already made; nothing here can spoil them. Decoding goes in slices of SLICE reads
# with a drain between two slices: decoding 5,000 reads at a stretch would hold the next drain back for
# 25 ms, and by then the kernel would have merged several tokens of a stream into one read. Within a slice
# the next due time is looked at, because a send must not wait for a decoder.

"""Decoder: feeds what arrived to the responses, and records every read."""

from __future__ import annotations

from loadshape.log import Outcome
from loadshape.plan import NULL
from loadshape.replayer.connection import Network
from loadshape.replayer.exchange import Exchange
from loadshape.replayer.ledger import Ledger
from loadshape.replayer.recorder import RowWriter
from loadshape.replayer.sender import Sender

SLICE = 64  # about a third of a millisecond
LOOK_EVERY = 16


class Decoder:
    """Empties the inbox of a network."""

    def __init__(self, network: Network, sender: Sender, ledger: Ledger, reads: RowWriter) -> None:
        self.reads = 0
        self.worst_lag_ns = 0
        self._network = network
        self._sender = sender
        self._ledger = ledger
        self._rows = reads

    def decode_slice(self) -> bool:
        """Decode up to SLICE reads; True when more are waiting."""
        inbox, epoch_ns = self._network.inbox, self._sender.epoch_ns
        for index in range(min(SLICE, len(inbox))):
            connection, at_ns, seen_ns, what = inbox.popleft()
            if index % LOOK_EVERY == 0:
                self._look_up(seen_ns)
            exchange = connection.exchange
            if exchange is None:
                if not connection.closed:
                    self._sender.lines.drop(connection)
            elif isinstance(what, bytes) and what:
                self._absorb(exchange, at_ns - epoch_ns, seen_ns - epoch_ns, what)
            else:
                self._break_off(exchange, at_ns - epoch_ns, what)
        return bool(inbox)

    def _look_up(self, seen_ns: int) -> None:
        now_ns = self._sender.clock.now_ns()
        self.worst_lag_ns = max(self.worst_lag_ns, now_ns - seen_ns)
        if now_ns >= self._network.due_at_ns:
            self._sender.wake()

    def _absorb(self, exchange: Exchange, at_ns: int, seen_ns: int, data: bytes) -> None:
        gain = exchange.absorb(at_ns, data)
        self.reads += 1
        tokens = NULL if gain.tokens is None else gain.tokens
        self._rows.append(exchange.request, at_ns, seen_ns, len(data), gain.events, gain.deltas, gain.kinds, tokens)
        response = exchange.response
        if response.complete:
            self._ledger.end(exchange, Outcome[response.outcome or "truncated"], response.error, at_ns)
            return
        if response.is_done:
            self._ledger.watch(exchange, at_ns)  # what is left is framing, and has its own, short limit
        if self._ledger.has_had_enough(exchange):
            self._ledger.end(exchange, Outcome.cancelled, "planned: the client had enough tokens", at_ns)

    def _break_off(self, exchange: Exchange, at_ns: int, what: bytes | OSError) -> None:
        """End a request whose connection ended: in order, which may be its rightful end, or by an error."""
        response = exchange.response
        exchange.count(at_ns, response.end_of_stream(reset=isinstance(what, OSError)))
        outcome, error = Outcome[response.outcome or "truncated"], response.error
        if exchange.reads == 0:
            outcome, error = Outcome.reset, "closed before an answer"
            if exchange.reused == 1:
                error += "; the connection was reused, so the server may have closed it as idle"
        self._ledger.end(exchange, outcome, error, max(at_ns, exchange.sent_ns))

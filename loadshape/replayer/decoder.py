# From stamped bytes to rows, a few milliseconds behind the stamps at most.
#
# Law: the stamps are already made; nothing here can spoil them. Decoding goes in slices of SLICE reads
# at most, with a drain between two slices: decoding 5,000 reads at a stretch would hold the next drain back for
# 15 ms, and by then the kernel would have merged several tokens of a stream into one read. Within a slice
# the next due time is looked at, because a send must not wait for a decoder. (ADR 12)
#
# Arrivals that wait are bounded: past the bound the run is stopped, as it is when the log falls behind. Neither
# the reading nor the sending ever waits for the decoder.

"""Decoder: feeds what arrived to the responses, and records every read."""

from __future__ import annotations

from loadshape.histogram import Histogram
from loadshape.log import Outcome
from loadshape.plan import NULL
from loadshape.replayer.connection import Network
from loadshape.replayer.exchange import Exchange
from loadshape.replayer.ledger import Ledger
from loadshape.replayer.recorder import RowWriter
from loadshape.replayer.sender import Sender
from loadshape.replayer.tape import Tape
from loadshape.wire import Kind

CONTENT = int(Kind.CONTENT)
INBOX_READS = 200_000  # more than the decoder can work off in a second
INBOX_BYTES = 256 << 20
WEIGHED_FROM = 1024  # fewer reads than this cannot hold so many bytes
STALE = "stale connection: closed before an answer when it was used again"
SLICE = 16  # tokens like those before, about 40 us; between two slices the sockets are read
PARSED = 8  # such tokens cost what one read costs that has to be parsed


class Decoder:
    """Empties the inbox of a network."""

    def __init__(self, network: Network, sender: Sender, ledger: Ledger, reads: RowWriter) -> None:
        self.reads = 0
        self.worst_lag_ns = 0
        self.ttft = Histogram()
        self.gaps = Histogram()
        self.tape: Tape | None = None
        self._network = network
        self._sender = sender
        self._ledger = ledger
        self._rows = reads

    def decode_slice(self) -> bool:
        """Decode a few reads, SLICE at most; True when more are waiting."""
        inbox, epoch_ns = self._network.inbox, self._sender.epoch_ns
        left, is_looking = SLICE, True
        while inbox and left > 0:
            connection, at_ns, seen_ns, what = inbox.popleft()
            left -= 1
            if is_looking:
                self._look_up(seen_ns)
            exchange = connection.exchange
            if exchange is None:
                if not connection.closed:
                    self._sender.lines.drop(connection)
            elif isinstance(what, bytes) and what:
                if not exchange.reads and seen_ns - epoch_ns < exchange.sent_ns:
                    continue  # said while the connection was idle, before this was asked
                before_ns = exchange.last_token_ns
                if exchange.skim(at_ns - epoch_ns, what):
                    self._note_token(exchange, at_ns - epoch_ns, seen_ns - epoch_ns, what)
                else:
                    self._absorb(exchange, at_ns - epoch_ns, seen_ns - epoch_ns, what)
                    left -= PARSED
                if is_looking or before_ns == NULL:
                    self._sample(exchange, before_ns)
            else:
                self._break_off(exchange, at_ns - epoch_ns, seen_ns - epoch_ns, what)
                left -= PARSED
            is_looking = left % PARSED == 0
        return bool(inbox)

    @property
    def is_behind(self) -> bool:
        """Whether more waits to be decoded than may: memory would grow without a bound."""
        inbox = self._network.inbox
        if len(inbox) < WEIGHED_FROM:
            return False
        return len(inbox) > INBOX_READS or sum(len(it[3]) for it in inbox if isinstance(it[3], bytes)) > INBOX_BYTES

    def _look_up(self, seen_ns: int) -> None:
        now_ns = self._sender.clock.now_ns()
        self.worst_lag_ns = max(self.worst_lag_ns, now_ns - seen_ns)
        if now_ns >= self._network.due_at_ns:
            self._sender.wake()

    def _sample(self, exchange: Exchange, before_ns: int) -> None:
        """Count what a read says of TTFT or gaps, for looking on: every first token, and some of the gaps."""
        if exchange.last_token_ns == before_ns:
            return
        if before_ns == NULL:
            self.ttft.add(exchange.first_token_ns - exchange.due_ns)
        else:
            self.gaps.add(exchange.last_token_ns - before_ns)

    def _note_token(self, exchange: Exchange, at_ns: int, seen_ns: int, data: bytes) -> None:
        """Log a read that was one more token."""
        self.reads += 1
        self._rows.append(exchange.request, at_ns, seen_ns, len(data), 1, 1, CONTENT, NULL)
        if self.tape is not None:
            self.tape.take(exchange.request, at_ns, seen_ns, data)
        if self._ledger.ends_early:
            self._check_patience(exchange, at_ns)

    def _check_patience(self, exchange: Exchange, at_ns: int) -> None:
        if self._ledger.limits.has_had_enough(exchange, self._ledger.plan):
            self._ledger.give_up(exchange, Outcome.cancelled, "planned: the client had enough tokens", at_ns)

    def _absorb(self, exchange: Exchange, at_ns: int, seen_ns: int, data: bytes) -> None:
        if self.tape is not None:
            self.tape.take(exchange.request, at_ns, seen_ns, data)
        gain = exchange.absorb(at_ns, data)
        self.reads += 1
        tokens = NULL if gain.tokens is None else gain.tokens
        self._rows.append(exchange.request, at_ns, seen_ns, len(data), gain.events, gain.deltas, gain.kinds, tokens)
        response = exchange.response
        if response.complete:
            done_ns = max(at_ns, exchange.sent_ns)  # a last word on an idle connection may be older than the request
            self._ledger.end(exchange, Outcome[response.outcome or "truncated"], response.error, done_ns)
            return
        if response.is_done:
            is_good = response.outcome is None and response.deltas > 0
            self._ledger.go_on(exchange, max(at_ns, exchange.sent_ns), succeeded=is_good)
            self._ledger.watch(exchange, at_ns)  # what is left is framing, and has its own, short limit
        else:
            self._check_patience(exchange, at_ns)

    def _break_off(self, exchange: Exchange, at_ns: int, seen_ns: int, what: bytes | OSError) -> None:
        """End a request whose connection ended: in order, which may be its rightful end, or by an error."""
        response = exchange.response
        if exchange.reads == 0 and self._sender.retry(exchange):
            return
        if self.tape is not None:
            self.tape.note_end(exchange.request, at_ns, reset=isinstance(what, OSError))
        gain = response.end_of_stream(reset=isinstance(what, OSError))
        exchange.count(at_ns, gain)
        if gain.events:  # a whole answer that nothing but the end of the connection ends: a read of no bytes brought it
            exchange.reads += 1
            tokens = NULL if gain.tokens is None else gain.tokens
            self._rows.append(exchange.request, at_ns, seen_ns, 0, gain.events, gain.deltas, gain.kinds, tokens)
        outcome, error = Outcome[response.outcome or "truncated"], response.error
        if exchange.reads == 0:
            is_stale = exchange.reused == 1 and exchange.resent_ns == NULL
            outcome, error = Outcome.reset, STALE if is_stale else "closed before an answer"
        self._ledger.end(exchange, outcome, error, max(at_ns, exchange.sent_ns))

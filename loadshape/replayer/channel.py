# One TLS conversation as bytes in and bytes out: no socket, no clock, no loop.
#
# Law: sealed bytes go in, what they say comes out, and the other way round; the caller moves both. So the read
# that completed a record is known to the caller, and its kernel stamp can be the record's.
#
# An ssl.SSLObject over two MemoryBIOs: it never waits. WANT_READ says that a record is not whole yet, WANT_WRITE
# cannot happen, since a MemoryBIO grows. A single record (nearly every read of a stream of tokens) is read with
# one call and no exception, because an empty inner buffer says as much as WANT_READ does.
#
# Behind a proxy the conversation begins with another one, for a tunnel (tunnel.py): its request is the first thing to
# send, and what comes before its answer is no TLS yet.
#
# No session is ever offered again, so every connection pays for a full handshake and all are alike. A stream
# that ends without close_notify is taken as ended in order, as browsers and asyncio do (RFC 8446 6.1 calls for
# it, servers often leave it out): whether the answer was whole, its own framing says.

"""Channel: one TLS conversation between two buffers."""

from __future__ import annotations

import contextlib
import ssl

from loadshape.replayer.tunnel import Tunnel

RECORD_BYTES = 1 << 14  # what one record holds at most, RFC 8446 5.1
PIECE_BYTES = 1 << 18  # sealed at once: 0.1 ms, and what waits for a full socket stays small


class Channel:
    """The client's side of one TLS connection."""

    __slots__ = ("_incoming", "_outgoing", "_rest", "_tls", "is_open", "is_over", "is_waiting", "queued", "tunnel")

    def __init__(self, context: ssl.SSLContext, host: str, tunnel: Tunnel | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._rest = memoryview(b"")
        self.is_open = False  # the handshake is done
        self.is_over = False  # the peer has said its last
        self.is_waiting = False  # a request is handed over only in part
        self.queued = 0  # reads that wait for their turn in the handshake
        self.tunnel = tunnel  # that is not open yet
        if tunnel is not None:
            self._outgoing.write(tunnel.request)

    def shake(self, sealed: bytes | None = None) -> bool:
        """Go on with the handshake; True when it is done. Raises OSError, or ssl.SSLError, when it cannot succeed.

        There may be something to send afterwards in either case.
        """
        if self.tunnel is not None:
            if sealed is None or not self.tunnel.feed(sealed):
                return False
            self.tunnel = sealed = None
        self._incoming.write(sealed or b"")
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.is_open = True
        return self.is_open

    def unseal(self, sealed: bytes) -> tuple[bytes, bool]:
        """Return what the records that *sealed* completes say, and whether they were the peer's last.

        Raises ssl.SSLError for a forged or broken one.
        """
        incoming, tls = self._incoming, self._tls
        incoming.write(sealed)
        pieces, is_over = [], False
        try:
            while incoming.pending or tls.pending():
                piece = tls.read(RECORD_BYTES)
                if not piece:
                    is_over = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_over = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), is_over

    @property
    def owes_answer(self) -> bool:
        """Whether the protocol itself has something to send: the peer asked for new keys, for example."""
        return self._outgoing.pending > 0

    def load(self, parts: list[bytes]) -> None:
        """Take the parts of a request, to be sealed as room for them comes."""
        self._rest = memoryview(b"".join(parts))

    def seal(self) -> bytes:
        """Return the next sealed bytes to send, those of the protocol itself included; empty when there are none."""
        if self._rest:
            with contextlib.suppress(ssl.SSLError):  # the reading side has heard of it, or will
                done = self._tls.write(self._rest[:PIECE_BYTES])
                self._rest = self._rest[done:]
                return self._outgoing.read()
            self._rest = memoryview(b"")
        return self._outgoing.read()

    def part(self) -> bytes:
        """Return the close_notify to send as the last."""
        with contextlib.suppress(ssl.SSLError):  # it wants to read the peer's, for which nobody waits
            self._tls.unwrap()
        return self._outgoing.read()

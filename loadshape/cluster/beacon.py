# Asking a node what time it is: datagrams there and back, stamped on both sides.
#
# Law: sockets and threads, and no arithmetic: synchrony.py judges what is stamped here. Stamps are CLOCK_MONOTONIC,
# next to the system call that sends or receives. The node's side answers and keeps nothing.
#
#     question and answer    token 16 | number 8 | heard 8 | answered 8 bytes, in network order
#
# Pings of a burst follow one another at once, one under way at a time: a question that waits behind another is slow.
# Each burst has a socket of its own, connected to the node, so what is late for one does not reach the next; numbers go
# on from burst to burst for what does. A burst is over after BURST_S even if nobody answers: other nodes wait.
#
# A beacon listens on one address and answers only to the run's token, which coordinator and agents got by another
# way. Anything else is counted and gets no answer, and an answer is not longer than its question: nobody can be flooded
# by way of a beacon. The token is no secret to those who read the network; they could learn a clock, no more.

"""Beacon tells a node's clock to whoever has the run's token; Sounder asks all nodes, again and again."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import itertools
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping

from loadshape.cluster.synchrony import Volley, judge_pings
from loadshape.errors import InputError
from loadshape.nodes import Burst

TOKEN_BYTES = 16
PINGS, FEWEST = 100, 10  # of a burst
ROUND_PINGS = 10_000  # of all nodes: the last one's clock should be read a few seconds after the first one's
EVERY_S = 10.0
WAIT_S = 0.5  # for one answer; more than any way on Earth takes
BURST_S = 2.0
CLOSE_S = 0.2
_FORM = struct.Struct(f"!{TOKEN_BYTES}sQqq")
_now_ns = time.monotonic_ns


def make_token() -> bytes:
    """Return a token that no other run has."""
    return secrets.token_bytes(TOKEN_BYTES)


class Beacon:
    """Tells this host's clock on *address*, on a free `port`, in a thread, until `close()`. A context manager.

    `answered` and `strangers` count datagrams that had the token, and that did not. Raises InputError where *address*
    is not one address of this host.
    """

    def __init__(self, address: str, token: bytes, port: int = 0) -> None:
        self._token = _check_token(token)
        self.answered = self.strangers = 0
        self._socket = _listen(address, port)
        self.port: int = self._socket.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="beacon", daemon=True)
        self._thread.start()

    def __enter__(self) -> Beacon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering, and free the port."""
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _answer(self) -> None:
        line, form = self._socket, _FORM
        while not self._over.is_set():
            try:
                question, asker = line.recvfrom(form.size + 1)
                heard_ns = _now_ns()
                if len(question) == form.size and hmac.compare_digest(question[:TOKEN_BYTES], self._token):
                    _, number, _, _ = form.unpack(question)
                    self.answered += 1
                    line.sendto(form.pack(self._token, number, heard_ns, _now_ns()), asker)
                else:
                    self.strangers += 1
            except OSError:
                pass  # nobody asked for CLOSE_S, or who asked is out of reach


class Sounder:
    """Reads the clocks of *peers*, node -> (address, port), each of which has a beacon with *token*.

    As a context manager it reads all clocks before the block begins, every *every_s* in a thread while it runs, and
    after it, unless it failed. `bursts` has all readings, with times on this host's CLOCK_MONOTONIC.
    """

    def __init__(
        self, peers: Mapping[int, tuple[str, int]], token: bytes, *, every_s: float = EVERY_S, count: int | None = None
    ) -> None:
        self._peers = dict(peers)
        self._token = _check_token(token)
        self._every_s, self._count = every_s, count or choose_count(len(peers))
        self._numbers = itertools.count()
        self._lost: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="sounder", daemon=True)
        self.bursts: dict[int, list[Burst]] = {node: [] for node in peers}

    def __enter__(self) -> Sounder:
        self.sound_all()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if kind is None:
            self.sound_all()

    def sound(self, node: int, count: int | None = None) -> Burst:
        """Read the clock of *node* with *count* pings now, and return what was entered into `bursts`."""
        volley, begun_ns = Volley(), _now_ns()
        until_ns = begun_ns + round(BURST_S * 1e9)
        with contextlib.suppress(OSError), _connected(*self._peers[node]) as line:
            for number in itertools.islice(self._numbers, self._count if count is None else count):
                if _now_ns() > until_ns:
                    break
                with contextlib.suppress(OSError):  # no answer in time, or out of reach
                    self._ping(line, volley, number)
        burst = judge_pings(volley.pings, sent=volley.sent, begun_ns=begun_ns)
        self.bursts[node].append(burst)
        return burst

    def sound_all(self) -> None:
        """Read the clocks of all nodes, one after the other."""
        for node in self._peers:
            if node not in self._lost:
                self.sound(node)

    def forget(self, node: int) -> None:
        """Ask *node* no more: it was lost. Its readings are kept."""
        self._lost.add(node)

    def _ping(self, line: socket.socket, volley: Volley, number: int) -> None:
        question = _FORM.pack(self._token, number, 0, 0)
        volley.ask(number, sent_ns := _now_ns())
        line.send(question)
        returned_ns, found = sent_ns, -1
        while found != number and returned_ns - sent_ns < WAIT_S * 1e9:
            answer = line.recv(_FORM.size + 1)
            returned_ns = _now_ns()
            if len(answer) == _FORM.size and hmac.compare_digest(answer[:TOKEN_BYTES], self._token):
                _, found, heard_ns, answered_ns = _FORM.unpack(answer)
                volley.hear(found, heard_ns, answered_ns, returned_ns)

    def _repeat(self) -> None:
        due_s = time.monotonic() + self._every_s
        while not self._over.wait(max(0.0, due_s - time.monotonic())):
            for node in self._peers:
                if node not in self._lost and not self._over.is_set():
                    self.sound(node)
            due_s = max(due_s + self._every_s, time.monotonic())


def choose_count(nodes: int) -> int:
    """Return how many pings a burst has where there are so many nodes."""
    return max(FEWEST, min(PINGS, ROUND_PINGS // max(1, nodes)))


def _check_token(token: bytes) -> bytes:
    if len(token) != TOKEN_BYTES:
        raise InputError(f"token: expected {TOKEN_BYTES} bytes, found {len(token)}; make_token() makes one")
    return token


def _listen(address: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address or "::", port, type=socket.SOCK_DGRAM)[0]
        if ipaddress.ip_address(where[0]).is_unspecified:
            raise InputError(f"address: expected one address of this host, found {address!r}, which stands for all")
        line = socket.socket(family, kind, protocol)
    except OSError as problem:
        raise InputError(f"address: expected one of this host, found {address!r}: {problem.strerror}") from None
    try:
        line.bind(where)
        line.settimeout(CLOSE_S)
    except OSError as problem:
        line.close()
        raise InputError(f"address: cannot listen on port {port} of {address}: {problem.strerror}") from None
    return line


@contextlib.contextmanager
def _connected(address: str, port: int) -> Iterator[socket.socket]:
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as line:
        line.settimeout(WAIT_S)
        line.connect(where)
        yield line

# The other end of a calibration: answers as fast as Python can, and says when it really did.
#
# Law: per chunk one clock, one system call, one append; nothing is formatted, parsed or decided. It exists
# to find the limits of the replayer, so it must not have a lower one, as an HTTP framework would: sockets
# in one epoll, all bytes made beforehand in the form of vLLM's, due times absolute on the pacer of the
# replayer. It is no endpoint: it looks for three numbers in a request and does not care about the rest.
#
#     max_tokens      how many writes, each one event with one token
#     x-interval-us   how far apart, the first one as far after the request
#     x-request-id    under which name they are remembered
#
# Streams of one interval wait in one queue: whoever was served goes to its end, so the queue stays in the
# order of due times without a heap. A request that is read late stands behind by as much as it was late.
#
# What the program did is asked over its standard input and kept as an Arrow stream: per request the due
# instant of its first write and the instants just before each write. It measures its own use of CPU ten
# times a second. When its input ends, so does it: no responder outlives its calibration.

"""A raw-socket server of chunk streams with exact times, for calibration: python -m loadshape.responder."""

from __future__ import annotations

import gc
import os
import re
import resource
import select
import socket
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from loadshape.pacer import TimerfdPacer, tighten_timers
from loadshape.stats import Integers

INTERVAL_HEADER = "x-interval-us"
TRUTH = pa.schema(
    [
        pa.field("request", pa.string(), nullable=False),
        pa.field("due_ns", pa.int64(), nullable=False),
        pa.field("interval_ns", pa.int64(), nullable=False),
        pa.field("writes_ns", pa.list_(pa.int64()), nullable=False),
    ]
)
BACKLOG = 4096
READ_BYTES = 1 << 16
WRITES_AT_ONCE = 32  # between two looks at the sockets: a fifth of a millisecond
TICK_NS = 100_000_000

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_NAME = re.compile(rb"x-request-id: *([^\r]*)", re.IGNORECASE)
_INTERVAL = re.compile(rb"x-interval-us: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_tokens": *(\d+)')

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: keep-alive\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1796001256,'
    b'"model":"calibration","choices":[%b]%b}\n\n'
)
_CHOICE = b'{"index":0,"delta":{%b},"logprobs":null,"finish_reason":%b,"token_ids":null}'
_USAGE = b',"usage":{"prompt_tokens":50,"total_tokens":51,"completion_tokens":1,"prompt_tokens_details":null}'


class Busyness(msgspec.Struct, frozen=True):
    """A responder's account of itself: [CLOCK_MONOTONIC, CPU time] pairs in ns, and writes that found no room."""

    samples: list[tuple[int, int]]
    blocked: int


class Stream:
    """One connection, and the answer that is being written to it."""

    __slots__ = ("due_ns", "first_ns", "heard", "interval_ns", "left", "name", "send", "sock", "writes")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.send = sock.send
        self.heard = b""
        self.left = 0


class Responder:
    """Serves until its orders end. Also the part of an event loop that its pacers need."""

    def __init__(self, port: int, orders: int, report: Callable[[bytes], object]) -> None:
        self._listener = _listen(port)
        self._orders = orders
        self._report = report
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._streams: dict[int, Stream] = {}
        self._queues: dict[int, deque[Stream]] = {}
        self._ended: list[tuple[bytes, int, int, array[int]]] = []
        self._samples: list[tuple[int, int]] = []
        self._blocked = 0
        self._is_over = False
        self._pacer = TimerfdPacer(self, self._fire)
        self._ticker = TimerfdPacer(self, self._tick)
        self.add_reader(self._listener.fileno(), self._accept)
        self.add_reader(orders, self._obey)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Answer until the orders end."""
        self._tick()
        streams, callbacks, poll = self._streams, self._callbacks, self._epoll.poll
        while not self._is_over:
            for fd, _ in poll():
                stream = streams.get(fd)
                if stream is not None:
                    self._hear(stream)
                else:
                    callbacks[fd]()
        self._close()

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> None:
        """Call back whenever *fd* can be read."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def remove_reader(self, fd: int, /) -> None:
        """Watch *fd* no more."""
        self._epoll.unregister(fd)
        del self._callbacks[fd]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # no more for now, or no descriptor left: then the peer waits
                return
            sock.setblocking(False)
            self._streams[sock.fileno()] = Stream(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _hear(self, stream: Stream) -> None:
        try:
            data = stream.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(stream)
            return
        stream.heard += data
        head = stream.heard.find(b"\r\n\r\n")
        if head < 0 or stream.left:
            return
        length = _LENGTH.search(stream.heard, 0, head)
        end = head + 4 + (int(length[1]) if length else 0)
        if len(stream.heard) >= end:
            self._begin(stream, stream.heard[:end])
            stream.heard = stream.heard[end:]

    def _begin(self, stream: Stream, request: bytes) -> None:
        now_ns = time.monotonic_ns()
        name, interval, tokens = _NAME.search(request), _INTERVAL.search(request), _TOKENS.search(request)
        stream.name = name[1] if name else b""
        stream.interval_ns = int(interval[1]) * 1000 if interval else 0
        stream.left = int(tokens[1]) if tokens else 1
        stream.first_ns = stream.due_ns = now_ns + stream.interval_ns
        stream.writes = array("q")
        queue = self._queues.setdefault(stream.interval_ns, deque())
        queue.append(stream)
        if len(queue) == 1:
            self._arm()

    def _fire(self) -> None:
        """Write what is due, a few at a time."""
        for queue in self._queues.values():
            self._write_due(queue)
        self._arm()

    def _write_due(self, queue: deque[Stream]) -> None:
        now_ns = time.monotonic_ns
        for _ in range(min(WRITES_AT_ONCE, len(queue))):
            stream = queue[0]
            at_ns = now_ns()
            if stream.due_ns > at_ns:
                return
            queue.popleft()
            left = stream.left
            data = CHUNK if left > 1 and stream.writes else _choose(left, is_first=not stream.writes)
            if not self._write(stream, data):
                continue
            stream.writes.append(at_ns)
            stream.left = left - 1
            if left > 1:
                stream.due_ns += stream.interval_ns
                queue.append(stream)
            else:
                self._ended.append((stream.name, stream.first_ns, stream.interval_ns, stream.writes))

    def _write(self, stream: Stream, data: bytes) -> bool:
        try:
            if stream.send(data) == len(data):
                return True
            self._blocked += 1
        except BlockingIOError:
            self._blocked += 1
        except OSError:
            pass  # the peer has gone
        self._drop(stream)
        return False

    def _arm(self) -> None:
        due_ns = min((queue[0].due_ns for queue in self._queues.values() if queue), default=0)
        if due_ns:
            self._pacer.arm(due_ns)

    def _drop(self, stream: Stream) -> None:
        """Forget a connection; its unfinished answer, if any, meets the closed socket and ends there."""
        if self._streams.pop(stream.sock.fileno(), None) is not None:
            stream.sock.close()

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        self._samples.append((now_ns, time.process_time_ns()))
        self._ticker.arm(now_ns + TICK_NS)

    def _obey(self) -> None:
        """Write what was done to each file that is named, and forget it; end when nobody gives orders."""
        data = os.read(self._orders, READ_BYTES)
        self._is_over = not data
        for line in data.splitlines():
            self._hand_in(Path(os.fsdecode(line)))

    def _hand_in(self, path: Path) -> None:
        ended, self._ended = self._ended, []
        names, firsts, intervals, writes = zip(*ended, strict=True) if ended else ((), (), (), ())
        lists = pa.ListArray.from_arrays(
            pa.array(np.cumsum([0, *map(len, writes)]), pa.int32()),
            pa.array(np.concatenate([np.empty(0, np.int64), *(np.frombuffer(part, np.int64) for part in writes)])),
        )
        columns = [pa.array([name.decode("latin-1") for name in names], pa.string())]
        columns += [pa.array(firsts, pa.int64()), pa.array(intervals, pa.int64()), lists]
        with pa.ipc.new_stream(str(path), TRUTH) as file:
            file.write_table(pa.table(columns, schema=TRUTH))
        samples, self._samples = self._samples, self._samples[-1:]
        blocked, self._blocked = self._blocked, 0
        self._report(msgspec.json.encode(Busyness(samples, blocked)) + b"\n")

    def _close(self) -> None:
        for pacer in (self._pacer, self._ticker):
            pacer.close()
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._listener.close()
        self._epoll.close()


def measure_writes(count: int) -> Integers:
    """Return the size in bytes of each of the *count* writes of an answer."""
    sizes = np.full(count, len(CHUNK), np.int64)
    for place, left in ((0, count), (count - 1, 1)):
        sizes[place] = len(_choose(left, is_first=place == 0))
    return sizes


def _choose(left: int, *, is_first: bool) -> bytes:
    """Return the bytes of the next write of an answer that has *left* to go."""
    return _ENDS[is_first, left == 1]


def _frame(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)


def _say(delta: bytes, finish: bytes = b"null") -> bytes:
    return _EVENT % (_CHOICE % (delta, finish), b"")


def _make_ends() -> dict[tuple[bool, bool], bytes]:
    """Return the bytes of a write by (is the first, is the last)."""
    word, role = _say(b'"content":" word"'), _say(b'"role":"assistant","content":""')
    end = _frame(_say(b'"content":" end"', b'"length"'), _EVENT % (b"", _USAGE), b"data: [DONE]\n\n") + b"0\r\n\r\n"
    head = _HEAD + _frame(role)
    return {
        (False, False): _frame(word),
        (True, False): head + _frame(word),
        (False, True): end,
        (True, True): head + end,
    }


_ENDS = _make_ends()
CHUNK = _ENDS[False, False]


def _listen(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the kernel deals connections to all responders
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what it accepts inherits it
    sock.bind(("127.0.0.1", port))
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def main() -> int:
    """Serve on the port that is the first argument (0: a free one) and say which; orders come on standard input."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tighten_timers()
    responder = Responder(int(sys.argv[1]), 0, lambda line: os.write(1, line))
    os.write(1, b"%d\n" % responder.port)
    gc.collect()
    gc.freeze()
    gc.disable()
    responder.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())

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
# order of due times without a heap. For that a new one may not be due after those that will be put behind it:
# its time is that of the queue, which is behind the clock while the responder is late.
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
from contextlib import suppress
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
        pa.field("left", pa.int64(), nullable=False),  # writes that did not come, because the peer went away
    ]
)
SCHEDSTAT = Path("/proc/self/schedstat")
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
    """A responder's account of itself: [monotonic clock, CPU used, CPU waited for] in ns, and writes without room."""

    samples: list[tuple[int, int, int]]
    blocked: int


class Stream:
    """One connection, and the answer that is being written to it."""

    __slots__ = ("due_ns", "first_ns", "heard", "interval_ns", "left", "name", "send", "sock", "writes")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.send = sock.send
        self.heard = b""
        self.left = 0
        self.name = b""
        self.interval_ns = self.first_ns = self.due_ns = 0
        self.writes: array[int] = array("q")


class Poll:
    """One epoll: streams in one table, everything else called back. The part of an event loop that pacers need."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> None:
        """Call back whenever *fd* can be read."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def remove_reader(self, fd: int, /) -> None:
        """Watch *fd* no more."""
        self._epoll.unregister(fd)
        del self._callbacks[fd]

    def add(self, stream: Stream) -> None:
        """Watch a new connection."""
        self.streams[stream.sock.fileno()] = stream
        self._epoll.register(stream.sock.fileno(), select.EPOLLIN)

    def drop(self, stream: Stream) -> None:
        """Close a connection; its unfinished answer, if any, meets the closed socket and ends there."""
        if self.streams.pop(stream.sock.fileno(), None) is not None:
            stream.sock.close()

    def wait(self, hear: Callable[[Stream], None]) -> None:
        """Wait until something can be read, and have it read."""
        streams, callbacks = self.streams, self._callbacks
        for fd, _ in self._epoll.poll():
            stream = streams.get(fd)
            if stream is not None:
                hear(stream)
            elif fd in callbacks:
                callbacks[fd]()

    def close(self) -> None:
        """Close every connection and the epoll."""
        for stream in list(self.streams.values()):
            self.drop(stream)
        self._epoll.close()


class Answers:
    """What is still to be written, and what was."""

    def __init__(self, poll: Poll) -> None:
        self.blocked = 0
        self._poll = poll
        self._pacer = TimerfdPacer(poll, self._fire)
        self._queues: dict[int, deque[Stream]] = {}
        self._ended: list[tuple[bytes, int, int, array[int], int]] = []

    def begin(self, stream: Stream, request: bytes) -> None:
        """Answer *request*, the first time one interval from now."""
        name, interval, tokens = _NAME.search(request), _INTERVAL.search(request), _TOKENS.search(request)
        stream.name = name[1] if name else b""
        stream.interval_ns = int(interval[1]) * 1000 if interval else 0
        stream.left = int(tokens[1]) if tokens else 1
        stream.writes = array("q")
        queue = self._queues.setdefault(stream.interval_ns, deque())
        now_ns = time.monotonic_ns()
        stream.first_ns = min(now_ns, queue[0].due_ns if queue else now_ns) + stream.interval_ns
        stream.due_ns = stream.first_ns
        queue.append(stream)
        if len(queue) == 1:
            self._arm()

    def gather(self) -> pa.Table:
        """Return what was written since this was asked last, with the schema TRUTH; give up what is unfinished."""
        for queue in self._queues.values():
            for stream in queue:
                self._end(stream)
            queue.clear()
        ended, self._ended = self._ended, []
        names, firsts, intervals, writes, left = zip(*ended, strict=True) if ended else ((), (), (), (), ())
        ends = np.cumsum([0, *map(len, writes)])
        stamps = np.concatenate([np.empty(0, np.int64), *(np.frombuffer(part, np.int64) for part in writes)])
        columns = [
            pa.array([name.decode("latin-1") for name in names], pa.string()),
            pa.array(firsts, pa.int64()),
            pa.array(intervals, pa.int64()),
            pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(stamps)),
            pa.array(left, pa.int64()),
        ]
        return pa.table(columns, schema=TRUTH)

    def close(self) -> None:
        """Write nothing more."""
        self._pacer.close()

    def _arm(self) -> None:
        due_ns = min((queue[0].due_ns for queue in self._queues.values() if queue), default=0)
        if due_ns:
            self._pacer.arm(due_ns)

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
            data = CHUNK if left > 1 and stream.writes else _ENDS[not stream.writes, left == 1]
            is_written = self._write(stream, data)
            if is_written:
                stream.writes.append(at_ns)
                stream.left = left - 1
            if is_written and left > 1:
                stream.due_ns += stream.interval_ns
                queue.append(stream)
            else:
                self._end(stream)

    def _end(self, stream: Stream) -> None:
        self._ended.append((stream.name, stream.first_ns, stream.interval_ns, stream.writes, stream.left))

    def _write(self, stream: Stream, data: bytes) -> bool:
        try:
            if stream.send(data) == len(data):
                return True
            self.blocked += 1
        except BlockingIOError:
            self.blocked += 1
        except OSError:
            pass  # the peer has gone
        self._poll.drop(stream)
        return False


class Responder:
    """Listens, hears requests and obeys orders."""

    def __init__(self, port: int, orders: int, report: Callable[[bytes], object]) -> None:
        self._poll = Poll()
        self._answers = Answers(self._poll)
        self._ticker = TimerfdPacer(self._poll, self._tick)
        self._listener = _listen(port)
        self._orders = orders
        self._report = report
        self._samples: list[tuple[int, int, int]] = []
        self._is_over = False
        self._poll.add_reader(self._listener.fileno(), self._accept)
        self._poll.add_reader(orders, self._obey)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Answer until the orders end."""
        self._tick()
        while not self._is_over:
            self._poll.wait(self._hear)
        for part in (self._answers, self._ticker, self._listener, self._poll):
            part.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # no more for now, or no descriptor left: then the peer waits
                return
            sock.setblocking(False)
            self._poll.add(Stream(sock))

    def _hear(self, stream: Stream) -> None:
        try:
            data = stream.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._poll.drop(stream)
            return
        stream.heard += data
        head = stream.heard.find(b"\r\n\r\n")
        if head < 0 or stream.left:
            return
        length = _LENGTH.search(stream.heard, 0, head)
        end = head + 4 + (int(length[1]) if length else 0)
        if len(stream.heard) >= end:
            self._answers.begin(stream, stream.heard[:end])
            stream.heard = stream.heard[end:]

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        self._samples.append((now_ns, time.process_time_ns(), _read_waited_ns()))
        self._ticker.arm(now_ns + TICK_NS)

    def _obey(self) -> None:
        """Write what was done to each file that is named; end when nobody gives orders any more."""
        data = os.read(self._orders, READ_BYTES)
        self._is_over = not data
        for line in data.splitlines():
            with pa.ipc.new_stream(os.fsdecode(line), TRUTH) as file:
                file.write_table(self._answers.gather())
            samples, self._samples = self._samples, self._samples[-1:]
            self._report(msgspec.json.encode(Busyness(samples, self._answers.blocked)) + b"\n")


def measure_writes(count: int, left: int = 0) -> Integers:
    """Return the size in bytes of each of the first *count* writes of an answer, *left* before its end."""
    whole = count + left
    sizes = np.full(whole, len(CHUNK), np.int64)
    for place in (0, whole - 1):
        sizes[place] = len(_ENDS[place == 0, place == whole - 1])
    return sizes[:count]


def _frame(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)


def _say(delta: bytes, finish: bytes = b"null") -> bytes:
    return _EVENT % (_CHOICE % (delta, finish), b"")


def _make_ends() -> dict[tuple[bool, bool], bytes]:
    """Return the bytes of a write by (is the first, is the last)."""
    word, role = _say(b'"content":" word"'), _say(b'"role":"assistant","content":""')
    end = _frame(_say(b'"content":" end"', b'"length"'), _EVENT % (b"", _USAGE), b"data: [DONE]\n\n") + b"0\r\n\r\n"
    first = _HEAD + _frame(role)
    return {
        (False, False): _frame(word),
        (True, False): first + _frame(word),
        (False, True): end,
        (True, True): first + end,
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


def _read_waited_ns() -> int:
    """Return how long this process was ready to run and had no core (/proc/self/schedstat); 0 where nobody knows."""
    with suppress(OSError):
        return int(SCHEDSTAT.read_bytes().split()[1])
    return 0


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

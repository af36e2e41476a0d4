# When the bytes leave: the simulated engine, its slots, its prefix cache, and the record of its writes.
#
# Law: the only part of the endpoint that reads the clock. It knows frames (when, bytes, tokens), not what
# they say.
#
# Theory: one heap of (due, order, stream) and one pacer serve all streams. A task asleep for each token
# costs as much CPU, but wakes on the 1 ms grid of the loop's timers, on either side of the due time.
# Due times are absolute, and no frame leaves early. A frame is written with write(2) on the socket itself,
# not through the event loop's transport: uvloop keeps small writes until the end of its iteration, so that
# the recorded instant would be wrong and events due together would leave in one segment. What the kernel
# does not take at once goes through the transport, and so does the rest of that stream: never two writers.
#
# The prefix cache is vLLM's in small: full blocks of 16 tokens, each known by a hash chained over all
# before it, never the whole prompt (the last token must be computed), least recently used out first.

"""Slots, due times, the prefix cache and the truth log of the embedded endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import os
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from loadshape.endpoint.answer import NEVER_NS, Frame
from loadshape.pacer import make_pacer

TOKEN_BYTES = 4  # the stated estimate: a token is four bytes of UTF-8
BLOCK_TOKENS = 16
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
NOTHING = Frame(0, b"")
FRAMES_PER_TURN = 256  # then the event loop may read requests before the next frames leave
TRUTH_ROWS = 1024  # a batch; building one takes some 0.3 ms of the loop
FINISHED_REASONS = ("stop", "length", "abort", "error")
TRUTH_SCHEMA = pa.schema(
    [
        ("request", pa.utf8()),
        ("received_ns", pa.int64()),
        ("write", pa.uint32()),
        ("tokens", pa.uint32()),
        ("due_ns", pa.int64()),
        ("write_ns", pa.int64()),
        ("bytes", pa.uint32()),
    ]
)


@dataclass(slots=True)
class Counts:
    """What `/metrics` reports, counted since the start."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_queries_tokens: int = 0
    cache_hits_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)


def count_tokens(prompt: bytes) -> int:
    """Return the estimated tokens of a prompt: its bytes by TOKEN_BYTES, rounded up."""
    return -(-len(prompt) // TOKEN_BYTES)


class PrefixCache:
    """The blocks of prompts already seen, at most *capacity_blocks* of them."""

    def __init__(self, capacity_blocks: int, counts: Counts) -> None:
        self._capacity_blocks, self._counts = capacity_blocks, counts
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def admit(self, prompt: bytes, salt: str | None = None) -> tuple[int, int]:
        """Look *prompt* up and keep it; return (cached tokens, newly written tokens)."""
        blocks = self._hash_blocks(prompt, salt)
        reusable = max(0, len(prompt) - 1) // BLOCK_BYTES
        hits = next((at for at, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        cached_tokens = min(hits, reusable) * BLOCK_TOKENS
        self._counts.cache_queries_tokens += count_tokens(prompt)
        self._counts.cache_hits_tokens += cached_tokens
        for block in reversed(blocks):  # so that the end of a prompt is forgotten before its beginning
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity_blocks:
            self._blocks.popitem(last=False)
        return cached_tokens, (len(blocks) - hits) * BLOCK_TOKENS

    def reset(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    @property
    def usage(self) -> float:
        """Share of the blocks in use."""
        return len(self._blocks) / self._capacity_blocks if self._capacity_blocks else 0.0

    def _hash_blocks(self, prompt: bytes, salt: str | None) -> list[bytes]:
        chain, blocks = hashlib.blake2b((salt or "").encode(), digest_size=16).digest(), []
        for start in range(0, len(prompt) - BLOCK_BYTES + 1, BLOCK_BYTES):
            block = prompt[start : start + BLOCK_BYTES]
            chain = hashlib.blake2b(block, digest_size=16, key=chain).digest()
            blocks.append(chain)
        return blocks


class TruthLog:
    """Append one row for every write to an Arrow IPC stream: what was sent, when it was due, when it left."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._writer = pa.ipc.new_stream(self._file, TRUTH_SCHEMA)
        self._columns: tuple[list[Any], ...] = tuple([] for _ in TRUTH_SCHEMA)

    def append(self, stream: Stream, due_ns: int, write_ns: int) -> None:
        """Note that the frame at hand of *stream* was due at *due_ns* and is written at *write_ns*."""
        requests, received, writes, tokens, dues, written, sizes = self._columns
        requests.append(stream.request_id)
        received.append(stream.received_ns)
        writes.append(stream.writes)
        tokens.append(stream.frame.tokens)
        dues.append(due_ns)
        written.append(write_ns)
        sizes.append(len(stream.frame.data))
        if len(requests) >= TRUTH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows at hand as one batch."""
        if self._columns[0]:
            self._writer.write_batch(pa.record_batch(list(self._columns), schema=TRUTH_SCHEMA))
            self._file.flush()
            for column in self._columns:
                column.clear()

    def close(self) -> None:
        """Write what is left and the end of the stream."""
        self.flush()
        self._writer.close()
        self._file.close()


@dataclass(slots=True, eq=False)
class Stream:
    """One answer on its way.

    A silent one only takes its time and its slot; its frames are not written. `descriptor` is the socket
    while we write to it ourselves, and -1 once the transport has to.
    """

    request_id: str
    received_ns: int
    transport: asyncio.Transport
    frames: Iterator[Frame]
    is_silent: bool = False
    descriptor: int = -1
    started_ns: int = 0
    order: int = 0
    writes: int = 0
    is_running: bool = False
    frame: Frame = NOTHING
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def __post_init__(self) -> None:
        self.descriptor = self.transport.get_extra_info("socket").fileno()


class Engine:
    """Write the frames of all streams at their times, at most *max_running* streams at once."""

    def __init__(
        self, counts: Counts, *, max_running: int | None = None, step_ns: int = 0, truth: TruthLog | None = None
    ) -> None:
        self.counts = counts
        self._max_running = max_running or sys.maxsize
        self._step_ns, self._truth = step_ns, truth
        self._heap: list[tuple[int, int, Stream]] = []
        self._waiting: deque[Stream] = deque()
        self._running = self._orders = 0
        self._alarm_ns = NEVER_NS
        self._alarm = make_pacer(asyncio.get_running_loop(), self._emit_due)

    @property
    def running(self) -> int:
        """Streams that have a slot."""
        return self._running

    @property
    def waiting(self) -> int:
        """Streams that wait for a slot."""
        return len(self._waiting)

    async def play(self, stream: Stream) -> None:
        """Return when the last frame of *stream* is written; a cancelled caller gives its slot back."""
        if self._running < self._max_running:
            self._start(stream, stream.received_ns)
        else:
            self._waiting.append(stream)
        try:
            await stream.done
        finally:
            if stream.is_running:
                self._leave(stream)
            elif stream in self._waiting:
                self._waiting.remove(stream)

    def close(self) -> None:
        """Stop the clock and finish the truth log."""
        self._alarm.close()
        if self._truth:
            self._truth.close()

    def _start(self, stream: Stream, now_ns: int) -> None:
        self._running += 1
        self._orders += 1
        stream.is_running, stream.started_ns, stream.order = True, now_ns, self._orders
        stream.frame = next(stream.frames)
        due_ns = self._due_ns(stream)
        heapq.heappush(self._heap, (due_ns, stream.order, stream))
        if due_ns < self._alarm_ns:
            self._set_alarm(due_ns)

    def _leave(self, stream: Stream) -> None:
        self._running -= 1
        stream.is_running = False
        if self._waiting and self._running < self._max_running:
            self._start(self._waiting.popleft(), time.monotonic_ns())

    def _due_ns(self, stream: Stream) -> int:
        due_ns = stream.started_ns + stream.frame.at_ns
        return -(-due_ns // self._step_ns) * self._step_ns if self._step_ns else due_ns

    def _set_alarm(self, due_ns: int) -> None:
        self._alarm_ns = due_ns
        self._alarm.arm(due_ns)

    def _emit_due(self) -> None:
        heap, now_ns = self._heap, time.monotonic_ns()
        for _ in range(FRAMES_PER_TURN):
            if not heap or heap[0][0] > now_ns:
                break
            due_ns, order, stream = heap[0]
            frame = None
            if stream.is_running:
                self._write(stream, due_ns)
                frame = next(stream.frames, None)
            if frame is not None:
                stream.frame = frame
                heapq.heapreplace(heap, (self._due_ns(stream), order, stream))
            else:
                heapq.heappop(heap)
                self._end(stream)
        self._set_alarm(heap[0][0] if heap else NEVER_NS)

    def _end(self, stream: Stream) -> None:
        if stream.is_running:
            self._leave(stream)
            if not stream.done.done():
                stream.done.set_result(None)

    def _write(self, stream: Stream, due_ns: int) -> None:
        _, data, tokens = stream.frame
        self.counts.generation_tokens += tokens
        if not data or stream.is_silent or stream.transport.is_closing():
            return
        write_ns = time.monotonic_ns()
        sent = 0
        if stream.descriptor >= 0:
            try:
                sent = os.write(stream.descriptor, data)
            except BlockingIOError:
                pass
            except OSError:  # the client is gone; the transport will be told, and cancel the handler
                stream.transport.abort()
                return
        if sent < len(data):
            stream.descriptor = -1
            stream.transport.write(data[sent:])
        if self._truth:
            self._truth.append(stream, due_ns, write_ns)
        stream.writes += 1


def render_metrics(model: str, engine: Engine, cache: PrefixCache) -> str:
    """Return `/metrics` in Prometheus text format 0.0.4, under vLLM's names."""
    name = model.replace("\\", r"\\").replace('"', r"\"")
    counts, label = engine.counts, f'engine="0",model_name="{name}"'
    rows = [
        ("num_requests_running", "gauge", engine.running),
        ("num_requests_waiting", "gauge", engine.waiting),
        ("kv_cache_usage_perc", "gauge", cache.usage),
        ("prefix_cache_queries_total", "counter", counts.cache_queries_tokens),
        ("prefix_cache_hits_total", "counter", counts.cache_hits_tokens),
        ("prompt_tokens_total", "counter", counts.prompt_tokens),
        ("prompt_tokens_cached_total", "counter", counts.cache_hits_tokens),
        ("generation_tokens_total", "counter", counts.generation_tokens),
    ]
    lines = [f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{label}}} {value:.12g}" for name, kind, value in rows]
    lines.append("# TYPE vllm:request_success_total counter")
    lines += [
        f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {counts.finished[reason]}'
        for reason in FINISHED_REASONS
    ]
    return "\n".join(lines) + "\n"

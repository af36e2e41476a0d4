# What does reading one streamed chunk cost, layer by layer?
#
# The replayer decodes right after each drain on its only core, so every microsecond here is a share of the
# chunks a worker can take. Prints JSON; times are ns for one read of one HTTP chunk with one event, the
# shape and size that vLLM sends (223 bytes), unless a row says otherwise.
#
# Limits: one core, warm caches, one stream at a time: a real worker switches between thousands of streams and
# pays cache misses on top. CPU time, the minimum over many short rounds, with the median beside it to show how
# busy the machine was (a busy sibling core can double everything). `representations` compares ways of handing
# over an event (docs/adr/0003-event-representation.md).

"""Time the layers of loadshape.wire."""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httptools
import msgspec

from loadshape.wire import Event, EventStream, Response, ResponseParser, read_event

ROUNDS, CALLS = 200, 1000

HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\nx-request-id: ls-00c0ffee-1\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_CHUNK = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"tiny",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
)
USAGE = b',"usage":{"prompt_tokens":13,"total_tokens":14,"completion_tokens":1,"prompt_tokens_details":null}'
DATA = _CHUNK + b"}"
EVENT = b"data: " + DATA + b"\n\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def time_ns(call: Callable[[Any], Any], argument: Any) -> dict[str, int]:
    """Return the least and the median time of one call, the cost of the loop taken off."""
    rounds, empty = [], []
    for _ in range(ROUNDS):
        empty.append(_round_ns(_nothing, argument))
        rounds.append(_round_ns(call, argument))
    return {
        "min_ns": round(min(rounds) - min(empty)),
        "median_ns": round(statistics.median(rounds) - statistics.median(empty)),
    }


def _nothing(argument: Any) -> None:
    pass


def _round_ns(call: Callable[[Any], Any], argument: Any) -> float:
    begun_ns = time.thread_time_ns()  # CPU time: what other processes take is not ours
    for _ in range(CALLS):
        call(argument)
    return (time.thread_time_ns() - begun_ns) / CALLS


def open_response() -> Response:
    """Return a response in the middle of its stream."""
    response = Response()
    response.feed(HEAD + chunk(EVENT))
    return response


def time_layers() -> dict[str, dict[str, int]]:
    parser, stream = ResponseParser(), EventStream()
    parser.feed(HEAD)
    stream.feed(EVENT)
    return {
        "http1": time_ns(parser.feed, chunk(EVENT)),
        "sse": time_ns(stream.feed, EVENT),
        "openai": time_ns(read_event, Event("message", DATA)),
        "whole": time_ns(open_response().feed, chunk(EVENT)),
    }


def time_shapes() -> dict[str, dict[str, int]]:
    """Other reads, whole path."""
    crlf = EVENT.replace(b"\n", b"\r\n")
    half = len(chunk(EVENT)) // 2
    rows = {
        "usage on the chunk": chunk(_CHUNK.join((b"data: ", USAGE + b"}\n\n"))),
        "CRLF framing": chunk(crlf),
        "8 chunks in a read": chunk(EVENT) * 8,
        "8 events in one chunk": chunk(EVENT * 8),
        "comment": chunk(b": ping\n\n"),
    }
    times = {name: time_ns(open_response().feed, data) for name, data in rows.items()}
    response = open_response()

    def feed_halves(data: bytes) -> None:
        response.feed(data[:half])
        response.feed(data[half:])

    return times | {
        "chunk in two reads": time_ns(feed_halves, chunk(EVENT)),
        "new response and its head": time_ns(lambda head: Response().feed(head), HEAD),
    }


def measure_stream_bytes(count: int = 2000) -> int:
    """Return the memory that one open response holds."""
    open_response()
    tracemalloc.start()
    held = [open_response() for _ in range(count)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size // len(held)


# Five ways of handing one event over, each with the same work around it.


class PlainStruct(msgspec.Struct):
    type: str
    data: bytes


class Tuple(NamedTuple):
    type: str
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    type: str
    data: bytes


class Sink:
    """A receiver with one method per thing that can happen, as h11's writers have."""

    def __init__(self) -> None:
        self.seen_bytes = 0

    def on_event(self, kind: str, data: bytes) -> None:
        self.seen_bytes += len(data)


def time_representations() -> dict[str, dict[str, int]]:
    def listed(make: Callable[[str, bytes], Any]) -> Callable[[bytes], int]:
        def parse(piece: bytes) -> list[Any]:
            return [make("message", piece[6:-2])]

        def consume(piece: bytes) -> int:
            seen_bytes = 0
            for event in parse(piece):
                seen_bytes += len(event.data)
            return seen_bytes

        return consume

    def generate(piece: bytes) -> Iterator[Event]:
        yield Event("message", piece[6:-2])

    def consume_generated(piece: bytes) -> int:
        seen_bytes = 0
        for event in generate(piece):
            seen_bytes += len(event.data)
        return seen_bytes

    sink = Sink()

    def call_sink(piece: bytes) -> None:
        sink.on_event("message", piece[6:-2])

    return {
        "list of Struct(gc=False)": time_ns(listed(Event), EVENT),
        "list of Struct": time_ns(listed(PlainStruct), EVENT),
        "list of NamedTuple": time_ns(listed(Tuple), EVENT),
        "list of frozen dataclass": time_ns(listed(Frozen), EVENT),
        "generator of Struct(gc=False)": time_ns(consume_generated, EVENT),
        "sink method": time_ns(call_sink, EVENT),
    }


def main() -> None:
    figures = {
        "python": platform.python_version(),
        "httptools": httptools.__version__,
        "msgspec": msgspec.__version__,
        "read_bytes": len(chunk(EVENT)),
        "layers": time_layers(),
        "shapes": time_shapes(),
        "representations": time_representations(),
        "memory_bytes_per_stream": measure_stream_bytes(),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

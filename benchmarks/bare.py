# The network of the replayer alone: what it reads with decoding and logging off.
#
#     python benchmarks/bare.py URL STREAMS TOKENS OUT
#
# Opens the streams, asks for so many tokens on each, and reads until the last has ended. Nothing is decoded: of a read
# only its stream, its two stamps and its size are kept, in one flat array that goes into OUT. `bench_replayer.py` runs
# it for its "bare" cases: their stamps are what a worker could reach if everything after the stamp were free.
#
# Limits: the end of an answer is found by its last five bytes, which is a hint and not a proof; `lost` in the
# comparison is the proof.

"""Read streams through the real network, without the rest of the replayer."""

from __future__ import annotations

import array
import asyncio
import gc
import json
import sys
from urllib.parse import urlsplit

import numpy as np
import uvloop

from loadshape.pacer import tighten_timers
from loadshape.replayer.connection import Connection
from loadshape.replayer.roads import list_roads
from loadshape.replayer.streams import Streams
from loadshape.replayer.worker import make_room

AT_ONCE = 100
ASKING_S = 0.5  # the requests are spread over so long
LAST = b"0\r\n\r\n"


class Reader:
    """Owns the network, and keeps four numbers of each read."""

    def __init__(self, network: Streams) -> None:
        self.network = network
        self.reads = array.array("q")
        self.connections: list[Connection] = []
        self.ended = 0
        self.changed = asyncio.Event()
        network.listen(self, self.ready)

    def ready(self) -> None:
        self.network.drain()
        inbox, keep = self.network.inbox, self.reads.extend
        while inbox:
            connection, at_ns, seen_ns, what = inbox.popleft()
            assert isinstance(what, bytes)
            keep((connection.number, at_ns, seen_ns, len(what)))
            if what.endswith(LAST):
                self.ended += 1
                self.changed.set()

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)
        self.changed.set()

    def failed(self, _: Connection, error: OSError) -> None:
        raise error

    def written(self, _: Connection) -> None:
        """A request fits into the socket."""

    def wake(self) -> None:
        """Nothing is due: requests are spread by sleeping."""


async def read(url: str, streams: int, tokens: int) -> np.ndarray:
    """Return one row (stream, at_ns, seen_ns, bytes) a read."""
    parts = urlsplit(url)
    network = Streams(asyncio.get_running_loop(), [list_roads(["127.0.0.1"], parts.port or 80)])
    reader = Reader(network)
    for wanted in range(0, streams, AT_ONCE):
        for _ in range(min(AT_ONCE, streams - wanted)):
            network.open()
        while len(reader.connections) < min(wanted + AT_ONCE, streams):
            reader.changed.clear()
            await reader.changed.wait()
    gc.collect()
    gc.freeze()
    gc.disable()
    message = {"role": "user", "content": "word"}
    body = json.dumps({"messages": [message], "max_tokens": tokens, "stream": True}).encode()
    head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: bare\r\nContent-Length: {len(body)}\r\nX-Request-Id: "
    for connection in reader.connections:
        network.send(connection, [f"{head}{connection.number}\r\n\r\n".encode(), body])
        await asyncio.sleep(ASKING_S / streams)
    while reader.ended < streams:
        reader.changed.clear()
        await reader.changed.wait()
    network.shut()
    return np.frombuffer(reader.reads, np.int64).reshape(-1, 4)


def main() -> None:
    """Read, and save what was read."""
    url, streams, tokens, out = sys.argv[1:]
    make_room()
    tighten_timers()
    np.save(out, uvloop.run(read(url, int(streams), int(tokens))))


if __name__ == "__main__":
    main()

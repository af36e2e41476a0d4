# A small forward proxy, to be sent through: tunnels for CONNECT, requests that name a whole URL for the rest (RFC 9112
# 3.2.2). It remembers the heads that it was told, and can want a password, refuse, or say nothing at all.

"""A forward proxy for tests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
REFUSAL = b"HTTP/1.1 %d %b\r\nConnection: close\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\n<p>No</p>"


class Forwarder:
    """A proxy that listens on `port`; `heads` are the heads of all requests that it read, tunnels included.

    It wants `login` (user:password) if given. `verdict` is what it answers instead of forwarding, b"" for nothing.
    """

    def __init__(self, login: str | None = None, verdict: bytes | None = None) -> None:
        self.login = login
        self.verdict = verdict
        self.heads: list[str] = []
        self.peers: list[str] = []  # where its clients came from
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lines(self) -> list[str]:
        """The first lines of what was asked."""
        return [head.partition("\r\n")[0] for head in self.heads]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        self.peers.append(writer.get_extra_info("peername")[0])
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            await self._serve((reader, writer))
        writer.close()

    async def _serve(self, client: Stream) -> None:
        server: Stream | None = None
        while True:
            head = await client[0].readuntil(b"\r\n\r\n")
            self.heads.append(head.decode())
            # Read before anything is answered: to close with bytes unread is to reset, and the answer may be lost.
            body = await client[0].readexactly(measure_body(head))
            if (refusal := self._judge(head)) is not None:
                client[1].write(refusal)
                await (client[1].drain() if refusal else asyncio.sleep(3600))
                return
            method, wanted, _ = head.decode().partition("\r\n")[0].split()
            place = urlsplit(f"//{wanted}" if method == "CONNECT" else wanted)
            if server is None:
                try:
                    server = await asyncio.open_connection(place.hostname, place.port)
                    self._writers.append(server[1])
                    if method != "CONNECT":
                        self._pumps.add(asyncio.create_task(pump(server[0], client[1])))
                except OSError:
                    client[1].write(REFUSAL % (502, b"Bad Gateway"))
                    return
            if method == "CONNECT":
                client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(pump(client[0], server[1]), pump(server[0], client[1]))
                return
            self._pass_on(head, body, place.path, server)

    def _pass_on(self, head: bytes, body: bytes, path: str, server: Stream) -> None:
        """Pass on one request."""
        first, *fields = head.decode().removesuffix("\r\n\r\n").split("\r\n")
        kept = [it for it in fields if not it.lower().startswith("proxy-")]
        server[1].write("\r\n".join([f"{first.split()[0]} {path} HTTP/1.1", *kept, "", ""]).encode() + body)

    def _judge(self, head: bytes) -> bytes | None:
        """Return what to answer instead of forwarding, None to forward."""
        if self.login is not None:
            wanted = b"Proxy-Authorization: Basic " + base64.b64encode(self.login.encode())
            if wanted not in head.split(b"\r\n"):
                return REFUSAL % (407, b"Proxy Authentication Required")
        return self.verdict

    async def close(self) -> None:
        """End everything."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def measure_body(head: bytes) -> int:
    """Return the length of the body behind *head*."""
    fields = head.decode().lower().split("\r\n")
    return sum(int(it.partition(":")[2]) for it in fields if it.startswith("content-length:"))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until either end is gone."""
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def forwarding(forwarder: Forwarder) -> Iterator[Forwarder]:
    """Let *forwarder* listen on a free port of 127.0.0.1, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(forwarder.serve, "127.0.0.1", 0), loop).result(10)
    forwarder.port = server.sockets[0].getsockname()[1]
    yield forwarder
    loop.call_soon_threadsafe(server.close)
    asyncio.run_coroutine_threadsafe(forwarder.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()

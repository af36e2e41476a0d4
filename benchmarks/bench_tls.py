# How true are the stamps under TLS, and what does a stream cost?
#
#     python benchmarks/bench_tls.py [--streams N] [--step-ms MS] [--steps N] [--fifo]
#
# A child process on core 0 holds N connections and sends a record of 230 bytes on all of them at each step, sealed
# before and stamped right before its send; the network of the replayer, on core 1, reads them. The same without
# TLS follows. The error is our stamp minus the server's, matched by count of bytes. Prints JSON.
#
# Limits: nothing is decoded. The server is Python, 10 us a send, so a step of 1,000 takes 10 ms. The certificate is
# RSA 2048, made for the run with the openssl command. On a shared machine use --fifo (real-time priority while
# measuring, which needs the right to it): without it p99 shows the other work.

"""Measure stamp errors and memory a stream of the network under TLS."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import socket
import ssl
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from truth import percentiles

from loadshape.environment import describe_host
from loadshape.replayer.connection import Arrival, Connection, Network
from loadshape.replayer.roads import list_roads
from loadshape.replayer.secured import Secured
from loadshape.replayer.streams import Streams
from loadshape.target import Target

RECORD_BYTES = 230
AT_ONCE = 50
PRIORITY = 40


@dataclass(frozen=True)
class Case:
    """What is sent: a record on each stream at each step."""

    streams: int
    step_ms: float
    steps: int
    fifo: bool


def make_certificate(folder: Path) -> None:
    """Make a certificate for localhost that is its own authority."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def rise(case: Case) -> None:
    """Keep other work away while measuring, if asked to."""
    if case.fifo:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))


# The server, in a process of its own


class Peer:
    """The server's end of one connection, with or without TLS."""

    def __init__(self, handle: socket.socket, context: ssl.SSLContext | None) -> None:
        self.handle = handle
        handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        while self._tls and not self._shake():
            self._incoming.write(handle.recv(1 << 16))

    def _shake(self) -> bool:
        assert self._tls is not None
        is_done = False
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            is_done = True
        self.handle.sendall(self._outgoing.read())
        return is_done

    def seal(self, data: bytes) -> bytes:
        """Return what to send for *data*."""
        if self._tls is None:
            return data
        self._tls.write(data)
        return self._outgoing.read()


def serve(case: Case, folder: Path, port: int, *, tls: bool) -> None:
    """Send the records, and leave the instants before each send in a file."""
    os.sched_setaffinity(0, {0})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
    if context is not None:
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        context.num_tickets = 0
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        os.write(port, struct.pack("<I", listener.getsockname()[1]))
        peers = [Peer(listener.accept()[0], context) for _ in range(case.streams)]
    time.sleep(1)
    rise(case)
    before_ns = np.zeros((case.steps, case.streams), np.int64)
    due_s = time.monotonic()
    for row in before_ns:
        due_s += case.step_ms / 1e3
        sealed = [peer.seal(bytes(RECORD_BYTES)) for peer in peers]
        time.sleep(max(0.0, due_s - time.monotonic()))
        for at, peer in enumerate(peers):
            row[at] = time.monotonic_ns()
            peer.handle.send(sealed[at])
    np.save(folder / "before.npy", before_ns)
    time.sleep(0.5)


# The client


class Reader:
    """Owns a network, and keeps what arrives."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.arrivals: list[Arrival] = []
        self.open = 0
        self._opened = asyncio.Event()
        network.listen(self, self.ready)

    def ready(self) -> None:
        self.network.drain()
        self.arrivals.extend(self.network.inbox)
        self.network.inbox.clear()

    def opened(self, _: Connection) -> None:
        self.open += 1
        self._opened.set()

    async def until_open(self, count: int) -> None:
        """Wait until so many connections are open."""
        while self.open < count:
            self._opened.clear()
            await self._opened.wait()

    def failed(self, _: Connection, error: OSError) -> None:
        raise error

    def written(self, _: Connection) -> None:
        """Nothing is sent here."""

    def wake(self) -> None:
        """Nothing is due here."""


async def receive(case: Case, folder: Path, port: int, server: int, *, tls: bool) -> dict[str, Any]:
    """Open the connections, read until the server has ended, and return the errors of the stamps."""
    loop = asyncio.get_running_loop()
    target = Target(f"https://localhost:{port}/v1", ca_file=str(folder / "cert.pem"))
    streams = Streams(loop, [list_roads(["127.0.0.1"], port)])
    reader = Reader(Secured(streams, loop, [target]) if tls else streams)
    base_bytes, began_s = _read_rss_bytes(), time.monotonic()
    for wanted in range(0, case.streams, AT_ONCE):
        for _ in range(min(AT_ONCE, case.streams - wanted)):
            reader.network.open()
        await reader.until_open(min(wanted + AT_ONCE, case.streams))
    told = {
        "kb_a_stream": round((_read_rss_bytes() - base_bytes) / case.streams / 1024, 1),
        "connect_ms": round((time.monotonic() - began_s) * 1e3 / case.streams, 2),
    }
    gc.collect()
    gc.freeze()
    gc.disable()
    rise(case)
    cpu_s = time.process_time()
    await loop.run_in_executor(None, os.waitpid, server, 0)
    cpu_s = time.process_time() - cpu_s
    return told | compare(reader.arrivals, np.load(folder / "before.npy"), cpu_s)


def compare(arrivals: list[Arrival], before_ns: np.ndarray[Any, Any], cpu_s: float) -> dict[str, Any]:
    """Return the errors of both stamps, in us."""
    counts = np.zeros(before_ns.shape[1], int)
    errors, coalesced = [], 0
    for connection, at_ns, seen_ns, what in arrivals:
        records = len(what) // RECORD_BYTES if isinstance(what, bytes) else 0
        coalesced += records > 1
        for _ in range(records):
            sent_ns = before_ns[counts[connection.number], connection.number]
            errors.append((at_ns - sent_ns, seen_ns - sent_ns))
            counts[connection.number] += 1
    kernel_us, user_us = np.asarray(errors).T / 1e3
    return {
        "records": len(errors),
        "lost": int(before_ns.size - len(errors)),
        "coalesced_reads": coalesced,
        "kernel_us": percentiles(kernel_us),
        "user_us": percentiles(user_us),
        "cpu_us_a_record": round(cpu_s * 1e6 / len(errors), 2),
    }


def _read_rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_case(case: Case, folder: Path, *, tls: bool) -> dict[str, Any]:
    """Measure in a process of its own, whose memory is new and whose priority ends with it."""
    result, write_end = os.pipe()
    if not (child := os.fork()):
        os.sched_setaffinity(0, {1})
        port_end, port_write = os.pipe()
        if not (server := os.fork()):
            serve(case, folder, port_write, tls=tls)
            os._exit(0)
        (port,) = struct.unpack("<I", os.read(port_end, 4))
        told = uvloop.run(receive(case, folder, port, server, tls=tls))
        os.write(write_end, json.dumps(told).encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(result, "rb") as pipe:
        return dict(json.loads(pipe.read() or b"{}"))


def main() -> None:
    """Run with and without TLS and print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fifo", action="store_true", help="measure at real-time priority")
    case = Case(**vars(parser.parse_args()))
    print(json.dumps({"host": describe_host(), "openssl": ssl.OPENSSL_VERSION}), flush=True)
    with tempfile.TemporaryDirectory() as name:
        make_certificate(Path(name))
        for tls in (True, False):
            print(json.dumps({"tls" if tls else "plain": run_case(case, Path(name), tls=tls)}), flush=True)


if __name__ == "__main__":
    main()

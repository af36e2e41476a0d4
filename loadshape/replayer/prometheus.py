# The state of a replay under way, for Prometheus to scrape.
#
# Law: what a dashboard shows, never what a report says: counts and approximate histograms (histogram.py) of what the
# workers said last. It listens on 127.0.0.1 alone and answers from the coordinator's own round of ten times a
# second: no thread, and nothing here can touch a worker. It is there from before the first packet until the last
# answer.
#
# Source: Prometheus text exposition format 0.0.4. Names of latencies are those of the OpenTelemetry semantic
# conventions for generative AI clients (gen_ai.client.operation.*, status Development), in Prometheus spelling.

"""Exposition: the numbers of a run under way as a page of text metrics on 127.0.0.1."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from loadshape.errors import InputError
from loadshape.histogram import Histogram
from loadshape.replayer.job import Progress

HOST = "127.0.0.1"
WAITING = 16  # clients; more are sent away
REQUEST_BYTES = 8192
ANSWER_S = 0.1  # the kernel takes a page at once; a client that does not read is left
LIMITS_S = (*(digit * 10.0**power for power in range(-4, 2) for digit in (1, 2.5, 5)), 100.0)
_CHUNKS = "gen_ai_client_operation_time"


class Exposition:
    """Serves text metrics while a run goes on; serves nothing with port 0. A context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener: socket.socket | None = None
        self._clients: dict[socket.socket, bytes] = {}

    def __enter__(self) -> Exposition:
        if self._port:
            try:
                self._listener = socket.create_server((HOST, self._port), backlog=WAITING)
            except OSError as problem:
                raise InputError(
                    f"prometheus_port: expected a free port of {HOST}, {self._port} cannot be listened on: "
                    f"{problem.strerror}; choose another, or 0 for none"
                ) from None
            self._listener.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        for client in (*self._clients, *([self._listener] if self._listener else [])):
            client.close()
        self._clients.clear()

    def update(self, progress: Progress, elapsed_s: float) -> None:
        """Answer whoever asked since the last time."""
        if self._listener is None:
            return
        self._accept(self._listener)
        for client in list(self._clients):
            try:
                asked = client.recv(REQUEST_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                asked = b""
            self._clients[client] += asked
            if not asked or b"\r\n\r\n" in self._clients[client] or len(self._clients[client]) > REQUEST_BYTES:
                _answer(client, self._clients.pop(client), progress, elapsed_s)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # nobody is left
                return
            client.setblocking(False)
            if len(self._clients) < WAITING:
                self._clients[client] = b""
            else:
                client.close()


def write_metrics(progress: Progress, elapsed_s: float) -> str:
    """Return the page: one line a sample, with what each metric means."""
    return "\n".join(_list_lines(progress, elapsed_s)) + "\n"


def _list_lines(progress: Progress, elapsed_s: float) -> Iterator[str]:
    scalars = (
        ("loadshape_elapsed_seconds", "gauge", "Time since the start of the run.", f"{elapsed_s:.3f}"),
        ("loadshape_requests_begun_total", "counter", "Requests begun.", progress.begun),
        ("loadshape_requests_in_flight", "gauge", "Requests begun and not ended.", progress.in_flight),
        ("loadshape_reads_total", "counter", "Reads that carried bytes of an answer.", progress.reads),
    )
    for name, kind, meaning, value in scalars:
        yield from (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value}")
    yield "# HELP loadshape_requests_ended_total Requests by how they ended."
    yield "# TYPE loadshape_requests_ended_total counter"
    for outcome, count in sorted(progress.outcomes.items()):
        yield f'loadshape_requests_ended_total{{outcome="{outcome}"}} {count}'
    yield from _list_buckets(f"{_CHUNKS}_to_first_chunk_seconds", "Due to first token, about.", progress.ttft)
    gaps = "Between two reads with tokens, about; of a sample of the reads."
    yield from _list_buckets(f"{_CHUNKS}_per_output_chunk_seconds", gaps, progress.gaps)
    yield from _list_buckets("loadshape_lateness_seconds", "Due to begun, about; of ended requests.", progress.lateness)


def _list_buckets(name: str, meaning: str, counts: dict[int, int]) -> Iterator[str]:
    seen = Histogram(counts)
    yield from (f"# HELP {name} {meaning}", f"# TYPE {name} histogram")
    for limit_s in LIMITS_S:
        yield f'{name}_bucket{{le="{limit_s:g}"}} {seen.count_below(limit_s)}'
    yield from (
        f'{name}_bucket{{le="+Inf"}} {len(seen)}',
        f"{name}_sum {seen.sum_s():.6g}",
        f"{name}_count {len(seen)}",
    )


def _answer(client: socket.socket, request: bytes, progress: Progress, elapsed_s: float) -> None:
    known = request.split(b" ")[:2] in ([b"GET", b"/metrics"], [b"GET", b"/"])
    body = write_metrics(progress, elapsed_s) if known else "GET /metrics\n"
    head = (
        f"HTTP/1.1 {'200 OK' if known else '404 Not Found'}\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n"
    )
    with client:
        try:
            client.settimeout(ANSWER_S)
            client.sendall((head + body).encode())
        except OSError:
            pass  # it has gone, or does not read

# What a dashboard sees of a run: the format, who is answered, and that nothing is left behind.

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from loadshape.errors import InputError
from loadshape.histogram import Histogram
from loadshape.replayer.job import Progress, Settings
from loadshape.replayer.prometheus import HOST, WAITING, Exposition, write_metrics


def histogram(*values_ms: float) -> dict[int, int]:
    seen = Histogram()
    for ms in values_ms:
        seen.add(round(ms * 1e6))
    return dict(seen.counts)


STATE = Progress(
    begun=9,
    ended=7,
    failed=1,
    in_flight=2,
    reads=400,
    late_ns=5,
    outcomes={"ok": 6, "reset": 1},
    ttft=histogram(60, 70, 300),
    gaps=histogram(12, 12, 12),
)


def find_port() -> int:
    with socket.create_server((HOST, 0)) as found:
        return int(found.getsockname()[1])


def ask(exposition: Exposition, port: int, path: str) -> tuple[int, str]:
    """Ask from another thread, while this one is the coordinator's round."""
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lambda: urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=20))
        while not asking.done():
            exposition.update(STATE, 12.5)
        try:
            answer = asking.result()
        except urllib.error.HTTPError as refusal:
            answer = refusal
        with answer:
            return answer.status, answer.read().decode()


def test_the_page_says_what_is_known() -> None:
    lines = write_metrics(STATE, 12.5).splitlines()
    for line in (
        "loadshape_elapsed_seconds 12.500",
        "loadshape_requests_begun_total 9",
        "loadshape_requests_in_flight 2",
        'loadshape_requests_ended_total{outcome="ok"} 6',
        'loadshape_requests_ended_total{outcome="reset"} 1',
        'gen_ai_client_operation_time_to_first_chunk_seconds_bucket{le="0.1"} 2',
        'gen_ai_client_operation_time_to_first_chunk_seconds_bucket{le="+Inf"} 3',
        "gen_ai_client_operation_time_per_output_chunk_seconds_count 3",
        "loadshape_lateness_seconds_count 0",
    ):
        assert line in lines


def test_the_page_keeps_the_format() -> None:
    declared: set[str] = set()
    counts: dict[str, list[int]] = {}
    for line in write_metrics(STATE, 1.0).splitlines():
        if line.startswith("# TYPE "):
            declared.add(line.split()[2])
        elif not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            plain = name.partition("{")[0]
            assert plain in declared or plain.rpartition("_")[0] in declared, line
            if plain.endswith("_bucket"):
                counts.setdefault(plain, []).append(int(value))
    assert len(counts) == 3
    assert all(values == sorted(values) for values in counts.values())


def test_whoever_asks_is_answered_and_then_nobody_listens() -> None:
    port = find_port()
    with Exposition(port) as exposition:
        assert ask(exposition, port, "/metrics") == (200, write_metrics(STATE, 12.5))
        assert ask(exposition, port, "/admin") == (404, "GET /metrics\n")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=5)


def test_clients_that_say_nothing_or_leave_hold_up_nobody() -> None:
    port = find_port()
    with Exposition(port) as exposition:
        idle = [socket.create_connection((HOST, port), timeout=5) for _ in range(3)]
        exposition.update(STATE, 1.0)
        idle.pop().close()
        assert ask(exposition, port, "/metrics")[0] == 200
        for client in idle:
            client.close()


def test_too_many_clients_are_sent_away() -> None:
    port = find_port()
    with Exposition(port) as exposition:
        clients = [socket.create_connection((HOST, port), timeout=5) for _ in range(WAITING)]
        exposition.update(STATE, 1.0)
        late = socket.create_connection((HOST, port), timeout=5)
        exposition.update(STATE, 1.1)
        assert late.recv(10) == b""
        for client in (*clients, late):
            client.close()


def test_without_a_port_nothing_listens() -> None:
    with Exposition(0) as exposition:
        exposition.update(STATE, 1.0)


def test_a_port_that_is_taken_is_refused_before_the_first_packet() -> None:
    with socket.create_server((HOST, 0)) as taken, pytest.raises(InputError, match=r"prometheus_port: expected a free"):
        Exposition(taken.getsockname()[1]).__enter__()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(InputError, match="prometheus_port: expected 1 to 65535"):
        Settings(prometheus_port=port)

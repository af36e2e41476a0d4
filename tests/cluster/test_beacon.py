# Datagrams on the loopback interface. Both sides have one clock here, so the true offset is nothing.

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from loadshape.cluster import beacon
from loadshape.cluster.beacon import TOKEN_BYTES, Beacon, Sounder, choose_count, make_token
from loadshape.errors import InputError
from loadshape.nodes import Burst

HOST = "127.0.0.1"
TOKEN = bytes(range(TOKEN_BYTES))
FORM = beacon._FORM
Peer = Callable[[bytes], list[bytes]]  # what it answers to a question


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacon, "CLOSE_S", 0.01)


@contextmanager
def peer(answer: Peer) -> Iterator[tuple[str, int]]:
    """Give the address of somebody who says what *answer* returns."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind((HOST, 0))

        def listen() -> None:
            while (question := line.recvfrom(100))[0]:
                for told in answer(question[0]):
                    line.sendto(told, question[1])

        thread = threading.Thread(target=listen)
        thread.start()
        yield line.getsockname()
        line.sendto(b"", line.getsockname())
        thread.join()


def is_right(burst: Burst) -> bool:
    return burst.offset_ns is not None and burst.bound_ns is not None and abs(burst.offset_ns) <= burst.bound_ns


def stamp(question: bytes) -> bytes:
    """Return a good answer to *question*."""
    now_ns = beacon._now_ns()
    return FORM.pack(TOKEN, FORM.unpack(question)[1], now_ns, now_ns)


@pytest.mark.parametrize("host", [HOST, "localhost", "::1"])
def test_a_clock_is_read(host: str) -> None:
    try:
        listener = Beacon(host, TOKEN)
    except InputError:
        pytest.skip(f"this host has no {host}")
    with listener:
        sounder = Sounder({3: (host, listener.port)}, TOKEN, count=20)
        burst = sounder.sound(3)
        assert sounder.sound(3, count=5).sent == 5
    assert (burst.sent, burst.heard) == (20, 20)
    assert is_right(burst)
    assert (listener.answered, listener.strangers) == (25, 0)
    assert sounder.bursts[3][0] is burst


STRANGERS = {
    "nothing": b"",
    "another token": FORM.pack(make_token(), 1, 0, 0),
    "too short": FORM.pack(TOKEN, 1, 0, 0)[:-1],
    "too long": FORM.pack(TOKEN, 1, 0, 0) + b"x",
    "the token alone": TOKEN,
}


@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_gets_no_answer_and_is_counted(said: bytes) -> None:
    with Beacon(HOST, TOKEN) as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect((HOST, listener.port))
        line.settimeout(5)
        line.send(said)
        question = FORM.pack(TOKEN, 77, 0, 0)
        line.send(question)
        answer = line.recv(1000)  # the first that comes is to the one with the token
    assert FORM.unpack(answer)[:2] == (TOKEN, 77)
    assert len(answer) == len(question), "an answer longer than its question would amplify"
    assert (listener.answered, listener.strangers) == (1, 1)


def test_who_has_gone_away_does_not_hold_up_the_others() -> None:
    with Beacon(HOST, TOKEN) as listener:
        sounder = Sounder({0: (HOST, listener.port)}, TOKEN)
    burst = sounder.sound(0)
    assert (burst.sent, burst.heard, burst.offset_ns, burst.bound_ns) == (100, 0, None, None)


def test_who_never_answers_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacon, "WAIT_S", 0.004)
    monkeypatch.setattr(beacon, "BURST_S", 0.02)
    with peer(lambda question: []) as address:
        burst = Sounder({0: address}, TOKEN).sound(0)
    assert burst.heard == 0
    assert 1 <= burst.sent < 20


def test_an_address_that_cannot_be_reached_is_silent() -> None:
    burst = Sounder({0: ("255.255.255.255", 9)}, TOKEN).sound(0)  # broadcasts need a permission
    assert burst.heard == 0


class Muddler:
    """Answers late, twice, in parts, under other names, and to what nobody asked."""

    def __init__(self) -> None:
        self.before = FORM.pack(TOKEN, 10**6, 0, 0)

    def __call__(self, question: bytes) -> list[bytes]:
        late, self.before = self.before, question
        good = stamp(question)
        spoiled = [b"", good[:-1], good + b"x", FORM.pack(make_token(), FORM.unpack(question)[1], 0, 0)]
        return [*spoiled, late, good, good]


def test_muddled_answers_give_no_wrong_offset() -> None:
    with peer(Muddler()) as address:
        burst = Sounder({0: address}, TOKEN, count=30).sound(0)
    assert (burst.sent, burst.heard) == (30, 30)
    assert is_right(burst)


def test_a_lost_answer_is_one_ping_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacon, "WAIT_S", 0.02)
    with peer(lambda question: [] if FORM.unpack(question)[1] == 3 else [stamp(question)]) as address:
        burst = Sounder({0: address}, TOKEN, count=10).sound(0)
    assert burst.sent == 10
    assert 5 <= burst.heard <= 9  # a busy machine may lose more to so short a wait
    assert is_right(burst)


def test_clocks_are_read_before_during_and_after() -> None:
    with Beacon(HOST, TOKEN) as one, Beacon(HOST, TOKEN) as other:
        peers = {0: (HOST, one.port), 1: (HOST, other.port)}
        with Sounder(peers, TOKEN, every_s=0.001, count=3) as sounder:
            before = min(map(len, sounder.bursts.values()))
            while len(sounder.bursts[1]) < 4:
                threading.Event().wait(0.001)
            during = len(sounder.bursts[1])
    assert before >= 1
    assert len(sounder.bursts[1]) > during
    assert "sounder" not in {thread.name for thread in threading.enumerate()}
    times_ns = [burst.at_ns for burst in sounder.bursts[1]]
    assert times_ns == sorted(times_ns)


def test_a_node_that_was_lost_is_not_asked_any_more() -> None:
    with Beacon(HOST, TOKEN) as listener:
        sounder = Sounder({0: (HOST, listener.port), 1: (HOST, listener.port)}, TOKEN, count=2)
        sounder.sound_all()
        sounder.forget(0)
        sounder.sound_all()
    assert [len(sounder.bursts[node]) for node in (0, 1)] == [1, 2]


def test_a_run_that_failed_asks_nobody_afterwards() -> None:
    with Beacon(HOST, TOKEN) as listener:
        sounder = Sounder({0: (HOST, listener.port)}, TOKEN, count=2)
        with pytest.raises(ValueError, match="failed"), sounder:
            raise ValueError("the run failed")
    assert len(sounder.bursts[0]) == 1


@pytest.mark.parametrize(("nodes", "pings"), [(0, 100), (3, 100), (100, 100), (200, 50), (1000, 10), (5000, 10)])
def test_many_nodes_are_asked_less_each(nodes: int, pings: int) -> None:
    assert choose_count(nodes) == pings


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "expected one address of this host"),
        ("0.0.0.0", "which stands for all"),
        ("::", "which stands for all"),
        ("192.0.2.77", "cannot listen on port 0 of 192.0.2.77"),
    ],
)
def test_a_beacon_is_on_one_address_of_this_host(address: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Beacon(address, TOKEN)


def test_a_port_that_is_taken() -> None:
    with Beacon(HOST, TOKEN) as listener, pytest.raises(InputError, match=f"port {listener.port}"):
        Beacon(HOST, TOKEN, listener.port)


def test_a_token_is_of_one_length() -> None:
    assert len({make_token() for _ in range(5)}) == 5
    for wrong in (b"", TOKEN + b"x"):
        with pytest.raises(InputError, match="token: expected 16 bytes"):
            Sounder({}, wrong)
        with pytest.raises(InputError, match="token: expected 16 bytes"):
            Beacon(HOST, wrong)

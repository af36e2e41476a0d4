from __future__ import annotations

import gc
import itertools
import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.wire import NOTHING, Kind, Outcome, Response

from .cases import (
    ANSWER,
    CASES,
    HELLO,
    RELAXED,
    STOP,
    WORLD,
    Case,
    answer_events,
    chunk,
    delta,
    encode,
    event,
    framed,
    head,
    measured,
    streamed,
    usage,
    usage_chunk,
    whole,
)

BY_NAME = {case.name: case for case in CASES}


def read(case: Case, pieces: list[bytes], tail: bytes = b"") -> dict[str, object]:
    """Feed the pieces, end the connection as the case says, and return every fact."""
    response = Response(keep_text=True)
    gains = [response.feed(piece) for piece in pieces]
    if tail:
        assert response.feed(tail) == NOTHING
    if case.then != "open":
        gains.append(response.end_of_stream(reset=case.then == "reset"))
    kinds = 0
    for gain in gains:
        kinds |= gain.kinds
        assert gain.content == bool(gain.kinds & Kind.CONTENT)
    assert sum(gain.events for gain in gains) == response.events
    assert sum(gain.deltas for gain in gains) == response.deltas
    assert response.complete
    return {
        "outcome": response.outcome,
        "error": response.error,
        "kinds": kinds,
        "events": response.events,
        "deltas": response.deltas,
        "text": response.text,
        "finish": response.finish_reason,
        "usage": (
            response.prompt_tokens,
            response.completion_tokens,
            response.cached_tokens,
            response.reasoning_tokens,
        ),
        "status": response.status,
        "reusable": response.reusable,
        "request_id": response.request_id,
        "head_seen": response.head_seen,
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    facts = read(case, [case.data])
    for name in ("outcome", "deltas", "text", "finish", "usage", "status", "reusable", "request_id"):
        assert facts[name] == getattr(case, name), name
    for name in ("events", "kinds"):
        assert getattr(case, name) in (None, facts[name]), name
    error = facts["error"]
    assert (error is None) == (case.error is None), error
    if case.error is not None:
        assert isinstance(error, str)
        assert case.error in error
        assert len(error) <= 200
        assert error.isprintable()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_any_cut_gives_the_same_facts(case: Case) -> None:
    facts = read(case, [case.data])
    assert read(case, [case.data[i : i + 1] for i in range(len(case.data))]) == facts
    for cut in range(1, len(case.data)):
        assert read(case, [case.data[:cut], case.data[cut:]]) == facts, cut


@RELAXED
@given(st.sampled_from(CASES), st.lists(st.integers(0, 3000), max_size=12))
def test_any_cuts_give_the_same_facts(case: Case, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(case.data)) for cut in cuts), len(case.data)]
    pieces = [case.data[start:end] for start, end in itertools.pairwise(edges)]
    assert read(case, pieces) == read(case, [case.data])


@pytest.mark.parametrize("case", [case for case in CASES if case.then == "open"], ids=lambda case: case.name)
@pytest.mark.parametrize("tail", [b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", b"\x00\xff"])
def test_bytes_after_the_end_only_cost_the_connection(case: Case, tail: bytes) -> None:
    facts = read(case, [case.data]) | {"reusable": False}
    assert read(case, [case.data + tail]) == facts
    assert read(case, [case.data], tail) == facts


def test_the_end_of_the_connection_after_the_end_of_the_response_changes_nothing() -> None:
    case = BY_NAME["one event a chunk"]
    response = Response()
    response.feed(case.data)
    assert response.end_of_stream(reset=True) == NOTHING
    assert (response.outcome, response.error) == ("ok", None)


# Gains of single reads


def tokens_by_read(reads: list[list[object]]) -> list[int | None]:
    response = Response()
    response.feed(framed())
    return [response.feed(b"".join(chunk(event(part)) for part in parts)).tokens for parts in reads]


METERED = [delta(content=str(count), usage=usage(3, count)) for count in (1, 4, 5)]
USAGE_SERIES = [
    ("usage on every event", [[METERED[0]], [METERED[1]], [METERED[2]]], [1, 3, 1]),
    ("several events a read", [[METERED[0], METERED[1]], [METERED[2]]], [4, 1]),
    ("role with zero first", [[delta(role="assistant", usage=usage(3, 0))], [METERED[0]]], [0, 1]),
    ("no usage but at the end", [[HELLO], [WORLD], [STOP], [usage_chunk(3, 2)]], [None, None, None, None]),
    ("all in one read", [[HELLO, WORLD, STOP, usage_chunk(3, 2)]], [2]),
    ("usage on every second event", [[HELLO], [METERED[1]], [METERED[2]]], [None, None, 1]),
    ("a delta after the usage", [[METERED[0], HELLO], [METERED[1]], [METERED[2]]], [None, None, 1]),
    ("final chunk repeats the count", [[METERED[1]], [STOP], [usage_chunk(3, 4)], ["[DONE]"]], [4, None, 0, None]),
    ("a count that falls", [[METERED[1]], [METERED[0]]], [4, 0]),
    ("two choices", [[METERED[0]], [delta(1, content="x", usage=usage(3, 1))], [METERED[1]]], [1, None, None]),
    ("usage without completion_tokens", [[delta(content="a", usage={"prompt_tokens": 3})]], [None]),
]


@pytest.mark.parametrize(("reads", "tokens"), [row[1:] for row in USAGE_SERIES], ids=[row[0] for row in USAGE_SERIES])
def test_tokens_of_a_read(reads: list[list[object]], tokens: list[int | None]) -> None:
    assert tokens_by_read(reads) == tokens


def test_gains_tell_reads_apart() -> None:
    response = Response()
    reads = [
        (framed(), (0, 0, 0)),
        (chunk(event(delta(role="assistant", content=""))), (1, 0, Kind.ROLE)),
        (chunk(b": ping\n\n"), (0, 0, Kind.COMMENT)),
        (chunk(event(delta(reasoning="hm"))), (1, 1, Kind.REASONING)),
        (chunk(event(HELLO))[:30], (0, 0, 0)),
        (chunk(event(HELLO))[30:], (1, 1, Kind.CONTENT)),
        (chunk(event(WORLD)) + chunk(event(STOP)), (2, 1, Kind.CONTENT | Kind.FINISH)),
        (chunk(event("[DONE]")), (1, 0, Kind.DONE)),
        (chunk(event(HELLO)), (1, 0, 0)),
        (b"0\r\n\r\n", (0, 0, 0)),
    ]
    for data, expected in reads:
        gain = response.feed(data)
        assert (gain.events, gain.deltas, gain.kinds) == expected
    assert response.is_done
    assert response.outcome == "ok"


def test_a_whole_answer_is_gained_by_the_read_that_completes_it() -> None:
    data = measured(encode(whole()), "application/json")
    response = Response()
    assert response.feed(data[:-1]) == NOTHING
    gain = response.feed(data[-1:])
    assert (gain.events, gain.deltas, gain.tokens, gain.content) == (1, 1, 2, True)


def test_an_error_is_an_outcome_before_the_response_is_complete() -> None:
    response = Response()
    response.feed(framed() + chunk(event({"error": "boom"})))
    assert (response.outcome, response.complete) == ("in_band_error", False)


def test_text_is_kept_only_on_request() -> None:
    response = Response()
    response.feed(streamed(*ANSWER))
    assert response.text == ""


# Size, memory, and bytes that mean nothing


def test_a_megabyte_in_one_event_is_read_in_linear_time() -> None:
    words = "x" * 1_000_000
    data = streamed(*answer_events([delta(content=words), STOP]))
    response = Response(keep_text=True)
    for start in range(0, len(data), 100):
        response.feed(data[start : start + 100])
    assert response.outcome == "ok"
    assert response.text == words


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        (head("content-type: text/event-stream") + b"data: ", "an event of more than"),
        (head("content-type: application/json") + b'{"a":"', "an answer of more than"),
        (b"HTTP/1.1 200 OK\r\nx-a: ", "bytes of head or trailers"),
        (framed() + b"0\r\nx-a: ", "bytes of head or trailers"),
    ],
    ids=["event", "answer", "head", "trailer"],
)
def test_nothing_grows_without_limit(begin: bytes, error: str) -> None:
    response = Response()
    response.feed(begin)
    for _ in range(300):
        response.feed(b"x" * 65536)
    assert response.outcome == "protocol_error"
    assert error in (response.error or "")
    assert not response.reusable


def test_an_event_beyond_the_limit_is_refused_in_one_piece_too() -> None:
    response = Response()
    response.feed(streamed(*ANSWER[:1], event(delta(content="x" * 17 * 1024 * 1024))))
    assert response.outcome == "protocol_error"


def test_responses_are_free_of_reference_cycles() -> None:
    for case in CASES:  # once before, for what is computed only once
        read(case, [case.data])
    gc.collect()
    gc.disable()  # as in the replayer
    try:
        for case in CASES:
            read(case, [case.data])
        assert gc.collect() == 0
    finally:
        gc.enable()


OUTCOMES = get_args(Outcome)


@RELAXED
@given(st.lists(st.binary(max_size=60), max_size=8), st.booleans())
def test_random_bytes_never_raise(pieces: list[bytes], reset: bool) -> None:
    response = Response(keep_text=True)
    for piece in pieces:
        response.feed(piece)
    response.end_of_stream(reset=reset)
    assert response.outcome in OUTCOMES


@RELAXED
@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([*ANSWER, b"\r", b"\n", b"data:", b"{", b"[[", b'"']), max_size=9)
)
def test_random_bodies_never_raise(pieces: list[bytes]) -> None:
    response = Response(keep_text=True)
    response.feed(streamed(*[piece for piece in pieces if piece]))
    assert response.outcome in OUTCOMES
    assert response.text.encode() is not None


def test_damaged_responses_never_raise() -> None:
    dice = random.Random(7)
    for _ in range(3000):
        data = bytearray(dice.choice(CASES).data or b"x")
        for _ in range(dice.randint(1, 4)):
            place = dice.randrange(len(data))
            data[place : place + dice.randint(0, 3)] = dice.randbytes(dice.randint(0, 3))
            data = data or bytearray(b"x")
        response = Response(keep_text=True)
        cut = dice.randrange(len(data))
        response.feed(bytes(data[:cut]))
        response.feed(bytes(data[cut:]))
        response.end_of_stream()
        assert response.outcome in OUTCOMES
        for line in (response.error, response.request_id, response.finish_reason):
            assert line is None or (line.isprintable() and len(line) <= 200)

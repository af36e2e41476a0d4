# A row is a tuple in the order of log.REQUESTS: here each place is checked by its name.

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from loadshape.log import REQUESTS, Outcome, read_stream
from loadshape.plan import NULL
from loadshape.replayer.body import Prepared
from loadshape.replayer.connection import Connection
from loadshape.replayer.exchange import Exchange, Place, Row, make_row, make_unsent_row
from loadshape.replayer.recorder import RowWriter, WriterThread

PLACE = Place(session=11, turn=12, target=13, worker=15, node=14)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Request-Id: there-7\r\n\r\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
THOUGHT = b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
LAST = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":41,"completion_tokens":42,"total_tokens":83,'
    b'"prompt_tokens_details":{"cached_tokens":43},"completion_tokens_details":{"reasoning_tokens":44}}}\n\n'
    b"data: [DONE]\n\n"
)


def store(row: Row, path: Path) -> dict[str, Any]:
    """Write one row and return it by the names of its columns."""
    writer = WriterThread()
    rows = RowWriter(path, REQUESTS, writer)
    writer.open(rows)
    rows.append_with_texts(*row)
    rows.flush()
    writer.close()
    (stored,) = read_stream(path, REQUESTS).to_pylist()
    return dict(stored)


def make_exchange() -> Exchange:
    """Return a request whose every stamp and count is another number."""
    exchange = Exchange(5, 10, Prepared([b"head", b"body"], 8))
    exchange.connection = Connection(16, None)
    exchange.reused = 1
    exchange.due_ns, exchange.begun_ns, exchange.connected_ns = 100, 101, 102
    exchange.sent_ns, exchange.written_ns = 103, 104
    exchange.rtt_ns, exchange.retransmits = 45, 46
    return exchange


def test_what_is_skimmed_counts_as_if_it_was_absorbed(tmp_path: Path) -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in (ROLE, *[WORD] * 9, LAST)]
    skimming, absorbing = make_exchange(), make_exchange()
    skimmed = 0
    for at_ns, data in enumerate([head, *chunks, b"0\r\n\r\n"], 200):
        if skimming.skim(at_ns, data):
            skimmed += 1
        else:
            skimming.absorb(at_ns, data)
        absorbing.absorb(at_ns, data)
    rows = [make_row(exchange, PLACE, Outcome.ok, 900, None) for exchange in (skimming, absorbing)]
    assert skimmed == 6  # a template is learned from the third word
    assert rows[0] == rows[1]
    assert (skimming.tokens, skimming.last_token_ns) == (absorbing.tokens, absorbing.last_token_ns) == (9, 210)


def test_a_finished_request_column_by_column(tmp_path: Path) -> None:
    exchange = make_exchange()
    for at_ns, data in ((105, HEAD[:20]), (106, HEAD[20:] + ROLE), (107, THOUGHT), (108, WORD), (109, WORD)):
        exchange.absorb(at_ns, data)
    exchange.absorb(110, LAST)
    row = store(make_row(exchange, PLACE, Outcome.truncated, 111, "why"), tmp_path / "row")
    assert row == {
        "request": 10,
        "session": 11,
        "turn": 12,
        "target": 13,
        "node": 14,
        "worker": 15,
        "connection": 16,
        "reused": True,
        "due_ns": 100,
        "begun_ns": 101,
        "connected_ns": 102,
        "sent_ns": 103,
        "written_ns": 104,
        "head_ns": 106,
        "first_byte_ns": 105,
        "first_token_ns": 107,
        "first_content_ns": 108,
        "last_token_ns": 109,
        "done_ns": 111,
        "outcome": "truncated",
        "status": 200,
        "error": "why",
        "finish_reason": "length",
        "reads": 6,
        "events": 7,
        "bytes_in": len(HEAD + ROLE + THOUGHT + WORD + WORD + LAST),
        "bytes_out": 8,
        "prompt_tokens": 41,
        "completion_tokens": 42,
        "cached_tokens": 43,
        "reasoning_tokens": 44,
        "rtt_ns": 45,
        "retransmits": 46,
        "resent_ns": None,
        "server_request_id": "there-7",
    }


def test_what_was_sent_twice_has_both_instants(tmp_path: Path) -> None:
    exchange = make_exchange()
    exchange.connected_ns, exchange.stale_ns, exchange.resent_ns = NULL, 120, 130
    row = store(make_row(exchange, PLACE, Outcome.reset, 140, "why"), tmp_path / "row")
    assert (row["connected_ns"], row["sent_ns"], row["resent_ns"], row["bytes_out"]) == (None, 103, 130, 2 * 8)


def test_what_never_happened_is_null(tmp_path: Path) -> None:
    exchange = Exchange(0, 7, Prepared([b"x"], 1))
    exchange.due_ns, exchange.begun_ns = 100, 101
    row = store(make_row(exchange, PLACE, Outcome.refused, 102, "Connection refused"), tmp_path / "row")
    known = {"request": 7, "session": 11, "turn": 12, "target": 13, "node": 14, "worker": 15, "due_ns": 100}
    known |= {"begun_ns": 101, "done_ns": 102, "outcome": "refused", "error": "Connection refused"}
    known |= dict.fromkeys(("reads", "events", "bytes_in", "bytes_out"), 0)
    assert row == dict.fromkeys(REQUESTS.names) | known


@pytest.mark.parametrize("due_ns", [500, NULL])
def test_an_unsent_request_column_by_column(tmp_path: Path, due_ns: int) -> None:
    row = store(make_unsent_row(7, PLACE, due_ns, Outcome.not_reached, "why"), tmp_path / "row")
    known = {"request": 7, "session": 11, "turn": 12, "target": 13, "node": 14, "worker": 15}
    known |= {"due_ns": None if due_ns == NULL else due_ns, "outcome": "not_reached", "error": "why"}
    known |= dict.fromkeys(("reads", "events", "bytes_in", "bytes_out"), 0)
    assert row == dict.fromkeys(REQUESTS.names) | known


def test_a_row_has_a_number_or_a_text_for_every_column() -> None:
    texts = sum(pa.types.is_string(kind) for kind in REQUESTS.types)
    for numbers, strings in (
        make_row(make_exchange(), PLACE, Outcome.ok, 1, None),
        make_unsent_row(1, PLACE, 1, Outcome.not_sent, ""),
    ):
        assert (len(numbers), len(strings)) == (len(REQUESTS) - texts, texts)


def test_bytes_out_counts_only_what_was_handed_over(tmp_path: Path) -> None:
    exchange = make_exchange()
    exchange.written_ns = NULL
    assert store(make_row(exchange, PLACE, Outcome.reset, 1, None), tmp_path / "row")["bytes_out"] == 0


def test_a_server_that_counts_to_infinity_does_not_break_the_row(tmp_path: Path) -> None:
    exchange = make_exchange()
    huge = b'data: {"choices":[],"usage":{"prompt_tokens":%s}}\n\n' % (b"9" * 30)
    exchange.absorb(105, HEAD + WORD + huge + b"data: [DONE]\n\n")
    row = make_row(exchange, PLACE, Outcome.ok, 106, None)
    assert store(row, tmp_path / "row")["prompt_tokens"] in (None, 2**32 - 1)


def test_a_token_is_counted_by_the_server_where_it_counts_each_event() -> None:
    exchange = make_exchange()
    two = b'data: {"choices":[{"index":0,"delta":{"content":"a b"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    exchange.absorb(105, HEAD)
    exchange.absorb(106, two + b"\n\n")
    assert exchange.tokens == 2
    other = make_exchange()
    other.absorb(105, HEAD)
    other.absorb(106, WORD + WORD)  # no count: an event with a delta is a token
    assert other.tokens == 2


def test_an_exchange_is_lean() -> None:
    assert not hasattr(make_exchange(), "__dict__")
    assert not hasattr(Connection(0, SimpleNamespace()), "__dict__")
    assert dataclasses.is_dataclass(Prepared)

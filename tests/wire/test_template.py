"""A template must never say anything that parsing would not say."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import RemoteWireError
from loadshape.wire.openai import Kind, read_answer
from loadshape.wire.response import Response
from loadshape.wire.template import Template, learn_template

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHAT = b'{"id":"a","choices":[{"index":0,"delta":{"content":" fjord"},"finish_reason":null}]}'
TEXT = b'{"id":"a","choices":[{"index":0,"text":" fjord","finish_reason":null}]}'
SPACED = json.dumps(json.loads(CHAT)).encode()


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def learn(data: bytes) -> Template:
    template = learn_template(data)
    assert template is not None
    return template


@pytest.mark.parametrize("data", [CHAT, TEXT, SPACED])
def test_it_knows_the_next_chunk(data: bytes) -> None:
    assert learn(data).fits(b"data: " + data.replace(b" fjord", b" g\xc3\xbcn") + b"\n\n")


@pytest.mark.parametrize(
    "content",
    [b"", b'"', b'x"', b"\\", b"\\n", b'\\"', b"a\nb", b"a\rb", b"\t", b"\0", b'","role":"x'],
    ids=repr,
)
def test_it_leaves_to_the_parser_what_may_be_more_than_content(content: bytes) -> None:
    assert not learn(CHAT).fits(b"data: " + CHAT.replace(b" fjord", content) + b"\n\n")


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
        b'{"id":"a","choices":[{"index":0,"delta":{"reasoning":"so"}}]}',
        b'{"id":"a","choices":[{"index":1,"delta":{"content":"x"}}]}',  # choice 1: its text is not choice 0's
        b'{"id":"a","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}',
        b'{"text":"x","choices":[]}',
        b'{"id":"a",\n"choices":[{"index":0,"delta":{"content":"x"}}]}',
    ],
)
def test_it_learns_from_plain_content_only(data: bytes) -> None:
    assert learn_template(data) is None


def test_the_ends_may_not_overlap() -> None:
    template = Template(b"data: ab", b"bc\n\n")
    assert not template.fits(b"data: abc\n\n")


@given(st.binary(max_size=12), st.sampled_from([CHAT, TEXT, SPACED]))
def test_what_fits_would_have_been_parsed_as_content(content: bytes, data: bytes) -> None:
    changed = data.replace(b" fjord", content)
    if learn(data).fits(b"data: " + changed + b"\n\n"):
        assert read_answer(changed).kinds == int(Kind.CONTENT)


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=6), st.sampled_from([CHAT, TEXT]))
def test_a_stream_reads_the_same_with_and_without(contents: list[bytes], data: bytes) -> None:
    fast, plain = Response(), Response(keep_text=True)  # a response that keeps its text parses every event
    gains = []
    for response in (fast, plain):
        response.feed(HEAD)
        bodies = [data, data, data, *(data.replace(b" fjord", content) for content in contents)]
        gains.append([response.feed(chunk(b"data: " + body + b"\n\n")) for body in bodies])
    assert gains[0] == gains[1]
    for name in ("events", "deltas", "outcome", "complete", "error", "request_id"):
        assert getattr(fast, name) == getattr(plain, name)


@given(
    st.lists(st.binary(max_size=8), min_size=1, max_size=6),
    st.lists(st.integers(0, 400), max_size=8),
    st.sampled_from([b"%x", b"%X", b"0%x", b"%x;a=b"]),
)
def test_cuts_and_framing_do_not_matter(contents: list[bytes], cuts: list[int], size: bytes) -> None:
    bodies = [b"data: " + CHAT.replace(b" fjord", content) + b"\n\n" for content in (b" a", b" b", b" c", *contents)]
    wire = b"".join((size % len(body)) + b"\r\n" + body + b"\r\n" for body in bodies) + b"0\r\n\r\n"
    whole = Response(keep_text=True)
    whole.feed(HEAD + wire)
    apart = Response()
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    apart.feed(HEAD)
    for start, end in itertools.pairwise(edges):
        apart.feed(wire[start:end])
    for name in ("events", "deltas", "outcome", "complete", "error"):
        assert getattr(apart, name) == getattr(whole, name)


def test_a_chunk_of_another_size_than_it_says_is_parsed() -> None:
    response = Response()
    response.feed(HEAD)
    body = b"data: " + CHAT + b"\n\n"
    for _ in range(3):
        response.feed(chunk(body))
    assert learn(CHAT).fits_read(chunk(body))
    assert not learn(CHAT).fits_read(b"%x\r\n%b\r\n" % (len(body) - 1, body))
    assert not learn(CHAT).fits_read(chunk(body)[:-1])
    response.feed(b"%x\r\n%b\r\n" % (len(body) - 1, body))
    assert response.outcome == "protocol_error"


def test_inside_a_chunk_what_looks_like_a_chunk_is_content() -> None:
    body = b"data: " + CHAT + b"\n\n"
    inner = chunk(body)
    response = Response()
    response.feed(HEAD + 3 * chunk(body))
    response.feed(b"%x\r\n" % len(inner))
    assert response.feed(inner).events == 1
    assert response.feed(b"\r\n" + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n").events == 1
    assert response.outcome == "ok"


def test_a_server_that_changes_more_than_the_content_is_parsed() -> None:
    response = Response()
    response.feed(HEAD)
    for number in range(20):
        response.feed(chunk(b"data: " + CHAT.replace(b'"a"', b'"%d"' % number) + b"\n\n"))
    assert (response.events, response.deltas) == (20, 20)


def test_after_done_nothing_is_read() -> None:
    response = Response()
    response.feed(HEAD)
    response.feed(chunk(b"data: " + CHAT + b"\n\n"))
    response.feed(chunk(b"data: [DONE]\n\n"))
    assert response.feed(chunk(b"data: " + CHAT + b"\n\n")).deltas == 0
    assert response.events == 3


def test_nothing_is_learned_from_a_giant() -> None:
    assert learn_template(CHAT.replace(b'"a"', b'"%s"' % (b"a" * 5000))) is None


def test_an_odd_template_is_refused_quietly() -> None:
    with pytest.raises(RemoteWireError):
        read_answer(b"{")
    assert learn_template(b'{"content":"x"') is None

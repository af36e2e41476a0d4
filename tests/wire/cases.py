"""Byte sequences of whole responses and what must be read out of them.

Every case is run whole, cut in two at every position, byte by byte, and with bytes after its end. All content is
invented; the shapes are those of vLLM, of other servers, and of what breaks between them and us.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from hypothesis import HealthCheck, settings

from loadshape.wire import Kind

ROLE, CONTENT, REASONING, TOOL = Kind.ROLE, Kind.CONTENT, Kind.REASONING, Kind.TOOL
FINISH, USAGE, DONE, COMMENT, ERROR = Kind.FINISH, Kind.USAGE, Kind.DONE, Kind.COMMENT, Kind.ERROR

# Examples are judged by what they say, not by how busy the machine is.
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

SSE_TYPE = "text/event-stream; charset=utf-8"
JSON_TYPE = "application/json"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one response, how the connection goes on, and the facts that must come out."""

    name: str
    data: bytes
    then: Literal["open", "close", "reset"] = "open"
    outcome: str = "ok"
    error: str | None = None  # a part of the message; None: there must be none
    deltas: int = 0
    text: str = ""
    events: int | None = None
    kinds: int | None = None
    finish: str | None = None
    usage: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    status: int | None = 200
    reusable: bool = True
    request_id: str | None = None


# Building blocks


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def streamed(*pieces: bytes, end: bytes = b"0\r\n\r\n", media_type: str = SSE_TYPE) -> bytes:
    """A chunked response, one HTTP chunk per piece, as uvicorn writes it."""
    return framed(media_type) + b"".join(map(chunk, pieces)) + end


def framed(media_type: str = SSE_TYPE) -> bytes:
    return head(f"content-type: {media_type}", "transfer-encoding: chunked")


def measured(body: bytes, media_type: str = SSE_TYPE, status: str = "200 OK", *more: str) -> bytes:
    """A response with a Content-Length."""
    return head(f"content-type: {media_type}", f"content-length: {len(body)}", *more, status=status) + body


def event(payload: Any, prefix: str = "data: ", end: str = "\n\n") -> bytes:
    data = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    return (prefix + data + end).encode()


def delta(index: int = 0, finish: str | None = None, usage: Any = None, **fields: Any) -> dict[str, Any]:
    """A chat chunk with one choice."""
    choice = {"index": index, "delta": fields, "logprobs": None, "finish_reason": finish}
    chunk = {"id": "chatcmpl-5", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return chunk if usage is None else chunk | {"usage": usage}


def text(words: str, index: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A completions chunk with one choice."""
    choice = {"index": index, "text": words, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return {"id": "cmpl-5", "object": "text_completion", "model": "m", "choices": [choice]} | more


def usage(prompt: int, completion: int, cached: int | None = None, reasoned: int | None = None) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": None if reasoned is None else {"reasoning_tokens": reasoned},
    }


def usage_chunk(*counts: int) -> dict[str, Any]:
    return {"id": "chatcmpl-5", "object": "chat.completion.chunk", "choices": [], "usage": usage(*counts)}


ROLE_CHUNK = delta(role="assistant", content="")
HELLO, WORLD = delta(content="Hello"), delta(content=" world")
STOP = delta(finish="stop")
END = event("[DONE]")
USAGE = usage_chunk(9, 2)
PLAIN = [ROLE_CHUNK, HELLO, WORLD, STOP, USAGE]


def answer_events(payloads: list[Any], prefix: str = "data: ", end: str = "\n\n") -> list[bytes]:
    return [event(payload, prefix, end) for payload in [*payloads, "[DONE]"]]


ANSWER = answer_events(PLAIN)
BODY = b"".join(ANSWER)
_PLAIN_FACTS: dict[str, Any] = {
    "deltas": 2,
    "text": "Hello world",
    "finish": "stop",
    "usage": (9, 2, None, None),
    "events": 6,
    "request_id": "chatcmpl-5",
}


def plain(name: str, data: bytes, **changes: Any) -> Case:
    """A case whose answer is the plain one, however it is wrapped."""
    return Case(name=name, data=data, **_PLAIN_FACTS | changes)


def short(name: str, *payloads: Any, **changes: Any) -> Case:
    """A chunked stream of the payloads and [DONE]."""
    facts: dict[str, Any] = {"request_id": "chatcmpl-5"} | changes
    return Case(name=name, data=streamed(*answer_events(list(payloads))), **facts)


def failed(name: str, status: str, body: bytes, media_type: str, *headers: str, **changes: Any) -> Case:
    """A case whose status is not 2xx."""
    facts: dict[str, Any] = {"outcome": "http_error", "status": int(status.split()[0])} | changes
    return Case(name=name, data=measured(body, media_type, status, *headers), **facts)


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


LIMITED = {"error": {"message": "slow down, please", "type": "rate_limit", "code": 429}}
BUSY = {"error": {"message": "engine is busy", "type": "Service Unavailable", "param": None, "code": 503}}
TOOL_HEAD = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "look_up"}}
TOOL_TAIL = {"index": 0, "function": {"arguments": '{"city": "Ulm"}'}}


def whole(message: dict[str, Any] | None = None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    """A chat answer that is not streamed."""
    message = {"role": "assistant", "content": "Hello world"} if message is None else message
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-5", "object": "chat.completion", "choices": [choice], "usage": usage(9, 2)} | more


# HTTP: the same answer in every wrapping

HTTP_CASES = [
    plain("one event a chunk", streamed(*ANSWER), kinds=ROLE | CONTENT | FINISH | Kind.USAGE | DONE),
    plain("many events in one chunk", streamed(BODY)),
    plain("one event over many chunks", streamed(*[BODY[i : i + 7] for i in range(0, len(BODY), 7)])),
    plain("content-length", measured(BODY)),
    plain("close-delimited", head(f"content-type: {SSE_TYPE}") + BODY, then="close", reusable=False),
    plain(
        "HTTP/1.0, close-delimited",
        b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BODY,
        then="close",
        reusable=False,
    ),
    plain(
        "connection: close",
        head("content-type: text/event-stream", "connection: close", f"content-length: {len(BODY)}") + BODY,
        reusable=False,
    ),
    plain("trailers", streamed(*ANSWER, end=b"0\r\nx-took: 5\r\nx-request-id: no\r\n\r\n")),
    plain(
        "chunk extensions and upper-case sizes",
        framed() + b"".join(b"%X;name=v\r\n%s\r\n" % (len(part), part) for part in ANSWER) + b"0;last\r\n\r\n",
    ),
    plain(
        "chunk sizes with leading zeros",
        framed() + b"".join(b"%06x\r\n%s\r\n" % (len(part), part) for part in ANSWER) + b"000\r\n\r\n",
    ),
    plain("100 before 200", b"HTTP/1.1 100 Continue\r\n\r\n" + streamed(*ANSWER)),
    plain("103 before 200", head("link: </a.css>", "x-request-id: hint", status="103 Early Hints") + streamed(*ANSWER)),
    plain(
        "several 1xx before 200",
        b"HTTP/1.1 100 Continue\r\n\r\n" + head(status="102 Processing") + head(status="103 E") + streamed(*ANSWER),
    ),
    plain(
        "header names in upper case, x-request-id",
        head("CONTENT-TYPE: Text/Event-Stream", "X-Request-Id:  ls-1-7 ", "Transfer-Encoding: Chunked")
        + b"".join(map(chunk, ANSWER))
        + b"0\r\n\r\n",
        request_id="ls-1-7",
    ),
    plain("content-encoding: identity", measured(BODY, SSE_TYPE, "200 OK", "content-encoding: identity")),
    plain("no content type", head("transfer-encoding: chunked") + chunk(BODY) + b"0\r\n\r\n"),
    plain("text/plain that is SSE", streamed(*ANSWER, media_type="text/plain")),
    plain("text/plain that is SSE, a comment first", streamed(b": hi\n\n", *ANSWER, media_type="text/plain")),
    plain("201", measured(BODY, status="201 Created"), status=201),
    plain("empty reason", b"HTTP/1.1 200 \r\ncontent-type: text/event-stream\r\n\r\n" + BODY, then="close",
          reusable=False),
    # Ends that are none
    plain("[DONE], then closed inside the framing", framed() + b"".join(map(chunk, ANSWER)), then="close",
          error="connection closed after [DONE]", reusable=False),
    plain("[DONE], then reset", framed() + b"".join(map(chunk, ANSWER)), then="reset",
          error="connection reset after [DONE]", reusable=False),
    plain("finish, no [DONE], complete", streamed(*ANSWER[:-1]), events=5),
    plain("finish, no [DONE], close-delimited", head("content-type: text/event-stream") + b"".join(ANSWER[:-1]),
          then="close", events=5, reusable=False),
    plain("finish, no [DONE], cut", framed() + b"".join(map(chunk, ANSWER[:-1])), then="close", events=5,
          outcome="truncated", error="connection closed inside the body (chunked)", reusable=False),
    plain("finish, no [DONE], reset", framed() + b"".join(map(chunk, ANSWER[:-1])), then="reset", events=5,
          outcome="reset", error="connection reset inside the body (chunked)", reusable=False),
    plain("content-length, cut", measured(BODY)[:-9], then="close", events=5, outcome="truncated",
          error="inside the body (length)", reusable=False),
    Case(name="reset in the head", data=head("content-type: text/event-stream")[:-8], then="reset", outcome="reset",
         error="before the response head", status=None, reusable=False),
    Case(name="closed before any byte", data=b"", then="close", outcome="truncated", error="before the response head",
         status=None, reusable=False),
    Case(name="closed after a 100", data=b"HTTP/1.1 100 Continue\r\n\r\n", then="close", outcome="truncated",
         error="before the response head", status=None, reusable=False),
    # Not HTTP, or not what was asked for
    Case(name="not HTTP", data=b"SSH-2.0-OpenSSH_9.6\r\n", outcome="protocol_error", error="not HTTP/1.1", status=None,
         reusable=False),
    Case(name="HTTP/2 preface", data=b"\x00\x00\x12\x04\x00\x00\x00", outcome="protocol_error", error="not HTTP/1.1",
         status=None, reusable=False),
    Case(name="101", data=head("connection: upgrade", "upgrade: h2c", status="101 Switching Protocols") + b"PRI *",
         outcome="protocol_error", error="switched protocols", status=None, reusable=False),
    Case(name="101 without headers", data=b"HTTP/1.1 101 Switching\r\n\r\n", outcome="protocol_error",
         error="switched protocols", status=None, reusable=False),
    Case(name="broken chunk size after a token", data=framed() + chunk(event(HELLO)) + b"zz\r\n", deltas=1,
         text="Hello",
         outcome="protocol_error", error="not HTTP/1.1", reusable=False, request_id="chatcmpl-5"),
    Case(name="length and chunks", data=head("content-length: 3", "transfer-encoding: chunked"), status=None,
         outcome="protocol_error", error="not HTTP/1.1", reusable=False),
    Case(name="gzip", data=measured(b"\x1f\x8b\x08\x00", SSE_TYPE, "200 OK", "content-encoding: gzip"),
         outcome="protocol_error", error="compressed (gzip) although identity", reusable=False),
    Case(name="gzip as a transfer coding", data=head("content-type: text/event-stream",
         "transfer-encoding: gzip, chunked")
         + chunk(b"\x1f\x8b"), outcome="protocol_error", error="compressed (gzip)", reusable=False),
    Case(name="200 with HTML", data=measured(b"<html>login</html>", "text/html"), outcome="protocol_error",
         error="found text/html", reusable=False),
    Case(name="200 with an image", data=measured(b"\x89PNG", "image/png"), outcome="protocol_error",
         error="found image/png", reusable=False),
    Case(name="200 with plain words", data=measured(b"It works!", "text/plain"), outcome="protocol_error",
         error="neither an event stream nor JSON"),
    Case(name="200, empty", data=measured(b""), outcome="truncated", error="the body ended"),
    Case(name="200, empty, no type", data=head("content-length: 0"), outcome="truncated", error="the body ended"),
    Case(name="200, empty JSON", data=measured(b"", JSON_TYPE), outcome="truncated", error="the body ended"),
    Case(name="204", data=head("x-a: b", status="204 No Content"), outcome="no_token", error="HTTP 204 has no body",
         status=204),
]  # fmt: skip

# SSE: framing of events

_CRLF = answer_events(PLAIN, end="\r\n\r\n")
SSE_CASES = [
    plain("CRLF", streamed(*_CRLF)),
    plain("CR", streamed(*answer_events(PLAIN, end="\r\r"))),
    plain("CR and LF mixed", streamed(*answer_events(PLAIN, end="\r\n\n"))),
    plain("CRLF cut into odd chunks", streamed(*[b"".join(_CRLF)[i : i + 5] for i in range(0, len(b"".join(_CRLF)),
          5)])),
    plain("data without a blank", streamed(*answer_events(PLAIN, prefix="data:"))),
    plain("event: message", streamed(*answer_events(PLAIN, prefix="event: message\ndata: "))),
    plain("another event name", streamed(*answer_events(PLAIN, prefix="event: completion\ndata: "))),
    plain("id and retry", streamed(*answer_events(PLAIN, prefix="id: 7\nretry: 3000\ndata: "))),
    plain("comment first", streamed(b": ping\n\n", *ANSWER),
          kinds=ROLE | CONTENT | FINISH | Kind.USAGE | DONE | COMMENT),
    plain("comment without its blank line", streamed(b": ping\n", *ANSWER)),
    plain("comments between, CRLF", streamed(*[b":\r\n\r\n" + part for part in _CRLF])),
    plain("comment inside an event", streamed(*answer_events(PLAIN, prefix=": OPENROUTER PROCESSING\ndata: "))),
    plain("BOM", streamed(b"\xef\xbb\xbf" + ANSWER[0], *ANSWER[1:])),
    plain("BOM cut", streamed(b"\xef", b"\xbb", b"\xbf", *ANSWER)),
    plain("blank lines first", streamed(b"\n\r\n\r", *ANSWER)),
    plain("JSON over several data lines", streamed(*[
        event(json.dumps(part, indent=1).replace("\n", "\ndata: ")) for part in PLAIN], END)),
    plain("empty heartbeats", streamed(b"data:\n\n", b"data: \n\n", b"data\n\n", *ANSWER), events=9),
    plain("unknown fields", streamed(*answer_events(PLAIN, prefix="foo: bar\nDATA: x\ndata: "))),
    plain("[DONE] with blanks", streamed(*ANSWER[:-1], b"data: [DONE]  \n\n")),
    plain("[DONE] without a blank", streamed(*ANSWER[:-1], b"data:[DONE]\n\n")),
    plain("[DONE] twice", streamed(*ANSWER, END), events=7),
    plain("events after [DONE]", streamed(*ANSWER, event(HELLO), event("not JSON"), event(BUSY)), events=9),
    plain("comment after [DONE]", streamed(*ANSWER, b": bye\n\n")),
    plain("[DONE] without its blank line", streamed(*ANSWER[:-1], b"data: [DONE]\n"), events=5),
    Case(name="no final blank line", data=streamed(event(HELLO), event(STOP)[:-1]), outcome="truncated", deltas=1,
         text="Hello", error="inside an event", request_id="chatcmpl-5"),
    Case(name="only comments", data=streamed(b": ping\n\n", b": ping\n\n"), outcome="truncated", kinds=COMMENT,
         events=0, error="without finish_reason"),
    Case(name="only [DONE]", data=streamed(END), outcome="no_token", error="without a token", events=1),
    Case(name="not JSON", data=streamed(event(HELLO), event("{oops"), event(WORLD)), outcome="protocol_error",
         error="not JSON: b'{oops'", deltas=1, text="Hello", events=2, reusable=False, request_id="chatcmpl-5"),
    Case(name="JSON under text/event-stream", data=measured(encode(whole())), outcome="truncated",
         error="the body ended"),
    short("UTF-8", delta(content="é "), delta(content="日本 🙂"), STOP, deltas=2, text="é 日本 🙂", finish="stop"),
    Case(name="UTF-8 cut by chunks", deltas=1, text="é🙂", finish="stop", request_id="chatcmpl-5", data=streamed(*[
        bytes([byte]) for byte in event(delta(content="é🙂", finish="stop"))])),
    Case(name="invalid UTF-8", deltas=1, text="a\ufffdb", finish="stop", data=streamed(
        b'data: {"choices":[{"delta":{"content":"a\xffb"},"finish_reason":"stop"}]}\n\n')),
    Case(name="lone surrogate", deltas=1, text="a\ufffdb", finish="stop", data=streamed(
        rb'data: {"choices":[{"delta":{"content":"a\ud83db"},"finish_reason":"stop"}]}', b"\n\n")),
    Case(name="surrogate pair over two events", deltas=2, text="🙂", finish="stop", data=streamed(
        rb'data: {"choices":[{"delta":{"content":"\ud83d"}}]}', b"\n\n",
        rb'data: {"choices":[{"delta":{"content":"\ude42"},"finish_reason":"stop"}]}', b"\n\n")),
    Case(name="escaped pair", deltas=1, text="🙂\u2028", finish="stop", data=streamed(
        rb'data: {"choices":[{"delta":{"content":"\ud83d\ude42\u2028"},"finish_reason":"stop"}]}', b"\n\n")),
    Case(name="logprobs of minus infinity", deltas=1, text="a", finish="stop", data=streamed(
        b'data: {"choices":[{"delta":{"content":"a"},"logprobs":{"x":[-Infinity,NaN]},"finish_reason":"stop"}]}\n\n')),
]  # fmt: skip

# OpenAI: what events say

_METERED = [
    delta(role="assistant", content="", usage=usage(9, 0)),
    delta(content="Hello", usage=usage(9, 1)),
    delta(content=" world", usage=usage(9, 4)),
    delta(finish="stop", usage=usage(9, 4)),
    usage_chunk(9, 4, 8, 1),
]
OPENAI_CASES = [
    short("A role first", ROLE_CHUNK, HELLO, WORLD, delta(finish="stop", usage=usage(9, 2)), deltas=2,
          text="Hello world", finish="stop", usage=(9, 2, None, None), events=5),
    short("usage on the last content chunk", HELLO, delta(content=" world", finish="length", usage=usage(9, 2)),
          deltas=2,
          text="Hello world", finish="length", usage=(9, 2, None, None)),
    short("Q usage long after", HELLO, STOP, USAGE, deltas=1, text="Hello", finish="stop", usage=(9, 2, None, None)),
    short("continuous usage", *_METERED, deltas=2, text="Hello world", finish="stop", usage=(9, 4, 8, 1)),
    short("E reasoning_content, then content", ROLE_CHUNK, delta(reasoning_content="hm"), delta(content="Hi"), STOP,
          deltas=2, text="Hi", finish="stop", kinds=ROLE | REASONING | CONTENT | FINISH | DONE),
    short("reasoning, then content", delta(reasoning="hm"), delta(content="Hi"), STOP, deltas=2, text="Hi",
          finish="stop"),
    short("reasoning under both names", delta(reasoning="hm", reasoning_content="hm", content=None), STOP, deltas=1,
          finish="stop", kinds=REASONING | FINISH | DONE),
    short("L tool calls only", ROLE_CHUNK, delta(content=None, tool_calls=[TOOL_HEAD]), delta(tool_calls=[TOOL_TAIL]),
          delta(finish="tool_calls"), deltas=2, finish="tool_calls", kinds=ROLE | TOOL | FINISH | DONE),
    short("a tool call with an id only", delta(tool_calls=[{"index": 0, "id": "call-1"}]), HELLO, STOP, deltas=1,
          text="Hello", finish="stop", kinds=CONTENT | FINISH | DONE),
    short("tool arguments as an object", delta(tool_calls=[{"function": {"arguments": {"city": "Ulm"}}}]), STOP,
          deltas=1, finish="stop"),
    short("empty tool calls", delta(content="Hi", tool_calls=[]), STOP, deltas=1, text="Hi", finish="stop"),
    short("function_call", delta(function_call={"name": "f", "arguments": ""}), delta(finish="function_call"), deltas=1,
          finish="function_call", kinds=TOOL | FINISH | DONE),
    short("refusal only", ROLE_CHUNK, delta(refusal="I cannot"), STOP, deltas=1, text="I cannot", finish="stop"),
    short("M empty choices first", {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}, *PLAIN,
          deltas=2, text="Hello world", finish="stop", usage=(9, 2, None, None)),
    short("null choices", {"id": "chatcmpl-5", "choices": None}, HELLO, STOP, deltas=1, text="Hello", finish="stop"),
    short("choices without delta", {"id": "chatcmpl-5", "choices": [{"index": 0}]}, HELLO, STOP, deltas=1, text="Hello",
          finish="stop"),
    short("delta null", {"id": "chatcmpl-5", "choices": [{"index": 0, "delta": None}]}, HELLO, STOP, deltas=1,
          text="Hello", finish="stop"),
    short("content null", delta(content=None), HELLO, STOP, deltas=1, text="Hello", finish="stop"),
    short("finish on a content chunk", HELLO, delta(content=" world", finish="length"), deltas=2, text="Hello world",
          finish="length"),
    short("empty finish_reason is none", delta(content="Hello", finish=""), STOP, deltas=1, text="Hello",
          finish="stop"),
    short("role in every chunk", delta(role="assistant", content="Hello"), STOP, deltas=1, text="Hello", finish="stop"),
    short("unknown fields of any type", HELLO | {"service_tier": [1], "x": {"y": None}, "created": "now"}, STOP,
          deltas=1, text="Hello", finish="stop"),
    short("odd types", {"id": 5, "choices": "none"}, {"choices": [7, None, {"delta": "x", "index": "0"}]},
          {"usage": "none", "choices": []}, [1], "null", "7", HELLO, STOP, deltas=1, text="Hello", finish="stop"),
    short("odd types beside content", {"id": "chatcmpl-5", "choices": [
        {"index": None, "delta": {"role": 5, "content": "Hello", "tool_calls": "x"}, "finish_reason": 3}]}, STOP,
        deltas=1, text="Hello", finish="stop"),
    short("content as parts", delta(content=[{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]), STOP,
          deltas=1, text="Hello", finish="stop"),
    short("n=2 interleaved", HELLO, delta(1, content="Bye"), WORLD, delta(1, finish="length"), STOP, deltas=3,
          text="Hello world", finish="length"),
    Case(name="n=2, one never finishes", data=streamed(event(HELLO), event(delta(1, content="Bye")), event(STOP)),
         outcome="truncated", error="without finish_reason", deltas=2, text="Hello", finish="stop",
         request_id="chatcmpl-5"),
    short("K several tokens a chunk", delta(content="a b c d e"), delta(content="f g h i j"), STOP, usage_chunk(3, 10),
          deltas=2, text="a b c d ef g h i j", finish="stop", usage=(3, 10, None, None)),
    Case(name="G cut without a finish", data=streamed(event(HELLO), event(WORLD)), outcome="truncated", deltas=2,
         text="Hello world", error="without finish_reason or [DONE]", request_id="chatcmpl-5"),
    short("only a role", ROLE_CHUNK, STOP, outcome="no_token", error="without a token", finish="stop"),
    short("only empty content", delta(content=""), STOP, usage_chunk(9, 1), outcome="no_token", error="without a token",
          finish="stop", usage=(9, 1, None, None)),
    short("cached_tokens", HELLO, STOP, {"choices": [], "usage": {"prompt_tokens": 9, "cached_tokens": 4}}, deltas=1,
          text="Hello", finish="stop", usage=(9, None, 4, None)),
    short("prompt_cache_hit_tokens, reasoning_tokens", HELLO, STOP, {"choices": [], "usage": {
        "completion_tokens": 3, "prompt_cache_hit_tokens": 0, "reasoning_tokens": 2}}, deltas=1, text="Hello",
        finish="stop", usage=(None, 3, 0, 2)),
    short("usage that is none", HELLO, STOP, {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 2**40,
        "prompt_tokens_details": [], "reasoning_tokens": True}}, deltas=1, text="Hello", finish="stop"),
    # Errors inside a 200
    short("F error mid-stream", HELLO, BUSY, outcome="in_band_error", error="engine is busy", deltas=1, text="Hello"),
    short("error first", BUSY, outcome="in_band_error", error="engine is busy", kinds=ERROR | DONE, request_id=None),
    short("error as a string", HELLO, {"error": "out of memory"}, outcome="in_band_error", error="out of memory",
          deltas=1,
          text="Hello"),
    short("error as a list", {"error": [{"message": "first"}, {"message": "second"}]}, outcome="in_band_error",
          error="first", request_id=None),
    short("error as a number", {"error": 17}, outcome="in_band_error", error="17", request_id=None),
    short("empty error object", {"error": {}}, outcome="in_band_error", error="without a message", request_id=None),
    short("error null", HELLO | {"error": None}, STOP, deltas=1, text="Hello", finish="stop"),
    short("object: error", {"object": "error", "message": "too long", "code": 400}, outcome="in_band_error",
          error="too long", request_id=None),
    short("error with control characters", {"error": {"message": "a\n\tb\x1b[31m" + "c" * 500}},
          outcome="in_band_error",
          error="a b [31mccc", request_id=None),
    Case(name="event: error", data=streamed(event(HELLO), event({"detail": "lost"}, prefix="event: error\ndata: "),
         END),
         outcome="in_band_error", error="lost", deltas=1, text="Hello", request_id="chatcmpl-5"),
    Case(name="event: error, not JSON", data=streamed(event("engine died", prefix="event:error\ndata:")),
         outcome="in_band_error", error="engine died"),
    Case(name="event: error, empty", data=streamed(b"event: error\ndata\n\n"), outcome="in_band_error",
         error="event: error"),
    Case(name="error, then reset", data=framed() + chunk(event(HELLO)) + chunk(event(BUSY)), then="reset", deltas=1,
         text="Hello", outcome="in_band_error", error="engine is busy", reusable=False, request_id="chatcmpl-5"),
    short("finish_reason abort", HELLO, delta(finish="abort"), outcome="in_band_error", error="finish_reason: abort",
          deltas=1, text="Hello", finish="abort"),
    short("finish_reason error", HELLO, delta(finish="error"), outcome="in_band_error", error="finish_reason: error",
          deltas=1, text="Hello", finish="error"),
    # Completions
    short("completions", text("Once"), text(" upon"), text("", finish="length"), deltas=2, text="Once upon",
          finish="length", request_id="cmpl-5"),
    short("completions, batched prompts", text("a"), text("b", 1), text("c", 1, "stop"), text("d", 0, "length"),
          deltas=4, text="ad", finish="stop", request_id="cmpl-5"),
    short("completions, aborted", text("Once"), text("", finish="abort"), outcome="in_band_error", deltas=1,
          text="Once",
          error="finish_reason: abort", finish="abort", request_id="cmpl-5"),
    short("completions, usage on all", text("a", usage=usage(2, 1)), text("b", finish="stop", usage=usage(2, 2)),
          deltas=2,
          text="ab", finish="stop", usage=(2, 2, None, None), request_id="cmpl-5"),
]  # fmt: skip

# Answers that are not streamed, and statuses that are not 2xx

_WHOLE_FACTS: dict[str, Any] = _PLAIN_FACTS | {"events": 1, "deltas": 1}
WHOLE_CASES = [
    plain("whole chat answer", measured(encode(whole()), JSON_TYPE), **_WHOLE_FACTS),
    plain("whole, chunked", streamed(encode(whole()), media_type=JSON_TYPE), **_WHOLE_FACTS),
    plain("whole, close-delimited", head("content-type: application/json") + encode(whole()), **_WHOLE_FACTS,
          then="close",
          reusable=False),
    plain("whole, no content type",
          head("transfer-encoding: chunked") + chunk(b"\n ") + chunk(encode(whole())) + b"0\r\n\r\n",
          **_WHOLE_FACTS),
    Case(name="whole text completion", data=measured(encode(text("Once", finish="stop")), JSON_TYPE), deltas=1,
         text="Once",
         finish="stop", request_id="cmpl-5"),
    Case(name="whole, tool call", data=measured(encode(whole({"role": "assistant", "content": None, "tool_calls": [
        TOOL_HEAD]}, "tool_calls")), JSON_TYPE), deltas=1, finish="tool_calls", usage=(9, 2, None, None),
        kinds=ROLE | TOOL | FINISH | Kind.USAGE, request_id="chatcmpl-5"),
    Case(name="whole, empty content", data=measured(encode(whole({"content": ""})), JSON_TYPE), outcome="no_token",
         error="without a token", finish="stop", usage=(9, 2, None, None), request_id="chatcmpl-5"),
    Case(name="whole, an error in a 200", data=measured(encode(BUSY), JSON_TYPE), outcome="in_band_error",
         error="engine is busy"),
    Case(name="whole, not an answer", data=measured(b'{"object":"list","data":[]}', JSON_TYPE), outcome="no_token",
         error="without a token"),
    Case(name="whole, not JSON", data=measured(b"{nope", JSON_TYPE), outcome="protocol_error", error="not JSON",
         reusable=False),
    Case(name="whole, cut", data=measured(encode(whole()), JSON_TYPE)[:-9], then="close", outcome="truncated",
         error="inside the body (length)", reusable=False),
    failed("404", "404 Not Found", encode({"error": {"message": "no model `x`", "code": 404}}), JSON_TYPE,
           error="HTTP 404: no model `x`"),
    failed("401 with a string", "401 Unauthorized", b'{"error":"Unauthorized"}', JSON_TYPE,
           error="HTTP 401: Unauthorized"),
    failed("error as a list", "400 Bad Request", b'[{"error":{"message":"bad key"}}]', JSON_TYPE,
           error="HTTP 400: bad key"),
    failed("422 detail", "422 X", b'{"detail":[{"loc":["body"],"msg":"field required"}]}', JSON_TYPE,
           error="HTTP 422: field required"),
    failed("429 with Retry-After", "429 Too Many Requests", encode(LIMITED), JSON_TYPE, "retry-after: 5",
           error="HTTP 429 (retry-after: 5): slow down, please"),
    failed("500 with HTML", "500 Internal Server Error", b"<html><b>nginx</b></html>", "text/html; charset=utf-8",
           error="HTTP 500 with a body of text/html"),
    failed("500 with text", "500 Internal Server Error", b"Internal\r\nServer Error", "text/plain",
           error="HTTP 500: Internal Server Error"),
    failed("503, empty", "503 Service Unavailable", b"", "text/plain", error="HTTP 503 with an empty body"),
    failed("503 as an event", "503 Service Unavailable", event(BUSY), SSE_TYPE, error="HTTP 503: engine is busy"),
    failed("502, compressed", "502 Bad Gateway", b"\x1f\x8b", JSON_TYPE, "content-encoding: gzip",
           error="HTTP 502 with a body of gzip"),
    failed("302 elsewhere", "302 Found", b"", "text/html",
           "location: https://user:key@Login.example.com/in?token=secret",
           error="HTTP 302: redirect to login.example.com, not followed"),
    failed("307 nearby", "307 Temporary Redirect", b"", "text/html", "location: /v1/chat/completions/",
           error="HTTP 307: redirect to the same host"),
    failed("301 unreadable", "301 Moved", b"", "text/html", "location: http://[::1", error="an unreadable location"),
    Case(name="500, cut", data=measured(b'{"error":"boom"}', JSON_TYPE, "500 X")[:-1], then="close",
         outcome="http_error",
         error="HTTP 500: {\"error\":\"boom\"", status=500, reusable=False),
    Case(name="500, reset after the head", data=head("content-length: 9", status="500 X"), then="reset", status=500,
         outcome="http_error", error="HTTP 500 with an empty body", reusable=False),
]  # fmt: skip

CASES = [*HTTP_CASES, *SSE_CASES, *OPENAI_CASES, *WHOLE_CASES]

# The endpoint is an instrument that other tests rely on, so its own are on the wire: raw sockets that see
# every byte, and lower bounds on time only (a busy machine may make it late, nothing may make it early).

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.endpoint import FAULTS, Endpoint, Script, running
from loadshape.endpoint.answer import Answer, build_body, open_frames
from loadshape.endpoint.engine import Counts, PrefixCache
from loadshape.endpoint.script import BEYOND_ASCII, WORDS
from loadshape.errors import InputError, TargetError

QUICK = Script(ttft_s=0.01, itl_s=0.001)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 5}


# A client that hides nothing.


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)
    reads: list[bytes] = field(default_factory=list)
    arrivals_ns: list[int] = field(default_factory=list)
    ending: str = "whole"

    @property
    def events(self) -> list[Any]:
        text = b"".join(self.chunks).decode()
        data = [part.removeprefix("data:").strip() for part in text.split("\n\n") if part.startswith("data:")]
        return [part if part == "[DONE]" else json.loads(part) for part in data]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=10)


def send(client: socket.socket, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"host": "test", "content-length": str(len(data)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    client.sendall(f"{'POST' if data else 'GET'} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)


def receive(client: socket.socket) -> Reply:
    """Read one response to its end, whatever that is."""
    raw, reply = b"", Reply(0, {})
    try:
        while not _is_complete(raw):
            read = client.recv(1 << 20)
            if not read:
                reply.ending = "closed"
                break
            reply.reads.append(read)
            reply.arrivals_ns.append(time.monotonic_ns())
            raw += read
    except ConnectionResetError:
        reply.ending = "reset"
    except TimeoutError:
        reply.ending = "silent"
    head, _, reply.body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    reply.status = int(first.split()[1]) if first else 0
    reply.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    if reply.headers.get("transfer-encoding") == "chunked":
        reply.chunks, _ = _split_chunks(reply.body)
    return reply


def _is_complete(raw: bytes) -> bool:
    head, blank, body = raw.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length:
        return len(body) >= int(length.group(1))
    return bool(blank) and body.endswith(b"\r\n0\r\n\r\n") and _split_chunks(body)[1]


def _split_chunks(body: bytes) -> tuple[list[bytes], bool]:
    chunks: list[bytes] = []
    while (size := re.match(rb"([0-9a-f]+)\r\n", body)) is not None:
        start, count = size.end(), int(size.group(1), 16)
        if count == 0:
            return chunks, True
        if len(body) < start + count + 2:
            break
        assert body[start + count : start + count + 2] == b"\r\n"
        chunks.append(body[start : start + count])
        body = body[start + count + 2 :]
    return chunks, False


def talk(url: str, path: str, body: Any = b"", headers: dict[str, str] | None = None) -> Reply:
    with connect(url) as client:
        send(client, path, body, headers)
        return receive(client)


def ask(url: str, fault: str = "none", path: str = CHAT, **fields: Any) -> Reply:
    body = {**HELLO, "prompt": "Hello there", "stream": True, **fields}
    return talk(url, path, body, {"x-fault": fault, "x-request-id": f"test-{fault}"})


def gauge(url: str, name: str) -> float:
    text = talk(url, "/metrics").body.decode()
    found = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found.group(1))


def wait_until(holds: Any) -> None:
    deadline_s = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline_s, "did not happen within 5 s"
        time.sleep(0.005)


@contextmanager
def hosting(script: Script, **options: Any) -> Iterator[str]:
    """Run an endpoint in a thread, on asyncio's own loop: much quicker to start than a process."""
    with asyncio.Runner() as runner:
        loop, endpoint = runner.get_loop(), Endpoint(script, **options)
        runner.run(endpoint.start())
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield endpoint.url
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            runner.run(endpoint.stop())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(QUICK) as base:
        yield base


# The script.


def test_the_same_script_and_id_give_the_same_part() -> None:
    script = Script(ttft_jitter=0.5, itl_jitter=0.5, output_tokens=50, output_sigma=1.0, seed=3)
    first, again, other = script.draw("a"), script.draw("a"), script.draw("b")
    assert first == again != other
    assert list(islice(first.offsets_ns(), 20)) == list(islice(again.offsets_ns(), 20))
    assert list(islice(first.words(), 70)) == list(islice(again.words(), 70))


def test_offsets_are_planned_gaps_summed() -> None:
    script = Script(ttft_s=0.1, itl_s=0.01, prefill_s_per_token=0.001)
    assert list(islice(script.draw("a").offsets_ns(50), 3)) == [150_000_000, 160_000_000, 170_000_000]
    jittered = list(islice(Script(itl_s=0.01, itl_jitter=0.2).draw("a").offsets_ns(), 500))
    gaps = [after - before for before, after in pairwise(jittered)]
    assert 8_000_000 <= min(gaps) < 8_200_000
    assert 11_800_000 < max(gaps) <= 12_000_000


def test_any_stride_walks_through_all_words() -> None:
    for count in (len(WORDS), len(BEYOND_ASCII)):
        assert all(count % divisor for divisor in range(2, count))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"itl_s": -1}, "script: itl_s: Expected `float` >= 0.0; found -1"),
        ({"ttft_jitter": 1.0}, "script: ttft_jitter"),
        ({"max_running": 0}, "script: max_running"),
        ({"faults": ("429", "reste")}, "script: faults: unknown fault 'reste'; use one of none, 400"),
        ({"fault_rate": 1.5}, "script: fault_rate"),
        ({"context_tokens": "many"}, "script: context_tokens"),
    ],
)
def test_a_script_names_the_field_that_is_wrong(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Script(**fields)


def test_a_fault_rate_is_the_share_of_requests_that_meet_a_fault() -> None:
    script = Script(faults=("429", "reset"), fault_rate=0.25)
    drawn = [script.draw(f"r{number}").fault for number in range(2000)]
    assert set(drawn) == {"none", "429", "reset"}
    assert 0.20 < 1 - drawn.count("none") / len(drawn) < 0.30


# The forms of vLLM.

CHUNK = '{"id":"chatcmpl-test-none","object":"chat.completion.chunk","created":T,"model":"sim",'
CHAT_ROLE = (
    f'data: {CHUNK}"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,'
    '"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n'
)
CHAT_TOKEN = (
    f'data: {CHUNK}"choices":[{{"index":0,"delta":{{"content":"W"}},"logprobs":null,"finish_reason":null,'
    '"token_ids":null}]}\n\n'
)
CHAT_LAST = (
    f'data: {CHUNK}"choices":[{{"index":0,"delta":{{"content":"W"}},"logprobs":null,"finish_reason":"length",'
    '"stop_reason":null,"token_ids":null}]}\n\n'
)
CHAT_USAGE = (
    f'data: {CHUNK}"choices":[],"usage":{{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3,'
    '"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0},"completion_tokens_details":'
    '{"reasoning_tokens":0}},"system_fingerprint":"loadshape-simulated"}\n\n'
)
TEXT = 'data: {"id":"cmpl-test-none","object":"text_completion","created":T,"model":"sim","choices":'
TEXT_TOKEN = (
    f'{TEXT}[{{"index":0,"text":"W","logprobs":null,"finish_reason":null,"stop_reason":null,'
    '"prompt_token_ids":null,"token_ids":null}]}\n\n'
)
TEXT_LAST = (
    f'{TEXT}[{{"index":0,"text":"W","logprobs":null,"finish_reason":"length","stop_reason":null,'
    '"prompt_token_ids":null,"token_ids":null}],"system_fingerprint":"loadshape-simulated"}\n\n'
)


def mask(chunk: bytes) -> str:
    text = re.sub(r'"created":\d+', '"created":T', chunk.decode())
    return re.sub(r'("content"|"text"):" [^"]+"', r'\1:"W"', text)


def test_a_chat_stream_has_the_bytes_of_vllm(url: str) -> None:
    reply = ask(url, max_tokens=3, stream_options={"include_usage": True})
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["x-request-id"] == "test-none"
    done = "data: [DONE]\n\n"
    expected = [CHAT_ROLE, CHAT_TOKEN, CHAT_TOKEN, CHAT_LAST, CHAT_USAGE, done]
    assert [mask(chunk) for chunk in reply.chunks] == expected


def test_a_completions_stream_has_the_bytes_of_vllm(url: str) -> None:
    reply = ask(url, path=COMPLETIONS, max_tokens=2)
    assert [mask(chunk) for chunk in reply.chunks] == [TEXT_TOKEN, TEXT_LAST, "data: [DONE]\n\n"]


def test_continuous_usage_counts_up_from_the_role(url: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(url, max_tokens=3, stream_options=options).events
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [0, 1, 2, 3, 3]
    assert "prompt_tokens_details" not in events[0]["usage"]


def test_several_tokens_an_event_come_as_from_stream_interval(url: str) -> None:
    events = ask(url, path=COMPLETIONS, max_tokens=10, stream_interval=4).events[:-1]
    assert [len(event["choices"][0]["text"].split()) for event in events] == [1, 4, 4, 1]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_answer_that_is_not_streamed_says_the_same(url: str, path: str) -> None:
    streamed = ask(url, path=path).events
    body = ask(url, path=path, stream=False).json
    choice = body["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    pieces = [event["choices"][0] for event in streamed[:-1]]
    said = [piece["delta"]["content"] if path == CHAT else piece["text"] for piece in pieces]
    assert text == "".join(said)
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 5
    assert body["object"] == ("chat.completion" if path == CHAT else "text_completion")


def test_a_natural_length_ends_with_stop_in_an_event_of_its_own() -> None:
    script = Script(ttft_s=0, itl_s=0, output_tokens=4)
    with hosting(script) as base:
        events = ask(base, max_tokens=100, stream_options={"include_usage": True}).events
        assert events[-3]["choices"][0]["delta"] == {}
        assert events[-3]["choices"][0]["finish_reason"] == "stop"
        assert events[-2]["usage"]["completion_tokens"] == 4  # the stop is a token, as in vLLM
        assert len(events) == 1 + 3 + 1 + 1 + 1
        usage = ask(base, stream=False, max_tokens=9, ignore_eos=True).json["usage"]
        assert usage["completion_tokens"] == 9


def test_the_other_routes(url: str) -> None:
    models = talk(url, "/v1/models").json
    assert models["data"][0]["id"] == "sim"
    assert models["data"][0]["max_model_len"] == 32_768
    assert talk(url, "/version").json["version"].startswith("0.32.0+loadshape.")
    health = talk(url, "/health")
    assert (health.status, health.body) == (200, b"")
    assert talk(url, "/reset_prefix_cache", b"{}").json == {"success": True}


ERRORS = [
    (CHAT, {**HELLO, "model": "nope"}, 404, "NotFoundError", "The model `nope` does not exist."),
    (CHAT, b"{", 400, "Bad Request", "JSON decode error"),
    (CHAT, b"[1, 2]", 400, "Bad Request", "'loc': 'body'"),
    (CHAT, {"model": "sim"}, 400, "Bad Request", "'type': 'missing', 'loc': 'body.messages'"),
    (COMPLETIONS, {"model": "sim"}, 400, "Bad Request", "'type': 'missing', 'loc': 'body.prompt'"),
    (CHAT, {"messages": []}, 400, "BadRequestError", "empty conversation"),
    (CHAT, {**HELLO, "max_tokens": 0}, 400, "BadRequestError", "max_tokens must be at least 1, got 0."),
    (CHAT, {**HELLO, "max_tokens": "abc"}, 400, "Bad Request", "'loc': 'body.max_tokens'"),
    (CHAT, {**HELLO, "max_tokens": 40_000}, 400, "BadRequestError", "cannot be greater than max_model_len"),
    (COMPLETIONS, {"prompt": "x" * 131_072}, 400, "BadRequestError", "maximum context length is 32768"),
    (CHAT, {**HELLO, "min_tokens": 6}, 400, "BadRequestError", "min_tokens must be less than"),
    (CHAT, {**HELLO, "cache_salt": ""}, 400, "BadRequestError", "cache_salt"),
    (CHAT, {**HELLO, "stream_options": {}}, 400, "BadRequestError", "only be defined when `stream=True`"),
    (CHAT, {**HELLO, "n": 2}, 400, "BadRequestError", "one answer a request"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, 400, "BadRequestError", "one prompt a request"),
]


@pytest.mark.parametrize(("path", "body", "status", "kind", "message"), ERRORS)
def test_errors_are_those_of_vllm(url: str, path: str, body: Any, status: int, kind: str, message: str) -> None:
    reply = talk(url, path, body)
    error = reply.json["error"]
    assert (reply.status, error["type"], error["code"]) == (status, kind, status)
    assert message in error["message"]


def test_unknown_routes_methods_and_overrides(url: str) -> None:
    assert talk(url, "/v1/nope", HELLO).json == {"detail": "Not Found"}
    wrong = talk(url, CHAT)
    assert (wrong.status, wrong.json) == (405, {"detail": "Method Not Allowed"})
    assert "unknown fault 'none of them'" in ask(url, "none of them").json["error"]["message"]
    assert "x-itl-us" in talk(url, CHAT, HELLO, {"x-itl-us": "-5"}).json["error"]["message"]


def test_unknown_fields_and_long_wishes_are_let_pass(url: str) -> None:
    assert ask(url, stream=False, foo=1, max_completion_tokens=2).json["usage"]["completion_tokens"] == 2
    cut = ask(url, stream=False, path=COMPLETIONS, prompt="x" * 131_060, max_tokens=500).json
    assert cut["usage"]["total_tokens"] == 32_768


def test_a_key_guards_v1_and_nothing_else() -> None:
    with hosting(QUICK, api_key="secret") as base:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            reply = talk(base, CHAT, HELLO, headers)
            assert (reply.status, reply.json) == (401, {"error": "Unauthorized"})
        assert talk(base, "/v1/models").status == 401
        assert talk(base, "/metrics").status == talk(base, "/health").status == 200
        assert talk(base, CHAT, HELLO, {"authorization": "Bearer secret"}).status == 200


def test_aiohttp_agrees_and_reuses_its_connection(url: str) -> None:
    async def main() -> list[str]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            texts = []
            for _ in range(3):
                async with session.post(url + "/chat/completions", json={**HELLO, "stream": True}) as response:
                    texts.append(await response.text())
            return texts

    assert all(text.endswith("data: [DONE]\n\n") for text in asyncio.run(main()))


# Time: never early.


def test_no_event_is_early(url: str) -> None:
    ttft_ns, itl_ns, tokens = 30_000_000, 7_000_000, 8
    headers = {"x-ttft-us": "30000", "x-itl-us": "7000"}
    with connect(url) as client:
        sent_ns = time.monotonic_ns()
        send(client, COMPLETIONS, {"prompt": "x", "max_tokens": tokens, "stream": True}, headers)
        reply = receive(client)
    seen: list[int] = []
    text = b""
    for read, at_ns in zip(reply.reads, reply.arrivals_ns, strict=True):
        text += read
        seen += [at_ns] * (text.count(b'"index":0') - len(seen))
    assert len(seen) == tokens
    assert all(at_ns >= sent_ns + ttft_ns + token * itl_ns for token, at_ns in enumerate(seen))
    assert reply.arrivals_ns[0] < seen[0], "the head does not wait for the first token"


def test_the_truth_log_says_what_was_sent_and_when(tmp_path: Path) -> None:
    truth = tmp_path / "truth.arrows"
    with hosting(Script(ttft_s=0.02, itl_s=0.003), truth=truth) as base:
        before_ns = time.monotonic_ns()
        reply = ask(base, max_tokens=6)
        after_ns = time.monotonic_ns()
        ask(base, stream=False)
    rows = pa.ipc.open_stream(truth).read_all().to_pylist()
    assert {row["request"] for row in rows} == {"test-none"}
    assert [row["write"] for row in rows] == list(range(1 + 6 + 1))
    framed = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in reply.chunks]
    assert [row["bytes"] for row in rows] == [len(frame) for frame in framed]
    assert [row["tokens"] for row in rows] == [0, 1, 1, 1, 1, 1, 1, 0]
    received_ns = rows[0]["received_ns"]
    assert before_ns < received_ns < rows[0]["write_ns"] < after_ns
    tokens = [0, 0, 1, 2, 3, 4, 5, 5]
    planned = [received_ns + 20_000_000 + token * 3_000_000 for token in tokens]
    assert [row["due_ns"] for row in rows] == planned
    assert all(row["write_ns"] >= row["due_ns"] for row in rows)


def test_in_step_mode_all_streams_emit_on_common_ticks(tmp_path: Path) -> None:
    truth = tmp_path / "truth.arrows"
    with hosting(Script(ttft_s=0.01, itl_s=0.004, step_s=0.01), truth=truth) as base:
        ask(base)
        ask(base, path=COMPLETIONS)
    table = pa.ipc.open_stream(truth).read_all()
    assert all(due_ns % 10_000_000 == 0 for due_ns in table["due_ns"].to_pylist())
    assert all(late >= 0 for late in (table["write_ns"].to_numpy() - table["due_ns"].to_numpy()))


# Capacity, cache, counters.


def test_over_capacity_requests_wait_in_order_and_a_lost_client_frees_its_slot() -> None:
    with hosting(Script(ttft_s=0.02, itl_s=30.0, max_running=1)) as base, connect(base) as first:
        send(first, CHAT, {**HELLO, "stream": True})
        wait_until(lambda: gauge(base, "num_requests_running") == 1)
        with connect(base) as second, connect(base) as gone:
            send(second, CHAT, {**HELLO, "max_tokens": 1, "stream": True})
            send(gone, CHAT, {**HELLO, "stream": True})
            wait_until(lambda: gauge(base, "num_requests_waiting") == 2)
            gone.close()
            wait_until(lambda: gauge(base, "num_requests_waiting") == 1)
            freed_ns = time.monotonic_ns()
            first.close()
            reply = receive(second)
        assert reply.events[-1] == "[DONE]"
        assert reply.arrivals_ns[-1] - freed_ns >= 20_000_000, "its time to first token begins with the slot"
        wait_until(lambda: gauge(base, "num_requests_running") == 0)


def test_a_second_identical_prompt_is_cached_up_to_its_last_block() -> None:
    prompt = "tell me about rivers " * 40  # 840 bytes: 210 tokens, 13 full blocks of 16
    with hosting(QUICK) as base:

        def cached_tokens(**fields: Any) -> int:
            usage = ask(base, path=COMPLETIONS, stream=False, prompt=prompt, **fields).json["usage"]
            assert usage["prompt_tokens"] == 210
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert [cached_tokens(), cached_tokens()] == [0, 208]
        assert [cached_tokens(cache_salt="a"), cached_tokens(cache_salt="a")] == [0, 208]
        assert gauge(base, "prefix_cache_queries_total") == 4 * 210
        assert gauge(base, "prefix_cache_hits_total") == 2 * 208
        talk(base, "/reset_prefix_cache", b"{}")
        assert cached_tokens() == 0
        assert gauge(base, "prompt_tokens_total") == 5 * 210
        assert gauge(base, "generation_tokens_total") == 5 * 5


def test_the_cache_shares_prefixes_and_forgets_the_ends_first() -> None:
    cache = PrefixCache(4, Counts())
    stem = b"s" * 128  # two blocks
    assert cache.admit(stem + b"a" * 65) == (0, 48)
    assert cache.admit(stem + b"b" * 65) == (32, 16)
    assert cache.usage == 1.0
    assert cache.admit(b"c" * 65) == (0, 16)  # pushes out the oldest end
    assert cache.admit(stem + b"a" * 65) == (32, 16)
    assert cache.admit(b"d" * 64) == (0, 16)
    assert cache.admit(b"d" * 64) == (0, 0)  # the last token of a prompt is always computed


def test_finished_requests_are_counted_by_reason() -> None:
    with hosting(QUICK) as base:
        for fault in ("none", "abort", "error_event"):
            ask(base, fault)
        text = talk(base, "/metrics").body.decode()
    counts = dict(re.findall(r'finished_reason="(\w+)"} (\d+)', text))
    assert counts == {"stop": "0", "length": "1", "abort": "1", "error": "1"}


# Faults: every one, on the wire.


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_status_faults(url: str, status: int) -> None:
    reply = ask(url, str(status))
    assert reply.status == reply.json["error"]["code"] == status
    assert ("retry-after" in reply.headers) == (status == 429)


def test_a_page_instead_of_an_answer(url: str) -> None:
    reply = ask(url, "html200")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_a_false_claim_of_gzip(url: str) -> None:
    reply = ask(url, "gzip_lie")
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.events[-1] == "[DONE]"


def test_a_slow_head(url: str) -> None:
    with connect(url) as client:
        sent_ns = time.monotonic_ns()
        send(client, CHAT, {**HELLO, "stream": True}, {"x-fault": "slow_head", "x-ttft-us": "40000"})
        assert receive(client).arrivals_ns[0] - sent_ns >= 38_000_000  # asyncio.sleep may end 1 ms early


@pytest.mark.parametrize(
    ("fault", "ending", "last_is_whole"),
    [("reset", "reset", True), ("truncate", "closed", False), ("cutoff", "whole", True)],
)
def test_streams_that_end_before_their_end(url: str, fault: str, ending: str, last_is_whole: bool) -> None:
    reply = ask(url, fault, max_tokens=8)
    assert (reply.status, reply.ending) == (200, ending)
    events = reply.events
    assert 2 <= len(events) < 9
    assert "[DONE]" not in events
    assert all(event["choices"][0]["finish_reason"] is None for event in events)
    left = reply.body[sum(len(b"%x" % len(chunk)) + 4 + len(chunk) for chunk in reply.chunks) :]
    assert (left in (b"", b"0\r\n\r\n")) == last_is_whole


def test_a_stall_holds_its_slot_until_the_client_goes(url: str) -> None:
    with connect(url) as client:
        client.settimeout(0.3)
        send(client, CHAT, {**HELLO, "stream": True}, {"x-fault": "stall"})
        reply = receive(client)
        assert reply.ending == "silent"
        assert reply.chunks
        assert gauge(url, "num_requests_running") == 1
    wait_until(lambda: gauge(url, "num_requests_running") == 0)


def test_an_error_inside_the_stream(url: str) -> None:
    reply = ask(url, "errevent")
    assert reply.events[-1] == "[DONE]"
    assert reply.events[-2]["error"]["code"] == 500
    assert reply.chunks[-2].startswith(b'data: {"error": {"message": "EngineCore')  # blanks, as in vLLM


def test_events_that_are_missing_or_empty(url: str) -> None:
    assert ask(url, "nodone").events[-1]["choices"][0]["finish_reason"] == "length"
    assert ask(url, "empty").events == ["[DONE]"]
    role, finish, done = ask(url, "role_only").events
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert finish["choices"][0]["delta"] == {}
    assert (finish["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")
    aborted = ask(url, "abort").events
    assert (aborted[-2]["choices"][0]["finish_reason"], aborted[-1]) == ("abort", "[DONE]")


def test_garbage_in_the_midst(url: str) -> None:
    reply = ask(url, "garbage")
    bad = [chunk for chunk in reply.chunks if b"\xff<<not json" in chunk]
    assert len(bad) == 1
    assert reply.chunks[-1] == b"data: [DONE]\n\n"


def test_other_spellings_of_the_same_events(url: str) -> None:
    crlf = ask(url, "crlf").chunks
    assert all(chunk.endswith(b"\r\n\r\n") and b"\n\n" not in chunk for chunk in crlf)
    no_space = ask(url, "no_space").chunks
    assert all(chunk.startswith((b"data:{", b"data:[")) for chunk in no_space)
    comment = ask(url, "comment").chunks
    assert comment[::2] == [b": keep-alive\n\n"] * 7
    coalesced = ask(url, "coalesce")
    assert [chunk.count(b"data: ") for chunk in coalesced.chunks] == [4, 3]
    assert len(coalesced.events) == 7


def test_split_events_are_cut_inside_characters(url: str) -> None:
    split = ask(url, "split")
    assert len(split.chunks) == 7
    assert len(split.reads) > len(split.chunks), "several reads an event"  # how many depends on our own speed
    hsplit = ask(url, "hsplit")
    assert len(hsplit.chunks) > 14
    assert any(chunk[-1] >= 0xC0 for chunk in hsplit.chunks), "a chunk that ends in a leading byte"
    assert [event["choices"][0]["delta"] for event in hsplit.events[:-1]][1]["content"] in BEYOND_ASCII


def test_a_huge_event_arrives_whole_at_a_slow_reader(url: str) -> None:
    with connect(url) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        send(client, CHAT, {**HELLO, "stream": True}, {"x-fault": "huge"})
        time.sleep(0.1)
        reply = receive(client)
    assert max(len(chunk) for chunk in reply.chunks) > 999_000
    assert len(reply.events) == 7


def test_reasoning_and_tool_calls(url: str) -> None:
    for field_name in ("reasoning", "reasoning_content"):
        events = ask(url, field_name, max_tokens=6, stream_options={"include_usage": True}).events
        deltas = [list(event["choices"][0]["delta"]) for event in events[:-2]]
        assert deltas == [["role", "content"]] + [[field_name]] * 3 + [["content"]] * 3
        assert events[-2]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    events = ask(url, "tool_calls", max_tokens=6).events
    calls = [event["choices"][0]["delta"]["tool_calls"][0] for event in events[1:-2]]
    assert calls[0]["function"] == {"name": "look_up"}
    arguments = "".join(call["function"]["arguments"] for call in calls[1:])
    assert list(json.loads(arguments)) == ["word"]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    message = ask(url, "tool_calls", stream=False, max_tokens=6).json["choices"][0]["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == json.loads(arguments)


def test_no_fault_is_without_a_test_or_a_line_in_the_docs() -> None:
    here = Path(__file__)
    tests, docs = here.read_text(), (here.parent.parent / "docs" / "endpoint.md").read_text()
    for fault, line in FAULTS.items():
        assert f'"{fault}"' in tests or fault.isdigit(), fault
        assert f"| `{fault}` | {line} |" in docs


# Life and death.


def test_importing_runs_nothing_and_sigterm_ends_serve() -> None:
    code = "import loadshape.endpoint as e; print('imported', flush=True); e.serve(e.Script())"
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "imported\n"
        base = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", base)
        with connect(base) as client:
            send(client, CHAT, {**HELLO, "max_tokens": 1000, "stream": True})
            client.recv(1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0


def test_running_ends_its_process(url: str) -> None:
    with running(QUICK) as base:
        assert talk(base, "/health").status == 200
    with pytest.raises(ConnectionRefusedError):
        connect(base)


def test_running_says_why_it_did_not_start(url: str) -> None:
    port = urlsplit(url).port
    with pytest.raises(TargetError, match=f"cannot open 127.0.0.1:{port}"), running(QUICK, port=port):
        pass


def test_an_endpoint_that_cannot_write_its_truth_says_so(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "truth.arrows"
    with pytest.raises(TargetError, match=f"cannot open {missing}: No such file"):
        asyncio.run(Endpoint(QUICK, truth=missing).start())
    with pytest.raises(TargetError, match="expected 0 to 65535, found 70000"):
        Endpoint(QUICK, port=70_000)


def test_an_endpoint_lives_inside_a_loop_and_stops_with_streams_in_progress(tmp_path: Path) -> None:
    async def main() -> bytes:
        endpoint = Endpoint(Script(ttft_s=0, itl_s=10), model="inside", truth=tmp_path / "truth.arrows")
        await endpoint.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(endpoint.url).port)
        body = json.dumps({"prompt": "x", "stream": True}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        text = await reader.readuntil(b'"index":0')
        await endpoint.stop()
        text += await reader.read()
        writer.close()
        await writer.wait_closed()
        return text

    text = asyncio.run(main())
    assert b'"model":"inside"' in text
    assert not text.endswith(b"0\r\n\r\n")
    assert pa.ipc.open_stream(tmp_path / "truth.arrows").read_all().num_rows == 1


# Properties.


@given(
    tokens=st.integers(1, 40),
    per_event=st.integers(1, 7),
    is_chat=st.booleans(),
    is_stop=st.booleans(),
    name=st.text(max_size=8),
)
def test_frames_and_body_tell_the_same_story(
    tokens: int, per_event: int, is_chat: bool, is_stop: bool, name: str
) -> None:
    part = Script(itl_jitter=0.9).draw(name)
    answer = Answer(
        identity=name,
        created=1,
        model=name,
        is_chat=is_chat,
        prompt_tokens=7,
        cached_tokens=0,
        written_tokens=0,
        completion_tokens=tokens + is_stop,
        finish="stop" if is_stop else "length",
        tokens_per_event=per_event,
        has_usage=True,
    )
    frames = list(open_frames(answer, part))
    assert [frame.at_ns for frame in frames] == sorted(frame.at_ns for frame in frames)
    assert sum(frame.tokens for frame in frames) == answer.completion_tokens
    chunks, _ = _split_chunks(b"".join(frame.data for frame in frames))
    assert len(chunks) == len(frames)
    events = [msgspec.json.decode(chunk[6:]) for chunk in chunks[:-1]]
    assert {event["id"] for event in events} == {name}
    body = build_body(answer, part)
    choices = [event["choices"][0] for event in events[:-1]]
    if is_chat:
        said = "".join(choice["delta"].get("content", "") for choice in choices)
        assert said == body["choices"][0]["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == body["choices"][0]["text"]
    assert events[-1]["usage"] == body["usage"]


@given(fault=st.sampled_from(sorted(FAULTS)), tokens=st.integers(1, 12), name=st.text(max_size=4))
def test_no_fault_breaks_the_endpoint_itself(fault: str, tokens: int, name: str) -> None:
    part = Script().draw(name, {"x-fault": fault})
    answer = Answer(
        identity="a",
        created=1,
        model="m",
        is_chat=True,
        prompt_tokens=1,
        cached_tokens=0,
        written_tokens=0,
        completion_tokens=tokens,
        finish="length",
    )
    frames = list(open_frames(answer, part))
    assert frames
    assert build_body(answer, part)["usage"]["completion_tokens"] == tokens

# The bytes of a request, read back by an HTTP parser and a JSON parser that are not ours.

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import InputError, TargetError, TraceError
from loadshape.replayer import body
from loadshape.replayer.body import BodyBuilder, name_request
from loadshape.replayer.isolation import choose_isolation
from loadshape.replayer.job import Settings
from loadshape.secret import Secret
from loadshape.target import Target
from loadshape.trace import Trace
from loadshape.version import __version__
from traces import ask, make_trace

URL = "http://192.0.2.7:8000/v1"


@dataclass
class Sent:
    """What a server would see."""

    method: str = ""
    path: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode(), value.decode("latin-1")))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def find(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


def build(trace: Trace, target: Target | None = None, key: str | None = None, **extra: Any) -> BodyBuilder:
    secret = None if key is None else Secret(key)
    targets, settings = [target or Target(URL, model="tiny")], Settings(body=extra, isolation="none")
    return BodyBuilder(trace, targets, run="5eed0001", keys=[secret], settings=settings)


def parse(builder: BodyBuilder, row: int = 0) -> Sent:
    prepared = builder.prepare(row)
    raw = b"".join(prepared.parts)
    assert prepared.size_bytes == len(raw)
    sent = Sent()
    parser = httptools.HttpRequestParser(sent)
    parser.feed_data(raw)
    sent.method = parser.get_method().decode()
    assert sent.complete
    assert int(sent.find("content-length")[0]) == len(sent.body)
    return sent


def send(row: dict[str, Any], target: Target | None = None, key: str | None = None, **extra: Any) -> Sent:
    return parse(build(make_trace(row), target, key, **extra))


def test_a_chat_request_whole() -> None:
    messages = (("system", ("Be kind.",)), ("user", ("Hello ", "there")))
    sent = send(ask(messages=messages, output_tokens=64))
    assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
    assert sent.json == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello there"}],
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert sent.headers == [
        ("Host", "192.0.2.7:8000"),
        ("User-Agent", f"loadshape/{__version__}"),
        ("Accept", "text/event-stream"),
        ("Accept-Encoding", "identity"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(sent.body))),
        ("X-Request-Id", "ls-5eed0001-0"),
    ]


def test_a_completions_request_joins_all_its_texts() -> None:
    sent = send(ask(api="completions", messages=(("user", ("Once ", "upon")), ("user", (" a time",)))))
    assert sent.path == "/v1/completions"
    assert sent.json["prompt"] == "Once upon a time"
    assert "messages" not in sent.json


def test_token_ids_go_as_numbers() -> None:
    sent = send(ask(api="completions", messages=(("user", (("token_ids", [1, 2]), ("token_ids", [99_999]))),)))
    assert sent.json["prompt"] == [1, 2, 99_999]


def test_content_parts() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    parts = ("Look: ", ("image", "data:image/png;base64,AAAA"), ("json", audio))
    assert send(ask(messages=(("user", parts),))).json["messages"][0]["content"] == [
        {"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        audio,
    ]


@pytest.mark.parametrize("messages", [(), (("user", ()),)])
def test_nothing_to_say_is_still_a_request(messages: Any) -> None:
    expected = [{"role": role, "content": ""} for role, _ in messages]
    assert send(ask(messages=messages)).json["messages"] == expected
    assert send(ask(messages=messages, api="completions")).json["prompt"] == ""


@pytest.mark.parametrize(
    ("row", "target", "extra", "expected"),
    [
        ({}, "tiny", {}, {"model": "tiny", "max_tokens": 4}),
        ({"model": "other"}, "tiny", {}, {"model": "other"}),
        ({"model": "other"}, None, {}, {"model": "other"}),
        ({"params": {"max_tokens": 9, "temperature": 0}}, "tiny", {}, {"max_tokens": 9, "temperature": 0}),
        ({"params": {"model": "mine", "stream": False}}, "tiny", {}, {"model": "mine", "stream": False}),
        ({}, "tiny", {"ignore_eos": True, "top_k": 7}, {"ignore_eos": True, "top_k": 7}),
        ({"adapter": "lora"}, "tiny", {}, {"model": "lora"}),
        ({"adapter": "lora", "model": "other"}, "tiny", {}, {"model": "lora"}),
        (
            {"params": {"response_format": {"type": "json_object"}}},
            None,
            {},
            {"response_format": {"type": "json_object"}},
        ),
        ({"params": {"ignore_eos": False}}, "tiny", {"ignore_eos": True}, {"ignore_eos": False}),
        ({"params": {"tools": [{"type": "function"}]}}, "tiny", {}, {"tools": [{"type": "function"}]}),
    ],
)
def test_who_decides_a_field(row: Any, target: str | None, extra: Any, expected: dict[str, Any]) -> None:
    found = send(ask(**row), Target(URL, model=target), **extra).json
    assert {name: found.get(name) for name in expected} == expected


def test_a_request_that_streams_nothing_has_no_stream_options() -> None:
    assert send(ask(params={"stream": False})).json.keys() == {"model", "messages", "max_tokens", "stream"}


def test_without_a_model_none_is_named() -> None:
    assert "model" not in send(ask(), Target(URL)).json


@pytest.mark.parametrize(
    "text",
    [
        '"quoted" \\ back',
        "line\nbreak\r\n\ttab",
        "\x00\x01\x1f\x7f",
        "日本 🙂 naïve",
        "\u2028\u2029\ufeff",
        "</script>",
        "",
    ],
)
def test_text_survives(text: str) -> None:
    assert send(ask(messages=(("user", (text,)),))).json["messages"][0]["content"] == text
    assert send(ask(messages=(("user", (text, text)),), api="completions")).json["prompt"] == text * 2


def test_a_lone_surrogate_cannot_be_in_a_trace() -> None:
    with pytest.raises(UnicodeEncodeError):
        make_trace(ask(messages=(("user", ("\ud800",)),)))


def test_a_prompt_of_200_kb_is_shared_not_copied() -> None:
    prompt = "word " * 40_000
    builder = build(make_trace(*(ask(messages=(("system", (prompt,)), ("user", (f"{at}",)))) for at in range(3))))
    first, second = builder.prepare(0), builder.prepare(1)
    assert any(part is other for part in first.parts for other in second.parts if len(part) > 100_000)
    for row in range(3):
        messages = parse(builder, row).json["messages"]
        assert [message["content"] for message in messages] == [prompt, f"{row}"]


def test_request_ids_are_short_and_tell_the_run() -> None:
    assert name_request("5eed0001", 0) == "ls-5eed0001-0"
    assert len(name_request("ffffffff", 2**32 - 1)) <= 40


# Headers


def test_the_key_is_in_the_authorization_and_nowhere_else() -> None:
    builder = build(make_trace(ask()), key="planted-key-0001")
    sent = parse(builder)
    assert sent.find("authorization") == ["Bearer planted-key-0001"]
    assert b"".join(builder.prepare(0).parts).count(b"planted-key-0001") == 1
    assert "planted" not in repr(builder) + repr(Target(URL, key="env:KEY"))


def test_each_target_has_its_own_head_key_and_model() -> None:
    targets = [Target("http://a.example.com/v1", model="one"), Target("http://b.example.com:81/v2", model="two")]
    builder = BodyBuilder(make_trace(ask()), targets, run="5eed0001", keys=[Secret("k-a"), None], settings=Settings())
    raw = [b"".join(builder.prepare(0, target).parts) for target in range(2)]
    for told in (b"POST /v1/chat", b"Host: a.example.com", b"Bearer k-a", b'"model":"one"'):
        assert (told in raw[0], told in raw[1]) == (True, False)
    for told in (b"POST /v2/chat", b"Host: b.example.com:81\r\n", b'"model":"two"'):
        assert (told in raw[0], told in raw[1]) == (False, True)


def test_a_trace_for_another_api_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(body.PATHS, "completions")
    with pytest.raises(TraceError, match=r"requests\.api: expected one of chat, found 'completions'"):
        build(make_trace(ask(), ask(api="completions")))


def test_own_headers_are_sent_and_replace_ours() -> None:
    sent = send(ask(), Target(URL, headers={"X-Tenant": "a b", "user-agent": "mine"}))
    assert [sent.find(name) for name in ("x-tenant", "user-agent")] == [["a b"], ["mine"]]


def test_an_own_authorization_replaces_the_key() -> None:
    sent = send(ask(), Target(URL, headers={"authorization": "Basic eA=="}), key="planted-key-0001")
    assert sent.find("authorization") == ["Basic eA=="]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "b\r\nX-Evil: 1"),
        ("X-A\r\nX-Evil", "1"),
        ("X-A", "b\n"),
        ("X-A", "b\0"),
        ("X A", "b"),
        ("X-A:", "b"),
        ("", "b"),
        ("X-Ä", "b"),
        ("X-A", "€"),
        ("content-length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("x-request-id", "mine"),
        ("Host", "model.example.com"),
    ],
)
def test_headers_that_would_break_the_request_are_refused(name: str, value: str) -> None:
    with pytest.raises(TargetError, match=r"target\.headers: "):
        Target(URL, headers={name: value})


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://[::1]:8000/v1", "[::1]:8000", "/v1/chat/completions"),
        ("http://localhost", "localhost:80", "/chat/completions"),
        ("http://localhost:8000/a/b/", "localhost:8000", "/a/b/chat/completions"),
        ("https://localhost/v1", "localhost:443", "/v1/chat/completions"),
        ("http://localhost/a%20b", "localhost:80", "/a%20b/chat/completions"),
    ],
)
def test_host_and_path(url: str, host: str, path: str) -> None:
    sent = send(ask(), Target(url))
    assert (sent.find("host"), sent.path) == ([host], path)


# What no request can be made of is refused before the first packet: a builder is made before the start.


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"params": [1, 2]}, "params in segment 1 are no JSON object"),
        ({"params": "not an object"}, "params in segment 1 are no JSON object"),
        ({"messages": (("user", (("token_ids", [1]),)),)}, "'token_ids' .segment 1. cannot be part of a chat request"),
        ({"messages": (("user", (("json", [1]),)),)}, "segment 1 is no JSON object"),
        ({"messages": (("user", (("json", "{"),)),)}, "segment 1 is no JSON object"),
        ({"messages": (("assistant", (("answer", [0]),)),)}, "request 1 is turn 0 of its session and quotes .* turn 0"),
        ({"messages": (("assistant", (("answer", []),)),)}, r"answer 1: expected .turn., found \[\]"),
        ({"messages": (("user", (("slot", ["a", "b"]),)),)}, "slot 1: expected 16 different words, found 2"),
        ({"messages": (("user", (("slot", "abc"),)),)}, "slot 1: expected a JSON array of 16 words"),
        ({"tenant": "a\r\nb"}, "requests.tenant: the value of 'X-Tenant' contains a line break"),
        (
            {"api": "completions", "messages": (("user", (("token_ids", [1]), "text")),)},
            "'text', 'token_ids'. cannot make one completions prompt .request 1.",
        ),
        (
            {"api": "completions", "messages": (("user", (("image", "data:,"),)),)},
            "'image' .segment 1. cannot be part of a completions request; use .'answer', 'slot', 'text', 'token_ids'.",
        ),
    ],
)
def test_a_trace_that_cannot_be_sent_is_refused_as_a_whole(row: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(make_trace(ask(), ask(9000, **row)))


# Tenants, and what one run says otherwise than the next

WORDS = [f" w{digit:x}" for digit in range(16)]
SLOTTED = make_trace(
    *(ask(messages=(("system", (("slot", WORDS), "Be kind.")), ("user", (f"{at}",)))) for at in (0, 1))
)


def build_for(trace: Trace, run: str = "5eed0001", target: Target | None = None, **settings: Any) -> BodyBuilder:
    given = {"isolation": "none"} | settings
    return BodyBuilder(trace, [target or Target(URL, "tiny")], run=run, keys=[None], settings=Settings(**given))


def test_a_tenant_goes_into_the_header_of_the_settings() -> None:
    trace = make_trace(ask(tenant="blue team"), ask())
    assert parse(build_for(trace)).find("x-tenant") == ["blue team"]
    assert parse(build_for(trace), 1).find("x-tenant") == []
    other = parse(build_for(trace, tenant_header="X-Org"))
    assert (other.find("x-org"), other.find("x-tenant")) == (["blue team"], [])
    assert parse(build_for(trace, tenant_header="")).find("x-tenant") == []


def test_a_tenant_whose_header_is_taken_is_refused() -> None:
    target = Target(URL, headers={"x-tenant": "all"})
    with pytest.raises(InputError, match="tenant_header: 'X-Tenant' is among the target's own headers"):
        build_for(make_trace(ask(tenant="blue")), target=target)
    assert parse(build_for(make_trace(ask()), target=target)).find("x-tenant") == ["all"]


def test_a_salt_is_the_run_and_whoever_writes_one_means_it() -> None:
    trace = make_trace(ask(), ask(params={"cache_salt": "mine"}))
    salted = build_for(trace, isolation="cache_salt")
    assert [parse(salted, row).json["cache_salt"] for row in (0, 1)] == ["5eed0001", "mine"]
    assert "cache_salt" not in parse(build_for(trace)).json


@pytest.mark.parametrize(
    ("isolation", "told"), [("slot", " w5 we we wd w0 w0 w0 w1"), ("none", " w0" * 8), ("cache_salt", " w0" * 8)]
)
def test_a_slot_is_filled_once_a_run(isolation: str, told: str) -> None:
    builder = build_for(SLOTTED, isolation=isolation)
    for row in (0, 1):
        assert parse(builder, row).json["messages"][0]["content"] == f"{told}Be kind."
    other = parse(build_for(SLOTTED, run="00000000", isolation=isolation)).json["messages"][0]["content"]
    assert (other != f"{told}Be kind.") is (isolation == "slot")


def test_a_slot_may_stand_among_parts_and_in_a_prompt() -> None:
    parts = (("slot", WORDS), "Look: ", ("image", "data:,"))
    content = parse(build_for(make_trace(ask(messages=(("user", parts),)))))
    assert content.json["messages"][0]["content"][0] == {"type": "text", "text": " w0" * 8 + "Look: "}
    prompt = parse(build_for(make_trace(ask(api="completions", messages=(("user", (("slot", WORDS), "Once")),)))))
    assert prompt.json["prompt"] == " w0" * 8 + "Once"


@pytest.mark.parametrize(
    ("asked", "trace", "owners", "found"),
    [
        ("auto", SLOTTED, ["vllm"], "cache_salt"),
        ("auto", SLOTTED, ["vllm", "sglang"], "slot"),
        ("auto", SLOTTED, [], "slot"),
        ("auto", make_trace(ask()), ["sglang"], "none"),
        ("auto", make_trace(ask()), ["vllm", "vllm"], "cache_salt"),
        ("auto", make_trace(ask()), [], "none"),
        ("cache_salt", SLOTTED, ["sglang"], "cache_salt"),
        ("none", SLOTTED, ["vllm"], "none"),
        ("slot", SLOTTED, ["vllm"], "slot"),
    ],
)
def test_what_keeps_runs_apart(asked: str, trace: Trace, owners: list[str], found: str) -> None:
    servers = [{"models": {"data": [{"id": "tiny", "owned_by": owner}]}} for owner in owners]
    assert choose_isolation(asked, trace, servers) == found


@pytest.mark.parametrize("page", [None, [], {}, {"data": None}, {"data": ["x"]}, {"data": [{}]}])
def test_a_server_that_does_not_say_is_no_vllm(page: Any) -> None:
    assert choose_isolation("auto", make_trace(ask()), [{"models": page}]) == "none"


def test_a_slot_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r'isolation: slot needs a trace with a reserved slot.*isolation = "slot"'):
        choose_isolation("slot", make_trace(ask()), [])


# Properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.lists(TEXT, max_size=3)), max_size=4
)


@given(st.lists(st.tuples(MESSAGES, st.sampled_from(["chat", "completions"])), min_size=1, max_size=5))
def test_any_trace_arrives_as_it_is(requests: list[tuple[Any, str]]) -> None:
    builder = build(make_trace(*(ask(messages=messages, api=api) for messages, api in requests)))
    for row, (messages, api) in enumerate(requests):
        found = parse(builder, row).json
        if api == "chat":
            assert found["messages"] == [{"role": role, "content": "".join(parts)} for role, parts in messages]
        else:
            assert found["prompt"] == "".join(part for _, parts in messages for part in parts)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.integers() | TEXT, max_size=5))
def test_any_params_arrive_as_they_are(params: dict[str, Any]) -> None:
    found = send(ask(params=params)).json
    assert {name: found[name] for name in params} == params

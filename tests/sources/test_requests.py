# Every format of request traces: what a row of it becomes, in which unit, and when a file is not guessed.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadshape.errors import SourceError
from loadshape.sources.entry import Entry, Fault, to_count, to_time_ns
from loadshape.sources.layout import parse_columns
from loadshape.sources.requests import READERS, guess_format, open_entries

S = 1_000_000_000
MS = 1_000_000

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
AZURE += "2023-11-16 18:17:04.0319600+00:00,3180,8\r\n2023-11-16T20:17:05.0000001+02:00,12,0"
BURST_1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,Conversation log\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_3 += "19440110.0,s-1,43,GPT-4,906,446,1352,Conversation log\n19440161.5,,2,ChatGPT,36,0,36,API log\n"


def lines(*rows: dict[str, Any]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def hashed(stamp: Any, names: Any, **more: Any) -> dict[str, Any]:
    return {"timestamp": stamp, "input_length": 600, "output_length": 5, "hash_ids": names, **more}


SEGMENTS = {"sys_prompt": [7], "passages_ids": [2, 3], "history": [], "web_search": [], "user_input": [9]}
SPAN = {
    "startTimeUnixNano": "1700000000000000007",
    "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "3"}},
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "c-1"}},
    ],
}
OTLP = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN, {"startTimeUnixNano": "1", "attributes": []}]}]}]}
FLAT_SPAN = {
    "name": "chat tiny",
    "start_time": "2026-01-02T03:04:05.500Z",
    "status": {"status_code": "ERROR"},
    "attributes": {"gen_ai.usage.prompt_tokens": 12, "gen_ai.usage.completion_tokens": 3},
}
BATCH = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions"}
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 32, "temperature": 0.5}
CASES: dict[str, tuple[str, str, list[dict[str, Any] | str]]] = {
    # name: format, file, entries as what is not None or empty in them, or the reason of a fault
    "azure: CRLF, no newline at the end, 100 ns, zones": (
        "azure",
        AZURE,
        [
            {"at_ns": 1700158623 * S + 979_960_000, "input_tokens": 4808, "output_tokens": 10},
            {"at_ns": 1700158624 * S + 31_960_000, "input_tokens": 3180, "output_tokens": 8},
            {"at_ns": 1700158625 * S + 100, "input_tokens": 12, "output_tokens": 0},
        ],
    ),
    "burstgpt 1": (
        "burstgpt",
        BURST_1,
        [{"at_ns": 5 * S, "input_tokens": 472, "output_tokens": 18, "kind": "Conversation log", "model": "GPT-4"}],
    ),
    "burstgpt 3 has columns inserted": (
        "burstgpt",
        BURST_3,
        [
            {
                "at_ns": 19440110 * S,
                "input_tokens": 906,
                "output_tokens": 446,
                "session": "s-1",
                "kind": "Conversation log",
                "model": "GPT-4",
            },
            {
                "at_ns": 19440161 * S + S // 2,
                "input_tokens": 36,
                "output_tokens": 0,
                "kind": "API log",
                "model": "ChatGPT",
            },
        ],
    ),
    "mooncake: milliseconds": (
        "mooncake",
        lines(hashed(3000, [0, 1])) + "\n\n",
        [{"at_ns": 3 * S, "input_tokens": 600, "output_tokens": 5, "blocks": [0, 1]}],
    ),
    "timed_trace: seconds": (
        "timed_trace",
        lines(hashed(3, [0, 1])),
        [{"at_ns": 3 * S, "input_tokens": 600, "output_tokens": 5, "blocks": [0, 1]}],
    ),
    "qwen: seconds, and a family of chats": (
        "qwen",
        lines(
            hashed(61.114, [1], chat_id=159, parent_chat_id=-1, type="text", turn=1),
            hashed(62.5, [1, 2], chat_id=160, parent_chat_id=159, type="text", turn=2),
            hashed(63, [1, 2], chat_id=161, parent_chat_id=160, type="file", turn=3),
        ),
        [
            {
                "at_ns": 61114 * MS,
                "input_tokens": 600,
                "output_tokens": 5,
                "session": 159,
                "kind": "text",
                "blocks": [1],
            },
            {
                "at_ns": 62500 * MS,
                "input_tokens": 600,
                "output_tokens": 5,
                "session": 159,
                "kind": "text",
                "blocks": [1, 2],
            },
            {
                "at_ns": 63 * S,
                "input_tokens": 600,
                "output_tokens": 5,
                "session": 159,
                "kind": "file",
                "blocks": [1, 2],
            },
        ],
    ),
    "ragpulse: seconds as texts, segments in order": (
        "ragpulse",
        lines(hashed("82", SEGMENTS, session_id="s")),
        [{"at_ns": 82 * S, "input_tokens": 600, "output_tokens": 5, "session": "s", "blocks": [7, 2, 3, 9]}],
    ),
    "vidur": (
        "vidur",
        ",arrived_at,num_prefill_tokens,num_decode_tokens\n0,0.25,10,20\n",
        [{"at_ns": 250 * MS, "input_tokens": 10, "output_tokens": 20}],
    ),
    "guidellm": (
        "guidellm",
        lines({"timestamp": 0.5, "input_length": 512, "output_length": 64}),
        [{"at_ns": 500 * MS, "input_tokens": 512, "output_tokens": 64}],
    ),
    "custom": (
        "custom",
        lines({"prompt": "What is 2+2?", "output_tokens": 16}, {"prompt": "두 번째"}, {"output_tokens": 1}),
        [
            {"messages": (("user", "What is 2+2?"),), "output_tokens": 16},
            {"messages": (("user", "두 번째"),)},
            "malformed",
        ],
    ),
    "openai_batch: a chat, a completion, an image": (
        "openai_batch",
        lines(
            {**BATCH, "body": BODY},
            {**BATCH, "body": {"model": "m", "prompt": "hi", "max_tokens": 8}},
            {**BATCH, "body": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}},
        ),
        [
            {"messages": (("user", "hi"),), "output_tokens": 32, "model": "m", "params": {"temperature": 0.5}},
            {"messages": (("user", "hi"),), "output_tokens": 8, "model": "m", "api": "completions"},
            "no_text",
        ],
    ),
    "aiperf: single turns in each of their forms": (
        "aiperf",
        lines(
            {"text": "hi", "output_length": 16, "timestamp": 0},
            {"texts": ["a", "b"], "output_length": 3, "timestamp": 1.5, "extra": {"top_k": 2}},
            {"timestamp": 3000, "messages": [{"role": "system", "content": "x"}], "output_length": 9},
            hashed(5, [0, 1], session_id="s"),
            {"payload": {"prompt": "p", "max_tokens": 4}, "timestamp": 6},
            {"image": "x.png", "timestamp": 7},
        ),
        [
            {"at_ns": 0, "messages": (("user", "hi"),), "output_tokens": 16},
            {"at_ns": 1500_000, "messages": (("user", "ab"),), "output_tokens": 3, "params": {"top_k": 2}},
            {"at_ns": 3 * S, "messages": (("system", "x"),), "output_tokens": 9},
            {"at_ns": 5 * MS, "input_tokens": 600, "output_tokens": 5, "session": "s", "blocks": [0, 1]},
            {"at_ns": 6 * MS, "messages": (("user", "p"),), "output_tokens": 4, "api": "completions"},
            "malformed",
        ],
    ),
    "aiperf: a conversation with live answers": (
        "aiperf",
        lines(
            {
                "session_id": "s1",
                "turns": [
                    {"text": "a", "output_length": 7, "timestamp": 9},
                    {"text": "b", "output_length": 8, "delay": 1500},
                ],
            }
        ),
        [
            {"at_ns": 9 * MS, "messages": (("user", "a"),), "output_tokens": 7, "session": "s1"},
            {
                "messages": (("user", "a"), ("assistant", 0), ("user", "b")),
                "output_tokens": 8,
                "session": "s1",
                "think_ns": 1500 * MS,
            },
        ],
    ),
    "otel: OTLP": (
        "otel",
        lines(OTLP),
        [
            {"at_ns": 1700000000 * S + 7, "input_tokens": 12, "output_tokens": 3, "session": "c-1", "kind": "chat"},
            "other_span",
        ],
    ),
    "otel: single spans, older names": (
        "otel",
        lines(FLAT_SPAN),
        [{"at_ns": 1767323045 * S + S // 2, "input_tokens": 12, "output_tokens": 3, "failed": True}],
    ),
    "vllm_log": (
        "vllm_log",
        "INFO 12-31 23:59:59 [logger.py:39] Received request cmpl-1: prompt: 'it\\'s max_tokens=1', params: "
        "SamplingParams(n=1, max_tokens=16, seed=None), prompt_token_ids: [1, 2, 3], lora_request: None.\n"
        "INFO 12-31 23:59:59 [metrics.py:1] Avg prompt throughput\n"
        "(APIServer pid=7) INFO 01-01 00:00:01 [request_logger.py:65] Received request cmpl-2: params: "
        "SamplingParams(max_tokens=9), lora_request: None.\n"
        "(APIServer pid=7) DEBUG 01-01 00:00:01 [request_logger.py:58] Request cmpl-2 details: "
        "prompt: 'one two three', prompt_token_ids: None, prompt_embeds shape: None.\n"
        "INFO 01-01 00:00:02 [logger.py:70] Generated response cmpl-1 (streaming complete): output: 'ok', "
        "output_token_ids: [5, 6], finish_reason: stop\n",
        [
            {"at_ns": 978307199 * S, "input_tokens": 3, "output_tokens": 2, "blocks": [0]},
            {"at_ns": 978307201 * S, "input_tokens": 4, "output_tokens": 9, "blocks": [1]},
        ],
    ),
}


def say(entry: Entry | Fault) -> dict[str, Any] | str:
    """An entry as what it says beside its defaults."""
    if isinstance(entry, Fault):
        return entry.reason
    default = Entry()
    told = {name: getattr(entry, name) for name in Entry.__struct_fields__}
    return {name: value for name, value in told.items() if value != getattr(default, name)}


@pytest.mark.parametrize("name", CASES)
def test_format(tmp_path: Path, name: str) -> None:
    format, text, entries = CASES[name]
    path = tmp_path / "trace"
    path.write_bytes(text.encode())
    assert [say(entry) for entry in open_entries(format, path)] == entries


def test_every_format_has_a_case() -> None:
    assert {format for format, _, _ in CASES.values()} | {"servegen"} >= set(READERS)


GUESSED = {"azure", "burstgpt", "qwen", "ragpulse", "vidur", "openai_batch", "otel", "custom"}
MOONCAKE = "may be mooncake or timed_trace"
AMBIGUOUS: dict[str, tuple[str, str]] = {
    "milliseconds or seconds": (lines(hashed(3000, [0, 1])), MOONCAKE),
    "lengths only": (lines({"timestamp": 0, "input_length": 5, "output_length": 6}), "may be guidellm or aiperf"),
    "unknown columns": ("when,in,out\n1,2,3\n", r"is none that is known by its columns when, in, out"),
    "nothing": ("", r"is none that is known by its columns \(none\)"),
}


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][0] in GUESSED and "older" not in name])
def test_what_only_one_format_has_is_guessed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(CASES[name][1].encode())
    assert guess_format(path)[0] == CASES[name][0]


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_several_have_is_not(tmp_path: Path, name: str) -> None:
    text, message = AMBIGUOUS[name]
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(SourceError, match=message):
        guess_format(path)


def test_named_columns(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    row = {"ts": 1.5, "usage": {"in": 3, "out": 4}, "user": "u", "route": "/v1/chat", "code": 503}
    path.write_text(lines(row, {"ts": "soon", "usage": {"in": 3, "out": 4}}, {**row, "usage": {"in": 1.5}}))
    columns = "time=ts:s, input=usage.in, output=usage.out, session=user, kind=route, status=code"
    entry, *faults = open_entries("columns", path, parse_columns(columns))
    assert say(entry) == {
        "at_ns": 1500 * MS, "input_tokens": 3, "output_tokens": 4, "session": "u", "kind": "/v1/chat", "failed": True,
    }  # fmt: skip
    assert faults == [
        Fault("malformed", "row 2: ts: expected a time in the unit s"),
        Fault("malformed", "row 3: usage.in: expected a count"),
    ]


WRONG_COLUMNS: dict[str, str] = {
    "input": "FIELD=COLUMN",
    "time=ts:s,prompt=x": "FIELD out of time",
    "time=ts,input=x": "time=COLUMN:UNIT",
    "time=ts:hours,input=x": "time=COLUMN:UNIT",
    "input=x": "time=COLUMN:UNIT",
    "time=ts:s,output=x": "how long are the prompts",
    "time=ts:s,input=x,blocks=h": "block_tokens=16",
}


@pytest.mark.parametrize("text", WRONG_COLUMNS)
def test_columns_that_are_not_understood(text: str) -> None:
    with pytest.raises(SourceError, match=WRONG_COLUMNS[text]):
        parse_columns(text)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("when,in,out\n1,2,3\n")
    with pytest.raises(SourceError, match="expected TIMESTAMP, ContextTokens, GeneratedTokens, found when, in, out"):
        list(open_entries("azure", path))


TIMES: list[tuple[Any, Any, int | None]] = [
    (5, "s", 5 * S),
    ("5", "ms", 5 * MS),
    (-3, "us", -3000),
    (61.114, "s", 61_114 * MS),
    (1700000000.123457, "s", 1700000000 * S + 123_457_000),
    (7, "ns", 7),
    ("", "s", None),
    (None, "clock", None),
    ("2000-01-01 00:00:00", "clock", 946684800 * S),
    ("2000-01-01T00:00:00,5Z", "clock", 946684800 * S + S // 2),
]
NO_TIMES: list[tuple[Any, Any]] = [
    (True, "s"), ("noon", "s"), (float("nan"), "s"), (1.5, "ns"), (5, "clock"), ("2000-13-01 00:00:00", "clock"),
    (1e30, "s"), ([], "s"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "unit", "time_ns"), TIMES)
def test_time(value: Any, unit: Any, time_ns: int | None) -> None:
    assert to_time_ns(value, unit) == time_ns


@pytest.mark.parametrize(("value", "unit"), NO_TIMES)
def test_no_time(value: Any, unit: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        to_time_ns(value, unit)


def test_counts() -> None:
    assert [to_count(value) for value in (0, "12", "12.0", 12.0, None, "")] == [0, 12, 12, 12, None, None]
    for value in (-1, "1.5", True, "many", float("inf"), 1 << 40):
        with pytest.raises((ValueError, OverflowError)):
            to_count(value)

# Export: what each format says of a trace, what it refuses, and that what it says comes back.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.blocks import chain_blocks
from loadshape.content import Author
from loadshape.errors import RecipeError, TraceError
from loadshape.export import OUTLETS, export_trace, list_features
from loadshape.recording import Recording
from loadshape.tokenizer import Estimate
from loadshape.trace import Trace
from loadshape.transcription import transcribe
from traces import ask, make_trace

S, MS = 1_000_000_000, 1_000_000
AUTHOR = Author([], Estimate(), seed=1)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def renumber(chains: list[list[int]]) -> list[list[int]]:
    """Names of blocks by first appearance along their chains: equal lists have the same sharing."""
    names: dict[tuple[int, int], int] = {}
    told = []
    for chain in chains:
        before, row = -1, []
        for name in chain:
            before = names.setdefault((before, name), len(names))
            row.append(before)
        told.append(row)
    return told


TALK = (("system", ("be brief", " please")), ("user", ("hi",)))
TRACE = make_trace(
    ask(1.5, messages=TALK, params={"top_k": 2}),
    ask(0.0, messages=(("user", ("hello",)),), output_tokens=9),
)
LINES: dict[str, tuple[list[str], list[dict[str, Any]]]] = {
    # format: what is lost, lines in the order of arrivals
    "mooncake": (
        ["params"],
        [
            {"timestamp": 0, "input_length": 8, "output_length": 9, "hash_ids": [0]},
            {"timestamp": 1.5, "input_length": 8, "output_length": 4, "hash_ids": [1]},
        ],
    ),
    "timed_trace": (
        ["params"],
        [
            {"timestamp": 0, "input_length": 8, "output_length": 9, "hash_ids": [0]},
            {"timestamp": 0.0015, "input_length": 8, "output_length": 4, "hash_ids": [1]},
        ],
    ),
    "guidellm": (
        ["params"],
        [
            {"timestamp": 0, "input_length": 8, "output_length": 9, "hash_ids": [0]},
            {"timestamp": 0.0015, "input_length": 8, "output_length": 4, "hash_ids": [1]},
        ],
    ),
    "aiperf": (
        [],
        [
            {"messages": [{"role": "user", "content": "hello"}], "output_length": 9, "timestamp": 0},
            {
                "messages": [{"role": "system", "content": "be brief please"}, {"role": "user", "content": "hi"}],
                "output_length": 4,
                "timestamp": 1.5,
                "extra": {"top_k": 2},
            },
        ],
    ),
    "custom": (
        ["arrivals", "roles", "params"],
        [{"prompt": "hello", "output_tokens": 9}, {"prompt": "be brief please\n\nhi", "output_tokens": 4}],
    ),
    "openai_batch": (
        ["arrivals"],
        [
            {
                "custom_id": "request-1",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "model", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]},
            },
            {
                "custom_id": "request-0",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": "model",
                    "max_tokens": 4,
                    "messages": [{"role": "system", "content": "be brief please"}, {"role": "user", "content": "hi"}],
                    "top_k": 2,
                },
            },
        ],
    ),
}


@pytest.mark.parametrize("format", OUTLETS)
def test_format(tmp_path: Path, format: str) -> None:
    lost, lines = LINES[format]
    path = export_trace(TRACE, tmp_path / "out.jsonl", format, lose=lost)
    assert read_lines(path) == lines
    if lost:
        with pytest.raises(TraceError, match=rf"{format}: cannot say .*--lose {','.join(lost)}$"):
            export_trace(TRACE, tmp_path / "refused.jsonl", format)
        assert not (tmp_path / "refused.jsonl").exists()


FEATURES: dict[str, Trace] = {
    "turns": make_trace(ask(0, session=0), ask(1, session=0, turn=1)),
    "models": make_trace(ask(model="other")),
    "adapters": make_trace(ask(adapter="a")),
    "tenants": make_trace(ask(tenant="t")),
    "patience": make_trace(ask(patience=(5.0, None))),
    "token_ids": make_trace(ask(api="completions", messages=(("user", (("token_ids", [1, 2]),)),))),
    "images": make_trace(ask(messages=(("user", (("image", "data:image/png;base64,"),)),))),
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("format", OUTLETS)
def test_what_a_format_cannot_say_is_refused(tmp_path: Path, format: str, name: str) -> None:
    assert name in list_features(FEATURES[name])
    others = [it for it in list_features(FEATURES[name]) if it != name]
    if name in OUTLETS[format].says:
        export_trace(FEATURES[name], tmp_path / "out.jsonl", format, lose=others)
        return
    with pytest.raises(TraceError, match=rf"cannot say {name} \(of 1 requests\)"):
        export_trace(FEATURES[name], tmp_path / "out.jsonl", format, lose=others)


def test_other_refusals(tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").write_text("kept")
    with pytest.raises(TraceError, match="exists; choose another name, or say --force"):
        export_trace(TRACE, tmp_path / "there.jsonl", "aiperf")
    assert (tmp_path / "there.jsonl").read_text() == "kept"
    with pytest.raises(TraceError, match=r"ends in \.jsonl"):
        export_trace(TRACE, tmp_path / "out.json", "custom", lose=["arrivals", "roles", "params"])
    with pytest.raises(RecipeError, match="did you mean 'mooncake'"):
        export_trace(TRACE, tmp_path / "out.jsonl", "moncake")
    with pytest.raises(RecipeError, match="did you mean 'arrivals'"):
        export_trace(TRACE, tmp_path / "out.jsonl", "aiperf", lose=["arrival"])


def test_blocks_end_where_texts_part() -> None:
    texts = [("same", "one"), ("same", "one"), ("same", "two"), ("other", "one")]
    trace = make_trace(*(ask(n, messages=(("user", parts),)) for n, parts in enumerate(texts)))
    assert chain_blocks(trace, 1) == [[0, 1], [0, 1], [0, 2], [3, 4]]  # each text counts one token here
    assert chain_blocks(trace, 2) == [[0], [0], [1], [2]]


def test_blocks_are_named_in_the_order_of_arrivals_and_by_role() -> None:
    trace = make_trace(ask(2), ask(1), ask(0, messages=(("system", ("Hello there",)),)))
    assert chain_blocks(trace, 16) == [[1], [1], [0]]


def grow(draws: list[tuple[int, int, int, int]]) -> list[dict[str, Any]]:
    """Requests that go on from earlier ones: (gap, which one, how many of its blocks, tokens of their own)."""
    rows: list[dict[str, Any]] = []
    stamp, fresh = 0, 0
    for gap, which, kept, own in draws:
        stamp += gap
        before = rows[which % len(rows)]["hash_ids"] if rows else []
        names = before[: min(kept, rows[which % len(rows)]["input_length"] // 512)] if rows else []  # whole blocks
        length = len(names) * 512 + own
        while len(names) * 512 < length:
            names = [*names, fresh]
            fresh += 1
        rows.append({"timestamp": stamp, "input_length": length, "output_length": 1 + own % 7, "hash_ids": names})
    return rows


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.integers(0, 9000), st.integers(0, 9), st.integers(0, 4), st.integers(40, 1600)),
        min_size=1,
        max_size=12,
    ).map(grow)
)
def test_mooncake_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("round")
    given_path = folder / "given.jsonl"
    given_path.write_text("\n".join(json.dumps(row) for row in rows))
    once = transcribe(Recording.read(given_path, "mooncake"), AUTHOR)
    lines = read_lines(export_trace(once, folder / "once.jsonl", "mooncake"))
    names = ("timestamp", "input_length", "output_length")
    zero = rows[0]["timestamp"]
    assert [[line[name] for name in names] for line in lines] == [
        [row["timestamp"] - zero, row["input_length"], row["output_length"]] for row in rows
    ]
    assert renumber([line["hash_ids"] for line in lines]) == renumber([row["hash_ids"] for row in rows])
    again = transcribe(Recording.read(folder / "once.jsonl", "mooncake"), AUTHOR)
    assert again.digest == once.digest


@pytest.mark.parametrize(("format", "lost"), [("aiperf", []), ("openai_batch", ["arrivals"])])
def test_texts_come_back(tmp_path: Path, format: str, lost: list[str]) -> None:
    path = export_trace(TRACE, tmp_path / "out.jsonl", format, lose=lost)
    again = transcribe(Recording.read(path, format), AUTHOR, slots=2 if lost else None)
    export_trace(again, tmp_path / "again.jsonl", format, lose=["slots"] if lost else [])
    first, second = (read_lines(tmp_path / name) for name in ("out.jsonl", "again.jsonl"))
    assert [line | {"custom_id": ""} for line in first] == [line | {"custom_id": ""} for line in second]

# Recordings: what is counted, sorted, cut and spread on the way from a file to columns, and from there to a trace.

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.arrival import Constant
from loadshape.content import Author
from loadshape.errors import RecipeError, SourceError
from loadshape.recording import WAITS, Recording
from loadshape.tick import find_tick, is_quantised, spread_ticks
from loadshape.tokenizer import Estimate
from loadshape.trace import Trace
from loadshape.transcription import parse_pace, transcribe

S, MS = 1_000_000_000, 1_000_000
AUTHOR = Author([], Estimate(), seed=1)


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "recorded.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def row(stamp: float, inputs: int = 100, outputs: int = 5, **more: Any) -> dict[str, Any]:
    return {"timestamp": stamp, "input_length": inputs, "output_length": outputs, **more}


def column(trace: Trace, name: str) -> list[Any]:
    return trace.requests[name].to_pylist()


def test_a_mooncake_file_becomes_its_own_traffic(tmp_path: Path) -> None:
    hashes = [[0, 1], [0, 2], [0, 1, 3], [4]]
    lengths = [600, 1024, 1025, 3]
    told = enumerate(zip(lengths, hashes, strict=True))
    path = write(tmp_path, *(row(n * 500, length, hash_ids=names) for n, (length, names) in told))
    trace = transcribe(Recording.read(path, "mooncake"), AUTHOR)
    trace.verify()
    assert column(trace, "due_ns") == [0, 500 * MS, 1000 * MS, 1500 * MS]
    assert column(trace, "input_tokens") == lengths
    assert column(trace, "output_tokens") == [5] * 4
    assert column(trace, "shared_tokens") == [0, 512, 600, 0]  # the third goes on where the first ends
    about = trace.manifest.recording
    assert about is not None
    assert (about["time_unit"], about["block_tokens"], about["texts"]) == ("ms", 512, "woven")
    assert about["provenance"]["name"] == "recorded.jsonl"


COUNTED: dict[str, tuple[list[dict[str, Any]], dict[str, int], dict[str, int]]] = {
    # name: rows, dropped, odd
    "nothing odd": ([row(0), row(1)], {}, {}),
    "a failure, and a prompt of no tokens": (
        [row(0), row(1, outputs=0), row(2, inputs=0)],
        {"failed": 1, "no_input": 1},
        {},
    ),
    "no length of an answer": (
        [row(0), {"timestamp": 1, "input_length": 5, "output_length": None}],
        {"no_output": 1},
        {},
    ),
    "out of order, and together": ([row(5), row(3), row(3, 7)], {}, {"out_of_order": 2, "same_time": 1}),
    "the same again": ([row(1), row(1), row(2)], {}, {"duplicate": 1, "same_time": 1}),
    "no time": ([row(1), {"input_length": 5, "output_length": 5}], {"no_time": 1}, {}),
    "no row of the format": ([row(1), row("soon")], {"malformed": 1}, {}),  # type: ignore[arg-type]
    "blocks that do not fit": (
        [row(0, hash_ids=[1, 2]), row(1, 1000, hash_ids=[1])],
        {},
        {"blocks_beyond_prompt": 1, "blocks_missing": 1},
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_every_row_is_counted(tmp_path: Path, name: str) -> None:
    rows, dropped, odd = COUNTED[name]
    format = "mooncake" if "hash_ids" in rows[0] else "guidellm"
    facts = Recording.read(write(tmp_path, *rows), format).facts
    assert (facts.account.read, facts.account.dropped, facts.odd) == (len(rows), dropped, odd)
    assert facts.account.kept == len(rows) - sum(dropped.values())


def test_failures_are_kept_when_their_answers_are_given_a_length(tmp_path: Path) -> None:
    path = write(tmp_path, row(0), row(1, outputs=0))
    recording = Recording.read(path, "guidellm", output_tokens=64)
    assert recording.output_tokens.tolist() == [5, 64]
    assert recording.facts.odd == {"failed": 1}
    assert column(transcribe(recording, AUTHOR), "kind") == ["guidellm", "failed"]


def test_rows_are_sorted_and_begin_at_zero(tmp_path: Path) -> None:
    recording = Recording.read(write(tmp_path, row(5, 50), row(3, 30), row(4, 40)), "guidellm")
    assert recording.due_ns is not None
    assert recording.due_ns.tolist() == [0, S, 2 * S]
    assert recording.input_tokens.tolist() == [30, 40, 50]


def test_a_window_is_cut_out(tmp_path: Path) -> None:
    path = write(tmp_path, *(row(100 + n) for n in range(10)))
    recording = Recording.read(path, "guidellm", window_s=(2, 5.5))
    assert recording.due_ns is not None
    assert recording.due_ns.tolist() == [0, S, 2 * S, 3 * S]
    assert recording.facts.account.dropped == {"outside_window": 6}
    assert transcribe(recording, AUTHOR).manifest.duration_s == 3.5


def test_sessions_keep_their_turns_and_their_times(tmp_path: Path) -> None:
    hashed = [row(stamp, chat_id=chat, parent_chat_id=parent, type="text", hash_ids=[]) for stamp, chat, parent in
              ((0, 10, -1), (1, 20, -1), (2, 11, 10), (3, 12, 11), (4, 21, 20))]  # fmt: skip
    trace = transcribe(Recording.read(write(tmp_path, *hashed)), AUTHOR)
    trace.verify()
    told = zip(column(trace, "session"), column(trace, "turn"), column(trace, "due_ns"), strict=True)
    assert list(told) == [(0, 0, 0), (0, 1, 2 * S), (0, 2, 3 * S), (1, 0, S), (1, 1, 4 * S)]
    assert trace.manifest.loop.mode == "open"


def test_conversations_with_live_answers_wait(tmp_path: Path) -> None:
    turns = [{"text": "one", "output_length": 7}, {"text": "two", "output_length": 8, "delay": 1500}]
    path = write(tmp_path, {"session_id": "s", "turns": turns})
    trace = transcribe(Recording.read(path, "aiperf"), AUTHOR, arrivals=Constant(rate_hz=1))
    trace.verify()
    assert trace.manifest.loop.mode == "partly_open"
    assert column(trace, "due_ns") == [0, None]
    assert column(trace, "think_ns") == [0, 1500 * MS]
    said = [[part["segments"] for part in request] for request in column(trace, "messages")]
    assert said[1][0] == said[0][0]
    answer = trace.segments.slice(said[1][1][0], 1).to_pylist()[0]
    assert (answer["kind"], answer["text"], answer["token_ids"], answer["tokens"]) == ("answer", None, [0], 7)
    assert column(trace, "input_tokens") == [1, 1 + 7 + 1]


def test_what_follows_a_dropped_turn_is_dropped(tmp_path: Path) -> None:
    turns = [{"text": "one"}, {"text": "two", "output_length": 8}]
    path = write(tmp_path, {"turns": turns}, {"text": "x", "output_length": 1})
    assert Recording.read(path, "aiperf").facts.account.dropped == {"follows_dropped": 1, "no_output": 1}


def test_texts_are_stored_once_and_shared(tmp_path: Path) -> None:
    chats = [[{"role": "system", "content": "be brief"}, {"role": "user", "content": text}] for text in ("a", "b", "a")]
    rows = [{"timestamp": n, "messages": chat, "output_length": 2} for n, chat in enumerate(chats)]
    trace = transcribe(Recording.read(write(tmp_path, *rows), "aiperf"), AUTHOR)
    assert trace.segments["text"].to_pylist() == ["be brief", "a", "b"]
    assert column(trace, "shared_tokens") == [0, 2, 3]
    assert trace.manifest.recording is not None
    assert trace.manifest.recording["texts"] == "of the file"


def test_texts_and_lengths_may_be_mixed(tmp_path: Path) -> None:
    told = {"text": "hello", "output_length": 2}
    rows = [{**told, "timestamp": 0}, row(1, 600, hash_ids=[1, 2]), {**told, "timestamp": 2}]
    trace = transcribe(Recording.read(write(tmp_path, *rows), "aiperf"), AUTHOR)
    trace.verify()
    assert column(trace, "input_tokens") == [2, 600, 2]
    assert column(trace, "shared_tokens") == [0, 0, 2]


def test_parameters_of_a_batch_go_along(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "top_k": 4, "stream": False}
    path = write(tmp_path, {"custom_id": "1", "body": body}, {"custom_id": "2", "body": body})
    recording = Recording.read(path)
    trace = transcribe(recording, AUTHOR, slots=2)
    (number,) = set(column(trace, "params"))
    assert trace.segments["text"][number].as_py() == '{"top_k":4}'
    assert column(trace, "model") == [None, None]
    assert recording.facts.models == {"m": 2}
    assert (trace.manifest.loop.mode, trace.manifest.loop.slots) == ("closed", 2)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a rate beside recorded times": ({"arrivals": Constant(rate_hz=1)}, "recorded times, so none can be given"),
    "slots beside recorded times": ({"slots": 2}, "recorded times, so none can be given"),
    "another word": ({"ticks": "move"}, "expected one of keep, spread"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_the_recording_is_refused(tmp_path: Path, name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(RecipeError, match=message):
        transcribe(Recording.read(write(tmp_path, row(0), row(1)), "guidellm"), AUTHOR, **options)


def test_a_recording_without_times_needs_a_pace(tmp_path: Path) -> None:
    recording = Recording.read(write(tmp_path, {"prompt": "hi", "output_tokens": 3}))
    assert recording.due_ns is None
    with pytest.raises(RecipeError, match="has no times; give either a rate or slots"):
        transcribe(recording, AUTHOR)
    with pytest.raises(RecipeError, match="has no times; give either a rate or slots"):
        transcribe(recording, AUTHOR, slots=2, arrivals=Constant(rate_hz=1))
    assert parse_pace("8 slots") == (None, 8)
    arrivals, slots = parse_pace("2.5/s")
    assert arrivals is not None
    assert (arrivals.offered_hz(0), slots) == (2.5, None)
    with pytest.raises(RecipeError, match="pace: expected a rate"):
        parse_pace("fast")


def test_a_file_without_requests_says_why(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no request is left, \{'malformed': 2\}; the first: row 1: timestamp"):
        Recording.read(write(tmp_path, row("x"), row("y")), "guidellm")  # type: ignore[arg-type]


def test_a_session_has_no_more_turns_than_a_trace_can_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadshape.recording.MAX_TURNS", 3)
    path = tmp_path / "log.csv"
    path.write_text("t,i,o,u\n" + "1,2,3,me\n" * 4)
    with pytest.raises(SourceError, match="expected at most 3 turns, found 4; name a finer column"):
        Recording.read(path, columns="time=t:s,input=i,output=o,session=u")


TICKS: dict[str, tuple[list[int], int | None, bool]] = {
    # name: stamps, tick, quantised
    "too few": ([0, 5], None, False),
    "batches of three": ([0, 0, 0, 3000, 3000, 3000, 6000, 6000, 9000, 9000], 3000, True),
    "a clock that jitters by a thousandth": ([0, 0, 2999, 2999, 5999, 5999, 9000, 9000, 12000, 12000], 3000, True),
    "a metronome": (list(range(0, 90, 9)), 9, False),
    "a fine clock": ([0, 7, 7, 130, 391, 1000, 1003, 1500], 1, False),
    "gaps of no common step": ([0, 60, 60, 161, 310, 461, 461, 461], 1, False),
}


@pytest.mark.parametrize("name", TICKS)
def test_ticks(name: str) -> None:
    stamps, tick, quantised = TICKS[name]
    times = np.array(stamps, np.int64)
    assert find_tick(times) == tick
    assert is_quantised(times, tick) == quantised


def test_ticks_are_kept_unless_they_are_to_be_spread(tmp_path: Path) -> None:
    path = write(tmp_path, *(row(3 * (n // 10), 10 + n) for n in range(60)))
    recording = Recording.read(path, "guidellm")
    assert (recording.facts.tick_s, recording.facts.quantised) == (3.0, True)
    kept, spread = (transcribe(recording, AUTHOR, ticks=ticks) for ticks in ("keep", "spread"))
    assert kept.manifest.statistics["dispersion"]["1 s"] > 5
    assert spread.manifest.statistics["dispersion"]["1 s"] < 2
    assert column(spread, "input_tokens") == column(kept, "input_tokens")
    assert spread.manifest.recording is not None
    assert spread.manifest.recording["ticks"] == "spread"
    assert transcribe(recording, AUTHOR, ticks="spread").digest == spread.digest != kept.digest


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60).map(sorted), st.integers(1, 5000), st.integers(0, 1 << 30))
def test_spreading_stays_inside_of_the_tick(stamps: list[int], tick_us: int, seed: int) -> None:
    tick_ns = tick_us * 1000
    times = np.array(stamps, np.int64) * tick_ns
    spread = spread_ticks(times, tick_ns, np.random.default_rng(seed))
    assert (np.diff(spread) >= 0).all()
    assert ((spread - times >= 0) & (spread - times < tick_ns)).all()
    assert (spread % 1000 == 0).all()


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=20))
def test_sessions_and_turns_are_dense(rows: list[tuple[int, int]]) -> None:
    path = Path(os.environ["PYTEST_SCRATCH"]) / "sessions.csv"
    path.write_text("t,i,o,u\n" + "".join(f"{stamp},5,5,{user or ''}\n" for stamp, user in rows))
    trace = transcribe(Recording.read(path, columns="time=t:s,input=i,output=o,session=u"), AUTHOR)
    trace.verify()  # sessions, turns, due times
    due = [time for time, turn in zip(column(trace, "due_ns"), column(trace, "turn"), strict=True) if turn == 0]
    assert due == sorted(due)
    assert sorted(column(trace, "due_ns")) == sorted((stamp - min(rows)[0]) * S for stamp, _ in rows)
    assert WAITS not in column(trace, "due_ns")


@pytest.fixture(autouse=True, scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder for properties, which cannot have a tmp_path of their own."""
    os.environ["PYTEST_SCRATCH"] = str(tmp_path_factory.mktemp("scratch"))
    yield
    del os.environ["PYTEST_SCRATCH"]


DATA = os.environ.get("LOADSHAPE_DATA")
PUBLISHED: dict[str, tuple[str | None, int, dict[str, float]]] = {
    # file: format, requests, what is known of it
    "azure2023/AzureLLMInferenceTrace_code.csv": (None, 8819, {"rate_hz": 2.57, "gap_cv": 13.15, "1 s": 13.2}),
    "azure2023/AzureLLMInferenceTrace_conv.csv": (None, 19366, {"rate_hz": 5.53, "gap_cv": 1.09, "1 s": 1.39}),
    "mooncake/conversation_trace.first3500.jsonl": ("mooncake", 3500, {"rate_hz": 3.03}),
    "ragpulse/0_trace.first3600.jsonl": (None, 3600, {"gap_cv": 3.07, "1 s": 1.01}),
}


@pytest.mark.skipif(DATA is None, reason="LOADSHAPE_DATA does not name a folder with published traces")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_traces(name: str) -> None:
    format, requests, known = PUBLISHED[name]
    trace = transcribe(Recording.read(Path(str(DATA)) / "traces" / name, format), AUTHOR)
    statistics = trace.manifest.statistics
    assert trace.manifest.requests == requests
    assert {it: (statistics | statistics["dispersion"])[it] for it in known} == pytest.approx(known, rel=0.01)

# Shape capture: sharing is kept, words are not. Nothing that a log said may be found in anything that is made of it.

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.cli import app
from loadshape.content import Author
from loadshape.recording import Recording
from loadshape.sources.shredder import BLOCK_BYTES, Shredder, join_messages
from loadshape.tokenizer import Estimate
from loadshape.transcription import transcribe

SECRETS = ("Quillfeather", "Oombarra Street", "kumquat-7741", "zebulon@example.com", "xylographic")
SYSTEM = "You are the xylographic assistant of Oombarra Street; be brief and never mention kumquat-7741. " * 4
PROMPTS = [f"{SYSTEM}I am Quillfeather number {n}, write to zebulon@example.com please" for n in range(4)]


def to_columns(path: Path) -> dict[str, str]:
    rows = [{"ts": n, "prompt": text, "out": 5, "tokens": len(text) // 5} for n, text in enumerate(PROMPTS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"columns": "time=ts:s,input=tokens,output=out,text=prompt"}


def to_spans(path: Path) -> dict[str, str]:
    def span(n: int, text: str) -> dict[str, Any]:
        said = json.dumps([{"role": "user", "parts": [{"type": "text", "content": text}]}])
        attributes = {"gen_ai.usage.input_tokens": 90, "gen_ai.usage.output_tokens": 3, "gen_ai.input.messages": said}
        return {"start_time": f"2026-01-02T03:04:0{n}Z", "attributes": attributes}

    path.write_text("\n".join(json.dumps(span(*each)) for each in enumerate(PROMPTS)))
    return {"format": "otel"}


def to_vllm_log(path: Path) -> dict[str, str]:
    line = "INFO 03-04 05:06:0{} [logger.py:39] Received request cmpl-{}: prompt: {!r}, params: SamplingParams(n=1)"
    answer = "INFO 03-04 05:06:09 [logger.py:70] Generated response cmpl-{}: output: {!r}, finish_reason: stop"
    told = [line.format(n, n, text) for n, text in enumerate(PROMPTS)]
    path.write_text("\n".join([*told, *(answer.format(n, f"Dear Quillfeather {n}") for n in range(4))]))
    return {"format": "vllm_log"}


@pytest.mark.parametrize("write", [to_columns, to_spans, to_vllm_log])
def test_no_word_of_a_log_is_in_what_is_made_of_it(
    tmp_path: Path, write: Callable[[Path], dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    log, made = tmp_path / "access.log", tmp_path / "made"
    arguments = [part for name, value in write(log).items() for part in (f"--{name}", value)]
    assert any(secret in log.read_text() for secret in SECRETS)
    made.mkdir()
    assert app(["convert", str(log), "-o", str(made / "a.trace"), *arguments]) == 0
    assert app(["export", str(made / "a.trace"), "-o", str(made / "a.jsonl"), "--format", "aiperf"]) == 0
    files = [path for path in made.rglob("*") if path.is_file()]
    assert len(files) == 4
    told = b"".join(path.read_bytes() for path in files) + "".join(capsys.readouterr()).encode()
    assert [secret for secret in SECRETS if secret.encode() in told] == []


@pytest.mark.parametrize("write", [to_columns, to_spans, to_vllm_log])
def test_sharing_is_kept(tmp_path: Path, write: Callable[[Path], dict[str, str]]) -> None:
    log = tmp_path / "access.log"
    recording = Recording.read(log, **write(log))  # type: ignore[arg-type]
    trace = transcribe(recording, Author([], Estimate(), seed=1))
    shared = trace.requests["shared_tokens"].to_pylist()
    inputs = trace.requests["input_tokens"].to_pylist()
    assert shared[0] == 0
    for share, whole in zip(shared[1:], inputs[1:], strict=True):  # the system prompt, in whole blocks
        assert 0.75 * len(SYSTEM) / len(PROMPTS[0]) <= share / whole < 1


def test_a_trace_of_a_log_does_not_depend_on_the_key(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    given = to_columns(log)
    digests = {transcribe(Recording.read(log, **given), Author([], Estimate(), seed=1)).digest for _ in range(2)}  # type: ignore[arg-type]
    assert len(digests) == 1


def test_a_row_that_is_refused_is_not_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "access.log"
    log.write_text('{"ts": "Quillfeather", "prompt": "Quillfeather", "out": "Quillfeather"}')
    columns = ["--columns", "time=ts:s,output=out,text=prompt"]
    with pytest.raises(Exception, match="ts: expected a time in the unit s") as raised:
        app(["convert", str(log), "-o", str(tmp_path / "a.trace"), *columns])
    assert "Quillfeather" not in str(raised.value) + "".join(capsys.readouterr())


def test_a_chat_that_goes_on_begins_like_the_shorter_one() -> None:
    first = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": "ho"}]}]
    longer = [*first, {"role": "user", "content": "and?"}]
    assert join_messages(longer).startswith(join_messages(first))
    assert join_messages("plain") == "plain"


@given(st.text(max_size=300), st.text(max_size=300))
def test_equal_numbers_are_equal_beginnings(one: str, other: str) -> None:
    shredder = Shredder()
    numbers = [shredder.shred(text) for text in (one, other)]
    told = [text.encode(errors="surrogatepass") for text in (one, other)]
    for text, names in zip(told, numbers, strict=True):
        assert len(names) == -(-len(text) // BLOCK_BYTES)
    for place, pair in enumerate(zip(*numbers, strict=False), 1):
        begins = [text[: place * BLOCK_BYTES] for text in told]
        assert (pair[0] == pair[1]) == (begins[0] == begins[1])

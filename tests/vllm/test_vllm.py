# Against a real vLLM: what it counts is what the log says, the sharing that a trace declares is what its prefix cache
# finds, runs do not meet in that cache unless they are let, and what it tells of itself is kept.
#
# Texts are digits and words of which a tokenizer makes more tokens than there are words; how many, the server says. So
# the declared numbers are taken from a first run: what a plain trace would have from its tokenizer.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadshape.log import Log
from loadshape.observation import read_samples
from loadshape.replayer import Settings, replay
from loadshape.report import render
from loadshape.server import Server, list_series, measure_servers
from loadshape.summary import summarize
from loadshape.target import Target
from loadshape.trace import Trace
from traces import ask, make_trace

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
REQUESTS, BLOCK_TOKENS, GAP_MS = 40, 32, 60
SHARED = " ".join(f"common{number}" for number in range(150))
EXACT: dict[str, Any] = {"body": {"ignore_eos": True, "temperature": 0.0}}


def make_shared(api: str = "chat", *, salt: str = "", input_tokens: int = 1000, shared_tokens: int = 0) -> Trace:
    """Return requests that begin alike and end differently; *salt* makes the whole another text."""
    rows = [
        ask(
            number * GAP_MS,
            api=api,
            messages=[("user", (salt + SHARED, f" and then {number} alone"))],
            input_tokens=input_tokens,
            shared_tokens=0 if number == 0 else shared_tokens,
            output_tokens=8,
        )
        for number in range(REQUESTS)
    ]
    return make_trace(*rows)


def make_apart(input_tokens: Sequence[int]) -> Trace:
    """Return requests that have nothing in common: what is alike stands behind different beginnings."""
    rows = [
        ask(
            number * GAP_MS,
            messages=[("user", (f"{number} {SHARED[number * 7 :]}",))],
            input_tokens=tokens,
            output_tokens=8,
        )
        for number, tokens in enumerate(input_tokens)
    ]
    return make_trace(*rows)


def play(trace: Trace, url: str, path: Path, **settings: Any) -> Log:
    log = replay(trace, Target(url), log=path, settings=Settings(processes=1, scrape_s=0.5, **EXACT | settings))
    log.verify()
    assert log.manifest.outcomes == {"ok": REQUESTS}
    return log


def observe(log: Log) -> Server:
    (server,) = measure_servers(log)
    return server


def count_shared(log: Log) -> int:
    """Return how many tokens the server found of the second request in the first one: whole blocks."""
    return int(log.requests["cached_tokens"][REQUESTS - 1].as_py())


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_both_sides_count_the_same(api: str, vllm: str, tmp_path: Path) -> None:
    log = play(make_shared(api, salt=f"{api} "), vllm, tmp_path / "a.log")
    server = observe(log)
    assert server.prompt.server == server.prompt.log
    assert server.completion.server == server.completion.log == 8 * REQUESTS
    cached = np.asarray(log.requests["cached_tokens"].to_numpy(), np.float64)
    assert server.hit_share == pytest.approx(cached.sum() / (server.prompt.log or 1))
    assert server.preemptions == 0
    assert server.running is not None
    assert server.first_token.p50 is not None
    assert server.first_token.log_p50_s is not None
    assert server.first_token.p50.low_s <= server.first_token.log_p50_s  # ours begins before theirs, and ends after it
    assert {it.name for it in list_series(log)} >= {
        "num_requests_running",
        "kv_cache_usage_perc",
        "prompt_tokens_per_s",
    }
    assert "prefix hits" in render(summarize(log), "text")


def test_declared_sharing_is_what_the_cache_finds(vllm: str, tmp_path: Path) -> None:
    first = play(make_shared(), vllm, tmp_path / "a.log")
    tokens, shared = int(first.requests["prompt_tokens"][0].as_py()), count_shared(first)
    assert shared % BLOCK_TOKENS == 0
    declared = make_shared(input_tokens=tokens, shared_tokens=shared + BLOCK_TOKENS // 2)
    server = observe(play(declared, vllm, tmp_path / "b.log"))
    assert server.declared_share is not None
    assert server.hit_share is not None
    assert 0.5 < server.hit_share <= server.declared_share  # less by what is no whole block, and by what came too soon
    assert server.hit_share == pytest.approx(server.declared_share, abs=BLOCK_TOKENS / tokens + 3 / REQUESTS)
    assert server.remarks == ()


def test_runs_meet_in_the_cache_only_if_they_are_let(vllm: str, tmp_path: Path) -> None:
    first = play(make_apart([1] * REQUESTS), vllm, tmp_path / "0.log")
    trace = make_apart(first.requests["prompt_tokens"].to_pylist())
    salted = [observe(play(trace, vllm, tmp_path / f"{name}.log")) for name in "ab"]
    assert [it.hit_share for it in salted] == [0.0, 0.0]
    log = play(trace, vllm, tmp_path / "c.log", isolation="none", reset_cache=True)
    assert log.manifest.notes[0] == 'reset_cache: target 0: HTTP 200 {"success":true}'
    assert (observe(log).hit_share, observe(log).remarks) == (0.0, ())
    warm = observe(play(trace, vllm, tmp_path / "d.log", isolation="none"))
    assert (warm.hit_share or 0) > 0.8
    assert any("the cache was warm" in remark for remark in warm.remarks)


def test_what_the_server_tells_of_itself_is_kept(vllm: str, tmp_path: Path) -> None:
    log = play(make_shared(salt="facts "), vllm, tmp_path / "a.log", declared={"gpus": 0, "cache_state": "empty"})
    facts = log.environment["server"]
    assert facts["version"]["version"]
    assert facts["cache"]["block_size"] == str(BLOCK_TOKENS)
    assert facts["engine"]["model_config"]["dtype"] == "torch.bfloat16"
    assert log.environment["declared"] == {"gpus": 0, "cache_state": "empty"}
    server = observe(log)
    assert server.limit_sequences == 64
    assert server.capacity_tokens == int(facts["cache"]["num_gpu_blocks"]) * BLOCK_TOKENS
    at_ns = read_samples(log.path)["at_ns"].to_numpy()
    assert at_ns.min() < 0
    assert at_ns.max() >= np.asarray(log.requests["done_ns"]).max()

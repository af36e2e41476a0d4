# The server's side of a run: arithmetic on samples that were made by hand, and the remarks that they call for.

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import make_log, request_row

from loadshape.log import PLANNED, Log
from loadshape.observation import NAME, SAMPLES
from loadshape.report.serving import describe_serving, list_serving
from loadshape.series import Series, bracket_quantile, read_histogram, read_series
from loadshape.server import Gpu, Level, Tokens, list_series, measure_gpus, measure_servers
from loadshape.summary import summarize

S = 1_000_000_000
BOUNDS = np.array([0.1, 0.2, 0.4, math.inf])


def sample(at_s: float, name: str, value: float, target: int | None = 0, **labels: str) -> dict[str, Any]:
    text = json.dumps(labels, sort_keys=True, separators=(",", ":"))
    return {"target": target, "at_ns": round(at_s * S), "width_ns": 0, "name": name, "labels": text, "value": value}


def write_samples(folder: Path, rows: list[dict[str, Any]]) -> pa.Table:
    table = pa.Table.from_pylist(rows, SAMPLES)
    folder.mkdir(exist_ok=True)
    with pa.ipc.new_stream(str(folder / NAME), SAMPLES) as stream:
        stream.write_table(table)
    return table


def observe(
    folder: Path, rows: list[dict[str, Any]], *, shared: int = 0, cached: int = 0, requests: int = 20, **about: Any
) -> Log:
    """Return a log of requests of 100 + 50 tokens, each 110 as the server counts, beside these samples."""
    write_samples(folder, rows)
    due = [100 * number for number in range(requests)]
    log = make_log(
        [
            request_row(
                number, due=ms, begun=ms, sent=ms, first_token=ms + 50, last_token=ms + 90, done=ms + 90,
                prompt_tokens=110, completion_tokens=50, cached_tokens=cached,
            )
            for number, ms in enumerate(due)
        ],
        **about,
    )  # fmt: skip
    planned = {"request": range(requests), "session": range(requests), "turn": [0] * requests}
    planned |= {"due_ns": [ms * 1_000_000 for ms in due], "kind": ["test"] * requests}
    planned |= {"model": [None] * requests, "adapter": [None] * requests, "tenant": [None] * requests}
    planned |= {
        "input_tokens": [100] * requests,
        "output_tokens": [50] * requests,
        "shared_tokens": [shared] * requests,
    }
    planned["api"] = pa.array(["chat"] * requests).dictionary_encode().cast(PLANNED.field("api").type)
    return dataclasses.replace(log, path=folder, planned=pa.table(planned, schema=PLANNED))


def counters(**ends: tuple[float, float]) -> list[dict[str, Any]]:
    return [
        sample(at_s, f"vllm:{name}_total", value, engine="0")
        for name, pair in ends.items()
        for at_s, value in zip((-0.5, 20.0), pair, strict=True)
    ]


def of_queue(before: float = 0.0) -> list[dict[str, Any]]:
    values = {-0.5: before, 0.0: 2.0, 1.0: 4.0, 2.0: 0.0}
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return [sample(at_s, name, value) for name in names for at_s, value in values.items()]


@pytest.mark.parametrize(
    ("values", "increase", "restarts"),
    [([], None, 0), ([3], None, 0), ([3, 3], 0, 0), ([3, 5, 9], 6, 0), ([3, 5, 1, 2], 4, 1), ([3, 0, 0], 0, 1)],
)
def test_what_a_counter_grew_by(values: list[float], increase: float | None, restarts: int) -> None:
    series = Series("n", 0, "", np.arange(len(values), dtype=np.float64), np.array(values, np.float64))
    assert (series.increase, series.restarts) == (increase, restarts)
    rate = series.per_second("n_per_s", "1/s")
    assert float(rate.values.sum()) == (increase or 0)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_a_counter_that_never_falls_grew_by_its_ends(steps: list[float]) -> None:
    values = np.cumsum(np.array(steps))
    series = Series("n", 0, "", np.arange(len(values), dtype=np.float64), values)
    assert series.increase == pytest.approx(values[-1] - values[0])


@pytest.mark.parametrize(
    ("counts", "q", "found"),
    [
        ([10, 20, 20, 20], 0.5, (0.1, 0.0, 0.1)),
        ([0, 20, 20, 20], 0.5, (0.15, 0.1, 0.2)),
        ([0, 0, 20, 20], 0.5, (0.3, 0.2, 0.4)),
        ([5, 5, 5, 20], 0.5, None),  # above the last bound: nobody knows how far
        ([3, 3, 3, 13], 0.5, None),  # too few
        ([], 0.5, None),
    ],
)
def test_a_quantile_of_a_histogram_lies_in_its_bucket(
    counts: list[float], q: float, found: tuple[float, float, float] | None
) -> None:
    bracket = bracket_quantile(BOUNDS[: len(counts)], np.array(counts, np.float64), q)
    assert bracket == (None if found is None else pytest.approx(bracket, abs=0))
    assert found is None or (bracket and (bracket.value_s, bracket.low_s, bracket.high_s)) == pytest.approx(found)


@given(st.lists(st.floats(0.001, 0.39), min_size=14, max_size=60), st.sampled_from([0.5, 0.9]))
def test_the_true_quantile_is_within_its_bucket(values: list[float], q: float) -> None:
    ordered = np.sort(np.array(values))
    counts = np.searchsorted(ordered, BOUNDS, side="right").astype(np.float64)
    bracket = bracket_quantile(BOUNDS, counts, q)
    true = ordered[math.ceil(q * len(ordered)) - 1]
    assert bracket is None or bracket.low_s <= true <= bracket.high_s


def test_engines_are_taken_together(tmp_path: Path) -> None:
    rows = [sample(at_s, "up", value, engine=engine) for at_s in (1.0, 0.0) for engine, value in (("0", 2), ("1", 3))]
    table = write_samples(tmp_path, [*rows, sample(0.0, "up", 50.0, target=1), sample(0.0, "up", 7.0, target=None)])
    assert read_series(table, 0, "missing", "up").values.tolist() == [5, 5]
    assert read_series(table, 0, "up", by="max").values.tolist() == [3, 3]
    assert read_series(table, 0, "up").at_s.tolist() == [0, 1]
    assert read_series(table, None, "up").values.tolist() == [7]
    assert len(read_series(table, 0, "missing")) == 0


def test_a_histogram_counts_what_fell_into_it_during_the_run(tmp_path: Path) -> None:
    rows = [
        sample(at_s, "ttft_bucket", value, le=le, engine=engine)
        for engine in ("0", "1")
        for le, first, last in (("0.1", 5, 6), ("+Inf", 9, 20))
        for at_s, value in ((-0.5, first), (9.0, last))
    ]
    bounds, counts = read_histogram(write_samples(tmp_path, rows), 0, "ttft")
    assert (bounds.tolist(), counts.tolist()) == ([0.1, math.inf], [2, 22])


def test_a_quiet_server_and_its_numbers(tmp_path: Path) -> None:
    rows = [
        *of_queue(),
        *counters(
            prompt_tokens=(500, 2700), generation_tokens=(0, 1000), num_preemptions=(3, 5),
            prefix_cache_queries=(100, 2300), prefix_cache_hits=(100, 1200),
            spec_decode_num_draft_tokens=(0, 300), spec_decode_num_accepted_tokens=(0, 240),
        ),
        *(
            sample(at_s, "vllm:time_to_first_token_seconds_bucket", value, le=le)
            for le, last in (("0.04", 2), ("0.06", 20), ("+Inf", 20))
            for at_s, value in ((-0.5, 0), (20.0, last))
        ),
    ]  # fmt: skip
    facts = {"cache": {"num_gpu_blocks": "30", "block_size": "16"}, "engine": {"scheduler_config": {"max_num_seqs": 8}}}
    log = observe(tmp_path, rows, shared=50, environment={"server": facts})
    (server,) = measure_servers(log)
    assert (server.running, server.waiting) == (Level(3.0, 4.0), Level(3.0, 4.0))  # of the run: not before, not after
    assert (server.prompt, server.completion) == (Tokens(2200, 2200), Tokens(1000, 1000))
    assert (server.preemptions, server.hit_share, server.declared_share, server.acceptance) == (2, 0.5, 0.5, 0.8)
    assert (server.capacity_tokens, server.capacity_requests, server.limit_sequences) == (480, 3.2, 8)
    assert server.first_token.p50 is not None
    assert server.first_token.p50.low_s == 0.04
    assert server.first_token.log_p50_s == pytest.approx(0.05)
    assert server.remarks == ()
    told = dict(list_serving(summarize(log)))
    assert told["queue"] == "running 3 (max 4), waiting 3 (max 4); 2 preemptions; 5 samples"
    assert told["tokens"] == "2,200 prompt (here 2,200), 1,000 output (here 1,000)"
    assert told["TTFT"] == "p50 48.9 ms (in 40.0 ms to 60.0 ms), here 50.0 ms from sent"
    assert json.dumps(describe_serving(summarize(log)))
    assert {it.name for it in list_series(log)} >= {"num_requests_running", "prompt_tokens_per_s"}


@pytest.mark.parametrize(
    ("rows", "shared", "remark"),
    [
        (
            counters(prompt_tokens=(0, 2300)),
            0,
            "the server read 2,300 prompt tokens, the requests of this run were 2,200",
        ),
        (counters(prompt_tokens=(2000, 200)), 0, "a counter fell during the run"),
        (of_queue(before=2.0), 0, "4 requests were under way before the run began"),
        (of_queue()[1:4], 0, "no sample from before the first request"),
        (counters(prefix_cache_queries=(0, 2200), prefix_cache_hits=(0, 1400)), 50, "63.6% of the prompt tokens came"),
        (counters(prefix_cache_queries=(0, 2200), prefix_cache_hits=(0, 1210)), 50, None),  # 200 of the chat template
        (counters(prefix_cache_queries=(0, 2200), prefix_cache_hits=(0, 100)), 50, None),  # less is no contradiction
    ],
)
def test_what_cannot_be_of_the_same_traffic_is_remarked(
    rows: list[dict[str, Any]], shared: int, remark: str | None, tmp_path: Path
) -> None:
    (server,) = measure_servers(observe(tmp_path, rows, shared=shared))
    assert len(server.remarks) == (remark is not None)
    assert remark is None or server.remarks[0].startswith(remark)


def test_a_log_without_samples_has_no_servers(tmp_path: Path) -> None:
    log = observe(tmp_path, [])
    assert (measure_servers(log), measure_gpus(log), list_series(log)) == ((), (), ())
    assert list_serving(summarize(log)) == []
    (tmp_path / NAME).unlink()
    assert measure_servers(log) == ()


def test_gpus_of_the_host_that_measured(tmp_path: Path) -> None:
    values = {"gpu_utilization": 0.9, "gpu_memory_used_bytes": 4 << 30, "gpu_memory_total_bytes": 8 << 30}
    values |= {"gpu_power_w": 300.0, "gpu_clock_hz": 1.5e9}
    rows = [sample(at_s, name, value, None, gpu="0") for at_s in (-0.5, 0, 1, 2) for name, value in values.items()]
    rows += [
        sample(at_s, "gpu_throttle_reasons", mask, None, gpu="0") for at_s, mask in ((0, 0x1), (1, 0x4), (2, 0x40))
    ]
    log = observe(tmp_path, rows)
    assert measure_gpus(log) == (
        Gpu(
            gpu="0",
            utilization=Level(0.9, 0.9),
            memory_bytes=Level(4 << 30, 4 << 30),
            memory_total_bytes=8 << 30,
            power_w=Level(300.0, 300.0),
            clock_hz=Level(1.5e9, 1.5e9),
            throttled=2 / 3,
        ),
    )
    (row,) = list_serving(summarize(log))
    assert row == (
        "gpu 0",
        "busy 90 % (max 90 %), memory 4.0 of 8.0 GiB, 300 W (max 300), 1500 MHz, "
        "slowed down by power or heat in 66.7 % of the samples",
    )

"""A log in the files of other programs: what is in them, and that they are whole or not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from logs import make_log, make_planned, synthesize_log
from test_dialect import worked_example

from loadshape.errors import InputError, LogError
from loadshape.log import HEALTH, PLANNED, READS, REQUESTS
from loadshape.results import FORMATS, export_log
from loadshape.summary import Summary, summarize


@pytest.fixture
def summary() -> Summary:
    return summarize(replace(worked_example(), planned=make_planned({}, {"kind": "code"}, {})))


def test_vllm_has_the_figures_of_its_own_definitions(summary: Summary, tmp_path: Path) -> None:
    told = json.loads(export_log(summary, tmp_path / "a.json", "vllm").read_text())
    assert (told["completed"], told["failed"], told["num_prompts"]) == (3, 0, 3)
    assert told["ttfts"] == pytest.approx([0.049, 0.029, 0.1])
    assert told["itls"] == [pytest.approx([0.05, 0.1, 0.2, 0.0, 0.01]), pytest.approx([0.09, 0.06]), []]
    assert told["latencies"] == pytest.approx([0.409, 0.179, 0.1])
    assert (told["input_lens"], told["output_lens"]) == ([10, 20, 0], [4, 3, 0])
    assert (told["total_input_tokens"], told["total_output_tokens"]) == (30, 7)
    assert told["duration"] == pytest.approx(1.149)
    assert told["mean_ttft_ms"] == pytest.approx((49 + 29 + 100) / 3)
    assert told["median_e2el_ms"] == pytest.approx(179)
    assert told["request_throughput"] == pytest.approx(3 / 1.149)
    assert told["errors"] == ["", "", ""]
    assert set(told) >= {"date", "backend", "model_id", "request_goodput", "total_token_throughput", "p99_tpot_ms"}


def test_vllm_lists_failures_as_it_does(tmp_path: Path) -> None:
    summary = summarize(synthesize_log(200, 5, failing=0.3))
    told = json.loads(export_log(summary, tmp_path / "a.json", "vllm").read_text())
    failed = [at for at, error in enumerate(told["errors"]) if error]
    assert len(failed) == told["failed"] > 0
    assert all((told["ttfts"][at], told["itls"][at], told["output_lens"][at]) == (0.0, [], 0) for at in failed)
    assert all(len(told["itls"][at]) == 4 for at in set(range(200)) - set(failed))


def test_aiperf_has_a_record_a_request(summary: Summary, tmp_path: Path) -> None:
    folder = export_log(summary, tmp_path / "a.aiperf", "aiperf")
    records = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    first, metadata = records[0]["metrics"], records[0]["metadata"]
    assert [record["error"] for record in records] == [None, None, None]
    assert {name: it["value"] for name, it in first.items() if name != "inter_chunk_latency"} == pytest.approx(
        {
            "input_sequence_length": 10,
            "time_to_first_token": 99,
            "request_latency": 399,
            "output_sequence_length": 4,
            "inter_token_latency": 100,
        }
    )
    assert first["inter_chunk_latency"] == {"value": pytest.approx([100, 200, 0]), "unit": "ms"}
    run = summary.log.run
    assert metadata["x_request_id"] == f"ls-{run.run}-0"
    assert metadata["request_start_ns"] == run.epoch_realtime_ns + 1_000_000
    assert metadata["request_end_ns"] - metadata["request_start_ns"] == 409_000_000
    told = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert told["time_to_first_token"]["avg"] == pytest.approx((99 + 29 + 100) / 3)
    assert (told["time_to_first_token"]["unit"], told["time_to_first_token"]["count"]) == ("ms", 3)
    assert told["output_token_throughput"] == {"unit": "tokens/sec", "avg": pytest.approx(7 / 1.149)}


def test_aiperf_says_why_a_request_failed(tmp_path: Path) -> None:
    folder = export_log(summarize(synthesize_log(100, 5, failing=0.5)), tmp_path / "a", "aiperf")
    records = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    errors = {record["error"]["type"]: record["error"]["message"] for record in records if record["error"]}
    assert errors["http_error"] == "503 Service Unavailable: queue full"
    assert all(record["metrics"] == {} for record in records if record["error"])


def test_tables_go_out_as_they_are(summary: Summary, tmp_path: Path) -> None:
    folder = export_log(summary, tmp_path / "tables", "parquet")
    assert sorted(path.name for path in folder.iterdir()) == [
        *("health.parquet", "planned.parquet", "reads.parquet", "requests.parquet")
    ]
    for name, schema in {"requests": REQUESTS, "reads": READS, "health": HEALTH, "planned": PLANNED}.items():
        table = pq.read_table(folder / f"{name}.parquet")
        assert table.schema.names == schema.names
        assert table.to_pylist() == getattr(summary.log, name).to_pylist()


def test_csv_has_names_for_codes(summary: Summary, tmp_path: Path) -> None:
    folder = export_log(summary, tmp_path / "tables", "csv")
    table = pc_csv.read_csv(folder / "requests.csv")
    assert table["outcome"].to_pylist() == ["ok", "ok", "in_band_error"]
    assert table["first_token_ns"].to_pylist() == [100_000_000, 530_000_000, 1_100_000_000]
    assert pc_csv.read_csv(folder / "planned.csv")["kind"].to_pylist() == ["chat", "code", "chat"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_log_of_nothing_can_be_exported(format: str, tmp_path: Path) -> None:
    assert export_log(summarize(make_log()), tmp_path / "a", format).exists()


@pytest.mark.parametrize("format", FORMATS)
def test_what_exists_is_replaced_only_when_asked(summary: Summary, format: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(LogError, match="exists; choose another name, or say --force"):
        export_log(summary, tmp_path / "a", format)
    assert (tmp_path / "a").read_text() == "mine"
    export_log(summary, tmp_path / "a", format, force=True)
    assert export_log(summary, tmp_path / "a", format, force=True).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_format_that_is_none(summary: Summary, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="format: expected one of parquet, csv, vllm, aiperf for a log, found 'xls'"):
        export_log(summary, tmp_path / "a", "xls")


def test_what_cannot_be_written_leaves_nothing(summary: Summary, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    patched = pytest.MonkeyPatch()
    with patched.context() as patch:
        patch.setitem(FORMATS, "vllm", refuse)
        with pytest.raises(LogError, match="cannot be written: No space left on device"):
            export_log(summary, tmp_path / "a", "vllm")
    assert list(tmp_path.iterdir()) == []

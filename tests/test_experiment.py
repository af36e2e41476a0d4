"""The ledger: one declared change at a time, and only what was adopted becomes the next baseline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logs import make_log, request_row, synthesize_log
from msgspec import json as encoder
from msgspec import structs

from loadshape.digest import digest_file
from loadshape.errors import InputError
from loadshape.experiment import Charter, Experiment
from loadshape.gate import Gate
from loadshape.log import Log, Shard
from loadshape.manifest import write_manifest
from loadshape.report import render
from loadshape.trace import Trace
from traces import open_loop


def write_log(log: Log, path: Path) -> Path:
    """Write a log from memory, as one worker would have."""
    (path / "worker-00").mkdir(parents=True)
    shards = []
    for name, table in {"requests": log.requests, "reads": log.reads, "health": log.health}.items():
        place = path / "worker-00" / f"{name}.arrows"
        with pa.ipc.new_stream(str(place), table.schema) as stream:
            stream.write_table(table)
        shards.append(Shard(f"worker-00/{name}.arrows", name, table.num_rows, digest_file(place)))
    (path / "environment.json").write_bytes(encoder.encode(log.environment))
    write_manifest(path, log.run, "run.json")
    write_manifest(path, structs.replace(log.manifest, shards=shards, files={}))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    open_loop(2, 100.0).write(tmp_path / "fixed.trace")
    return Trace.open(tmp_path / "fixed.trace")


def play(trace: Trace, path: Path, *, slowness: float = 1.0, **server: Any) -> Path:
    log = synthesize_log(2000, 3, seed=3, slowness=slowness, failing=0.0)
    run = structs.replace(log.run, trace_digest=trace.digest, trace_path=str(trace.path))
    return write_log(
        replace(log, manifest=structs.replace(log.manifest, run=run), environment={"server": server}), path
    )


def start(trace: Trace, tmp_path: Path) -> Experiment:
    gate = Gate(objectives=("ttft.p95 <= 5 s", "errors < 1%"))
    charter = Charter(question="Is it faster?", improve="ttft.p50", gate=gate, trace_digest=trace.digest)
    return Experiment.start(tmp_path / "a.experiment", charter, play(trace, tmp_path / "base.log", flags="a"))


def test_an_invalid_run_is_no_baseline(trace: Trace, tmp_path: Path) -> None:
    rows = [request_row(n, due=n, begun=n + 50, first_token=n + 60, last_token=n + 70, done=n + 71) for n in range(99)]
    log = make_log(rows, trace_digest=trace.digest, trace_path=str(trace.path))
    charter = Charter(
        question="?", improve="ttft.p50", gate=Gate(objectives=("errors < 1%",)), trace_digest=trace.digest
    )
    with pytest.raises(InputError, match="INVALID, so it is no baseline"):
        Experiment.start(tmp_path / "a.experiment", charter, write_log(log, tmp_path / "late.log"))
    assert not (tmp_path / "a.experiment").exists()


def test_a_better_candidate_is_adopted_and_becomes_the_baseline(trace: Trace, tmp_path: Path) -> None:
    ledger = start(trace, tmp_path)
    ledger = ledger.try_change("prefix caching on", play(trace, tmp_path / "b.log", slowness=0.4, flags="b"))
    assert [entry.decision for entry in ledger.entries] == ["baseline", "adopt"]
    assert ledger.baseline.number == 2
    assert ledger.entries[1].facts == ["server.flags: a -> b"]
    ledger = ledger.try_change("back again", play(trace, tmp_path / "c.log", slowness=1.0, flags="c"))
    assert ledger.entries[2].decision == "reject"
    assert ledger.entries[2].against == 2
    assert ledger.baseline.number == 2


def test_what_misses_the_gate_is_rejected(trace: Trace, tmp_path: Path) -> None:
    ledger = start(trace, tmp_path).try_change("slower", play(trace, tmp_path / "b.log", slowness=40.0, flags="b"))
    assert ledger.entries[1].decision == "reject"
    assert "the gate is missed: ttft.p95 <= 5 s" in ledger.entries[1].reasons


def test_two_changes_are_no_candidate(trace: Trace, tmp_path: Path) -> None:
    ledger = start(trace, tmp_path)
    runs = play(trace, tmp_path / "b.log", flags="b", version="2")
    with pytest.raises(InputError, match="2 things were changed at once"):
        ledger.try_change("two things", runs)
    assert len(Experiment.open(ledger.folder).entries) == 1


def test_runs_of_another_trace_are_refused(trace: Trace, tmp_path: Path) -> None:
    ledger = start(trace, tmp_path)
    open_loop(3, 100.0).write(tmp_path / "other.trace")
    other = Trace.open(tmp_path / "other.trace")
    with pytest.raises(InputError, match="but the experiment is of"):
        ledger.try_change("other traffic", play(other, tmp_path / "b.log"))


def test_the_ledger_keeps_what_it_needs(trace: Trace, tmp_path: Path) -> None:
    ledger = start(trace, tmp_path)
    assert Trace.open(ledger.folder / "fixed.trace").digest == trace.digest
    assert ledger.read_runs(ledger.baseline)[0].log.run.trace_digest == trace.digest
    assert str(ledger.folder / "fixed.trace") in ledger.baseline.command
    with pytest.raises(InputError, match="exists"):
        Experiment.start(ledger.folder, ledger.charter, tmp_path / "base.log")


def test_a_change_has_a_name(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected what was changed"):
        start(trace, tmp_path).try_change(" ", tmp_path / "base.log")


def test_every_form_tells_the_history(trace: Trace, tmp_path: Path) -> None:
    ledger = start(trace, tmp_path).try_change("<b>cache</b>", play(trace, tmp_path / "b.log", slowness=0.4, flags="b"))
    text, document, page = render(ledger), json.loads(render(ledger, "json")), render(ledger, "html")
    assert "2. <b>cache</b>: ADOPT" in text
    assert document["accepted"] == 2
    assert "&lt;b&gt;cache" in page
    assert "<b>cache" not in page
    assert "http" not in page.replace("http_error", "")


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a part of an experiment"):
        Experiment.open(tmp_path)

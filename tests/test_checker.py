# Two programs that share no formula read the same log and must say the same, to the last digit.

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import checker
import numpy as np
import pyarrow as pa
import pytest
from checker import check_log
from logs import make_log, read_row, request_row, synthesize_log

from loadshape.digest import digest_file
from loadshape.endpoint import Script, running
from loadshape.log import SCHEMAS, Log, LogManifest, Shard
from loadshape.manifest import write_manifest
from loadshape.recovery import recover
from loadshape.replayer import Settings, replay
from loadshape.summary import summarize
from loadshape.target import Target
from traces import ask, make_trace


def tell(log: Log) -> dict[str, Any]:
    """Return what the program says, in the checker's form."""
    summary = summarize(log)
    names = ("count", "p50_s", "p95_s", "p99_s")
    metrics = ("lateness", "ttft", "e2e", "tpot", "icl")
    latencies = {metric: {name: getattr(getattr(summary, metric), name) for name in names} for metric in metrics}
    return {"outcomes": summary.outcomes} | latencies


def store(log: Log, folder: Path, workers: int) -> Log:
    """Write a log from memory, its requests dealt out to workers, as they would have written it."""
    shards = []
    for worker in range(workers):
        (folder / f"worker-{worker:02d}").mkdir(parents=True)
        for name, schema in SCHEMAS.items():
            table: pa.Table = getattr(log, name)
            column = "worker" if name == "health" else "request"
            mine = table.filter(pa.array(np.asarray(table[column]) % workers == worker))
            path = folder / f"worker-{worker:02d}" / f"{name}.arrows"
            with pa.ipc.new_stream(str(path), schema) as stream:
                stream.write_table(mine, max_chunksize=100)
            shards.append(Shard(str(path.relative_to(folder)), name, mine.num_rows, digest_file(path)))
    about = {"run": log.run, "outcomes": log.manifest.outcomes, "ended": log.manifest.ended}
    write_manifest(folder, log.run, "run.json")
    write_manifest(folder, LogManifest(shards=shards, ended_ns=log.manifest.ended_ns, **about))
    return Log.open(folder)


def served(number: int, *, due: float, tokens: int | None = 3, **more: Any) -> dict[str, Any]:
    stamps = {"due": due, "begun": due + 0.1, "sent": due + 0.2, "first_token": due + 7, "last_token": due + 9 + number}
    return request_row(number, **(stamps | {"done": due + 10 + number, "completion_tokens": tokens} | more))


BY_HAND = {
    "nothing": make_log(),
    "one": make_log([served(0, due=0)], [read_row(0, 7), read_row(0, 8, deltas=0), read_row(0, 9)]),
    "failures": make_log(
        [
            served(0, due=0),
            request_row(1, "refused", due=1, begun=1.5, done=2),
            request_row(2, "not_reached", due=2),
            request_row(3, "not_reached"),
            request_row(4, "not_sent", due=3),
            served(5, due=4, outcome="truncated"),
            request_row(6, "lost"),
        ]
    ),
    "few tokens": make_log([served(at, due=at, tokens=tokens) for at, tokens in enumerate((None, 0, 1, 2, 900))]),
    "at the floors": make_log([served(at, due=at * 3) for at in range(133)]),
    "one below": make_log([served(at, due=at * 3) for at in range(132)]),
    "late turns": make_log([served(at, due=at * 900) for at in range(40)]),  # past the planned 20 s
    "many": synthesize_log(1500, 12),
    "cut short": make_log([served(at, due=at * 300.0) for at in range(60)], duration_s=4.0),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str, workers: int, tmp_path: Path) -> None:
    log = store(BY_HAND[name], tmp_path / "a.log", workers)
    assert check_log(log.path) == tell(log)


def test_it_disagrees_with_another_log(tmp_path: Path) -> None:
    log = store(BY_HAND["many"], tmp_path / "a.log", 1)
    other = store(synthesize_log(1500, 12, seed=8), tmp_path / "b.log", 1)
    found, told = check_log(log.path), tell(other)
    assert all(found[name] != told[name] for name in ("ttft", "e2e", "tpot", "icl"))


def test_it_wants_one_row_for_every_request(tmp_path: Path) -> None:
    rows = [served(0, due=0), served(0, due=1)]
    log = store(make_log(rows, planned=2), tmp_path / "a.log", 1)
    with pytest.raises(ValueError, match="not one row for every planned request"):
        check_log(log.path)


def test_it_owes_nothing_to_the_program() -> None:
    text = Path(checker.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.partition(".")[0] in ("loadshape", "numpy") for name in imported)
    assert len(text.splitlines()) <= 120


@pytest.mark.slow
def test_a_real_run_and_what_recovery_makes_of_half_of_it(tmp_path: Path) -> None:
    with running(Script(ttft_s=0.01, itl_s=0.002)) as url:
        trace = make_trace(*(ask(at * 3.0, output_tokens=5) for at in range(700)))
        log = replay(trace, Target(url), log=tmp_path / "a.log", settings=Settings(processes=2))
    told = tell(log)
    assert told["ttft"]["p99_s"] is not None
    assert check_log(log.path) == told
    (log.path / "manifest.json").unlink()
    shard = log.path / "worker-01" / "requests.arrows"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    half = recover(log.path, tmp_path / "b.log", trace=trace)
    assert half.manifest.outcomes["lost"] > 0
    assert check_log(half.path) == tell(half)

# A log is whole or refused in one line that names the file. The logs here are written by hand on the disk.

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from logs import health_row, make_log, make_planned, make_run, read_row, request_row

from loadshape.digest import digest_file
from loadshape.errors import LogError
from loadshape.log import (
    OUTCOMES,
    REQUESTS,
    SCHEMAS,
    Log,
    LogManifest,
    Outcome,
    Shard,
    count_outcomes,
    digest_conditions,
    read_stream,
    write_planned,
)
from loadshape.manifest import write_manifest
from loadshape.recovery import salvage_stream
from loadshape.validity import judge

SHARES = [[request_row(2, "ok", due=5), request_row(0, "ok", due=0)], [request_row(1, "refused", due=2, worker=1)]]
READS = [[read_row(2, 20), read_row(0, 7), read_row(0, 9), read_row(2, 25)], []]
HEALTH = [[health_row(100), health_row(200)], [health_row(150, worker=1)]]


def write_log(folder: Path, *, planned: int = 3, shares: Any = None, **manifest: Any) -> Path:
    """Write a log of two workers by hand."""
    run, shards = make_run(planned, processes=2), []
    for worker, rows in enumerate(zip(shares or SHARES, READS, HEALTH, strict=True)):
        part = make_log(*rows)
        (folder / f"worker-{worker:02d}").mkdir(parents=True)
        for name, schema in SCHEMAS.items():
            path = folder / f"worker-{worker:02d}" / f"{name}.arrows"
            table: pa.Table = getattr(part, name)
            with pa.ipc.new_stream(str(path), schema) as stream:
                stream.write_table(table, max_chunksize=1)
            shards.append(Shard(str(path.relative_to(folder)), name, table.num_rows, digest_file(path)))
    rows_of_all = pa.concat_tables([make_log(share).requests for share in shares or SHARES])
    about = {"run": run, "shards": shards, "outcomes": count_outcomes(rows_of_all), "ended": "complete"}
    write_manifest(folder, run, "run.json")
    write_manifest(folder, LogManifest(**(about | {"ended_ns": 10**9} | manifest)))
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_log(tmp_path / "a.log")


def edit_manifest(folder: Path, **changes: Any) -> None:
    """Change fields of the manifest; an int counts as the shard at that place, of which fields change."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= changes
    (folder / "manifest.json").write_text(json.dumps(manifest))


def edit_shard(folder: Path, at: int, **changes: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][at] |= changes
    (folder / "manifest.json").write_text(json.dumps(manifest))


# Reading


def test_the_shares_of_all_workers_are_one_log(path: Path) -> None:
    log = Log.open(path)
    log.verify()
    log.verify("sha256:" + "ab" * 32)
    assert log.requests["request"].to_pylist() == [0, 1, 2]
    assert log.requests["outcome"].to_pylist() == ["ok", "refused", "ok"]
    assert [(row["request"], row["at_ns"]) for row in log.reads.to_pylist()] == [
        (0, 7_000_000),
        (0, 9_000_000),
        (2, 20_000_000),
        (2, 25_000_000),
    ]
    assert log.health["worker"].to_pylist() == [0, 0, 1]
    assert log.run == make_run(3, processes=2)
    assert log.environment == {}
    assert log.duration_s == 1.0  # ended before its planned 20 s


def test_a_log_without_shards_is_empty_and_not_an_error(tmp_path: Path) -> None:
    write_manifest(tmp_path, LogManifest(run=make_run(0), shards=[], outcomes={}, ended="complete", ended_ns=0))
    log = Log.open(tmp_path)
    log.verify()
    assert (log.requests.num_rows, log.reads.num_rows, log.duration_s) == (0, 0, 20.0)


def test_reads_come_in_parts_in_the_order_in_which_they_were_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(path)
    monkeypatch.setattr("loadshape.shard.PART_ROWS", 3)
    parts = list(log.read_parts("at_ns", "request"))
    assert [part.num_rows for part in parts] == [3, 1]
    assert [row for part in parts for row in part["request"].to_pylist()] == [2, 0, 0, 2]
    assert parts[0].schema.names == ["request", "at_ns"]
    held = replace(log, held=log.reads)
    assert [part.num_rows for part in held.read_parts("request")] == [3, 1]
    assert (log.read_rows, held.read_rows, log.reads is log.reads) == (4, 4, True)


def damage_reads(log: Path) -> None:
    path = log / "worker-00/reads.arrows"
    path.write_bytes(path.read_bytes()[:-200])


READS_SHARD = "worker-00/reads.arrows"
LATER: list[tuple[str, Callable[[Path], Any], str]] = [
    ("cut", damage_reads, f"{READS_SHARD}: damaged, not a whole Arrow stream"),
    ("fewer rows", lambda log: edit_shard(log, 1, rows=5), f"{READS_SHARD}: has 4 rows, the manifest says 5"),
]


@pytest.mark.parametrize(("damage", "message"), [row[1:] for row in LATER], ids=[row[0] for row in LATER])
def test_damaged_reads_are_refused_when_they_are_read(path: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(path)
    log = Log.open(path)
    for read in (lambda: log.reads, lambda: list(log.read_parts("request")), lambda: log.tally, lambda: judge(log)):
        with pytest.raises(LogError) as caught:
            read()
        assert message in str(caught.value)


def test_reads_that_are_none_are_refused_at_once(path: Path) -> None:
    (path / READS_SHARD).write_bytes(b"x" * 999)
    with pytest.raises(LogError, match=f"{READS_SHARD}: damaged"):
        Log.open(path)


def test_what_was_planned_lies_beside_it(path: Path) -> None:
    assert Log.open(path).planned is None
    planned = make_planned({"kind": "b"}, {"kind": "a"}, {})
    write_planned(path, planned.take([2, 0, 1]))
    edit_manifest(path, files=digest_conditions(path))
    log = Log.open(path)
    log.verify()
    assert log.planned is not None
    assert log.planned.equals(planned)
    (path / "planned.arrow").write_bytes(b"")
    with pytest.raises(LogError, match=r"planned\.arrow: damaged"):
        Log.open(path)


def test_the_environment_lies_beside_it(path: Path) -> None:
    (path / "environment.json").write_text('{"client": {"cores": 2}}')
    assert Log.open(path).environment == {"client": {"cores": 2}}


def test_outcomes_are_counted_in_their_order() -> None:
    rows = [request_row(at, name) for at, name in enumerate(("lost", "ok", "refused", "ok"))]
    assert list(count_outcomes(make_log(rows).requests).items()) == [("ok", 2), ("refused", 1), ("lost", 1)]
    assert count_outcomes(REQUESTS.empty_table()) == {}


def test_the_list_of_outcomes_is_a_format() -> None:
    # Stored codes: a new one may be added at the end, none may move.
    assert (
        *("ok", "truncated", "in_band_error", "http_error", "no_token", "refused", "reset", "protocol_error"),
        *("timeout_connect", "timeout_first", "timeout_idle", "timeout_total"),
        *("cancelled", "not_sent", "not_reached", "lost"),
    ) == OUTCOMES
    assert [Outcome[name].value for name in OUTCOMES] == list(range(16))


def test_a_log_of_version_1_has_null_for_what_it_lacks(path: Path) -> None:
    older = pa.schema([item for item in REQUESTS if item.name != "resent_ns"])
    for worker, at in ((0, 0), (1, 3)):
        shard = path / f"worker-{worker:02d}" / "requests.arrows"
        table = read_stream(shard, REQUESTS).select(older.names)
        scratch = shard.with_name("older")  # the table is mapped
        with pa.ipc.new_stream(str(scratch), older) as stream:
            stream.write_table(table)
        scratch.replace(shard)
        edit_shard(path, at, sha256=digest_file(shard))
    edit_manifest(path, version=1)
    log = Log.open(path)
    log.verify()
    assert log.requests.schema.equals(REQUESTS)
    assert log.requests["resent_ns"].to_pylist() == [None] * 3
    assert log.requests["outcome"].to_pylist() == ["ok", "refused", "ok"]
    assert salvage_stream(path / SHARD, REQUESTS).table["resent_ns"].null_count == 2


# Refusing


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def replace_table(folder: Path, table: pa.Table) -> None:
    path = folder / "worker-00" / "requests.arrows"
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)
    edit_shard(folder, 0, sha256=digest_file(path), rows=table.num_rows)


SHARD = "worker-00/requests.arrows"
RENAMED = REQUESTS.empty_table().rename_columns(["number", *REQUESTS.names[1:]])
DAMAGE: list[tuple[str, Callable[[Path], Any], str]] = [
    ("no manifest", lambda log: (log / "manifest.json").unlink(), "a.log: incomplete: the run was cut before"),
    ("half a manifest", lambda log: cut(log / "manifest.json"), "manifest.json: not a valid manifest"),
    ("a trace", lambda log: edit_manifest(log, format="loadshape trace"), "format: expected 'loadshape log'"),
    ("of the future", lambda log: edit_manifest(log, version=3, hue=1), "reads log versions 1 to 2, found 3; upgrade"),
    ("unknown key", lambda log: edit_manifest(log, hue=1), "unknown field `hue`"),
    ("no shard", lambda log: (log / SHARD).unlink(), f"{SHARD}: named by the manifest, but missing"),
    ("half a shard", lambda log: cut(log / SHARD), f"{SHARD}: damaged, not a whole Arrow stream"),
    ("no bytes", lambda log: (log / SHARD).write_bytes(b""), f"{SHARD}: damaged, not a whole Arrow stream"),
    ("no Arrow", lambda log: (log / SHARD).write_bytes(b"x" * 999), f"{SHARD}: damaged, not a whole Arrow stream"),
    ("other columns", lambda log: replace_table(log, RENAMED), f"{SHARD}: its columns are not those of log version 2"),
    ("fewer rows", lambda log: edit_shard(log, 0, rows=3), f"{SHARD}: has 2 rows, the manifest says 3"),
    ("leads up", lambda log: edit_shard(log, 0, path="../x.arrows"), "names '../x.arrows', which is outside"),
    ("leads away", lambda log: edit_shard(log, 0, path="/etc/passwd"), "names '/etc/passwd', which is outside"),
    ("no name", lambda log: edit_shard(log, 0, path=""), "names '', which is outside"),
    ("environment", lambda log: (log / "environment.json").write_text("{"), "environment.json: not valid JSON"),
]


def link_away(log: Path) -> None:
    (log.parent / "away.arrows").write_bytes((log / SHARD).read_bytes())
    (log / SHARD).unlink()
    (log / SHARD).symlink_to(log.parent / "away.arrows")


DAMAGE.append(("link away", link_away, f"names '{SHARD}', which is outside"))


@pytest.mark.parametrize(("damage", "message"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_damage_is_refused_in_one_line(path: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(path)
    with pytest.raises(LogError) as caught:
        Log.open(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"expected a log .a folder with manifest.json., found nothing"):
        Log.open(tmp_path / "nowhere.log")
    with pytest.raises(LogError, match=r"no manifest\.json, so this log was never finished, or is no log"):
        Log.open(tmp_path)


def test_a_changed_byte_that_arrow_does_not_see_is_seen_by_verify(path: Path) -> None:
    raw = bytearray((path / "worker-00/reads.arrows").read_bytes())
    at = raw.rindex((20_000_000).to_bytes(8, "little"))
    raw[at] += 1
    (path / "worker-00/reads.arrows").write_bytes(raw)
    log = Log.open(path)
    with pytest.raises(LogError, match=r"worker-00/reads\.arrows: sha256 is [0-9a-f]{64}, the manifest says"):
        log.verify()


@pytest.mark.parametrize(
    ("shares", "planned", "message"),
    [
        (SHARES, 4, "4 requests were planned, 3 have a row"),
        (SHARES, 2, "2 requests were planned, 3 have a row"),
        ([SHARES[0], [request_row(0, "refused")]], 3, "3 requests were planned, 2 have a row"),
        ([SHARES[0], [request_row(7, "refused")]], 3, "3 requests were planned"),
    ],
)
def test_every_planned_request_has_one_row(tmp_path: Path, shares: Any, planned: int, message: str) -> None:
    log = Log.open(write_log(tmp_path / "b.log", shares=shares, planned=planned))
    with pytest.raises(LogError, match=message):
        log.verify()


def test_outcomes_must_add_up(tmp_path: Path) -> None:
    log = Log.open(write_log(tmp_path / "b.log", outcomes={"ok": 3}))
    with pytest.raises(LogError, match=r"outcomes are .*'refused': 1.*, the manifest says .*'ok': 3"):
        log.verify()


def test_a_log_of_another_trace_is_refused(path: Path) -> None:
    with pytest.raises(LogError, match=r"is of trace sha256:abab.*, not of sha256:other"):
        Log.open(path).verify("sha256:other")


def test_a_manifest_reads_back_as_it_was_written(path: Path) -> None:
    manifest = Log.open(path).manifest
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=LogManifest) == manifest

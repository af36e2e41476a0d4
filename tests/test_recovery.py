# A cut log becomes a complete one: whole batches are kept, the rest is told, and nothing is made up. The logs here
# are written by hand and cut by hand; what real crashes leave is in end_to_end/test_faults.py.

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from cluster.invented import make_node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logs import health_row, make_log, make_run, read_row, request_row

from loadshape.cli import app
from loadshape.errors import LogError, TraceError
from loadshape.lease import holding
from loadshape.log import SCHEMAS, Log, read_planned, write_planned
from loadshape.manifest import write_manifest
from loadshape.nodes import write_nodes
from loadshape.recovery import (
    UNKNOWN_NODE,
    UNKNOWN_SESSION,
    UNKNOWN_TARGET,
    UNKNOWN_WORKER,
    recover,
    salvage_stream,
)
from loadshape.summary import summarize
from loadshape.trace import Trace
from loadshape.validity import judge
from traces import ask, make_trace

ROWS = 12
TRACE = make_trace(*(ask(at * 5.0, session=at // 2, turn=at % 2) for at in range(ROWS)))


def serve(number: int, worker: int) -> dict[str, Any]:
    """Return the row of a request with two reads."""
    due = number * 5.0
    stamps = {"due": due, "begun": due, "sent": due, "written": due, "first_token": due + 7, "last_token": due + 9}
    place = {"session": number // 2, "turn": number % 2, "worker": worker}
    return request_row(number, done=due + 9, reads=2, events=2, bytes_in=400, **stamps, **place)


def write_cut_log(folder: Path, *, trace_path: str = "", workers: int = 2, **run: Any) -> Path:
    """Write what two workers leave that were killed after their last batch: whole batches, no end, no manifest."""
    conditions = {"processes": workers, "trace_digest": TRACE.digest, "trace_path": trace_path}
    write_manifest_of(folder, **(conditions | run))
    for worker in range(workers):
        mine = [number for number in range(ROWS) if number // 2 % workers == worker]
        part = make_log(
            [serve(number, worker) for number in mine],
            [read_row(number, number * 5.0 + at) for number in mine for at in (7, 9)],
            [health_row(10.0 * at, worker=worker) for at in range(3)],
        )
        for name, schema in SCHEMAS.items():
            path = folder / f"worker-{worker:02d}" / f"{name}.arrows"
            path.parent.mkdir(exist_ok=True)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
                stream.write_table(getattr(part, name), max_chunksize=2)
            path.write_bytes(path.read_bytes()[:-8])
    return folder


def write_manifest_of(folder: Path, **run: Any) -> None:
    folder.mkdir()
    write_manifest(folder, make_run(ROWS, **run), "run.json")
    (folder / "environment.json").write_text('{"client": {"cores": 2}}')


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    trace = TRACE.write(tmp_path / "a.trace")
    return write_cut_log(tmp_path / "a.log", trace_path=str(trace), shares=[6, 6])


def drop_end(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


# What is kept


def test_streams_without_an_end_lose_nothing(cut: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in cut.rglob("*") if path.is_file()}
    log = recover(cut, tmp_path / "b.log")
    log.verify(TRACE.digest)
    assert log.manifest.outcomes == {"ok": ROWS}
    assert (log.requests.num_rows, log.reads.num_rows, log.health.num_rows) == (ROWS, 2 * ROWS, 6)
    assert log.requests.to_pylist() == [serve(number, number // 2 % 2) for number in range(ROWS)]
    assert log.manifest.ended == "recovered: every request has its row, but the log was not whole"
    assert log.manifest.notes[0] == (
        "worker 0: 6 of 6 requests have a row; last sign at 0.054 s; "
        "requests not ended, reads not ended, health not ended"
    )
    assert log.environment == {"client": {"cores": 2}}
    assert {path: path.read_bytes() for path in cut.rglob("*") if path.is_file()} == before


def test_a_torn_batch_is_lost_and_counted_in_bytes(cut: Path, tmp_path: Path) -> None:
    whole = (cut / "worker-01/requests.arrows").stat().st_size
    drop_end(cut / "worker-01/requests.arrows", 100)
    log = recover(cut, tmp_path / "b.log")
    log.verify()
    assert log.manifest.outcomes == {"ok": 10, "lost": 2}
    assert log.manifest.ended == "recovered: 2 of 12 requests are lost"
    kept = salvage_stream(cut / "worker-01/requests.arrows", SCHEMAS["requests"])
    assert (kept.state, kept.table.num_rows) == ("cut", 4)
    assert 0 < kept.lost_bytes < whole - 100
    assert log.manifest.notes[1] == (
        "worker 1: 4 of 6 requests have a row; last sign at 0.064 s; "
        f"requests cut ({kept.lost_bytes:,} bytes behind 4 rows are lost), reads not ended, health not ended"
    )
    assert log.manifest.notes[2] == "4 reads of 2 lost requests are kept"


def test_who_a_lost_request_was_stands_in_the_trace(cut: Path, tmp_path: Path) -> None:
    drop_end(cut / "worker-01/requests.arrows", 100)
    lost = [row for row in recover(cut, tmp_path / "b.log").requests.to_pylist() if row["outcome"] == "lost"]
    known = {"error": "the log stops before its end", "worker": 1, "reads": 2, "events": 2, "bytes_in": 400}
    assert lost == [
        request_row(10, "lost", due=50, session=5, turn=0, **known),
        request_row(11, "lost", due=55, session=5, turn=1, **known),
    ]


def test_rows_may_lack_their_reads(cut: Path, tmp_path: Path) -> None:
    drop_end(cut / "worker-00/reads.arrows", 100)
    log = recover(cut, tmp_path / "b.log")
    assert log.manifest.outcomes == {"ok": ROWS}
    assert "2 reads are lost of requests that have a row: their ICL and ITL lack gaps" in log.manifest.notes


def empty(log: Path) -> None:
    for path in (log / "worker-00").iterdir():
        path.write_bytes(b"")


def scribble(log: Path) -> None:
    (log / "worker-00" / "requests.arrows").write_bytes(b"x" * 999)


LOSSES: list[tuple[str, Callable[[Path], Any], str]] = [
    ("no folder", lambda log: shutil.rmtree(log / "worker-00"), "requests missing, reads missing, health missing"),
    ("no bytes", empty, "requests empty, reads empty, health empty"),
    ("no Arrow", scribble, "requests cut (999 bytes behind 0 rows are lost), reads not ended, health not ended"),
]


@pytest.mark.parametrize(("lose", "told"), [row[1:] for row in LOSSES], ids=[row[0] for row in LOSSES])
def test_a_worker_that_left_nothing(cut: Path, tmp_path: Path, lose: Callable[[Path], Any], told: str) -> None:
    lose(cut)
    log = recover(cut, tmp_path / "b.log")
    log.verify()
    assert log.manifest.outcomes == {"ok": 6, "lost": 6}
    assert log.manifest.notes[0].endswith(told)


def test_a_closed_log_that_was_damaged_since(tmp_path: Path, cut: Path) -> None:
    closed = recover(cut, tmp_path / "b.log").path
    drop_end(closed / "worker-00/requests.arrows", 600)
    assert recover(closed, tmp_path / "c.log").manifest.outcomes["lost"] > 0


def test_a_damaged_environment_is_left_out(cut: Path, tmp_path: Path) -> None:
    (cut / "environment.json").write_text('{"client":')
    log = recover(cut, tmp_path / "b.log")
    assert (log.environment, log.manifest.notes[-1]) == ({}, "environment.json: damaged, left out")


# Without the trace


def test_without_the_trace_nothing_is_made_up(tmp_path: Path) -> None:
    log = write_cut_log(tmp_path / "a.log", trace_path=str(tmp_path / "gone.trace"))
    shutil.rmtree(log / "worker-01")
    recovered = recover(log, tmp_path / "b.log")
    recovered.verify()
    lost = [row for row in recovered.requests.to_pylist() if row["outcome"] == "lost"]
    assert {(row["session"], row["worker"], row["due_ns"]) for row in lost} == {(UNKNOWN_SESSION, UNKNOWN_WORKER, None)}
    assert recovered.planned is None
    assert recovered.manifest.notes[-1].startswith("the trace is not at hand")
    given = recover(log, tmp_path / "c.log", trace=TRACE)
    assert not given.manifest.notes[-1].startswith("the trace is not at hand")
    assert given.requests["session"].to_pylist() == [number // 2 for number in range(ROWS)]


def test_whose_a_lost_request_was_follows_from_its_session(tmp_path: Path) -> None:
    cut = write_cut_log(tmp_path / "a.log", workers=3)
    write_planned(cut, TRACE.requests)
    shutil.rmtree(cut / "worker-02")
    rows = recover(cut, tmp_path / "b.log").requests.to_pylist()
    assert [row["worker"] for row in rows] == [number // 2 % 3 for number in range(ROWS)]
    assert {row["outcome"] for row in rows if row["worker"] == 2} == {"lost"}


def test_rows_that_were_dealt_otherwise_are_believed(tmp_path: Path) -> None:
    cut = write_cut_log(tmp_path / "a.log", workers=3)
    write_planned(cut, TRACE.requests)
    shutil.rmtree(cut / "worker-02")
    for worker in (0, 1):
        rename_worker(cut / f"worker-{worker:02d}/requests.arrows", 1 - worker)
    lost = [row for row in recover(cut, tmp_path / "b.log").requests.to_pylist() if row["outcome"] == "lost"]
    assert {row["worker"] for row in lost} == {UNKNOWN_WORKER}


def rename_worker(path: Path, worker: int) -> None:
    rows = [row | {"worker": worker} for row in salvage_stream(path, SCHEMAS["requests"]).table.to_pylist()]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SCHEMAS["requests"]) as stream:
        stream.write_table(make_log(rows).requests)


# Several nodes


def test_a_lost_node_has_its_requests(tmp_path: Path) -> None:
    cut = write_cut_log(tmp_path / "a.log", workers=2, processes=1, nodes=2, shares=[6, 6])
    write_planned(cut, TRACE.requests)
    write_nodes(cut, [make_node(0), make_node(1, lost="not heard for 3 s")])
    shutil.rmtree(cut / "worker-01")
    log = recover(cut, tmp_path / "b.log", ended="incomplete: node 1 was lost", notes=["node 1 was lost"])
    log.verify(TRACE.digest)
    lost = [row for row in log.requests.to_pylist() if row["outcome"] == "lost"]
    assert [(row["node"], row["worker"], row["request"]) for row in lost] == [
        (1, 1, number) for number in (2, 3, 6, 7, 10, 11)
    ]
    assert (log.manifest.ended, log.manifest.notes[0]) == ("incomplete: node 1 was lost", "node 1 was lost")
    assert any(note.startswith("worker 1 on node 1: 0 of 6 requests have a row") for note in log.manifest.notes)
    assert [it.lost for it in log.nodes] == ["", "not heard for 3 s"]
    assert judge(log).status == "INVALID"


def test_all_workers_of_all_nodes_are_expected(tmp_path: Path) -> None:
    settings = {"probe_share": 0.01}
    cut = write_cut_log(tmp_path / "a.log", workers=1, processes=2, nodes=2, settings=settings)
    log = recover(cut, tmp_path / "b.log", trace=TRACE)
    told = [note.partition(":")[0] for note in log.manifest.notes if note.startswith("worker")]
    assert told == [f"worker {worker} on node {worker // 3}" for worker in range(6)]


def test_without_the_trace_a_node_is_not_made_up(tmp_path: Path) -> None:
    cut = write_cut_log(tmp_path / "a.log", workers=2, processes=1, nodes=2)
    shutil.rmtree(cut / "worker-01")
    lost = [row for row in recover(cut, tmp_path / "b.log").requests.to_pylist() if row["outcome"] == "lost"]
    assert {(row["node"], row["worker"]) for row in lost} == {(UNKNOWN_NODE, UNKNOWN_WORKER)}


def test_damaged_nodes_are_left_out(cut: Path, tmp_path: Path) -> None:
    (cut / "nodes.json").write_text("[{")
    log = recover(cut, tmp_path / "b.log")
    assert (log.nodes, log.manifest.notes[-1]) == ([], "nodes.json: damaged, left out")


def test_a_log_that_holds_what_was_planned_needs_no_trace(tmp_path: Path) -> None:
    cut = write_cut_log(tmp_path / "a.log")
    write_planned(cut, TRACE.requests)
    drop_end(cut / "worker-01/requests.arrows", 100)
    log = recover(cut, tmp_path / "b.log")
    assert log.manifest.outcomes["lost"] > 0
    assert log.requests["session"].to_pylist() == [number // 2 for number in range(ROWS)]
    assert log.planned is not None
    assert log.planned.equals(read_planned(cut))
    log.verify(TRACE.digest)


def test_a_damaged_table_of_what_was_planned_is_none(cut: Path, tmp_path: Path) -> None:
    write_planned(cut, TRACE.requests)
    drop_end(cut / "planned.arrow", 100)
    log = recover(cut, tmp_path / "b.log")
    assert log.planned is not None  # from the trace
    assert log.planned.num_rows == ROWS


def test_a_trace_that_has_changed_is_not_that_of_the_run(cut: Path, tmp_path: Path) -> None:
    other = make_trace(ask(0.0))
    with pytest.raises(TraceError, match=r"is sha256:.*, but the run was of sha256:"):
        recover(cut, tmp_path / "b.log", trace=other)
    other.write(tmp_path / "a.trace", force=True)  # where the run found its own
    shutil.rmtree(cut / "worker-01")
    assert recover(cut, tmp_path / "b.log").manifest.notes[-1].startswith("the trace is not at hand")


# What is refused


def write_twice(log: Path) -> None:
    shutil.copytree(log / "worker-00", log / "worker-02")


def rename_column(log: Path) -> None:
    with pa.ipc.new_stream(str(log / "worker-00/reads.arrows"), pa.schema([("at", pa.int64())])) as stream:
        stream.write_table(pa.table({"at": [1]}))


REFUSED: list[tuple[str, Callable[[Path], Any], str]] = [
    ("never started", lambda log: (log / "run.json").unlink(), "run.json: cannot be read, so nothing was sent"),
    ("half a run.json", lambda log: drop_end(log / "run.json", 9), "run.json: not the conditions of a run"),
    ("two rows", write_twice, "request 0: has two rows, which no crash explains"),
    ("other columns", rename_column, "worker-00/reads.arrows: its columns are not those of log version 2"),
]


@pytest.mark.parametrize(("damage", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_no_crash_explains_is_refused(
    cut: Path, tmp_path: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(cut)
    with pytest.raises(LogError) as caught:
        recover(cut, tmp_path / "b.log")
    assert message in str(caught.value)
    assert not (tmp_path / "b.log").exists()


def test_a_row_of_a_request_that_was_never_planned_is_refused(tmp_path: Path) -> None:
    log = write_cut_log(tmp_path / "a.log")
    edit_run(log, planned=7)
    with pytest.raises(LogError, match="request 11: 7 were planned"):
        recover(log, tmp_path / "b.log")


def edit_run(log: Path, **changes: Any) -> None:
    (log / "run.json").write_text(json.dumps(json.loads((log / "run.json").read_text()) | changes))


def test_a_complete_log_needs_no_recovery(cut: Path, tmp_path: Path) -> None:
    recover(cut, tmp_path / "b.log")
    with pytest.raises(LogError, match=r"b\.log: is complete, there is nothing to recover"):
        recover(tmp_path / "b.log", tmp_path / "c.log")


def test_nothing_is_written_into_the_old_log_or_over_another_thing(cut: Path, tmp_path: Path) -> None:
    for place in (cut, cut / "new.log", cut / ".." / cut.name / "new.log"):
        with pytest.raises(LogError, match="lies in the log that is to be recovered"):
            recover(cut, place, force=True)
    recover(cut, tmp_path / "b.log")
    with pytest.raises(LogError, match=r"b\.log: exists"):
        recover(cut, tmp_path / "b.log")
    recover(cut, tmp_path / "b.log", force=True)


# What comes of it


def test_two_recoveries_are_equal(cut: Path, tmp_path: Path) -> None:
    drop_end(cut / "worker-01/requests.arrows", 100)
    first, second = (recover(cut, tmp_path / name) for name in ("b.log", "c.log"))
    assert first.requests.equals(second.requests)
    assert first.reads.equals(second.reads)
    assert first.manifest == second.manifest


def test_a_recovered_log_is_never_valid_and_says_why(cut: Path, tmp_path: Path) -> None:
    whole = judge(recover(cut, tmp_path / "b.log"))
    (end,) = [check for check in whole.checks if check.name == "end of the run"]
    assert (end.status, end.measured[:10]) == ("suspect", "recovered:")
    drop_end(cut / "worker-01/requests.arrows", 100)
    verdict = judge(recover(cut, tmp_path / "c.log"))
    assert verdict.status == "INVALID"
    assert "recovered: 2 of 12 requests are lost" in [check.measured for check in verdict.reasons]
    assert "12 rows for 12 planned requests, 2 lost" in [check.measured for check in verdict.reasons]


def test_a_lost_request_counts_as_failed_where_it_fell_due(cut: Path, tmp_path: Path) -> None:
    drop_end(cut / "worker-01/requests.arrows", 100)
    summary = summarize(recover(cut, tmp_path / "b.log"))
    assert summary.ttft.count == 10
    assert summary.ttft_with_failures.count == 12


def test_a_report_names_the_command(cut: Path) -> None:
    with pytest.raises(LogError, match=rf"incomplete.*save what is there with: loadshape recover {cut} -o NEW\.log"):
        app(["report", str(cut)])


def test_the_command(cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "b.log"
    assert app(["recover", str(cut), "-o", str(new)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == Log.open(new).manifest.ended
    assert app(["recover", str(cut), "-o", str(new), "--force", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["planned"], told["outcomes"]) == (str(new), ROWS, {"ok": ROWS})
    assert told["notes"] == Log.open(new).manifest.notes


# A stream may be cut anywhere


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_stream_cut_anywhere_gives_its_whole_batches(cut: Path, name: str) -> None:
    path = cut / "worker-00" / f"{name}.arrows"
    whole, rows = path.read_bytes(), salvage_stream(path, SCHEMAS[name]).table
    kept = []
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        found = salvage_stream(path, SCHEMAS[name])
        assert found.table.equals(rows.slice(0, found.table.num_rows))
        assert found.lost_bytes <= size
        kept.append(found.table.num_rows)
    assert kept == sorted(kept)
    assert set(kept) >= set(range(0, rows.num_rows - 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["requests", "reads"])
def test_a_stream_cut_anywhere_gives_a_log_without_invented_rows(cut: Path, tmp_path: Path, name: str) -> None:
    path = cut / "worker-00" / f"{name}.arrows"
    whole = path.read_bytes()
    before = [serve(number, number // 2 % 2) for number in range(ROWS)]
    for size in range(0, len(whole), 97 * 5):
        path.write_bytes(whole[:size])
        log = recover(cut, tmp_path / "b.log", force=True)
        log.verify()
        assert log.reads.num_rows <= 2 * ROWS
        kept = [row for row in log.requests.to_pylist() if row["outcome"] != "lost"]
        assert all(row in before for row in kept)
        assert len(kept) + log.manifest.outcomes.get("lost", 0) == ROWS


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_any_changed_byte_gives_a_log_or_one_clear_error(cut: Path, tmp_path: Path, place: float, flip: int) -> None:
    path = cut / "worker-00" / "requests.arrows"
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[int(place * len(whole))] ^= flip
    try:
        path.write_bytes(changed)
        log = recover(cut, tmp_path / "b.log", force=True)
        assert log.requests.num_rows == ROWS
    except LogError:
        pass  # said, and nothing was written
    finally:
        path.write_bytes(whole)


def test_the_run_reads_back_from_a_log_that_was_cut(cut: Path) -> None:
    assert msgspec.json.decode((cut / "run.json").read_bytes())["shares"] == [6, 6]
    assert Trace.open(json.loads((cut / "run.json").read_text())["trace_path"]).digest == TRACE.digest


def test_a_run_that_is_still_going_is_refused(cut: Path, tmp_path: Path) -> None:
    with holding(cut), pytest.raises(LogError, match=r"the run is still going.*or end it with Ctrl-C"):
        recover(cut, tmp_path / "b.log")
    assert not (tmp_path / "b.log").exists()
    recover(cut, tmp_path / "b.log").verify()


@pytest.mark.parametrize(("targets", "target"), [(1, 0), (2, UNKNOWN_TARGET)])
def test_where_a_lost_request_would_have_gone_is_known_of_one_target_only(
    tmp_path: Path, targets: int, target: int
) -> None:
    cut = write_cut_log(tmp_path / "a.log", targets=[{"url": f"http://192.0.2.{at}/v1"} for at in range(targets)])
    drop_end(cut / "worker-01/requests.arrows", 100)
    lost = [row for row in recover(cut, tmp_path / "b.log").requests.to_pylist() if row["outcome"] == "lost"]
    assert {row["target"] for row in lost} == {target}


@pytest.mark.parametrize("name", ["run.json", "environment.json"])
def test_what_stands_beside_the_shards_is_verified(cut: Path, tmp_path: Path, name: str) -> None:
    log = recover(cut, tmp_path / "b.log")
    assert sorted(log.manifest.files) == ["environment.json", "planned.arrow", "run.json"]
    path = tmp_path / "b.log" / name
    path.write_text(path.read_text().replace("2", "3", 1))
    with pytest.raises(LogError, match=f"{name}: sha256 is .*, the manifest says"):
        log.verify()

"""The first door: a trace is opened whole or refused in one line that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invention import InventedFixture

from loadshape.arrival import Poisson
from loadshape.errors import TraceError
from loadshape.shape import Shape
from loadshape.trace import OLDER_KINDS, REQUESTS, SEGMENTS, Loop, Trace, build_messages, enumerate_column

TRACE = Shape(Poisson(rate_hz=10), params={"temperature": 0}).trace(InventedFixture(20), duration_s=3, seed=7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return TRACE.write(tmp_path / "a.trace")


def change_requests(**columns: Any) -> pa.Table:
    """The requests with whole columns replaced."""
    table = TRACE.requests
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        column = values if isinstance(values, pa.Array) else pa.array(values, field.type)
        table = table.set_column(place, field, column)
    return table


def rebuild(requests: pa.Table = TRACE.requests, segments: pa.Table = TRACE.segments, **about: Any) -> Trace:
    return Trace.build(requests, segments, **about)


def test_a_trace_is_the_same_after_its_disk(path: Path) -> None:
    opened = Trace.open(path)
    opened.verify()
    assert (opened.digest, opened.manifest, opened.path) == (TRACE.digest, TRACE.manifest, path)
    assert opened.requests.equals(TRACE.requests)
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "requests.arrow", "segments.arrow"]


def test_tables_are_mapped_and_not_copied(path: Path) -> None:
    before = pa.total_allocated_bytes()
    opened = Trace.open(path)
    assert opened.segments["text"].nbytes > 1000
    assert pa.total_allocated_bytes() - before < 1000


def test_enumerations_have_their_whole_list_in_every_batch(path: Path) -> None:
    opened = Trace.open(path)
    assert opened.requests["api"].chunk(0).dictionary.to_pylist() == ["chat", "completions"]
    roles = opened.requests["messages"].chunk(0).values.field("role")
    assert roles.dictionary.to_pylist() == ["system", "user", "assistant", "tool"]


def test_the_digest_covers_content_and_loop_and_nothing_else() -> None:
    assert rebuild().digest == rebuild(name="x", seed=9, statistics={"a": 1}, created_at="then").digest == TRACE.digest
    others = [
        rebuild(loop=Loop(cap=5)),
        rebuild(change_requests(due_ns=np.asarray(TRACE.requests["due_ns"]) + 1)),
        rebuild(segments=pa.concat_tables([TRACE.segments, TRACE.segments.slice(0, 1)])),
    ]
    assert len({TRACE.digest, *(other.digest for other in others)}) == 4


def edit_manifest(path: Path, **changes: Any) -> None:
    file = path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_text(path: Path) -> None:
    """One letter of one text, in place: a valid Arrow file that says something else."""
    raw = bytearray((path / "segments.arrow").read_bytes())
    place = raw.index(TRACE.segments["text"][0].as_py().encode()[:12])
    raw[place] ^= 1
    (path / "segments.arrow").write_bytes(raw)


def truncate(path: Path) -> None:
    raw = (path / "requests.arrow").read_bytes()
    (path / "requests.arrow").write_bytes(raw[: len(raw) // 2])


def link_out(path: Path) -> None:
    outside = path.parent / "outside.arrow"
    shutil.move(path / "segments.arrow", outside)
    (path / "segments.arrow").symlink_to(outside)


def swap_files(path: Path) -> None:
    shutil.copy(path / "segments.arrow", path / "requests.arrow")


DAMAGE: list[tuple[str, Callable[[Path], Any], str]] = [
    (
        "wrong digest",
        lambda path: edit_manifest(path, digest="sha256:00"),
        "digest: the manifest states sha256:00, the",
    ),
    ("wrong count", lambda path: edit_manifest(path, requests=3), "requests: the manifest states 3, the content gives"),
    ("wrong sessions", lambda path: edit_manifest(path, sessions=3), "sessions: the manifest states 3"),
    ("other loop", lambda path: edit_manifest(path, loop={"mode": "open", "cap": 2}), "digest: the manifest states"),
    ("unknown loop", lambda path: edit_manifest(path, loop={"mode": "ajar"}), "loop.mode: expected open, closed or"),
    ("later version", lambda path: edit_manifest(path, version=99), "manifest.json: version: .* found 99; upgrade"),
    ("a log", lambda path: edit_manifest(path, format="loadshape log"), "format: expected 'loadshape trace'"),
    ("unknown key", lambda path: edit_manifest(path, colour="red"), "unknown field `colour`"),
    (
        "no manifest",
        lambda path: (path / "manifest.json").unlink(),
        "no manifest.json, so this trace was never finished",
    ),
    (
        "no segments",
        lambda path: (path / "segments.arrow").unlink(),
        "segments.arrow: named by the manifest, but missing",
    ),
    ("half a file", truncate, "requests.arrow: damaged, not a whole Arrow file"),
    ("no bytes", lambda path: (path / "requests.arrow").write_bytes(b""), "requests.arrow: damaged"),
    ("no Arrow", lambda path: (path / "requests.arrow").write_bytes(b"PAR1" * 99), "requests.arrow: damaged"),
    ("another table", swap_files, "requests.arrow: its columns are not those of this version: request, due_ns"),
    ("a link out", link_out, "names 'segments.arrow', which is outside of the folder; refused"),
    ("a changed letter", change_text, "digest: the manifest states sha256:.*it was changed or damaged"),
    ("no folder", lambda path: shutil.rmtree(path), r"expected a trace \(a folder with manifest.json\), found nothing"),
]


@pytest.mark.parametrize(("damage", "message"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_damage_is_refused_in_one_line_that_names_the_file(
    path: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(path)
    with pytest.raises(TraceError, match=message) as caught:
        Trace.open(path).verify()
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["requests.arrow", "segments.arrow"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_found_or_does_not_matter(path: Path, name: str, place: float, flip: int) -> None:
    file = path / name
    whole = file.read_bytes()
    raw = bytearray(whole)
    raw[int(place * len(raw))] ^= flip
    file.write_bytes(raw)
    try:
        opened = Trace.open(path)
        opened.verify()
        assert opened.requests.equals(TRACE.requests)  # padding, or a spare part of the file's own bookkeeping
        assert opened.segments.equals(TRACE.segments)
    except TraceError:
        pass
    finally:
        file.write_bytes(whole)


ROWS = TRACE.requests.num_rows
INVARIANTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: rebuild(REQUESTS.empty_table()), "no requests; lengthen the duration or raise the rate"),
    (lambda: rebuild(change_requests(request=[0] * ROWS)), "requests.request: expected every number from 0"),
    (lambda: rebuild(change_requests(due_ns=[-1] * ROWS)), "requests.due_ns: negative"),
    (lambda: rebuild(change_requests(due_ns=[None] * ROWS)), "requests.due_ns: null in an open loop"),
    (lambda: rebuild(loop=Loop(mode="closed")), "loop.slots: a closed loop needs"),
    (lambda: rebuild(change_requests(turn=[1] * ROWS)), "requests.turn: the turns of a session must count"),
    (lambda: rebuild(change_requests(params=[99] * ROWS)), "names segment 99, but there are only"),
    (lambda: rebuild(segments=TRACE.segments.slice(0, 3)), "names segment .*, but there are only 3"),
    (lambda: rebuild(segments=TRACE.segments.drop_columns(["tokens"])), "segments: its columns are not those"),
    (lambda: rebuild(TRACE.requests.cast(REQUESTS.set(0, pa.field("request", pa.int64())))), "requests: its columns"),
    (
        lambda: rebuild(change_requests(api=pa.array(["chat"] * ROWS, pa.dictionary(pa.int8(), pa.string())))),
        "requests.api: expected every batch to have the dictionary chat, completions",
    ),
    (
        lambda: rebuild(change_requests(due_ns=[None] * ROWS), loop=Loop(mode="partly_open")),
        "requests.due_ns: null for a first turn",
    ),
]


@pytest.mark.parametrize(("make", "message"), INVARIANTS)
def test_what_a_replay_could_not_rely_on_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        make()


def test_turns_that_wait_have_no_due_time() -> None:
    half = ROWS // 2 * 2
    requests = change_requests(
        session=[row // 2 for row in range(ROWS)],
        turn=[row % 2 for row in range(ROWS)],
        due_ns=[None if row % 2 else row * 1000 for row in range(ROWS)],
    ).slice(0, half)
    trace = rebuild(requests, loop=Loop(mode="partly_open"))
    assert (trace.manifest.requests, trace.manifest.sessions) == (half, half // 2)


def test_messages_are_built_from_lists() -> None:
    column = build_messages([["user"], ["system", "user"], []], [[[0, 1]], [[2], []], []])
    assert column.type == REQUESTS.field("messages").type
    assert column.to_pylist() == [
        [{"role": "user", "segments": [0, 1]}],
        [{"role": "system", "segments": [2]}, {"role": "user", "segments": []}],
        [],
    ]


def test_an_existing_trace_is_not_replaced_unasked(path: Path) -> None:
    with pytest.raises(TraceError, match="exists; choose another name"):
        TRACE.write(path)
    TRACE.write(path, force=True)
    Trace.open(path).verify()


def test_segments_have_the_format() -> None:
    assert TRACE.segments.schema.equals(SEGMENTS)


def test_a_trace_from_before_there_were_slots_is_still_one(tmp_path: Path) -> None:
    column = TRACE.segments.schema.get_field_index("kind")
    names = TRACE.segments["kind"].cast(pa.string()).to_pylist()
    older = TRACE.segments.set_column(column, TRACE.segments.schema.field(column), enumerate_column(names, OLDER_KINDS))
    trace = rebuild(segments=older)
    assert trace.digest == rebuild().digest
    Trace.open(trace.write(tmp_path / "older.trace")).verify()

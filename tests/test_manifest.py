"""Manifests: written whole or not at all, read with suspicion."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from loadshape import manifest
from loadshape.errors import InputError, TraceError
from loadshape.manifest import NAME, building, find_member, read_manifest, read_table, write_folder, write_manifest

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.string())])
TABLE = pa.table({"x": [1, 2, 3], "y": ["a", "b", "c"]}, SCHEMA)


class Thing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int = 1
    format: str = "loadshape thing"
    name: str = "n"


def read(folder: Path) -> Thing:
    return read_manifest(folder, Thing, "thing", 1, TraceError)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "a.thing", Thing(), {"table": TABLE}, TraceError)


def test_what_is_written_is_read(folder: Path) -> None:
    assert read(folder) == Thing()
    assert read_table(folder, "table.arrow", SCHEMA, TraceError).equals(TABLE)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["a.thing"]  # no scratch is left
    assert sorted(path.name for path in folder.iterdir()) == [NAME, "table.arrow"]


BROKEN = [
    (b"", "not a valid manifest"),
    (b"{", "not a valid manifest"),
    (b"[]", "not a valid manifest"),
    (b"\xff\xfe", "not a valid manifest"),
    (b'{"format": "loadshape thing"}', "not a valid manifest: .*version"),
    (b'{"format": "loadshape log", "version": 1}', "format: expected 'loadshape thing', found 'loadshape log'"),
    (b'{"format": "loadshape thing", "version": 2}', "reads thing versions 1 to 1, found 2; upgrade loadshape"),
    (b'{"format": "loadshape thing", "version": 2, "new": 1}', "upgrade loadshape"),  # before its keys are looked at
    (b'{"format": "loadshape thing", "version": 0}', "found 0"),
    (b'{"format": "loadshape thing", "version": 1, "nmae": "x"}', "unknown field `nmae`"),
    (b'{"format": "loadshape thing", "version": 1, "name": 5}', r"expected `str`, got `int` - at `\$.name`"),
]


@pytest.mark.parametrize(("raw", "message"), BROKEN)
def test_a_broken_manifest_is_refused_in_one_line(folder: Path, raw: bytes, message: str) -> None:
    (folder / NAME).write_bytes(raw)
    with pytest.raises(TraceError, match=f"(?i){message}") as caught:
        read(folder)
    assert str(caught.value).startswith(str(folder / NAME))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "expected a thing .*, found nothing"), ("file", "found a file"), ("empty", f"no {NAME}")],
)
def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match=message):
        read(tmp_path / name)


def test_a_huge_manifest_is_not_read(folder: Path) -> None:
    with (folder / NAME).open("r+b") as file:
        file.truncate(1 << 30)  # sparse
    with pytest.raises(TraceError, match="larger than 64 MiB"):
        read(folder)


@pytest.mark.parametrize("name", ["../out", "/etc/hostname", "a/../../out", "..", ".", "", "link", "linked/out"])
def test_a_name_never_leads_out_of_the_folder(folder: Path, name: str) -> None:
    (folder.parent / "out").write_text("x")
    (folder / "link").symlink_to(folder.parent / "out")
    (folder / "linked").symlink_to(folder.parent)
    with pytest.raises(TraceError, match=f"{NAME}: names '.*', which is outside of the folder; refused"):
        find_member(folder, name, TraceError)


def test_a_member_may_lie_deeper_and_be_linked_inside(folder: Path) -> None:
    (folder / "part").mkdir()
    (folder / "part" / "a").write_text("x")
    (folder / "b").symlink_to("part/a")
    assert find_member(folder, "part/a", TraceError) == folder / "part" / "a"
    assert find_member(folder, "b", TraceError) == folder / "b"


def test_a_missing_member_is_named(folder: Path) -> None:
    with pytest.raises(TraceError, match=r"other\.arrow: named by the manifest, but missing"):
        read_table(folder, "other.arrow", SCHEMA, TraceError)


@pytest.mark.parametrize("size", [0, 1, 7, 100, -1, -20])
def test_a_truncated_table_is_refused(folder: Path, size: int) -> None:
    path = folder / "table.arrow"
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    with pytest.raises(TraceError, match=r"table\.arrow: damaged, not a whole Arrow file") as caught:
        read_table(folder, "table.arrow", SCHEMA, TraceError)
    assert "\n" not in str(caught.value)


def test_other_columns_are_refused_by_name(folder: Path) -> None:
    wanted = pa.schema([*SCHEMA, ("z", pa.int8())])
    with pytest.raises(TraceError, match=r"table\.arrow: its columns are not those of this version: z"):
        read_table(folder, "table.arrow", wanted, TraceError)


def test_what_is_there_is_not_replaced_unasked(folder: Path) -> None:
    with pytest.raises(InputError, match="exists; choose another name"):
        write_folder(folder, Thing(name="new"), {}, TraceError)
    assert read(folder) == Thing()
    write_folder(folder, Thing(name="new"), {}, TraceError, force=True)
    assert read(folder) == Thing(name="new")
    assert not (folder / "table.arrow").exists()


def test_what_is_not_ours_is_not_replaced_even_with_force(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("x")
    with pytest.raises(InputError, match="so it is not replaced"):
        write_folder(tmp_path / "mine", Thing(), {}, TraceError, force=True)
    assert (tmp_path / "mine" / "work.txt").read_text() == "x"


def test_a_failed_write_leaves_nothing_new_and_the_old_whole(folder: Path) -> None:
    class Unwritable(msgspec.Struct):
        format: str = "loadshape thing"
        value: object = object()

    for path in (folder, folder.with_name("b.thing")):
        with pytest.raises(TypeError):
            write_folder(path, Unwritable(), {"table": TABLE}, TraceError, force=True)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["a.thing"]
    assert read(folder) == Thing()


def test_a_manifest_is_replaced_in_one_step(folder: Path) -> None:
    inode = (folder / NAME).stat().st_ino
    write_manifest(folder, Thing(name="later"))
    assert read(folder) == Thing(name="later")
    assert (folder / NAME).stat().st_ino != inode
    assert sorted(path.name for path in folder.iterdir()) == [NAME, "table.arrow"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_another_kind_is_never_replaced(tmp_path: Path, force: bool) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"format": "loadshape trace", "version": 1}')
    with pytest.raises(InputError), building(folder, "log", InputError, force=force):
        pytest.fail("nothing may be built in its place")
    assert (folder / "manifest.json").exists()


def test_what_is_replaced_survives_a_failure_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"format": "loadshape log", "version": 1}')
    monkeypatch.setattr(manifest, "sync_folder", lambda _: None)
    rename = Path.rename

    def fail_into_place(self: Path, target: Path) -> Path:
        if target == folder and not self.name.endswith(".old"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_into_place)
    with pytest.raises(KeyboardInterrupt), building(folder, "log", InputError, force=True) as scratch:
        (scratch / "new.txt").write_text("x")
    assert (folder / "manifest.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_disk_that_is_full_is_told_with_the_place_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr(manifest, "write_manifest", fill)
    message = r"a\.thing: cannot be written: No space left on device; free some space, or choose another place$"
    with pytest.raises(TraceError, match=message):
        write_folder(tmp_path / "a.thing", Thing(), {"table": TABLE}, TraceError)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match=r"file/a\.thing: cannot be written: .*; choose another place$"):
        write_folder(tmp_path / "file" / "a.thing", Thing(), {"table": TABLE}, TraceError)


def test_trouble_with_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), building(tmp_path / "a.thing", "thing", TraceError):
        (tmp_path / "source").read_bytes()


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME)
    with pytest.raises(TraceError, match=r"manifest\.json: cannot be read: not a regular file"):
        read(folder)
    with pytest.raises(TraceError, match="is no thing but something else"):
        manifest.check_free(folder, "thing", TraceError, force=True)

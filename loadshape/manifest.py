# The JSON file that makes a folder of Arrow tables a fixture, a trace or a log.
#
# Law: a manifest is written last and whole (temporary file, fsync, rename, fsync of the folder), so its
# presence means that everything it names is there. It is read with suspicion: the format and version
# are looked at before anything else, unknown keys are refused, and a file name in it never leads out of
# its folder.

"""Manifests: atomic writing, suspicious reading."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from loadshape.errors import InputError

NAME = "manifest.json"
FORMAT = "loadshape "  # then the noun: fixture, trace or log
MAX_BYTES = 64 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T", bound=msgspec.Struct)


class _Head(msgspec.Struct):
    format: str
    version: int


def write_manifest(folder: Path, manifest: msgspec.Struct, name: str = NAME) -> Path:
    """Write *manifest* into *folder* so that a crash leaves the old file, the new one, or none: never half."""
    path = folder / name
    scratch = path.with_name(f".{name}.{os.getpid()}")
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    try:
        with scratch.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(folder)
    return path


def sync_folder(folder: Path) -> None:
    """Make renames inside *folder* survive a power loss, where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(folder: Path, kind: type[T], noun: str, version: int, error: type[InputError]) -> T:
    """Read the manifest of a *noun* ("trace", "log", "fixture") and check its format and version.

    Raises *error*, naming the file and what to do, for everything that is not a readable manifest of
    this noun in a version up to *version*.
    """
    path = folder / NAME
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise error(f"{folder}: expected a {noun} (a folder with {NAME}), found {found}")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise error(f"{path}: larger than {MAX_BYTES >> 20} MiB, so not a manifest of ours")
        raw = read_plain(path)
    except FileNotFoundError:
        raise error(f"{folder}: no {NAME}, so this {noun} was never finished, or is no {noun}") from None
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}") from None
    head = _decode(raw, _Head, path, error)
    if head.format != f"loadshape {noun}":
        raise error(f"{path}: format: expected 'loadshape {noun}', found {head.format!r}")
    if not 1 <= head.version <= version:
        raise error(
            f"{path}: version: this loadshape reads {noun} versions 1 to {version}, found {head.version}; "
            "upgrade loadshape to read it"
        )
    return _decode(raw, kind, path, error)


def read_plain(path: Path) -> bytes:
    """Return what a regular file holds. Raises OSError for anything else: a pipe would be waited for, for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()


def write_folder(
    path: Path, manifest: msgspec.Struct, tables: dict[str, pa.Table], error: type[InputError], *, force: bool = False
) -> Path:
    """Write tables as NAME.arrow (uncompressed IPC files) and the manifest, whole or not at all; return *path*.

    What exists is refused as in `check_free`.
    """
    noun = str(getattr(manifest, "format", "")).removeprefix(FORMAT)
    with building(path, noun, error, force=force) as scratch:
        for name, table in tables.items():
            with pa.OSFile(str(scratch / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
                file.write_table(table)
        write_manifest(scratch, manifest)
    return path


@contextmanager
def building(
    path: Path, noun: str, error: type[InputError], *, force: bool = False, within: Path | None = None
) -> Iterator[Path]:
    """Give an empty folder beside *path*, or *within* one there, to fill; it is renamed into its place at the end.

    If that end is not reached, it leaves no trace. What exists is refused as in `check_free`; what is replaced is
    moved aside first and removed last.
    """
    check_free(path, noun, error, force=force)
    home = within or path.parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=home))
    except OSError as problem:
        raise _explain_write(path, problem, error) from None
    older = scratch.with_name(f"{scratch.name}.old")
    try:
        scratch.chmod(0o755)
        yield scratch
        if path.exists():
            path.rename(older)
        scratch.rename(path)
        sync_folder(path.parent)
    except BaseException as problem:
        if older.exists() and not path.exists():
            older.rename(path)
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(problem, OSError) and str(problem.filename or scratch).startswith(str(scratch)):
            raise _explain_write(path, problem, error) from None
        raise
    shutil.rmtree(older, ignore_errors=True)


def _explain_write(path: Path, problem: OSError, error: type[InputError]) -> InputError:
    """Return the error of a folder that cannot be written; Arrow's own errors name no file."""
    reason = os.strerror(problem.errno) if problem.errno else str(problem).partition("\n")[0]
    remedy = "free some space, or choose another place" if problem.errno in FULL else "choose another place"
    return error(f"{path}: cannot be written: {reason}; {remedy}")


def check_free(path: Path, noun: str, error: type[InputError], *, force: bool = False) -> None:
    """Raise *error* when *path* exists, unless *force* and it is a *noun* itself: nothing else is ever replaced."""
    if not path.exists() and not path.is_symlink():
        return
    if not force:
        raise error(f"{path}: exists; choose another name, or say --force to replace it")
    try:
        found = msgspec.json.decode(read_plain(path / NAME), type=_Head).format
    except (OSError, msgspec.DecodeError):
        found = "something else"
    if found != FORMAT + noun:
        raise error(f"{path}: is no {noun} but {found}, so it is not replaced; choose another name")


def read_table(folder: Path, name: str, schema: pa.Schema, error: type[InputError]) -> pa.Table:
    """Map an uncompressed Arrow IPC file of *folder*; raises *error* if it is damaged or not of *schema*."""
    path = find_member(folder, name, error)
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate(full=True)
        is_same = table.schema.equals(schema)
        names = [] if is_same else [field.name for field in schema if field not in list(table.schema)]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        line = str(problem).partition("\n")[0]
        raise error(f"{path}: damaged, not a whole Arrow file: {line}") from None
    if not is_same:
        raise error(f"{path}: its columns are not those of this version: {', '.join(names) or 'other order'}")
    return table


def find_member(folder: Path, name: str, error: type[InputError]) -> Path:
    """Return the path of a file that a manifest names, refusing one that leads out of *folder*."""
    relative = Path(name)
    path = folder / relative
    inside = not relative.is_absolute() and ".." not in relative.parts and name not in ("", ".") and "\0" not in name
    if not inside or not path.resolve().is_relative_to(folder.resolve()):
        raise error(f"{folder / NAME}: names {name!r}, which is outside of the folder; refused")
    if not path.is_file():
        raise error(f"{path}: named by the manifest, but missing")
    return path


def _decode(raw: bytes, kind: type[T], path: Path, error: type[InputError]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as problem:
        raise error(f"{path}: not a valid manifest: {problem}") from None

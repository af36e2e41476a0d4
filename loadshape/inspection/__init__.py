# Any folder of ours, by what its manifest says it is.
#
# Law: looking only. `open_folder` finds out what a folder is; `describe_folder` says what is in it in a
# few lines; both work without the room that made it.

"""Find out what a folder is, verify it, and describe it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from loadshape.errors import InputError
from loadshape.fixture import Fixture
from loadshape.log import RUN_NAME, Log
from loadshape.manifest import NAME, read_plain
from loadshape.trace import Derivation, Trace

Folder = Fixture | Trace | Log
_OPENERS: dict[str, Callable[[Path], Folder]] = {
    "loadshape fixture": Fixture.open,
    "loadshape trace": Trace.open,
    "loadshape log": Log.open,
}


class _Head(msgspec.Struct):
    format: str = ""


def open_folder(path: Path) -> Folder:
    """Open the fixture, trace or log at *path*. Raises InputError when it is none of them."""
    try:
        head = msgspec.json.decode(read_plain(path / NAME), type=_Head)
    except FileNotFoundError:
        if (path / RUN_NAME).is_file():
            return Log.open(path)  # says that it is incomplete
        raise InputError(f"{path}: expected a fixture, a trace or a log (a folder with {NAME}), found none") from None
    except (OSError, msgspec.DecodeError) as problem:
        raise InputError(f"{path / NAME}: not a manifest of ours: {problem}") from None
    opener = _OPENERS.get(head.format)
    if opener is None:
        raise InputError(f"{path / NAME}: format: expected one of {', '.join(_OPENERS)}, found {head.format!r}")
    return opener(path)


def describe_folder(folder: Folder) -> dict[str, Any]:
    """Return what a person wants to know first, as plain values in a fixed order."""
    about: dict[str, Any] = msgspec.to_builtins(folder.manifest)
    for verbatim in ("recipe", "policy", "shards"):
        about.pop(verbatim, None)
    if isinstance(folder, Trace) and folder.manifest.derivation:
        about["derivation"] = _describe_derivation(folder.manifest.derivation)
    if isinstance(folder, Log):
        about["rows"] = {"requests": folder.requests.num_rows, "reads": folder.read_rows}
    return about


def _describe_derivation(derivation: Derivation) -> dict[str, Any]:
    """What was done to which traces, and the arrivals of those before."""
    parents = {}
    for parent in derivation.parents:
        before = {key: parent.statistics.get(key) for key in ("rate_hz", "gap_cv", "dispersion")}
        further = _describe_derivation(parent.derivation) if parent.derivation else None
        parents[parent.digest] = {"name": parent.name, **before, "derivation": further}
    return {"operation": derivation.operation, **derivation.arguments, "of": parents}


def write_lines(about: dict[str, Any], indent: str = "") -> list[str]:
    """Return nested plain values as indented text lines."""
    lines = []
    for name, value in about.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}:", *write_lines(value, indent + "  ")]
        elif value not in (None, "", [], {}):
            lines.append(f"{indent}{name}: {value}")
    return lines

# Every format of request traces, by name.
#
# Law: names and their readers, and which format a file can only be. A format is guessed where its first row has
# more of its columns than of any other format, and the guess is told to whoever asked; where two formats
# look the same and differ by a factor of 1,000, as mooncake and timed_trace do, there is no guess.
#
# Adding a format is a layout (layout.py) where it differs in names and units, and a reader with an entry here
# where it does not.

"""Request traces in the formats of others: `open_entries("mooncake", path)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loadshape.errors import SourceError
from loadshape.sources.container import read_lines, read_rows
from loadshape.sources.entry import Entry, Fault, find_cell
from loadshape.sources.layout import LAYOUTS, Layout, read_layout
from loadshape.sources.prompts import read_aiperf, read_batch, read_custom, read_prompts
from loadshape.sources.servegen import list_clients
from loadshape.sources.telemetry import read_telemetry
from loadshape.sources.vllm_log import read_vllm_log

Reading = Iterator[Entry | Fault]
SERVEGEN = "servegen"  # a folder, and a model: what is drawn of it depends on a window and a seed
COLUMNS = "columns"  # the format of whoever names the columns himself

_TEXTS = {"custom": read_custom, "openai_batch": read_batch, "aiperf": read_aiperf}
_BLOCK_TOKENS = {"aiperf": 512}
_SIGNATURES: dict[str, tuple[str, ...]] = {
    **{name: layout.required for name, layout in LAYOUTS.items()},
    "aiperf": LAYOUTS["guidellm"].required,
    "openai_batch": ("custom_id", "body"),
    "otel": ("resourceSpans",),
    "custom": ("prompt", "output_tokens"),
}


def _by_layout(layout: Layout) -> Callable[[Path], Reading]:
    return lambda path: read_layout(read_rows(path), layout)


def _by_row(read_row: Callable[[dict[str, Any]], Iterator[Entry]]) -> Callable[[Path], Reading]:
    return lambda path: read_prompts(read_rows(path), read_row)


READERS: dict[str, Callable[[Path], Reading]] = {
    **{name: _by_layout(layout) for name, layout in LAYOUTS.items()},
    **{name: _by_row(read_row) for name, read_row in _TEXTS.items()},
    "otel": lambda path: read_telemetry(read_rows(path)),
    "vllm_log": lambda path: read_vllm_log(read_lines(path)),
}


def open_entries(name: str, path: Path, layout: Layout | None = None) -> Reading:
    """Return the entries of a file in the format *name*, or of a *layout* of one's own. Raises SourceError."""
    if layout is not None:
        return read_layout(read_rows(path), layout)
    if name not in READERS:
        known = ", ".join(sorted([*READERS, SERVEGEN]))
        raise SourceError(f"format: expected one of {known}, or named columns; found {name!r}")
    return READERS[name](path)


def find_layout(name: str) -> Layout:
    """Return what is known of a format: its unit, its zero, the size of its blocks."""
    texts = Layout(zero="begin of the recording", unit="ms", block_tokens=_BLOCK_TOKENS.get(name, 0))
    clock = Layout(zero="wall clock", unit="clock")
    return LAYOUTS.get(name) or (texts if name in _TEXTS else clock)


def guess_format(path: Path) -> tuple[str, str]:
    """Return the only format that the first row of *path* can be of, and the columns that say so.

    Raises SourceError where there is none, or more than one.
    """
    if path.is_dir():
        return SERVEGEN, list_clients(path)[0][1].name
    row = next(read_rows(path), None) or {}
    found = {name: columns for name, columns in _SIGNATURES.items() if _has(row, columns)}
    most = max(map(_weigh, found.values()), default=0)
    found = {name: columns for name, columns in found.items() if _weigh(columns) == most}
    if len(found) != 1:
        which = f"may be {' or '.join(found)}" if found else "is none that is known"
        raise SourceError(
            f"{path}: format: {which} by its columns {', '.join(list(row)[:8]) or '(none)'}; "
            f"name one of {', '.join(sorted(READERS))}, or the columns"
        )
    ((name, columns),) = found.items()
    return name, ", ".join(columns)


def _weigh(columns: tuple[str, ...]) -> int:
    """The more columns, and the deeper they lie, the less a format is by chance."""
    return sum(1 + column.count(".") for column in columns)


def _has(row: dict[str, Any], columns: tuple[str, ...]) -> bool:
    return all(column in row or find_cell(row, column) is not None for column in columns)

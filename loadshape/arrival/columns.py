# Columns of numbers in a CSV file.
#
# Law: nothing is guessed. The file has a header, columns are found by their names, and a cell that is not a
# finite number is refused with its line. A file is read again only when it has changed, since a rate is asked
# many times.

"""Read named columns of a CSV file."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterator
from pathlib import Path

from loadshape.errors import RecipeError

Rows = tuple[tuple[float, ...], ...]


def read_rows(path: Path, names: tuple[str, ...]) -> Rows:
    """Return the columns *names* of the CSV file at *path*, row by row. Raises RecipeError with file and line."""
    try:
        facts = path.stat()
        return _read(path, names, facts.st_mtime_ns, facts.st_size)
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise RecipeError(f"{path}: expected a CSV file; {problem}") from None


@functools.lru_cache(maxsize=8)
def _read(path: Path, names: tuple[str, ...], mtime_ns: int, size: int) -> Rows:
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file)
        missing = [name for name in names if name not in (table.fieldnames or ())]
        if missing:
            found = ", ".join(table.fieldnames or ()) or "nothing"
            raise RecipeError(f"{path}: expected a header with {', '.join(missing)}, found {found}")
        rows = tuple(_convert_rows(path, table, names))
    if not rows:
        raise RecipeError(f"{path}: expected at least one row, found none")
    return rows


def _convert_rows(path: Path, table: csv.DictReader[str], names: tuple[str, ...]) -> Iterator[tuple[float, ...]]:
    for row in table:
        for name in names:
            if not _is_number(row[name]):
                raise RecipeError(f"{path}, line {table.line_num}: {name}: expected a number, found {row[name]!r}")
        yield tuple(float(row[name]) for name in names)


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and math.isfinite(float(text))
    except ValueError:
        return False

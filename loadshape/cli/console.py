# What the commands share: the flags that mean the same everywhere, and how things are printed.
#
# Law: results go to standard output, as text or as JSON, never both. Nothing is decided here but the exit
# code that a verdict asks for.

"""Common flags, and printing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from loadshape.errors import InputError
from loadshape.inspection import Folder, describe_folder, write_lines
from loadshape.quality import Scores, load_scores
from loadshape.replication import replicate
from loadshape.report import render
from loadshape.summary import Summary

Output = Annotated[Path, Parameter(name=["--output", "-o"])]
Force = Annotated[bool, Parameter(negative="", help="replace what is there")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="print JSON instead of text")]
Quality = Annotated[list[Path] | None, Parameter(negative="", consume_multiple=2)]
Strict = Annotated[bool, Parameter(negative="", help="exit with 3 unless the verdict is VALID")]


def print_about(folder: Folder, *, as_json: bool) -> None:
    """Print what a folder is."""
    about = describe_folder(folder)
    print(msgspec.json.encode(about).decode() if as_json else "\n".join(write_lines(about)))


def print_summary(summary: Summary, *, as_json: bool, strict: bool) -> int:
    """Print a report and return the exit code that its verdict asks for."""
    print(render(summary, "json" if as_json else "text"))
    if strict and summary.verdict.status != "VALID":
        return 3
    return summary.verdict.exit_code


def print_repeats(summaries: Sequence[Summary], *, as_json: bool) -> int:
    """Print what several runs of the same traffic say together, and return the exit code of the worst."""
    found = replicate(summaries)
    print(render(found, "json" if as_json else "text"))
    return found.exit_code


def load_quality(paths: list[Path] | None) -> tuple[Scores, Scores] | None:
    """Return the scores in the two files of --quality, None without them. Raises InputError for another number."""
    if not paths:
        return None
    if len(paths) != 2:
        raise InputError(f"--quality: expected two files, before and after, found {len(paths)}")
    return load_scores(paths[0]), load_scores(paths[1])

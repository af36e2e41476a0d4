# A page of Prometheus text: lines in, samples out.
#
# Law: sans I/O, and never an exception: a line that is none is left out, since half of a page is better than no page.
# Only the names that are wanted are looked at, since a page of vLLM has some 700 lines of which a run needs 200.
#
#     name{label="value",...} number [time]
#
# In the values of labels \\, \" and \n are escaped. Numbers are those of Go: NaN and +Inf too. What a number means (a
# counter, a gauge, a bucket) its name says; comments (# HELP, # TYPE) say it again and are not read.
#
# Source: Prometheus, "Exposition formats", text format 0.0.4.

"""Samples: numbers with a name and labels, and how to read them from a page."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}


class Sample(NamedTuple):
    """One number: its name, its labels, its value."""

    name: str
    labels: dict[str, str]
    value: float


def parse_page(text: str, wanted: Collection[str]) -> Iterator[Sample]:
    """Yield the samples of a page whose names are *wanted*, in the order of the page."""
    for line in text.split("\n"):
        name = line.partition("{")[0].partition(" ")[0]
        if name in wanted and (sample := _parse_line(line)) is not None:
            yield sample


def _parse_line(line: str) -> Sample | None:
    found = _LINE.fullmatch(line)
    labels = None if found is None else _parse_labels(found["labels"] or "")
    if found is None or labels is None:
        return None
    try:
        return Sample(found["name"], labels, float(found["value"]))
    except ValueError:
        return None


def _parse_labels(text: str) -> dict[str, str] | None:
    """Return the labels, None where the text is not made of labels alone."""
    labels, end = {}, 0
    while end < len(text):
        found = _LABEL.match(text, end)
        if found is None:
            return None
        labels[found[1]] = _ESCAPE.sub(lambda it: _UNESCAPED.get(it[1], it[1]), found[2])
        end = found.end()
    return labels

# How a text is cut before anybody reads it: what is code, and pieces of bearable length.
#
# Law: offsets into a text and nothing else; no rule and no model here. A fence is as CommonMark has it
# (section 4.5): three or more of one mark, closed by as many of the same, and an open one runs to the end.
# Pieces end at a line end, else at a blank, because models need memory in proportion to one text: spaCy
# 4.5 kB a character, 1.8 GB for a turn of 394,465.

"""Fenced code, and pieces of long texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

PIECE_CHARACTERS = 10_000

_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


def find_code(text: str) -> list[tuple[int, int]]:
    """Return the fenced code blocks of *text* with their fences; an open one runs to the end (CommonMark)."""
    if "```" not in text and "~~~" not in text:
        return []
    blocks: list[tuple[int, int]] = []
    begin, mark = 0, ""
    for fence in _FENCE.finditer(text):
        run, rest = fence.groups()
        if not mark:
            begin, mark = fence.start(), run
        elif run[0] == mark[0] and len(run) >= len(mark) and not rest.strip():
            blocks.append((begin, fence.end()))
            mark = ""
    return [*blocks, (begin, len(text))] if mark else blocks


def find_prose(blocks: Sequence[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Yield what lies between the blocks of a text of this length."""
    at = 0
    for begin, stop in (*blocks, (length, length)):
        if at < begin:
            yield at, begin
        at = stop


def cut_lines(text: str, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield stretches of text[begin:stop] of at most PIECE_CHARACTERS, cut at a line end, else at a blank."""
    while stop - begin > PIECE_CHARACTERS:
        limit = begin + PIECE_CHARACTERS
        cut = max(text.rfind("\n", begin, limit), 0) or max(text.rfind(" ", begin, limit), 0)
        end = cut + 1 if cut > begin else limit
        yield begin, end
        begin = end
    if begin < stop:
        yield begin, stop

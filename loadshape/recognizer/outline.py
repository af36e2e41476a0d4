# How a text is cut before anybody reads it: what is code, pieces of bearable length, lines that could hold a name.
#
# Law: offsets into a text and nothing else; no rule and no model here. A fence is as CommonMark has it
# (section 4.5): three or more of one mark, closed by as many of the same, and an open one runs to the end.
# Pieces end at a line end, else at a blank, because models need memory in proportion to one text: spaCy
# 4.5 kB a character, 1.8 GB for a turn of 394,465.

"""Fenced code, pieces of long texts, and lines with names in them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

PIECE_CHARACTERS = 10_000

_LINE = re.compile(r"[^\n]*\n?")
_CAPITALISED = re.compile(r"(?<![^\W_])[^\W\d_a-z][^\W_]*")  # or beyond ASCII: many scripts have no capitals
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


def choose_lines(text: str, common: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield the longest stretches of lines that each hold a capitalised word which, in lower case, is not *common*."""
    begin = end = 0
    for line in _LINE.finditer(text):
        if all(word.casefold() in common for word in _CAPITALISED.findall(line[0])):
            if begin < end:
                yield begin, end
            begin = line.end()
        end = line.end()
    if begin < end:
        yield begin, end

# Which characters go, and what stands in their place.
#
# Law: plain arithmetic on code-point offsets; no recognizer and no policy here. Overlapping spans are
# united before anything is replaced, and the text is rebuilt once, from left to right, so a replacement
# can never be cut by another one, and no character of any span survives:
#
#     spans     [--- PERSON ---]                     sorted by start
#                     [--- EMAIL ---]   [-- IP --]
#     united    [------ EMAIL ------]   [-- IP --]   the lowest rank names the union
#
# Spans that only touch stay apart: three addresses in a row remain three. A span that ends before a
# combining mark takes the mark with it, else the mark would combine with the replacement.

"""Unite overlapping spans and rebuild the text without them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of text, end exclusive, in code points; `rank` is the index of the rule that found it."""

    start: int
    end: int
    rank: int
    recognizer: str
    score: float


def unite_spans(spans: Iterable[Span], text: str) -> list[Span]:
    """Return disjoint spans, sorted, that cover exactly the given ones and the marks combined with them."""
    united: list[Span] = []
    for span in sorted(_with_marks(span, text) for span in spans if span.start < span.end):
        if united and span.start < united[-1].end:
            united[-1] = _unite(united[-1], span)
        else:
            united.append(span)
    return united


def replace_spans(text: str, spans: Sequence[Span], placeholders: Sequence[str]) -> str:
    """Return *text* with each of the disjoint, sorted *spans* replaced by its placeholder."""
    parts: list[str] = []
    at = 0
    for span, placeholder in zip(spans, placeholders, strict=True):
        parts += (text[at : span.start], placeholder)
        at = span.end
    return "".join((*parts, text[at:]))


def _with_marks(span: Span, text: str) -> Span:
    end = span.end
    while end < len(text) and unicodedata.combining(text[end]):
        end += 1
    return span._replace(end=end)


def _unite(first: Span, second: Span) -> Span:
    named = min(first, second, key=lambda span: (span.rank, -span.score, span.start))
    return named._replace(start=first.start, end=max(first.end, second.end))

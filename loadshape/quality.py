# Speed is worth nothing if the answers got worse: scores of golden items, beside the latencies.
#
# Law: loadshape judges no answer. Whoever has an evaluation writes a JSON file {"item": score, ...} with scores
# from 0 to 1 for each side, and the two are compared item by item, in the same table and by the same margin
# as the other shares. Items that only one side has are refused: a score that improved because the
# hard items are missing is no improvement.

"""Quality: scores of golden items from both sides, as one more effect."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from loadshape.effect import MARGIN, Effect, decide
from loadshape.errors import InputError
from loadshape.interval import Interval, student
from loadshape.reading import Reading

NAME = "quality"
Scores = dict[str, float]


def load_scores(path: str | Path) -> Scores:
    """Return the scores in a JSON file. Raises InputError for anything else than item: score from 0 to 1."""
    try:
        scores = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise InputError(f'{path}: expected JSON such as {{"item-1": 0.75}}; {problem}') from None
    wrong = next((item for item, score in scores.items() if not 0 <= score <= 1), None)
    if wrong is not None or not scores:
        found = f"{wrong!r}: {scores[wrong]:g}" if wrong is not None else "no item at all"
        raise InputError(f"{path}: expected scores from 0 to 1, found {found}")
    return scores


def compare_scores(before: Scores, after: Scores, *, margin: float = MARGIN) -> Effect:
    """Return the change of the mean score, with Student's interval over the items' differences."""
    alone = sorted(before.keys() ^ after.keys())
    if alone:
        raise InputError(f"quality: expected the same items on both sides; only one has {', '.join(alone[:5])}")
    items = sorted(before)
    differences = np.array([after[item] - before[item] for item in items])
    size, count = float(differences.mean()), len(items)
    interval = None
    if count > 1:
        half = student(count - 1) * float(differences.std(ddof=1)) / math.sqrt(count)
        interval = Interval(size - half, size + half, count)
    old, new = (Reading(NAME, "share", sum(it.values()) / count, count=count) for it in (before, after))
    decision = decide(interval, more_is_better=True, is_share=True, margin=margin)
    return Effect(old, new, size, interval, decision)

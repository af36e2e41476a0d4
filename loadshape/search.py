# The largest load that keeps a gate: what to try next, and what is known so far.
#
# Law: deciding only. Levels (requests a second, or concurrent users) were tried for some seconds each and a gate
# said met, missed or unsure; from that list alone follows the next trial, or the end. There is no other
# state: a search that was cut goes on from its trials, and the same trials always lead to the same next one.
#
# Theory. One short trial says little near the boundary: at 5 % above it a server under test passes 60 % of trials
# of 1,000 requests and 8 % of 20,000, and a bisection of single trials lands too high, because short ones miss
# the tail. So the answer is an interval with evidence, found in the manner of MLRsearch (IETF draft-ietf-bmwg-
# mlrsearch): short trials far from the boundary, longer ones near it.
#
#   widen      from the first level by factors of two, up while it is kept, down while it is not
#   narrow     the geometric middle of the two bounds, the longer the closer they are
#   repeat     a level whose decision is not sure is tried again, up to `repeats` times; then whoever judges the trials
#              decides by their mean, and what is still called unsure counts as missed
#   confirm    the lower bound once more, for the full length: what did not last long enough was no proof
#
# The search ends when the bounds are within `precision`, or at the floor or the ceiling that was set.

"""Search: the next trial of a search for the largest load that keeps a gate, and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loadshape.errors import InputError
from loadshape.gate import Decision


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds of a search: levels from `lowest` to `highest`, beginning at `first`.

    `precision` is the ratio highest missed / highest met - 1 at which it ends, `trial_s` the length of the shortest
    trials and `longest_s` that of the confirmation, `repeats` how often an unsure level is tried.
    """

    first: float
    lowest: float
    highest: float
    precision: float = 0.05
    trial_s: float = 30.0
    longest_s: float = 120.0
    repeats: int = 3
    whole: bool = False  # levels are whole numbers, as users are

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.first <= self.highest < math.inf:
            raise InputError(
                "search: expected 0 < lowest <= first <= highest, found "
                f"{self.lowest:g}, {self.first:g} and {self.highest:g}"
            )
        if not (self.precision >= 0.01 and 0 < self.trial_s <= self.longest_s and self.repeats >= 1):
            raise InputError(
                "search: expected precision >= 0.01, 0 < trial_s <= longest_s and repeats >= 1; found "
                f"{self.precision:g}, {self.trial_s:g} s, {self.longest_s:g} s and {self.repeats}"
            )

    @property
    def most_trials(self) -> int:
        """How many trials it can take at worst: the budget to state before it begins."""
        span = max(self.first / self.lowest, self.highest / self.first)
        widening = math.ceil(math.log2(span)) + 1 if span > 1 else 1
        narrowing = max(0, math.ceil(math.log2(math.log(2.0) / math.log1p(self.precision))))
        return self.repeats * (widening + narrowing) + 2 * self.repeats

    @property
    def most_s(self) -> float:
        """How long all trials can take at worst, without what a server needs between them."""
        return self.most_trials * self.longest_s


@dataclass(frozen=True, slots=True)
class Trial:
    """One level, tried for `length_s` seconds; `status` is what the gate said of all its trials so far."""

    level: float
    length_s: float
    status: str


@dataclass(frozen=True, slots=True)
class Step:
    """What to try next, and why: "widen", "narrow", "repeat" or "confirm"."""

    level: float
    length_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """What was found: the gate is kept at `lower` and not at `upper`; None where no such level was met or tried."""

    lower: float | None
    upper: float | None
    trials: tuple[Trial, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to, and what the gate said at each level."""

    result: Result
    decisions: dict[float, Decision]


def choose_next(search: Search, trials: Sequence[Trial]) -> Step | Result:
    """Return the next step of *search* after *trials*, or its result."""
    kept, failed = _find_bounds(trials)
    unsure = _find_unsure(search, trials)
    if unsure is not None:
        return Step(unsure.level, unsure.length_s, "repeat")
    if failed is None:
        return _widen_up(search, trials, kept)
    if kept is None:
        return _widen_down(search, trials, failed)
    middle = _round(search, math.sqrt(kept * failed))
    if failed / kept <= 1.0 + search.precision or middle in (kept, failed):
        return _confirm(search, trials, kept, failed)
    return Step(middle, _choose_length(search, failed / kept), "narrow")


def _find_bounds(trials: Sequence[Trial]) -> tuple[float | None, float | None]:
    """The highest level kept below the lowest one not kept. A level's last word counts; longer trials come later."""
    last = {trial.level: trial.status for trial in trials}
    failed = min((level for level, status in last.items() if status != "met"), default=None)
    below = [level for level, status in last.items() if status == "met" and (failed is None or level < failed)]
    return max(below, default=None), failed


def _find_unsure(search: Search, trials: Sequence[Trial]) -> Trial | None:
    if not trials or trials[-1].status != "unsure":
        return None
    last = trials[-1]
    tried = sum((it.level, it.length_s) == (last.level, last.length_s) for it in trials)
    return last if tried < search.repeats else None


def _widen_up(search: Search, trials: Sequence[Trial], kept: float | None) -> Step | Result:
    if kept is None:
        return Step(_round(search, search.first), search.trial_s, "widen")
    if kept >= search.highest:
        return _confirm(search, trials, kept, None)
    return Step(_round(search, min(2.0 * kept, search.highest)), search.trial_s, "widen")


def _widen_down(search: Search, trials: Sequence[Trial], failed: float) -> Step | Result:
    if failed <= search.lowest:
        return Result(None, failed, tuple(trials), "not kept at the lowest level that may be tried")
    level = _round(search, max(failed / 2.0, search.lowest))
    if level >= failed:
        return Result(None, failed, tuple(trials), "not kept at the lowest level that can be tried")
    return Step(level, search.trial_s, "widen")


def _confirm(search: Search, trials: Sequence[Trial], kept: float, failed: float | None) -> Step | Result:
    if any(trial.level == kept and trial.length_s >= search.longest_s for trial in trials):
        reason = "bounds within the precision" if failed is not None else "kept at the highest level that may be tried"
        return Result(kept, failed, tuple(trials), reason)
    return Step(kept, search.longest_s, "confirm")


def _choose_length(search: Search, ratio: float) -> float:
    """Short far from the boundary: the full length when the bounds are within twice the precision."""
    near = 1.0 + 2.0 * search.precision
    if ratio <= near or search.longest_s == search.trial_s:
        return search.longest_s
    closeness = min(1.0, max(0.0, 1.0 - math.log(ratio / near) / math.log(2.0 / near))) if near < 2.0 else 1.0
    return float(search.trial_s * (search.longest_s / search.trial_s) ** closeness)


def _round(search: Search, level: float) -> float:
    return float(round(level)) if search.whole else float(f"{level:.4g}")

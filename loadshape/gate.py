# What a run must keep, as data: the same objectives for a person, for CI and for a search.
#
# Law: an objective is a reading, a bound and nothing else; it is written as people say it:
#
#     ttft.p95 <= 1.5 s        tpot.p95 <= 40 ms        errors < 1%
#     output_tokens_per_s >= 500/s                      maximize output_tokens_per_s
#
# "maximize" and "minimize" bound nothing: they say which way a comparison or a search is to look.
#
# A ruling is one of three. met: the value keeps the bound. missed: it does not. unknown: there is no value (71
# requests have no p99), and what is not known has not been kept: a gate passes only if every objective is met.
# A ruling is `sure` when the whole interval lies on its side of the bound; a gate that was met by a hair says
# so. A run that is INVALID passes no gate, whatever its numbers.

"""Gates: objectives as data, ruled on the readings of one run or of several."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from pathlib import Path

import msgspec

from loadshape.errors import InputError
from loadshape.reading import Reading, check_reading, take_reading, unite_runs, withhold
from loadshape.summary import Objectives, Summary
from loadshape.units import parse_duration_s

_SENSES: dict[str, Callable[[float, float], bool]] = {"<=": le, "<": lt, ">=": ge, ">": gt}
_BOUND = re.compile(r"(?P<reading>[\w.]+)\s*(?P<sense><=|>=|<|>)\s*(?P<limit>.+)")
_WISHES = ("maximize", "minimize")
_NUMBER = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>%|/s|tok/s|tokens/s)?")


@dataclass(frozen=True, slots=True)
class Objective:
    """One promise: `reading` `sense` `limit`, or a wish ("maximize", "minimize") without a limit."""

    reading: str
    sense: str
    limit: float | None
    text: str

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Return the objective in words such as "ttft.p95 <= 1.5 s". Raises InputError naming what is wrong with it."""
        words = sorted(text.split(), key=lambda word: word not in _WISHES)  # "maximize x" and "x maximize"
        if len(words) == 2 and words[0] in _WISHES:
            check_reading(words[1])
            return cls(words[1], words[0], None, text.strip())
        match = _BOUND.fullmatch(text.strip())
        if match is None:
            raise InputError(f"objective: expected one such as 'ttft.p95 <= 1.5 s' or 'errors < 1%', found {text!r}")
        unit = check_reading(match["reading"])
        return cls(match["reading"], match["sense"], _parse_limit(match["limit"], unit, text), text.strip())

    def allows(self, value: float) -> bool:
        """Return whether *value* keeps the bound; a wish allows every value."""
        return self.limit is None or _SENSES[self.sense](value, self.limit)


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Objectives with a name. `slo` are the objectives of a single request, for goodput_hz and attainment."""

    objectives: tuple[str, ...]
    name: str = ""
    question: str = ""
    slo: Objectives = Objectives()

    def __post_init__(self) -> None:
        if not self.objectives:
            raise InputError("objectives: expected at least one, such as 'ttft.p95 <= 1.5 s', found none")
        _ = self.parsed  # a wrong one is refused where it is written, not where it is used

    @property
    def parsed(self) -> tuple[Objective, ...]:
        """The objectives as values."""
        return tuple(map(Objective.parse, self.objectives))

    @classmethod
    def load(cls, path: str | Path) -> Gate:
        """Return the gate in a TOML file. Raises InputError naming the file and the key."""
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            return msgspec.convert(table, cls)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise InputError(f"{path}: expected a gate in TOML; {problem}") from None
        except msgspec.ValidationError as problem:
            raise InputError(f"{path}: {str(problem)[:1].lower()}{str(problem)[1:]}") from None
        except InputError as problem:
            raise InputError(f"{path}: {problem}") from None


@dataclass(frozen=True, slots=True)
class Ruling:
    """One objective before one reading: "met", "missed" or "unknown"; `sure` if its whole interval is on that side."""

    objective: Objective
    reading: Reading
    status: str
    sure: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate says of a run, or of several runs of the same traffic."""

    name: str
    rulings: tuple[Ruling, ...]
    runs: int
    verdict: str  # the worst of the runs' instruments

    @property
    def passed(self) -> bool:
        """Whether every objective was met by runs that may be believed."""
        return self.verdict != "INVALID" and all(it.status == "met" for it in self.rulings)

    @property
    def exit_code(self) -> int:
        """0 passed, 1 not, 3 when the run itself is INVALID."""
        if self.verdict == "INVALID":
            return 3
        return 0 if self.passed else 1

    @property
    def headline(self) -> str:
        """The decision in one sentence."""
        if self.verdict == "INVALID":
            return "NO DECISION: the run is INVALID, its numbers are the generator's own"
        failed = [it for it in self.rulings if it.status != "met"]
        if failed:
            return f"FAILED: {len(failed)} of {len(self.rulings)} objectives were not kept"
        unsure = sum(not it.sure for it in self.rulings)
        return "PASSED" + (f", but {unsure} of {len(self.rulings)} objectives not surely" if unsure else "")


def rule(gate: Gate, summaries: Sequence[Summary]) -> Decision:
    """Return what *gate* says of runs of the same traffic. Raises InputError for no run at all."""
    if not summaries:
        raise InputError("gate: expected at least one run, found none")
    order = ("VALID", "SUSPECT", "INVALID")
    verdict = max((it.verdict.status for it in summaries), key=order.index)
    readings = [unite_runs([take_reading(it, objective.reading) for it in summaries]) for objective in gate.parsed]
    if verdict == "INVALID":
        readings = list(map(withhold, readings))
    return Decision(gate.name, tuple(map(_rule_one, gate.parsed, readings)), len(summaries), verdict)


def _rule_one(objective: Objective, reading: Reading) -> Ruling:
    if reading.value is None:
        return Ruling(objective, reading, "unknown", sure=False)
    kept, sure = objective.allows(reading.value), reading.interval
    certain = sure is not None and objective.allows(sure.low) == objective.allows(sure.high) == kept
    return Ruling(objective, reading, "met" if kept else "missed", sure=certain or objective.limit is None)


def _parse_limit(text: str, unit: str, objective: str) -> float:
    if unit == "s":
        if not text.strip()[-1:].isalpha():
            raise InputError(f"objective {objective!r}: expected a time with its unit, such as 40 ms, found {text!r}")
        return parse_duration_s(text.strip(), f"objective {objective!r}")
    match = _NUMBER.fullmatch(text.strip())
    found = match and (match["unit"] or "")
    fits = match and (found in ("", "%") if unit == "share" else found != "%")
    if not match or not fits:
        wanted = "a share such as 1% or 0.01" if unit == "share" else f"a number of {unit} such as 40/s"
        raise InputError(f"objective {objective!r}: expected {wanted}, found {text.strip()!r}")
    return float(match["number"]) / (100.0 if found == "%" else 1.0)

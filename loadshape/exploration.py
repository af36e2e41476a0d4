# Many replays with one thing varied: repeats, sweeps and searches, each in a folder of logs.
#
# Law: a folder of logs is the whole state, and of one thing: the recipe, the targets and the settings that it was begun
# with stand in it, and others are refused. What is complete in it is not played again, so a sweep or a search
# that was cut goes on where it was; a log that was cut is played anew. Every trial is an ordinary log with an ordinary
# report. How a level becomes traffic is the caller's: a `Play` replays one level for so many seconds into a log.
#
# A search asks search.py what to try next and a gate what came of it. A level is judged by all its trials together:
# met or missed where the intervals are sure of it, and by the mean of its trials when it has had as many as it may
# have. An INVALID trial ends the search, since beyond it the generator would be measured and not the server; and so
# does one that is too short to answer the gate at all.

"""Exploration: repeats of a run, sweeps over levels, and searches for the largest load that keeps a gate."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadshape.errors import InputError
from loadshape.gate import Decision, Gate, rule
from loadshape.log import Log
from loadshape.manifest import NAME, write_manifest
from loadshape.saturation import Point, measure_point
from loadshape.search import Found, Search, Step, Trial, choose_next
from loadshape.summary import Summary, summarize
from loadshape.validity import Limits

Play = Callable[[float, float, Path], Log]  # level, seconds, where the log goes
Say = Callable[[str], None]
_ORIGIN = "origin.json"
_TRIAL = re.compile(r"(?P<number>\d+)-(?P<level>[\d.e+-]+)-(?P<length>[\d.]+)s\.log")


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the logs of a folder are of."""

    recipe: str  # verbatim
    vary: str
    targets: list[str]
    model: str | None
    fixture: str | None  # digest
    settings: str  # the run file, verbatim


def claim_folder(folder: Path, origin: Origin) -> None:
    """Write into *folder* what it is of. Raises InputError where it is of something else: a mixture is no result."""
    place = folder / _ORIGIN
    if place.exists():
        try:
            found = msgspec.json.decode(place.read_bytes(), type=Origin)
        except msgspec.DecodeError as problem:
            raise InputError(f"{place}: expected what its folder is of; {problem}") from None
        changed = [name for name in Origin.__struct_fields__ if getattr(found, name) != getattr(origin, name)]
        if changed:
            raise InputError(
                f"{folder}: was begun with another {' and another '.join(changed)}, and its logs cannot be mixed with "
                "those of this; take another folder, or remove it"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder, origin, _ORIGIN)


def repeat_run(
    play: Callable[[Path], Log], folder: Path, times: int, *, pause_s: float = 0.0, say: Say = print
) -> list[Log]:
    """Return *times* logs of the same run, run-01.log and so on in *folder*; complete ones are kept."""
    logs = []
    for number in range(1, times + 1):
        path = folder / f"run-{number:02d}.log"
        if _is_complete(path):
            say(f"run {number} of {times}: {path} is there already")
            logs.append(Log.open(path))
            continue
        if number > 1:
            time.sleep(pause_s)
        say(f"run {number} of {times}")
        logs.append(play(path))
        if logs[-1].manifest.ended == "interrupted":
            break
    return logs


def sweep_levels(
    play: Play,
    folder: Path,
    levels: Sequence[float],
    length_s: float,
    *,
    repeats: int = 1,
    limits: Limits | None = None,
    say: Say = print,
) -> list[Point]:
    """Return a point for each of *levels*, played *repeats* times for *length_s* each; complete logs are kept.

    *limits* are those of the verdicts.

    Rounds go through all levels in turn, so that a drift of the server or the host does not look like an effect.
    """
    runs: dict[float, list[Summary]] = {level: [] for level in levels}
    for turn in range(repeats):
        for level in levels if turn % 2 == 0 else reversed(levels):
            path = folder / f"{level:g}-{length_s:g}s-{turn + 1}.log"
            say(f"level {level:g}, round {turn + 1} of {repeats}")
            log = Log.open(path) if _is_complete(path) else play(level, length_s, path)
            runs[level].append(summarize(log, limits=limits))
    return [measure_point(level, summaries) for level, summaries in runs.items()]


def explore(
    search: Search,
    gate: Gate,
    play: Play,
    folder: Path,
    *,
    limits: Limits | None = None,
    pause_s: float = 0.0,
    say: Say = print,
) -> Found:
    """Return what *search* finds under *gate*, going on from the trials that are in *folder*.

    *limits* are those of the verdicts.

    Raises InputError when a trial is INVALID (the generator is the limit there), or too short for the gate.
    """
    docket = _Docket(search, gate, limits)
    for path, level, length_s in _list_trials(folder):
        docket.add(level, length_s, Log.open(path))
    while isinstance(step := choose_next(search, docket.trials), Step):
        number = len(docket.trials) + 1
        if number > 1:
            time.sleep(pause_s)
        say(f"trial {number} of at most {search.most_trials}: {step.reason} at {step.level:g} for {step.length_s:g} s")
        path = folder / f"{number:03d}-{step.level:g}-{step.length_s:g}s.log"
        docket.add(step.level, step.length_s, play(step.level, step.length_s, path))
        say(f"  {docket.trials[-1].status}: {_tell(rule(gate, docket.runs[step.level]))}")
    return Found(step, {level: rule(gate, runs) for level, runs in sorted(docket.runs.items())})


class _Docket:
    """The trials of a search, and the runs that each level is judged by: those of its greatest length."""

    def __init__(self, search: Search, gate: Gate, limits: Limits | None) -> None:
        self.trials: list[Trial] = []
        self.runs: dict[float, list[Summary]] = {}
        self._length_s: dict[float, float] = {}
        self._search = search
        self._gate = gate
        self._limits = limits

    def add(self, level: float, length_s: float, log: Log) -> None:
        """Judge one more trial together with those of its level."""
        runs = self.runs.setdefault(level, [])
        if length_s > self._length_s.setdefault(level, length_s):
            runs.clear()  # a longer trial knows more than shorter ones, and is not averaged with them
            self._length_s[level] = length_s
        runs.append(summarize(log, objectives=self._gate.slo, limits=self._limits))
        decision = rule(self._gate, runs)
        _check_trial(decision, level, length_s, log)
        is_last = len(runs) >= self._search.repeats
        self.trials.append(Trial(level, length_s, _grade(decision, is_last=is_last)))


def _check_trial(decision: Decision, level: float, length_s: float, log: Log) -> None:
    if decision.verdict == "INVALID":
        raise InputError(
            f"search: at {level:g} the generator is the limit, and not the server: {log.path} is INVALID; look at it "
            f"with loadshape report {log.path}, use more processes or a free machine, or search below that level"
        )
    blind = next((it for it in decision.rulings if it.status == "unknown"), None)
    if blind is not None:
        raise InputError(
            f"search: a trial of {length_s:g} s at {level:g} cannot answer {blind.objective.text}: "
            f"{blind.reading.why}; lengthen the trials (--lengths), or begin at a higher level"
        )


def _grade(decision: Decision, *, is_last: bool) -> str:
    """Surely met or missed; when no more trials come, what their mean says."""
    sure = [it.status for it in decision.rulings if it.sure or it.reading.interval is None]
    if "missed" in sure:
        return "missed"
    if decision.passed and (is_last or len(sure) == len(decision.rulings)):
        return "met"
    return "missed" if is_last else "unsure"


def _tell(decision: Decision) -> str:
    return "; ".join(f"{it.objective.text}: {it.reading}" for it in decision.rulings)


def _list_trials(folder: Path) -> list[tuple[Path, float, float]]:
    """The complete trials of a search, in the order in which they were made."""
    found = []
    for path in folder.glob("*.log"):
        match = _TRIAL.fullmatch(path.name)
        if match and _is_complete(path):
            found.append((int(match["number"]), path, float(match["level"]), float(match["length"])))
    return [(path, level, length_s) for _, path, level, length_s in sorted(found)]


def _is_complete(path: Path) -> bool:
    return (path / NAME).is_file()

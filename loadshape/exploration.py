# Many replays with one thing varied: repeats, sweeps and searches, each in a folder of logs.
#
# Law: a folder of logs is the whole state. What is complete in it is not played again, so a sweep or a search
# that was cut goes on where it was; a log that was cut is played anew. Every trial is an ordinary log with an ordinary
# report. How a level becomes traffic is the caller's: a `Play` replays one level for so many seconds into a log.
#
# A search asks search.py what to try next and a gate what came of it. A level is judged by all its trials together:
# met or missed only where the intervals are sure of it. An INVALID trial ends the search: beyond it the generator
# would be measured, and not the server.

"""Exploration: repeats of a run, sweeps over levels, and searches for the largest load that keeps a gate."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadshape.errors import InputError
from loadshape.gate import Decision, Gate, rule
from loadshape.log import Log
from loadshape.manifest import NAME
from loadshape.saturation import Point, measure_point
from loadshape.search import Found, Search, Step, Trial, choose_next
from loadshape.summary import Summary, summarize

Play = Callable[[float, float, Path], Log]  # level, seconds, where the log goes
Say = Callable[[str], None]
_TRIAL = re.compile(r"(?P<number>\d+)-(?P<level>[\d.e+-]+)-(?P<length>[\d.]+)s\.log")


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
    play: Play, folder: Path, levels: Sequence[float], length_s: float, *, repeats: int = 1, say: Say = print
) -> list[Point]:
    """Return a point for each of *levels*, played *repeats* times for *length_s* each; complete logs are kept.

    Rounds go through all levels in turn, so that a drift of the server or the host does not look like an effect.
    """
    runs: dict[float, list[Summary]] = {level: [] for level in levels}
    for turn in range(repeats):
        for level in levels if turn % 2 == 0 else reversed(levels):
            path = folder / f"{level:g}-{turn + 1}.log"
            say(f"level {level:g}, round {turn + 1} of {repeats}")
            log = Log.open(path) if _is_complete(path) else play(level, length_s, path)
            runs[level].append(summarize(log))
    return [measure_point(level, summaries) for level, summaries in runs.items()]


def explore(search: Search, gate: Gate, play: Play, folder: Path, *, pause_s: float = 0.0, say: Say = print) -> Found:
    """Return what *search* finds under *gate*, going on from the trials that are in *folder*.

    Raises InputError when a trial is INVALID: the generator is the limit there.
    """
    summaries: dict[float, list[Summary]] = {}
    trials: list[Trial] = []
    for path, level, length_s in _list_trials(folder):
        trials.append(_judge(gate, summaries, level, length_s, Log.open(path)))
    while isinstance(step := choose_next(search, trials), Step):
        path = folder / f"{len(trials) + 1:03d}-{step.level:g}-{step.length_s:g}s.log"
        if trials:
            time.sleep(pause_s)
        budget = f"trial {len(trials) + 1} of at most {search.most_trials}"
        say(f"{budget}: {step.reason} at {step.level:g} for {step.length_s:g} s")
        trials.append(_judge(gate, summaries, step.level, step.length_s, play(step.level, step.length_s, path)))
        say(f"  {trials[-1].status}: {_tell(rule(gate, summaries[step.level]))}")
    return Found(step, {level: rule(gate, runs) for level, runs in sorted(summaries.items())})


def _judge(gate: Gate, summaries: dict[float, list[Summary]], level: float, length_s: float, log: Log) -> Trial:
    """Add a run to those of its level and say what the gate makes of them; only the longest ones are asked."""
    runs = summaries.setdefault(level, [])
    if runs and length_s > runs[0].log.run.duration_s * 1.01:
        runs.clear()  # a longer trial knows more than shorter ones, and is not averaged with them
    runs.append(summarize(log, objectives=gate.slo))
    decision = rule(gate, runs)
    if decision.verdict == "INVALID":
        raise InputError(
            f"search: at {level:g} the generator is the limit, and not the server: {log.path} is INVALID; look at it "
            f"with loadshape report {log.path}, use more processes or a free machine, or search below that level"
        )
    return Trial(level, length_s, _grade(decision))


def _grade(decision: Decision) -> str:
    sure = [it.status for it in decision.rulings if it.sure or it.reading.interval is None]
    if "missed" in sure:
        return "missed"
    return "met" if len(sure) == len(decision.rulings) and decision.passed else "unsure"


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

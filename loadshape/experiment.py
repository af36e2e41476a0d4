# A question pursued through single changes: the ledger of an optimization.
#
# Law: what is protected and what is fixed is written down before the first candidate; each candidate is one declared
# change, measured against the accepted baseline, and only an adopted one becomes the next baseline. Nothing is
# ever removed: a rejected idea is a result. The folder is the whole truth and holds what it needs to be replayed:
#
#     NAME.experiment/experiment.json   the question, the gate, the reading to improve, the margin, the trace's digest
#     NAME.experiment/001/entry.json    what was changed, what it did, and what was decided; written last
#     NAME.experiment/001/runs/         the logs, a folder of repeats
#     NAME.experiment/fixed.trace       the traffic
#
# A decision follows from three things, and says which: the gate that protects, the reading that was to improve,
# and every other reading that must not get worse.
#
#     adopt          the gate is kept, the reading is better, and none that was compared is worse
#     reject         the gate is missed, or the reading is worse, or another one is
#     inconclusive   the intervals do not say: more or longer runs
#
# An entry answers five things: what was protected; which model, traffic and hardware were fixed; what one thing was
# changed; how means, tails, failures, quality and cost moved; and for what the conclusion holds.

"""Experiment: a ledger of one-change candidates against an accepted baseline."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadshape.comparison import READINGS, Comparison, compare
from loadshape.contract import SUBJECTS, Change, list_facts
from loadshape.effect import MARGIN
from loadshape.errors import InputError
from loadshape.gate import Decision, Gate, rule
from loadshape.log import open_logs
from loadshape.manifest import check_free, write_manifest
from loadshape.quality import Scores
from loadshape.reading import check_reading
from loadshape.summary import Summary, summarize
from loadshape.trace import Trace

NAME = "experiment.json"
ENTRY = "entry.json"
TRACE = "fixed.trace"
RUN = "run.toml"
BASELINE = "baseline"
_HARDWARE = ("cpu", "cores", "memory_bytes", "system", "chip", "gpus[0].name", "gpus[0].driver")


class Charter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an experiment is about, fixed before its first candidate."""

    question: str
    improve: str  # the reading that a candidate is to make better
    gate: Gate
    trace_digest: str
    margin: float = MARGIN
    allow: tuple[str, ...] = ()  # changes that may stand beside the declared one

    def __post_init__(self) -> None:
        check_reading(self.improve)


class Moved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one reading moved; see effect.Effect."""

    reading: str
    unit: str
    before: float | None
    after: float | None
    size: float | None
    interval: tuple[float | None, float | None] | None  # None at an end: no bound
    decision: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One candidate: the declared change, what differed, what moved, and the decision with its reasons."""

    number: int
    change: str
    decision: str  # baseline, adopt, reject or inconclusive
    against: int | None
    fixed: list[str] = []  # model, traffic, server and hardware, as far as the runs know them
    facts: list[str]
    rulings: list[str]
    moved: list[Moved]
    reasons: list[str]
    conditions: list[str]
    command: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """A ledger on disk: its charter and its entries, in the order in which they were made."""

    folder: Path
    charter: Charter
    entries: tuple[Entry, ...]

    @classmethod
    def start(cls, folder: str | Path, charter: Charter, runs: str | Path) -> Experiment:
        """Make the ledger at *folder*, with *runs* (a log, or a folder of repeats) as its baseline.

        Raises InputError for runs of another trace than the charter's, and where the trace is gone.
        """
        place = Path(folder)
        check_free(place, "experiment", InputError, force=False)
        summaries = _summarize(charter, runs)
        trace = Trace.open(summaries[0].log.run.trace_path)
        if trace.digest != charter.trace_digest:
            raise InputError(f"{trace.path}: is no longer the trace of the runs; make it again from its recipe")
        decision = rule(charter.gate, summaries)
        if decision.verdict == "INVALID":
            raise InputError(
                f"{runs}: a run is INVALID, so it is no baseline; see why with: loadshape report, and replay"
            )
        place.mkdir(parents=True)
        trace.write(place / TRACE)
        write_manifest(place, charter, NAME)
        entry = Entry(
            number=1,
            change=BASELINE,
            decision=BASELINE,
            against=None,
            fixed=_tell_fixed(summaries[0]),
            facts=[],
            rulings=_tell_rulings(decision),
            moved=[],
            reasons=[decision.headline],
            conditions=[],
            command=_tell_command(place, summaries[0], 1),
        )
        _keep(place, entry, runs)
        return cls.open(place)

    @classmethod
    def open(cls, folder: str | Path) -> Experiment:
        """Read the ledger at *folder*. Raises InputError when it is none."""
        place = Path(folder)
        charter = _read(place / NAME, Charter)
        entries = tuple(_read(path / ENTRY, Entry) for path in sorted(place.glob("[0-9]*")) if (path / ENTRY).exists())
        if not entries:
            raise InputError(f"{place}: has no baseline; it was cut while it was made: remove it and start again")
        return cls(place, charter, entries)

    @property
    def baseline(self) -> Entry:
        """The accepted one: the last that was adopted, else the first."""
        return next(it for it in reversed(self.entries) if it.decision in (BASELINE, "adopt"))

    def read_runs(self, entry: Entry) -> list[Summary]:
        """Return the runs of an entry."""
        return _summarize(self.charter, _folder_of(self.folder, entry.number) / "runs")

    def try_change(self, change: str, runs: str | Path, *, quality: tuple[Scores, Scores] | None = None) -> Experiment:
        """Return the ledger with one more entry: *runs* under the declared *change*, against the baseline.

        Raises InputError for other traffic, an INVALID run, and for more than one change.
        """
        if not change.strip():
            raise InputError("change: expected what was changed, in words, found nothing")
        charter, baseline = self.charter, self.baseline
        candidate = _summarize(charter, runs)
        found = compare(
            self.read_runs(baseline), candidate, allow=charter.allow, margin=charter.margin,
            readings=(*dict.fromkeys([charter.improve, *READINGS]),), quality=quality,
        )  # fmt: skip
        ruled = rule(charter.gate, candidate)
        decision, reasons = decide(charter, found, ruled)
        number = self.entries[-1].number + 1
        entry = Entry(
            number=number,
            change=change.strip(),
            decision=decision,
            against=baseline.number,
            fixed=_tell_fixed(candidate[0], found.changes),
            facts=[str(it) for it in found.changes],
            rulings=_tell_rulings(ruled),
            moved=_list_moved(found),
            reasons=reasons,
            conditions=list(found.conditions),
            command=_tell_command(self.folder, candidate[0], number),
        )
        _keep(self.folder, entry, runs)
        return Experiment.open(self.folder)


def decide(charter: Charter, found: Comparison, ruled: Decision) -> tuple[str, list[str]]:
    """Return "adopt", "reject" or "inconclusive", and why."""
    effects = {it.name: it for it in found.effects}
    aim = effects[charter.improve].decision
    worse = [name for name, it in effects.items() if it.decision == "worse" and name != charter.improve]
    missed = [it.objective.text for it in ruled.rulings if it.status == "missed"]
    unknown = [it.objective.text for it in ruled.rulings if it.status == "unknown"]
    against = [f"the gate is missed: {', '.join(missed)}"] if missed else []
    against += [f"{charter.improve} is worse"] if aim == "worse" else []
    against += [f"{', '.join(worse)} got worse"] if worse else []
    if against:
        return "reject", against
    if aim == "better" and not unknown:
        open_ones = [name for name, it in effects.items() if it.decision == "inconclusive"]
        doubts = [f"not decided: {', '.join(open_ones)}"] if open_ones else []
        return "adopt", [
            f"{charter.improve} is better, the gate is kept, and nothing that was compared is worse",
            *doubts,
        ]
    doubts = [f"{charter.improve} is {aim}"] if aim != "better" else []
    doubts += [f"not known: {', '.join(unknown)}"] if unknown else []
    return ("reject" if aim == "equivalent" and not unknown else "inconclusive"), doubts


def _summarize(charter: Charter, runs: str | Path) -> list[Summary]:
    logs = open_logs(runs)
    for log in logs:
        if log.run.trace_digest != charter.trace_digest:
            raise InputError(
                f"{log.path}: is of trace {log.run.trace_digest}, but the experiment is of {charter.trace_digest}"
            )
    return [summarize(log, objectives=charter.gate.slo) for log in logs]


def _keep(folder: Path, entry: Entry, runs: str | Path) -> None:
    """Copy the logs into the ledger, and then write the entry: an entry that is there is whole."""
    place = _folder_of(folder, entry.number)
    shutil.rmtree(place, ignore_errors=True)
    for log in open_logs(runs):
        shutil.copytree(log.path, place / "runs" / log.path.name, copy_function=_link)
        if verbatim := log.run.settings.get("verbatim"):
            (place / RUN).write_text(verbatim, encoding="utf-8")
    write_manifest(place, entry, ENTRY)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _folder_of(folder: Path, number: int) -> Path:
    return folder / f"{number:03d}"


def _list_moved(found: Comparison) -> list[Moved]:
    return [
        Moved(
            reading=it.name,
            unit=it.before.unit,
            before=it.before.value,
            after=it.after.value,
            size=it.size,
            interval=it.interval and (_finite(it.interval.low), _finite(it.interval.high)),
            decision=it.decision,
        )
        for it in found.effects
    ]


def _finite(end: float) -> float | None:
    return end if math.isfinite(end) else None


def _tell_fixed(run: Summary, changes: Sequence[Change] = ()) -> list[str]:
    """What is the same on both sides, by subject; of the client the hardware alone."""
    facts = {key: it for key, it in list_facts(run.log).items() if it not in (None, [], {}, [None])}
    told = {
        subject: [f"{fact} {value}" for (of, fact), value in facts.items() if of == subject] for subject in SUBJECTS
    }
    told["client"] = [f"{fact} {value}" for (of, fact), value in facts.items() if of == "client" and fact in _HARDWARE]
    moved = {f"{it.fact} {it.after}" for it in changes}
    kept = {
        subject: [it for it in told[subject] if it not in moved] for subject in ("model", "traffic", "server", "client")
    }
    return [f"{subject}: {', '.join(facts)}" for subject, facts in kept.items() if facts]


def _tell_rulings(decision: Decision) -> list[str]:
    return [f"{it.status}: {it.objective.text}; found {it.reading}" for it in decision.rulings]


def _tell_command(folder: Path, run: Summary, number: int) -> str:
    """How to play an entry again: the same trace, and the run file that its runs had."""
    file = f" --run {_folder_of(folder, number) / RUN}" if run.log.run.settings.get("verbatim") else ""
    return f"loadshape replay {folder / TRACE} --target URL{file} -o NEW.log"


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise InputError(f"{path}: expected a part of an experiment; {problem}") from None

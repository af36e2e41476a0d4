# Several runs of the same traffic, as one answer.
#
# Law: the run is the unit of replication. A reading of several runs is their mean with the interval across runs;
# requests are never pooled, and a run without a value leaves the reading without one. Runs that are no repeats of one
# another (another trace, another server) are refused: their mean would be of nothing.

"""Replication: the readings of repeated runs, with intervals across runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadshape.comparison import READINGS
from loadshape.contract import compare_facts
from loadshape.errors import InputError
from loadshape.reading import Reading, take_reading, unite_runs
from loadshape.summary import Summary


@dataclass(frozen=True, slots=True)
class Replication:
    """Repeats of one run: their readings, each of all runs, and how many instruments were VALID, SUSPECT, INVALID.

    With an INVALID run among them there are no readings: their mean would be in part the generator's own.
    """

    runs: tuple[Summary, ...]
    readings: tuple[Reading, ...]

    @property
    def verdicts(self) -> dict[str, int]:
        """How many runs have each verdict."""
        return dict(Counter(it.verdict.status for it in self.runs))

    @property
    def doubts(self) -> dict[str, list[Summary]]:
        """The checks of the instrument that were not passed, and by which runs."""
        found: dict[str, list[Summary]] = {}
        for run in self.runs:
            for check in run.verdict.reasons:
                found.setdefault(check.name, []).append(run)
        return found

    @property
    def exit_code(self) -> int:
        """3 if any run is INVALID, else 0."""
        return max(it.verdict.exit_code for it in self.runs)


def replicate(runs: Sequence[Summary], readings: Sequence[str] = READINGS) -> Replication:
    """Return the readings of *runs*. Raises InputError for runs that are no repeats of the first."""
    for other in runs[1:]:
        changes = compare_facts(runs[0].log, other.log)
        if changes:
            raise InputError(
                f"{other.log.path}: is no repeat of {runs[0].log.path}: {'; '.join(map(str, changes))}; compare them "
                "instead: loadshape compare"
            )
    if any(run.verdict.status == "INVALID" for run in runs):
        return Replication(tuple(runs), ())
    united = tuple(unite_runs([take_reading(run, name) for run in runs]) for name in readings)
    return Replication(tuple(runs), united)

# What repeats of one run say together, for a terminal and for a program.
#
# Law: every reading with its interval across runs; what a single run says, its own report says. A reading that one
# of the runs does not have says why instead of a number. Layout only: the means and the intervals are made in
# replication.py.

"""Forms of a replication: text and JSON."""

from __future__ import annotations

from loadshape.reading import show_interval, show_value
from loadshape.replication import Replication
from loadshape.report.document import describe_reading, encode
from loadshape.report.lines import align_rows


def write_text(replication: Replication) -> str:
    """Return the readings of all runs as text."""
    verdicts = ", ".join(f"{count} {status}" for status, count in replication.verdicts.items())
    rows = [("", "mean of runs", "95 % interval across runs")]
    rows += [(it.name, show_value(it.value, it.unit), show_interval(it) or it.why) for it in replication.readings]
    return "\n".join([f"{len(replication.runs)} runs of the same traffic: {verdicts}", "", *align_rows(rows), ""])


def write_document(replication: Replication) -> str:
    """Return the readings of all runs as JSON."""
    return encode(
        {
            "schema": "loadshape repeats",
            "version": 1,
            "runs": [str(it.log.path) for it in replication.runs],
            "verdicts": replication.verdicts,
            "readings": {it.name: describe_reading(it) for it in replication.readings},
        }
    )

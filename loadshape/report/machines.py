# The nodes of a run, as rows of text and as plain values.
#
# Law: layout only; the numbers are those of fleet.py. A run on one host has no such rows. Of many nodes the slowest are
# shown and the others are counted: JSON has all of them.

"""Forms of the numbers by node."""

from __future__ import annotations

from typing import Any

import msgspec

from loadshape.fleet import Machine, measure_machines
from loadshape.report.tables import Row, clean_text
from loadshape.summary import Summary
from loadshape.units import format_duration

NODE_HEAD = ("", "requests", "ok", "TTFT p50", "p95", "late p99", "rtt p50", "clock")
MOST = 30  # rows
_NAME_LIMIT = 16  # of a name, its end: that is where machines of one kind differ


def list_machines(summary: Summary) -> list[Row]:
    """Return a row for each of several nodes; of more than MOST, the lost ones and those of the largest TTFT."""
    machines = measure_machines(summary)
    slowest = sorted(machines, key=lambda it: (not it.lost, -(it.ttft.p50_s or 0.0)))[:MOST]
    rows = [Row("", _name(it), _list_cells(it)) for it in sorted(slowest, key=lambda it: it.node)]
    others = len(machines) - len(rows)
    return [*rows, Row("", f"{others} others", ("",) * (len(NODE_HEAD) - 1))] if others else rows


def describe_machines(summary: Summary) -> list[dict[str, Any]]:
    """Return the same of every node as plain values."""
    return [msgspec.to_builtins(it) for it in measure_machines(summary)]


def _name(machine: Machine) -> str:
    if machine.lost:
        return f"node {machine.node}, lost"
    name = clean_text(machine.name).partition(".")[0]
    name = name if len(name) <= _NAME_LIMIT else f"..{name[2 - _NAME_LIMIT :]}"
    return f"node {machine.node} {name}".rstrip()


def _list_cells(machine: Machine) -> tuple[str, ...]:
    times = (machine.ttft.p50_s, machine.ttft.p95_s, machine.lateness.p99_s, machine.rtt_s, machine.clock_s)
    return (f"{machine.requests:,}", f"{machine.outcomes.get('ok', 0):,}", *map(format_duration, times))

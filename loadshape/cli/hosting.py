# Commands about the host itself: is it fit, and how far does it go?
#
# Law: one short function a command, with nothing in it that the library does not have. Tables are laid out
# here, because nobody else prints them.

"""The commands `doctor` and `calibrate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from loadshape.calibration import Calibration, Capacity, Ceiling, Level
from loadshape.calibrator import BUSY, calibrate, choose_extent
from loadshape.cli.console import AsJson, Force
from loadshape.doctor import Finding, examine
from loadshape.progress import Teller
from loadshape.survey import Sheet, find_road, list_roads, merge_sheets, survey_nodes
from loadshape.target import Target
from loadshape.units import format_bytes, format_duration

MARKS = {"ok": "  ", "mind": " !", "bad": "!!"}
HEAD: tuple[str, ...] = (
    "share",
    "offered",
    "late p50",
    "p99",
    "stamp off p50",
    "p99",
    "seen after p50",
    "p99",
    "responder p50",
)
HEAD += ("worker CPU", "waited")


def show_doctor(
    folder: Path | None = None,
    /,
    *,
    target: Annotated[list[str] | None, Parameter(negative="")] = None,
    ray: str | None = None,
    json: AsJson = False,
) -> int:
    """Say whether this host is fit to measure with, and what to change.

    Parameters
    ----------
    folder
        Where logs will be written; by default here, and on the nodes of a cluster where temporary files are.
    target
        Also connect to this base URL, once; several times for several targets.
    ray
        Examine every node of the Ray cluster at this address, HOST:6379; `--ray` alone takes the one of this machine.
    """
    targets = [Target(url) for url in target or []]
    if ray is not None:
        sheets = survey_nodes(ray, targets, folder)
        findings = [finding for sheet in sheets for finding in sheet.findings]
        found, lines = msgspec.json.encode(sheets), write_sheets(sheets)
    else:
        findings = [*examine(folder), *map(find_road, list_roads(targets))]
        found, lines = msgspec.json.encode(findings), write_findings(findings)
    print(found.decode() if json else "\n".join(lines))
    return 1 if any(finding.status == "bad" for finding in findings) else 0


def write_findings(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines of the findings on one host, for a person."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        yield f"{MARKS[finding.status]} {finding.name:{width}}  {finding.measured}"
        if finding.remedy:
            yield f"   {'':{width}}  do: {finding.remedy}"


def write_sheets(sheets: Sequence[Sheet]) -> Iterator[str]:
    """Yield the lines of the findings on several nodes, those that are alike once."""
    yield f"{_count(len(sheets), 'node')}: {', '.join(f'{n} = {sheet.node}' for n, sheet in enumerate(sheets))}"
    numbers = {sheet.node: str(n) for n, sheet in enumerate(sheets)}
    rows = [
        (row, "all" if len(row.nodes) == len(sheets) else ",".join(numbers[it] for it in row.nodes))
        for row in merge_sheets(sheets)
    ]
    width, where_width = max(len(row.finding.name) for row, _ in rows), max(len(where) for _, where in rows)
    for row, where in rows:
        it = row.finding
        yield f"{MARKS[it.status]} {it.name:{width}}  {where:{where_width}}  {it.measured}"
        if it.remedy:
            yield f"   {'':{width}}  {'':{where_width}}  do: {it.remedy}"


def run_calibration(*, quick: bool = False, force: Force = False, json: AsJson = False) -> int:
    """Measure this host's limits with real replays, in about a minute.

    Parameters
    ----------
    quick
        Take 15 s: fewer levels, no streams.
    force
        Keep it although the host was busy.
    """
    teller = Teller(quiet=json)
    teller.say("calibrate: replays against responders on this host; leave it alone meanwhile")
    with teller.task("calibrate", choose_extent(quick=quick).budget_s) as task:
        found = calibrate(quick=quick, watch=task.update)
    is_kept = force or found.waited <= BUSY
    if json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(write_calibration(found)))
    if is_kept:
        teller.say(f"kept in {found.store()}")
    else:
        teller.say(
            f"not kept: workers waited for a core {found.waited:.0%} of the time, so the limits are those of a busy "
            "host; stop other jobs and calibrate again, or say --force"
        )
    return 0


def write_calibration(found: Calibration) -> Iterator[str]:
    """Yield the lines of a calibration, for a person."""
    yield f"{found.host['cpu']}, {found.host['cores']} cores, {found.host['python']}; {found.took_s:.0f} s"
    yield from _write_capacity(found.one)
    if found.all.processes > found.one.processes:
        yield from _write_capacity(found.all)
    else:
        yield "\nall cores: as above, because half of them is one"


def _write_capacity(capacity: Capacity) -> Iterator[str]:
    workers, responders = _count(capacity.processes, "worker"), _count(capacity.responders, "responder")
    yield f"\n{workers} beside {responders}"
    for what, ceiling in (("requests/s", capacity.requests), ("chunks/s", capacity.chunks)):
        yield f"\n  {ceiling.rate_hz:,.0f} {what}; {_describe_end(ceiling)}"
        if ceiling.levels:
            yield from _align([HEAD, *map(_describe_level, ceiling.levels)])
    if capacity.streams is not None and capacity.streams_tried is not None and capacity.stream_bytes is not None:
        memory = format_bytes(capacity.stream_bytes)
        yield f"\n  {capacity.streams:,} of {capacity.streams_tried:,} streams at once, {memory} of memory each"


def _describe_end(ceiling: Ceiling) -> str:
    who = "nobody gave way, the ramp ended" if ceiling.saturated == "nobody" else f"the {ceiling.saturated} gave way"
    uses = (
        f"{name} {use.cpu:.0%} CPU, {use.waited:.0%} waiting for it"
        for name, use in (("worker", ceiling.worker), ("responder", ceiling.responder))
    )
    return f"{who} ({'; '.join(uses)})"


def _describe_level(level: Level) -> Sequence[str]:
    spreads = (level.lateness, level.error, level.lag)
    times = [format_duration(value) for spread in spreads for value in (spread.p50_s, spread.p99_s)]
    return (
        f"{level.share:.0%}",
        f"{level.rate_hz:,.0f}/s",
        *times,
        format_duration(level.responder_lateness.p50_s),
        f"{level.worker.cpu:.0%}",
        f"{level.worker.waited:.0%}",
    )


def _align(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "    " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

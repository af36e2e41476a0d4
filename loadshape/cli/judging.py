# Commands of the judging room, and the one that checks any folder.
#
# Law: one short function a command, with nothing in it that the library does not have. The docstring is the
# help text, and docs/cli.md is made from it.

"""The commands `report`, `recover` and `verify`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from loadshape.breakdown import KINDS, break_down
from loadshape.cli.console import AsJson, Force, Output, Strict, print_repeats, print_summary
from loadshape.dialect import DIALECTS, translate
from loadshape.errors import InputError
from loadshape.inspection import open_folder
from loadshape.log import Log, open_logs
from loadshape.metrics import explain as explain_metric
from loadshape.progress import Teller
from loadshape.recovery import recover
from loadshape.report import render
from loadshape.runfile import RunFile
from loadshape.summary import Objectives, summarize
from loadshape.units import parse_duration_s


def report(
    log: Path | None = None,
    /,
    *,
    html: Path | None = None,
    warmup: str = "0s",
    cooldown: str = "0s",
    ttft: str | None = None,
    tpot: str | None = None,
    e2e: str | None = None,
    limits: Path | None = None,
    by: Annotated[str | None, Parameter(help=f"break the numbers down by {', '.join(KINDS)}")] = None,
    tool: Annotated[str | None, Parameter(name="--as", help=f"in the words of {', '.join(DIALECTS)}")] = None,
    explain: Annotated[str | None, Parameter(help="print the formula of a metric instead")] = None,
    strict: Strict = False,
    json: AsJson = False,
) -> int:
    """Judge a log: the instrument first, then latencies, rates, goodput and outcomes.

    Parameters
    ----------
    log
        The log to judge, NAME.log, or a folder of logs that repeat one run; not needed with --explain.
    html
        Also write a page with plots.
    warmup
        Leave the beginning of the run out: 10s, 1min.
    cooldown
        Leave its end out.
    ttft
        An objective of the goodput: at most so long to the first token, 500ms.
    tpot
        Another: at most so long for each token after it, 40ms.
    e2e
        Another: at most so long to the last token, 10s.
    limits
        A TOML file whose section [limits] changes those of the verdict.
    """
    if explain is not None:
        print(explain_metric(explain))
        return 0
    if log is None:
        raise InputError("LOG: expected the log to judge, NAME.log, found none; --explain METRIC alone needs no log")
    stated = {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e}
    goals = {name: parse_duration_s(text, f"--{name[:-2]}") for name, text in stated.items() if text is not None}
    look = partial(
        summarize,
        warmup_s=parse_duration_s(warmup, "--warmup"),
        cooldown_s=parse_duration_s(cooldown, "--cooldown"),
        objectives=Objectives(**({"ttft_s": None, "tpot_s": None} | goals)) if goals else None,
        limits=RunFile.load(limits).limits if limits else None,
    )
    logs = open_logs(log)
    if len(logs) > 1:
        if html or by or tool or strict:
            raise InputError(f"{log}: holds {len(logs)} logs; --html, --by, --as and --strict are of a single one")
        return print_repeats([look(it) for it in logs], as_json=json)
    summary = look(logs[0])
    if html is not None:
        html.write_text(render(summary, "html"), encoding="utf-8")
        Teller(quiet=json).say(f"page: {html}")
    if by is not None or tool is not None:
        found = break_down(summary, by) if by is not None else translate(summary, tool or "")
        print(summary.verdict.headline, file=sys.stderr)
        print(render(found, "json" if json else "text"))
        return summary.verdict.exit_code
    return print_summary(summary, as_json=json, strict=strict)


def recover_log(
    log: Path, /, *, output: Output, trace: Path | None = None, force: Force = False, json: AsJson = False
) -> int:
    """Make a complete log of what is whole of one that was cut.

    Parameters
    ----------
    log
        The log that was cut, NAME.log; it stays as it is.
    output
        The log to write.
    trace
        The trace of the run, if it is no longer where it was: it tells who the lost requests were.
    """
    recovered = recover(log, output, trace=trace, force=force)
    manifest = recovered.manifest
    about = {"path": str(output), "planned": recovered.run.planned, "outcomes": manifest.outcomes}
    about |= {"ended": manifest.ended, "ended_s": manifest.ended_ns / 1e9, "notes": manifest.notes}
    if json:
        print(msgspec.json.encode(about).decode())
        return 0
    for line in (manifest.ended, *manifest.notes, f"judge it with: loadshape report {output}"):
        print(line)
    return 0


def verify(path: Path, /, *, json: AsJson = False) -> int:
    """Read all of a fixture, a trace or a log and compare it with its manifest.

    Parameters
    ----------
    path
        A folder of any of the three.
    """
    folder = open_folder(path)
    folder.verify()
    digest = folder.run.trace_digest if isinstance(folder, Log) else folder.digest
    label = "trace" if isinstance(folder, Log) else "digest"
    print(
        msgspec.json.encode({"path": str(path), "ok": True, label: digest}).decode()
        if json
        else f"ok: {label} {digest}"
    )
    return 0

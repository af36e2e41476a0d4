# Commands that decide: between runs, and about them.
#
# Law: one short function a command, with nothing in it that the library does not have. The docstring is the
# help text, and docs/cli.md is made from it. A folder of logs stands for the repeats of one run.

"""The commands `compare` and `gate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from loadshape.cli.console import AsJson, Quality, load_quality
from loadshape.comparison import compare
from loadshape.effect import MARGIN
from loadshape.gate import Gate, rule
from loadshape.log import open_logs
from loadshape.progress import Teller
from loadshape.reading import lighten
from loadshape.report import render
from loadshape.summary import Objectives, Summary, summarize
from loadshape.units import parse_duration_s


def compare_runs(
    before: Path,
    after: Path,
    /,
    *,
    allow: Annotated[list[str] | None, Parameter(negative="")] = None,
    margin: float = MARGIN,
    warmup: str = "0s",
    cooldown: str = "0s",
    gate: Path | None = None,
    quality: Quality = None,
    html: Path | None = None,
    json: AsJson = False,
) -> int:
    """Compare two runs of the same traffic, or two folders of repeats: what was changed, and what that did.

    Parameters
    ----------
    before
        A log, or a folder of logs that repeat one run.
    after
        Another, with one thing changed.
    allow
        A further difference that may stand beside it: traffic, client, server.version, or all.
    margin
        A change below this part counts as none.
    warmup
        Leave the beginning of every run out: 10s, 1min.
    cooldown
        Leave its end out.
    gate
        A TOML file of objectives: exit with 1 unless the runs after keep them.
    quality
        Two JSON files of scores of the same golden items, before and after.
    html
        Also write a page with plots.
    """
    rules = Gate.load(gate) if gate else None
    sides = [_summarize_all(path, warmup, cooldown, gate=rules, light=True) for path in (before, after)]
    found = compare(*sides, allow=allow or (), margin=margin, quality=load_quality(quality))
    if html is not None:
        html.write_text(render(found, "html"), encoding="utf-8")
        Teller(quiet=json).say(f"page: {html}")
    print(render(found, "json" if json else "text"))
    if rules is None:
        return 0
    decision = rule(rules, sides[1])
    if not json:
        print(render(decision))
    return decision.exit_code


def rule_runs(
    gate: Path,
    runs: Path,
    /,
    *,
    warmup: str = "0s",
    cooldown: str = "0s",
    markdown: Path | None = None,
    json: AsJson = False,
) -> int:
    """Say whether a run, or a folder of repeats, keeps the objectives of a gate; exit with 1 if not.

    Parameters
    ----------
    gate
        A TOML file: objectives = ["ttft.p95 <= 1.5 s", "errors < 1%"].
    runs
        A log, or a folder of logs that repeat one run.
    warmup
        Leave the beginning of every run out: 10s, 1min.
    cooldown
        Leave its end out.
    markdown
        Also write the decision to this file, for the summary page of a CI job.
    """
    rules = Gate.load(gate)
    decision = rule(rules, _summarize_all(runs, warmup, cooldown, gate=rules))
    if markdown is not None:
        markdown.write_text(render(decision, "markdown"), encoding="utf-8")
    print(render(decision, "json" if json else "text"))
    return decision.exit_code


def _summarize_all(path: Path, warmup: str, cooldown: str, *, gate: Gate | None, light: bool = False) -> list[Summary]:
    warmup_s, cooldown_s = parse_duration_s(warmup, "--warmup"), parse_duration_s(cooldown, "--cooldown")
    objectives = gate.slo if gate else Objectives()
    found = (summarize(log, warmup_s=warmup_s, cooldown_s=cooldown_s, objectives=objectives) for log in open_logs(path))
    return [lighten(it) if light else it for it in found]  # one after another

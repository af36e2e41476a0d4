# Commands that play many runs with one thing varied.
#
# Law: one short function a command, with nothing in it that the library does not have. The docstring is the
# help text, and docs/cli.md is made from it. A recipe is drawn anew for every level, under the same seed.

"""The commands `sweep`, `search` and `experiment`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from loadshape.cli.console import AsJson, Quality, load_quality
from loadshape.errors import InputError, MissingExtra
from loadshape.experiment import Charter, Experiment
from loadshape.exploration import Origin, claim_folder, explore, sweep_levels
from loadshape.fixture import Fixture
from loadshape.gate import Gate
from loadshape.live import watch_replay
from loadshape.log import Log, open_logs
from loadshape.progress import Teller
from loadshape.recipe import Recipe
from loadshape.replayer import choose_processes, replay
from loadshape.report import render
from loadshape.runfile import RunFile
from loadshape.saturation import Curve
from loadshape.search import Found, Search
from loadshape.target import Target
from loadshape.trace import Trace
from loadshape.units import format_duration, parse_duration_s

Varied = Annotated[str, Parameter(name="--vary")]


@dataclass(frozen=True, slots=True)
class _Player:
    """Draws a level of a recipe and replays it."""

    recipe: str
    key: str
    fixture: Path | None
    targets: list[Target]
    given: RunFile
    teller: Teller

    def claim(self, folder: Path) -> None:
        """See to it that *folder* holds logs of this and of nothing else."""
        claim_folder(
            folder,
            Origin(
                recipe=Recipe.load(self.recipe).text,
                vary=self.key,
                targets=[it.url for it in self.targets],
                model=self.targets[0].model,
                fixture=None if self.fixture is None else Fixture.open(self.fixture).digest,
                settings=self.given.replay.verbatim,
            ),
        )

    def shape(self, level: float, length_s: float) -> Trace:
        texts = None if self.fixture is None else Fixture.open(self.fixture)
        unit = "/s" if self.key.endswith(".rate") else ""  # a key that leaves its unit out has it in the value
        settings = {self.key: f"{level:g}{unit}"}
        return Recipe.load(self.recipe, settings).trace(texts, duration_s=length_s)

    def __call__(self, level: float, length_s: float, path: Path) -> Log:
        trace = self.shape(level, length_s)
        replay_settings = self.given.replay
        settings = msgspec.structs.replace(
            replay_settings, processes=replay_settings.processes or choose_processes(), duration_s=length_s
        )
        with watch_replay(self.teller, trace, settings) as watch:
            log = replay(
                trace, self.targets, log=path, settings=settings, launcher=self.given.cluster, watch=watch, force=True
            )
        if log.manifest.ended == "interrupted":
            raise KeyboardInterrupt
        return log


def sweep_recipe(
    recipe: str,
    /,
    *,
    vary: Varied = "arrivals.rate",
    levels: str,
    target: Annotated[list[str] | None, Parameter(negative="")] = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    length: str = "60s",
    repeats: int = 1,
    fixture: Path | None = None,
    model: str | None = None,
    run: Path | None = None,
    json: AsJson = False,
) -> int:
    """Replay a recipe at several levels of one of its values, and draw throughput and tails against it.

    Parameters
    ----------
    recipe
        A packaged recipe's name, or a TOML file.
    vary
        The key of the recipe that is varied, such as arrivals.rate or loop.slots.
    levels
        Its values, such as 5,10,20,40.
    target
        The base URL, http://host:port/v1; several times for several targets.
    output
        The folder of logs, and of sweep.html; what is complete in it is not played again.
    length
        How long each level is played.
    repeats
        Rounds over all levels.
    fixture
        The texts, where the recipe needs them.
    model
        The model to ask for.
    run
        A TOML file with the settings of the replays.
    """
    values = _parse_levels(levels)
    player = _make_player(recipe, vary, fixture=fixture, target=target, model=model, run=run, quiet=json)
    length_s = parse_duration_s(length, "--length")
    player.claim(output)
    player.teller.say(f"{len(values) * repeats} runs of {format_duration(length_s)}, at least")
    points = sweep_levels(
        player, output, values, length_s, repeats=repeats, limits=player.given.limits, say=player.teller.say
    )
    found = Curve(vary, tuple(points))
    _write_page(found, output / "sweep.html", player.teller)
    print(render(found, "json" if json else "text"))
    return 0


def search_recipe(
    recipe: str,
    /,
    *,
    gate: Path,
    vary: Varied = "arrivals.rate",
    between: str,
    first: float | None = None,
    target: Annotated[list[str] | None, Parameter(negative="")] = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    lengths: str = "30s..2min",
    precision: float = 0.05,
    fixture: Path | None = None,
    model: str | None = None,
    run: Path | None = None,
    json: AsJson = False,
) -> int:
    """Find the largest load that keeps a gate, as an interval with the trials that show it.

    Parameters
    ----------
    recipe
        A packaged recipe's name, or a TOML file.
    gate
        A TOML file: objectives = ["ttft.p95 <= 1.5 s", "errors < 1%"].
    vary
        The key of the recipe that is varied: arrivals.rate, or loop.slots for users.
    between
        The lowest and the highest level that may be tried: 1..100.
    first
        Where to begin; the lowest if not given.
    target
        The base URL, http://host:port/v1; several times for several targets.
    output
        The folder of logs, and of search.html; a search that was cut goes on from what is in it.
    lengths
        The shortest trials, and the one that confirms the result.
    precision
        Stop when the bounds are so close, as a part of the lower one.
    fixture
        The texts, where the recipe needs them.
    model
        The model to ask for.
    run
        A TOML file with the settings of the replays.
    """
    lowest, highest = _parse_range(between, "--between", float)
    shortest_s, longest_s = _parse_range(lengths, "--lengths", lambda text: parse_duration_s(text, "--lengths"))
    search = Search(
        first=first or lowest,
        lowest=lowest,
        highest=highest,
        precision=precision,
        trial_s=shortest_s,
        longest_s=longest_s,
        whole=vary.endswith("slots"),
    )
    rules = Gate.load(gate)
    player = _make_player(recipe, vary, fixture=fixture, target=target, model=model, run=run, quiet=json)
    player.claim(output)
    player.teller.say(f"budget: at most {search.most_trials} trials, {format_duration(search.most_s)} of traffic")
    found = explore(search, rules, player, output, limits=player.given.limits, say=player.teller.say)
    _write_page(found, output / "search.html", player.teller)
    print(render(found, "json" if json else "text"))
    return 0 if found.result.lower is not None else 1


def _write_page(found: Curve | Found, path: Path, teller: Teller) -> None:
    """Write the page beside the logs; without the extra that draws it there is none, and that is said."""
    try:
        path.write_text(render(found, "html"), encoding="utf-8")
        teller.say(f"page: {path}")
    except MissingExtra as problem:
        teller.say(f"no page: {problem}")


def _make_player(
    recipe: str,
    key: str,
    *,
    fixture: Path | None,
    target: list[str] | None,
    model: str | None,
    run: Path | None,
    quiet: bool,
) -> _Player:
    given = RunFile.load(run) if run else RunFile()
    targets = given.make_targets(target or [], model=model, key=None)
    return _Player(recipe, key, fixture, targets, given, Teller(quiet=quiet))


def _parse_levels(text: str) -> list[float]:
    try:
        levels = [float(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) <= 0 or len(set(levels)) < len(levels):
        raise InputError(f"--levels: expected different numbers above 0, such as 5,10,20,40, found {text!r}")
    return levels


def _parse_range(text: str, flag: str, read: Callable[[str], float]) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        return read(low), read(high if dots else low)
    except ValueError:
        raise InputError(f"{flag}: expected LOWEST..HIGHEST such as 1..100, found {text!r}") from None


def keep_experiment(
    folder: Path,
    runs: Path | None = None,
    /,
    *,
    change: str | None = None,
    question: str | None = None,
    improve: str | None = None,
    gate: Path | None = None,
    allow: Annotated[list[str] | None, Parameter(negative="")] = None,
    quality: Quality = None,
    html: Path | None = None,
    json: AsJson = False,
) -> int:
    """Keep the ledger of an optimization: a baseline, candidates of one change each, and what was decided.

    Without RUNS it shows the history.

    Parameters
    ----------
    folder
        The ledger, NAME.experiment; it is made with the first runs, which are the baseline.
    runs
        A log, or a folder of logs that repeat one run.
    change
        What was changed for these runs, in words.
    question
        What the experiment is to answer; when it is made.
    improve
        The reading that candidates are to make better, such as ttft.p95; when it is made.
    gate
        A TOML file of what is protected; when it is made.
    allow
        A difference that may stand beside the declared change: client, server.version, ...; when it is made.
    quality
        Two JSON files of scores of the same golden items, of the accepted baseline's answers and the candidate's.
    html
        Also write the history as a page.
    """
    if runs is None or change is not None:
        ledger = Experiment.open(folder)
        ledger = ledger if runs is None else ledger.try_change(change or "", runs, quality=load_quality(quality))
    elif question is None or improve is None or gate is None:
        raise InputError(
            "experiment: expected --change for a candidate, or --question, --improve and --gate to begin one"
        )
    else:
        digest = open_logs(runs)[0].run.trace_digest
        charter = Charter(
            question=question, improve=improve, gate=Gate.load(gate), trace_digest=digest, allow=tuple(allow or ())
        )
        ledger = Experiment.start(folder, charter, runs)
    if html is not None:
        html.write_text(render(ledger, "html"), encoding="utf-8")
    print(render(ledger, "json" if json else "text"))
    return 0

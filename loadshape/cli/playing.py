# Commands of the playing room: traffic on the wire, from either end.
#
# Law: one short function a command, with nothing in it that the library does not have. Keys are only ever
# references here.

"""The commands `demo`, `replay` and `simulate`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from loadshape.cli.console import AsJson, Force, Output, print_repeats, print_summary
from loadshape.demo import run_demo
from loadshape.endpoint import Script, serve
from loadshape.errors import InputError
from loadshape.exploration import repeat_run
from loadshape.live import watch_replay
from loadshape.log import Log
from loadshape.progress import Teller
from loadshape.replayer import choose_processes, replay
from loadshape.replayer.terms import tell_terms
from loadshape.report import render
from loadshape.runfile import RunFile
from loadshape.summary import summarize
from loadshape.target import Target
from loadshape.trace import Trace
from loadshape.units import parse_duration_s

INTERRUPTED_CODE = 130


def demo(*, output: Output = Path("demo"), json: AsJson = False) -> int:
    """Do the main job on real text, from reading to a report.

    Parameters
    ----------
    output
        The folder for everything that it makes.
    """
    summary = run_demo(output, Teller(quiet=json))
    print(render(summary, "json" if json else "text"))
    return INTERRUPTED_CODE if summary.log.manifest.ended == "interrupted" else 0


def replay_trace(
    trace: Path,
    /,
    *,
    target: Annotated[list[str] | None, Parameter(negative="")] = None,
    output: Output,
    model: str | None = None,
    key: str | None = None,
    duration: str | None = None,
    requests: int | None = None,
    run: Path | None = None,
    proxy: str | None = None,
    retry_stale: Annotated[bool, Parameter(negative="")] = False,
    allow_target: str | None = None,
    max_rate: float | None = None,
    ray: str | None = None,
    nodes: int | None = None,
    repeat: int = 1,
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Replay a trace against an OpenAI-compatible endpoint and write the log.

    Parameters
    ----------
    trace
        The trace to replay, NAME.trace.
    target
        The base URL, http://host:port/v1; several times for several targets.
    output
        The log to write, NAME.log.
    model
        The model to ask for; without it, the only one that is served.
    key
        Where the key is, env:NAME or file:PATH; never the key itself.
    duration
        Begin nothing that falls due later: 60s, 5min.
    requests
        Send only the first so many of the trace.
    run
        A TOML file with everything else: time limits, worker processes, several targets, isolation, and so on.
    proxy
        An HTTP proxy to go through, http://host:port; without it none is used, whatever the environment says.
    retry_stale
        Send once more what was lost with an idle connection that the server closed; never twice, and logged.
    allow_target
        The public host that may be loaded; with a comma, that of a public proxy too.
    max_rate
        Requests per second that a public host may get.
    ray
        Spread it over the Ray cluster at this address, HOST:6379; `--ray` alone takes the one of this machine.
    nodes
        How many machines of that cluster send.
    repeat
        Play it so many times; the output is then a folder of logs, and what is complete in it is kept.
    """
    teller = Teller(quiet=json)
    given = RunFile.load(run) if run else RunFile()
    permission = {"allow_public": allow_target, "max_rate_hz": max_rate}
    targets = given.make_targets(target or [], model=model, key=key, proxy=proxy, **permission)
    settings = msgspec.structs.replace(
        given.replay,
        processes=given.replay.processes or choose_processes(),
        duration_s=given.replay.duration_s if duration is None else parse_duration_s(duration, "--duration"),
        requests=given.replay.requests if requests is None else requests,
        retry_stale=given.replay.retry_stale or retry_stale,
    )
    about, launcher = Trace.open(trace), given.make_launcher(ray, nodes)
    for line in tell_terms(about, targets, settings, nodes=launcher.nodes if launcher else 1):
        teller.say(line)

    def play(path: Path) -> Log:
        with watch_replay(teller, about, settings) as watch:
            is_free = force or repeat > 1
            return replay(trace, targets, log=path, settings=settings, launcher=launcher, watch=watch, force=is_free)

    logs = [play(output)] if repeat == 1 else repeat_run(play, output, repeat, say=teller.say)
    summaries = [summarize(log, limits=given.limits) for log in logs]
    if len(summaries) == 1:
        code = print_summary(summaries[0], as_json=json, strict=False)
    else:
        code = print_repeats(summaries, as_json=json)
    return INTERRUPTED_CODE if logs[-1].manifest.ended == "interrupted" else code


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

# The command line: parse, call, print.
#
# Law: one short function a command, with nothing in it that the library does not have. Only this
# package reads arguments and writes to standard output; progress and errors go to standard error. A user's
# mistake is one line that names the file and the field; never a traceback.
#
# Exit codes: 0 done (VALID or SUSPECT; --strict wants VALID), 1 a gate failed, 2 the user can fix it,
# 3 the run is INVALID, 70 a defect of loadshape, 130 interrupted.

"""The `loadshape` command."""

from __future__ import annotations

import os
import sys

from loadshape.errors import InputError, ReplayError
from loadshape.version import __version__

try:
    from cyclopts import App
except KeyboardInterrupt:  # pressed in the first moments, while nobody could catch it yet
    print("loadshape: interrupted", file=sys.stderr)
    raise SystemExit(130) from None

# Commands are imported when they are called, so that `loadshape report` does not load a web server; their
# first lines therefore stand here again, and a test keeps the two alike.
COMMANDS = {
    "demo": ("playing:demo", "Do the main job on real text, from reading to a report."),
    "fixture": (
        "making:fixture",
        "Sanitize a public data set into a hashed fixture; when it was cut, the same command goes on.",
    ),
    "audit": ("making:audit", "Look through a fixture with other detectors, and say by kind what they still find."),
    "shape": ("making:shape", "Draw the traffic of a recipe, over a fixture or in neutral words, into a hashed trace."),
    "convert": (
        "converting:convert",
        "Convert a recorded request trace, or the shape of a log, into a hashed trace.",
    ),
    "edit": ("editing:edit", "Cut, thin, scale and join traces into a new one."),
    "export": (
        "converting:export",
        "Write a trace or the results of a log in the format of other tools, or a fixture as metadata or messages.",
    ),
    "replay": ("playing:replay_trace", "Replay a trace against an OpenAI-compatible endpoint and write the log."),
    "simulate": ("playing:simulate", "Run the embedded OpenAI-compatible endpoint until it is stopped."),
    "doctor": ("hosting:show_doctor", "Say whether this host is fit to measure with, and what to change."),
    "calibrate": ("hosting:run_calibration", "Measure this host's limits with real replays, in about a minute."),
    "report": ("judging:report", "Judge a log: the instrument first, then latencies, rates, goodput and outcomes."),
    "compare": (
        "deciding:compare_runs",
        "Compare two runs of the same traffic, or two folders of repeats: what was changed, and what that did.",
    ),
    "gate": (
        "deciding:rule_runs",
        "Say whether a run, or a folder of repeats, keeps the objectives of a gate; exit with 1 if not.",
    ),
    "sweep": (
        "exploring:sweep_recipe",
        "Replay a recipe at several levels of one of its values, and draw throughput and tails against it.",
    ),
    "search": (
        "exploring:search_recipe",
        "Find the largest load that keeps a gate, as an interval with the trials that show it.",
    ),
    "experiment": (
        "exploring:keep_experiment",
        "Keep the ledger of an optimization: a baseline, candidates of one change each, and what was decided.",
    ),
    "inspect": (
        "inspecting:inspect",
        "Say what a fixture, a trace or a log is; of a trace, what came out of what its recipe declares.",
    ),
    "recover": ("judging:recover_log", "Make a complete log of what is whole of one that was cut."),
    "verify": ("judging:verify", "Read all of a fixture, a trace or a log and compare it with its manifest."),
}

IMPLIED = {"--ray": "auto"}  # flags that may stand without their value

app = App(
    name="loadshape",
    version=__version__,
    help="Make traffic, replay it at precise instants, judge the result: the instrument first.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


for name, (place, summary) in COMMANDS.items():
    app.command(f"loadshape.cli.{place}", name=name, help=summary)


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        _check_arguments()
        return int(app(_fill_values(sys.argv[1:])) or 0)
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
    except Exception as error:
        if os.environ.get("LOADSHAPE_TRACEBACK"):
            raise
        why = ascii(str(error))[1:-1][:200]  # one line, whatever it holds
        code, told = 70, f"a defect of loadshape: {type(error).__name__}: {why} (LOADSHAPE_TRACEBACK=1 shows where)"
    print(f"loadshape: {told}", file=sys.stderr)
    return code


def _fill_values(arguments: list[str]) -> list[str]:
    """Return *arguments* with the value of each flag that may stand without one."""
    following = [*arguments[1:], "-"]  # one more than needed where there are none
    return [
        f"{given}={IMPLIED[given]}" if given in IMPLIED and after.startswith("-") else given
        for given, after in zip(arguments, following, strict=False)
    ]


def _check_arguments() -> None:
    """Refuse names that are not UTF-8: they would have to stand in manifests and logs, which are."""
    for text in sys.argv[1:]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{ascii(text)[1:-1]}: expected a name in UTF-8, since logs keep it; rename it") from None

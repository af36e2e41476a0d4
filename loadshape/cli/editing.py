# The command that makes traffic of traffic.
#
# Law: a step is the name of a function of the algebra and its arguments, and nothing else is decided here:
#
#     NAME:VALUE,VALUE,KEY=VALUE      thin:0.25,by=tenant     window:60s,5min     scale:2,method=warp
#
# Steps are done from left to right. Values are read by the parameter that they are for: times with units, names of
# traces as paths. What a function does not know is refused with what it does.

"""The command `edit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadshape import algebra
from loadshape.bounds import check_choice
from loadshape.cli.console import AsJson, Force, Output, print_about
from loadshape.errors import InputError
from loadshape.trace import Trace
from loadshape.units import parse_duration_s

STEPS: dict[str, Callable[..., Trace]] = {
    "window": algebra.window,
    "thin": algebra.thin,
    "shift": algebra.shift,
    "repeat": algebra.repeat,
    "scale": algebra.scale,
    "splice": algebra.splice,
    "superpose": algebra.superpose,
}


def edit(trace: Path, /, *steps: str, output: Output, seed: int = 0, force: Force = False, json: AsJson = False) -> int:
    """Cut, thin, scale and join traces into a new one.

    Steps are done from left to right: window:START,END; thin:PART,by=session|tenant|request; shift:TIME;
    repeat:TIMES,gap=TIME; scale:FACTOR,method=warp|superpose|replicate; splice:TRACE,at=TIME; superpose:TRACE,...

    Parameters
    ----------
    trace
        The trace to begin with.
    steps
        What to do, such as window:60s,5min and scale:2,method=warp.
    output
        The trace to write, NAME.trace.
    seed
        Of the random choices of thin and scale.
    """
    made = Trace.open(trace)
    for step in steps or [""]:
        made = _do_step(made, step, seed)
    made.write(output, force=force)
    print_about(made, as_json=json)
    return 0


def _do_step(trace: Trace, step: str, seed: int) -> Trace:
    name, _, text = step.partition(":")
    check_choice("step", name, STEPS)
    values = [part.strip() for part in text.split(",")] if text else []
    if name == "superpose":
        return algebra.superpose(trace, *(Trace.open(Path(value)) for value in values))
    parameters = list(inspect.signature(STEPS[name]).parameters)[1:]
    given: dict[str, Any] = {"seed": seed} if "seed" in parameters else {}
    free = iter(parameters)
    for value in values:
        key, found, content = value.partition("=")
        if found:
            check_choice(f"{step}: {key}", key, [_shorten(it) for it in parameters])
        parameter = next((it for it in parameters if found and _shorten(it) == key), None) or next(free, "")
        given[parameter] = _read_value(f"{step}: {_shorten(parameter)}", parameter, content if found else value)
    try:
        inspect.signature(STEPS[name]).bind(trace, **given)
    except TypeError as problem:
        raise InputError(f"{step}: expected {_write_usage(name, parameters)}; {problem}") from None
    return STEPS[name](trace, **given)


def _read_value(field: str, parameter: str, text: str) -> Any:
    if parameter.endswith("_s"):
        sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
        return sign * parse_duration_s(text, field)
    if parameter in ("keep", "factor", "times", "seed"):
        return _read_number(field, text, int if parameter in ("times", "seed") else float)
    return Trace.open(Path(text)) if parameter == "second" else text


def _read_number(field: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{field}: expected a number, found {text!r}") from None


def _shorten(parameter: str) -> str:
    """A parameter as it is written here: units are in the value."""
    return parameter.removesuffix("_s")


def _write_usage(name: str, parameters: list[str]) -> str:
    return f"{name}:{','.join(_shorten(it).upper() for it in parameters if it != 'seed')}"

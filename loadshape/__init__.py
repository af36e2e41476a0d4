"""loadshape: make traffic traces, replay them at precise instants, judge what happened.

Three rooms, two doors: `Fixture`, `Shape` and `Recipe` make a `Trace`; `replay` plays it against a `Target`
and writes a `Log`; `summarize` and `render` judge it, the instrument first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from loadshape.version import __version__

if TYPE_CHECKING:
    from loadshape.arrival import Burst, Constant, Gamma, Poisson, superpose
    from loadshape.cluster.launcher import RayLauncher
    from loadshape.conversation import Conversation, Message
    from loadshape.errors import InputError, LoadshapeError, ReplayError, WireError
    from loadshape.fixture import Fixture
    from loadshape.length import Empirical, Fixed, LogNormal, Uniform
    from loadshape.log import Log
    from loadshape.mix import Mix
    from loadshape.policy import Policy
    from loadshape.prefix import PrefixTree
    from loadshape.recipe import Recipe
    from loadshape.replayer import replay
    from loadshape.replayer.job import Settings
    from loadshape.report import render
    from loadshape.sanitizer import sanitize
    from loadshape.session import Sessions
    from loadshape.shape import Shape
    from loadshape.sources import read
    from loadshape.summary import summarize
    from loadshape.target import Target
    from loadshape.trace import Trace
    from loadshape.validity import judge

__all__ = [
    "Burst",
    "Constant",
    "Conversation",
    "Empirical",
    "Fixed",
    "Fixture",
    "Gamma",
    "InputError",
    "LoadshapeError",
    "Log",
    "LogNormal",
    "Message",
    "Mix",
    "Poisson",
    "Policy",
    "PrefixTree",
    "RayLauncher",
    "Recipe",
    "ReplayError",
    "Sessions",
    "Settings",
    "Shape",
    "Target",
    "Trace",
    "Uniform",
    "WireError",
    "__version__",
    "judge",
    "read",
    "render",
    "replay",
    "sanitize",
    "summarize",
    "superpose",
]

_NAMES = {  # module -> what it brings; imported at the first use, so that `import loadshape` is over at once
    "loadshape.arrival": "Burst Constant Gamma Poisson superpose",
    "loadshape.cluster.launcher": "RayLauncher",
    "loadshape.conversation": "Conversation Message",
    "loadshape.errors": "InputError LoadshapeError ReplayError WireError",
    "loadshape.fixture": "Fixture",
    "loadshape.length": "Empirical Fixed LogNormal Uniform",
    "loadshape.log": "Log",
    "loadshape.mix": "Mix",
    "loadshape.policy": "Policy",
    "loadshape.prefix": "PrefixTree",
    "loadshape.recipe": "Recipe",
    "loadshape.replayer": "replay",
    "loadshape.replayer.job": "Settings",
    "loadshape.report": "render",
    "loadshape.sanitizer": "sanitize",
    "loadshape.session": "Sessions",
    "loadshape.shape": "Shape",
    "loadshape.sources": "read",
    "loadshape.summary": "summarize",
    "loadshape.target": "Target",
    "loadshape.trace": "Trace",
    "loadshape.validity": "judge",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

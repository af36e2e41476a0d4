"""loadshape: make traffic traces, replay them at precise instants, judge what happened.

Three rooms, two doors: `Fixture`, `Shape` and `Recipe` make a `Trace`; `replay` plays it against a `Target`
and writes a `Log`; `summarize` and `render` judge it, the instrument first.
"""

from loadshape.arrival import Burst, Constant, Gamma, Poisson, superpose
from loadshape.conversation import Conversation, Message
from loadshape.errors import InputError, LoadshapeError, ReplayError, WireError
from loadshape.fixture import Fixture
from loadshape.length import Empirical, Fixed, LogNormal, Uniform
from loadshape.log import Log
from loadshape.policy import Policy
from loadshape.prefix import PrefixTree
from loadshape.recipe import Recipe
from loadshape.replayer import replay
from loadshape.replayer.job import Settings
from loadshape.report import render
from loadshape.sanitizer import sanitize
from loadshape.shape import Shape
from loadshape.sources import read
from loadshape.summary import summarize
from loadshape.target import Target
from loadshape.trace import Trace
from loadshape.validity import judge
from loadshape.version import __version__

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
    "Poisson",
    "Policy",
    "PrefixTree",
    "Recipe",
    "ReplayError",
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

# The whole exception tree, and nothing else.
#
# The tree answers one question: whose fault is it? An InputError is the user's to fix and names the
# file and the field; a WireError says which side broke the protocol; a ReplayError means the run as a
# whole is not to be used. A request that fails is not an exception at all: it is a row of the log with
# an outcome. A gate that fails is a verdict with an exit code.
#
# Messages say what was expected, what was found and what to do, in that order.

"""Exceptions: InputError (the user can fix it), WireError (a side broke the protocol), ReplayError (the run failed)."""

from __future__ import annotations

import importlib
from types import ModuleType


class LoadshapeError(Exception):
    """Root of everything that loadshape raises on purpose."""


class InputError(LoadshapeError):
    """The user can fix it: the message names the file and the field. The command line exits with 2."""


class SourceError(InputError):
    """A public data set is not in the format that its reader expects."""


class PolicyError(InputError):
    """A sanitization policy has an unknown key or an impossible value."""


class RecipeError(InputError):
    """A workload recipe has an unknown key or an impossible value."""


class TargetError(InputError):
    """The endpoint is unknown, unreachable, or not permitted."""


class TraceError(InputError):
    """A trace is damaged, of another version, or does not match its digest."""


class LogError(InputError):
    """A log is damaged, incomplete, or does not match its manifest."""


class FixtureError(InputError):
    """A fixture is damaged, of another version, or does not match its digest."""


class MissingExtra(InputError):
    """A part of loadshape needs packages that are not installed; the message names the extra."""


class WireError(LoadshapeError):
    """HTTP or SSE was broken by one of the two sides."""


class LocalWireError(WireError):
    """We tried to send something illegal: a loadshape bug or a bad request template."""


class RemoteWireError(WireError):
    """The endpoint broke HTTP or SSE."""


class ReplayError(LoadshapeError):
    """The run as a whole is not to be used. The command line exits with 3."""


class WorkerLost(ReplayError):
    """A worker process ended before it had handed in its part of the log."""


class StartMissed(ReplayError):
    """The workers were not ready at the common start, so the plan cannot be kept."""


def require(module: str, extra: str) -> ModuleType:
    """Import *module*, or raise MissingExtra naming the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{module} is not installed ({error}); it comes with the extra {extra}: in a clone of loadshape, "
            f"pip install '.[{extra}]'; elsewhere, pip install 'loadshape-llm[{extra}]'"
        ) from error

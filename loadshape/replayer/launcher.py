# How the workers of a run come to be, and what the coordinator needs of them.
#
# Law: two small protocols. A launcher knows where workers can run; what it launches is a team, which the coordinator
# talks to and listens to without knowing where its members are. Before T0 a team says how far ahead T0 has to lie for
# everybody to hear of it in time; after the last worker is done it brings home what was written elsewhere.
#
#     Local          worker processes on this host (crew.py); the default
#     RayLauncher    the same worker processes on each of several nodes (loadshape.cluster)
#
# A launcher of one's own needs these members and no more: nothing is inherited.

"""Launcher and Team: the seam between a run and the machines that it runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from loadshape.replayer.capacity import check_capacity
from loadshape.replayer.crew import Crew
from loadshape.replayer.job import Job, Order, Ready, Report, Settings
from loadshape.trace import Trace


class Team(Protocol):
    """The workers of one run, numbered through all nodes."""

    @property
    def lead_ns(self) -> int:
        """How far ahead T0 is to lie, once all are ready."""
        ...

    @property
    def expected(self) -> int:
        """How many workers will still say that they are done, or have said so."""
        ...

    @property
    def losses(self) -> list[str]:
        """What was lost of the team during the run: why, and when. The log lacks the rows of those."""
        ...

    def gather_ready(self, timeout_s: float) -> list[Ready]:
        """Wait until every worker is ready; what each said, in the order of their numbers. Raises ReplayError."""
        ...

    def tell(self, order: Order) -> None:
        """Say the same to every worker that still listens. T0 is on the coordinator's clock."""
        ...

    def listen(self, timeout_s: float) -> Iterator[tuple[int, Report]]:
        """Yield (worker, what it says) for *timeout_s* at most. Raises ReplayError or InputError."""
        ...

    def bring_home(self, epoch_ns: int) -> list[str]:
        """Put what was written elsewhere into the log, once the last worker is done; returns notes for the manifest."""
        ...


class Launcher(Protocol):
    """Where the workers of a run are started."""

    @property
    def nodes(self) -> int:
        """How many machines there will be."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what is to be known of it in the log; nothing for this host."""
        ...

    def check(self, trace: Trace, settings: Settings, *, roads: int) -> None:
        """Raise InputError when what the run needs cannot be had there."""
        ...

    def launch(self, job: Job, trace: Trace, *, lease: int) -> AbstractContextManager[Team]:
        """Start the workers of *job*, which is that of worker 0; the others' differ from it by their numbers.

        *lease* is the descriptor that holds the log: whoever writes into it has that open.
        """
        ...


class Local:
    """Worker processes on this host."""

    nodes = 1

    def describe(self) -> dict[str, Any]:
        """Return nothing: what is to be known of this host stands in environment.json."""
        return {}

    def check(self, trace: Trace, settings: Settings, *, roads: int) -> None:
        """Raise InputError when this host cannot have the connections of the run."""
        check_capacity(trace, settings, roads=roads)

    def launch(self, job: Job, trace: Trace, *, lease: int) -> Crew:
        """Start the processes."""
        return Crew(number_jobs(job), lease=lease)


def number_jobs(job: Job) -> list[Job]:
    """Return the jobs of all workers of the node that *job* belongs to, of which it is the first."""
    return [msgspec.structs.replace(job, worker=job.worker + rank) for rank in range(job.settings.workers)]

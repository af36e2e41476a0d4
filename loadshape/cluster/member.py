# A node of a run and its agent, as the coordinator knows them.
#
# Law: a record, and the one way to ask its agent something. What an agent raises is raised here with its name before
# it, in one line; what Ray makes of it (a traceback as a message, a class of two parents) goes no further. An agent
# that does not answer in time, or whose process is gone, is a ReplayError: whoever asked decides what that means.

"""Member: what is known of one node, and the answers of its agent."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from loadshape.cluster.agent import Facts
from loadshape.cluster.synchrony import fit_drift, rebase_bursts
from loadshape.errors import LoadshapeError, ReplayError
from loadshape.nodes import Burst, Node

ANSWER_S = 30.0


@dataclass(slots=True)
class Member:
    """One node and its agent: `hand` is the handle of the actor."""

    node: int
    address: str
    hand: Any
    facts: Facts | None = None
    workers: range = range(0)
    planned: int = 0
    portion_digest: str = ""
    folder: str = ""
    epoch: tuple[int, int] = (0, 0)  # T0 on its monotonic and on its wall clock
    done: int = 0
    is_over: bool = False  # no worker there will say anything more
    lost: str = ""
    is_home: bool = False  # its files are here, whole
    asked_at_s: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"node {self.node} ({self.address})"

    def describe(self, bursts: Iterable[Burst], epoch_ns: int) -> Node:
        """Return what the log says of it; *bursts* are the readings of its clock, *epoch_ns* is T0 on ours."""
        assert self.facts is not None
        bursts = list(bursts)
        drift = fit_drift(bursts)
        return Node(
            node=self.node,
            name=self.facts.name,
            address=self.address,
            workers=list(self.workers),
            planned=self.planned,
            portion_digest=self.portion_digest,
            epoch_monotonic_ns=self.epoch[0],
            epoch_realtime_ns=self.epoch[1],
            niceness=self.facts.niceness,
            folder=self.folder,
            environment=self.facts.environment,
            synchronization=self.facts.synchronization,
            bursts=rebase_bursts(bursts, epoch_ns),
            drift_ppb=None if drift is None else drift.ppb,
            lost=self.lost,
        )


def get_answer(ray: Any, member: Member, call: Any, *, timeout_s: float = ANSWER_S) -> Any:
    """Return what an agent answers. Raises what it raised, with its name before it, or ReplayError for no answer."""
    try:
        return ray.get(call, timeout=timeout_s)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        kind = type(cause) if isinstance(cause, LoadshapeError) else ReplayError
        raise kind(f"{member}: {str(cause).strip() or type(cause).__name__}") from None
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        line = str(error).strip().partition("\n")[0]
        raise ReplayError(f"{member} does not answer: {line or type(error).__name__}") from None

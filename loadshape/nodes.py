# The machines of a run that had several: who they were, and how their clocks stood to the coordinator's.
#
# Law: nothing here measures. A run on this host alone has no such file, and its log differs in nothing else. Workers
# are numbered through all nodes, node by node, so that a row's worker tells its node, and its `node` says it too.
#
#     NAME.log/nodes.json    one entry a node, written with the manifest, which has its hash
#
# Stamps of a node are ns since T0 on its own clock. T0 was agreed ahead on the coordinator's, and each node took it
# over by `offset_ns`: what to add to the node's clock to have the coordinator's. Half of the shortest round trip
# bounds the error of that, whatever the way (Cristian, Distributed Computing 3, 1989), so latencies, which begin and
# end on one node, do not depend on it, and times of different nodes can be set side by side within `bound_ns`.

"""Nodes: facts about each machine of a run, and readings of its clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from loadshape.errors import LogError
from loadshape.manifest import read_plain

NAME = "nodes.json"


class Burst(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reading of a node's clock: the quickest of many round trips at about the same time."""

    at_ns: int  # since T0 on the coordinator's clock: before the run it is negative
    offset_ns: int | None  # coordinator's clock - node's clock; None: no answer was heard
    bound_ns: int | None  # the error is not larger than this: half of the shortest round trip, and clocks' own part
    rtt_p99_ns: int | None  # round trip that 99 % of the heard pings did not exceed
    sent: int  # pings
    heard: int  # answers


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine of a run."""

    node: int
    name: str
    address: str
    workers: list[int]  # their numbers in the log
    planned: int  # requests
    portion_digest: str  # of its part of the trace, as computed there
    epoch_monotonic_ns: int  # T0 on its own clock
    epoch_realtime_ns: int  # the same instant on its wall clock
    niceness: int  # of its workers; more than 0: others go first
    folder: str  # where its log was written, on that machine
    environment: dict[str, Any]  # describe_host() there
    synchronization: dict[str, Any]  # what its NTP client says, where there is one
    bursts: list[Burst]
    drift_ppb: float | None = None  # of its clock against the coordinator's, ns a second; None: readings do not tell
    lost: str = ""  # why it was lost, and when; empty: it was there until the end


def write_nodes(folder: Path, nodes: list[Node]) -> None:
    """Write what is known of the nodes of the run whose log is *folder*."""
    (folder / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(nodes)) + b"\n")


def read_nodes(folder: Path) -> list[Node]:
    """Read the nodes of the log at *folder*; empty for a run on one host. Raises LogError."""
    path = folder / NAME
    try:
        return msgspec.json.decode(read_plain(path), type=list[Node])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as problem:
        raise LogError(f"{path}: not a list of nodes: {problem}") from None

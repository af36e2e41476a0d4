# A run on the nodes of a Ray cluster.
#
# Law: Ray places one agent on each node and carries what is said; no request and no read ever passes through it. All
# of a cluster that is not here is an ordinary run: the agents' workers are the same processes, the plan is the same
# trace, dealt out; the log is one log.
#
#     placement group (STRICT_SPREAD) -> an agent a node -> the same version? -> portions -> workers ready
#       -> pings: how the clocks stand -> T0, told ahead on each node's clock -> ... -> done -> files home
#
# An agent is never started again (max_restarts=0): a node that comes back would have another clock and no plan. What a
# lost node or worker means is said beforehand: `on_lost` "stop" ends the run, "continue" lets the others go on. Either
# way the log is completed with what there is, and can never be VALID.
#
# Clocks are compared by pings of our own (synchrony.py), since a call through Ray takes 400 us at the best.

"""RayLauncher: one agent on each of several nodes, as the team of a run."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from loadshape.cluster.agent import Agent
from loadshape.cluster.beacon import Sounder, make_token
from loadshape.cluster.member import Member, get_answer
from loadshape.cluster.portion import cut_portions, split_settings
from loadshape.cluster.team import RayTeam
from loadshape.errors import InputError, ReplayError, require
from loadshape.replayer.job import Job, Settings
from loadshape.trace import Trace
from loadshape.version import __version__

ON_LOST = ("stop", "continue")
PLACE_S = 60.0
CLOSE_S = 15.0
KNOCK_S = 5.0
CALLS = 4  # at once on an agent: one hears, one tells, one reads a file, one is in reserve


class RayLauncher(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Starts the workers of a run on *nodes* machines of the Ray cluster at *address* ("auto": the one here).

    Each node has as many worker processes as the settings say, and as many of its CPUs are taken from Ray. Their logs
    are written below *scratch* on the node (its folder for temporary files, if None) and fetched at the end, or
    straight to the log's own path where all machines have it in common (*is_shared*). *on_lost* says what becomes of
    the run when a node or a worker is lost: "stop", or "continue" without it. Clocks are compared every *ping_s*.

    Raises InputError for what cannot be.
    """

    nodes: int
    address: str = "auto"
    scratch: str | None = None
    is_shared: bool = False
    on_lost: str = "stop"
    ping_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what cannot be. Raises InputError naming the field."""
        if self.address.startswith("ray://"):
            raise InputError("ray: through a Ray client no node can be pinged; run this on a machine of the cluster")
        if self.nodes < 1:
            raise InputError(f"nodes: expected 1 or more, found {self.nodes}")
        if self.on_lost not in ON_LOST:
            raise InputError(f"on_lost: expected stop or continue, found {self.on_lost!r}")
        if not 1 <= self.ping_s <= 3600:
            raise InputError(
                f"ping_s: expected 1 to 3600 seconds between two readings of the clocks, found {self.ping_s}"
            )

    def describe(self) -> dict[str, Any]:
        """Return what is to be known of it in the log."""
        return {"launcher": "ray", **msgspec.structs.asdict(self)}

    def check(self, trace: Trace, settings: Settings, *, roads: int) -> None:
        """Raise InputError when the run cannot be divided, or Ray is not there. Each node checks its own limits."""
        require("ray", "ray")
        if settings.source_ips:
            raise InputError("source_ips: are addresses of one machine; leave them out of a run on several nodes")
        if settings.requests is not None:
            for node in range(self.nodes):
                split_settings(trace, settings, node, self.nodes)
        next(cut_portions(trace, self.nodes))

    @contextmanager
    def launch(self, job: Job, trace: Trace, *, lease: int) -> Iterator[RayTeam]:
        """Place the agents, and have them start their workers. Raises ReplayError or InputError."""
        token = make_token()
        with self.place(job.settings.processes, token) as (ray, members):
            _check_alike(members)
            _check_addresses(job, {ray.util.get_node_ip_address(), *(it.address for it in members)})
            portions = cut_portions(trace, self.nodes)
            calls = [self._send(ray, *it, trace, job) for it in zip(members, portions, strict=True)]
            for member, call in zip(members, calls, strict=True):
                member.folder = get_answer(ray, member, call)
            peers = {it.node: (it.address, it.facts.port) for it in members if it.facts is not None}
            grace_s = job.settings.interrupt_grace_s if self.on_lost == "stop" else None
            sounder = Sounder(peers, token, every_s=self.ping_s)
            with RayTeam(
                ray, members, Path(job.log), sounder=sounder, grace_s=grace_s, is_shared=self.is_shared
            ) as team:
                yield team

    @contextmanager
    def place(self, cpus: int, token: bytes) -> Iterator[tuple[Any, list[Member]]]:
        """Give Ray and an agent on each node, which has said who it is; they end with the block."""
        ray = require("ray", "ray")
        with _connecting(ray, self.address), _placing(ray, self.nodes, cpus) as (group, addresses):
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            actor, limits = ray.remote(Agent), {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": CALLS}
            members = []
            try:
                for node, address in enumerate(addresses):
                    where = strategy(group, placement_group_bundle_index=node)
                    hand = actor.options(num_cpus=cpus, scheduling_strategy=where, **limits).remote(address, token)
                    members.append(Member(node, address, hand))
                for member, call in [(it, it.hand.describe.remote()) for it in members]:
                    member.facts = get_answer(ray, member, call, timeout_s=PLACE_S)
                yield ray, members
            finally:
                _end(ray, members)

    def _send(self, ray: Any, member: Member, portion: Trace, trace: Trace, job: Job) -> Any:
        """Begin to send a node its portion, and return the call."""
        settings = split_settings(trace, job.settings, member.node, self.nodes)
        first = member.node * settings.workers
        log = str(Path(job.log).absolute())  # a node may stand elsewhere
        job = msgspec.structs.replace(job, log=log, worker=first, node=member.node, settings=settings)
        member.workers = range(first, first + settings.workers)
        member.portion_digest = portion.digest
        return member.hand.prepare.remote(job, ray.put(portion), scratch=self.scratch, is_shared=self.is_shared)


def count_nodes(address: str) -> int:
    """Return how many machines of the Ray cluster at *address* have a CPU to send with. Raises InputError for none."""
    ray = require("ray", "ray")
    with _connecting(ray, address):
        count = len([it for it in ray.nodes() if it["Alive"] and it["Resources"].get("CPU", 0) >= 1])
    if not count:
        raise InputError(f"ray: the cluster at {address!r} has no node with a CPU; join one with ray start")
    return count


@contextmanager
def _connecting(ray: Any, address: str) -> Iterator[None]:
    """Be connected to the cluster; whoever was connected before stays so."""
    if ray.is_initialized():
        yield
        return
    _knock(address)
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # what agents raise is told in one line, by us
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="loadshape")
    except (ConnectionError, RuntimeError, ValueError) as problem:
        line = str(problem).partition("\n")[0]
        raise InputError(
            f"ray: no cluster is reached at {address!r} ({line}); start one with: ray start --head, on this machine, "
            "or give the address of its head, HOST:6379"
        ) from None
    try:
        with _heeding_term():
            yield
    finally:
        ray.shutdown()


@contextmanager
def _heeding_term() -> Iterator[None]:
    """Take SIGTERM for an interrupt: Ray's own handler prints a stack and aborts, and agents would stay until then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _knock(address: str) -> None:
    """Raise InputError if nobody listens at *address*: Ray would try for more than ten minutes before it says so."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return  # "auto", or something that Ray refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
    except OSError as problem:
        why = problem.strerror or f"no answer in {KNOCK_S:.0f} s"
        raise InputError(f"ray: no cluster is reached at {address!r} ({why}); expected a `ray start --head`") from None


@contextmanager
def _placing(ray: Any, nodes: int, cpus: int) -> Iterator[tuple[Any, list[str]]]:
    """Give a placement group with *cpus* on each of *nodes* machines, and their addresses. Raises InputError."""
    alive = [it for it in ray.nodes() if it["Alive"]]
    fit = [it for it in alive if it["Resources"].get("CPU", 0) >= cpus]
    if len(fit) < nodes:
        had = ", ".join(f"{it['NodeManagerAddress']} with {it['Resources'].get('CPU', 0):g} CPUs" for it in alive)
        raise InputError(f"nodes: {nodes} with {cpus} CPUs or more, and the cluster has {len(fit)}: {had}")
    group = ray.util.placement_group([{"CPU": cpus}] * nodes, strategy="STRICT_SPREAD")
    try:
        deadline_s = time.monotonic() + PLACE_S
        while not group.wait(1):  # it hears no Ctrl-C meanwhile
            if time.monotonic() > deadline_s:
                raise InputError(
                    f"nodes: {nodes} with {cpus} free CPUs were not to be had for {PLACE_S:.0f} s: others use them"
                )
        placed = ray.util.placement_group_table(group)["bundles_to_node_id"]
        where = {it["NodeID"]: it["NodeManagerAddress"] for it in alive}
        yield group, [where[placed[bundle]] for bundle in range(nodes)]
    finally:
        ray.util.remove_placement_group(group)


def _end(ray: Any, members: list[Member]) -> None:
    """End the agents: in order if they still answer, and in any case."""
    with suppress(Exception):  # whatever is wrong with the cluster by now, it is not to hide what is under way
        ray.wait([it.hand.close.remote() for it in members], num_returns=len(members), timeout=CLOSE_S)
    for member in members:
        ray.kill(member.hand, no_restart=True)


def _check_alike(members: list[Member]) -> None:
    """Raise ReplayError unless all nodes run what the coordinator does."""
    for member in members:
        facts = member.facts
        if facts is not None and facts.version != __version__:
            raise ReplayError(
                f"{member}: has loadshape {facts.version}, and here is {__version__}: results would be of "
                "two programs; install the same version everywhere"
            )


def _check_addresses(job: Job, machines: set[str]) -> None:
    """Raise InputError for a target that each of several *machines*, of which we are one, would take for itself."""
    if len(machines) < 2:
        return
    for target, addresses in zip(job.targets, job.addresses, strict=True):
        if any(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
            raise InputError(
                f"target: {target.url} is another machine for each node; give the address under which all reach it"
            )

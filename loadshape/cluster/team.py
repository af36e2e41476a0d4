# The agents of a run, seen from the coordinator.
#
# Law: what Crew is for worker processes, this is for nodes: told and listened to, no more. One call to `hear` is
# always under way on each node; that it comes back is the node's sign of life. T0 and every instant that is said to a
# node is translated to its clock here, and nowhere else.
#
#     ready -> clocks sounded -> T0 told -> ... -> the last worker is done -> clocks sounded -> files fetched
#
# A node that Ray gives up, or that has not answered for SILENT_S, is lost. One whose worker was lost, or whose disk is
# full, stops sending by itself and still hands over what it has. What was lost before T0 ends the run; what is lost
# after it, as the launcher's `on_lost` says.

"""RayTeam: start at one instant, listen, note losses, and bring the logs home."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadshape.cluster.agent import Heard
from loadshape.cluster.beacon import Sounder
from loadshape.cluster.haul import fetch_logs
from loadshape.cluster.member import ANSWER_S, Member, get_answer
from loadshape.cluster.synchrony import choose_lead_ns, estimate_offset
from loadshape.errors import InputError, ReplayError
from loadshape.nodes import write_nodes
from loadshape.replayer.job import Done, Order, Ready, Report, Start, Stop

HEAR_S = 0.25
CALL_S = 2e-3  # a call takes 0.35 ms of the coordinator (benchmarks/overhead.py): many nodes are heard less often
SILENT_S = 10.0


class RayTeam:
    """The agents of *members*, whose workers write the log at *log*. A context manager: it watches their clocks."""

    def __init__(
        self, ray: Any, members: list[Member], log: Path, *, sounder: Sounder, grace_s: float | None, is_shared: bool
    ) -> None:
        self.losses: list[str] = []
        self._ray = ray
        self._members = members
        self._log = log
        self._sounder = sounder
        self._grace_s = grace_s  # of the others, once a node is lost; None: they go on
        self._is_shared = is_shared
        self._open = ExitStack()
        self._epoch_ns = 0
        self._hear_s = max(HEAR_S, len(members) * CALL_S)
        self._calls: dict[Any, Member] = {}  # calls to `hear` under way
        self._told: list[Any] = []  # orders whose arrival nobody waits for: kept, so that they do arrive
        for member in members:
            self._listen_to(member)

    def __enter__(self) -> RayTeam:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    @property
    def lead_ns(self) -> int:
        """How far ahead T0 is to lie, so that word of it reaches all nodes."""
        return choose_lead_ns(burst for bursts in self._sounder.bursts.values() for burst in bursts)

    @property
    def expected(self) -> int:
        """How many workers are done, or will be: of a lost node, those that said so before."""
        return sum(it.done if it.lost and it.is_over else len(it.workers) for it in self._members)

    def gather_ready(self, timeout_s: float) -> list[Ready]:
        """Wait for every worker, then look at every clock."""
        ready: dict[int, Ready] = {}
        count = sum(len(it.workers) for it in self._members)
        deadline = time.monotonic() + timeout_s
        while len(ready) < count:
            if time.monotonic() > deadline:
                raise ReplayError(f"workers: {len(ready)} of {count} were ready after {timeout_s:.0f} s")
            ready.update({worker: said for worker, said in self.listen(0.2) if isinstance(said, Ready)})
        self._open.enter_context(self._sounder)
        for member in self._members:
            member.planned = sum(ready[worker].planned for worker in member.workers)
        return [ready[worker] for worker in sorted(ready)]

    def tell(self, order: Order) -> None:
        """Say *order* to every node; an order to start waits until all have it, and is refused if one has not."""
        if not isinstance(order, Start):
            self._told += [it.hand.tell.remote(order) for it in self._members if not it.is_over]
            return
        self._epoch_ns = order.epoch_ns
        calls = [it.hand.tell.remote(Start(epoch_ns=self._translate(it, order.epoch_ns))) for it in self._members]
        for member, call in zip(self._members, calls, strict=True):
            member.epoch = get_answer(self._ray, member, call)

    def listen(self, timeout_s: float) -> Iterator[tuple[int, Report]]:
        """Yield what the workers of all nodes say, and note who is lost."""
        if not self._calls:
            time.sleep(min(timeout_s, self._hear_s))  # all have ended: there is nothing to wait for
            return
        waiting = list(self._calls)
        self._ray.wait(waiting, num_returns=1, timeout=timeout_s)
        ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for call in ready:
            member = self._calls.pop(call)
            yield from self._take(member, call)
        for call, member in list(self._calls.items()):
            if time.monotonic() - member.asked_at_s > self._hear_s + SILENT_S:
                del self._calls[call]
                self._lose(member, f"was not heard for {SILENT_S:.0f} s", is_over=True)

    def bring_home(self, epoch_ns: int) -> list[str]:
        """Fetch every node's files into the log, and write down what is known of the nodes."""
        self._open.close()
        if not self._is_shared:
            for node, reason in fetch_logs(self._ray, self._members, self._log).items():
                if not self._members[node].lost:
                    self._lose(self._members[node], f"kept its log: {reason}", is_over=True)
        bursts = self._sounder.bursts
        write_nodes(self._log, [it.describe(bursts[it.node], epoch_ns) for it in self._members])
        if home := [it.hand.clear.remote() for it in self._members if it.is_home]:
            self._ray.wait(home, num_returns=len(home), timeout=ANSWER_S)
        left = [it for it in self._members if not it.is_home and not self._is_shared]
        return [f"{it}: its log was not fetched; what there is of it is there in {it.folder}" for it in left]

    def _listen_to(self, member: Member) -> None:
        member.asked_at_s = time.monotonic()
        self._calls[member.hand.hear.remote(self._hear_s)] = member

    def _take(self, member: Member, call: Any) -> Iterator[tuple[int, Report]]:
        try:
            heard: Heard = self._ray.get(call)
        except self._ray.exceptions.RayActorError:
            self._lose(member, "was lost: Ray gave it up", is_over=True)
            return
        member.is_over = heard.is_over
        for worker, report in heard.reports:
            member.done += isinstance(report, Done)
            yield worker, report
        if heard.failure and not member.lost:
            if heard.is_input:
                raise InputError(f"{member}: {heard.failure}")
            self._lose(member, f"failed: {heard.failure}", is_over=heard.is_over)
        if not heard.is_over:
            self._listen_to(member)

    def _lose(self, member: Member, why: str, *, is_over: bool) -> None:
        """Note that a node, or a worker on it, is lost, and stop the others if that is what was asked for."""
        member.is_over = is_over
        self._sounder.forget(member.node)
        if not self._epoch_ns:
            raise ReplayError(f"{member} {why}")
        after_s = (time.monotonic_ns() - self._epoch_ns) / 1e9
        member.lost = f"{why}, {after_s:.1f} s into the run"
        self.losses.append(f"{member} {member.lost}")
        if is_over:  # should it be there after all, it is to send no more
            self._told.append(member.hand.tell.remote(Stop(grace_s=0.0, reason=f"stopped: {member.lost}")))
        if self._grace_s is not None:
            self.tell(Stop(grace_s=self._grace_s, reason=f"stopped: {self.losses[0]}"))

    def _translate(self, member: Member, at_ns: int) -> int:
        """Return the instant *at_ns* of our clock on that of a node. Raises ReplayError if it never answered a ping."""
        found = estimate_offset(self._sounder.bursts[member.node], at_ns)
        if found is None:
            raise ReplayError(
                f"{member} answers no ping: its clock is not known; let UDP through to port "
                f"{member.facts.port if member.facts else '?'} there"
            )
        return at_ns - found[0]

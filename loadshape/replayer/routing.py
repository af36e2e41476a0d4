# Which target serves which request.
#
# Law: a pure function of the trace, the policy and the weights. Nothing is handed out during a run: every
# worker comes to the same answer about every request, and so does whoever reads the log.
#
#     session      whole sessions, dealt by weight in the order of the trace; a session stays where it is
#     round_robin  requests in the order of the trace, one target after another
#     weighted     requests in the order of the trace, dealt by weight
#     prefix       requests that begin with the same segment go to one target, by a hash of what it says
#
# Dealing by weight: the j-th item of a target has its place at (j + 1/2) / weight, and the places are sorted
# (Webster's method of apportionment), so that every beginning of the sequence is as near to the weights as
# whole items can be. Hashing: the target with the highest score takes the key (rendezvous hashing: Thaler and
# Ravishankar, IEEE/ACM Transactions on Networking 6(1), 1998; weighted by -weight / ln h). When a target is
# lost only its own keys move, and they spread over the living by weight.

"""Routing: the target of every request, and what becomes of it when that target is lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from loadshape.plan import NULL
from loadshape.trace import Trace

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Routing:
    """Per row of a trace: its target, and the key by which it is placed when that target is lost."""

    home: list[int]
    key: list[int]


def route_trace(trace: Trace, policy: str, weights: Sequence[float]) -> Routing:
    """Return where each row of *trace* goes under *policy* (Settings.routing); *weights* has one entry a target."""
    rows = trace.requests.num_rows
    if policy == "session":
        numbers, first, session = np.unique(
            np.asarray(trace.requests["session"]), return_index=True, return_inverse=True
        )
        home = np.empty(len(numbers), np.int64)
        home[np.argsort(first)] = deal_items(len(numbers), weights)
        return Routing(home[session].tolist(), numbers[session].tolist())
    if policy == "prefix":
        segments, row = np.unique(_list_first_segments(trace), return_inverse=True)
        keys = _digest_segments(trace.segments.take(pa.array(segments)))
        homes = [choose_target(key, weights, range(len(weights))) for key in keys]
        return Routing([homes[at] for at in row], [keys[at] for at in row])
    dealt = deal_items(rows, weights) if policy == "weighted" else np.arange(rows) % len(weights)
    return Routing(dealt.tolist(), np.asarray(trace.requests["request"]).tolist())


def deal_items(count: int, weights: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the targets of *count* items in their order; every beginning of it is as near to the weights as can be."""
    total = sum(weights)
    parts = [math.ceil(count * weight / total) + 1 for weight in weights]
    target = np.repeat(np.arange(len(weights)), parts)
    place = np.concatenate([(np.arange(part) + 0.5) / weight for part, weight in zip(parts, weights, strict=True)])
    return target[np.lexsort((target, place))][:count]


def choose_target(key: int, weights: Sequence[float], living: Iterable[int]) -> int:
    """Return which of the *living* takes *key*: the same whoever else lives, as long as it does."""
    return max(living, key=lambda target: weights[target] / -math.log(_mix(key, target)))


class Routes:
    """The targets of one worker's plan, by position, and which of them still live.

    A target is lost after `dead_after` connection failures in a row (never, if None). From then on its
    requests go to the living if it `moves`, and else nowhere.
    """

    def __init__(
        self, routing: Routing, weights: Sequence[float] = (1.0,), *, dead_after: int | None = None, moves: bool = False
    ) -> None:
        self.lost: dict[int, int] = {}  # target -> when, ns since the epoch
        self._home = routing.home
        self._key = routing.key
        self._weights = weights
        self._living = list(range(len(weights)))
        self._dead_after = dead_after
        self._moves = moves
        self._failures = [0] * len(weights)

    @classmethod
    def to_one(cls, requests: int) -> Routes:
        """Return the routes of a plan of *requests* to a single target."""
        return cls(Routing([0] * requests, [0] * requests))

    @property
    def targets(self) -> int:
        """How many targets there are, lost or not."""
        return len(self._weights)

    def home(self, position: int) -> int:
        """Return the target that a request was planned for."""
        return self._home[position]

    def find(self, position: int) -> int:
        """Return the target that a request goes to now, NULL when it is lost and nobody takes over."""
        target = self._home[position]
        if not self.lost or target not in self.lost:
            return target
        if not (self._moves and self._living):
            return NULL
        return choose_target(self._key[position], self._weights, self._living)

    def hear(self, target: int, at_ns: int, *, answered: bool) -> None:
        """Take note that *target* answered something, or that a connection failed before it did."""
        self._failures[target] = 0 if answered else self._failures[target] + 1
        if self._dead_after is None or self._failures[target] < self._dead_after or target in self.lost:
            return
        self.lost[target] = at_ns
        self._living.remove(target)

    def tell(self, worker: int) -> list[str]:
        """Return one line for each target that was lost."""
        then = "its requests moved to the others" if self._moves else "its requests ended as not_reached"
        return [
            f"worker {worker}: target {target} was lost {at_ns / 1e9:.3f} s into the run, "
            f"after {self._dead_after} connection failures in a row; {then}"
            for target, at_ns in self.lost.items()
        ]


def _list_first_segments(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the segment that each request begins with; one without content goes with the request after it."""
    messages = trace.requests["messages"].combine_chunks()
    segments = messages.values.field("segments")
    values = np.asarray(segments.values).astype(np.int64)
    first = np.asarray(segments.offsets)[np.asarray(messages.offsets)[:-1]]
    return values[np.minimum(first, len(values) - 1)] if len(values) else np.zeros(len(first), np.int64)


def _digest_segments(segments: pa.Table) -> list[int]:
    """Return a number for each segment that stands for what it says, the same in every trace."""
    kinds = segments["kind"].cast(pa.string()).to_pylist()
    said = zip(kinds, segments["text"].to_pylist(), segments["token_ids"].to_pylist(), strict=True)
    digests = (blake2b(repr(it).encode(), digest_size=8).digest() for it in said)
    return [int.from_bytes(digest, "big") for digest in digests]


def _mix(key: int, target: int) -> float:
    """Return a number between 0 and 1, both excluded, that looks random: the finalizer of SplitMix64."""
    mixed = (key + (target + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (((mixed ^ (mixed >> 31)) >> 12) + 0.5) / (1 << 52)

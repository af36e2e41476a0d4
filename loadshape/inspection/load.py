# What a trace would put on a server, if the server took this long.
#
# Law: arithmetic on assumptions that are said with the result: every request has its first token `ttft_s` after it
# begins and the others `tpot_s` apart, however many there are. No queue, no batch, no cap, nobody gives up; so this
# is what the traffic asks for, not what a server will show. With the rate and the mean time it is Little's law
# (Little, "A Proof for the Queuing Formula L = lambda W", Operations Research 9, 1961).
#
# Requests begin when they are due; a turn that waits, when its predecessor is answered and the pause is over; in a
# closed loop, when a slot has become free. In its KV cache a server keeps the tokens of a prompt from the
# begin on and one more with each token of the answer; prefixes that requests share are counted for each of them.

"""Load: requests in flight and their KV tokens over time, for an assumed server."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow.compute as pc

from loadshape.bounds import check_number
from loadshape.portrait import read_integers
from loadshape.stats import Floats, Integers
from loadshape.trace import Trace
from loadshape.units import NS_PER_S

POINTS = 960  # instants that are looked at


@dataclass(frozen=True, slots=True)
class Service:
    """A server that is never busy: the time to its first token, and from one token to the next."""

    ttft_s: float = 0.5
    tpot_s: float = 0.03

    def __post_init__(self) -> None:
        check_number("ttft", self.ttft_s, least=0, most=1e5, remedy="write the assumed time to the first token, 500ms")
        check_number("tpot", self.tpot_s, least=0, most=1e3, remedy="write the assumed time between tokens, 30ms")


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in flight and KV tokens at the instants `at_s`, until the last answer; their peaks are exact.

    `mean_in_flight` is of the planned duration.
    """

    service: Service
    at_s: Floats
    in_flight: Floats
    kv_tokens: Floats
    mean_in_flight: float
    peak_in_flight: int
    peak_kv_tokens: int

    def find_excess(self, capacity_tokens: int) -> tuple[float, float | None]:
        """Return the part of the time in which more than a capacity is in flight, and when that begins."""
        over = self.kv_tokens > capacity_tokens
        return float(over.mean()), float(self.at_s[np.argmax(over)]) if over.any() else None


def estimate_load(trace: Trace, service: Service, begin_s: Floats) -> Load:
    """Return the load of requests that begin at *begin_s* (`estimate_begins`)."""
    inputs = read_integers(trace.requests["input_tokens"])
    end_s = begin_s + _measure_service_s(trace, service)
    planned_s = trace.manifest.duration_s or float(end_s.max())
    at_s = (np.arange(POINTS) + 0.5) * max(float(end_s.max()), planned_s, 1e-9) / POINTS
    held = _Held(begin_s, end_s, inputs, service)
    inside_s = np.minimum(end_s, planned_s) - np.minimum(begin_s, planned_s)
    return Load(
        service=service,
        at_s=at_s,
        in_flight=held.count_requests(at_s),
        kv_tokens=held.count_tokens(at_s),
        mean_in_flight=float(inside_s.sum() / planned_s) if planned_s > 0 else 0.0,
        peak_in_flight=int(held.count_requests(np.sort(begin_s)).max()),
        peak_kv_tokens=round(float(held.count_tokens(end_s, side="left").max())),
    )


def estimate_begins(trace: Trace, service: Service) -> Floats:
    """Return when each request begins, in seconds after the start."""
    if trace.manifest.loop.mode == "closed":
        return _fill_slots(trace, service, trace.manifest.loop.slots or 1)
    due = trace.requests["due_ns"]
    due_s = pc.fill_null(due, 0).to_numpy() / NS_PER_S
    if due.null_count == 0:
        return np.asarray(due_s, np.float64)
    waits = pc.is_null(due).to_numpy()
    steps_s = read_integers(trace.requests["think_ns"]) / NS_PER_S + np.r_[0, _measure_service_s(trace, service)[:-1]]
    upto_s = np.cumsum(np.where(waits, steps_s, 0))
    clocked = np.maximum.accumulate(np.where(waits, 0, np.arange(len(due_s))))
    return np.asarray(due_s[clocked] + upto_s - upto_s[clocked])


def _measure_service_s(trace: Trace, service: Service) -> Floats:
    outputs = read_integers(trace.requests["output_tokens"])
    return service.ttft_s + np.maximum(outputs - 1, 0) * service.tpot_s


def _fill_slots(trace: Trace, service: Service, slots: int) -> Floats:
    """The begins in a closed loop: whichever slot is free first takes the next session."""
    think_s = read_integers(trace.requests["think_ns"]) / NS_PER_S
    first = np.flatnonzero(read_integers(trace.requests["turn"]) == 0)
    end_s = np.cumsum(think_s + _measure_service_s(trace, service))  # as if all came one after another
    before_s = np.r_[0, end_s][first]
    lengths_s = np.diff(np.r_[before_s, end_s[-1]]).tolist()
    free_s = [0.0] * min(slots, len(first))
    taken_s = []
    for length_s in lengths_s:
        taken_s.append(free_s[0])
        heapq.heapreplace(free_s, free_s[0] + length_s)
    session = np.cumsum(np.isin(np.arange(len(think_s)), first)) - 1
    begins_alone_s = np.r_[0, end_s[:-1]] + think_s - before_s[session]
    return np.asarray(np.array(taken_s)[session] + begins_alone_s)


class _Held:
    """Requests that begin and end, each with its prompt and an answer that grows from the first token on."""

    def __init__(self, begin_s: Floats, end_s: Floats, inputs: Integers, service: Service) -> None:
        self._ttft_s = service.ttft_s
        self._growth_hz = 1 / service.tpot_s if service.tpot_s > 0 else 0.0
        self._moments = []
        for moment_s in (begin_s, end_s):
            order = np.argsort(moment_s, kind="stable")
            sums = (np.r_[0, np.cumsum(values[order])] for values in (inputs, begin_s))
            self._moments.append((moment_s[order], *sums))

    def count_requests(self, at_s: Floats) -> Floats:
        """Return how many have begun and not ended."""
        begun, ended = (np.searchsorted(moments_s, at_s, "right") for moments_s, _, _ in self._moments)
        return np.asarray(begun - ended, np.float64)

    def count_tokens(self, at_s: Floats, side: Literal["left", "right"] = "right") -> Floats:
        """Return the tokens that they hold at instants; from the left, just before them."""
        (begins_s, prompts, _), (ends_s, ended, _) = self._moments
        held = prompts[np.searchsorted(begins_s, at_s, side)] - ended[np.searchsorted(ends_s, at_s, side)]
        since_s = at_s - self._ttft_s
        grown_s = np.zeros(len(at_s))
        for sign, until_s, (moments_s, _, begin_sums) in ((1, since_s, self._moments[0]), (-1, at_s, self._moments[1])):
            place = np.searchsorted(moments_s, until_s, side)
            grown_s += sign * (place * since_s - begin_sums[place])
        return np.asarray(held + grown_s * self._growth_hz)

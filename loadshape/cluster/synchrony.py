# How far apart two clocks are, from questions that both sides stamped.
#
# Law: pure. No socket, no clock, no thread: stamps come in, bursts go out. beacon.py asks the questions.
#
#     coordinator   sent ------------------------------- returned
#     node                   heard ---- answered                       offset = coordinator's clock - node's clock
#
# No question is heard before it was sent, and no answer returns before it was given: the offset lies between
# sent - heard and returned - answered, however long the ways were and however different. The middle is the estimate of
# NTP (RFC 5905, 8), half of the width the bound of Cristian (Distributed Computing 3, 1989). The quickest ping has
# the smallest bound, and a burst is that one ping: what clocks and network did during the others is of no account.
# Two things widen the bound. During the round trip the clocks may run at different rates: 500 ppm each is the most
# that NTP slews (MAXFREQ, linux/timex.h; chrony goes beyond it only for a large error). And both are read in ticks.
#
# Away from a burst clocks go apart: free crystals by 5 to 10 us a second, 30 at the most (Geng et al., HUYGENS, NSDI
# 2018; twice the 15 ppm of RFC 5905, which are for one clock). Over a longer run the drift itself is known: the median
# of the slopes between all pairs (Theil 1950, Sen 1968), which a quarter of bad readings does not move.
# If both rates are constant, it lies in every interval that the bounds of a pair allow. The residual tells if they are.

"""Judge pings: the offset of a node's clock with its bound, the drift over a run, and when a run can start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from loadshape.nodes import Burst

SLEW_PPB = 1_000_000  # between two clocks that NTP pulls in opposite directions as fast as Linux allows
WANDER_PPB = 30_000  # between two clocks that are left alone
TICK_NS = 50  # the coarsest clock in use: 42 ns on Apple's chips, 1 ns elsewhere
LEAD_NS = 2_000_000_000
LEAD_ROUNDS = 20
FITTED = 256  # bursts of a fit; of more, the best of each stretch of the run


class Ping(NamedTuple):
    """One question and its answer."""

    sent_ns: int
    heard_ns: int  # on the node's clock, as the next one
    answered_ns: int
    returned_ns: int

    @property
    def round_ns(self) -> int:
        """The time on the two ways: the round trip without the node's own part."""
        return self.returned_ns - self.sent_ns - (self.answered_ns - self.heard_ns)

    @property
    def bound_ns(self) -> int:
        """The largest error of an offset taken from the middle, at the instant between `sent_ns` and `returned_ns`."""
        slewed_ns = (self.returned_ns - self.sent_ns) * SLEW_PPB / 2e9
        return math.ceil(self.round_ns / 2 + slewed_ns) + TICK_NS


class Volley:
    """The pings of one burst under way: what was asked, and which answers are its own.

    Numbers are of this burst alone, so what is lost, doubled, late or of another burst cannot be mistaken: the first
    answer to a number counts, and only with the stamp of its own question.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self.pings: list[Ping] = []
        self.sent = 0

    def ask(self, number: int, sent_ns: int) -> None:
        """Enter a question."""
        self._open[number] = sent_ns
        self.sent += 1

    def hear(self, number: int, heard_ns: int, answered_ns: int, returned_ns: int) -> bool:
        """Enter an answer; return whether it was one that this burst waits for, and possible."""
        if number not in self._open:
            return False
        ping = Ping(self._open.pop(number), heard_ns, answered_ns, returned_ns)
        possible = answered_ns >= heard_ns and ping.bound_ns >= 0
        self.pings += [ping] if possible else []
        return possible


class Drift(NamedTuple):
    """How a node's clock goes against the coordinator's."""

    ppb: float  # ns a second by which the offset grows
    bound_ppb: float  # the error is not larger than this, if both rates are constant
    residual_ns: int  # how far the better half of the readings is from a straight line, at the most


def judge_pings(pings: Sequence[Ping], *, sent: int, begun_ns: int) -> Burst:
    """Return the reading of *pings*, *sent* of which were sent from *begun_ns* on, on the coordinator's clock.

    A burst that nobody answered is one with `heard` 0 and no offset.
    """
    if not pings:
        return Burst(at_ns=begun_ns, offset_ns=None, bound_ns=None, rtt_p99_ns=None, sent=sent, heard=0)
    best = min(pings, key=attrgetter("bound_ns"))
    trips_ns = sorted(ping.returned_ns - ping.sent_ns for ping in pings)
    return Burst(
        at_ns=(best.sent_ns + best.returned_ns) // 2,
        offset_ns=(best.sent_ns + best.returned_ns - best.heard_ns - best.answered_ns) // 2,
        bound_ns=best.bound_ns,
        rtt_p99_ns=trips_ns[max(0, -(-99 * len(trips_ns) // 100) - 1)],
        sent=sent,
        heard=len(pings),
    )


def estimate_offset(bursts: Iterable[Burst], at_ns: int, drift: Drift | None = None) -> tuple[int, int] | None:
    """Return (offset, bound on its error) in ns at *at_ns*, on the clock of the bursts; None if none was heard.

    It is that of the burst which bounds it best. Away from that, the bound holds for clocks that go apart by WANDER_PPB
    at the most; with *drift*, for clocks that go as they were seen to.
    """
    rate, unsure, apart_ns = (0.0, WANDER_PPB, 0) if drift is None else drift
    found = [
        (
            burst.offset_ns + round((at_ns - burst.at_ns) * rate / 1e9),
            burst.bound_ns + math.ceil(abs(at_ns - burst.at_ns) * unsure / 1e9) + apart_ns,
        )
        for burst in bursts
        if burst.offset_ns is not None and burst.bound_ns is not None
    ]
    return min(found, key=itemgetter(1), default=None)


def fit_drift(bursts: Iterable[Burst]) -> Drift | None:
    """Return the drift that *bursts* show; None if they do not tell more than what is true of any two clocks."""
    best = _choose_best(bursts)
    if len(best) < 2:
        return None
    at_ns, offset_ns, bound_ns = best.T
    earlier, later = np.triu_indices(len(best), 1)
    span_ns = at_ns[later] - at_ns[earlier]
    slope = (offset_ns[later] - offset_ns[earlier]) / span_ns
    slack = (bound_ns[later] + bound_ns[earlier]) / span_ns
    if slack.min() * 1e9 > WANDER_PPB:
        return None
    rate = float(np.median(slope))
    error = max(abs((slope - slack).max() - rate), abs((slope + slack).min() - rate))
    rest_ns = offset_ns - rate * at_ns
    apart_ns = np.abs(rest_ns - np.median(rest_ns))[bound_ns <= np.median(bound_ns)]
    return Drift(rate * 1e9, float(error * 1e9), int(np.ceil(apart_ns.max())))


def choose_lead_ns(bursts: Iterable[Burst]) -> int:
    """Return how far ahead T0 must be agreed on, so that word of it reaches all whose *bursts* these are."""
    return max([LEAD_NS, *(LEAD_ROUNDS * burst.rtt_p99_ns for burst in bursts if burst.rtt_p99_ns is not None)])


def rebase_bursts(bursts: Iterable[Burst], epoch_ns: int) -> list[Burst]:
    """Return *bursts* with times since *epoch_ns*, T0 on the coordinator's clock, as a log has them."""
    return [msgspec.structs.replace(burst, at_ns=burst.at_ns - epoch_ns) for burst in bursts]


def _choose_best(bursts: Iterable[Burst]) -> npt.NDArray[np.float64]:
    """Return (instant, offset, bound) of those heard, counted from the first one; of many, the best of each stretch."""
    rows = {burst.at_ns: (burst.at_ns, burst.offset_ns, burst.bound_ns) for burst in bursts if burst.heard}
    table = np.array(sorted(rows.values()), np.int64).reshape(-1, 3)
    near = (table - table[:1] * [1, 1, 0]).astype(float)
    stretches = np.array_split(near, min(FITTED, len(near)) or 1)
    return np.array([stretch[stretch[:, 2].argmin()] for stretch in stretches if len(stretch)]).reshape(-1, 3)

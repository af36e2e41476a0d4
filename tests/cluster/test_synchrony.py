# Offsets from stamps, without a socket. In the properties a true offset is invented, questions and answers take what
# time they like, and what is judged must hold the truth within the bound that it names.

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.cluster.synchrony import (
    FITTED,
    LEAD_NS,
    SLEW_PPB,
    TICK_NS,
    WANDER_PPB,
    Drift,
    Ping,
    Volley,
    choose_lead_ns,
    estimate_offset,
    fit_drift,
    judge_pings,
    rebase_bursts,
)
from loadshape.nodes import Burst

S = 1_000_000_000
SILENT = Burst(at_ns=7, offset_ns=None, bound_ns=None, rtt_p99_ns=None, sent=100, heard=0)


def read(at_s: float, offset_ns: int, bound_ns: int = 100, rtt_p99_ns: int = 200) -> Burst:
    return Burst(
        at_ns=round(at_s * S), offset_ns=offset_ns, bound_ns=bound_ns, rtt_p99_ns=rtt_p99_ns, sent=100, heard=100
    )


PINGS = [
    # ping, its offset, half of its round trip
    (Ping(sent_ns=1000, heard_ns=1100, answered_ns=1100, returned_ns=1200), 0, 100),
    (Ping(sent_ns=1000, heard_ns=600, answered_ns=600, returned_ns=1200), 500, 100),
    (Ping(sent_ns=1000, heard_ns=9_100, answered_ns=9_150, returned_ns=1250), -8_000, 100),
    (Ping(sent_ns=1000, heard_ns=1000, answered_ns=1000, returned_ns=1200), 100, 100),  # all of it on the way back
    (Ping(sent_ns=0, heard_ns=0, answered_ns=0, returned_ns=0), 0, 0),
]


@pytest.mark.parametrize(("ping", "offset_ns", "half_ns"), PINGS)
def test_one_ping(ping: Ping, offset_ns: int, half_ns: int) -> None:
    burst = judge_pings([ping], sent=3, begun_ns=0)
    assert (burst.offset_ns, burst.sent, burst.heard) == (offset_ns, 3, 1)
    assert burst.bound_ns is not None
    assert 0 <= burst.bound_ns - TICK_NS - half_ns <= 1  # the clocks cannot go apart in so short a time
    assert burst.at_ns == (ping.sent_ns + ping.returned_ns) // 2


def test_a_long_way_leaves_the_clocks_time_to_go_apart() -> None:
    burst = judge_pings([Ping(0, 0, 0, S)], sent=1, begun_ns=0)
    assert burst.bound_ns == S // 2 + SLEW_PPB // 2 + TICK_NS


def test_the_quickest_ping_is_the_reading() -> None:
    quick, slow = Ping(5_000, 5_010, 5_010, 5_020), Ping(0, 400, 400, 500)
    held_up = Ping(9_000, 9_005, 90_000_000, 89_999_999 + 9_005)  # quicker on its ways, too long at the node
    burst = judge_pings([slow, quick, held_up], sent=3, begun_ns=0)
    assert (burst.at_ns, burst.offset_ns, burst.heard) == (5_010, 0, 3)


def test_nothing_heard_is_no_offset() -> None:
    assert judge_pings([], sent=100, begun_ns=7) == SILENT
    assert estimate_offset([SILENT], 7) is None
    assert estimate_offset([], 7) is None
    assert fit_drift([SILENT, SILENT]) is None
    assert choose_lead_ns([SILENT]) == LEAD_NS


@pytest.mark.parametrize(("trips", "p99"), [(range(1, 2), 1), (range(1, 101), 99), (range(1, 201), 198), ([5, 1], 5)])
def test_the_round_trip_that_hardly_any_exceeds(trips: list[int], p99: int) -> None:
    burst = judge_pings([Ping(0, 0, 0, trip) for trip in trips], sent=len(trips), begun_ns=0)
    assert burst.rtt_p99_ns == p99


def test_an_answer_counts_once_and_for_its_own_question() -> None:
    volley = Volley()
    volley.ask(7, 1000)
    volley.ask(8, 2000)
    assert not volley.hear(6, 1, 1, 2100)  # of another burst
    assert volley.hear(7, 5, 6, 2200)  # late: behind the next question
    assert not volley.hear(7, 7, 8, 2300)  # doubled
    assert not volley.hear(8, 9, 8, 2400)  # given before it was asked for
    assert not volley.hear(8, 9, 9, 2500)
    assert volley.pings == [Ping(1000, 5, 6, 2200)]
    assert volley.sent == 2


def test_an_answer_that_took_longer_there_than_here_is_no_answer() -> None:
    volley = Volley()
    volley.ask(1, 1000)
    assert not volley.hear(1, 0, 5000, 1400)


def test_the_best_burst_at_an_instant() -> None:
    bursts = [read(0, 500, bound_ns=1_000), SILENT, read(10, 800, bound_ns=50_000), read(20, 900, bound_ns=1_000)]
    assert estimate_offset(bursts, 0) == (500, 1_000)
    assert estimate_offset(bursts, S) == (500, 1_000 + WANDER_PPB)
    assert estimate_offset(bursts, 10 * S) == (800, 50_000)
    assert estimate_offset(bursts, 21 * S) == (900, 1_000 + WANDER_PPB)
    assert estimate_offset(bursts, -S) == (500, 1_000 + WANDER_PPB)


def test_a_known_drift_carries_an_offset_along() -> None:
    drift = Drift(ppb=10_000, bound_ppb=50, residual_ns=3)
    assert estimate_offset([read(0, 500)], 60 * S, drift) == (500 + 600_000, 100 + 3_000 + 3)
    assert estimate_offset([read(0, 500)], -60 * S, drift) == (500 - 600_000, 100 + 3_000 + 3)


def test_a_steady_drift() -> None:
    drift = fit_drift([read(at_s, -(10**15) + 8_000 * at_s, bound_ns=1_000) for at_s in range(0, 301, 10)])
    assert drift is not None
    assert drift.ppb == pytest.approx(8_000)
    assert drift.bound_ppb == pytest.approx(2_000 / 300)  # the bounds of the first and the last, over all of the run
    assert drift.residual_ns <= 1


def test_bad_readings_do_not_move_a_drift() -> None:
    steady = [read(at_s, 8_000 * at_s, bound_ns=1_000) for at_s in range(0, 301, 10)]
    spoiled = [
        msgspec.structs.replace(burst, offset_ns=burst.offset_ns + 400_000, bound_ns=500_000) if at % 5 == 1 else burst
        for at, burst in enumerate(steady)
        if burst.offset_ns is not None
    ]
    assert fit_drift(spoiled) == fit_drift(steady)


def test_a_clock_that_changes_its_rate_has_a_residual() -> None:
    drift = fit_drift([read(at_s, 20_000 * abs(at_s - 150), bound_ns=1_000) for at_s in range(0, 301, 10)])
    assert drift is not None
    assert drift.residual_ns > 1_000_000
    assert drift.bound_ppb >= 19_000


@pytest.mark.parametrize(
    "bursts",
    [
        [read(0, 0)],
        [read(0, 0), SILENT],
        [read(0, 0), read(0, 5)],  # at the same instant
        [read(0, 0, bound_ns=25_000), read(1, 0, bound_ns=25_000)],  # anything from -50 to 50 us/s
    ],
)
def test_a_run_too_short_for_a_drift(bursts: list[Burst]) -> None:
    assert fit_drift(bursts) is None


def test_a_long_run_is_fitted_on_the_best_of_each_stretch() -> None:
    good = [read(10 * at, 8_000 * 10 * at, bound_ns=1_000) for at in range(4 * FITTED)]
    bad = [read(10 * at, 0, bound_ns=10**9) if at % 4 else burst for at, burst in enumerate(good)]
    drift = fit_drift(bad)
    assert drift is not None
    assert drift.ppb == pytest.approx(8_000)


def test_the_lead_grows_with_the_slowest_way() -> None:
    assert choose_lead_ns([read(0, 0, rtt_p99_ns=1_000)]) == LEAD_NS
    assert choose_lead_ns([read(0, 0, rtt_p99_ns=S), read(1, 0), SILENT]) == 20 * S


def test_a_log_has_times_since_t0() -> None:
    assert [burst.at_ns for burst in rebase_bursts([read(3, 5), SILENT], 5 * S)] == [-2 * S, 7 - 5 * S]


# Properties. The offset of the node goes up and down at the steepest rate that the bound allows for, with a kink
# every `half_ns`, in thousandths of ns; what a clock shows is rounded down.

delays_ns = st.one_of(st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 10**9))
offsets_ns = st.integers(-(10**17), 10**17)


class Truth:
    def __init__(self, offset_ns: int, half_ns: int, phase_ns: int) -> None:
        self.offset_ns, self.half_ns, self.phase_ns = offset_ns, half_ns, phase_ns

    def tell_offset(self, at_ns: int) -> int:
        """Return the offset in thousandths of ns."""
        return self.offset_ns * 1000 + abs((at_ns + self.phase_ns) % (2 * self.half_ns) - self.half_ns)

    def show(self, at_ns: int) -> int:
        """Return what the node's clock shows when the coordinator's shows *at_ns*."""
        return (at_ns * 1000 - self.tell_offset(at_ns)) // 1000

    def holds(self, burst: Burst) -> bool:
        assert burst.offset_ns is not None
        assert burst.bound_ns is not None
        return abs(burst.offset_ns * 1000 - self.tell_offset(burst.at_ns)) <= burst.bound_ns * 1000


truths = st.builds(Truth, offsets_ns, st.one_of(st.integers(1, 10**5), st.integers(1, 10**10)), st.integers(0, 10**10))
trips = st.tuples(delays_ns, delays_ns, st.lists(delays_ns, max_size=3), delays_ns)  # out, there, back, until the next


@given(truths, st.lists(st.tuples(delays_ns, delays_ns, delays_ns), min_size=1, max_size=8))
def test_the_bound_holds_whatever_the_ways_and_the_clocks(truth: Truth, ways: list[tuple[int, int, int]]) -> None:
    pings, now_ns = [], 0
    for out_ns, there_ns, back_ns in ways:
        heard_ns = now_ns + out_ns
        answered_ns = heard_ns + there_ns
        pings.append(Ping(now_ns, truth.show(heard_ns), truth.show(answered_ns), answered_ns + back_ns))
        now_ns = pings[-1].returned_ns
    burst = judge_pings(pings, sent=len(pings), begun_ns=0)
    assert truth.holds(burst)
    shortest_ns = min(sum(way) for way in ways)
    assert burst.bound_ns is not None
    assert burst.bound_ns <= shortest_ns / 2 * (1 + 2 * SLEW_PPB / 1e9) + TICK_NS + 3


@given(truths, st.lists(trips, min_size=1, max_size=6), st.lists(trips, max_size=6))
def test_lost_doubled_reordered_and_late_answers_never_give_a_wrong_offset(
    truth: Truth, first: list[tuple[int, int, list[int], int]], second: list[tuple[int, int, list[int], int]]
) -> None:
    volleys = [Volley(), Volley()]
    answers: list[tuple[int, int, int, int]] = []  # when it returns, and what it says
    now_ns = 0
    for number, (out_ns, there_ns, backs_ns, pause_ns) in enumerate([*first, *second]):
        volleys[number >= len(first)].ask(number, now_ns)
        heard_ns = now_ns + out_ns
        answered_ns = heard_ns + there_ns
        said = (number, truth.show(heard_ns), truth.show(answered_ns))
        answers += [(answered_ns + back_ns, *said) for back_ns in backs_ns]
        now_ns += pause_ns
    for returned_ns, number, heard_ns, answered_ns in sorted(answers):
        for volley in volleys:  # both hear everything, as if they had one socket
            volley.hear(number, heard_ns, answered_ns, returned_ns)
    for volley, asked in zip(volleys, (first, second), strict=True):
        burst = judge_pings(volley.pings, sent=volley.sent, begun_ns=0)
        assert (burst.sent, burst.heard) == (len(asked), sum(bool(backs_ns) for _, _, backs_ns, _ in asked))
        assert not burst.heard or truth.holds(burst)


drifts_ppb = st.integers(-WANDER_PPB, WANDER_PPB)
errors = st.lists(
    st.tuples(st.integers(1, 10**10), st.integers(0, 10**6), st.floats(-1, 1)), min_size=1, max_size=12
)  # until the next burst, its bound, and which part of it the reading is off


def go_straight(offset_ns: int, rate_ppb: int, seen: list[tuple[int, int, float]]) -> list[Burst]:
    """Return readings of a clock of constant rate, each off by a part of its bound."""
    bursts, now_ns = [], 0
    for pause_ns, bound_ns, part in seen:
        offset = offset_ns + rate_ppb * now_ns // S + int(part * bound_ns)
        bursts.append(read(now_ns / S, offset, bound_ns + 2))
        bursts[-1] = msgspec.structs.replace(bursts[-1], at_ns=now_ns)
        now_ns += pause_ns
    return bursts


@given(offsets_ns, drifts_ppb, errors, st.integers(-(10**10), 10**11))
def test_an_offset_between_bursts_is_bounded_for_any_crystal(
    offset_ns: int, rate_ppb: int, seen: list[tuple[int, int, float]], at_ns: int
) -> None:
    found = estimate_offset(go_straight(offset_ns, rate_ppb, seen), at_ns)
    assert found is not None
    assert abs(found[0] - offset_ns - rate_ppb * at_ns / S) <= found[1] + 32  # floats are as exact at 10^17


@given(st.integers(-(10**12), 10**12), st.integers(-(10**6), 10**6), errors, st.integers(-(10**10), 10**11))
def test_a_constant_drift_lies_within_its_bound(
    offset_ns: int, rate_ppb: int, seen: list[tuple[int, int, float]], at_ns: int
) -> None:
    bursts = go_straight(offset_ns, rate_ppb, seen)
    drift = fit_drift(bursts)
    if drift is not None:
        assert abs(drift.ppb - rate_ppb) <= drift.bound_ppb * (1 + 1e-6) + 1e-3
        found = estimate_offset(bursts, at_ns, drift)
        assert found is not None
        assert abs(found[0] - offset_ns - rate_ppb * at_ns / S) <= found[1] * (1 + 1e-6) + 4

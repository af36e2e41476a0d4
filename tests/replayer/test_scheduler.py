# The scheduler decides on integers alone, so these tests tell it the time and the ends, and nothing waits.

from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.plan import NULL, Plan
from loadshape.replayer.scheduler import NEVER, Scheduler
from loadshape.trace import Loop
from traces import MS, ask, plan_of

CLOSED = Loop("closed", slots=2)
PARTLY_OPEN = Loop("partly_open")


def chat(turns: int, think: float = 0.0, session: int = 0, due: float | None = 0.0) -> list[dict[str, Any]]:
    """Return the rows of one session whose later turns wait for the one before."""
    return [ask(None if turn else due, session=session, turn=turn, think=think) for turn in range(turns)]


def test_open_loop_releases_in_order_of_due_times_and_never_before() -> None:
    scheduler = Scheduler(plan_of(ask(0), ask(10), ask(10), ask(25)))
    assert scheduler.release(-1) == []
    assert scheduler.release(0) == [(0, 0)]
    assert scheduler.release(10 * MS - 1) == []
    assert scheduler.next_due_ns() == 10 * MS
    assert scheduler.release(10 * MS) == [(1, 10 * MS), (2, 10 * MS)]
    assert scheduler.release(99 * MS) == [(3, 25 * MS)]  # late, and its due time is still the plan's
    assert scheduler.next_due_ns() == NEVER
    assert scheduler.in_flight == 4


def test_sessions_of_an_open_loop_interleave_by_the_clock() -> None:
    # A trace is sorted by the first due of its sessions, so the due times of its rows go up and down.
    plan = plan_of(ask(0, session=0), ask(30, session=0, turn=1), ask(10, session=1), ask(40, session=1, turn=1))
    assert Scheduler(plan).release(99 * MS) == [(0, 0), (2, 10 * MS), (1, 30 * MS), (3, 40 * MS)]


def test_a_clocked_turn_does_not_wait_for_its_predecessor() -> None:
    scheduler = Scheduler(plan_of(ask(0, session=0), ask(30, session=0, turn=1)))
    scheduler.release(0)
    scheduler.finish(0, 5 * MS, succeeded=False)
    assert scheduler.release(30 * MS) == [(1, 30 * MS)]


def test_partly_open_turn_is_due_at_the_end_of_the_one_before_plus_think_time() -> None:
    scheduler = Scheduler(plan_of(*chat(3, think=20), loop=PARTLY_OPEN))
    assert scheduler.release(500 * MS) == [(0, 0)]
    scheduler.finish(0, 100 * MS, succeeded=True)
    assert scheduler.next_due_ns() == 120 * MS
    assert scheduler.release(120 * MS - 1) == []
    assert scheduler.release(150 * MS) == [(1, 120 * MS)]
    scheduler.finish(1, 200 * MS, succeeded=True)
    assert scheduler.release(220 * MS) == [(2, 220 * MS)]
    scheduler.finish(2, 230 * MS, succeeded=True)
    assert scheduler.next_due_ns() == NEVER
    assert scheduler.drained


def test_successor_of_a_failed_turn_is_never_released() -> None:
    scheduler = Scheduler(plan_of(*chat(3), *chat(1, session=1, due=50), loop=PARTLY_OPEN))
    scheduler.release(0)
    scheduler.finish(0, MS, succeeded=False)
    assert scheduler.release(NEVER - 1) == [(3, 50 * MS)]
    scheduler.finish(3, 60 * MS, succeeded=True)
    assert (scheduler.next_due_ns(), scheduler.in_flight) == (NEVER, 0)


def test_closed_loop_fills_its_slots_at_once_and_refills_at_the_very_end() -> None:
    scheduler = Scheduler(plan_of(*(ask(None) for _ in range(4)), loop=CLOSED), slots=2)
    assert scheduler.release(0) == [(0, 0), (1, 0)]
    assert scheduler.next_due_ns() == NEVER
    scheduler.finish(1, 7 * MS, succeeded=True)
    assert scheduler.release(7 * MS) == [(2, 7 * MS)]
    scheduler.finish(0, 9 * MS, succeeded=False)  # a failure frees its slot like a success
    assert not scheduler.drained
    assert scheduler.release(12 * MS) == [(3, 9 * MS)]
    assert scheduler.drained


def test_closed_loop_thinks_before_every_request_of_a_slot() -> None:
    scheduler = Scheduler(plan_of(*(ask(None, think=5) for _ in range(3)), loop=CLOSED), slots=2)
    assert scheduler.release(5 * MS) == [(0, 5 * MS), (1, 5 * MS)]
    scheduler.finish(0, 20 * MS, succeeded=True)
    assert scheduler.next_due_ns() == 25 * MS


def test_a_slot_keeps_its_session_until_its_last_turn_or_its_failure() -> None:
    rows = [row for at in range(3) for row in chat(2, session=at, due=None)]
    scheduler = Scheduler(plan_of(*rows, loop=Loop("closed", slots=1)), slots=1)
    assert scheduler.release(0) == [(0, 0)]
    scheduler.finish(0, MS, succeeded=True)
    assert scheduler.release(MS) == [(1, MS)]
    scheduler.finish(1, 2 * MS, succeeded=True)
    assert scheduler.release(2 * MS) == [(2, 2 * MS)]
    scheduler.finish(2, 3 * MS, succeeded=False)  # its second turn is lost, the slot is not
    assert scheduler.release(3 * MS) == [(4, 3 * MS)]


def test_more_slots_than_sessions() -> None:
    scheduler = Scheduler(plan_of(ask(None), loop=CLOSED), slots=9)
    assert scheduler.release(0) == [(0, 0)]


def test_cap_makes_what_is_due_wait_and_leaves_its_due_time() -> None:
    scheduler = Scheduler(plan_of(ask(0), ask(1), ask(2)), cap=1)
    assert scheduler.release(10 * MS) == [(0, 0)]
    assert scheduler.next_due_ns() == NEVER
    assert not scheduler.drained
    scheduler.finish(0, 50 * MS, succeeded=True)
    assert scheduler.next_due_ns() == 1 * MS
    assert scheduler.release(50 * MS) == [(1, 1 * MS)]


def test_under_a_cap_a_waiting_turn_and_a_clocked_one_go_by_their_due_times() -> None:
    rows = [*chat(2, think=5), *chat(1, session=1, due=3), *chat(1, session=2, due=9)]
    scheduler = Scheduler(plan_of(*rows, loop=PARTLY_OPEN), cap=1)
    scheduler.release(0)
    scheduler.finish(0, 2 * MS, succeeded=True)  # turn 1 is due at 7
    order = []
    for _ in range(3):
        ((position, due_ns),) = scheduler.release(100 * MS)
        order.append((position, due_ns))
        scheduler.finish(position, 100 * MS, succeeded=True)
    assert order == [(2, 3 * MS), (1, 7 * MS), (3, 9 * MS)]


def test_look_ahead_counts_what_will_be_due() -> None:
    scheduler = Scheduler(plan_of(*chat(2, think=40), *chat(1, session=1, due=50), loop=PARTLY_OPEN))
    assert [scheduler.look_ahead(at * MS) for at in (-1, 0, 49, 50, 99)] == [0, 1, 1, 2, 2]
    scheduler.release(0)
    scheduler.finish(0, 5 * MS, succeeded=True)
    assert [scheduler.look_ahead(at * MS) for at in (44, 45, 50)] == [0, 1, 2]


def test_look_ahead_wants_no_more_connections_than_the_cap_allows() -> None:
    scheduler = Scheduler(plan_of(*(ask(0) for _ in range(100))), cap=5)
    assert scheduler.look_ahead(0) == 5
    scheduler.release(0)
    assert scheduler.look_ahead(0) == 0


def test_upcoming_is_the_clocked_rest_nearest_first() -> None:
    plan = plan_of(ask(0, session=0), ask(30, session=0, turn=1), ask(10, session=1), ask(40, session=2))
    scheduler = Scheduler(plan)
    assert list(scheduler.upcoming(30 * MS)) == [0, 2, 1]
    assert list(scheduler.upcoming(30 * MS, skip=2)) == [1]
    assert list(scheduler.upcoming(30 * MS, skip=9)) == []
    scheduler.release(0)
    assert list(scheduler.upcoming(NEVER)) == [2, 1, 3]


def test_stop_releases_nothing_more() -> None:
    scheduler = Scheduler(plan_of(*chat(2), *chat(1, session=1, due=5), loop=PARTLY_OPEN))
    scheduler.release(0)
    scheduler.stop()
    scheduler.finish(0, MS, succeeded=True)
    assert scheduler.release(NEVER - 1) == []
    assert (scheduler.next_due_ns(), scheduler.look_ahead(NEVER), scheduler.drained) == (NEVER, 0, True)


@pytest.mark.parametrize("slots", [None, 1, 3])
def test_an_empty_plan_has_nothing_to_do(slots: int | None) -> None:
    empty = Plan([], [], [], [], [], [], [], [], [])
    scheduler = Scheduler(empty, slots=slots)
    assert (scheduler.release(NEVER - 1), scheduler.next_due_ns(), scheduler.drained) == ([], NEVER, True)


# Properties: any plan, any order of ends.

SESSIONS = st.lists(st.tuples(st.integers(0, 50), st.lists(st.integers(0, 9), min_size=1, max_size=4)), max_size=12)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, dict[str, int | None], str]:
    """Draw a plan, its slots and cap, and its mode."""
    mode = draw(st.sampled_from(["open", "partly_open", "closed"]))
    sessions = draw(SESSIONS) or [(0, [0])]
    rows = []
    for session, (first, thinks) in enumerate(sorted(sessions, key=lambda entry: entry[0])):
        for turn, think in enumerate(thinks):
            waits = mode == "closed" or (mode == "partly_open" and turn > 0)
            due = None if waits else first + 3 * turn
            rows.append(ask(due, session=session, turn=turn, think=think))
    slots = draw(st.integers(1, 5)) if mode == "closed" else None
    cap = draw(st.none() | st.integers(1, 4))
    return plan_of(*rows, loop=Loop(mode, slots=slots, cap=cap)), {"slots": slots, "cap": cap}, mode


# The declared end


def test_nothing_is_released_that_falls_due_at_the_end_or_later() -> None:
    scheduler = Scheduler(plan_of(ask(0), ask(10), ask(20), ask(30)), end_ns=20 * MS)
    assert scheduler.look_ahead(99 * MS) == len(scheduler.foresee(99 * MS)) == 2
    assert scheduler.release(99 * MS) == [(0, 0), (1, 10 * MS)]  # late, but due before the end
    assert scheduler.next_due_ns() == NEVER
    assert not scheduler.drained  # the grace begins at the end
    scheduler.stop()
    assert scheduler.drained


@pytest.mark.parametrize(("ended_ms", "expected"), [(79, [(1, 99 * MS)]), (80, [])])
def test_a_later_turn_is_bound_by_the_end_as_well(ended_ms: int, expected: list[tuple[int, int]]) -> None:
    scheduler = Scheduler(plan_of(*chat(2, think=20), loop=PARTLY_OPEN), end_ns=100 * MS)
    scheduler.release(0)
    scheduler.finish(0, ended_ms * MS, succeeded=True)
    assert scheduler.release(500 * MS) == expected


def test_a_slot_that_is_free_after_the_end_stays_free() -> None:
    scheduler = Scheduler(plan_of(*(ask(None) for _ in range(4)), loop=CLOSED), slots=2, end_ns=50 * MS)
    assert len(scheduler.release(0)) == 2
    scheduler.finish(0, 49 * MS, succeeded=True)
    scheduler.finish(1, 50 * MS, succeeded=True)
    assert scheduler.release(99 * MS) == [(2, 49 * MS)]


def test_positions_beyond_the_reach_are_never_released() -> None:
    scheduler = Scheduler(plan_of(*chat(3), *chat(1, session=1, due=5), loop=PARTLY_OPEN), reach=2)
    assert scheduler.release(99 * MS) == [(0, 0)]
    scheduler.finish(0, 10 * MS, succeeded=True)
    assert scheduler.release(99 * MS) == [(1, 10 * MS)]
    scheduler.finish(1, 20 * MS, succeeded=True)
    assert scheduler.release(99 * MS) == []
    assert (scheduler.planned, scheduler.drained) == (4, True)


def test_what_is_foreseen_is_bound_by_the_cap() -> None:
    rows = [*chat(2, think=5), ask(20, session=1), ask(30, session=2)]
    scheduler = Scheduler(plan_of(*rows, loop=PARTLY_OPEN), cap=2)
    scheduler.release(0)
    scheduler.finish(0, 10 * MS, succeeded=True)
    assert scheduler.foresee(99 * MS) == [1, 2]
    assert scheduler.foresee(16 * MS) == [1]


@given(plans(), st.data())
def test_every_position_is_released_once_at_most_and_none_before_its_due(
    drawn: tuple[Plan, dict[str, int | None], str], data: st.DataObject
) -> None:
    plan, bounds, mode = drawn
    scheduler = Scheduler(plan, **bounds)
    most = min((bound for bound in bounds.values() if bound is not None), default=len(plan))
    now_ns, flights, ended, failed = 0, [], {}, set()
    released: dict[int, int] = {}
    while (step_ns := min(scheduler.next_due_ns(), flights[0][0] if flights else NEVER)) < NEVER:
        now_ns = max(now_ns, step_ns)
        for position, due_ns in scheduler.release(now_ns):
            assert position not in released
            assert due_ns <= now_ns
            released[position] = due_ns
            heapq.heappush(flights, (now_ns + data.draw(st.integers(0, 20)) * MS, position))
        assert scheduler.in_flight == len(flights) <= most
        if flights and flights[0][0] <= now_ns:
            end_ns, position = heapq.heappop(flights)
            ended[position] = end_ns
            succeeded = data.draw(st.integers(0, 3)) > 0
            failed |= set() if succeeded else {position}
            scheduler.finish(position, end_ns, succeeded=succeeded)
    assert scheduler.drained
    _check_due_times(plan, released, ended, slots=mode == "closed")
    assert set(range(len(plan))) - set(released) == _lose(plan, failed, mode)


def _check_due_times(plan: Plan, released: dict[int, int], ended: dict[int, int], *, slots: bool) -> None:
    before = {successor: position for position, successor in enumerate(plan.successor) if successor != NULL}
    for position, due_ns in released.items():
        if plan.due_ns[position] != NULL:
            assert due_ns == plan.due_ns[position]
        elif position in before:
            assert due_ns == ended[before[position]] + plan.think_ns[position]
        else:
            assert slots
            assert due_ns - plan.think_ns[position] in {0, *ended.values()}


def _lose(plan: Plan, failed: set[int], mode: str) -> set[int]:
    """Return the positions that follow a failed one, if later turns wait."""
    lost: set[int] = set()
    for position in failed if mode != "open" else ():
        while (position := plan.successor[position]) != NULL:
            lost.add(position)
    return lost

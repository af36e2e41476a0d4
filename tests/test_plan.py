# Sharding then merging is the identity, whatever the number of workers.

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import TraceError
from loadshape.plan import NULL, Plan, check_loop, split_total, split_trace
from loadshape.trace import Loop, Trace
from traces import MS, ask, make_trace


def test_a_row_of_the_plan_says_what_the_trace_says() -> None:
    trace = make_trace(
        ask(0, session=4, patience=(250, None)),
        ask(None, session=4, turn=1, think=20, patience=(None, 3)),
        ask(5, session=9),
        loop=Loop("partly_open"),
    )
    assert split_trace(trace, 0, 1) == Plan(
        row=[0, 1, 2],
        request=[0, 1, 2],
        session=[4, 4, 9],
        turn=[0, 1, 0],
        due_ns=[0, NULL, 5 * MS],
        think_ns=[0, 20 * MS, 0],
        successor=[1, NULL, NULL],
        abort_ns=[250 * MS, NULL, NULL],
        abort_tokens=[NULL, 3, NULL],
    )


def test_sessions_are_dealt_out_in_the_order_of_the_trace() -> None:
    trace = make_trace(*(ask(at, session=number) for at, number in enumerate((7, 3, 50, 9))))
    assert split_trace(trace, 0, 2).session == [7, 50]
    assert split_trace(trace, 1, 2).session == [3, 9]


def test_more_workers_than_sessions_leaves_some_without_work() -> None:
    trace = make_trace(ask(0), ask(1))
    shares = [split_trace(trace, worker, 5) for worker in range(5)]
    assert [len(share) for share in shares] == [1, 1, 0, 0, 0]
    assert all(getattr(shares[4], item.name) == [] for item in fields(Plan))


def test_successor_is_a_position_of_the_share_not_a_row_of_the_trace() -> None:
    rows = [ask(0, session=0), ask(9, session=0, turn=1), ask(1, session=1), ask(8, session=1, turn=1)]
    share = split_trace(make_trace(*rows), 1, 2)
    assert (share.row, share.successor) == ([2, 3], [1, NULL])


def test_the_probe_has_a_session_in_every_so_many() -> None:
    trace = make_trace(*(ask(at) for at in range(10)))
    shares = [split_trace(trace, worker, 2, probe_every=4).row for worker in range(3)]
    assert shares == [[0, 3, 5, 8], [1, 4, 7, 9], [2, 6]]


def test_split_total_of_none_is_none() -> None:
    assert split_total(None, 0, 3) is None


@pytest.mark.parametrize(("loop", "name"), [(Loop("closed", slots=3), "slots"), (Loop("open", cap=3), "cap")])
def test_a_total_smaller_than_the_workers_is_refused(loop: Loop, name: str) -> None:
    check_loop(loop, 3)
    with pytest.raises(TraceError, match=rf"loop\.{name}: 3 cannot be split over 4 processes; set processes = 3"):
        check_loop(loop, 4)


# Properties


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw a trace: sessions of several turns, their numbers in any order."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    numbers = draw(st.permutations(range(len(lengths))))
    rows = [
        ask(at + turn if draw(st.booleans()) or not turn else None, session=numbers[at] * 7, turn=turn)
        for at, turns in enumerate(lengths)
        for turn in range(turns)
    ]
    return make_trace(*rows, loop=Loop("partly_open"))


@given(traces(), st.integers(1, 9))
def test_the_union_of_all_shares_is_the_trace(trace: Trace, workers: int) -> None:
    shares = [split_trace(trace, worker, workers) for worker in range(workers)]
    whole = split_trace(trace, 0, 1)
    assert sorted(row for share in shares for row in share.row) == list(range(trace.requests.num_rows))
    for share in shares:
        assert share.row == sorted(share.row)
        for item in fields(Plan):
            if item.name != "successor":
                assert getattr(share, item.name) == [getattr(whole, item.name)[row] for row in share.row]


@given(traces(), st.integers(1, 5), st.integers(1, 14))
def test_with_a_probe_the_union_of_all_shares_is_still_the_trace(trace: Trace, workers: int, every: int) -> None:
    shares = [split_trace(trace, worker, workers, probe_every=every) for worker in range(workers + 1)]
    assert sorted(row for share in shares for row in share.row) == list(range(trace.requests.num_rows))
    owners = [set(share.session) for share in shares]
    sessions = sum(len(owner) for owner in owners)
    assert sessions == len(set().union(*owners))  # a session stays whole
    assert len(owners[-1]) in (sessions // every, sessions // every + 1)
    loaded = [len(owner) for owner in owners[:-1]]
    assert max(loaded) - min(loaded) <= 1


@given(traces(), st.integers(1, 9))
def test_sessions_stay_whole_and_turns_follow_one_another(trace: Trace, workers: int) -> None:
    seen: dict[int, int] = {}
    for worker in range(workers):
        share = split_trace(trace, worker, workers)
        for position, successor in enumerate(share.successor):
            assert seen.setdefault(share.session[position], worker) == worker
            mates = [other for other in range(len(share)) if share.session[other] == share.session[position]]
            later = [other for other in mates if share.turn[other] == share.turn[position] + 1]
            assert [successor] == (later or [NULL])


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_parts_of_a_total_add_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    parts = [split_total(total, worker, workers) for worker in range(workers)]
    assert sum(part or 0 for part in parts) == total
    assert max(part or 0 for part in parts) - min(part or 0 for part in parts) <= 1

# Where requests go is arithmetic: examples by hand, then what must hold for any trace and any weights.

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.plan import NULL, split_trace
from loadshape.replayer.job import ROUTINGS, Settings
from loadshape.replayer.routing import Routes, Routing, choose_target, deal_items, route_trace
from loadshape.replayer.terms import make_routes
from loadshape.target import Target
from loadshape.trace import Loop, Trace
from traces import ask, make_trace

PARTLY_OPEN = Loop("partly_open")


def chats(*turns: int) -> Trace:
    """Return sessions of so many turns each."""
    rows = [ask(None if turn else at, session=at, turn=turn) for at, count in enumerate(turns) for turn in range(count)]
    return make_trace(*rows, loop=PARTLY_OPEN)


def begin_with(*texts: str) -> Trace:
    """Return requests whose first segments are these, each followed by a question of its own."""
    rows = [ask(at, messages=[("system", [text]), ("user", [f"question {at}"])]) for at, text in enumerate(texts)]
    return make_trace(*rows)


@pytest.mark.parametrize(
    ("policy", "weights", "home"),
    [
        ("session", (1, 1), [0, 0, 0, 1, 0, 1, 1]),
        ("session", (1, 3), [1, 1, 1, 0, 1, 1, 1]),
        ("round_robin", (1, 1), [0, 1, 0, 1, 0, 1, 0]),
        ("round_robin", (1, 1, 1), [0, 1, 2, 0, 1, 2, 0]),
        ("weighted", (1, 3), [1, 0, 1, 1, 1, 0, 1]),
        ("weighted", (1, 1), [0, 1, 0, 1, 0, 1, 0]),
    ],
)
def test_where_three_short_sessions_and_a_longer_one_go(policy: str, weights: tuple[int, ...], home: list[int]) -> None:
    # Sessions of 3, 1, 1 and 2 turns.
    assert route_trace(chats(3, 1, 1, 2), policy, weights).home == home


def test_a_session_number_says_nothing_only_the_order_of_the_trace_does() -> None:
    trace = make_trace(ask(0, session=90), ask(1, session=7), ask(2, session=50))
    assert route_trace(trace, "session", (1, 1)).home == [0, 1, 0]
    assert route_trace(trace, "session", (1, 1)).key == [90, 7, 50]


def test_equal_beginnings_go_to_one_target_in_this_trace_and_in_any_other() -> None:
    first = route_trace(begin_with("a", "b", "a", "c", "b"), "prefix", (1, 1, 1))
    other = route_trace(begin_with("z", "c", "b", "a"), "prefix", (1, 1, 1))
    assert (first.key[0], first.key[1]) == (first.key[2], first.key[4])
    assert (first.home[0], first.home[1], first.home[3]) == (other.home[3], other.home[2], other.home[1])
    assert len(set(first.key)) == 3


def test_token_ids_are_a_beginning_too() -> None:
    rows = [ask(0, api="completions", messages=[("user", [("token_ids", ids)])]) for ids in ([1, 2], [1, 2], [1, 3])]
    key = route_trace(make_trace(*rows), "prefix", (1, 1)).key
    assert (key[0] == key[1], key[0] == key[2]) == (True, False)


def test_prefixes_spread_by_weight() -> None:
    found = Counter(choose_target(key, (1, 3), range(2)) for key in range(20_000))
    assert found[1] / 20_000 == pytest.approx(0.75, abs=0.01)


# A target that is lost


def routes(home: list[int], **options: object) -> Routes:
    return Routes(Routing(home, list(range(len(home)))), (1.0, 1.0, 1.0), **options)  # type: ignore[arg-type]


def test_a_target_is_lost_after_so_many_failures_in_a_row() -> None:
    found = routes([0, 1, 2], dead_after=3)
    for answered in (False, False, True, False, False):
        found.hear(1, 5, answered=answered)
    assert found.find(1) == 1
    found.hear(1, 7, answered=False)
    assert found.lost == {1: 7}
    assert [found.find(position) for position in range(3)] == [0, NULL, 2]
    assert found.home(1) == 1


def test_nothing_is_lost_unless_asked_for() -> None:
    found = routes([0, 1, 2])
    for _ in range(100):
        found.hear(1, 5, answered=False)
    assert (found.lost, found.find(1)) == ({}, 1)


def test_only_the_requests_of_the_lost_one_move_and_to_all_of_the_others() -> None:
    home = [at % 3 for at in range(3000)]
    found = routes(home, dead_after=1, moves=True)
    found.hear(1, 5, answered=False)
    now = [found.find(position) for position in range(3000)]
    assert [target for target, before in zip(now, home, strict=True) if before != 1] == [0, 2] * 1000
    moved = Counter(target for target, before in zip(now, home, strict=True) if before == 1)
    assert set(moved) == {0, 2}
    assert min(moved.values()) > 400
    found.hear(0, 6, answered=False)
    assert {found.find(position) for position in range(3000)} == {2}
    found.hear(2, 7, answered=False)
    assert {found.find(position) for position in range(3000)} == {NULL}
    assert [line.partition(",")[0] for line in found.tell(4)] == [
        f"worker 4: target {target} was lost 0.000 s into the run" for target in (1, 0, 2)
    ]


# Properties

weights_of = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(weights_of, st.integers(1, 20))
def test_whole_rounds_are_dealt_exactly_by_weight(weights: list[int], rounds: int) -> None:
    dealt = deal_items(rounds * sum(weights), weights)
    assert np.bincount(dealt, minlength=len(weights)).tolist() == [rounds * weight for weight in weights]


@given(weights_of, st.integers(0, 50), st.integers(0, 50))
def test_a_longer_trace_begins_like_a_shorter_one(weights: list[int], count: int, more: int) -> None:
    assert deal_items(count + more, weights)[:count].tolist() == deal_items(count, weights).tolist()


@given(st.integers(0, 2**64 - 1), st.lists(st.floats(0.1, 10), min_size=2, max_size=6), st.data())
def test_a_key_moves_only_when_its_own_target_is_gone(key: int, weights: list[float], data: st.DataObject) -> None:
    chosen = choose_target(key, weights, range(len(weights)))
    gone = data.draw(st.integers(0, len(weights) - 1))
    living = [target for target in range(len(weights)) if target != gone]
    assert (choose_target(key, weights, living) == chosen) is (gone != chosen)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.sampled_from(ROUTINGS),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_workers_agree_whatever_their_number(turns: list[int], policy: str, targets: int, workers: int) -> None:
    trace = chats(*turns)
    places = [Target(f"http://192.0.2.{at}/v1") for at in range(targets)]
    whole = route_trace(trace, policy, [1.0] * targets).home
    for worker in range(workers):
        plan = split_trace(trace, worker, workers)
        found = make_routes(trace, plan, places, Settings(routing=policy))
        assert [found.find(position) for position in range(len(plan))] == [whole[row] for row in plan.row]

# Whose a session is follows from its place alone: what recovery finds is what the workers played.

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.cluster.portion import cut_portions
from loadshape.deal import deal_sessions, find_workers, number_sessions, space_probe
from loadshape.plan import split_trace
from traces import ask, make_trace


@pytest.mark.parametrize(
    ("session", "ordinal"), [([], []), ([7, 3, 7, 50, 3], [0, 1, 0, 2, 1]), ([4294967295, 0], [0, 1])]
)
def test_sessions_are_counted_in_the_order_of_the_rows(session: list[int], ordinal: list[int]) -> None:
    assert number_sessions(np.array(session, np.uint32)).tolist() == ordinal


def test_a_probe_takes_the_middle_one_of_every_so_many() -> None:
    assert deal_sessions(10, 2, 4).tolist() == [0, 1, 2, 0, 1, 0, 2, 1, 0, 1]
    assert deal_sessions(5, 2).tolist() == [0, 1, 0, 1, 0]


def test_nodes_first_then_their_workers() -> None:
    sessions = np.arange(8)
    assert find_workers(sessions, nodes=2, processes=2).tolist() == [0, 2, 1, 3, 0, 2, 1, 3]
    assert find_workers(sessions, nodes=1, processes=1).tolist() == [0] * 8
    assert find_workers(sessions[:0], nodes=3, processes=2).tolist() == []


def test_a_probe_has_less_than_its_share() -> None:
    assert (space_probe(0.0), space_probe(0.01), space_probe(0.007)) == (0, 101, 143)


# Property


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3]),
)
def test_it_is_what_the_workers_of_the_nodes_play(
    sessions: list[int], nodes: int, processes: int, probe_share: float
) -> None:
    nodes = min(nodes, len(set(sessions)))
    turns = [sessions[:at].count(number) for at, number in enumerate(sessions)]
    trace = make_trace(
        *(ask(at, session=number, turn=turn) for at, (number, turn) in enumerate(zip(sessions, turns, strict=True)))
    )
    found = find_workers(np.array(sessions), nodes=nodes, processes=processes, probe_share=probe_share).tolist()
    each = processes + (probe_share > 0)
    played = {}
    for node in range(nodes):
        portion = list(cut_portions(trace, nodes))[node]
        for rank in range(each):
            share = split_trace(portion, rank, processes, probe_every=space_probe(probe_share))
            played |= dict.fromkeys(share.request, node * each + rank)
    assert [played[request] for request in range(len(sessions))] == found

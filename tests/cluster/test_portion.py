# Portions, put together, are the trace: whatever the numbers of nodes and workers.

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.cluster.portion import cut_portions, split_settings
from loadshape.errors import InputError
from loadshape.plan import split_trace
from loadshape.replayer.job import Settings
from loadshape.trace import Loop, Trace, digest_content
from traces import Messages, ask, closed_loop, make_trace, open_loop


def read_texts(trace: Trace) -> dict[int, list[list[str]]]:
    """Return what each request of *trace* says, by its number."""
    texts = trace.segments["text"].to_pylist()
    rows = zip(trace.requests["request"].to_pylist(), trace.requests["messages"].to_pylist(), strict=True)
    return {number: [[texts[it] for it in message["segments"]] for message in messages] for number, messages in rows}


def test_a_portion_has_its_sessions_with_their_numbers_and_only_the_texts_that_they_say() -> None:
    said: list[Messages] = [(("user", (word,)),) for word in ("one", "two", "three", "four")]
    trace = make_trace(*(ask(at, messages=it) for at, it in enumerate(said)))
    portion = list(cut_portions(trace, 2))[1]
    assert portion.requests["request"].to_pylist() == [1, 3]
    assert read_texts(portion) == {1: [["two"]], 3: [["four"]]}
    assert portion.segments.num_rows == 2
    assert portion.manifest.duration_s == trace.manifest.duration_s  # of the run, not of the part


def test_parameters_are_taken_along() -> None:
    trace = make_trace(ask(0), ask(1, params={"temperature": 0}), ask(2, params={"temperature": 1}))
    portion = list(cut_portions(trace, 2))[1]
    place = portion.requests["params"][0].as_py()
    assert portion.segments["text"][place].as_py() == '{"temperature": 0}'
    assert next(cut_portions(trace, 2)).requests["params"].to_pylist()[0] is None


def test_the_digest_is_that_of_the_content() -> None:
    portion = list(cut_portions(open_loop(9, 5), 3))[2]
    assert portion.digest == digest_content(portion.requests, portion.segments, portion.manifest.loop)
    assert portion.digest != list(cut_portions(open_loop(9, 5), 3))[1].digest


def test_totals_are_split() -> None:
    trace = closed_loop(12, 7)
    assert [it.manifest.loop.slots for it in cut_portions(trace, 3)] == [3, 2, 2]
    settings = Settings(slots=5, cap=4)
    parts = [split_settings(trace, settings, node, 2) for node in range(2)]
    assert [(part.slots, part.cap) for part in parts] == [(3, 2), (2, 2)]


def test_the_first_requests_of_the_trace_are_counted_again() -> None:
    trace = make_trace(ask(0, session=1), ask(1, session=2), ask(2, session=2, turn=1), ask(3, session=3))
    assert [split_settings(trace, Settings(requests=3), node, 2).requests for node in range(2)] == [1, 2]
    with pytest.raises(InputError, match="requests: the first 1 of the trace leave node 1 of 2 without any"):
        split_settings(trace, Settings(requests=1), 1, 2)


def test_more_nodes_than_sessions_are_refused() -> None:
    with pytest.raises(InputError, match="nodes: 3, but the trace has 2 sessions; use fewer nodes"):
        list(cut_portions(open_loop(2, 1), 3))


# Properties


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw a trace of sessions whose turns share texts with one another and with other sessions."""
    turns = draw(st.lists(st.integers(1, 4), min_size=5, max_size=14))
    word = st.sampled_from(["a", "b", "c", "d", "e", "f"])
    rows = [
        ask(
            float(at + turn) if turn == 0 or draw(st.booleans()) else None,
            session=at * 3,
            turn=turn,
            messages=[("user", tuple(draw(st.lists(word, min_size=1, max_size=3))))],
            params={"n": draw(word)} if draw(st.booleans()) else None,
        )
        for at, count in enumerate(turns)
        for turn in range(count)
    ]
    return make_trace(*rows, loop=Loop("partly_open"))


@given(traces(), st.integers(1, 5), st.integers(1, 4))
def test_the_union_of_all_plans_is_the_trace(trace: Trace, nodes: int, processes: int) -> None:
    whole = split_trace(trace, 0, 1)
    said, due = read_texts(trace), dict(zip(whole.request, whole.due_ns, strict=True))
    found: list[int] = []
    for portion in cut_portions(trace, nodes):
        assert read_texts(portion) == {number: said[number] for number in portion.requests["request"].to_pylist()}
        for worker in range(processes):
            share = split_trace(portion, worker, processes)
            found += share.request
            assert share.due_ns == [due[number] for number in share.request]
    assert sorted(found) == list(range(trace.requests.num_rows))


@given(traces(), st.integers(1, 5))
def test_portions_put_together_are_the_table_again(trace: Trace, nodes: int) -> None:
    portions = [it.requests.drop_columns(["messages", "params"]) for it in cut_portions(trace, nodes)]
    together = pa.concat_tables(portions).sort_by("request")
    assert together.equals(trace.requests.drop_columns(["messages", "params"]))


@given(traces(), st.integers(2, 5))
def test_no_segment_is_idle_and_none_is_missing(trace: Trace, nodes: int) -> None:
    portion = list(cut_portions(trace, nodes))[-1]
    messages = pc.list_flatten(portion.requests["messages"].combine_chunks())
    named = np.asarray(pc.list_flatten(pc.struct_field(messages, "segments")))
    params = np.asarray(portion.requests["params"].drop_null())
    assert set(np.r_[named, params].tolist()) == set(range(portion.segments.num_rows))
    assert msgspec.json.decode(msgspec.json.encode(portion.manifest))["requests"] == portion.requests.num_rows

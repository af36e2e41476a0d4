"""Sessions: turns, pauses, and histories that grow by reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invention import InventedFixture
from models import write_model

from loadshape.arrival import Poisson
from loadshape.conversation import Conversation, Message
from loadshape.dialogue import list_exchanges
from loadshape.errors import RecipeError
from loadshape.length import Context, Fixed, Uniform
from loadshape.patience import Patience
from loadshape.prefix import PrefixTree
from loadshape.randomness import open_stream
from loadshape.session import Geometric, Sessions, Weighted, draw_numbers
from loadshape.shape import Shape
from loadshape.tokenizer import Estimate, Tokenizer, load_tokenizer
from loadshape.trace import Loop, Trace
from loadshape.wait import ExponentialWait, FixedWait, LogNormalWait, UniformWait

FIXTURE = InventedFixture()
QUOTED = Shape(Poisson(rate_hz=3), sessions=Sessions(think=FixedWait(wait_s=2)))
COMPOSED = Shape(
    Poisson(rate_hz=3),
    inputs=Fixed(100),
    outputs=Uniform(10, 30),
    prefixes=PrefixTree(prefix_tokens=64),
    sessions=Sessions(turns=Weighted((1, 1, 1)), think=ExponentialWait(mean_s=1), inputs=Fixed(20)),
)


def draw(shape: Shape, duration_s: float = 10, seed: int = 7) -> Trace:
    return shape.trace(FIXTURE, duration_s=duration_s, seed=seed)


def list_rows(trace: Trace) -> list[dict[str, Any]]:
    """The rows with their messages as (role, segments joined)."""
    texts = trace.segments.to_pylist()
    rows = trace.requests.to_pylist()
    for row in rows:
        row["messages"] = [
            (part["role"], "".join(texts[at]["text"] or f"<{texts[at]['token_ids']}>" for at in part["segments"]))
            for part in row["messages"]
        ]
    return rows


def list_sessions(trace: Trace) -> list[list[dict[str, Any]]]:
    sessions: dict[int, list[dict[str, Any]]] = {}
    for row in list_rows(trace):
        sessions.setdefault(row["session"], []).append(row)
    return list(sessions.values())


def test_quoted_sessions_are_the_conversations_of_the_fixture() -> None:
    told = [list_exchanges(conversation) for conversation in FIXTURE]
    sessions = list_sessions(draw(QUOTED))
    assert {len(session) for session in sessions} == {1, 2, 3, 4}
    for session in sessions:
        last = session[-1]["messages"]
        (exchanges,) = [it for it in told if it[0][0] == last[0][1]]
        said = [text for pair in exchanges for text in pair]
        assert last == list(zip(["user", "assistant"] * 4, said, strict=False))[: 2 * len(session) - 1]
        assert len(session) == len(exchanges)


@pytest.mark.parametrize("shape", [QUOTED, COMPOSED], ids=["quoted", "composed"])
def test_a_turn_says_all_that_was_said_before_it(shape: Shape) -> None:
    for session in list_sessions(draw(shape)):
        assert [row["turn"] for row in session] == list(range(len(session)))
        for before, after in pairwise(session):
            assert after["messages"][: len(before["messages"])] == before["messages"]
            assert [role for role, _ in after["messages"][len(before["messages"]) :]] == ["assistant", "user"]
            assert after["shared_tokens"] >= before["input_tokens"]


@pytest.mark.parametrize("shape", [QUOTED, COMPOSED], ids=["quoted", "composed"])
def test_stated_tokens_are_those_of_the_whole_history(shape: Shape) -> None:
    trace = draw(shape)
    for row in list_rows(trace):
        assert sum(Estimate().count([text for _, text in row["messages"]])) == row["input_tokens"]
    error = trace.manifest.statistics["input_tokens_error"]
    assert error["exact"] == error["prompts"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("isolation", ["none", "slot"])
def test_a_history_has_the_tokens_that_the_models_server_counts(api: str, isolation: str, tokenizer: Tokenizer) -> None:
    shape = replace(COMPOSED, tokenizer=tokenizer, api=api, isolation=isolation, inputs=Fixed(150))
    trace = draw(shape)
    error = trace.manifest.statistics["input_tokens_error"]
    assert (error["exact"], error["least"], error["most"]) == (error["prompts"], 0, 0)
    assert {row["input_tokens"] for row in list_rows(trace) if row["turn"] == 0} == {150}


def test_composed_turns_have_the_lengths_that_were_drawn() -> None:
    for session in list_sessions(draw(COMPOSED)):
        assert session[0]["input_tokens"] == 100
        for before, after in pairwise(session):
            assert after["input_tokens"] == before["input_tokens"] + before["output_tokens"] + 20


def test_live_answers_are_segments_that_name_their_turn() -> None:
    shape = replace(COMPOSED, sessions=replace_sessions(history="live"))
    trace = draw(shape)
    kinds = [(row["kind"], row["token_ids"]) for row in trace.segments.to_pylist()]
    assert {tuple(ids) for kind, ids in kinds if kind == "answer"} == {(0,), (1,)}
    lengths = [row["input_tokens"] for row in list_rows(trace)]
    assert lengths == [row["input_tokens"] for row in list_rows(draw(COMPOSED))], "the wanted lengths are counted"
    for session in list_sessions(trace):
        answers = [text for role, text in session[-1]["messages"] if role == "assistant"]
        assert answers == [f"<[{turn}]>" for turn in range(len(session) - 1)]


def replace_sessions(**change: Any) -> Sessions:
    assert COMPOSED.sessions is not None
    return Sessions(**{name: getattr(COMPOSED.sessions, name) for name in COMPOSED.sessions.__struct_fields__} | change)


def test_what_is_said_again_is_stored_once() -> None:
    trace = draw(replace(COMPOSED, sessions=replace_sessions(turns=20)))
    stored = sum(len(row["text"]) for row in trace.segments.to_pylist())
    said = sum(len(text) for row in list_rows(trace) for _, text in row["messages"])
    assert trace.requests.num_rows == 20 * trace.manifest.sessions
    assert said > 5 * stored


# The loop, whether a first and a later turn have a due time, and whether they think before it.
LOOPS = [
    (None, True, False, False, True),
    (Loop("partly_open"), True, False, False, True),
    (Loop("open"), True, True, False, True),
    (Loop("closed", slots=3), False, False, True, True),
]


@pytest.mark.parametrize(("loop", "first_due", "later_due", "first_thinks", "later_thinks"), LOOPS)
def test_a_loop_says_what_turns_wait_for(
    loop: Loop | None, first_due: bool, later_due: bool, first_thinks: bool, later_thinks: bool
) -> None:
    closed = loop is not None and loop.mode == "closed"
    shape = replace(QUOTED, loop=loop, count=20 if closed else None, arrivals=None if closed else QUOTED.arrivals)
    trace = draw(shape)
    trace.verify()
    for session in list_sessions(trace):
        first, *later = session
        assert ((first["due_ns"] is not None), first["think_ns"]) == (first_due, 2_000_000_000 * first_thinks)
        for row in later:
            assert ((row["due_ns"] is not None), row["think_ns"]) == (later_due, 2_000_000_000 * later_thinks)
    if loop == Loop("open"):
        assert all(b["due_ns"] - a["due_ns"] == 2e9 for it in list_sessions(trace) for a, b in pairwise(it))
    assert trace.manifest.loop == (loop or Loop("partly_open"))


def test_a_session_ends_before_the_turn_that_does_not_fit() -> None:
    shape = replace(COMPOSED, sessions=replace_sessions(turns=10), context=Context(tokens=300))
    sessions = list_sessions(draw(shape))
    assert {len(session) for session in sessions} <= {4, 5, 6}
    assert max(row["input_tokens"] + row["output_tokens"] for session in sessions for row in session) <= 300
    whole = list_sessions(draw(replace(shape, context=None)))
    assert [it[0]["messages"] for it in sessions] == [it[0]["messages"] for it in whole]


# What changes, and the columns of first turns that stay as they were.
CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({"think": FixedWait(wait_s=9)}, {"think_ns"}),
    ({"inputs": Fixed(30)}, {"messages", "input_tokens", "shared_tokens"}),
    ({"history": "live"}, {"messages", "shared_tokens"}),
]


@pytest.mark.parametrize(("change", "may_change"), CHANGES)
def test_changing_one_thing_of_sessions_leaves_the_other_draws_alone(
    change: dict[str, Any], may_change: set[str]
) -> None:
    before, after = draw(COMPOSED), draw(replace(COMPOSED, sessions=replace_sessions(**change)))
    names = before.requests.column_names
    changed = {name for name in names if before.requests[name].to_pylist() != after.requests[name].to_pylist()}
    assert changed
    assert changed <= may_change
    first_turns = [[row["messages"] for row in list_rows(it) if row["turn"] == 0] for it in (before, after)]
    assert first_turns[0] == first_turns[1]


def test_patience_is_in_the_rows_that_give_up() -> None:
    hasty = Patience(share=0.3, after=UniformWait(min_s=1, max_s=2), tokens=Fixed(5))
    trace = draw(replace(QUOTED, patience=hasty), duration_s=60)
    given = [row["patience"] for row in list_rows(trace) if row["patience"]]
    assert 0.15 < len(given) / trace.requests.num_rows < 0.45
    assert all(1e9 <= it["after_ns"] <= 2e9 and it["after_tokens"] == 5 for it in given)
    only = draw(replace(QUOTED, patience=Patience(tokens=Fixed(5)))).requests["patience"].to_pylist()
    assert only == [{"after_ns": None, "after_tokens": 5}] * len(only)


@pytest.mark.parametrize(
    ("wait", "mean_s"),
    [
        (FixedWait(wait_s=3), 3),
        (UniformWait(min_s=1, max_s=3), 2),
        (ExponentialWait(mean_s=2), 2),
        (LogNormalWait(median_s=2, sigma=0.5), 2 * np.exp(0.125)),
        (LogNormalWait(median_s=2, sigma=3, max_s=2), 1 + 2 * np.exp(4.5) * 0.00135),  # half are at the bound
    ],
)
def test_waits_have_the_mean_that_they_state(wait: Any, mean_s: float) -> None:
    times_ns = wait.draw_ns(open_stream(7, "think"), 20_000)
    assert times_ns.mean() / 1e9 == pytest.approx(mean_s, rel=0.05)
    assert (times_ns % 1000 == 0).all()
    assert (wait.draw_ns(open_stream(7, "think"), 10) == times_ns[:10]).all()


@given(st.floats(1, 50), st.integers(1, 100))
def test_geometric_numbers_stay_inside(mean: float, most: int) -> None:
    drawn = draw_numbers(Geometric(mean=mean, most=most), open_stream(1, "turns"), 200)
    assert 1 <= drawn.min() <= drawn.max() <= most


def test_numbers_have_the_mean_that_they_state() -> None:
    assert draw_numbers(Geometric(mean=4), open_stream(7, "turns"), 20_000).mean() == pytest.approx(4, rel=0.03)
    assert set(draw_numbers(Weighted((0, 1, 0, 2)), open_stream(7, "turns"), 1000)) == {2, 4}
    assert set(draw_numbers(3, open_stream(7, "turns"), 9)) == {3}


def test_a_conversation_is_quoted_up_to_what_is_empty() -> None:
    said = ["system", "user", "assistant", "user", "user", "assistant", "user", "assistant"]
    texts = ["s", "a", "b", "c", "d", "e", "f", ""]
    messages = tuple(Message(role, text) for role, text in zip(said, texts, strict=True))  # type: ignore[arg-type]
    assert list_exchanges(Conversation("x", messages)) == [("a", "b"), ("d", "e")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sessions(turns=0), "turns: expected a number at least 1"),
        (lambda: Sessions(history="alive"), "history: expected one of recorded, live.*did you mean 'live'"),
        (lambda: Geometric(mean=0.5), "mean: expected a number at least 1"),
        (lambda: Weighted(()), "weights: expected a number at least 1"),
        (lambda: Patience(share=0.5), "after: expected a wait, or tokens"),
        (lambda: replace(COMPOSED, sessions=Sessions()), r"sessions\.turns: expected a number"),
        (lambda: replace(COMPOSED, sessions=Sessions(turns=2, history="live"), loop=Loop("open")), "live answers"),
        (lambda: replace(COMPOSED, loop=Loop("closed", slots=2)), "count: a closed loop has no arrivals"),
        (lambda: replace(COMPOSED, count=5), "count: only a closed loop"),
        (lambda: QUOTED.trace(InventedFixture(0), duration_s=5, seed=1), "fixture: no prompt with an answer"),
        (lambda: QUOTED.trace(None, duration_s=5, seed=1), "inputs: expected lengths, since there is no fixture"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()

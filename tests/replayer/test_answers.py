# Which answers are kept, for whom, and for how long.

from __future__ import annotations

from typing import Any

import pytest

from loadshape.errors import TraceError
from loadshape.plan import Plan, split_trace
from loadshape.replayer.answers import Answers, check_answers, find_quotes
from loadshape.trace import Loop, Trace
from traces import ask, make_trace, open_loop


def turn(number: int, *quoted: int, session: int = 0, due: float | None = None) -> dict[str, Any]:
    """Return a turn that quotes the answers of others."""
    parts = [("assistant", (("answer", [it]),)) for it in quoted] + [("user", (f"{number}",))]
    return ask(due if number else 0.0, session=session, turn=number, messages=parts)


def make(*rows: dict[str, Any]) -> tuple[Trace, Answers, Plan]:
    trace = make_trace(*rows, loop=Loop("partly_open"))
    return trace, Answers(trace), split_trace(trace, 0, 1)


@pytest.mark.parametrize(
    ("rows", "quotes", "quoted"),
    [
        ([turn(0), turn(1)], {}, []),
        ([turn(0), turn(1, 0)], {1: (0,)}, [0]),
        ([turn(0), turn(1, 0), turn(2, 0, 1)], {1: (0,), 2: (0, 1)}, [0, 1]),
        ([turn(0), turn(1), turn(2, 1, 1)], {2: (1,)}, [1]),
        ([turn(0, session=5), turn(0, session=7), turn(1, 0, session=7)], {2: (0,)}, [1]),
    ],
)
def test_who_quotes_whom(rows: list[Any], quotes: dict[int, tuple[int, ...]], quoted: list[int]) -> None:
    trace, answers, _ = make(*rows)
    assert find_quotes(trace) == quotes
    assert len(answers) == len(quotes)
    assert [row for row in range(len(rows)) if answers.is_quoted(row)] == quoted


def test_an_answer_is_kept_until_its_session_ends() -> None:
    _, answers, plan = make(turn(0), turn(1, 0), turn(2, 0))
    assert answers.hear(plan, 0, 'so "it" is\n')
    assert answers.quote(1, 0) == rb"so \"it\" is\n"
    assert answers.hear(plan, 1, "never quoted")
    assert answers.quote(2, 0) == rb"so \"it\" is\n"
    answers.hear(plan, 2, "the end")
    with pytest.raises(KeyError):
        answers.quote(2, 0)


@pytest.mark.parametrize("text", ["", None])
def test_what_was_not_said_stops_the_turn_that_quotes_it(text: str | None) -> None:
    _, answers, plan = make(turn(0), turn(1), turn(2, 0))
    assert answers.hear(plan, 0, text) is (text is not None)  # turn 1 quotes nothing
    assert not answers.hear(plan, 1, "words")


def test_sessions_do_not_hear_one_another() -> None:
    rows = [row for session in (0, 1) for row in (turn(0, session=session), turn(1, 0, session=session))]
    _, answers, plan = make(*rows)
    assert answers.hear(plan, 0, "zero")
    assert answers.hear(plan, 2, "one")
    assert (answers.quote(1, 0), answers.quote(3, 0)) == (b"zero", b"one")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (turn(1, 1), "request 1 is turn 1 of its session and quotes the answer of turn 1; only an earlier one"),
        (turn(1, 9), "quotes the answer of turn 9"),
        (turn(1, -1), r"answer 1: expected .turn., found .-1."),
    ],
)
def test_an_answer_that_cannot_have_been_given_is_refused(row: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        make(turn(0), row)


def test_a_turn_that_quotes_waits() -> None:
    early = make_trace(turn(0), turn(1, 0, due=5.0))
    with pytest.raises(TraceError, match=r"requests\.due_ns: request 1 quotes a live answer and has a due time"):
        check_answers(early, clocked=True)
    check_answers(early, clocked=False)  # slots do not look at due times
    check_answers(open_loop(3, 1), clocked=True)
    check_answers(make(turn(0), turn(1, 0))[0], clocked=True)

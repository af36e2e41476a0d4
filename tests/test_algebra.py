"""The algebra of traces: what is said stays, what is due moves as the operation says, and the result is a trace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invention import InventedFixture

from loadshape import algebra
from loadshape.arrival import Mmpp, Poisson
from loadshape.errors import InputError, RecipeError, TraceError
from loadshape.portrait import measure_shared_tokens, measure_trace
from loadshape.prefix import PrefixTree
from loadshape.randomness import open_stream
from loadshape.shape import Shape
from loadshape.trace import Loop, Trace
from traces import MS, ask, closed_loop, make_trace, open_loop, partly_open

SYSTEM = ("system", ("You are brief.",))
STORM = Mmpp(rates_hz=(4, 40), sojourns_s=(6, 2))


def ask_about(topic: str, due: float | None, **columns: Any) -> dict[str, Any]:
    return ask(due, messages=(SYSTEM, ("user", (topic,))), **columns)


def make_arrivals(times_ns: np.ndarray[Any, Any], duration_s: float) -> Trace:
    trace = make_trace(*(ask(at / MS) for at in times_ns.tolist()), duration_s=duration_s)
    return algebra.superpose(trace)  # which measures it


def read_rows(trace: Trace) -> list[tuple[Any, ...]]:
    """Every request as (due in ms, session, turn, what it says, its params)."""
    texts = trace.segments["text"].to_pylist()
    rows = []
    for row in trace.requests.to_pylist():
        said = tuple((it["role"], tuple(texts[number] for number in it["segments"])) for it in row["messages"])
        due = None if row["due_ns"] is None else row["due_ns"] / MS
        params = None if row["params"] is None else texts[row["params"]]
        rows.append((due, row["session"], row["turn"], said, params))
    return rows


def read_due(trace: Trace) -> list[float | None]:
    return [row[0] for row in read_rows(trace)]


def say(trace: Trace) -> Counter[Any]:
    return Counter(row[3:] for row in read_rows(trace))


def dispersion(trace: Trace, window: str) -> float:
    value = trace.manifest.statistics["dispersion"][window]
    assert isinstance(value, float)
    return value


A = make_trace(ask_about("tea", 0), ask_about("rain", 20), ask_about("tea", 40), duration_s=0.05)
B = make_trace(
    ask_about("rain", 10, session=4, turn=0, params={"seed": 1}),
    ask_about("tea", 45, session=4, turn=1),
    ask_about("snow", 30, session=2, turn=0, tenant="x"),
    duration_s=0.1,
)
SHAPED = Shape(Poisson(rate_hz=30), prefixes=PrefixTree(share=0.5, depth=2)).trace(
    InventedFixture(), duration_s=10, seed=7
)


def test_superpose_merges_by_due_times_and_keeps_sessions_together() -> None:
    both = algebra.superpose(A, B)
    both.verify()
    assert [(row[0], row[1], row[2]) for row in read_rows(both)] == [
        (0, 0, 0), (10, 1, 0), (45, 1, 1), (20, 2, 0), (30, 3, 0), (40, 4, 0),
    ]  # fmt: skip
    assert say(both) == say(A) + say(B)
    assert both.manifest.duration_s == 0.1


def test_equal_segments_are_stored_once_and_unused_ones_not_at_all() -> None:
    both = algebra.superpose(A, B)
    assert sorted(both.segments["text"].to_pylist()) == sorted(["You are brief.", "tea", "rain", "snow", '{"seed": 1}'])
    assert algebra.window(both, 0, 0.005).segments["text"].to_pylist() == ["You are brief.", "tea"]


def test_a_trace_alone_stays_what_it_is() -> None:
    again = algebra.superpose(SHAPED)
    assert again.digest == SHAPED.digest
    for one in (algebra.shift(SHAPED, 0), algebra.repeat(SHAPED, 1), algebra.thin(SHAPED, 1, seed=3)):
        assert one.digest == SHAPED.digest
    assert algebra.scale(SHAPED, 1, method="superpose").digest == SHAPED.digest
    assert algebra.scale(SHAPED, 1, method="warp").digest == SHAPED.digest


def test_shared_tokens_are_counted_anew() -> None:
    both = algebra.superpose(A, B)
    assert both.requests["shared_tokens"].to_pylist() == [0, 1, 2, 2, 1, 2]  # one token a segment
    assert algebra.window(both, 0.02, 0.1).requests["shared_tokens"].to_pylist() == [0, 1, 1]
    assert (
        measure_shared_tokens(SHAPED.requests, SHAPED.segments) <= np.asarray(SHAPED.requests["shared_tokens"])
    ).all()


def test_an_answer_is_shared_inside_of_its_session_only() -> None:
    def turns(session: int) -> list[dict[str, Any]]:
        later = (("user", ("Hi",)), ("assistant", (("answer", [0]),)), ("user", ("More",)))
        last = (*later, ("assistant", (("answer", [1]),)), ("user", ("Enough",)))
        first = ask(session * 9.0, session=session, messages=later[:1])
        return [first, *(ask(None, session=session, turn=n, messages=it) for n, it in ((1, later), (2, last)))]

    trace = make_trace(*turns(0), *turns(1), loop=Loop("partly_open"))
    assert measure_shared_tokens(trace.requests, trace.segments).tolist() == [0, 1, 3, 1, 1, 3]


def test_what_it_was_made_of_is_kept_whole(tmp_path: Path) -> None:
    thinned = algebra.thin(algebra.superpose(SHAPED, SHAPED), 0.5, seed=1)
    again = Trace.open(thinned.write(tmp_path / "half.trace"))
    derivation = again.manifest.derivation
    assert derivation is not None
    assert derivation.operation == "thin"
    assert derivation.arguments == {"keep": 0.5, "by": "session", "seed": 1}
    (parent,) = derivation.parents
    assert parent.statistics["rate_hz"] == pytest.approx(2 * again.manifest.statistics["rate_hz"], rel=0.2)
    assert parent.derivation is not None
    assert [it.digest for it in parent.derivation.parents] == [SHAPED.digest] * 2
    assert parent.derivation.parents[0] == SHAPED.manifest
    assert again.manifest.recipe is None  # no recipe declares these arrivals
    assert again.manifest.fixture == SHAPED.manifest.fixture
    assert again.manifest.tokenizer == SHAPED.manifest.tokenizer


def test_a_parent_without_statistics_is_measured() -> None:
    derivation = algebra.scale(A, 2, method="warp").manifest.derivation
    assert derivation is not None
    assert derivation.parents[0].statistics["rate_hz"] == pytest.approx(3 / 0.05)


@pytest.mark.parametrize(
    ("first", "second", "mode"),
    [
        (open_loop(3, 5), partly_open(3, 2, 5, 1), "partly_open"),
        (open_loop(3, 5, cap=9), open_loop(3, 5, cap=9), "open"),
        (closed_loop(3, 2), closed_loop(9, 2), "closed"),
    ],
)
def test_loops_that_agree(first: Trace, second: Trace, mode: str) -> None:
    assert algebra.superpose(first, second).manifest.loop.mode == mode


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (open_loop(3, 5), closed_loop(3, 2)),
        (open_loop(3, 5), open_loop(3, 5, cap=9)),
        (closed_loop(3, 2), closed_loop(3, 3)),
    ],
)
def test_loops_that_do_not_agree_are_refused(first: Trace, second: Trace) -> None:
    with pytest.raises(TraceError, match="loop: expected traces that are driven alike, found "):
        algebra.superpose(first, second)


def test_closed_loops_interleave_evenly() -> None:
    few, many = closed_loop(2, 2, kind="few"), closed_loop(6, 2, kind="many")
    kinds = algebra.superpose(few, many).requests["kind"].to_pylist()
    assert kinds == ["many", "few", "many", "many", "many", "few", "many", "many"]


def test_splice_lets_the_first_finish_its_sessions() -> None:
    assert read_due(algebra.splice(B, A, at_s=0.02)) == [10, 45, 20, 40, 60]
    assert algebra.splice(B, A, at_s=0.02).manifest.duration_s == pytest.approx(0.07)


def test_repeat_begins_again_after_the_gap() -> None:
    assert read_due(algebra.repeat(A, 3, gap_s=0.01)) == [0, 20, 40, 60, 80, 100, 120, 140, 160]
    assert algebra.repeat(A, 3, gap_s=0.01).manifest.duration_s == pytest.approx(0.17)


def test_shift_goes_both_ways() -> None:
    later = algebra.shift(A, 0.03)
    assert read_due(later) == [30, 50, 70]
    assert algebra.shift(later, -0.03).digest == algebra.superpose(A).digest
    with pytest.raises(TraceError, match=r"by_s: expected at least -0.03, found -0.04"):
        algebra.shift(later, -0.04)


def test_a_window_keeps_sessions_whole_or_cuts_them() -> None:
    assert read_due(algebra.window(B, 0.01, 0.04)) == [0, 35, 20]
    assert algebra.window(B, 0.01, 0.04).manifest.duration_s == pytest.approx(0.035)
    assert read_due(algebra.window(B, 0.01, 0.04, sessions="cut")) == [0, 20]
    late = algebra.window(B, 0.02, 0.1, sessions="cut")
    assert [(row[0], row[2]) for row in read_rows(late)] == [(10, 0), (25, 0)]  # the second turn is a first one now
    with pytest.raises(TraceError, match="window: no request is left"):
        algebra.window(A, 0.042, 0.05)


def test_thin_by_session_keeps_turns_together() -> None:
    trace = partly_open(200, 3, 5, 1)
    half = algebra.thin(trace, 0.5, seed=1)
    assert 70 < half.manifest.sessions < 130
    assert half.manifest.requests == 3 * half.manifest.sessions
    with pytest.raises(TraceError, match="thin: by = request: later turns rely on earlier ones"):
        algebra.thin(trace, 0.5, by="request", seed=1)


def test_thin_by_tenant_takes_or_leaves_all_of_one() -> None:
    rows = [ask(float(n), tenant=f"t{n % 40}") for n in range(400)]
    some = algebra.thin(make_trace(*rows), 0.5, by="tenant", seed=1)
    counts = Counter(some.requests["tenant"].to_pylist())
    assert 10 < len(counts) < 30
    assert set(counts.values()) == {10}
    fewer = algebra.thin(make_trace(*(row for row in rows if row["tenant"] != "t3")), 0.5, by="tenant", seed=1)
    assert set(fewer.requests["tenant"].to_pylist()) == set(counts) - {"t3"}  # nobody's fate is another's
    with pytest.raises(TraceError, match=r"requests.tenant is null"):
        algebra.thin(A, 0.5, by="tenant", seed=1)


def test_scaling_is_not_neutral() -> None:
    """The same load by three methods: warp keeps the bursts, superpose evens them out, replicate multiplies them."""
    storm = make_arrivals(STORM.times_ns(open_stream(7, "arrivals"), 600), 600)
    before = dispersion(storm, "10 s")
    made = {method: algebra.scale(storm, 4, method=method, seed=1) for method in algebra.METHODS}  # type: ignore[arg-type]
    rates = {method: trace.manifest.statistics["rate_hz"] for method, trace in made.items()}
    assert rates == pytest.approx(dict.fromkeys(rates, 4 * storm.manifest.requests / 600), rel=0.01)
    assert dispersion(made["replicate"], "10 s") == pytest.approx(4 * before, rel=0.1)
    assert dispersion(made["superpose"], "10 s") == pytest.approx(before, rel=0.4)
    warped = measure_trace(storm.requests, 600, Loop())["dispersion"]
    assert dispersion(made["warp"], "0.1 s") < warped["1 s"]
    assert made["warp"].manifest.duration_s == 150
    assert made["replicate"].manifest.derivation.parents[0].statistics["dispersion"]["10 s"] == before  # type: ignore[union-attr]


def test_warp_leaves_the_delays_inside_of_a_session() -> None:
    assert read_due(algebra.scale(B, 2, method="warp")) == [5, 40, 15]  # 35 ms between the turns, as before
    assert read_due(algebra.scale(B, 0.5, method="warp")) == [20, 55, 60]


def test_a_fraction_of_the_factor_is_a_part_of_the_sessions() -> None:
    trace = partly_open(400, 2, 5, 1)
    for method in ("superpose", "replicate"):
        made = algebra.scale(trace, 2.5, method=method, seed=1)
        assert made.manifest.requests == 2 * made.manifest.sessions
        assert 950 < made.manifest.sessions < 1050


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: algebra.superpose(), "superpose: expected at least one trace"),
        (lambda: algebra.thin(A, 0, seed=1), "keep: expected a number above 0 and at most 1"),
        (lambda: algebra.thin(A, 0.5, by="user", seed=1), "by: expected one of session, tenant, request"),  # type: ignore[arg-type]
        (lambda: algebra.scale(A, 2, method="stretch"), "method: expected one of warp, superpose, replicate"),  # type: ignore[arg-type]
        (lambda: algebra.scale(A, 0.5, method="replicate"), "factor: expected a number at least 1"),
        (lambda: algebra.scale(A, 0, method="warp"), "factor: expected a number above 0"),
        (lambda: algebra.window(A, 2, 1), "end_s: expected a number above 2"),
        (lambda: algebra.repeat(A, 0), "times: expected a number at least 1"),
        (lambda: algebra.splice(A, B, at_s=0), "at_s: expected a number above 0"),
        (lambda: algebra.shift(closed_loop(3, 2), 1), "shift: a closed loop has no due times"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, told: str) -> None:
    with pytest.raises(InputError, match=f"^{told}"):
        make()
    assert issubclass(RecipeError, InputError)


def test_scale_has_no_default_method() -> None:
    with pytest.raises(TypeError, match="method"):
        algebra.scale(A, 2)  # type: ignore[call-arg]


traces = st.lists(
    st.tuples(st.integers(0, 1000), st.sampled_from(["tea", "rain", "snow"]), st.integers(1, 3)),
    min_size=1,
    max_size=12,
).map(
    lambda rows: make_trace(
        *(
            ask_about(f"{topic}{turn}", float(due + 7 * turn), session=at, turn=turn)
            for at, (due, topic, turns) in enumerate(rows)
            for turn in range(turns)
        ),
        duration_s=1.1,
    )
)


@settings(max_examples=15, deadline=None)
@given(one=traces, two=traces, three=traces)
def test_superposition_is_associative_and_keeps_every_request(one: Trace, two: Trace, three: Trace) -> None:
    flat = algebra.superpose(one, two, three)
    flat.verify()
    assert flat.digest == algebra.superpose(algebra.superpose(one, two), three).digest
    assert flat.digest == algebra.superpose(one, algebra.superpose(two, three)).digest
    assert say(flat) == say(one) + say(two) + say(three)
    swapped = algebra.superpose(three, one, two)
    assert Counter((row[0], *row[2:]) for row in read_rows(swapped)) == Counter(
        (row[0], *row[2:]) for row in read_rows(flat)
    )


@settings(max_examples=15, deadline=None)
@given(trace=traces, keeps=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)), seed=st.integers(0, 2**32))
def test_thinning_is_nested(trace: Trace, keeps: tuple[float, float], seed: int) -> None:
    def kept(keep: float) -> Counter[Any]:
        try:
            return Counter((row[0], *row[2:]) for row in read_rows(algebra.thin(trace, keep, seed=seed)))
        except TraceError:
            return Counter()

    assert kept(min(keeps)) <= kept(max(keeps))
    assert kept(max(keeps)) <= kept(1)


@settings(max_examples=15, deadline=None)
@given(trace=traces, at_ms=st.integers(1, 1000))
def test_two_windows_and_a_splice_give_the_whole_again(trace: Trace, at_ms: int) -> None:
    try:
        early, late = algebra.window(trace, 0, at_ms / 1000), algebra.window(trace, at_ms / 1000, 1.1)
    except TraceError:
        return  # nothing on one side
    whole = algebra.splice(early, late, at_s=at_ms / 1000)
    assert sorted(read_rows(whole)) == sorted(read_rows(algebra.superpose(trace)))

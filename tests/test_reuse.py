# What a trace says again: known hit rates of small traces, and a cache that is simulated block by block as the
# oracle for stack distances.

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.blocks import chain_blocks, order_arrivals
from loadshape.errors import RecipeError
from loadshape.reuse import Reuse, measure_reuse, sum_smaller_before
from loadshape.trace import Trace
from traces import ask, make_trace


def say(*prompts: str, tokens: dict[str, int] | None = None, due: list[float] | None = None) -> Trace:
    """Return requests whose prompts are segments of one letter each; a segment has 1 token, or those of *tokens*."""
    times = due or [float(at) for at in range(len(prompts))]
    rows = [ask(at, messages=[("user", tuple(prompt))]) for at, prompt in zip(times, prompts, strict=True)]
    return resize(make_trace(*rows), tokens or {})


def resize(trace: Trace, tokens: dict[str, int]) -> Trace:
    sizes = [tokens.get(text, 1) for text in trace.segments["text"].to_pylist()]
    segments = trace.segments.set_column(3, trace.segments.schema.field("tokens"), pa.array(sizes, pa.uint32()))
    return Trace.build(trace.requests, segments, loop=trace.manifest.loop)


def count(found: Reuse) -> dict[str, Any]:
    names = ("blocks", "distinct_blocks", "once_blocks", "shared_tokens", "longest_shared_tokens", "distinct_prompts")
    return {name: getattr(found, name) for name in names}


# prompts, block tokens, and what they come to
CASES: dict[str, tuple[tuple[str, ...], int, dict[str, int]]] = {
    "one request": (
        ("abc",),
        1,
        {"blocks": 3, "distinct_blocks": 3, "once_blocks": 3, "shared_tokens": 0, "distinct_prompts": 1},
    ),
    "the same twice": (("abc", "abc"), 1, {"blocks": 6, "distinct_blocks": 3, "once_blocks": 0, "shared_tokens": 3}),
    "a common beginning": (("abc", "abd"), 1, {"blocks": 6, "distinct_blocks": 4, "longest_shared_tokens": 2}),
    "a common end is nothing": (("abc", "xbc"), 1, {"blocks": 6, "distinct_blocks": 6, "shared_tokens": 0}),
    "only whole blocks": (("abcde", "abcdx"), 3, {"blocks": 4, "distinct_blocks": 3, "shared_tokens": 4}),
    "a short last block, if all is the same": (("abcde", "abcde"), 3, {"blocks": 4, "distinct_blocks": 2}),
    "a short last block and a longer prompt": (("abcd", "abcde"), 3, {"blocks": 4, "distinct_blocks": 3}),
    "a block that is larger than everything": (("ab", "ac"), 16, {"blocks": 2, "distinct_blocks": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_counted(case: str) -> None:
    prompts, block_tokens, expected = CASES[case]
    found = count(measure_reuse(say(*prompts), block_tokens))
    assert {name: found[name] for name in expected} == expected


def test_rates_are_of_all_blocks_and_of_all_tokens() -> None:
    found = measure_reuse(say("abcdefgh", "abcdefgh", "abcdxyzw"), 4)
    assert found.hit_rate == pytest.approx(3 / 6)
    assert found.shared_share == pytest.approx(12 / 24)
    assert found.served_share == pytest.approx((4 + 4) / 24)  # the last token of the second prompt is computed
    assert found.request_hits.tolist() == [0, 1, 0.5]


def test_segments_may_end_inside_of_a_block() -> None:
    found = measure_reuse(say("ab", "ac", tokens={"a": 10, "b": 7, "c": 20}), 4)
    assert (found.blocks, found.distinct_blocks) == (5 + 8, 5 + 8 - 2)


def test_stack_distances_of_a_textbook_sequence() -> None:
    # a b c a b d a: a comes back after b and c, b after c and a, a after b and d
    found = measure_reuse(say(*"abcabda"), 1)
    assert (found.distances.tolist(), found.weights.tolist()) == ([3, 3, 3], [1, 1, 1])
    assert [found.find_hit_rate(blocks) for blocks in (0, 2, 3, 100)] == pytest.approx([0, 0, 3 / 7, 3 / 7])


def test_runs_of_blocks_have_their_weight() -> None:
    found = measure_reuse(say("a", "b", "a", tokens={"a": 48, "b": 160}), 16)
    assert (found.distances.tolist(), found.weights.tolist()) == ([13], [3])
    assert found.draw_curve() == [(13, pytest.approx(3 / 16))]
    assert (found.find_cache_blocks(0.5), found.find_cache_blocks(1)) == (13, 13)


def test_the_order_is_that_of_due_times() -> None:
    trace = say("a", "b", "a", due=[0.0, 20.0, 10.0])  # rows need not be in the order of their due times
    assert measure_reuse(trace, 1).distances.tolist() == [1]
    assert measure_reuse(trace, 1, np.array([0, 1, 2])).distances.tolist() == [2]


def test_a_prefix_that_was_cut_is_the_beginning_of_the_whole_one() -> None:
    prefix = "you are a kind assistant"
    rows = [
        ask(0.0, messages=[("system", (prefix,)), ("user", ("a",))]),
        ask(1.0, messages=[("system", (prefix[:9],)), ("user", ("b",))]),
    ]
    trace = resize(make_trace(*rows), {prefix: 5, prefix[:9]: 3})
    assert measure_reuse(trace, 1).shared_tokens == 3


def test_roles_and_answers_tell_apart() -> None:
    rows = [
        ask(0.0, messages=[("user", ("a",))]),
        ask(1.0, messages=[("system", ("a",))]),
        ask(2.0, session=2, messages=[("user", (("answer", [0]),))]),
        ask(3.0, session=3, messages=[("user", (("answer", [0]),))]),
    ]
    assert measure_reuse(make_trace(*rows), 1).hit_rate == 0


def test_a_trace_without_reuse_has_no_curve() -> None:
    found = measure_reuse(say("abc", "xyz"), 2)
    assert (found.draw_curve(), found.find_cache_blocks(0.9), found.find_hit_rate(1e9)) == ([], 0, 0)


def test_a_block_has_tokens() -> None:
    with pytest.raises(RecipeError, match="block_tokens: expected a number at least 1"):
        measure_reuse(say("a"), 0)


class Cache:
    """A cache that forgets the least recently used block, one block after the other."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._held = OrderedDict[int, None]()

    def use(self, block: int) -> bool:
        hit = block in self._held
        self._held[block] = None
        self._held.move_to_end(block)
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return hit


PROMPTS = st.lists(st.text("abcd", min_size=1, max_size=6), min_size=1, max_size=24)
TOKENS = st.fixed_dictionaries({letter: st.integers(1, 9) for letter in "abcd"})


@given(PROMPTS, TOKENS, st.integers(1, 7), st.integers(1, 60))
def test_hits_are_those_of_a_simulated_cache(
    prompts: list[str], tokens: dict[str, int], block_tokens: int, cache_blocks: int
) -> None:
    trace = say(*prompts, tokens=tokens)
    found = measure_reuse(trace, block_tokens)
    chains = [chain for row in order_arrivals(trace).tolist() for chain in chain_blocks(trace, block_tokens)[row]]
    for most, rate in ((cache_blocks, found.find_hit_rate(cache_blocks)), (10**9, found.hit_rate)):
        cache = Cache(most)
        assert rate == pytest.approx(sum(map(cache.use, chains)) / len(chains))


@given(PROMPTS, TOKENS, st.integers(1, 7))
def test_rates_keep_their_order(prompts: list[str], tokens: dict[str, int], block_tokens: int) -> None:
    found = measure_reuse(say(*prompts, tokens=tokens), block_tokens)
    assert 0 <= found.served_tokens <= found.shared_tokens <= found.input_tokens
    assert found.find_hit_rate(int(found.distances.max(initial=0))) == pytest.approx(found.hit_rate)
    assert found.request_hits.mean() <= 1
    curve = [rate for _, rate in found.draw_curve()]
    assert curve == sorted(curve)


@given(st.permutations(range(37)), st.lists(st.integers(0, 9), min_size=37, max_size=37), st.integers(0, 37))
def test_weights_of_what_is_smaller_and_earlier(order: list[int], weights: list[int], n: int) -> None:
    ranks, weights = [rank for rank in order if rank < n], weights[:n]
    expected = [sum(weights[before] for before in range(at) if ranks[before] < ranks[at]) for at in range(len(ranks))]
    assert sum_smaller_before(np.array(ranks, np.int64), np.array(weights, np.int64)).tolist() == expected

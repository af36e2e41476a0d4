# The blocks of a trace's prompts, named along their chains as prefix caches name them.
#
# Law: looking only, at whole blocks of a declared size. Two blocks have one name when they and all before
# them are made of the same pieces of the same segments, in the same messages and roles; so a name stands for a
# prefix, and equal names at equal places are what a cache with this block size can use. Names count up in
# the order of first appearance among the arrivals.
#
# What the texts of different segments have in common is not seen, so sharing is a lower bound. A live answer is
# equal only to itself, inside of its session.

"""Name the blocks of every request of a trace."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from loadshape.trace import Trace

Piece = tuple[int, int, int, int]  # whose segment, from which token, how many, and where a message begins: its role


def chain_blocks(trace: Trace, block_tokens: int) -> list[list[int]]:
    """Return the names of the blocks of each request, the last one as short as it is, in the order of the rows."""
    tokens = trace.segments["tokens"].to_pylist()
    is_answer = pc.equal(trace.segments["kind"], "answer").to_pylist()
    sessions = trace.requests["session"].to_pylist()
    messages = trace.requests["messages"]
    names: dict[tuple[int, tuple[Piece, ...]], int] = {}
    chains: list[list[int]] = [[] for _ in sessions]
    for row in order_arrivals(trace).tolist():
        chain = -1
        for block in _cut_blocks(messages[row].as_py(), tokens, block_tokens):
            told = tuple((sessions[row] + 1 if is_answer[segment] else 0, segment, *rest) for segment, *rest in block)
            chain = names.setdefault((chain, told), len(names))  # type: ignore[arg-type]
            chains[row].append(chain)
    return chains


def order_arrivals(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rows in the order of their due times; a turn that waits comes right behind its predecessor."""
    due = trace.requests["due_ns"].to_pylist()
    last: list[int] = []
    for row, (time, turn) in enumerate(zip(due, trace.requests["turn"].to_pylist(), strict=True)):
        last.append(time if time is not None else last[row - 1] if turn else 0)
    return np.argsort(np.array(last, np.int64), kind="stable")


def _cut_blocks(messages: list[dict], tokens: list[int], block_tokens: int) -> Iterator[list[Piece]]:  # type: ignore[type-arg]
    block: list[Piece] = []
    room = block_tokens
    for message in messages:
        begins = message["role"]
        for segment in message["segments"]:
            at = 0
            while at < tokens[segment]:
                taken = min(room, tokens[segment] - at)
                block.append((segment, at, taken, begins))
                at, room, begins = at + taken, room - taken, None
                if room == 0:
                    yield block
                    block, room = [], block_tokens
    if block:
        yield block

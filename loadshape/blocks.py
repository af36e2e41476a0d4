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
from typing import Any

import numpy as np
import pyarrow.compute as pc

from loadshape.stats import Integers
from loadshape.trace import Trace

Piece = tuple[int, int, int, str | None]  # a segment, from which token, how many, and the role that begins with it


def chain_blocks(trace: Trace, block_tokens: int) -> list[list[int]]:
    """Return the names of the blocks of each request, the last one as short as it is, in the order of the rows."""
    tokens = trace.segments["tokens"].to_pylist()
    is_answer = pc.equal(trace.segments["kind"], "answer").to_pylist()
    sessions = trace.requests["session"].to_pylist()
    messages = trace.requests["messages"]
    names: dict[tuple[int, tuple[tuple[int, Piece], ...]], int] = {}
    chains: list[list[int]] = [[] for _ in sessions]
    for row in order_arrivals(trace).tolist():
        chain = -1
        for block in _cut_blocks(messages[row].as_py(), tokens, block_tokens):
            told = tuple((sessions[row] + 1 if is_answer[piece[0]] else 0, piece) for piece in block)
            chain = names.setdefault((chain, told), len(names))
            chains[row].append(chain)
    return chains


def order_arrivals(trace: Trace) -> Integers:
    """Return the rows in the order of their due times; a turn that waits comes right behind its predecessor."""
    due = trace.requests["due_ns"].to_pylist()
    last: list[int] = []
    for row, (time, turn) in enumerate(zip(due, trace.requests["turn"].to_pylist(), strict=True)):
        last.append(time if time is not None else last[row - 1] if turn else 0)
    return np.argsort(np.array(last, np.int64), kind="stable")


def _cut_blocks(messages: list[dict[str, Any]], tokens: list[int], block_tokens: int) -> Iterator[list[Piece]]:
    block: list[Piece] = []
    room = block_tokens
    for segment, begins in _list_segments(messages):
        at = 0
        while at < tokens[segment]:
            taken = min(room, tokens[segment] - at)
            block.append((segment, at, taken, None if at else begins))
            at, room = at + taken, room - taken
            if room == 0:
                yield block
                block, room = [], block_tokens
    if block:
        yield block


def _list_segments(messages: list[dict[str, Any]]) -> Iterator[tuple[int, str | None]]:
    """Yield each segment, with the role of the message that it begins, if it begins one."""
    for message in messages:
        for place, segment in enumerate(message["segments"]):
            yield segment, None if place else message["role"]

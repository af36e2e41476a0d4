"""Reads in parts say what they say as one table; narrow columns lose nothing."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import make_log, read_row, request_row

from loadshape import metrics
from loadshape.column import Column
from loadshape.log import READS
from loadshape.tally import COLUMNS, NEVER, tally_reads


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([[1, 2], [3]], np.uint16),
        ([[1, 2], [2**16]], np.int64),
        ([[2**16 - 1], [-1]], np.int64),
        ([[], [7] * 50], np.uint16),
        ([], np.uint16),
    ],
)
def test_a_column_widens_only_when_it_must(parts: list[list[int]], kind: type) -> None:
    column = Column(np.uint16, 2)
    for part in parts:
        column.extend(np.array(part, np.int64))
    found = column.close()
    assert found.tolist() == [value for part in parts for value in part]
    assert found.dtype == kind


ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.integers(-2, 4000)), min_size=1, max_size=60
)


@given(ROWS, st.integers(1, 60))
def test_parts_add_up(rows: list[tuple[int, int, int, int]], size: int) -> None:
    # requests 0 to 3 have a row, 4 was planned and has none, 5 was not even planned
    reads = [
        read_row(owner, 100.0 * at, deltas, lag=lag) | {"events": max(deltas, events)}
        for at, (owner, deltas, events, lag) in enumerate(rows)
    ]
    table = make_log((), reads).reads.select(COLUMNS)
    workers = np.array([0, 1, 0, 1, -1])
    found = tally_reads(
        (table.slice(start, size) for start in range(0, len(rows), size)), workers, seconds=3, expected=len(rows)
    )
    own = [(at, *row) for at, row in enumerate(rows) if row[0] < 4]
    stamps = defaultdict(list)
    for at, owner, deltas, events, _ in own:
        stamps["any", owner].append(at * 100_000_000)
        if max(deltas, events):
            stamps["event", owner].append(at * 100_000_000)
        if deltas:
            stamps["delta", owner].append(at * 100_000_000)
    assert (found.rows, found.strange) == (len(rows), len(rows) - len(own))
    assert found.counts.tolist() == [len(stamps["any", number]) for number in range(5)]
    assert found.first_ns.tolist() == [min(stamps["any", number], default=NEVER) for number in range(5)]
    assert found.last_ns.tolist() == [max(stamps["event", number], default=NEVER) for number in range(5)]
    assert found.last_token_ns.tolist() == [max(stamps["delta", number], default=NEVER) for number in range(5)]
    assert found.lag_ns.tolist() == [row[3] * 1_000_000 for row in rows]
    assert found.deltas == sum(row[1] for row in rows)
    assert found.shared == sum(row[1] for row in rows if row[1] > 1)
    assert int(found.by_second.sum()) == len(own)
    seen_s = [min(2, max(0, (at * 100 + lag) // 1000)) for at, owner, _, _, lag in own if workers[owner] == 1]
    assert found.by_second[1].tolist() == np.bincount(seen_s, minlength=3).tolist()


@given(st.lists(st.integers(0, 3), max_size=60))
def test_the_read_before_is_found_whatever_lies_between(owners: list[int]) -> None:
    before, expected = {1: 50}, []
    for at, owner in enumerate(owners):
        expected.append(before.get(owner, NEVER))
        before[owner] = 100 + at
    last_ns = np.full(4, NEVER)
    last_ns[1] = 50
    at_ns = 100 + np.arange(len(owners))
    assert metrics.find_before(np.array(owners, np.uint32), at_ns, last_ns).tolist() == expected


def test_gaps_longer_than_32_bits_are_exact() -> None:
    log = make_log(
        [request_row(0, due=0, begun=0, first_token=10, last_token=9000, done=9001)],
        [read_row(0, 10), read_row(0, 20), read_row(0, 9000)],
    )
    gaps = metrics.measure_gaps(log, np.array([0]))
    assert gaps.gap_ns.tolist() == [10_000_000, 8_980_000_000]
    assert gaps.longest_s.tolist() == [8.98]


def test_reads_of_requests_that_were_never_planned_ask_for_no_memory() -> None:
    log = make_log([request_row(0, due=0, begun=0, done=1)], [read_row(2**32 - 1, 5.0)])
    assert (log.tally.strange, len(log.tally.counts)) == (1, 1)
    assert len(metrics.measure_gaps(log, np.array([0, 2**32 - 1])).gap_ns) == 0
    assert log.reads.schema.equals(READS)
    assert pa.types.is_uint32(log.reads["request"].type)

# Are the books ever wrong when they are right, and right when they are wrong? Random runs, and single faults put
# into them: each must be found by one of the checks of bookkeeping.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from logs import health_row, make_log, synthesize_log

from loadshape.log import Log
from loadshape.validity import judge

BOOKS = {"one row a request", "one row a read", "Little's law, rows", "Little's law, counters"}
MS = 1_000_000
Columns = dict[str, np.ndarray[Any, Any]]


def invent_log(seed: int) -> Log:
    """Return a random log that is in order: its counters are up to 2 ms behind the stamps, as decoding makes them."""
    rng = np.random.default_rng(seed)
    workers, duration_s = int(rng.integers(1, 5)), float(rng.uniform(3, 20))
    size = {"requests": int(rng.integers(60, 500)), "reads_each": int(rng.integers(1, 40))}
    log = synthesize_log(**size, duration_s=duration_s, seed=seed, failing=float(rng.uniform(0, 0.2)))
    numbers = np.asarray(log.requests["request"])
    place = log.requests.schema.get_field_index("worker")
    owner = pa.array((numbers % workers).astype(np.uint16))
    requests = log.requests.set_column(place, log.requests.schema.field(place), [owner])
    begun, done = (np.asarray(requests[f"{name}_ns"]) for name in ("begun", "done"))
    health = []
    for worker in range(workers):
        own = numbers % workers == worker
        decoded = done + rng.uniform(0, 2e6, len(done))
        for ms in range(0, round(duration_s * 1000), 100):
            count = np.count_nonzero(begun[own] <= ms * MS) - np.count_nonzero(decoded[own] <= ms * MS)
            health.append(health_row(ms, worker, in_flight=count))
    return make_log(requests, log.reads, health, duration_s=duration_s)


def complaints(log: Log) -> set[str]:
    return {check.name for check in judge(log).checks if check.name in BOOKS and check.status != "ok"}


def change_requests(log: Log, change: Callable[[pa.Table], pa.Table]) -> Log:
    changed = change(log.requests)
    return Log(log.path, log.manifest, log.environment, changed, log.reads, log.health)


def pick(log: Log, seed: int) -> int:
    """Return a request that ended ok, far enough from both ends of the run for a shift to be seen by the counters."""
    begun_s, done_s = (np.asarray(log.requests[f"{name}_ns"]) / 1e9 for name in ("begun", "done"))
    inside = (begun_s > 1.3) & (done_s < log.run.duration_s - 1.3) & (np.asarray(log.requests["reads"]) > 0)
    return int(np.random.default_rng(seed).choice(np.flatnonzero(inside)))


def lose(log: Log, row: int) -> Log:
    return change_requests(log, lambda rows: pa.concat_tables([rows.slice(0, row), rows.slice(row + 1)]))


def double(log: Log, row: int) -> Log:
    return change_requests(log, lambda rows: pa.concat_tables([rows.slice(0, row + 1), rows.slice(row)]))


def shift(*names: str, by_s: float) -> Callable[[Log, int], Log]:
    def moved(log: Log, row: int) -> Log:
        table = log.requests
        for name in names:
            values = table[f"{name}_ns"].to_pylist()
            values[row] += round(by_s * 1e9)
            place = table.schema.get_field_index(f"{name}_ns")
            table = table.set_column(place, table.schema.field(place), [pa.array(values, pa.int64())])
        return change_requests(log, lambda _: table)

    return moved


def lose_read(log: Log, row: int) -> Log:
    at = int(np.flatnonzero(np.asarray(log.reads["request"]) == row)[0])
    reads = pa.concat_tables([log.reads.slice(0, at), log.reads.slice(at + 1)])
    return Log(log.path, log.manifest, log.environment, log.requests, reads, log.health)


FAULTS = {
    "a lost row": lose,
    "a doubled row": double,
    "an end that moved on": shift("done", by_s=1.0),
    "an end that moved back": shift("done", by_s=-1.0),
    "a last token that moved, and the end with it": shift("last_token", "done", by_s=1.0),
    "a beginning that moved on": shift("begun", "sent", by_s=1.0),
    "a beginning that moved back": shift("begun", "sent", by_s=-1.0),
    "a lost read": lose_read,
}


def check_seeds(seeds: range) -> None:
    wrong = {seed: found for seed in seeds if (found := complaints(invent_log(seed)))}
    assert wrong == {}


def test_books_in_order_are_not_complained_of() -> None:
    check_seeds(range(12))


@pytest.mark.slow
def test_no_false_alarm_in_two_hundred_runs() -> None:
    check_seeds(range(1000, 1200))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_single_fault_is_found(fault: str) -> None:
    missed = [seed for seed in range(8) if not complaints(FAULTS[fault](log := invent_log(seed), pick(log, seed)))]
    assert missed == []

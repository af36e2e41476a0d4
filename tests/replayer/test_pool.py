from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from loadshape.replayer.pool import IDLE_LIMIT_NS, Pool

S = 1_000_000_000


@dataclass
class Idle:
    """What a pool asks of a connection."""

    name: str = ""
    idle_since_ns: int = 0


def test_the_warmest_connection_is_used_first() -> None:
    pool: Pool[Idle] = Pool()
    for at, name in enumerate("abc"):
        pool.put(Idle(name), at)
    assert [taken.name for taken in (pool.take(9), pool.take(9), pool.take(9)) if taken] == ["c", "b", "a"]
    assert pool.take(9) is None


def test_four_idle_seconds_are_too_many() -> None:
    assert IDLE_LIMIT_NS == 4 * S  # below the 5 s after which uvicorn and vLLM close
    pool: Pool[Idle] = Pool()
    pool.put(Idle(), 0)
    assert pool.take(4 * S) is None
    assert pool.take(4 * S - 1) is not None


def test_expire_gives_back_the_old_and_keeps_the_young() -> None:
    pool: Pool[Idle] = Pool()
    old, young = Idle("old"), Idle("young")
    pool.put(old, 0)
    pool.put(young, 1 * S)
    assert pool.expire(4 * S - 1) == []
    assert pool.expire(4 * S) == [old]
    assert len(pool) == 1
    assert pool.take(4 * S) is young


def test_put_starts_a_new_idle_time() -> None:
    pool: Pool[Idle] = Pool()
    connection = Idle(idle_since_ns=0)
    pool.put(connection, 10 * S)
    assert pool.take(13 * S) is connection


def test_discard_forgets_a_connection_and_does_not_mind_a_stranger() -> None:
    pool: Pool[Idle] = Pool()
    connection = Idle()
    pool.put(connection, 0)
    pool.discard(Idle("stranger"))
    pool.discard(connection)
    pool.discard(connection)
    assert (len(pool), pool.take(0)) == (0, None)


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "expire"]), st.integers(0, 3 * S)), max_size=60))
def test_nothing_old_is_ever_taken_and_nothing_is_lost(steps: list[tuple[str, int]]) -> None:
    pool: Pool[Idle] = Pool()
    now_ns, inside = 0, []
    for step, later_ns in steps:
        now_ns += later_ns
        if step == "put":
            inside.append(Idle(str(now_ns)))
            pool.put(inside[-1], now_ns)
        elif step == "take" and (taken := pool.take(now_ns)):
            assert now_ns - taken.idle_since_ns < IDLE_LIMIT_NS
            inside.remove(taken)
        elif step == "expire":
            for expired in pool.expire(now_ns):
                assert now_ns - expired.idle_since_ns >= IDLE_LIMIT_NS
                inside.remove(expired)
        assert len(pool) == len(inside)

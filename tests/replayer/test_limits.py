# Which deadline counts in which state, as a table; then the ledger, which must not miss one.

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadshape.log import REQUESTS, Outcome
from loadshape.replayer.body import Prepared
from loadshape.replayer.exchange import Exchange
from loadshape.replayer.job import Settings
from loadshape.replayer.ledger import Ledger
from loadshape.replayer.limits import EXPLAINED, Limits
from loadshape.replayer.recorder import RowWriter, WriterThread
from loadshape.replayer.routing import Routes
from loadshape.replayer.scheduler import NEVER, Scheduler
from traces import MS, ask, plan_of

SOME = Settings(timeout_connect_s=0.1, timeout_first_s=0.2, timeout_idle_s=0.05, timeout_total_s=1.0)
NONE = Settings(timeout_connect_s=None, timeout_first_s=None, timeout_idle_s=None, timeout_total_s=None)
BEGUN = {"due_ns": 5 * MS, "begun_ns": 10 * MS}
SENT = BEGUN | {"sent_ns": 20 * MS}
STALE = SENT | {"stale_ns": 90 * MS}
RESENT = STALE | {"resent_ns": 95 * MS}
STREAMING = SENT | {"first_token_ns": 30 * MS, "last_read_ns": 40 * MS}


def make_exchange(position: int = 0, **stamps: int) -> Exchange:
    """Return a request in flight with these stamps."""
    exchange = Exchange(position, position, Prepared([b"x"], 1))
    for name, value in stamps.items():
        setattr(exchange, name, value)
    return exchange


@pytest.mark.parametrize(
    ("settings", "stamps", "patience_ms", "deadline_ms", "outcome"),
    [
        (SOME, BEGUN, None, 10 + 100, Outcome.timeout_connect),
        (SOME, SENT, None, 20 + 200, Outcome.timeout_first),
        (SOME, SENT | {"last_read_ns": 25 * MS}, None, 20 + 200, Outcome.timeout_first),  # a head is no token
        (SOME, STALE, None, 90 + 100, Outcome.timeout_connect),  # it waits for another connection
        (SOME, RESENT, None, 95 + 200, Outcome.timeout_first),
        (SOME, STREAMING, None, 40 + 50, Outcome.timeout_idle),
        (SOME, STREAMING | {"last_read_ns": 1000 * MS}, None, 10 + 1000, Outcome.timeout_total),
        (SOME, BEGUN, 60, 5 + 60, Outcome.cancelled),  # patience counts from the due instant
        (SOME, STREAMING, 60, 5 + 60, Outcome.cancelled),
        (SOME, BEGUN, 500, 10 + 100, Outcome.timeout_connect),
        (NONE, STREAMING, 60, 5 + 60, Outcome.cancelled),
    ],
)
def test_the_nearest_deadline_of_each_state(
    settings: Settings, stamps: dict[str, int], patience_ms: float | None, deadline_ms: float, outcome: Outcome
) -> None:
    plan = plan_of(ask(5, patience=None if patience_ms is None else (patience_ms, None)))
    assert Limits(settings).find_deadline(make_exchange(**stamps), plan) == (deadline_ms * MS, outcome)


@pytest.mark.parametrize("stamps", [BEGUN, SENT, STREAMING])
def test_without_limits_there_is_no_deadline(stamps: dict[str, int]) -> None:
    deadline_ns, _ = Limits(NONE).find_deadline(make_exchange(**stamps), plan_of(ask(5)))
    assert deadline_ns >= NEVER


def test_every_outcome_of_a_deadline_has_a_line_of_explanation() -> None:
    assert set(EXPLAINED) == {outcome for outcome in Outcome if outcome.name.startswith("timeout")} | {
        Outcome.cancelled
    }


# The ledger looks at each request in time, although getting on may bring its deadline nearer.


def make_ledger(tmp_path: Path, settings: Settings, *rows: dict[str, Any]) -> Ledger:
    """Return a ledger without connections, whose requests are all released."""
    plan = plan_of(*rows)
    scheduler = Scheduler(plan)
    scheduler.release(NEVER - 1)
    lines: Any = SimpleNamespace(routes=Routes.to_one(len(plan)))
    return Ledger(plan, scheduler, Limits(settings), RowWriter(tmp_path / "r", REQUESTS, WriterThread()), lines)


def run_to_end(ledger: Ledger) -> int:
    """Let time jump from deadline to deadline until nobody is in flight, and return the last instant."""
    now_ns = 0
    while len(ledger):
        now_ns = ledger.next_deadline_ns()
        assert now_ns < NEVER
        ledger.expire(now_ns)
    return now_ns


@pytest.mark.parametrize(
    ("settings", "later", "end_ms", "outcome"),
    [
        (Settings(timeout_connect_s=10, timeout_first_s=0.5), SENT, 520, "timeout_first"),
        (Settings(timeout_first_s=600, timeout_idle_s=0.5), STREAMING, 540, "timeout_idle"),
        (Settings(timeout_total_s=2), STREAMING, 2010, "timeout_total"),
        (Settings(timeout_connect_s=0.3), {}, 310, "timeout_connect"),
    ],
)
def test_a_limit_that_is_shorter_than_the_one_before_is_kept(
    tmp_path: Path, settings: Settings, later: dict[str, int], end_ms: int, outcome: str
) -> None:
    ledger = make_ledger(tmp_path, settings, ask(5))
    exchange = make_exchange(**BEGUN)
    ledger.enter(exchange)
    for name, value in later.items():
        setattr(exchange, name, value)
    assert run_to_end(ledger) == end_ms * MS
    assert ledger.counts == {Outcome[outcome]: 1}


def test_the_deadline_moves_with_every_read(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, SOME, ask(5))
    exchange = make_exchange(**STREAMING)
    ledger.enter(exchange)
    for read_ms in range(60, 400, 20):  # never silent for 50 ms
        ledger.expire(read_ms * MS)
        exchange.last_read_ns = read_ms * MS
    assert len(ledger) == 1
    assert run_to_end(ledger) == (380 + 50) * MS


def test_nothing_to_look_at_without_limits(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, NONE, ask(5))
    ledger.enter(make_exchange(**BEGUN))
    assert ledger.next_deadline_ns() == NEVER


def test_an_end_is_counted_once_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, SOME, ask(0), ask(1), ask(2))
    exchange = make_exchange(**BEGUN)
    ledger.enter(exchange)
    ledger.end(exchange, Outcome.ok, None, 30 * MS)
    ledger.end(exchange, Outcome.reset, "late", 31 * MS)
    other = make_exchange(1, **BEGUN)
    ledger.enter(other)
    ledger.cut("cut at the end of the run", 40 * MS)
    ledger.close("never")
    ledger.close("never")
    assert ledger.counts == {Outcome.ok: 1, Outcome.cancelled: 1, Outcome.not_reached: 1}


@pytest.mark.parametrize(("tokens", "enough"), [(0, False), (2, False), (3, True), (4, True)])
def test_patience_in_tokens(tokens: int, enough: bool) -> None:
    plan, limits = plan_of(ask(0, patience=(None, 3)), ask(0)), Limits(SOME)
    assert limits.has_had_enough(make_exchange(0, tokens=tokens), plan) is enough
    assert limits.has_had_enough(make_exchange(1, tokens=tokens), plan) is False

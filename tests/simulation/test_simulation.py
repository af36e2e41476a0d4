# Whole replays from one seed each, under every fault there is; and proof that the simulator would notice.
#
# A failing seed is printed with the command that shows its events. The fast part has seeds that the slow part has not.

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadshape.log import Outcome
from loadshape.replayer import pool
from loadshape.replayer.decoder import Decoder
from loadshape.replayer.exchange import Exchange
from loadshape.replayer.ledger import Ledger
from loadshape.replayer.limits import Limits
from loadshape.replayer.lines import Lines
from loadshape.replayer.player import Player
from loadshape.replayer.scheduler import Scheduler
from loadshape.replayer.sender import Sender

from .laws import name
from .world import simulate

ROOT = Path(__file__).parents[2]
FAST, SLOW = range(100_000, 100_200), range(3_000)
PARTS = 30


def play_all(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


def test_two_hundred_runs() -> None:
    play_all(FAST)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_three_thousand_runs(part: int) -> None:
    play_all(SLOW[part::PARTS])


def test_a_run_is_a_function_of_its_seed() -> None:
    def record(seed: int) -> list[Any]:
        world = simulate(seed)
        return [[(row.stamps, row.error) for row in world.store.requests], world.store.reads, world.clock.now_ns()]

    for seed in range(20):
        assert record(seed) == record(seed)


def test_the_runs_reach_every_outcome_and_every_fault() -> None:
    seen: Counter[str] = Counter()
    for seed in FAST:
        world = simulate(seed)
        seen.update(name(row) for row in world.store.requests)
        seen["stall"] += len(world.history.stalls)
        seen["kill"] += world.history.is_killed
        seen["disk"] += bool(world.store.trouble)
        seen["reuse"] += sum(row.reused == 1 for row in world.store.requests)
        seen["sent again"] += len(world.network.stale)
        seen["lost target"] += len(world.player.sender.lines.routes.lost)
    expected = {outcome.name for outcome in Outcome} - {"lost"}
    expected |= {"stall", "kill", "disk", "reuse", "sent again", "lost target"}
    assert {what for what in expected if not seen[what]} == set()


def test_a_failing_seed_can_be_seen() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tests.simulation.world", "7"], cwd=ROOT, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert "pacer" in shown.stdout
    assert "row 100: " in shown.stdout


# What the simulator is for: each of these defects breaks a law within a few hundred runs.


def release_early(patch: pytest.MonkeyPatch) -> None:
    release = Scheduler.release
    patch.setattr(Scheduler, "release", lambda self, now_ns: release(self, now_ns + 1_000_000))


def forget_cancelled_rows(patch: pytest.MonkeyPatch) -> None:
    write = Ledger._write

    def forget(self: Ledger, position: int, outcome: Outcome, row: Any) -> None:
        if outcome is not Outcome.cancelled:
            write(self, position, outcome, row)

    patch.setattr(Ledger, "_write", forget)


def finish_twice(patch: pytest.MonkeyPatch) -> None:
    end = Ledger.end

    def end_twice(self: Ledger, exchange: Any, outcome: Outcome, *rest: Any) -> None:
        end(self, exchange, outcome, *rest)
        if outcome is Outcome.reset:
            self._in_flight[exchange.position] = exchange
            end(self, exchange, outcome, *rest)

    patch.setattr(Ledger, "end", end_twice)


def ignore_slots_after_failures(patch: pytest.MonkeyPatch) -> None:
    finish = Scheduler.finish

    def keep(self: Scheduler, position: int, ended_ns: int, *, succeeded: bool) -> None:
        if not succeeded:
            self._sessions.clear()
        finish(self, position, ended_ns, succeeded=succeeded)

    patch.setattr(Scheduler, "finish", keep)


def use_closed_connections(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lines, "take", lambda self, now_ns, target=0: self._pools[target].take(now_ns))


def leak_connections(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lines, "lose", lambda self, connection: None)


def trust_old_connections(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool, "IDLE_LIMIT_NS", 40_000_000_000)


def lose_reads(patch: pytest.MonkeyPatch) -> None:
    def decode_slice(self: Decoder) -> bool:
        if len(self._network.inbox) > 3:
            self._network.inbox.pop()
        return decode(self)

    decode = Decoder.decode_slice
    patch.setattr(Decoder, "decode_slice", decode_slice)


def send_after_the_stop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "stop", lambda self: None)


def time_out_before_reading(patch: pytest.MonkeyPatch) -> None:
    def expire(self: Player, now_ns: int) -> None:
        self.ledger.expire(now_ns)
        if now_ns >= self._cut_at_ns:
            self.ledger.cut("cut", now_ns)

    patch.setattr(Player, "_expire", expire)


def forget_patience(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Limits, "has_had_enough", lambda self, exchange, plan: False)


def send_again_unasked(patch: pytest.MonkeyPatch) -> None:
    def retry(self: Sender, exchange: Exchange) -> bool:
        self.retries_stale = True
        return resend(self, exchange)

    resend = Sender.retry
    patch.setattr(Sender, "retry", retry)


def never_send_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "retry", lambda self, exchange: False)


def send_again_from_the_pool(patch: pytest.MonkeyPatch) -> None:
    def dial(self: Sender, exchange: Exchange, at_ns: int) -> None:
        connection = self.lines.take(self.clock.now_ns(), exchange.target)
        if connection is None or exchange.stale_ns < 0:
            open_another(self, exchange, at_ns)
        else:
            connection.exchange, exchange.connection = exchange, connection
            self._send(exchange, connection)

    open_another = Sender._dial
    patch.setattr(Sender, "_dial", dial)


DEFECTS = [
    release_early, forget_cancelled_rows, finish_twice, ignore_slots_after_failures, use_closed_connections,
    leak_connections, trust_old_connections, lose_reads, send_after_the_stop, time_out_before_reading,
    forget_patience, send_again_unasked, never_send_again, send_again_from_the_pool,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_defect_is_found(defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+: .*\n +python -m tests.simulation.world \d+"):
        play_all(SLOW)

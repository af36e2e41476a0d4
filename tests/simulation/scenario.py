# What one run is made of, drawn from its seed: the traffic, the limits, and what goes wrong.
#
# Faults are drawn per run first and per event then: a run with all faults at once hides what each of them does alone
# ("swarm testing": Groce et al., ISSTA 2012). Lengths and limits are such that everything happens within seconds.

from __future__ import annotations

from random import Random

from loadshape.plan import NULL, Plan
from loadshape.replayer.job import Settings
from loadshape.replayer.player import Share
from loadshape.replayer.routing import Routes, Routing

from .network import MS, US, S, Weather


def draw_settings(random: Random) -> Settings:
    """Return time limits that matter in a run of seconds, some of them off."""

    def draw(shortest_s: float, longest_s: float) -> float | None:
        return None if random.random() < 0.25 else random.uniform(shortest_s, longest_s)

    return Settings(
        timeout_connect_s=draw(0.02, 2),
        timeout_first_s=draw(0.05, 3),
        timeout_idle_s=draw(0.03, 2),
        timeout_total_s=draw(0.1, 5),
        grace_s=random.choice((None, None, 0.0, 0.2, 2.0)),
        duration_s=random.uniform(0.05, 2) if random.random() < 0.15 else None,
        requests=random.randint(1, 20) if random.random() < 0.1 else None,
        spin_us=100 if random.random() < 0.1 else 0,
        retry_stale=random.random() < 0.4,
    )


def draw_weather(random: Random) -> Weather:
    """Return what goes wrong in a run: little, and in one run in five nothing."""
    is_fair = random.random() < 0.2

    def draw(largest: float) -> float:
        return 0.0 if is_fair or random.random() < 0.6 else random.uniform(0.01, largest)

    is_stepped, is_dying = random.random() < 0.03, random.random() < 0.1
    return Weather(
        latency_ns=random.choice((30 * US, 300 * US, 20 * MS)),
        pace_ns=random.choice((200 * US, 5 * MS, 30 * MS)),
        idle_close_ns=random.choice((5 * S, 5 * S, 500 * MS, 50 * MS)),
        refused=draw(0.5),
        lost=draw(0.3),
        exhausted=draw(0.5),
        faulty=draw(0.9),
        split=draw(0.6),
        stray=draw(0.9),
        slow_write=draw(0.5),
        step=(random.randrange(2 * S), random.choice((-3600, -1, 1, 3600)) * S) if is_stepped else None,
        dies={0: random.randrange(S)} if is_dying else {},
    )


def draw_plan(random: Random) -> tuple[Plan, Share]:
    """Return a share of a trace: open, partly open or closed, with think times and patience."""
    loop = random.choice(("open", "partly open", "closed"))
    sessions, gap_ns = random.randint(1, 14), random.choice((100 * US, 10 * MS, 150 * MS))
    longest_think_ns = random.choice((1, 20 * MS, 400 * MS, 5 * S))
    rows: list[tuple[int, int, int, int]] = []  # session, turn, due, think
    due_ns = 0
    for session in range(sessions):
        due_ns += random.randrange(2 * gap_ns)
        for turn in range(1 if loop == "open" else random.randint(1, 4)):
            is_clocked = loop != "closed" and turn == 0
            think_ns = 0 if is_clocked or random.random() < 0.2 else random.randrange(longest_think_ns)
            rows.append((session, turn, due_ns if is_clocked else NULL, think_ns))
    patience = random.choice((0.0, 0.0, 0.4))
    after_ns = [random.randrange(1, S) if random.random() < patience else NULL for _ in rows]
    plan = Plan(
        row=list(range(len(rows))),
        request=[100 + at for at in range(len(rows))],
        session=[row[0] for row in rows],
        turn=[row[1] for row in rows],
        due_ns=[row[2] for row in rows],
        think_ns=[row[3] for row in rows],
        successor=[at + 1 if at + 1 < len(rows) and rows[at + 1][1] else NULL for at in range(len(rows))],
        abort_ns=after_ns,
        abort_tokens=[random.randint(1, 6) if random.random() < patience else NULL for _ in rows],
    )
    slots = random.randint(1, 5) if loop == "closed" else None
    cap = random.randint(1, 4) if loop != "closed" and random.random() < 0.3 else None
    return plan, Share((0, 0), slots, cap, draw_routes(random, plan))


def draw_routes(random: Random, plan: Plan) -> Routes | None:
    """Return one target in most runs, else two or three that may be lost."""
    if random.random() < 0.7:
        return None
    targets = random.randint(2, 3)
    homes = [session % targets for session in plan.session]
    dead_after = random.choice((None, 1, 3))
    return Routes(Routing(homes, plan.session), [1.0] * targets, dead_after=dead_after, moves=random.random() < 0.5)

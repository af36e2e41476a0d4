# What does a run on many machines cost, and how well do their clocks agree?
#
#     python benchmarks/bench_cluster.py [CASE ...]
#
# Each case prints one JSON object.
#
#     clocks    the error of measured offsets between network namespaces whose clocks are ahead by a known number
#               of seconds (tests/hosts.py; needs root): as the machine is, with a process on every core that never
#               rests, with one ping a burst instead of many, and behind emulated latencies
#     scale     1,000 nodes in virtual time, without a socket: how long a round of bursts takes one thread, how often it
#               can be repeated, and what offsets are worth between bursts while the clocks drift
#     overhead  the same trace by the local launcher and by Ray's, on this host: lateness, time to start and to close
#               (overhead.py)
#     merge     from the files of 100 workers on 25 nodes, with 10 million reads, to one log, verified, in numbers
#               (merging.py)
#
# Limits of `clocks`: namespaces share a kernel, a machine and its cores; there is no network card and no switch, which
# add time in both directions, and to the bound. Clocks cannot drift there, as they are one crystal. Of `scale`: delays
# are exponential above a floor, with one way in a hundred held up for milliseconds; rates are constant, which those of
# crystals are for minutes. What a ping takes beside its round trip (OWN_NS) is beside_us of `clocks`.

"""Measure clocks between namespaces and simulate those of 1,000 nodes, and print JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hosts import building, find_obstacle, telling
from merging import merge_logs
from overhead import measure_overhead
from truth import percentiles

from loadshape.cluster import beacon
from loadshape.cluster.beacon import PINGS, Sounder, make_token
from loadshape.cluster.synchrony import Drift, Ping, estimate_offset, fit_drift, judge_pings
from loadshape.environment import describe_host
from loadshape.nodes import Burst

S = 1_000_000_000
AHEAD_S = (3_600, 86_400, 7)
WAYS_MS = {"0.3 ms out, 0.3 back": (0.3, 0.3), "1 ms out, 0.2 back": (1.0, 0.2)}
NODES, RUN_S, EVERY_S = 1_000, 600, 10
OWN_NS = 10_000
SEEN = 20  # instants of each node at which an estimate is compared with the truth


@contextlib.contextmanager
def crowding() -> Iterator[None]:
    """Keep every core busy while the block runs."""
    spins = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spin in spins:
            spin.kill()
            spin.wait()


@contextlib.contextmanager
def keeping_trips() -> Iterator[list[int]]:
    """Give a list that gets the round trip of every ping, of which a burst keeps only the best."""
    trips_ns: list[int] = []

    def judge(pings: Sequence[Ping], **about: int) -> Burst:
        trips_ns.extend(ping.returned_ns - ping.sent_ns for ping in pings)
        return judge_pings(pings, **about)

    beacon.judge_pings = judge
    try:
        yield trips_ns
    finally:
        beacon.judge_pings = judge_pings


def sound(bursts: int, *, pings: int = PINGS, out_s: float = 0, back_s: float = 0) -> dict[str, Any]:
    """Return how far *bursts* of each host are from the truth, in us."""
    token = make_token()
    with contextlib.ExitStack() as made:
        hosts = made.enter_context(building(AHEAD_S))
        places = [made.enter_context(telling(host, token, out_s=out_s, back_s=back_s)) for host in hosts]
        sounder = Sounder({at: (place.address, place.port) for at, place in enumerate(places)}, token, count=pings)
        with keeping_trips() as trips_ns:
            begun_s = time.perf_counter()
            for _ in range(bursts):
                sounder.sound_all()
            lasted_s = time.perf_counter() - begun_s
    read = [(host, burst) for at, host in enumerate(hosts) for burst in sounder.bursts[at]]
    errors = np.array([abs(burst.offset_ns + host.ahead_s * S) / 1e3 for host, burst in read if burst.offset_ns])
    bounds = np.array([burst.bound_ns / 1e3 for _, burst in read if burst.bound_ns])
    sent = sum(burst.sent for _, burst in read)
    return {
        "bursts": len(read),
        "lost": sent - sum(burst.heard for _, burst in read),
        "error_us": percentiles(errors),
        "bound_us": percentiles(bounds),
        "beyond_bound": int((errors > bounds).sum()),
        "trip_us": percentiles(np.array(trips_ns) / 1e3),
        "beside_us": round((lasted_s - sum(trips_ns) / 1e9) / sent * 1e6, 1),
    }


def measure_clocks() -> dict[str, Any]:
    """Read clocks of three namespaces whose offsets are known."""
    obstacle = find_obstacle()
    if obstacle is not None:
        return {"skipped": obstacle}
    found = {
        "as it is": sound(300),
        "as it is, 10 pings": sound(300, pings=10),
        "as it is, 1 ping": sound(1000, pings=1),
    }
    with crowding():
        found |= {"busy cores": sound(100), "busy cores, 1 ping": sound(300, pings=1)}
    for name, (out_ms, back_ms) in WAYS_MS.items():
        found[name] = sound(10, out_s=out_ms / 1e3, back_s=back_ms / 1e3)
    return found


def simulate_scale() -> dict[str, Any]:
    """Synchronize NODES nodes, with several round trips and numbers of pings."""
    return {
        f"rtt {rtt_ms} ms, {pings} pings": simulate(round(rtt_ms * 1e6), pings)
        for rtt_ms in (0.1, 0.5)
        for pings in (PINGS, 10)
    }


def simulate(rtt_ns: int, pings: int) -> dict[str, Any]:
    """Return the length of a round, and what offsets are worth at any instant of a run of RUN_S, in us."""
    rng = np.random.default_rng(7)
    rates_ppb = rng.uniform(5_000, 30_000, NODES) * rng.choice([-1, 1], NODES)
    starts_ns = rng.integers(-(10**15), 10**15, NODES)
    bursts: list[list[Burst]] = [[] for _ in range(NODES)]
    now_ns, rounds_ns, first_ns = 0, [], 0
    while now_ns < RUN_S * S + first_ns:
        begun_ns = now_ns
        for node in range(NODES):
            burst, now_ns = ping_node(rng, now_ns, pings, rtt_ns, int(starts_ns[node]), float(rates_ppb[node]))
            bursts[node].append(burst)
        rounds_ns.append(now_ns - begun_ns)
        first_ns = first_ns or now_ns  # T0 can be chosen when all have been read once
        now_ns = max(now_ns, begun_ns + EVERY_S * S)

    def judge(at_ns: np.ndarray[Any, Any], known: Callable[[int], tuple[list[Burst], Drift | None]]) -> dict[str, Any]:
        errors, bounds = [], []
        for node in range(NODES):
            seen, drift = known(node)
            for instant in at_ns:
                found = estimate_offset(seen, int(instant), drift)
                assert found is not None
                errors.append(abs(found[0] - int(starts_ns[node]) - rates_ppb[node] * instant / 1e9) / 1e3)
                bounds.append(found[1] / 1e3)
        beyond = int((np.array(errors) > np.array(bounds) + 1e-3).sum())
        return {"error_us": percentiles(np.array(errors)), "bound_us": percentiles(np.array(bounds)), "beyond": beyond}

    drifts = [fit_drift(own) for own in bursts]
    off_ppb = [abs(drift.ppb - rate) for drift, rate in zip(drifts, rates_ppb, strict=True) if drift]
    instants = rng.integers(first_ns, now_ns, SEEN)
    return {
        "round_s": round(float(np.median(rounds_ns)) / 1e9, 2),
        "rounds": len(rounds_ns),
        "own_part_of_a_core": round(NODES * pings * OWN_NS / max(EVERY_S * S, float(np.median(rounds_ns))), 3),
        "at T0": judge(np.array([first_ns + 2 * S]), lambda node: (bursts[node][:1], None)),
        "between bursts": judge(instants, lambda node: (bursts[node], None)),
        "between bursts, with the drift": judge(instants, lambda node: (bursts[node], drifts[node])),
        "drift_error_ppb": percentiles(np.array(off_ppb)),
    }


def ping_node(
    rng: np.random.Generator, now_ns: int, pings: int, rtt_ns: int, start_ns: int, rate_ppb: float
) -> tuple[Burst, int]:
    """Return a burst from *now_ns* on and when it was over."""
    floor, spread = rtt_ns * 0.45, rtt_ns * 0.05
    size = (pings, 2)
    ways = floor + rng.exponential(spread, size) + (rng.random(size) < 0.01) * rng.exponential(2e6, size)
    out_ns, back_ns = ways.astype(np.int64).T
    there_ns = 3_000
    ends_ns = now_ns + np.cumsum(out_ns + there_ns + back_ns + OWN_NS)
    sent_ns = ends_ns - (out_ns + there_ns + back_ns + OWN_NS)
    heard_ns = sent_ns + out_ns
    shown = [at - start_ns - np.round(at * rate_ppb / 1e9).astype(np.int64) for at in (heard_ns, heard_ns + there_ns)]
    columns = (sent_ns, *shown, sent_ns + out_ns + there_ns + back_ns)
    heard = [Ping(*stamps) for stamps in zip(*(column.tolist() for column in columns), strict=True)]
    return judge_pings(heard, sent=pings, begun_ns=now_ns), int(ends_ns[-1])


CASES = {"clocks": measure_clocks, "scale": simulate_scale, "merge": merge_logs, "overhead": measure_overhead}


def main() -> None:
    """Run the cases that were asked for and print one JSON object each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    given = parser.parse_args()
    print(json.dumps({"host": describe_host(), "python": platform.python_version()}), flush=True)
    for name in given.cases or CASES:
        print(json.dumps({name: CASES[name](), "load_average": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main()

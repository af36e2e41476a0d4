# Finding this host's limits in about a minute, by real replays.
#
# Law: a limit is found by going over it, and told with who gave way. One ramp a question: the load rises
# from nothing to more than any worker has done yet, in windows of 100 ms; the ceiling is the highest mean
# rate of three windows in a row that were kept. Then steady loads at shares of the ceiling say how exact the
# replayer is there; the first that is not kept is the ceiling instead.
#
#     requests/s   one-token answers; kept while the median request is begun within a millisecond of its due
#     chunks/s     streams of a chunk every 10 ms; kept while a read has 1.025 chunks at most: the worker does
#                  not live off what TCP merges
#     both         kept while decoding is no more than 100 ms behind
#     streams      so many at once that descriptors and ports are the limit, or as many as are tried
#
# Medians, and the best three windows rather than the first bad one, because a hiccup of a shared machine must
# not look like a limit; how long both sides waited for a core is told beside the rates.
#
# Responders and workers get cores of their own where there are two or more: one worker against one responder,
# then half of the cores each. On two or three cores that is the same, and is measured once. A single core is
# shared by both sides.

"""Calibrate: measure what this host can send, receive and hold, and how exactly."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from loadshape.calibration import Calibration, Capacity, Ceiling, Level, Spread, Use
from loadshape.environment import describe_host
from loadshape.errors import ReplayError
from loadshape.replayer.capacity import count_streams
from loadshape.stats import Floats, Integers, quantile
from loadshape.trial import Responders, Trial, Work, confined, play
from loadshape.units import NS_PER_S

WINDOW_NS = 100_000_000
WINDOW_S = WINDOW_NS / NS_PER_S
SHARES = (0.25, 0.5, 0.8)
STRETCH = 3
KEPT_S = 0.001
CHUNKS_A_READ = 1.025
DECODED_S = 0.1
SATED = 0.9  # cores
LOWERED = 2  # times that a ceiling is corrected by a steady load
BUSY = 0.15  # a host on which workers waited more for a core is not worth to be remembered
STREAMS = 1000  # of a steady load
SPREAD_S = 0.5  # over which the streams of a steady load begin

Watch = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How thorough a calibration is. Rates are of one worker; in a layout nothing is begun after `budget_s`."""

    ramp_s: float = 3.0
    steady_s: float = 2.0
    shares: tuple[float, ...] = SHARES
    requests_hz: float = 15_000.0
    chunks_hz: float = 160_000.0
    streams: int = 10_000
    streams_spread_s: float = 3.0
    budget_s: float = 50.0


FULL = Extent()
QUICK = Extent(ramp_s=1.5, steady_s=1.0, shares=(0.5,), streams=0, budget_s=15.0)


@dataclass(frozen=True, slots=True)
class Layout:
    """Who runs where: so many workers on some cores, responders on others."""

    processes: int
    worker_cores: set[int]
    responder_cores: list[set[int]]


@dataclass(frozen=True, slots=True)
class Bench:
    """One layout at work: plays, tells, and keeps to the time."""

    layout: Layout
    extent: Extent
    responders: Responders
    folder: Path
    tell: Callable[[str], None]
    deadline_s: float

    def play(self, work: Work, note: str) -> Trial | None:
        """Play *work*, or return None when there is no time left for it."""
        if time.monotonic() > self.deadline_s:
            return None
        workers = self.layout.processes
        self.tell(f"{workers} worker{'s' if workers > 1 else ''}: {note}")
        return play(work, self.responders, processes=workers, folder=self.folder)

    def demand(self, work: Work, note: str) -> Trial:
        """Play *work*. Raises ReplayError when there is no time left."""
        trial = self.play(work, note)
        if trial is None:
            raise ReplayError(f"calibrate: no time was left for {note}; this host is overloaded, try when it is not")
        return trial


@dataclass(frozen=True, slots=True)
class Windows:
    """What a ramp showed in every window: the rate, whether it was kept, the responders' median lateness."""

    edges_ns: Integers
    rate_hz: Floats
    kept: np.ndarray
    late_s: Floats


def calibrate(*, quick: bool = False, watch: Watch | None = None) -> Calibration:
    """Measure the limits of this host in about a minute (quick: 15 s) a layout and return them, not yet stored.

    `watch` is called with the elapsed seconds and what is being done. Raises ReplayError when the host is
    too busy to be measured; a Ctrl-C ends it at once and leaves no process behind.
    """
    extent, begun_s = choose_extent(quick=quick), time.monotonic()
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    host = describe_host()

    def tell(note: str) -> None:
        if watch is not None:
            watch(time.monotonic() - begun_s, note)

    layouts = arrange(list_cores())
    found: list[Capacity] = []
    with tempfile.TemporaryDirectory(prefix="loadshape-") as folder:
        for layout in layouts:
            deadline_s = time.monotonic() + extent.budget_s
            with confined(layout.worker_cores), Responders(layout.responder_cores) as responders:
                found.append(measure(Bench(layout, extent, responders, Path(folder), tell, deadline_s)))
    took_s = time.monotonic() - begun_s
    return Calibration(made_at=made_at, took_s=round(took_s, 1), host=host, one=found[0], all=found[-1])


def choose_extent(*, quick: bool) -> Extent:
    """Return how thorough a calibration is."""
    return QUICK if quick else FULL


def list_cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def arrange(cores: list[int]) -> list[Layout]:
    """Return one worker beside one responder, then half of the cores each where that is more."""
    if len(cores) == 1:
        return [Layout(1, set(cores), [set(cores)])]
    half = len(cores) // 2
    layouts = [Layout(1, {cores[0]}, [{cores[-1]}])]
    if half > 1:
        layouts.append(Layout(half, set(cores[:half]), [{core} for core in cores[-half:]]))
    return layouts


def measure(bench: Bench) -> Capacity:
    """Return what one layout can do."""
    extent, workers = bench.extent, bench.layout.processes
    ramp = bench.demand(ramp_requests(extent.requests_hz * workers, extent.ramp_s), "requests/s, rising")
    requests = find_ceiling(ramp, watch_requests(ramp))
    ramp = bench.demand(ramp_chunks(extent.chunks_hz * workers, extent.ramp_s), "chunks/s, rising")
    chunks = find_ceiling(ramp, watch_chunks(ramp))
    requests = add_levels(bench, requests, steady_requests, "requests/s")
    chunks = add_levels(bench, chunks, steady_chunks, "chunks/s")
    found = Capacity(
        processes=workers,
        responders=len(bench.responders),
        requests=requests,
        chunks=chunks,
    )
    return add_streams(bench, found)


def ramp_requests(top_hz: float, length_s: float) -> Work:
    """Return requests at random instants whose rate rises evenly from 0 to *top_hz*."""
    due_ns = _draw_due(top_hz * length_s / 2, lambda share: np.sqrt(share) * length_s)
    return Work(due_ns, np.ones(len(due_ns), np.int64), 1000, length_s)


def ramp_chunks(top_hz: float, length_s: float, interval_us: int = 10_000) -> Work:
    """Return streams that begin one after another and end together: the rate of chunks rises evenly to *top_hz*."""
    count = round(top_hz * interval_us / 1e6)
    due_ns = np.linspace(0, length_s * NS_PER_S, count, endpoint=False).astype(np.int64)
    tokens = (length_s * NS_PER_S - due_ns) // (interval_us * 1000)
    return Work(due_ns, np.maximum(1, tokens), interval_us, length_s + interval_us / 1e6)


def steady_requests(rate_hz: float, length_s: float) -> Work:
    """Return one-token requests at random instants of an even rate."""
    whole_s = SPREAD_S + length_s
    due_ns = _draw_due(rate_hz * whole_s, lambda share: share * whole_s)
    return Work(due_ns, np.ones(len(due_ns), np.int64), 1000, whole_s)


def steady_chunks(rate_hz: float, length_s: float) -> Work:
    """Return streams that begin within SPREAD_S and send *rate_hz* chunks together for *length_s* after that."""
    interval_us = max(1, round(STREAMS / rate_hz * 1e6))
    due_ns = np.linspace(0, SPREAD_S * NS_PER_S, STREAMS, endpoint=False).astype(np.int64)
    tokens = ((SPREAD_S + length_s) * NS_PER_S - due_ns) // (interval_us * 1000)
    return Work(due_ns, np.maximum(1, tokens.astype(np.int64)), interval_us, SPREAD_S + length_s + interval_us / 1e6)


def watch_requests(trial: Trial) -> Windows:
    """Cut a ramp of requests by due time."""
    due_ns, late_ns = trial.lateness()
    edges_ns = _list_edges(due_ns)
    late_s = _medians(due_ns, late_ns / NS_PER_S, edges_ns)
    kept = (late_s <= KEPT_S) & _is_decoded(trial, edges_ns)
    return Windows(edges_ns, _rates(due_ns, edges_ns), kept, _responders_late(trial, edges_ns))


def watch_chunks(trial: Trial) -> Windows:
    """Cut a ramp of chunks by when they were written."""
    found = trial.match()
    edges_ns = _list_edges(trial.writes.at_ns)
    firsts = found.write_ns[np.r_[True, np.diff(found.read) != 0]]
    reads_hz = np.maximum(_rates(firsts, edges_ns), 1 / WINDOW_S)
    rate_hz = _rates(found.write_ns, edges_ns)
    kept = (rate_hz <= CHUNKS_A_READ * reads_hz) & _is_decoded(trial, edges_ns)
    return Windows(edges_ns, rate_hz, kept, _responders_late(trial, edges_ns))


def find_ceiling(trial: Trial, windows: Windows) -> Ceiling:
    """Return the highest mean rate of STRETCH windows in a row that were all kept, and who gave way after it."""
    sums = np.convolve(windows.rate_hz, np.ones(STRETCH), "valid")
    kept = np.convolve(windows.kept, np.ones(STRETCH), "valid") > STRETCH - 0.5
    if not (kept & (sums > 0)).any():
        raise ReplayError("calibrate: not even the lowest rate was kept; this host is overloaded, try when it is not")
    best = int(np.argmax(np.where(kept, sums, 0.0)))
    after = slice(best, best + 2 * STRETCH)
    worker, responder = find_uses(trial, windows.edges_ns, after)
    is_late = bool(windows.late_s[after].max() > KEPT_S)
    return Ceiling(
        rate_hz=round(float(sums[best]) / STRETCH, 1),
        saturated=name_saturated(
            worker, responder, was_missed=not windows.kept[after].all(), is_responder_late=is_late
        ),
        worker=worker,
        responder=responder,
    )


def name_saturated(worker: Use, responder: Use, *, was_missed: bool, is_responder_late: bool) -> str:
    """Return who gave way at the ceiling: the responder if it was late and had less time left, else who missed it."""
    spent, other = worker.cpu + worker.waited, responder.cpu + responder.waited
    if is_responder_late and (not was_missed or other > spent):
        return "responder"
    return "worker" if was_missed or spent >= SATED else "nobody"


def find_uses(trial: Trial, edges_ns: Integers, windows: slice) -> tuple[Use, Use]:
    """Return what workers and responders used in some windows, on average."""
    uses = []
    for use in (trial.worker_use, trial.responder_use):
        cpu, waited = (np.nan_to_num(use(name, edges_ns)[windows]).mean() for name in ("cpu_ns", "runqueue_ns"))
        uses.append(Use(round(float(cpu), 3), round(float(waited), 3)))
    return uses[0], uses[1]


def add_levels(bench: Bench, ceiling: Ceiling, make: Callable[[float, float], Work], what: str) -> Ceiling:
    """Return the ceiling with what steady loads at shares of it showed, the largest first; those there was time for.

    A ramp is short: what was prepared before it helps. So no ceiling is above a steady load that was not kept.
    """
    levels: list[Level] = []
    shares, left = sorted(bench.extent.shares), LOWERED
    while shares:
        rate_hz = ceiling.rate_hz * shares[-1]
        note = f"{rate_hz:,.0f} {what}, {shares[-1]:.0%} of the ceiling"
        trial = bench.play(make(rate_hz, bench.extent.steady_s), note)
        if trial is None:
            break
        level = describe_level(trial, shares[-1], rate_hz, bench.extent.steady_s)
        if levels or left == 0 or is_kept(level):
            levels.insert(0, level)
            shares.pop()
        else:
            ceiling, left = msgspec.structs.replace(ceiling, rate_hz=level.rate_hz), left - 1
    return msgspec.structs.replace(ceiling, levels=levels)


def is_kept(level: Level) -> bool:
    """Return whether a steady load was kept, by the measures of the ramps."""
    return (level.lateness.p50_s or 0.0) <= KEPT_S and level.chunks_a_read <= CHUNKS_A_READ


def describe_level(trial: Trial, share: float, rate_hz: float, length_s: float) -> Level:
    """Return how exact a steady load was, once all of it ran; of requests as far as they were due then."""
    start_ns, end_ns = int(SPREAD_S * NS_PER_S), int((SPREAD_S + length_s) * NS_PER_S)
    found = trial.match()
    steady = (found.write_ns >= start_ns) & (found.write_ns < end_ns)
    due_ns, late_ns = trial.lateness()
    late_ns = late_ns[due_ns >= start_ns] if (due_ns >= start_ns).any() else late_ns
    writes = (trial.writes.at_ns >= start_ns) & (trial.writes.at_ns < end_ns)
    edges_ns = np.array([start_ns, end_ns], np.int64)
    worker, responder = find_uses(trial, edges_ns, slice(None))
    return Level(
        share=share,
        rate_hz=round(rate_hz, 1),
        lateness=_spread(late_ns),
        lag=_spread((found.seen_ns - found.at_ns)[steady]),
        error=_spread((found.at_ns - found.write_ns)[steady]),
        responder_lateness=_spread(trial.writes.late_ns[writes]),
        chunks_a_read=round(int(steady.sum()) / max(1, len(np.unique(found.read[steady]))), 4),
        worker=worker,
        responder=responder,
    )


def add_streams(bench: Bench, found: Capacity) -> Capacity:
    """Return the capacity with how many streams were held at once; as it is where none are asked or no time is left."""
    workers, spread_s = found.processes, bench.extent.streams_spread_s
    tried = min(bench.extent.streams * workers, count_streams(processes=min(workers, found.responders)))
    if tried == 0:
        return found
    due_ns = np.linspace(0, spread_s * NS_PER_S, tried, endpoint=False).astype(np.int64)
    interval_us = round((spread_s + 0.5) * 1e6 / 4)
    work = Work(due_ns, np.full(tried, 4, np.int64), interval_us, spread_s + 4 * interval_us / 1e6)
    trial = bench.play(work, f"{tried:,} streams at once")
    if trial is None:
        return found
    held, memory = (np.asarray(trial.log.health[name]).astype(np.int64) for name in ("in_flight", "rss_bytes"))
    return msgspec.structs.replace(
        found,
        streams=trial.log.manifest.outcomes.get("ok", 0),
        streams_tried=tried,
        stream_bytes=round(float(memory.max() - memory[0]) / max(1, held.max())),
    )


def _draw_due(mean: float, place: Callable[[Floats], Floats]) -> Integers:
    shares = np.sort(np.random.default_rng(1).uniform(size=max(1, round(mean))))
    return (place(shares) * NS_PER_S).astype(np.int64)


def _list_edges(at_ns: Integers) -> Integers:
    return np.arange(0, max(int(at_ns.max()), WINDOW_NS) + 1, WINDOW_NS, dtype=np.int64)


def _rates(at_ns: Integers, edges_ns: Integers) -> Floats:
    return np.histogram(at_ns, edges_ns)[0] / WINDOW_S


def _medians(at_ns: Integers, values: Floats, edges_ns: Integers) -> Floats:
    """Return the median of the values in each window, nan where there is none."""
    place = np.digitize(at_ns, edges_ns) - 1
    parts = [values[place == number] for number in range(len(edges_ns) - 1)]
    return np.array([np.median(part) if len(part) else np.nan for part in parts])


def _is_decoded(trial: Trial, edges_ns: Integers) -> np.ndarray:
    """Return whether decoding kept up, by window."""
    at_ns, behind_ns = (np.asarray(trial.log.health[name]).astype(np.int64) for name in ("at_ns", "decode_lag_ns"))
    return np.nan_to_num(_medians(at_ns, behind_ns / NS_PER_S, edges_ns)) <= DECODED_S


def _responders_late(trial: Trial, edges_ns: Integers) -> Floats:
    return np.nan_to_num(_medians(trial.writes.at_ns, trial.writes.late_ns / NS_PER_S, edges_ns))


def _spread(values_ns: Integers) -> Spread:
    values_s = values_ns / NS_PER_S
    return Spread(quantile(values_s, 0.5), quantile(values_s, 0.99))

# Did the machine under the generator leave it alone?
#
# Law: from the health rows. Counters are cumulated, so a share is a difference over a difference: a lost row costs
# nothing. Each worker is looked at on its own and the worst one counts, on whichever host, since its requests are in
# the report like all others. A column that the platform lacks is null, and its check is unknown.
#
# Run-queue delay (time spent runnable without a core) separates "our code is slow" from "we were not scheduled"; no
# timer trick repairs the latter. REALTIME - MONOTONIC changes only when somebody sets the clock: NTP slews both
# alike. Kernel receive stamps are REALTIME, so such a step would move them.

"""Checks of the host: run-queue delay, CPU, the calibrated ceiling, steal, throttling, pauses, clock steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadshape import metrics
from loadshape.log import Log
from loadshape.stats import Floats, group_rows
from loadshape.units import NS_PER_S
from loadshape.validity.finding import Finding, Limits, show_share, weigh

_SMOOTHED = 5  # rows: the median of half a second, so one bracket that was preempted is no clock step


def find_runqueue(log: Log, limits: Limits) -> Finding:
    """Take the worst worker's share of wall time spent waiting for a core."""
    invalid = np.inf if log.run.receive == "kernel" else limits.runqueue_invalid
    share, about = _worst_share(log, "runqueue_ns")
    return weigh(share, limits.runqueue, invalid, show=show_share, about=f"of the time, {about}")


def find_cpu(log: Log, limits: Limits) -> Finding:
    """Take the CPU use of the busiest second of any worker, in cores."""
    uses = [(float(_changes_per_s(at_s, used_s).max()), worker) for worker, at_s, used_s in _series(log, "cpu_ns")]
    share, worker = max(uses, default=(np.nan, 0))
    return weigh(share, limits.cpu, show=show_share, about=f"of a core in the busiest second of worker {worker}")


def find_steal(log: Log, limits: Limits) -> Finding:
    """Take what the hypervisor gave to others, as a share of the host's cores; of several hosts, the worst."""
    taken = [(share, _count_cores(log, worker)) for worker, share in measure_shares(log, "steal_ns").items()]
    share, cores = max(((share / cores, cores) for share, cores in taken), default=(np.nan, _count_cores(log, 0)))
    return weigh(share, limits.steal, limits.steal_invalid, show=show_share, about=f"of {cores} cores' time")


def find_throttling(log: Log, limits: Limits) -> Finding:
    """Take the share of time for which the cgroup was stopped because of its CPU quota."""
    share, _ = _worst_share(log, "throttled_ns")
    return weigh(share, limits.throttled, limits.throttled_invalid, show=show_share, about="of the time")


def find_gc_pause(log: Log, limits: Limits) -> Finding:
    """Take the longest pause of any worker's garbage collector."""
    pauses_s = metrics.read_column(log.health, "gc_ns") / NS_PER_S
    longest_s = float(pauses_s.max()) if len(pauses_s) else np.nan
    return weigh(longest_s, limits.gc_pause_s, limits.gc_pause_invalid_s)


def find_clock_step(log: Log, limits: Limits) -> Finding:
    """Take the largest change of REALTIME - MONOTONIC within a second."""
    steps = [
        float(np.abs(_changes_per_s(at_s, _smooth(offset_s))).max())
        for _, at_s, offset_s in _series(log, "realtime_offset_ns")
    ]
    return weigh(max(steps, default=np.nan), limits.clock_step_s, limits.clock_step_invalid_s, about="in a second")


def find_ceiling_share(log: Log, limits: Limits) -> Finding | None:
    """Take the load of the busiest second as a share of what this host was calibrated for; None without that."""
    found = measure_ceiling_share(log)
    if found is None:
        return None
    return weigh(found, limits.ceiling_share, show=show_share, about="of the calibrated ceiling, in the busiest second")


def measure_ceiling_share(log: Log) -> float | None:
    """Return the busiest second's load as a share of the calibrated ceiling, None when the host was not calibrated.

    Requests begun and reads after the first of a request use the same core, so that their shares add up. The
    worst worker is held against the ceiling of one, all of them together against that of all.
    """
    ceilings = _read_ceilings(log)
    if ceilings is None:
        return None
    reads = log.tally.by_second
    workers = np.unique(np.asarray(log.requests["worker"]), return_inverse=True)[1]
    begun = log.requests["begun_ns"].is_valid().to_numpy().astype(bool)
    begun_s = np.asarray(log.requests["begun_ns"].fill_null(0)) // NS_PER_S
    requests = _count_by(workers[begun], begun_s[begun], reads.shape)
    (one_requests, one_reads), (all_requests, all_reads) = ceilings
    further = np.maximum(reads - requests, 0)
    alone = float((requests / one_requests + further / one_reads).max())
    together = float((requests.sum(axis=0) / all_requests + further.sum(axis=0) / all_reads).max())
    return max(alone, together)


def _read_ceilings(log: Log) -> list[tuple[float, float]] | None:
    """Return (requests/s, chunks/s) of one worker and of all, as the replay copied them into the environment.

    None where there are none, and for a run on nodes of a cluster: they are of the host that led it.
    """
    if log.nodes or log.run.nodes > 1:
        return None
    try:
        calibration = log.environment["client"]["calibration"]
        pairs = [(float(calibration[of]["requests_hz"]), float(calibration[of]["chunks_hz"])) for of in ("one", "all")]
    except (KeyError, TypeError, ValueError):
        return None
    return pairs if all(rate > 0 for pair in pairs for rate in pair) else None


def _count_by(workers: np.ndarray, at_s: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return how many events each worker had in each second: one row a worker; *size* is (workers, seconds)."""
    rows, seconds = size
    place = workers * seconds + np.clip(at_s, 0, seconds - 1).astype(np.int64)
    return np.bincount(place, minlength=rows * seconds).reshape(rows, seconds)


def _series(log: Log, column: str) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield (worker, times, values - first value), both in s, of each worker with two rows or more that know it."""
    workers, at_ns = metrics.read_column(log.health, "worker"), metrics.read_column(log.health, "at_ns")
    values = metrics.read_column(log.health, column)
    for worker, rows in group_rows(workers).items():
        own = rows[~np.isnan(values[rows])]
        if len(own) > 1 and np.ptp(at_ns[own]) > 0:
            yield worker, at_ns[own] / NS_PER_S, (values[own] - values[own[0]]) / NS_PER_S


def measure_shares(log: Log, column: str) -> dict[int, float]:
    """Return how much a cumulated column of the health rows grew, as a share of the time, by worker that knows it."""
    return {worker: float(used_s[-1] / (at_s[-1] - at_s[0])) for worker, at_s, used_s in _series(log, column)}


def _worst_share(log: Log, column: str) -> tuple[float, str]:
    shares = [(share, worker) for worker, share in measure_shares(log, column).items()]
    share, worker = max(shares, default=(np.nan, 0))
    return share, f"worker {worker}"


def _changes_per_s(at_s: Floats, values: Floats) -> Floats:
    """Return the change of *values* over the second after each row, per second; over all if it is shorter."""
    span_s = min(1.0, at_s[-1] - at_s[0])
    later = np.searchsorted(at_s, at_s + span_s * 0.999)  # ticks jitter: 0.9995 s is a second
    starts = np.flatnonzero(later < len(at_s))
    ends = later[starts]
    return np.asarray((values[ends] - values[starts]) / (at_s[ends] - at_s[starts]), np.float64)


def _smooth(values: Floats) -> Floats:
    if len(values) < _SMOOTHED:
        return values
    padded = np.pad(values, _SMOOTHED // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _SMOOTHED)
    return np.asarray(np.median(windows, axis=1), np.float64)


def _count_cores(log: Log, worker: int) -> int:
    # Without the count, one core: then steal is overstated, never understated.
    node = worker // log.run.workers_each
    client = log.nodes[node].environment if node < len(log.nodes) else log.environment.get("client")
    cores = client.get("cores") if isinstance(client, dict) else None
    return cores if isinstance(cores, int) and cores > 0 else 1

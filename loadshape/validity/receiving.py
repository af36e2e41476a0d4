# When did bytes arrive, and how well do we know it?
#
# Law: from the stamps of the reads, and from the loop's lag where those stamps are only ours. With the
# kernel's receive stamps a slow process does not move `at`, so it makes a run suspect, never invalid;
# without them the process is the clock, and its lag is an error of every latency.

"""Checks of receiving: the lag behind the kernel, the order of stamps, the loop's lag, shared reads."""

from __future__ import annotations

import numpy as np

from loadshape import metrics
from loadshape.log import Log
from loadshape.units import NS_PER_S, format_duration
from loadshape.validity.finding import Finding, Limits, show_share, weigh, weigh_quantile


def find_receive_lag(log: Log, limits: Limits) -> Finding | None:
    """Hold our stamps against the kernel's; None where there are only ours."""
    return weigh_quantile(log.tally.lag_ns, 0.99, limits.receive_lag_p99_s) if log.run.receive == "kernel" else None


def find_stamp_order(log: Log, limits: Limits) -> Finding | None:
    """Look for reads that we saw before the kernel says they came; None where there is only our stamp."""
    if log.run.receive != "kernel":
        return None
    lag_ns = log.tally.lag_ns
    wrong = int(np.count_nonzero(lag_ns < -limits.stamp_order_s * NS_PER_S))
    about = f", by up to {format_duration(-int(lag_ns.min()) / NS_PER_S)}" if wrong else ""
    bound = f"none by more than {format_duration(limits.stamp_order_s)}"
    return Finding("suspect" if wrong else "ok", f"{wrong:,} of {len(lag_ns):,} reads{about}", bound)


def find_loop_lag(log: Log, limits: Limits) -> Finding | None:
    """Hold the event loop's lag against its limits; None where the kernel's stamps make it harmless."""
    if log.run.receive == "kernel":
        return None
    lag_s = metrics.read_column(log.health, "loop_lag_ns") / NS_PER_S
    return weigh_quantile(lag_s, 0.99, limits.loop_lag_p99_s, limits.loop_lag_p99_invalid_s)


def find_shared_reads(log: Log, limits: Limits) -> Finding:
    """Take the share of token-bearing events that share a read, and so a stamp, with another one."""
    total, shared = log.tally.deltas, log.tally.shared
    if total == 0:
        return weigh(np.nan, limits.shared_events, show=show_share)
    return weigh(shared / total, limits.shared_events, show=show_share, about=f"({shared:,} of {total:,} events)")

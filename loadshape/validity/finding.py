# One question about the instrument, answered with a number.
#
# Law: values only. A finding is a measured figure beside its limit; it never talks about servers. The
# scale is that of the verdict: `ok` up to the first limit, `suspect` between, `invalid` beyond the second
# (where there is one), `unknown` where the platform or the run gives nothing to look at.

"""Limits, findings, and the grading of a value between two limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadshape import stats
from loadshape.errors import InputError
from loadshape.units import NS_PER_S, format_duration

Status = Literal["ok", "suspect", "invalid", "unknown"]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every threshold of the verdict: `x` is the last value that is ok, `x_invalid` the last that is suspect."""

    lateness_p50_s: float = 0.0001
    lateness_p99_s: float = 0.001
    lateness_p999_s: float = 0.005
    lateness_p99_invalid_s: float = 0.005
    lateness_of_ttft_invalid: float = 0.05  # p99 of lateness as a share of the TTFT p50
    not_sent_invalid: float = 0.001
    resent: float = 0.0  # of the planned requests, sent once more after a stale connection
    proxied: float = 0.0  # of the targets, behind a proxy; 1: it belongs to what is measured
    punctual_s: float = 0.010  # begun within this is punctual
    punctual_window_s: float = 10.0
    punctual_share: float = 0.99  # at least, in every window
    punctual_share_invalid: float = 0.95  # at least, over the run
    receive_lag_p99_s: float = 0.001
    stamp_order_s: float = 0.0001  # a kernel stamp may lie this far after ours: the width of the conversion
    loop_lag_p99_s: float = 0.001
    loop_lag_p99_invalid_s: float = 0.010
    shared_events: float = 0.005
    runqueue: float = 0.01
    runqueue_invalid: float = 0.05
    cpu: float = 0.70
    ceiling_share: float = 0.70  # of the calibrated ceiling
    steal: float = 0.01
    steal_invalid: float = 0.05
    throttled: float = 0.0
    throttled_invalid: float = 0.05
    gc_pause_s: float = 0.001
    gc_pause_invalid_s: float = 0.020
    clock_step_s: float = 2e-6  # change of REALTIME - MONOTONIC in a second
    clock_step_invalid_s: float = 1e-5
    identity: float = 0.001
    identity_invalid: float = 0.01
    in_flight_errors: float = 4.0  # standard errors
    in_flight_share: float = 0.02  # but never less than this share of the mean
    in_flight_stretch: float = 2.0  # samples in a row that may contradict the rows
    arrival_numbers: float = 0.10  # CV and dispersion, sent against planned: of the plan, or absolute below 1
    arrival_distance: float = 0.05  # KS distance between the gaps, sent and planned
    probe_difference: float = 0.05  # of a percentile, between the probe and the loaded workers
    probe_difference_s: float = 0.001  # but never less than this
    node_clock_s: float = 0.0005  # between stamps of one instant on different nodes
    node_figures_s: float = 0.005  # beyond it, times of different nodes are not set side by side
    node_start_s: float = 0.001  # between T0 of different nodes, as far as their wall clocks prove it
    poisson_distance: float = 0.03  # KS distance from exponential gaps, where the recipe declares them
    poisson_scaled_distance: float = 1.76  # the same, scaled: exceeded by one Poisson process in 10,000
    warmup_difference: float = 0.20  # of the mean TTFT, between the beginning and the rest of the window
    trend_difference: float = 0.20  # of the mean TTFT, between the first and the last quarter
    overload_growth: float = 1.5  # requests in flight, late against early in the window
    overload_completed: float = 0.97  # of what was offered meanwhile, completed

    def __post_init__(self) -> None:
        """Refuse what is no limit. Raises InputError naming the key."""
        for name, value in msgspec.structs.asdict(self).items():
            if not value >= 0:
                raise InputError(f"limits.{name}: expected 0 or more, or inf for no limit, found {value}")
            other = getattr(self, _find_second(name), None)
            if other is not None and (value < other if name == "punctual_share" else value > other):
                raise InputError(
                    f"limits.{name}: {value:g} is beyond its second limit {_find_second(name)} = {other:g}"
                )
        if not 0 < self.punctual_window_s < math.inf:
            raise InputError(f"limits.punctual_window_s: expected a length in seconds, found {self.punctual_window_s}")

    @property
    def changed(self) -> dict[str, float]:
        """The limits that are not the defaults."""
        default = msgspec.structs.asdict(Limits())
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value != default[name]}


def _find_second(name: str) -> str:
    return f"{name[:-2]}_invalid_s" if name.endswith("_s") else f"{name}_invalid"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check measured, beside the limit that it was held against; both as text with units."""

    status: Status
    measured: str
    limit: str


def grade(value: float, limit: float, invalid: float = math.inf) -> Status:
    """Return ok up to *limit*, suspect up to *invalid*, else invalid; nan is unknown."""
    if math.isnan(value):
        return "unknown"
    return "ok" if value <= limit else "suspect" if value <= invalid else "invalid"


def worst(*statuses: Status) -> Status:
    """Return the worst of the statuses: invalid, suspect, unknown, ok."""
    return max(statuses, key=("ok", "unknown", "suspect", "invalid").index)


def weigh(
    value: float,
    limit: float,
    invalid: float = math.inf,
    *,
    show: Callable[[float], str] = format_duration,
    about: str = "",
) -> Finding:
    """Return the finding of *value* against its limits, printed by *show* and followed by *about*."""
    measured = "not available" if math.isnan(value) else f"{show(value)} {about}".rstrip()
    bound = "none" if limit == 0 else f"at most {show(limit)}"
    if not math.isinf(invalid):
        bound += f"; invalid above {show(invalid)}"
    return Finding(grade(value, limit, invalid), measured, bound)


def weigh_quantile(values: NDArray[Any], q: float, limit: float, invalid: float = math.inf) -> Finding:
    """Return the finding of a quantile of seconds, or of nanoseconds where the values are integers.

    Below the quantile's sample floor the maximum must keep *limit*, and the run is invalid only if more
    than a share of 1 - q of the values, and more than one, exceed *invalid*: a straggler is not a p99.
    """
    if len(values) == 0:
        return weigh(math.nan, limit, invalid)
    name, unit = f"p{q * 100:g}", NS_PER_S if values.dtype.kind in "iu" else 1
    exact = stats.quantile(values, q, unit=unit)
    if exact is not None:
        found = weigh(exact, limit, invalid)
        return Finding(found.status, f"{name} {found.measured}", f"{name} {found.limit}")
    largest = float(values.max()) / unit
    found = weigh(largest, limit, invalid, about=f"of only {len(values):,}")
    broken = np.count_nonzero(values > invalid * unit) > max(1.0, (1 - q) * len(values))
    status: Status = "invalid" if broken else grade(largest, limit)
    return Finding(status, f"max {found.measured}", f"{name} {found.limit}")


def show_share(value: float) -> str:
    """Return a share as a percentage with three significant digits."""
    return f"{round(value * 100, 4):.3g} %"


def show_number(value: float | None) -> str:
    """Return a plain number with three significant digits, four decimals at most; "n/a" for None."""
    return "n/a" if value is None else f"{round(value, 4):.3g}"

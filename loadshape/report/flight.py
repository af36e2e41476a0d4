# What was under way, seen from both ends of the wire, on one clock.
#
# Law: above, requests that the client had begun and that were not yet done, and what the server said of its running and
# waiting ones at the same instants (series.py); below, the shares that it told: of its KV cache, of its GPUs. What
# nobody watched has no panel. A sample of the server's is drawn where it was taken, and nothing is shifted to fit:
# the client's count holds what is on the wire, so it stands a little above the server's.
#
# Names in the legend are ours, for a server's labels are foreign text.

"""The figure of requests in flight, with the server's queue and cache aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadshape import metrics
from loadshape.report.crowd import BINS
from loadshape.report.figure import QUARTERS, Figure, Mark, draw_line, style_line
from loadshape.series import Series
from loadshape.server import list_series
from loadshape.stats import Floats, Integers
from loadshape.summary import Summary

_QUEUES = {"num_requests_running": ("server: running", "--good"), "num_requests_waiting": ("server: waiting", "--bad")}
_SHARES = {
    "kv_cache_usage_perc": ("KV cache in use", "--ok"),
    "gpu_cache_usage_perc": ("KV cache in use", "--ok"),
    "gpu_utilization": ("GPU busy", "--warn"),
}
_DASHES = ("solid", "dot", "dash", "dashdot")  # of targets
_SAMPLES = 2 * BINS  # of one series that are drawn


def draw_flight(summary: Summary, shapes: Sequence[dict[str, Any]] = ()) -> Figure:
    """Return the figure; without data for a run in which nothing was done. *shapes* lie behind all panels."""
    requests = summary.log.requests
    begun_s, done_s = (metrics.read_stamp_s(requests, of) for of in ("begun", "done"))
    end_s = max(float(np.fmax.reduce(times, initial=0.0)) for times in (begun_s, done_s))
    if end_s <= 0:
        return Figure("In flight", "", [], {})
    fine = np.linspace(0, end_s, _SAMPLES)
    series = list_series(summary.log)
    queues, shares = _draw_series(series, _QUEUES, "y"), _draw_series(series, _SHARES, "y2")
    data = [draw_line(fine, _count_held(begun_s, done_s, fine), "in flight", style_line("--ink")), *queues, *shares]
    told = ", beside what the server said of its running and waiting ones" if queues else ""
    caption = f"Requests begun and not yet done, as the client saw them{told}."
    layout: dict[str, Any] = {
        "height": 520 if shares else 300,
        "showlegend": bool(queues or shares),
        "xaxis": {"title": {"text": "time (s)"}, "anchor": "y2" if shares else "y", "range": [0, end_s]},
        "yaxis": {"title": {"text": "requests"}, "rangemode": "tozero", "domain": [0.45, 1] if shares else [0, 1]},
        "shapes": list(shapes),
    }
    if shares:
        layout["yaxis2"] = {"title": {"text": "share"}, "domain": [0, 0.35], "range": [0, 1.04]} | QUARTERS
    return Figure("In flight and in the server's queue" if queues else "In flight", caption, data, layout)


def _draw_series(series: Sequence[Series], shown: dict[str, tuple[str, str]], axis: str) -> list[Mark]:
    several = len({it.target for it in series if it.target is not None}) > 1
    marks = []
    for it in series:
        label, color = shown.get(it.name.rpartition(":")[2], ("", ""))
        if label:
            target = it.target or 0
            every = 1 + len(it) // _SAMPLES
            name = f"{label}, target {target}" if several and it.target is not None else label
            style = style_line(color, _DASHES[target % len(_DASHES)], axis)
            marks.append(draw_line(it.at_s[::every], it.values[::every], name, style))
    return marks


def _count_held(begun_s: Floats, done_s: Floats, at_s: Floats) -> Integers:
    starts, ends = (np.sort(times[~np.isnan(times)]) for times in (begun_s, done_s))
    return np.searchsorted(starts, at_s, "right") - np.searchsorted(ends, at_s, "right")

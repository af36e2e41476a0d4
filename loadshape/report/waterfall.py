# A few requests from due to done, one bar each, to be zoomed into.
#
# Law: a sample, and chosen without luck: every outcome that failed gives at most FEW requests, spread over the run;
# the rest are requests that ended ok at even ranks of their E2E, the fastest and the slowest among them. So what is
# rare is seen, and the picture says nothing of how often it is: the other figures do.
#
# Bars begin at the request's own due instant, where phases can be compared, or stand where they were in the run; a
# button changes from one to the other. Phases are those of metrics.py: what the generator added before the first
# byte left, what the server took to its first token, and the stream.

"""The waterfall: a sample of requests, phase by phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from loadshape import metrics
from loadshape.log import OUTCOMES
from loadshape.report.figure import Figure, Mark
from loadshape.stats import Floats, Integers

SAMPLE = 40  # requests in all
FEW = 3  # of one outcome that failed
_PHASES = {  # name: (from, to, colour)
    "until sent": ("due", "sent", "--warn"),
    "to the first token": ("sent", "first_token", "--ok"),
    "to the last token": ("first_token", "last_token", "--good"),
}


def draw_waterfall(requests: pa.Table) -> Figure:
    """Return the figure; without data where no request was begun."""
    chosen = choose_sample(requests)
    sample = requests.take(pa.array(chosen))
    ok, due_s = metrics.is_outcome(sample, "ok"), metrics.read_stamp_s(sample, "due")
    spans = {name: (*_span(sample, start, end, ok), color) for name, (start, end, color) in _PHASES.items()}
    spans["until it failed"] = (*_span(sample, "due", "done", ~ok), "--bad")
    data = [_draw_phase(sample, name, *span) for name, span in spans.items() if (span[1] > 0).any()]
    from_due = [mark["base"] for mark in data]
    in_run = [[_round(base + due) for base, due in zip(mark["base"], due_s, strict=True)] for mark in data]
    layout = {
        "height": 200 + 15 * len(chosen),
        "barmode": "overlay",
        "bargap": 0.25,
        "xaxis": {"title": {"text": "time since due (s)", "standoff": 6}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "request"}, "type": "category", "autorange": "reversed", "tickfont": {"size": 10}},
        "updatemenus": [_make_switch(from_due, in_run)],
    }
    caption = (
        f"{len(chosen)} of {requests.num_rows:,} requests in the order of time: up to {FEW} of every outcome that "
        "failed, the others at even ranks of their E2E from the fastest to the slowest. Drag to zoom, double-click to "
        "see all again."
    )
    return Figure("Requests, phase by phase", caption, data, layout)


def choose_sample(requests: pa.Table) -> Integers:
    """Return the rows of at most SAMPLE requests that were begun, in the order in which they were due."""
    due_s = metrics.read_stamp_s(requests, "due")
    begun = ~np.isnan(metrics.read_stamp_s(requests, "begun")) & ~np.isnan(due_s)
    rows: list[int] = []
    for name in OUTCOMES[1:]:
        failed = np.flatnonzero(begun & metrics.is_outcome(requests, name))
        rows += _spread(failed[np.argsort(due_s[failed], kind="stable")], FEW)
    e2e_s = metrics.measure(requests, "e2e")
    ended = np.flatnonzero(begun & ~np.isnan(e2e_s))
    rows += _spread(ended[np.argsort(e2e_s[ended], kind="stable")], max(0, SAMPLE - len(rows)))
    chosen = np.array(sorted(rows), np.int64)
    return chosen[np.argsort(due_s[chosen], kind="stable")]


def _spread(rows: Integers, count: int) -> list[int]:
    """Return *count* of the rows at even distances, the first and the last among them."""
    places = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))
    return [int(row) for row in rows[places]]


def _span(sample: pa.Table, start: str, end: str, kept: metrics.Mask) -> tuple[Floats, Floats]:
    """Where a phase begins after due, and how long it lasts; 0 for a request that has none of it."""
    base = np.where(kept, metrics.measure_span(sample, "due", start), np.nan)
    length = np.where(kept, metrics.measure_span(sample, start, end), np.nan)
    return np.nan_to_num(base), np.nan_to_num(length)


def _draw_phase(sample: pa.Table, name: str, base_s: Floats, length_s: Floats, color: str) -> Mark:
    numbers, outcomes = metrics.read_column(sample, "request").tolist(), sample["outcome"].cast(pa.string()).to_pylist()
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [str(number) for number in numbers],
        "x": [_round(value) for value in length_s],
        "base": [_round(value) for value in base_s],
        "customdata": outcomes,
        "marker": {"color": color, "line": {"width": 0}},
        "hovertemplate": f"request %{{y}}, %{{customdata}}<br>{name}: %{{x:.3s}}s<extra></extra>",
    }


def _make_switch(from_due: list[list[float]], in_run: list[list[float]]) -> dict[str, Any]:
    views = (("since due", from_due, "time since due (s)"), ("in the run", in_run, "time of the run (s)"))
    buttons = [
        {
            "label": label,
            "method": "update",
            "args": [{"base": bases}, {"xaxis.title.text": title, "xaxis.autorange": True}],
        }
        for label, bases, title in views
    ]
    place = {"type": "buttons", "direction": "right", "x": 0, "xanchor": "left", "y": 0, "yanchor": "top"}
    looks = {"bgcolor": "--panel", "bordercolor": "--rule", "font": {"size": 12}, "pad": {"t": 56}, "showactive": False}
    return place | looks | {"buttons": buttons}


def _round(value: float) -> float:
    return round(float(value), 6)

# What a replay looks like from the outside while it runs.
#
# Law: for people, never for reports. It runs in the coordinator, which no request passes through, looks at what the
# workers say ten times a second, and draws four times a second at most. Percentiles are those of histograms that
# add up (histogram.py) and of a sample of the reads; what counts is in the log, and the report is made of that.
#
#     Moment     what is known at one instant, as numbers
#     LiveView   the moments of the last second, and the picture drawn of them
#
# "Offered" is what fell due by the clock of the trace; it is unknown where the server's answers decide when the
# next request is due. On a terminal there is a panel; elsewhere plain lines (progress.py); with `--json`, nothing.

"""LiveView: rates, latencies, outcomes and lateness of a replay under way, as a panel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadshape.histogram import Histogram
from loadshape.progress import Teller
from loadshape.replayer.job import Progress, Settings
from loadshape.replayer.terms import choose_loop, plan_duration_s
from loadshape.stats import Integers
from loadshape.trace import Trace
from loadshape.units import NS_PER_S, format_duration, format_rate

RECENT_S = 1.0
Watch = Callable[[Progress, float], None]


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known of a run `at_s` seconds after its start; `offered` is None where the trace does not say it."""

    at_s: float
    offered: int | None
    progress: Progress

    def rates_hz(self, before: Moment) -> tuple[float | None, float | None]:
        """Return the offered and the achieved rate since an earlier moment; None where there was no time."""
        length_s = self.at_s - before.at_s
        if length_s <= 0:
            return None, None
        offered = None if self.offered is None or before.offered is None else self.offered - before.offered
        return None if offered is None else offered / length_s, (self.progress.begun - before.progress.begun) / length_s


START = Moment(0.0, 0, Progress(begun=0, ended=0, failed=0, in_flight=0, reads=0, late_ns=0))


class LiveView:
    """The picture of one replay; `update` is what `replay(watch=...)` calls."""

    def __init__(self, planned: int, duration_s: float, due_ns: Integers | None = None) -> None:
        self.worst_late_ns = 0
        self._planned = planned
        self._duration_s = duration_s
        self._due_ns = None if due_ns is None else np.sort(due_ns)
        self._moments: deque[Moment] = deque([START])

    @classmethod
    def of(cls, trace: Trace, settings: Settings) -> LiveView:
        """Return the view of a replay of *trace*."""
        played = trace.requests.slice(0, settings.requests)
        by_clock = played["due_ns"].null_count == 0 and choose_loop(trace, settings).mode != "closed"
        due_ns = played["due_ns"].to_numpy() if by_clock else None
        return cls(played.num_rows, plan_duration_s(trace, settings), due_ns)

    @property
    def now(self) -> Moment:
        """The last moment."""
        return self._moments[-1]

    @property
    def recently(self) -> Moment:
        """The moment a second ago, or the start."""
        return self._moments[0]

    def update(self, progress: Progress, elapsed_s: float) -> None:
        """Note what the workers say."""
        if elapsed_s < 0:
            return
        offered = None
        if self._due_ns is not None:
            until_s = min(elapsed_s, self._duration_s or elapsed_s)  # a run that was cut there offers no more
            offered = int(np.searchsorted(self._due_ns, until_s * NS_PER_S, "right"))
        self.worst_late_ns = max(self.worst_late_ns, progress.late_ns)
        self._moments.append(Moment(elapsed_s, offered, progress))
        while len(self._moments) > 2 and self._moments[1].at_s <= elapsed_s - RECENT_S:
            self._moments.popleft()

    def estimate_rest_s(self) -> float | None:
        """Return how long requests will still be begun: by the plan, or at the rate so far; None if unknown."""
        now = self.now
        if self._duration_s > 0:
            return max(0.0, self._duration_s - now.at_s)
        rate_hz = now.rates_hz(START)[1]
        return (self._planned - now.progress.begun) / rate_hz if rate_hz else None

    def __rich__(self) -> RenderableType:
        done = self.now.progress.begun
        head = Table.grid(padding=(0, 2))
        head.add_row(ProgressBar(total=max(self._planned, 1), completed=done, width=40), Text(self._describe_rest()))
        parts: list[RenderableType] = [head, Text(self.describe_requests()), Text(self.describe_outcomes()), Text("")]
        return Panel(Group(*parts, _draw_table(self.list_rows())), title="replay", title_align="left", expand=False)

    def describe_requests(self) -> str:
        """Return how many requests were begun and are in flight."""
        progress = self.now.progress
        return f"{progress.begun:,} of {self._planned:,} begun, {progress.in_flight:,} in flight"

    def describe_outcomes(self) -> str:
        """Return how many ended how, the most frequent first."""
        counts = sorted(self.now.progress.outcomes.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{name} {count:,}" for name, count in counts) or "none has ended"

    def list_rows(self) -> list[tuple[str, str, str]]:
        """Return (label, of the last second, of the whole run) for rates, latencies and lateness."""
        now, recently = self.now, self.recently
        recent_hz, whole_hz = now.rates_hz(recently), now.rates_hz(START)
        rows = [
            (name, format_rate(recent), format_rate(whole))
            for name, recent, whole in zip(("offered", "achieved"), recent_hz, whole_hz, strict=True)
        ]
        for name, label in (("ttft", "TTFT p50, p99"), ("gaps", "ITL p50, p99"), ("lateness", "lateness p50, p99")):
            whole_seen = Histogram(getattr(now.progress, name))
            recent_seen = whole_seen.since(Histogram(getattr(recently.progress, name)))
            rows.append((label, _show_quantiles(recent_seen), _show_quantiles(whole_seen)))
        latest, worst = (format_duration(it / NS_PER_S) for it in (now.progress.late_ns, self.worst_late_ns))
        return [*rows, ("latest", latest, worst)]

    def _describe_rest(self) -> str:
        rest_s = self.estimate_rest_s()
        if rest_s is None:
            return format_duration(self.now.at_s)
        if rest_s == 0:
            return f"{format_duration(self.now.at_s)}, waiting for the last answers"
        return f"{format_duration(self.now.at_s)}, {format_duration(rest_s)} to go"


@contextmanager
def watch_replay(teller: Teller, trace: Trace, settings: Settings) -> Iterator[Watch]:
    """Give what `replay(watch=...)` is to call: it draws a panel on a terminal, and tells plain lines elsewhere."""
    view = LiveView.of(trace, settings)
    if teller.is_live:
        with teller.draw(view) as refresh:

            def look(progress: Progress, elapsed_s: float) -> None:
                view.update(progress, elapsed_s)
                refresh()

            yield look
        return
    with teller.task("replay", plan_duration_s(trace, settings)) as task:

        def tell(progress: Progress, elapsed_s: float) -> None:
            task.update(max(0.0, elapsed_s), progress.tell(trace.requests.num_rows))

        yield tell


def _show_quantiles(seen: Histogram) -> str:
    return f"{format_duration(seen.quantile(0.5))}, {format_duration(seen.quantile(0.99))}"


def _draw_table(rows: list[tuple[str, str, str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("last second", "whole run"):
        table.add_column(name, justify="right", min_width=18)
    for row in rows:
        table.add_row(*row)
    return table

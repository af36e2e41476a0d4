# The picture of a replay: its numbers first, then that it is drawn, and not too often.

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from loadshape import progress as progress_module
from loadshape.histogram import Histogram
from loadshape.live import LiveView, watch_replay
from loadshape.progress import Teller
from loadshape.replayer.crew import sum_progress
from loadshape.replayer.job import Progress, Settings, read_report, write_line
from loadshape.trace import Loop
from traces import ask, make_trace


def said(begun: int, *, gaps_ms: tuple[float, ...] = (), **more: Any) -> Progress:
    counts = {"begun": begun, "ended": 0, "failed": 0, "in_flight": 0, "reads": 0, "late_ns": 0} | more
    return Progress(**counts, gaps=histogram(*gaps_ms))


def histogram(*values_ms: float) -> dict[int, int]:
    seen = Histogram()
    for ms in values_ms:
        seen.add(round(ms * 1e6))
    return dict(seen.counts)


def ten_a_second(seconds: float = 10.0) -> LiveView:
    return LiveView(round(10 * seconds), seconds, np.arange(round(10 * seconds)) * 100_000_000)


def rows_of(view: LiveView) -> dict[str, tuple[str, str]]:
    return {label: (recent, whole) for label, recent, whole in view.list_rows()}


def test_rates_of_the_last_second_and_of_the_whole_run() -> None:
    view = ten_a_second()
    for tick in range(1, 41):
        at_s = tick / 10
        view.update(said(min(tick, 20)), at_s)  # nothing more is begun after 2 s
    assert view.recently.at_s == pytest.approx(3.0)
    assert rows_of(view)["offered"] == ("10.0/s", "10.2/s")  # those due at 0.0 and at 4.0 s are both in
    assert rows_of(view)["achieved"] == ("0/s", "5.00/s")


def test_no_more_is_offered_after_the_planned_end() -> None:
    view = ten_a_second(2.0)
    for at_s in (1.0, 2.0, 3.0, 4.0):
        view.update(said(20), at_s)
    assert view.now.offered == 20
    assert rows_of(view)["offered"][0] == "0/s"


def test_where_the_server_sets_the_pace_nothing_is_offered_by_a_clock() -> None:
    for trace in (
        make_trace(ask(None), ask(None), loop=Loop("closed", slots=1)),
        make_trace(ask(0, session=0), ask(None, session=0, turn=1), loop=Loop("partly_open")),
    ):
        view = LiveView.of(trace, Settings())
        view.update(said(1), 1.0)
        assert rows_of(view)["offered"] == ("n/a", "n/a")
    assert LiveView.of(make_trace(ask(0), ask(5)), Settings(slots=1)).estimate_rest_s() is None


def test_percentiles_of_the_last_second_are_those_of_what_came_since() -> None:
    view = ten_a_second()
    view.update(said(1, gaps_ms=(10, 10, 10)), 1.0)
    view.update(said(2, gaps_ms=(10, 10, 10, 80, 80)), 2.0)
    recent, whole = rows_of(view)["ITL p50, p99"]
    assert (recent[:2], whole[:2]) == ("81", "10")  # a bucket's middle
    assert rows_of(view)["TTFT p50, p99"] == ("n/a, n/a", "n/a, n/a")


def test_the_worst_lateness_is_kept() -> None:
    view = ten_a_second()
    for at_s, late_ns in ((1.0, 5_000_000), (2.0, 20_000)):
        view.update(said(1, late_ns=late_ns), at_s)
    assert rows_of(view)["latest"] == ("20.0 us", "5.00 ms")


@pytest.mark.parametrize(
    ("duration_s", "begun", "at_s", "rest_s"), [(10.0, 10, 4.0, 6.0), (10.0, 100, 12.0, 0.0), (0.0, 25, 5.0, 15.0)]
)
def test_how_long_it_will_still_take(duration_s: float, begun: int, at_s: float, rest_s: float) -> None:
    view = LiveView(100, duration_s)
    view.update(said(begun), at_s)
    assert view.estimate_rest_s() == pytest.approx(rest_s)


def test_before_the_start_there_is_nothing_to_tell() -> None:
    view = ten_a_second()
    view.update(said(0), -0.4)
    assert view.now.at_s == 0.0
    assert view.estimate_rest_s() == 10.0


def test_the_panel_says_it_all() -> None:
    view = ten_a_second()
    view.update(said(40, in_flight=7, outcomes={"http_error": 2, "ok": 31}, gaps_ms=(12, 12)), 4.0)
    console = Console(file=io.StringIO(), width=100)
    console.print(view)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("40 of 100 begun, 7 in flight", "ok 31, http_error 2", "6.00 s to go", "last second", "whole run"):
        assert text in shown


def test_progress_adds_up_over_workers_and_survives_the_pipe() -> None:
    one = said(3, gaps_ms=(10, 10), outcomes={"ok": 2}, lateness={100: 1})
    two = said(4, gaps_ms=(10, 99), outcomes={"ok": 1, "reset": 1}, lateness={100: 2, 120: 1})
    heard = {0: read_report(write_line(one)), 1: read_report(write_line(two))}
    total = sum_progress(heard)  # type: ignore[arg-type]
    assert total.outcomes == {"ok": 3, "reset": 1}
    assert total.gaps == histogram(10, 10, 10, 99)
    assert total.lateness == {100: 3, 120: 1}


class Terminal(Teller):
    """A teller on a terminal that is a string."""

    def __init__(self) -> None:
        self.shown = io.StringIO()
        self._console = Console(file=self.shown, force_terminal=True, width=100)


def test_on_a_terminal_it_is_drawn_four_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(np.arange(1000) * 0.02)
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: float(next(seconds)))
    teller, draws = Terminal(), 0
    with watch_replay(teller, make_trace(ask(0), ask(5)), Settings()) as watch:
        before = teller.shown.tell()
        for tick in range(50):  # 0.02 s apart, or twice that where it was drawn: 1 to 2 s
            watch(said(1), tick * 0.02)
            draws += teller.shown.tell() != before
            before = teller.shown.tell()
    assert 3 <= draws <= 8


def test_elsewhere_there_are_plain_lines_and_quiet_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for quiet, expected in ((False, "  replay: 1 of 2 sent, 1 in flight\n"), (True, "")):
        seconds = iter(np.arange(100) * 6.0)
        monkeypatch.setattr(progress_module.time, "monotonic", lambda it=seconds: float(next(it)))
        with watch_replay(Teller(quiet=quiet), make_trace(ask(0), ask(5)), Settings()) as watch:
            watch(said(1, in_flight=1), 0.1)
        out, err = capsys.readouterr()
        assert (out, err) == ("", expected)

# What a person sees while something takes long.
#
# Law: progress goes to standard error and never into a result. On a terminal it is one live line a task, or
# one picture; elsewhere it is a plain line every few seconds, so that a build log stays readable. Nothing here is
# called from a hot path, and nothing is drawn more than four times a second.

"""Teller: steps and progress, live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType, RichCast
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from loadshape.units import format_duration

PLAIN_EVERY_S = 5.0
DRAW_EVERY_S = 0.25


class Teller:
    """Tells steps and progress on standard error; tells nothing when `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False)

    def say(self, text: str) -> None:
        """Tell one line."""
        self._console.print(text, markup=False, soft_wrap=True)

    @property
    def is_live(self) -> bool:
        """Whether somebody looks on: a terminal that may be drawn on."""
        return self._console.is_terminal and not self._console.quiet

    @contextmanager
    def draw(self, picture: RenderableType | RichCast) -> Iterator[Callable[[], None]]:
        """Show a picture while the block runs; give what to call when it has changed, however often that is."""
        drawn_s = time.monotonic()
        with Live(picture, console=self._console, auto_refresh=False, transient=True) as live:

            def refresh() -> None:
                nonlocal drawn_s
                if time.monotonic() - drawn_s >= DRAW_EVERY_S:
                    drawn_s = time.monotonic()
                    live.refresh()

            yield refresh

    @contextmanager
    def task(self, title: str, total: float | None = None) -> Iterator[Task]:
        """Tell how a task gets on, while the block runs."""
        if self.is_live:
            columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), BarColumn()]
            columns += [TextColumn("{task.fields[note]}"), TimeElapsedColumn()]
            columns += [TimeRemainingColumn()] if total else []
            with Progress(*columns, console=self._console, transient=True) as live:
                yield Task(title, live=live, number=live.add_task(title, total=total, note=""))
        else:
            yield Task(title, console=self._console, total=total)


class Task:
    """One task in progress."""

    def __init__(
        self,
        title: str,
        *,
        live: Progress | None = None,
        number: int = 0,
        console: Console | None = None,
        total: float | None = None,
    ) -> None:
        self._title = title
        self._live = live
        self._number = TaskID(number)
        self._console = console
        self._total = total
        self._told_s = time.monotonic()
        self._first: tuple[float, float] | None = None  # when the first part was done, and how much that was

    def update(self, done: float, note: str = "") -> None:
        """Say how much is done, and one more thing."""
        self._first = self._first or (time.monotonic(), done)  # what was there before says nothing about the pace
        if self._live is not None:
            self._live.update(self._number, completed=done, note=note)
        elif self._console is not None and time.monotonic() - self._told_s >= PLAIN_EVERY_S:
            self._told_s = time.monotonic()
            told = f"{note or f'{done:g}'}{self._estimate(done)}"
            self._console.print(f"  {self._title}: {told}", markup=False, soft_wrap=True)

    def _estimate(self, done: float) -> str:
        """Return how long it will take from now on, at the pace until now."""
        began_s, began = self._first or (0.0, done)
        if not self._total or not began < done < self._total:
            return ""
        left_s = (self._total - done) * (self._told_s - began_s) / (done - began)
        return f", about {format_duration(left_s)} left"

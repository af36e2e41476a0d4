# All that goes on beside the traffic of a run: servers and GPUs watched, a profiler started and stopped.
#
# Law: chosen once, from what the preflight found. A server is watched where it has metrics of vLLM, and this host where
# it has GPUs; without a preflight nothing is asked of a server but the traffic. Whatever goes wrong here is a note of
# the log and never the end of a run.

"""Observer: the scraper and the profiler of one run, as one thing that begins at T0."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from loadshape.observation import NAME
from loadshape.replayer.gpu import watch_gpus
from loadshape.replayer.job import Settings
from loadshape.replayer.profiler import Profiler
from loadshape.replayer.question import Facts
from loadshape.replayer.scrape import Scraper, Watched, watch_targets
from loadshape.target import Target


class Observer:
    """Looks on during the run whose log is at *log*. A context manager: the first look is before the block."""

    def __init__(self, log: Path, targets: Sequence[Target], settings: Settings, *, watched: Sequence[Watched]) -> None:
        self._scraper = Scraper(log / NAME, watched, settings.scrape_s)
        self._profiler = Profiler(targets, settings.profile)
        self._open = ExitStack()

    def __enter__(self) -> Observer:
        self._open.enter_context(self._scraper)
        self._open.enter_context(self._profiler)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def begin(self, epoch_ns: int) -> None:
        """Go on from T0, *epoch_ns* on CLOCK_MONOTONIC."""
        self._scraper.begin(epoch_ns)
        self._profiler.begin(epoch_ns)

    @property
    def notes(self) -> list[str]:
        """What a reader of the log should know of it, after the block."""
        return [*self._scraper.notes, *self._profiler.notes]


def choose_watched(
    targets: Sequence[Target], addresses: Sequence[Sequence[str]], servers: Sequence[Facts], settings: Settings
) -> list[Watched]:
    """Return what there is to watch, by what the *servers* said in the preflight; nothing where that did not happen."""
    if not settings.scrape_s or not servers:
        return []
    chosen = [number for number, facts in enumerate(servers) if facts.get("metrics")]
    return [*watch_targets(targets, addresses, chosen), *watch_gpus()]

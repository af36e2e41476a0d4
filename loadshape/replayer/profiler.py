# A window in which the server profiles itself.
#
# Law: a profiler changes what it looks at, so a run with one is another kind of run: it is marked in its notes and in
# its settings, and is not compared with an ordinary one. The window is planned like a request, on the clock of the run.
# A profiler that was started is stopped, whatever ends the run: one that goes on fills the server's disk.
#
# vLLM has /start_profile and /stop_profile where it was started with a profiler (--profiler-config), and answers
# /stop_profile only when the profile is written, which takes longer than the window itself.

"""Profiler: start and stop the profilers of the servers at planned instants of a run."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Sequence

from loadshape.errors import TargetError
from loadshape.replayer.job import Profile
from loadshape.replayer.question import ask_page, find_root
from loadshape.target import Target

START_S = 5.0
STOP_S = 120.0


class Profiler:
    """Profiles the servers of *targets* in a window of the run; does nothing without one. A context manager."""

    def __init__(self, targets: Sequence[Target], window: Profile | None) -> None:
        self._targets = targets
        self._window = window
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.notes: list[str] = []

    def __enter__(self) -> Profiler:
        return self

    def begin(self, epoch_ns: int) -> None:
        """Plan the window; *epoch_ns* is T0 on CLOCK_MONOTONIC."""
        if self._window is not None:
            self._thread = threading.Thread(target=self._profile, args=(epoch_ns, self._window), daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _profile(self, epoch_ns: int, window: Profile) -> None:
        start_ns = epoch_ns + round(window.after_s * 1e9)
        if self._over.wait(max(0, start_ns - time.monotonic_ns()) / 1e9):
            self.notes.append(f"profile: the run ended before its {window.after_s:g} s")
            return
        self._tell("/start_profile", epoch_ns, START_S)
        self._over.wait(window.for_s)
        self._tell("/stop_profile", epoch_ns, STOP_S)

    def _tell(self, path: str, epoch_ns: int, timeout_s: float) -> None:
        at_s = (time.monotonic_ns() - epoch_ns) / 1e9
        for number, target in enumerate(self._targets):
            try:
                page = ask_page(target, find_root(target) + path, method="POST", timeout_s=timeout_s)
                said = f"HTTP {page.status}"
            except (OSError, http.client.HTTPException, TargetError) as problem:
                said = str(problem) or type(problem).__name__
            self.notes.append(f"profile: {path} at {at_s:.1f} s, target {number}: {said}")

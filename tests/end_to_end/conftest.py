# What the end-to-end tests share: one endpoint for all of them, a way to run a program as a user would, and
# a look at the process list, since nobody may be left behind.

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadshape.endpoint import Script, running

TESTS = Path(__file__).parent.parent
PATIENCE_S = 60.0


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Serve the first token after 20 ms and the next every 2 ms, for all tests of this folder."""
    with running(Script(ttft_s=0.02, itl_s=0.002)) as address:
        yield address


Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a plain script, without a __main__ guard, in a process of its own; it does not outlive the test."""
    started = []

    def start(script: str, *, shell: str = "", env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        path = tmp_path / f"script{len(started)}.py"
        path.write_text(PRELUDE + textwrap.dedent(script))
        command = ["sh", "-c", f'{shell} exec "$0" "$1"', sys.executable, str(path)]
        environment = os.environ | {"PYTHONPATH": str(TESTS)} | (env or {})
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


PRELUDE = """\
from loadshape.errors import LoadshapeError
from loadshape.replayer import Settings, replay
from loadshape.target import Target
from traces import ask, closed_loop, make_trace, open_loop, partly_open
"""


def wait_for(holds: Callable[[], object], what: str) -> None:
    """Wait until *holds* is true, or fail."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what}"
        time.sleep(0.02)


def find_workers(log: Path) -> list[int]:
    """Return the worker processes that write into *log*, by the files that they hold open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [os.readlink(entry) for entry in (process / "fd").iterdir()]
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"loadshape.replayer.worker" in command and any(file.startswith(f"{log.resolve()}/") for file in files):
            found.append(int(process.name))
    return found


def has_begun(log: Path) -> bool:
    """Whether workers of *log* have written a first batch of requests."""
    return any(path.stat().st_size > 4000 for path in log.glob("worker-*/requests.arrows"))

# What the end-to-end tests share: one endpoint for all of them, a way to run a program as a user would, and
# a look at the process list, since nobody may be left behind.

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from loadshape.endpoint import Script, running
from loadshape.log import Log
from loadshape.replayer import Settings, replay
from loadshape.target import Target
from loadshape.trace import Trace

TESTS = Path(__file__).parent.parent
PATIENCE_S = 60.0
SLACK_NS = 100_000  # the kernel's stamps are translated from another clock


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


def salvage(path: Path) -> pa.Table | None:
    """Return the whole batches of an Arrow stream that may be cut anywhere, None before there is a schema."""
    batches: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(path) as stream:
            schema = stream.schema
            while True:
                batches.append(stream.read_next_batch())
    except (StopIteration, pa.ArrowInvalid, OSError):
        return pa.Table.from_batches(batches, schema) if batches else None


def has_rows(log: Path) -> bool:
    """Whether the first worker of *log* has written some of its requests."""
    return salvage(log / "worker-00" / "requests.arrows") is not None


def read_columns(table: pa.Table, *names: str) -> list[Any]:
    """Return one array a column, int64 with -1 for null."""
    return [np.asarray(pc.fill_null(pc.cast(table[name], "int64"), -1)) for name in names]


def play(trace: Trace, target: Target, log: Path, *, processes: int = 1, **settings: Any) -> Log:
    """Replay, and check what every log must keep."""
    played = replay(trace, target, log=log, processes=processes, settings=Settings(**settings))
    check_books(played)
    return played


def check_books(log: Log) -> None:
    """Check that every planned request is accounted for, none was early, and no stamp goes back."""
    log.verify()
    assert sum(log.manifest.outcomes.values()) == log.run.planned == log.requests.num_rows
    steps = ("due_ns", "begun_ns", "connected_ns", "sent_ns", "written_ns")
    answer = ("sent_ns", "first_byte_ns", "head_ns", "first_token_ns", "last_token_ns", "done_ns")
    for names, slack_ns in ((steps, 0), (answer, SLACK_NS)):
        for row in zip(*read_columns(log.requests, *names), strict=True):
            known = [stamp for stamp in row if stamp >= 0]
            assert all(later >= earlier - slack_ns for earlier, later in pairwise(known)), (names, row)
    request, bytes_in, at_ns, seen_ns = read_columns(log.reads, "request", "bytes", "at_ns", "seen_ns")
    reads, received = read_columns(log.requests, "reads", "bytes_in")
    assert np.array_equal(np.bincount(request, minlength=len(reads)), reads)
    assert np.array_equal(np.bincount(request, bytes_in, minlength=len(reads)).astype(np.int64), received)
    assert (at_ns <= seen_ns + SLACK_NS).all()
    assert (np.diff(at_ns)[np.diff(request) == 0] >= -SLACK_NS).all()
    assert not list(log.path.glob("worker-*/stderr.txt"))

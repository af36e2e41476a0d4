# A run that is looked at from every side while it goes on: by a caller, by a dashboard, and by a probe. What they
# see must be what the log says in the end.

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from loadshape.cli import app
from loadshape.histogram import Histogram
from loadshape.replayer import Settings, replay
from loadshape.replayer.job import Progress
from loadshape.target import Target
from loadshape.validity import judge
from traces import open_loop

pytestmark = pytest.mark.slow
REQUESTS, GAP_MS = 404, 4


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def scrape(port: int, pages: list[str], is_over: threading.Event) -> None:
    """Ask for the page ten times a second, from another thread, as long as there is one."""
    while not is_over.wait(0.1):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                pages.append(page.read().decode())
        except OSError:
            if pages:
                return


def test_a_run_looks_the_same_from_every_side(url: str, tmp_path: Path) -> None:
    port, is_over = find_port(), threading.Event()
    pages: list[str] = []
    said: list[tuple[float, Progress]] = []
    dashboard = threading.Thread(target=scrape, args=(port, pages, is_over))
    dashboard.start()
    try:
        log = replay(
            open_loop(REQUESTS, GAP_MS, output_tokens=8),
            Target(url),
            log=tmp_path / "a.log",
            settings=Settings(processes=2, probe_share=0.01, prometheus_port=port),
            watch=lambda progress, elapsed_s: said.append((elapsed_s, progress)),
        )
    finally:
        is_over.set()
        dashboard.join()

    worker = np.asarray(log.requests["worker"])
    assert np.bincount(worker).tolist() == [200, 200, 4]
    assert sorted(part.name for part in (tmp_path / "a.log").glob("worker-*")) == [f"worker-{n:02d}" for n in range(3)]
    assert {it.name for it in judge(log).checks} >= {"probe against load", "arrivals as planned"}

    last = [progress for _, progress in said][-1]
    assert 0 < last.begun <= REQUESTS
    assert sum(last.outcomes.values()) == last.ended
    assert len(Histogram(last.ttft)) >= last.outcomes["ok"]
    assert Histogram(last.ttft).quantile(0.5) == pytest.approx(
        float(np.median(np.asarray(log.requests["first_token_ns"]) - np.asarray(log.requests["due_ns"]))) / 1e9,
        rel=0.25,
    )
    begun = [progress.begun for _, progress in said]
    assert begun == sorted(begun)

    assert any("gen_ai_client_operation_time_to_first_chunk_seconds_count" in page for page in pages)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_limits_come_from_a_file_and_are_recorded(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, run, log = (str(tmp_path / name) for name in ("a.trace", "run.toml", "a.log"))
    open_loop(30, 5).write(trace)
    Path(run).write_text("[replay]\nprocesses = 1\n\n[limits]\ncpu = 0.95\nlateness_p99_invalid_s = inf\n")
    app(["replay", trace, "--target", url, "-o", log, "--run", run, "--json"])
    replayed = json.loads(capsys.readouterr().out)["verdict"]
    app(["report", log, "--limits", run, "--json"])
    reported = json.loads(capsys.readouterr().out)["verdict"]
    assert replayed == reported
    assert (reported["limits"]["cpu"], reported["limits"]["lateness_p99_invalid_s"]) == (0.95, "inf")
    assert reported["limits_changed"] == ["cpu", "lateness_p99_invalid_s"]
    app(["report", log])
    assert "of the verdict, not the default ones" not in capsys.readouterr().out


def test_a_callers_mistake_in_watching_ends_the_run_and_the_port(url: str, tmp_path: Path) -> None:
    port = find_port()

    def stumble(_progress: Progress, elapsed_s: float) -> None:
        if elapsed_s > 0:
            raise KeyError("mine")

    started_s = time.monotonic()
    with pytest.raises(KeyError, match="mine"):
        replay(
            open_loop(500, 20),
            Target(url),
            log=tmp_path / "a.log",
            settings=Settings(processes=1, prometheus_port=port),
            watch=stumble,
        )
    assert time.monotonic() - started_s < 60
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)

# Looking on during a run: what is sampled when, what becomes of a server that does not answer, GPUs from a program that
# stands in for nvidia-smi, and a profiler that is stopped whatever happens.

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from loadshape.errors import InputError
from loadshape.observation import NAME, SAMPLES, read_samples
from loadshape.recovery import salvage_stream
from loadshape.replayer.gpu import parse_gpus, watch_gpus
from loadshape.replayer.job import Profile, Settings
from loadshape.replayer.profiler import Profiler
from loadshape.replayer.samples import Sample
from loadshape.replayer.scrape import Scraper, Watched, watch_targets
from loadshape.target import Target

SMI = """#!/bin/sh
case "$1" in
  *clocks_event_reasons*) echo "Field is not a valid field to query." >&2; exit 2 ;;
esac
echo "0, 97, 71234, 81559, 612.50, 1755, 61, 0x0000000000000004"
echo "1, [N/A], 100, 81559, [N/A], 1980, 40, 0x0000000000000001"
"""


class Page(BaseHTTPRequestHandler):
    """Answers with vLLM's names, echoes the key that it was given, and remembers what was asked."""

    asked: ClassVar[list[tuple[str, str]]] = []
    status = 200

    def do_GET(self) -> None:
        self.answer(f'vllm:num_requests_running{{key="{self.headers["Authorization"]}"}} 3\nother_metric 4\n')

    def do_POST(self) -> None:
        self.answer("")

    def answer(self, text: str) -> None:
        self.asked.append((self.command, self.path))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Page, "asked", [])
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/team/v1"
        server.shutdown()
        thread.join()


def counting() -> Watched:
    values = iter(range(10_000))
    return Watched(3, lambda: [Sample("n", {"b": "1", "a": "2"}, float(next(values)))])


def wait_until(count: Sequence[object], size: int) -> None:
    deadline = time.monotonic() + 20
    while len(count) < size:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_samples_are_from_before_t0_to_after_the_end(tmp_path: Path) -> None:
    taken: list[float] = []

    def take() -> Iterable[Sample]:
        taken.append(time.monotonic_ns())
        return [Sample("n", {"b": "1", "a": "2"}, float(len(taken)))]

    with Scraper(tmp_path / NAME, [Watched(3, take)], 0.02) as scraper:
        assert len(taken) == 1
        epoch_ns = time.monotonic_ns()
        scraper.begin(epoch_ns)
        wait_until(taken, 4)
        over_ns = time.monotonic_ns()
    rows = read_samples(tmp_path)
    at_ns, width_ns = (np.asarray(rows[name]) for name in ("at_ns", "width_ns"))
    assert rows["value"].to_pylist() == list(range(1, len(taken) + 1))
    assert set(rows["labels"].to_pylist()) == {'{"a":"2","b":"1"}'}
    assert set(rows["target"].to_pylist()) == {3}
    assert at_ns[0] < 0 <= at_ns[1] - width_ns[1]
    assert (np.abs(at_ns - (np.array(taken) - epoch_ns)) <= width_ns).all()
    assert at_ns[-1] >= over_ns - epoch_ns - width_ns[-1]
    assert (at_ns[:-1] + width_ns[:-1] // 2 <= at_ns[1:] - width_ns[1:] // 2 + 1).all()  # one after another
    assert scraper.notes == []


def test_one_that_fails_is_told_and_the_other_is_sampled(tmp_path: Path) -> None:
    calls: list[float] = []

    def fail() -> Iterable[Sample]:
        calls.append(0.0)
        raise TimeoutError("timed out")

    with Scraper(tmp_path / NAME, [Watched(0, fail), counting()], 0.01) as scraper:
        scraper.begin(time.monotonic_ns())
        wait_until(calls, 3)
    assert scraper.notes == [f"{len(calls)} of {len(calls)} samples of the server of target 0 are missing: timed out"]
    assert read_samples(tmp_path).num_rows >= 2


def test_without_anything_to_watch_there_is_no_file(tmp_path: Path) -> None:
    with Scraper(tmp_path / NAME, [], 1.0) as scraper:
        scraper.begin(time.monotonic_ns())
    assert list(tmp_path.iterdir()) == []
    assert read_samples(tmp_path).num_rows == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_is_a_note_and_never_the_end_of_a_run() -> None:
    with Scraper(Path("/dev/full"), [counting()], 0.01) as scraper:
        scraper.begin(time.monotonic_ns())
        time.sleep(0.05)
    assert scraper.notes == ["full: cannot be written: No space left on device; later samples are missing"]


def test_a_run_that_is_killed_keeps_what_was_written(tmp_path: Path) -> None:
    taken: list[float] = []
    scraper = Scraper(tmp_path / NAME, [Watched(0, lambda: taken.append(0.0) or [Sample("n", {}, 1.0)])], 0.01)
    with scraper:
        scraper.begin(time.monotonic_ns())
        wait_until(taken, 3)
        torn = (tmp_path / NAME).read_bytes()[:-5]
    (tmp_path / NAME).write_bytes(torn)
    remains = salvage_stream(tmp_path / NAME, SAMPLES)
    assert remains.table.num_rows >= 1
    assert remains.state == "cut"


def test_a_page_is_asked_for_beside_the_api_and_a_key_is_hidden(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", "planted-key-7f3a9c")
    target = Target(served, key="env:PLANTED")
    (watched,) = watch_targets([target], [["127.0.0.1"]], [0])
    with Scraper(tmp_path / NAME, [watched], 60.0) as scraper:
        scraper.begin(time.monotonic_ns())
    rows = read_samples(tmp_path).to_pylist()
    assert {row["name"] for row in rows} == {"vllm:num_requests_running"}
    assert set(Page.asked) == {("GET", "/team/metrics")}
    assert "planted" not in str(rows)
    monkeypatch.setattr(Page, "status", 503)
    with pytest.raises(OSError, match="HTTP 503"):
        watched.take()


def test_gpus_of_a_driver_that_knows_the_older_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(SMI)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (watched,) = watch_gpus()
    assert watched.target is None
    found = {(it.labels["gpu"], it.name): it.value for it in watched.take()}
    assert found["0", "gpu_utilization"] == pytest.approx(0.97)
    assert found["0", "gpu_memory_used_bytes"] == 71234 << 20
    assert (found["0", "gpu_power_w"], found["0", "gpu_throttle_reasons"]) == (612.5, 4)
    assert (found["1", "gpu_clock_hz"], found["1", "gpu_throttle_reasons"]) == (1980e6, 1)
    assert ("1", "gpu_power_w") not in found


def test_a_host_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert watch_gpus() == []
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert watch_gpus() == []
    assert list(parse_gpus("")) == []


def test_a_profiler_is_stopped_even_if_the_run_ends_within_its_window(served: str) -> None:
    with Profiler([Target(served)], Profile(0.0, 3600.0)) as profiler:
        profiler.begin(time.monotonic_ns())
        wait_until(Page.asked, 1)
    assert Page.asked == [("POST", "/team/start_profile"), ("POST", "/team/stop_profile")]
    assert [note.rpartition(": ")[2] for note in profiler.notes] == ["HTTP 200", "HTTP 200"]


def test_a_window_that_never_came(served: str) -> None:
    with Profiler([Target(served)], Profile(3600.0, 1.0)) as profiler:
        profiler.begin(time.monotonic_ns())
    assert Page.asked == []
    assert profiler.notes == ["profile: the run ended before its 3600 s"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: Settings(scrape_s=0.01), "scrape_s: expected 0.1 s or more, or 0 for none, found 0.01"),
        (lambda: Settings(scrape_s=-1), "scrape_s: expected"),
        (lambda: Profile(-1, 1), "profile: expected after_s of 0 seconds or more"),
        (lambda: Profile(0, 0), "profile: expected"),
    ],
)
def test_settings_that_cannot_work(settings: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings()  # type: ignore[operator]


def test_gpus_that_are_lost_during_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho '0, [N/A], 61234, 81559, [N/A], 1755, 64, Not Active'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (watched,) = watch_gpus()
    assert {it.name for it in watched.take()} == {
        "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_clock_hz", "gpu_temperature_c",
    }  # fmt: skip
    command.write_text("#!/bin/sh\necho 'GPU is lost'\nexit 15\n")
    with pytest.raises(OSError, match="nvidia-smi ended with 15: GPU is lost"):
        list(watched.take())

"""Calibration: the search for a ceiling, the comparison of two records, the remembered file, the share in a log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import health_row, make_log, read_row, request_row

from loadshape import calibrator
from loadshape.calibration import NAME, Calibration, Capacity, Ceiling, Level, Spread, Use, find_cache
from loadshape.calibrator import (
    Windows,
    arrange,
    find_ceiling,
    name_saturated,
    ramp_chunks,
    ramp_requests,
    steady_chunks,
    steady_requests,
)
from loadshape.environment import describe_host
from loadshape.errors import InputError, ReplayError
from loadshape.report import render
from loadshape.summary import summarize
from loadshape.trial import Responders, Trial, Work, Writes, play
from loadshape.validity import Limits, judge

MS = 1_000_000


def make_ceiling(rate_hz: float, waited: float = 0.0) -> Ceiling:
    return Ceiling(rate_hz=rate_hz, saturated="worker", worker=Use(0.98, waited), responder=Use(0.4, 0.0))


def make_calibration(**more: Any) -> Calibration:
    one = Capacity(processes=1, responders=1, requests=make_ceiling(5000.0), chunks=make_ceiling(80_000.0, 0.02))
    given = {"made_at": "2026-11-30T04:00:00+00:00", "took_s": 45.0, "host": describe_host(), "one": one, "all": one}
    return Calibration(**(given | more))


class TestRemembering:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return tmp_path / "loadshape" / NAME

    def test_nothing_is_known_at_first(self) -> None:
        assert Calibration.load() is None

    def test_what_is_stored_is_loaded(self, cache: Path) -> None:
        found = make_calibration()
        assert found.store() == cache
        assert Calibration.load() == msgspec.json.decode(msgspec.json.encode(found), type=Calibration)

    @pytest.mark.parametrize("fact", ["python", "system", "cpu", "cores", "affinity"])
    def test_another_host_is_not_ours(self, fact: str) -> None:
        make_calibration(host=describe_host() | {fact: "another"}).store()
        assert Calibration.load() is None

    def test_another_load_is_the_same_host(self) -> None:
        make_calibration(host=describe_host() | {"load_average": [9.0, 9.0, 9.0]}).store()
        assert Calibration.load() is not None

    def test_another_version_is_not_ours(self) -> None:
        make_calibration(tool="loadshape 0.0.0").store()
        assert Calibration.load() is None

    @pytest.mark.parametrize("text", ["", "{", '{"made_at": "now"}'])
    def test_a_damaged_file_is_none(self, cache: Path, text: str) -> None:
        cache.parent.mkdir()
        cache.write_text(text)
        assert Calibration.load() is None

    def test_a_folder_that_cannot_be_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(InputError, match="XDG_CACHE_HOME"):
            make_calibration().store()

    def test_a_relative_cache_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "here")
        assert find_cache() == Path.home() / ".cache" / "loadshape"

    def test_how_much_others_took_is_the_worst_of_all(self) -> None:
        assert make_calibration().waited == 0.02


@pytest.mark.parametrize(
    ("worker", "responder", "was_missed", "is_late", "expected"),
    [
        (Use(0.99, 0.0), Use(0.5, 0.0), True, False, "worker"),
        (Use(0.99, 0.0), Use(0.7, 0.1), True, True, "worker"),
        (Use(0.6, 0.0), Use(0.99, 0.0), True, True, "responder"),
        (Use(0.6, 0.0), Use(0.99, 0.0), False, True, "responder"),
        (Use(0.95, 0.0), Use(0.5, 0.0), False, False, "worker"),
        (Use(0.4, 0.0), Use(0.5, 0.0), False, False, "nobody"),
        (Use(0.5, 0.5), Use(0.2, 0.1), True, True, "worker"),
    ],
)
def test_who_gave_way(worker: Use, responder: Use, was_missed: bool, is_late: bool, expected: str) -> None:
    assert name_saturated(worker, responder, was_missed=was_missed, is_responder_late=is_late) == expected


def find_in(rates: list[float], kept: list[bool]) -> Ceiling:
    edges_ns = np.arange(len(rates) + 1) * 100 * MS
    quiet = np.zeros(len(rates))
    trial: Any = SimpleNamespace(worker_use=lambda *_: quiet + 0.5, responder_use=lambda *_: quiet + 0.2)
    return find_ceiling(trial, Windows(edges_ns, np.array(rates), np.array(kept), quiet))


@pytest.mark.parametrize(
    ("kept", "rate_hz"),
    [
        ("yyyyynnnnn", 400.0),  # the last three that were kept are 300, 400, 500
        ("yyyyyyyyyy", 900.0),
        ("nyyynnnnnn", 300.0),
        ("yyynyyynnn", 600.0),  # one hiccup is no limit
        ("yyyynnynyn", 300.0),  # nor is a lucky window a rate that can be kept
    ],
)
def test_a_ceiling_is_three_windows_in_a_row(kept: str, rate_hz: float) -> None:
    assert find_in([100.0 * n for n in range(1, 11)], [it == "y" for it in kept]).rate_hz == rate_hz


def test_a_host_that_keeps_nothing_is_not_measured() -> None:
    with pytest.raises(ReplayError, match="overloaded"):
        find_in([100.0, 200.0, 300.0, 400.0], [False, True, True, False])


@pytest.mark.parametrize(
    ("limit_hz", "rate_hz", "shares"),
    [
        (900.0, 1000.0, [0.25, 0.5, 0.8]),  # 800 is kept
        (700.0, 800.0, [0.25, 0.5, 0.8]),  # 800 is not, 640 is
        (100.0, 640.0, [0.25, 0.5, 0.8]),  # corrected twice, then told as it is
    ],
)
def test_a_steady_load_that_is_not_kept_is_the_ceiling(
    limit_hz: float, rate_hz: float, shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(_trial: Any, share: float, rate_hz: float, _length_s: float) -> Level:
        quiet = Spread(1e-5, 1e-4)
        late = Spread(0.5, 1.0) if rate_hz > limit_hz else quiet
        used = Use(0.5, 0.0)
        return Level(share=share, rate_hz=rate_hz, lateness=late, lag=quiet, error=quiet, responder_lateness=quiet,
                     chunks_a_read=1.0, worker=used, responder=used)  # fmt: skip

    monkeypatch.setattr(calibrator, "describe_level", describe)
    bench: Any = SimpleNamespace(extent=calibrator.FULL, play=lambda _work, _note: object())
    found = calibrator.add_levels(bench, make_ceiling(1000.0), steady_requests, "requests/s")
    assert found.rate_hz == rate_hz
    assert [level.share for level in found.levels] == shares
    assert [level.rate_hz for level in found.levels] == pytest.approx([share * rate_hz for share in shares])


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        ([3], [(1, {3}, [{3}])]),
        ([0, 1], [(1, {0}, [{1}])]),
        ([0, 1, 2], [(1, {0}, [{2}])]),
        ([0, 1, 4, 5], [(1, {0}, [{5}]), (2, {0, 1}, [{4}, {5}])]),
        ([0, 1, 2, 3, 4], [(1, {0}, [{4}]), (2, {0, 1}, [{3}, {4}])]),
    ],
)
def test_both_sides_have_cores_of_their_own(cores: list[int], expected: list[tuple[int, set[int], Any]]) -> None:
    assert [(it.processes, it.worker_cores, it.responder_cores) for it in arrange(cores)] == expected


def count_chunks(work: Work, start_s: float, end_s: float) -> int:
    steps = [np.arange(1, count + 1) * work.interval_us * 1000 for count in work.tokens.tolist()]
    at_ns = np.concatenate([due + step for due, step in zip(work.due_ns.tolist(), steps, strict=True)])
    return int(((at_ns >= start_s * 1e9) & (at_ns < end_s * 1e9)).sum())


def test_ramps_rise_evenly() -> None:
    requests = ramp_requests(2000.0, 2.0)
    assert len(requests.due_ns) == 2000
    assert (requests.due_ns < 1e9).sum() == pytest.approx(500, abs=60)
    chunks = ramp_chunks(20_000.0, 2.0)
    assert count_chunks(chunks, 0.9, 1.1) == pytest.approx(10_000 * 0.2, rel=0.05)
    assert count_chunks(chunks, 1.7, 1.9) == pytest.approx(18_000 * 0.2, rel=0.05)
    assert count_chunks(chunks, chunks.length_s + 0.001, 9.0) == 0


@pytest.mark.parametrize("rate_hz", [3_000.0, 40_000.0])
def test_steady_loads_are_even(rate_hz: float) -> None:
    requests = steady_requests(rate_hz, 1.0)
    assert len(requests.due_ns) == 1.5 * rate_hz
    chunks = steady_chunks(rate_hz, 1.0)
    assert count_chunks(chunks, 0.8, 1.4) == pytest.approx(0.6 * rate_hz, rel=0.1)


def match(reads: list[dict[str, Any]], ends: list[int]) -> tuple[list[int], int]:
    """Return which reads completed the writes of request 1, whose streams end at *ends* bytes, and what was lost."""
    log = make_log([request_row(0), request_row(1)], reads)
    count = len(ends)
    writes = Writes(np.ones(count, np.int64), np.arange(count), np.zeros(count, np.int64), np.array(ends, np.int64))
    found = Trial(log, writes, []).match()
    return found.read.tolist(), found.lost


@pytest.mark.parametrize(
    ("sizes", "ends", "expected"),
    [
        ([100, 50, 50], [100, 150, 200], ([1, 2, 3], 0)),
        ([200], [100, 150, 200], ([1, 1, 1], 0)),  # merged
        ([60, 60, 80], [100, 150, 200], ([2, 3, 3], 0)),  # split across
        ([100, 50], [100, 150, 200], ([1, 2], 1)),  # the last one never came
    ],
)
def test_a_read_has_covered_a_write_when_its_last_byte_is_in(sizes: list[int], ends: list[int], expected: Any) -> None:
    reads = [read_row(0, 0.5) | {"bytes": 1000}]
    reads += [read_row(1, 1.0 + n) | {"bytes": size} for n, size in enumerate(sizes)]
    assert match(reads, ends) == expected


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.randoms())
def test_every_byte_that_came_is_matched(sizes: list[int], random: Any) -> None:
    ends = np.cumsum(sizes).tolist()
    cuts = sorted({*random.sample(range(1, ends[-1] + 1), min(5, ends[-1])), ends[-1]})
    reads = [read_row(1, float(n)) | {"bytes": size} for n, size in enumerate(np.diff([0, *cuts]).tolist())]
    found, lost = match(reads, ends)
    assert lost == 0
    assert found == [next(n for n, cut in enumerate(cuts) if cut >= end) for end in ends]


class TestShareOfTheCeiling:
    """Requests begun and further reads add up; the busiest second counts."""

    CEILINGS: ClassVar[dict[str, Any]] = {"processes": 1, "requests_hz": 100.0, "chunks_hz": 1000.0}

    def make(self, requests: int, reads_each: int, *, calibration: dict[str, Any] | None) -> Any:
        rows = [request_row(n, due=5.0 * n, begun=5.0 * n, done=5.0 * n + 900) for n in range(requests)]
        reads = [read_row(n, 5.0 * n + 1 + k) for n in range(requests) for k in range(reads_each)]
        health = [health_row(100.0 * n) for n in range(200)]
        return make_log(rows, reads, health, environment={"client": {"cores": 2, "calibration": calibration}})

    def check(self, log: Any, **limits: float) -> Any:
        found = [it for it in judge(log, Limits(**limits)).checks if it.name == "share of the calibrated ceiling"]
        return found[0] if found else None

    def test_without_a_calibration_there_is_no_such_check(self) -> None:
        assert self.check(self.make(20, 3, calibration=None)) is None
        assert "load " not in render(summarize(self.make(20, 3, calibration=None)), "text")

    @pytest.mark.parametrize("damaged", [{}, {"one": {}, "all": {}}, {"one": 3, "all": 4}])
    def test_nor_with_one_that_is_damaged(self, damaged: dict[str, Any]) -> None:
        assert self.check(self.make(20, 3, calibration=damaged)) is None

    @pytest.mark.parametrize(
        ("requests", "reads_each", "measured", "status"),
        [(20, 1, "20 %", "ok"), (20, 11, "40 %", "ok"), (60, 1, "60 %", "ok"), (60, 4, "78 %", "suspect")],
    )
    def test_it_is_the_sum_of_both_shares(self, requests: int, reads_each: int, measured: str, status: str) -> None:
        calibration = {"made_at": "2026-11-30T04:00:00+00:00", "one": self.CEILINGS, "all": self.CEILINGS}
        log = self.make(requests, reads_each, calibration=calibration)
        found = self.check(log)
        assert found.measured.startswith(f"{measured} of the calibrated ceiling")
        assert found.status == status
        assert f"{measured} of this host's ceiling as calibrated on 2026-11-30" in render(summarize(log), "text")

    def test_the_limit_can_be_set(self) -> None:
        calibration = {"one": self.CEILINGS, "all": self.CEILINGS}
        assert self.check(self.make(60, 4, calibration=calibration), ceiling_share=0.9).status == "ok"

    def test_a_log_keeps_what_the_check_reads(self) -> None:
        summary = make_calibration().summarize()
        assert summary["one"] == {"processes": 1, "requests_hz": 5000.0, "chunks_hz": 80_000.0}
        assert self.check(self.make(20, 3, calibration=summary)).status == "ok"


@pytest.mark.slow
def test_a_trial_accounts_for_every_write(tmp_path: Path) -> None:
    count = 200
    work = Work(np.linspace(0, 0.5e9, count).astype(np.int64), np.full(count, 5, np.int64), 20_000, 0.7)
    with Responders([set(calibrator.list_cores())] * 2) as responders:
        trial = play(work, responders, processes=1, folder=tmp_path)
    found = trial.match()
    assert trial.log.manifest.outcomes == {"ok": count}
    assert (len(found.write_ns), found.lost) == (5 * count, 0)
    assert (trial.writes.late_ns >= 0).all()
    assert (found.seen_ns >= found.write_ns).all()
    assert (found.at_ns >= found.write_ns - 100_000).all()  # the width of the conversion between two clocks
    assert len(trial.lateness()[0]) == count


@pytest.mark.slow
def test_ctrl_c_leaves_nobody_behind(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("loadshape")), "calibrate"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stderr is not None
    process.stderr.readline()  # what it is about to do
    children: set[int] = set()
    while len(children) < 2:  # a responder, then a worker
        children |= list_children(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    process.stderr.close()
    deadline_s = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in children):  # a worker ends when its orders do, a moment later
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def list_children(pid: int) -> set[int]:
    return {int(it) for it in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.mark.slow
def test_a_quick_calibration(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("loadshape")), "calibrate", "--quick", "--json", "--force"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 3:  # this machine may be busy
        assert "overloaded" in done.stderr
        return
    found = msgspec.json.decode(done.stdout, type=Calibration)
    assert found.one.requests.rate_hz > 0
    assert found.one.chunks.rate_hz > 0
    assert (tmp_path / "loadshape" / NAME).is_file()

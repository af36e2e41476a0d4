"""The doctor: each examination on an invented host, and all of them on this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadshape import doctor
from loadshape.doctor import examine

STAT = "cpu  {} 0 0 900 0 0 0 {} 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\n"
MEMORY = "MemTotal: 8000000 kB\nMemAvailable: {} kB\nSwapTotal: 1000 kB\nSwapFree: {} kB\n"
PRESSURE = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def invent(root: Path, **files: str) -> Path:
    """Write files of an invented host; `proc__stat` is /proc/stat."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("examination", "name", "text", "status", "measured"),
    [
        ("find_backlog", "proc__sys__net__core__somaxconn", "4096\n", "ok", "4,096"),
        ("find_backlog", "proc__sys__net__core__somaxconn", "128\n", "mind", "128"),
        ("find_quota", "sys__fs__cgroup__cpu.max", "max 100000\n", "ok", "none"),
        ("find_quota", "sys__fs__cgroup__cpu.max", "150000 100000\n", "bad", "1.5 cores"),
        ("find_quota", "sys__fs__cgroup__cpu__cpu.cfs_quota_us", "-1\n", "ok", "none"),
        ("find_quota", "sys__fs__cgroup__cpu__cpu.cfs_quota_us", "50000\n", "bad", "0.5 cores"),
        ("find_steal", "proc__stat", STAT.format(100, 0), "ok", "0.00%"),
        ("find_steal", "proc__stat", STAT.format(50, 50), "mind", "5.00%"),
        ("find_swap", "proc__meminfo", MEMORY.format(4_000_000, 1000), "ok", "4.00 GB available"),
        ("find_swap", "proc__meminfo", MEMORY.format(4_000_000, 0), "mind", "1.00 MB swapped out"),
        ("find_swap", "proc__meminfo", MEMORY.format(100_000, 1000), "mind", "100 MB available"),
        ("find_company", "proc__pressure__cpu", PRESSURE.format("3.10"), "ok", "3.1 %"),
        ("find_company", "proc__pressure__cpu", PRESSURE.format("47.00"), "mind", "47 %"),
    ],
)
def test_facts_of_an_invented_host(
    examination: str, name: str, text: str, status: str, measured: str, tmp_path: Path
) -> None:
    found = getattr(doctor, examination)(invent(tmp_path, **{name: text}), tmp_path)
    assert found.status == status
    assert measured in found.measured
    assert (found.remedy == "") == (status == "ok")


def test_the_quota_of_our_own_group_counts(tmp_path: Path) -> None:
    files = {"proc__self__cgroup": "0::/box\n", "sys__fs__cgroup__box__cpu.max": "200000 100000\n"}
    assert doctor.find_quota(invent(tmp_path, **files), tmp_path).measured == "2 cores"


def test_a_slow_clock_is_bad(tmp_path: Path) -> None:
    place = "sys__devices__system__clocksource__clocksource0__current_clocksource"
    found = doctor.find_clock(invent(tmp_path, **{place: "hpet\n"}), tmp_path)
    assert (found.status, found.measured.split(",")[0]) == ("bad", "hpet")


@pytest.mark.parametrize(("hard", "status"), [(20_000, "mind"), (65_536, "ok"), (None, "ok")])
def test_descriptors(hard: int | None, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "read_descriptors", lambda: (1024, hard or -1))
    monkeypatch.setattr(doctor, "count_free_descriptors", lambda: None if hard is None else hard - 64)
    assert doctor.find_descriptors(tmp_path, tmp_path).status == status


@pytest.mark.parametrize(("ports", "status"), [(28_232, "ok"), (1000, "mind")])
def test_ports(ports: int, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "count_ports", lambda: ports)
    assert doctor.find_ports(tmp_path, tmp_path).status == status


def test_a_folder_that_cannot_be_written_is_bad(tmp_path: Path) -> None:
    found = doctor.find_disk(tmp_path, tmp_path / "nowhere")
    assert (found.status, "nowhere" in found.measured) == ("bad", True)


def test_what_a_system_does_not_have_is_left_out(tmp_path: Path) -> None:
    names = {finding.name for finding in examine(tmp_path, root=tmp_path)}
    assert {"backlog of servers here", "steal", "memory"}.isdisjoint(names)
    assert {"descriptors", "clock", "timers"} <= names


def test_a_stamp_that_is_off_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "measure_offset_ns", lambda: (0, 100))
    found = doctor.find_stamps(tmp_path, tmp_path)
    assert (found.status, " off" in found.measured) == ("mind", True)


@pytest.mark.skipif(sys.platform != "linux", reason="kernel stamps and timerfd are Linux's")
def test_this_host_stamps_and_wakes(tmp_path: Path) -> None:
    assert doctor.find_stamps(tmp_path, tmp_path).status == "ok"
    assert "early" not in doctor.find_timers(tmp_path, tmp_path).measured


def test_the_command_tells_every_finding(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("loadshape")), "doctor", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert {"kernel stamps", "timers", "disk"} <= {finding["name"] for finding in json.loads(done.stdout)}

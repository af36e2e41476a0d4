# The doctor's round: what only several machines have, from invented facts; findings that are alike.

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from loadshape import survey
from loadshape.cli import main
from loadshape.cli.hosting import write_sheets
from loadshape.cluster.agent import Facts
from loadshape.doctor import Finding
from loadshape.environment import describe_host
from loadshape.nodes import Burst
from loadshape.survey import Sheet, find_distance, find_niceness, find_ray_ports, find_road, find_versions, merge_sheets
from loadshape.target import Target
from loadshape.version import __version__

HERE = describe_host()


def invent(niceness: int = 0, version: str = __version__, **environment: Any) -> Facts:
    return Facts(
        version=version, python="3.11.14", name="b", port=1, niceness=niceness, environment=HERE | environment,
        synchronization={},
    )  # fmt: skip


def burst(bound_ns: int | None) -> Burst:
    heard = 0 if bound_ns is None else 100
    return Burst(at_ns=0, offset_ns=0, bound_ns=bound_ns, rtt_p99_ns=1, sent=100, heard=heard)


@pytest.mark.parametrize(
    ("facts", "status", "measured"),
    [
        (invent(), "ok", f"loadshape {__version__}"),
        (invent(version="9.9.0"), "bad", f"loadshape 9.9.0, here {__version__}"),
        (invent(python="CPython 3.12.1"), "mind", f"Python CPython 3.12.1, here {HERE['python']}"),
        (invent(packages=HERE["packages"] | {"numpy": "1.0"}), "mind", "numpy 1.0, here "),
        (invent(packages={}), "mind", "uvloop None, here "),
    ],
)
def test_versions(facts: Facts, status: str, measured: str) -> None:
    found = find_versions(facts)
    assert (found.status, measured in found.measured, found.remedy == "") == (status, True, status == "ok")


@pytest.mark.parametrize(("niceness", "status"), [(-5, "ok"), (0, "ok"), (1, "bad"), (15, "bad")])
def test_niceness(niceness: int, status: str) -> None:
    found = find_niceness(invent(niceness))
    assert (found.status, "RAY_worker_niceness=0" in found.remedy) == (status, status == "bad")


@pytest.mark.parametrize(
    ("bound_ns", "status", "measured"),
    [
        (20_000, "ok", "stamps up to 40.0 us apart; 100 of 100 pings"),
        (250_000, "ok", "500 us"),
        (250_001, "mind", "500 us"),
        (2_500_001, "bad", "5.00 ms"),
        (None, "bad", "answers no ping"),
    ],
)
def test_distance(bound_ns: int | None, status: str, measured: str) -> None:
    found = find_distance(invent(), burst(bound_ns))
    assert (found.status, measured in found.measured, found.remedy == "") == (status, True, status == "ok")


@pytest.mark.parametrize(
    ("span", "reserved", "status"),
    [
        ("32768\t60999", "", "ok"),
        ("1024\t65535", "", "mind"),
        ("1024\t65535", "6379,10002-19999", "ok"),
        ("1024\t65535", "10002-19998", "mind"),
        ("19999\t60999", "8080", "mind"),
        ("19999\t60999", "19999", "ok"),
    ],
)
def test_ray_ports(span: str, reserved: str, status: str, tmp_path: Path) -> None:
    folder = tmp_path / "proc/sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text(f"{span}\n")
    (folder / "ip_local_reserved_ports").write_text(f"{reserved}\n")
    assert find_ray_ports(tmp_path).status == status


def test_ports_that_a_system_does_not_tell(tmp_path: Path) -> None:
    assert find_ray_ports(tmp_path) == Finding("ports of Ray", "ok", "not told")


def test_the_way_to_a_target() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        road = ("127.0.0.1", server.getsockname()[1])
        open_way = find_road(road)
    closed = find_road(road)
    assert (open_way.status, closed.status, closed.measured) == ("ok", "bad", "Connection refused")
    assert open_way.name == closed.name == f"target 127.0.0.1 port {road[1]}"


def test_the_way_takes_no_longer_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_road: tuple[str, int], timeout_s: float) -> socket.socket:
        raise TimeoutError(f"{timeout_s}")

    monkeypatch.setattr(survey.socket, "create_connection", wait)
    assert find_road(("192.0.2.1", 80)).measured == "no answer in 3 s"


def test_roads_are_told_once_and_a_public_host_may_be_looked_at() -> None:
    urls = ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v2", "http://8.8.8.8/v1", "https://127.0.0.1/v1")
    assert survey.list_roads(map(Target, urls)) == [("127.0.0.1", 8000), ("8.8.8.8", 80), ("127.0.0.1", 443)]


ROUND = {
    "a (10.0.0.1)": ("30 ns", "100", "none"),
    "b (10.0.0.2)": ("31 ns", "100", "1"),
    "c (10.0.0.3)": ("32 ns", "200", "none"),
}


def fill(node: str, clock: str, ports: str, quota: str) -> Sheet:
    strict = Finding("quota", "ok", quota) if quota == "none" else Finding("quota", "bad", quota, "remove")
    return Sheet(node, [Finding("clock", "ok", clock), Finding("ports", "mind", ports, "widen"), strict])


SHEETS = [fill(node, *figures) for node, figures in ROUND.items()]


def test_findings_that_are_alike_are_told_once() -> None:
    rows = [
        ("".join(it[0] for it in row.nodes), row.finding.name, row.finding.measured) for row in merge_sheets(SHEETS)
    ]
    assert rows == [
        ("abc", "clock", "30 ns; the others are ok, too"),
        ("ab", "ports", "100"),
        ("c", "ports", "200"),
        ("ac", "quota", "none"),
        ("b", "quota", "1"),
    ]


def test_one_page_for_all() -> None:
    assert list(write_sheets(SHEETS)) == [
        "3 nodes: 0 = a (10.0.0.1), 1 = b (10.0.0.2), 2 = c (10.0.0.3)",
        "   clock  all  30 ns; the others are ok, too",
        " ! ports  0,1  100",
        "               do: widen",
        " ! ports  2    200",
        "               do: widen",
        "   quota  0,2  none",
        "!! quota  1    1",
        "               do: remove",
    ]


def test_no_cluster_is_told_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="comes with the extra ray")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(sys, "argv", ["loadshape", "doctor", "--ray", f"127.0.0.1:{port}"])
    assert main() == 2
    assert f"ray: no cluster is reached at '127.0.0.1:{port}' (Connection refused)" in capsys.readouterr().err


def test_without_ray_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(sys, "argv", ["loadshape", "doctor", "--ray"])
    assert main() == 2
    assert "pip install '.[ray]'" in capsys.readouterr().err

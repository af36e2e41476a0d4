# What kernel and chrony say of a clock, from recorded words: struct timex of a host that follows nobody, its instant
# blanked; fields and order of chrony's report are those of chronyc(1).

from __future__ import annotations

import ctypes
import sys

import pytest

from loadshape.cluster import discipline
from loadshape.cluster.discipline import describe_timex, parse_tracking, read_synchronization

RECORDED = bytes.fromhex(
    "0000000000000000000000000000000000000000000000000024f400000000000024f4000000000040000000000000000200000000000000"
    "01000000000000000000f4010000000000000000000000000000000000000000102700000000000000000000000000000000000000000000"
).ljust(208, b"\0")
TRACKING = (
    "C0000201,192.0.2.1,3,1604512345.067817330,-0.000019567,0.000041203,0.000102030,"
    "-12.345,0.002,0.154,0.001372,0.000478,64.2,Normal\n"
)


class Timex(ctypes.Structure):
    """struct timex, field by field."""

    _fields_ = (
        *(("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long)),
        *(("esterror", ctypes.c_long), ("status", ctypes.c_int), ("constant", ctypes.c_long)),
        *(("precision", ctypes.c_long), ("tolerance", ctypes.c_long), ("time", ctypes.c_long * 2)),
        *(("tick", ctypes.c_long), ("ppsfreq", ctypes.c_long), ("jitter", ctypes.c_long), ("shift", ctypes.c_int)),
        *(("stabil", ctypes.c_long), ("jitcnt", ctypes.c_long), ("calcnt", ctypes.c_long), ("errcnt", ctypes.c_long)),
        *(("stbcnt", ctypes.c_long), ("tai", ctypes.c_int), ("reserved", ctypes.c_int * 11)),
    )


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_long) != 8, reason="recorded where a long has 8 bytes")
def test_a_clock_that_follows_nobody() -> None:
    assert describe_timex(5, RECORDED) == {
        "synchronized": False,
        "max_error_us": 16_000_000,
        "estimated_error_us": 16_000_000,
        "pending_offset_ns": 0,
        "frequency_ppb": 0.0,
        "tick_us": 10_000,
        "tai_offset_s": 0,
    }


@pytest.mark.parametrize(
    ("state", "timex", "expected"),
    [
        (0, Timex(status=0x2001, offset=-1500), {"synchronized": True, "pending_offset_ns": -1500}),
        (0, Timex(status=0x0001, offset=-15), {"synchronized": True, "pending_offset_ns": -15_000}),
        (0, Timex(status=0x2041), {"synchronized": False}),
        (5, Timex(status=0x2001), {"synchronized": False}),  # an error is an error, whatever the flags
        (0, Timex(freq=-65536 * 3 // 2), {"frequency_ppb": -1500.0}),  # ppm, with 16 bits behind the point
        (1, Timex(tai=37, maxerror=8500, esterror=120), {"tai_offset_s": 37, "max_error_us": 8500}),
    ],
)
def test_what_the_kernel_says(state: int, timex: Timex, expected: dict[str, object]) -> None:
    told = describe_timex(state, bytes(timex))
    assert {name: told[name] for name in expected} == expected


def test_what_chrony_says() -> None:
    told = parse_tracking(TRACKING)
    assert told["reference"] == "192.0.2.1"
    assert told["stratum"] == 3
    assert told["system_offset_s"] == pytest.approx(-19.567e-6)
    assert told["frequency_ppm"] == -12.345
    assert told["root_dispersion_s"] == 0.000478
    assert told["leap"] == "Normal"


@pytest.mark.parametrize("line", ["", "506 Cannot talk to daemon", TRACKING.replace("0.154", "?"), TRACKING + ","])
def test_what_is_no_report_of_chrony(line: str) -> None:
    assert parse_tracking(line) == {}


def test_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discipline, "CHRONYC", ("no-such-program-anywhere",))
    told = read_synchronization()
    if sys.platform == "linux":
        assert told["max_error_us"] >= 0
        assert 9_000 <= told["tick_us"] <= 11_000
    assert "chrony" not in told


def test_a_host_with_chrony(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(discipline, "_ask_kernel", lambda: {"synchronized": True})
    monkeypatch.setattr(discipline, "CHRONYC", (sys.executable, "-c", f"print({TRACKING!r})"))
    told = read_synchronization()
    assert told["synchronized"] is True
    assert told["chrony"]["stratum"] == 3


@pytest.mark.parametrize("program", ["import sys; sys.exit(1)", "print('506 Cannot talk to daemon')"])
def test_a_chrony_that_does_not_run(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(discipline, "CHRONYC", (sys.executable, "-c", program))
    assert "chrony" not in read_synchronization()


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert read_synchronization() == {}

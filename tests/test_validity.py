"""Each check of the verdict: what passes, what is suspect, what is invalid, what cannot be known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from logs import health_row, make_log, read_row, request_row, synthesize_log

from loadshape.errors import InputError
from loadshape.log import Log
from loadshape.report import render
from loadshape.runfile import RunFile
from loadshape.summary import summarize
from loadshape.validity import Check, Limits, judge
from loadshape.validity.finding import grade, weigh_quantile, worst

PROXIED = {"url": "http://192.0.2.2", "proxy": {"url": "http://192.0.2.9:3128", "key": None}}
RETRIES = {"retry_stale": True}


def find(log: Log, name: str, **limits: Any) -> Check:
    (check,) = [it for it in judge(log, Limits(**limits)).checks if it.name == name]
    return check


def served(number: int, *, due: float = 0.0, late: float = 0.02, ttft: float = 200.0, **more: Any) -> dict[str, Any]:
    """Return a row of a request that was served, times in ms."""
    begun = due + late
    stamps = {"due": due, "begun": begun, "sent": begun, "written": begun, "first_token": due + ttft}
    return request_row(number, **(stamps | {"last_token": due + ttft + 500, "done": due + ttft + 500} | more))


def many(count: int, **more: Any) -> list[dict[str, Any]]:
    return [served(n, due=20.0 * n, **more) for n in range(count)]


def late_by(*late_ms: float, ttft: float = 200.0) -> Log:
    return make_log([served(n, due=20.0 * n, late=ms, ttft=ttft) for n, ms in enumerate(late_ms)])


def ticks(seconds: float = 3.0, **columns: Callable[[float], int | None]) -> list[dict[str, Any]]:
    """Return ten health rows a second; each column is a function of the time in s."""
    times = np.arange(0, seconds, 0.1)
    return [health_row(1000 * t) | {name: value(t) for name, value in columns.items()} for t in times.tolist()]


def quiet(**more: Any) -> Log:
    """Return the log of a run that is VALID."""
    log = synthesize_log(failing=0.0)
    manifest = msgspec.structs.replace(log.manifest, **more)
    return Log(log.path, manifest, log.environment, log.requests, log.reads, log.health)


def test_what_a_run_may_not_do_is_not_asked_for() -> None:
    names = {check.name for check in judge(make_log(targets=[{"url": "http://192.0.2.1", "proxy": None}])).checks}
    assert not names & {"proxy", "sent again"}


def test_what_belongs_to_the_measurement_is_said_by_limits() -> None:
    log = make_log([*many(9), served(9, resent_ns=9)], settings=RETRIES, targets=[PROXIED])
    assert find(log, "proxy").measured == "100 % of the targets (http://192.0.2.9:3128)"
    assert find(log, "proxy", proxied=1.0).status == "ok"
    assert find(log, "sent again").measured == "10 % (1 of 10)"
    assert find(log, "sent again", resent=0.1).status == "ok"


def test_a_quiet_run_is_valid() -> None:
    verdict = judge(quiet())
    assert verdict.reasons == ()
    assert (verdict.status, verdict.exit_code) == ("VALID", 0)
    assert verdict.headline.startswith("VALID: ")
    assert len({it.name for it in verdict.checks}) == len(verdict.checks)


@pytest.mark.parametrize(
    ("name", "log", "status"),
    [
        # lateness: p50 / p99 / p99.9 of 0.1 / 1 / 5 ms; p99 over 5 ms is invalid
        ("lateness", late_by(*[0.05] * 700), "ok"),
        ("lateness", late_by(*[0.2] * 700), "suspect"),
        ("lateness", late_by(*[0.05] * 690, *[2.0] * 10), "suspect"),
        ("lateness", late_by(*[0.05] * 690, *[6.0] * 10), "invalid"),
        # below the floor the maximum stands in; one straggler is not more than 1 % of 200
        ("lateness", late_by(*[0.05] * 199, 2.0), "suspect"),
        ("lateness", late_by(*[0.05] * 199, 60.0), "suspect"),
        ("lateness", late_by(*[0.05] * 197, 60.0, 60.0, 60.0), "invalid"),
        ("lateness", late_by(*[0.05] * 20, 60.0), "suspect"),
        ("lateness", late_by(*[0.05] * 20, 60.0, 60.0), "invalid"),
        ("lateness", make_log(), "unknown"),
        # the same p99 of 0.9 ms is 9 % of a TTFT of 10 ms, 4.5 % of one of 20 ms
        ("lateness and TTFT", late_by(*[0.9] * 700, ttft=10.0), "invalid"),
        ("lateness and TTFT", late_by(*[0.9] * 700, ttft=20.0), "ok"),
        ("sent early", late_by(0.0, 0.1), "ok"),
        ("sent early", late_by(0.1, -0.000001), "invalid"),
        ("not sent", make_log(many(2000)), "ok"),
        ("not sent", make_log([*many(1999), request_row(1999, "not_sent", due=1)]), "suspect"),
        ("not sent", make_log([*many(99), request_row(99, "not_sent", due=1)]), "invalid"),
        # 1,000 requests in two windows of 10 s: 10 late of 500 are 2 % of one window, 1 % of the run
        ("sent again", make_log(many(200), settings=RETRIES), "ok"),
        ("sent again", make_log([*many(199), served(199, resent_ns=9)], settings=RETRIES), "suspect"),
        ("proxy", make_log(targets=[{"url": "http://192.0.2.1"}, PROXIED]), "suspect"),
        ("punctuality", make_log([*many(990), *many(10, late=11.0)]), "suspect"),
        ("punctuality", make_log([*many(996), *many(4, late=11.0)]), "ok"),
        ("punctuality", make_log([*many(90), *many(10, late=11.0)]), "invalid"),
        ("punctuality", make_log([*many(90), *[request_row(90 + n, "not_sent", due=5) for n in range(10)]]), "invalid"),
        ("punctuality", make_log([*many(90), *[request_row(90 + n, "not_reached") for n in range(10)]]), "ok"),
        ("punctuality", make_log([request_row(0, "not_reached")]), "unknown"),
        ("receive lag", make_log(reads=[read_row(0, n) for n in range(700)]), "ok"),
        ("receive lag", make_log(reads=[read_row(0, n, lag=50.0) for n in range(700)]), "suspect"),
        ("receive lag", make_log(), "unknown"),
        ("stamp order", make_log(reads=[read_row(0, 1, lag=-0.05)]), "ok"),
        ("stamp order", make_log(reads=[read_row(0, 1, lag=-0.5)]), "suspect"),
        ("loop lag", make_log(health=ticks(loop_lag_ns=lambda t: 900_000), receive="user"), "ok"),
        ("loop lag", make_log(health=ticks(loop_lag_ns=lambda t: 9_000_000), receive="user"), "suspect"),
        ("loop lag", make_log(health=ticks(loop_lag_ns=lambda t: 11_000_000), receive="user"), "invalid"),
        ("loop lag", make_log(receive="user"), "unknown"),
        ("shared reads", make_log(reads=[read_row(0, n) for n in range(998)] + [read_row(0, 999, 2)]), "ok"),
        ("shared reads", make_log(reads=[read_row(0, n) for n in range(98)] + [read_row(0, 99, 2)]), "suspect"),
        ("shared reads", make_log(reads=[read_row(0, 1, 0)]), "unknown"),
        ("run-queue delay", make_log(health=ticks(runqueue_ns=lambda t: int(9e6 * t))), "ok"),
        ("run-queue delay", make_log(health=ticks(runqueue_ns=lambda t: int(60e6 * t))), "suspect"),
        ("run-queue delay", make_log(health=ticks(runqueue_ns=lambda t: int(60e6 * t)), receive="user"), "invalid"),
        ("run-queue delay", make_log(health=ticks(runqueue_ns=lambda t: None)), "unknown"),
        ("CPU", make_log(health=ticks(cpu_ns=lambda t: int(6e8 * t))), "ok"),
        # idle but for one busy second
        ("CPU", make_log(health=ticks(5.0, cpu_ns=lambda t: int(9e8 * min(max(t - 2, 0), 1)))), "suspect"),
        ("CPU", make_log(health=ticks(0.5, cpu_ns=lambda t: int(9e8 * t))), "suspect"),
        ("CPU", make_log(health=ticks(0.1)), "unknown"),
        ("steal", make_log(health=ticks(steal_ns=lambda t: int(15e6 * t))), "suspect"),
        (
            "steal",
            make_log(health=ticks(steal_ns=lambda t: int(15e6 * t)), environment={"client": {"cores": 2}}),
            "ok",
        ),
        ("steal", make_log(health=ticks(steal_ns=lambda t: int(60e6 * t))), "invalid"),
        ("throttling", make_log(health=ticks(throttled_ns=lambda t: 7)), "ok"),  # before this run
        ("throttling", make_log(health=ticks(throttled_ns=lambda t: int(1e6 * t))), "suspect"),
        ("throttling", make_log(health=ticks(throttled_ns=lambda t: int(60e6 * t))), "invalid"),
        ("throttling", make_log(health=ticks(throttled_ns=lambda t: None)), "unknown"),
        ("collector pause", make_log(health=ticks(gc_ns=lambda t: 1_000_000)), "ok"),
        ("collector pause", make_log(health=ticks(gc_ns=lambda t: 2_000_000)), "suspect"),
        ("collector pause", make_log(health=ticks(gc_ns=lambda t: 21_000_000)), "invalid"),
        ("clock step", make_log(health=ticks(realtime_offset_ns=lambda t: 10**18 + int(1000 * t))), "ok"),
        ("clock step", make_log(health=ticks(realtime_offset_ns=lambda t: 10**18 + 5_000 * (t > 1))), "suspect"),
        ("clock step", make_log(health=ticks(realtime_offset_ns=lambda t: 10**18 + 50_000 * (t > 1))), "invalid"),
        # one bracket that was preempted is no step
        ("clock step", make_log(health=ticks(realtime_offset_ns=lambda t: 50_000 * (1.45 < t < 1.55))), "ok"),
        ("one row a request", make_log(many(3)), "ok"),
        ("one row a request", make_log(many(3), planned=4), "invalid"),
        ("one row a request", make_log([served(0), served(1), served(1)]), "invalid"),
        ("one row a request", make_log([served(0), served(5)], planned=2), "invalid"),
        ("one row a request", make_log([served(0), request_row(1, "lost")]), "invalid"),
        ("one row a request", quiet(outcomes={"ok": 1}), "invalid"),
        ("end of the run", quiet(), "ok"),
        ("end of the run", quiet(ended="interrupted"), "suspect"),
        ("end of the run", quiet(ended="stopped: the log cannot keep up"), "invalid"),
        ("one row a request", make_log([*many(3), served(3, done=None)]), "invalid"),
        ("one row a read", make_log(many(2, reads=1), [read_row(0, 200), read_row(1, 220)]), "ok"),
        ("one row a read", make_log(many(2, reads=1), [read_row(0, 200)]), "invalid"),
        ("one row a read", make_log(many(1, reads=1), [read_row(0, 200), read_row(5, 200)]), "invalid"),
        ("one row a read", make_log(many(1, reads=1), [read_row(0, -1)]), "invalid"),
        ("one row a read", make_log([request_row(0, "http_error", sent=9, done=9, reads=1)], [read_row(0, 5)]), "ok"),
        ("one row a read", make_log(many(1, reads=1), [read_row(0, 701)]), "invalid"),
        ("one row a read", make_log(), "ok"),
        ("Little's law, rows", make_log(many(10), [read_row(n, 20 * n + 700) for n in range(10)]), "ok"),
        ("Little's law, rows", make_log(many(10), [read_row(n, 20 * n + 701) for n in range(10)]), "suspect"),
        ("Little's law, rows", make_log(many(10), [read_row(n, 20 * n + 700) for n in range(9)]), "invalid"),
        ("Little's law, rows", make_log([*many(9), served(9, outcome="truncated")], []), "invalid"),
        ("Little's law, rows", make_log(), "unknown"),
        ("Little's law, counters", synthesize_log(), "ok"),
        ("Little's law, counters", make_log(many(100), health=ticks(in_flight=lambda t: 12)), "suspect"),
        ("Little's law, counters", make_log(many(100)), "unknown"),
    ],
)
def test_checks(name: str, log: Log, status: str) -> None:
    check = find(log, name)
    assert check.status == status, check
    assert bool(check.meaning) == (status != "ok")
    assert bool(check.remedy) == (status in ("suspect", "invalid"))


def test_checks_that_do_not_apply_are_left_out() -> None:
    kernel, user = ({it.name for it in judge(make_log(receive=receive)).checks} for receive in ("kernel", "user"))
    assert kernel - user == {"receive lag", "stamp order"}
    assert user - kernel == {"loop lag"}


@pytest.mark.parametrize("rows", [[], many(1)])
def test_a_log_that_contradicts_itself_is_judged_all_the_same(rows: list[dict[str, Any]]) -> None:
    ceilings = {"requests_hz": 1000.0, "chunks_hz": 50_000.0}
    environment = {"client": {"calibration": {"one": ceilings, "all": ceilings}}}
    log = make_log(rows, [read_row(n, n) for n in range(9)], ticks(), planned=4, environment=environment)
    assert judge(log).status == "INVALID"


def test_the_worst_worker_counts() -> None:
    calm, busy = ticks(), ticks(runqueue_ns=lambda t: int(20e6 * t))
    check = find(make_log(health=calm + [row | {"worker": 3} for row in busy]), "run-queue delay")
    assert check.status == "suspect"
    assert check.measured == "2 % of the time, worker 3"


def test_limits_are_configurable_and_recorded() -> None:
    log = make_log(health=ticks(cpu_ns=lambda t: int(8e8 * t)))
    assert find(log, "CPU").status == "suspect"
    assert find(log, "CPU", cpu=0.9).status == "ok"
    assert judge(log, Limits(cpu=0.9)).limits.cpu == 0.9


def test_limits_that_are_not_the_defaults_are_named() -> None:
    assert Limits().changed == {}
    assert Limits(cpu=0.9, gc_pause_s=0.001).changed == {"cpu": 0.9}


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ({"cpu": -1.0}, r"limits\.cpu: expected 0 or more, or inf for no limit, found -1"),
        ({"cpu": float("nan")}, r"limits\.cpu: expected 0 or more"),
        ({"steal": 0.5}, r"limits\.steal: 0\.5 is beyond its second limit steal_invalid = 0\.05"),
        ({"lateness_p99_s": 0.1}, r"limits\.lateness_p99_s: 0\.1 is beyond its second limit lateness_p99_invalid_s"),
        ({"punctual_share": 0.5}, r"limits\.punctual_share: 0\.5 is beyond"),
        ({"punctual_window_s": 0.0}, r"limits\.punctual_window_s: expected a length"),
    ],
)
def test_a_limit_that_is_none_is_refused(limits: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Limits(**limits)


def test_no_limit_is_inf() -> None:
    log = make_log(health=ticks(cpu_ns=lambda t: int(1e9 * t)))
    assert find(log, "CPU", cpu=float("inf")).status == "ok"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[limits]\ncpuu = 0.9", r"limits\.toml: .*unknown field `cpuu`.*limits"),
        ("[limits]\ncpu = 'much'", r"limits\.toml: .*limits\.cpu"),
        ("[limits]\ncpu = -1", r"limits\.toml: limits\.cpu: expected 0 or more"),
        ("cpu = 0.9", r"limits\.toml: .*unknown field `cpu`"),
        ("[limits", r"limits\.toml: not valid TOML"),
    ],
)
def test_a_file_of_limits_is_refused_by_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        RunFile.load(path)


def test_a_file_of_limits_is_heeded_recorded_and_told(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[limits]\ncpu = 1\n")
    log = synthesize_log(failing=0.0)
    busy = make_log(log.requests, log.reads, ticks(20.0, cpu_ns=lambda t: int(9e8 * t)), planned=800)
    summary = summarize(busy, limits=RunFile.load(path).limits)
    assert "CPU" not in {it.name for it in summary.verdict.reasons}
    assert "limits      of the verdict, not the default ones: cpu 1\n" in render(summary, "text")
    told = json.loads(render(summary, "json"))["verdict"]
    assert (told["limits"]["cpu"], told["limits_changed"]) == (1.0, ["cpu"])


@pytest.mark.parametrize(
    ("log", "status", "headline", "exit_code"),
    [
        (quiet(ended="interrupted"), "SUSPECT", "SUSPECT: usable", 0),
        (quiet(ended="stopped: disk full"), "INVALID", "INVALID: the generator", 3),
        (make_log(), "SUSPECT", "SUSPECT (platform): nothing was found wrong", 0),
    ],
)
def test_the_verdict_is_its_worst_check(log: Log, status: str, headline: str, exit_code: int) -> None:
    verdict = judge(log)
    assert (verdict.status, verdict.exit_code) == (status, exit_code)
    assert verdict.headline.startswith(headline)


def test_reasons_come_worst_first() -> None:
    log = make_log(many(3), planned=4, ended="interrupted")
    order = [it.status for it in judge(log).reasons]
    assert order == sorted(order, key=["invalid", "suspect", "unknown"].index)
    assert order[0] == "invalid"


@pytest.mark.parametrize(
    ("value", "status"), [(1.0, "ok"), (1.1, "suspect"), (2.0, "suspect"), (2.1, "invalid"), (float("nan"), "unknown")]
)
def test_grade(value: float, status: str) -> None:
    assert grade(value, 1.0, 2.0) == status


def test_worst_ranks_unknown_between_ok_and_suspect() -> None:
    assert worst("ok", "unknown") == "unknown"
    assert worst("suspect", "unknown") == "suspect"
    assert worst("suspect", "invalid", "ok") == "invalid"


def test_a_quantile_of_few_values_is_told_as_a_maximum() -> None:
    found = weigh_quantile(np.full(100, 0.002), 0.99, 0.001, 0.005)
    assert (found.status, found.measured) == ("suspect", "max 2.00 ms of only 100")
    assert found.limit == "p99 at most 1.00 ms; invalid above 5.00 ms"

# What trace, targets and settings come to together, what is refused, and what is told before the start.

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadshape.errors import InputError, TargetError
from loadshape.replayer.job import Settings
from loadshape.replayer.roads import check_roads, check_sources, find_roads, list_roads
from loadshape.replayer.terms import PROXY_VARIABLES, check_terms, choose_loop, plan_duration_s, tell_terms
from loadshape.runfile import RunFile
from loadshape.target import Target
from loadshape.trace import Loop, Trace
from traces import closed_loop, open_loop, partly_open

OPEN, CLOSED = open_loop(10, 100, cap=6), closed_loop(10, 4)
ONE = Target("http://192.0.2.1/v1")


@pytest.mark.parametrize(
    ("trace", "settings", "loop"),
    [
        (OPEN, {}, Loop("open", cap=6)),
        (OPEN, {"cap": 3}, Loop("open", cap=3)),
        (OPEN, {"slots": 2}, Loop("closed", slots=2, cap=6)),
        (CLOSED, {}, Loop("closed", slots=4)),
        (CLOSED, {"slots": 7, "cap": 5}, Loop("closed", slots=7, cap=5)),
        (partly_open(2, 2, gap=1, think=1), {"slots": 2}, Loop("closed", slots=2)),
    ],
)
def test_the_loop_in_force(trace: Trace, settings: dict[str, Any], loop: Loop) -> None:
    assert choose_loop(trace, Settings(**settings)) == loop


@pytest.mark.parametrize(
    ("trace", "settings", "duration_s"),
    [
        (OPEN, {}, 0.9),
        (OPEN, {"duration_s": 0.5}, 0.5),
        (OPEN, {"duration_s": 5.0}, 0.9),
        (OPEN, {"requests": 4}, 0.3),
        (OPEN, {"requests": 400}, 0.9),
        (OPEN, {"requests": 4, "duration_s": 0.2}, 0.2),
        (OPEN, {"slots": 2}, 0.0),
        (OPEN, {"slots": 2, "duration_s": 5.0}, 5.0),
        (CLOSED, {"duration_s": 5.0}, 5.0),
        (CLOSED, {}, 0.0),
    ],
)
def test_the_length_of_the_run(trace: Trace, settings: dict[str, Any], duration_s: float) -> None:
    assert plan_duration_s(trace, Settings(**settings)) == duration_s


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"duration_s": 0.0}, "duration_s: expected more than 0 seconds, found 0.0"),
        ({"duration_s": -1.0}, "duration_s: expected more than 0"),
        ({"duration_s": float("nan")}, "duration_s: expected more than 0"),
        ({"requests": 0}, "requests: expected 1 or more"),
        ({"slots": 0}, "slots: expected 1 or more"),
        ({"cap": 0}, "cap: expected 1 or more"),
        ({"routing": "random"}, "routing: expected one of session, round_robin, weighted, prefix, found 'random'"),
        ({"on_dead": "retry"}, "on_dead: expected end or move"),
        ({"dead_after": 0}, "dead_after: expected 1 connection failure or more"),
        ({"source_ips": ["localhost"]}, "source_ips: expected addresses of this host, found 'localhost'"),
        ({"timeout_first_s": 0.0}, "timeout_first_s: expected more than 0"),
        ({"timeout_total_s": -2.0}, "timeout_total_s: expected more than 0"),
        ({"grace_s": -1.0}, "grace_s: expected 0 seconds or more"),
        ({"interrupt_grace_s": -1.0}, "interrupt_grace_s: expected 0 seconds or more"),
    ],
)
def test_a_setting_that_cannot_work_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        Settings(**settings)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("targets", "settings", "message"),
    [
        ([], {}, "target: expected at least one"),
        ([ONE], {"slots": 1, "processes": 2}, "loop.slots: 1 cannot be split over 2 processes"),
        ([ONE], {"cap": 2, "processes": 3}, "loop.cap: 2 cannot be split over 3 processes"),
        ([ONE], {"on_dead": "move"}, "on_dead: move needs several targets"),
        ([ONE, Target("http://192.0.2.2/v1", weight=2)], {"routing": "round_robin"}, "routing: round_robin does not"),
        (
            [Target("http://192.0.2.1/v1", "small"), Target("http://192.0.2.2/v1", "large")],
            {},
            "target.model: expected one model for all targets, found 'small' at http://192.0.2.1/v1, 'large' at",
        ),
        ([Target("http://192.0.2.1/v1", max_rate_hz=5)], {}, "asks 11.1 requests/s of 192.0.2.1, --max-rate allows 5"),
        ([Target("http://192.0.2.1/v1", max_rate_hz=5)], {"slots": 2}, "a closed loop goes as fast as the server"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(
    targets: list[Target], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as raised:
        check_terms(OPEN, targets, Settings(**({"processes": 1} | settings)))
    assert message in str(raised.value)


def test_a_rate_is_shared_by_the_targets_unless_one_may_inherit_it() -> None:
    capped = [Target(f"http://192.0.2.{at}/v1", max_rate_hz=6) for at in (1, 2)]
    check_terms(OPEN, capped, Settings(processes=1))
    with pytest.raises(TargetError, match=r"asks 11\.1 requests/s"):
        check_terms(OPEN, capped, Settings(processes=1, on_dead="move"))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_is_more_than_nothing(weight: float) -> None:
    with pytest.raises(TargetError, match=r"target\.weight: expected more than 0"):
        Target("http://192.0.2.1/v1", weight=weight)


def test_an_address_that_is_not_ours_cannot_be_a_source() -> None:
    check_sources(["127.0.0.1"])
    with pytest.raises(InputError, match=r"source_ips: 192\.0\.2\.9 is not an address of this host"):
        check_sources(["127.0.0.1", "192.0.2.9"])


def test_roads_are_all_pairs_of_one_kind() -> None:
    roads = list_roads(["192.0.2.1", "2001:db8::1"], 80, ["127.0.0.2", "127.0.0.3", "::1"])
    assert [(road.source, road.address) for road in roads] == [
        ("127.0.0.2", "192.0.2.1"),
        ("127.0.0.3", "192.0.2.1"),
        ("::1", "2001:db8::1"),
    ]
    with pytest.raises(InputError, match=r"source_ips: ::1 cannot reach 192\.0\.2\.1"):
        list_roads(["192.0.2.1"], 80, ["::1"])


def test_every_value_in_force_is_told() -> None:
    settings = Settings(
        processes=2, slots=5, cap=4, duration_s=9.0, requests=7, on_dead="move", dead_after=3, source_ips=["127.0.0.2"]
    )
    told = "\n".join(tell_terms(OPEN, [ONE, Target("http://192.0.2.2/v1", weight=2)], settings))
    assert told.splitlines()[0] == (
        "7 of 10 requests over 9 s, closed loop, 5 slots (2 or 3 a worker), 4 at most in flight (2 a worker)"
    )
    for part in ("processes 2", "routing session", "http://192.0.2.2/v1 (weight 2)", "after 3 connection failures"):
        assert part in told
    assert "127.0.0.2 in turn" in told


PROXY = "http://192.0.2.9:3128"


def test_a_proxy_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings = Settings(processes=1)
    assert not any("proxy" in line for line in tell_terms(OPEN, [ONE], settings))
    assert tell_terms(OPEN, [Target("http://192.0.2.1/v1", proxy=PROXY)], settings)[-1] == (
        "connections go through the proxy 192.0.2.9:3128: what it takes is in every latency"
    )
    monkeypatch.setenv("HTTPS_PROXY", "http://tester:planted@192.0.2.1:3128")
    assert tell_terms(OPEN, [ONE], settings)[-1] == (
        "HTTPS_PROXY of the environment: not used, only --proxy names a proxy"
    )


def test_roads_lead_to_the_proxy() -> None:
    target = Target("https://192.0.2.1/v1", proxy=PROXY)
    (road,) = find_roads(target, ["192.0.2.9"])
    assert (road.address, road.port, str(road.explain(111))) == (
        *("192.0.2.9", 3128),
        "[Errno 111] the proxy 192.0.2.9:3128: Connection refused",
    )
    (road,) = find_roads(Target("https://192.0.2.1/v1"), ["192.0.2.1"])
    assert (road.port, str(road.explain(111))) == (443, "[Errno 111] Connection refused")
    both = [target, Target("https://192.0.2.2/v1", proxy=PROXY)]
    assert check_roads(both, [["192.0.2.9"]] * 2, ()) == 1  # whose ports they share


# Several targets in a run file


def test_a_run_file_may_name_the_targets(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        f'[target]\ninsecure = true\nproxy = "{PROXY}"\nproxy_key = "env:LOGIN"\n'
        '[[targets]]\nurl = "http://192.0.2.1/v1"\nweight = 2\n'
        '[[targets]]\nurl = "http://192.0.2.2/v1"\nmodel = "tiny"\nkey = "env:OTHER"\n'
    )
    given = RunFile.load(path)
    first, second = given.make_targets([], model="tiny", key="env:KEY", allow_public=None)
    assert (first.weight, first.model, first.key, first.insecure) == (2, "tiny", "env:KEY", True)
    assert (first.proxy, first.proxy_key) == (PROXY, "env:LOGIN")
    other = given.make_targets([], model="tiny", key="env:KEY", proxy="http://192.0.2.8:1")[0]
    assert (other.proxy, other.proxy_key) == ("http://192.0.2.8:1", "env:LOGIN")
    assert (second.weight, second.model, second.key) == (1, "tiny", "env:OTHER")
    with pytest.raises(InputError, match="found both"):
        given.make_targets(["http://192.0.2.3/v1"], model=None, key=None)
    with pytest.raises(InputError, match="found neither"):
        RunFile().make_targets([], model=None, key=None)


def test_settings_survive_the_way_to_a_worker() -> None:
    settings = Settings(slots=4, duration_s=1.5, requests=9, routing="prefix", on_dead="end", source_ips=["::1"])
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings

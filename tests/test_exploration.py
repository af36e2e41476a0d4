"""Exploration: levels are judged by all their trials, folders are the state, and an INVALID trial ends a search."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from logs import make_log, request_row, synthesize_log
from msgspec import structs

from loadshape.errors import InputError
from loadshape.exploration import Origin, claim_folder, explore, repeat_run, sweep_levels
from loadshape.gate import Gate
from loadshape.log import Log
from loadshape.reading import Reading
from loadshape.replication import replicate
from loadshape.report import render
from loadshape.saturation import Curve, Point, find_knee, fit_scaling, measure_point
from loadshape.search import Search
from loadshape.summary import summarize
from loadshape.validity import Limits

GATE = Gate(objectives=("ttft.p50 <= 200 ms",))


def quiet(_: str) -> None:
    """Say nothing."""


def serve(capacity: float, said: list[tuple[float, float]]) -> object:
    """A server whose TTFT jumps above its capacity."""

    def play(level: float, length_s: float, path: Path) -> Log:
        said.append((level, length_s))
        log = synthesize_log(400, 3, seed=len(said), slowness=0.3 if level <= capacity else 9.0)
        run = structs.replace(log.run, duration_s=log.run.duration_s)
        return replace(log, path=path, manifest=structs.replace(log.manifest, run=run))

    return play


def test_a_search_finds_the_capacity(tmp_path: Path) -> None:
    said: list[tuple[float, float]] = []
    search = Search(first=4, lowest=1, highest=100, precision=0.1)
    found = explore(search, GATE, serve(22, said), tmp_path, say=quiet)  # type: ignore[arg-type]
    assert found.result.lower is not None
    assert found.result.upper is not None
    assert found.result.lower <= 22 < found.result.upper
    assert set(found.decisions) == {level for level, _ in said}
    assert found.decisions[found.result.lower].passed
    text = render(found)
    assert text.startswith(f"the gate is kept at {found.result.lower:g}, and not at {found.result.upper:g}")


def test_an_invalid_trial_ends_the_search(tmp_path: Path) -> None:
    def play(level: float, length_s: float, path: Path) -> Log:
        late = [
            request_row(n, due=n, begun=n + 50, first_token=n + 60, last_token=n + 70, done=n + 71) for n in range(99)
        ]
        return make_log(late)

    with pytest.raises(InputError, match="the generator is the limit"):
        explore(Search(first=4, lowest=1, highest=100), GATE, play, tmp_path, say=quiet)


def test_a_sweep_goes_there_and_back(tmp_path: Path) -> None:
    said: list[tuple[float, float]] = []
    points = sweep_levels(serve(50, said), tmp_path, [1, 2, 4], 5.0, repeats=2, say=quiet)  # type: ignore[arg-type]
    assert [level for level, _ in said] == [1, 2, 4, 4, 2, 1]
    assert [(point.level, point.runs) for point in points] == [(1, 2), (2, 2), (4, 2)]
    assert "offered" in render(Curve("arrivals.rate", tuple(points)))


def test_repeats_are_named_by_their_number(tmp_path: Path) -> None:
    paths: list[str] = []

    def play(path: Path) -> Log:
        paths.append(path.name)
        return make_log()

    assert len(repeat_run(play, tmp_path, 3, say=quiet)) == 3
    assert paths == ["run-01.log", "run-02.log", "run-03.log"]


def point(level: float, hz: float) -> Point:
    readings = {name: Reading(name, "1/s", hz) for name in ("request_hz", "output_tokens_per_s")}
    return Point(level, readings, 1, "VALID")


def test_the_scaling_law_is_found_again() -> None:
    users = [1, 2, 4, 8, 16, 32, 64]
    points = [point(n, 10 * n / (1 + 0.05 * (n - 1) + 0.001 * n * (n - 1))) for n in users]
    found = fit_scaling(points)
    assert found is not None
    assert (found.rate_hz, found.contention, found.crosstalk) == pytest.approx((10, 0.05, 0.001))
    assert found.peak == pytest.approx((0.95 / 0.001) ** 0.5)
    assert found.residual < 1e-9


def test_the_knee_is_where_the_curve_bends() -> None:
    assert find_knee([point(n, min(n, 30.0)) for n in range(5, 100, 5)]).level == 30  # type: ignore[union-attr]
    assert find_knee([point(n, float(n)) for n in range(5, 100, 5)]) is None
    assert find_knee([point(1, 1), point(2, 2)]) is None
    assert fit_scaling([point(1, 1), point(2, 2)]) is None


def test_repeats_are_read_together_and_others_refused() -> None:
    runs = [summarize(synthesize_log(800, 3, seed=seed)) for seed in (1, 2, 3)]
    found = replicate(runs)
    p50 = next(it for it in found.readings if it.name == "ttft.p50")
    assert p50.interval is not None
    assert p50.interval.effective == 3
    assert "3 runs of the same traffic" in render(found)
    other = summarize(replace(synthesize_log(800, 3), environment={"server": {"version": "2"}}))
    with pytest.raises(InputError, match="is no repeat of"):
        replicate([runs[0], other])


def late_log() -> Log:
    rows = [request_row(n, due=n, begun=n + 50, first_token=n + 60, last_token=n + 70, done=n + 71) for n in range(99)]
    return make_log(rows)


def test_repeats_with_an_invalid_run_have_no_readings() -> None:
    found = replicate([summarize(late_log()), summarize(late_log())])
    assert (found.readings, found.exit_code) == ((), 3)
    assert "lateness" in found.doubts
    assert "no readings: a run is INVALID; see why with loadshape report" in render(found)


def test_repeats_say_in_which_state_the_server_was() -> None:
    def tell(**about: Any) -> str:
        logs = [replace(synthesize_log(800, 3, seed=seed), environment={"declared": about}) for seed in (1, 2)]
        return render(replicate([summarize(log) for log in logs]))

    assert "of the server not declared" in tell()
    assert "empty, as declared; the same before each run" in tell(cache_state="empty")
    assert "but a server is cold only once" in tell(cache_state="cold")


def test_an_invalid_level_of_a_sweep_has_no_numbers() -> None:
    log = late_log()
    points = [measure_point(level, [summarize(log)]) for level in (1.0, 2.0)]
    assert {reading.value for point in points for reading in point.readings.values()} == {None}
    curve = Curve("arrivals.rate", tuple(points))
    assert "INVALID" in render(curve)
    assert "INVALID" in render(curve, "html")


def test_limits_of_the_run_file_hold_in_a_search(tmp_path: Path) -> None:
    search = Search(first=4, lowest=4, highest=4, trial_s=30, longest_s=30)
    loose = Limits(**dict.fromkeys(("lateness_p99_invalid_s", "lateness_of_ttft_invalid"), math.inf))
    loose = structs.replace(loose, punctual_share_invalid=0.0, identity_invalid=math.inf)

    def play(level: float, length_s: float, path: Path) -> Log:
        return late_log()

    with pytest.raises(InputError, match="is INVALID"):
        explore(search, GATE, play, tmp_path, say=quiet)
    assert explore(search, GATE, play, tmp_path, limits=loose, say=quiet).result.lower == 4


@pytest.mark.parametrize("changed", ["recipe", "vary", "targets", "model", "fixture", "settings"])
def test_a_folder_is_of_one_thing(tmp_path: Path, changed: str) -> None:
    about: dict[str, Any] = dict.fromkeys(("recipe", "vary", "model", "fixture", "settings"), "a") | {"targets": ["a"]}
    claim_folder(tmp_path / "S", Origin(**about))
    claim_folder(tmp_path / "S", Origin(**about))
    other = about | {changed: ["b"] if changed == "targets" else "b"}
    with pytest.raises(InputError, match=f"was begun with another {changed}, and its logs cannot be mixed"):
        claim_folder(tmp_path / "S", Origin(**other))


def test_a_trial_too_short_for_the_gate_says_so(tmp_path: Path) -> None:
    def play(level: float, length_s: float, path: Path) -> Log:
        return synthesize_log(40, 3)

    gate = Gate(objectives=("ttft.p99 <= 1 s",))
    with pytest.raises(InputError, match=r"cannot answer ttft\.p99 <= 1 s: .*p99 needs 664; lengthen the trials"):
        explore(Search(first=4, lowest=1, highest=100), gate, play, tmp_path, say=quiet)


def test_a_level_that_stays_unsure_is_decided_by_the_mean_of_its_trials(tmp_path: Path) -> None:
    said: list[float] = []

    def play(level: float, length_s: float, path: Path) -> Log:
        said.append(level)
        return synthesize_log(200, 3, seed=len(said), slowness=0.3, failing=0.0)

    gate = Gate(objectives=("errors < 1%",))  # no error in 200 requests: as many as 1.5 % would not be strange
    found = explore(Search(first=4, lowest=4, highest=4, trial_s=30, longest_s=30), gate, play, tmp_path, say=quiet)
    assert said == [4, 4, 4]
    assert found.result.lower == 4

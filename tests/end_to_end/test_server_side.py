# A run seen from both sides: what the embedded endpoint counted must be what the log says, what an earlier run left in
# its prefix cache must be told, and a server that is not watched must not be asked.

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadshape.contract import compare_facts
from loadshape.endpoint import Script, running
from loadshape.log import Log
from loadshape.observation import NAME, read_samples
from loadshape.replayer import Settings, replay
from loadshape.replayer.job import Profile
from loadshape.report import render
from loadshape.server import measure_servers
from loadshape.summary import summarize
from loadshape.target import Target
from traces import ask, make_trace

pytestmark = pytest.mark.slow
WORDS = 300
ALIKE = make_trace(
    *(
        ask(20 * at, messages=[("user", (" ".join(f"w{at}x{n}" for n in range(WORDS)),))], input_tokens=900)
        for at in range(20)
    )
)


@pytest.fixture(scope="module")
def fresh() -> Iterator[str]:
    with running(Script(ttft_s=0.01, itl_s=0.001)) as address:
        yield address


def play(url: str, path: Path, **settings: object) -> Log:
    log = replay(ALIKE, Target(url), log=path, settings=Settings(processes=1, **settings))  # type: ignore[arg-type]
    log.verify()
    assert log.manifest.outcomes == {"ok": 20}
    return log


def test_both_sides_count_the_same_and_a_warm_cache_is_told(fresh: str, tmp_path: Path) -> None:
    log = play(fresh, tmp_path / "a.log", scrape_s=0.1, declared={"cache_state": "cold", "api_key": "planted"})
    (server,) = measure_servers(log)
    assert server.prompt.server == server.prompt.log > 0
    assert server.completion.server == server.completion.log == 80
    assert (server.hit_share, server.remarks) == (0, ())
    assert server.running is not None
    assert server.samples >= 4
    assert NAME in log.manifest.files
    assert log.environment["server"]["metrics"] is True
    assert log.environment["declared"] == {"cache_state": "cold", "api_key": "***"}
    assert "planted" not in (tmp_path / "a.log" / "run.json").read_text()

    again = play(fresh, tmp_path / "b.log", scrape_s=0.1)
    (server,) = measure_servers(again)
    assert server.hit_share is not None
    assert server.hit_share > 0.9
    assert "the cache was warm from another run or another client" in server.remarks[0]
    assert json.loads(render(summarize(again), "json"))["servers"][0]["remarks"] == list(server.remarks)
    assert "prefix hits" in render(summarize(again), "text")

    reset = play(fresh, tmp_path / "c.log", reset_cache=True)
    assert reset.manifest.notes[0] == 'reset_cache: target 0: HTTP 200 {"success":true}'
    assert measure_servers(reset)[0].hit_share == 0


def test_a_server_that_is_not_to_be_watched_is_not(fresh: str, tmp_path: Path) -> None:
    assert NAME not in play(fresh, tmp_path / "a.log", scrape_s=0.0).manifest.files
    log = play(fresh, tmp_path / "b.log", preflight=False)
    assert read_samples(log.path).num_rows == 0
    assert "Server" not in render(summarize(log), "text")


def test_a_profiled_run_is_marked(fresh: str, tmp_path: Path) -> None:
    plain = play(fresh, tmp_path / "a.log")
    log = play(fresh, tmp_path / "b.log", profile=Profile(0.0, 0.1))
    stopped = [note for note in log.manifest.notes if "/stop_profile" in note]
    assert stopped[0].endswith("target 0: HTTP 404")
    changes = {str(change) for change in compare_facts(plain, log)}
    assert "instrument.profiled: False -> True" in changes

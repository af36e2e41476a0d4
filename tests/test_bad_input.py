# Every argument that cannot work is refused before the first packet: exit code 2 and one line that names the field
# and what to do. A socket listens where the targets are, and nobody may have knocked.

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from loadshape import cli
from loadshape.errors import RecipeError
from loadshape.manifest import NAME
from loadshape.packaged import find_data
from loadshape.recipe import Recipe
from loadshape.replayer import capacity
from loadshape.trace import Trace
from traces import ask, closed_loop, make_trace, open_loop

Case = tuple[list[str], str]  # the arguments, and the content of run.toml


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture
def call(
    door: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a command that is to be refused, and return what it says."""
    monkeypatch.chdir(tmp_path)

    def run(arguments: str, *, run: str = "", trace: Trace | None = None) -> str:
        url = f"http://127.0.0.1:{door.getsockname()[1]}/v1"
        (trace or open_loop(3, 5)).write("a.trace", force=True)
        Path("run.toml").write_text(run.replace("URL", url))
        monkeypatch.setattr(sys, "argv", ["loadshape", *arguments.replace("URL", url).split()])
        assert cli.main() == 2
        with pytest.raises(BlockingIOError):
            door.accept()
        assert not Path("a.log").exists()
        output, told = capsys.readouterr()
        lines = [line for line in told.splitlines() if line.startswith("loadshape: ")]
        assert len(lines) == 1, (output, told)
        return lines[0]

    return run


REPLAY = "replay a.trace --target URL --run run.toml -o a.log"


@pytest.mark.parametrize(
    ("arguments", "run", "field", "remedy"),
    [
        (f"{REPLAY} --max-rate 0", "", "--max-rate", "expected more than 0 requests/s"),
        (f"{REPLAY} --max-rate -1", "", "--max-rate", "expected more than 0 requests/s"),
        (f"{REPLAY} --duration 0s", "", "duration_s", "expected more than 0 seconds"),
        (f"{REPLAY} --duration soon", "", "--duration", "expected a duration such as 20s"),
        (f"{REPLAY} --requests 0", "", "requests", "expected 1 or more, or nothing for what the trace says"),
        (
            REPLAY,
            "[replay]\ntimeout_first_s = -1",
            "timeout_first_s",
            "expected more than 0 seconds, or nothing for no",
        ),
        (REPLAY, "[replay]\ntimeout_connect_s = 0", "timeout_connect_s", "expected more than 0 seconds, or nothing"),
        (REPLAY, "[replay]\ngrace_s = -1", "grace_s", "expected 0 seconds or more, or nothing to wait for all"),
        (REPLAY, "[replay]\nisolation = 'salt'", "isolation", "expected one of auto, cache_salt, slot, none"),
        (REPLAY, "[replay]\nisolation = 'slot'", "isolation", 'isolation = "slot" in the recipe, or use cache_salt'),
        (REPLAY, "[replay]\ntenant_header = 'Host'", "tenant_header", "is set by the replayer"),
        (REPLAY, "[replay]\ntimeout_frist_s = 5", "timeout_frist_s", "did you mean timeout_first_s?"),
        (REPLAY, "grace_s = 5", "grace_s", "belongs into the section [replay]"),
        (REPLAY, "[target]\nheaders = { Host = 'x' }", "target.headers: 'Host'", "it names the host of the URL"),
        (f"{REPLAY} --proxy 127.0.0.1:3128", "", "target.proxy (--proxy)", "expected http://host:port, found '127.0"),
        (f"{REPLAY} --proxy http://u:p@localhost:1", "", "target.proxy", 'use proxy_key = "env:NAME"'),
        (REPLAY, "[target]\nproxy_key = 'env:LOGIN'", "target.proxy_key", "name one with --proxy http://host:port"),
        (
            REPLAY,
            "[target]\nproxy = 'socks5://localhost:1'",
            "target.proxy",
            "expected http://host:port, found 'socks5",
        ),
        (REPLAY.replace("URL", "ftp://localhost/v1"), "", "target", "expected http://host:port/v1 or https://"),
        (REPLAY.replace("URL", "localhost:8000"), "", "target", "expected http://host:port/v1 or https://"),
        (REPLAY.replace("--target URL", ""), "", "target", "expected --target URL or [[targets]] in the run file"),
        (
            REPLAY.replace("--target URL", ""),
            "[[targets]]\nurl = 'URL'\nmodel = 'small'\n[[targets]]\nurl = 'URL/b'\nmodel = 'large'",
            "target.model: expected one model for all targets, found 'small' at",
            "replay once for each and compare the logs",
        ),
        (REPLAY.replace("a.trace", "b\udcff.trace"), "", "b\\udcff.trace", "expected a name in UTF-8"),
        ("report", "", "LOG", "expected the log to judge, NAME.log"),
    ],
)
def test_what_cannot_work_is_refused(
    call: Callable[..., str], arguments: str, run: str, field: str, remedy: str
) -> None:
    told = call(arguments, run=run)
    assert field in told
    assert remedy in told


def test_a_rate_of_zero(tmp_path: Path) -> None:
    path = tmp_path / "zero.toml"
    text = find_data("traces/recipes/balanced-chat.toml").read_text()
    path.write_text(re.sub(r"(?m)^(rate\w*) = .*$", r'\1 = "0/s"', text))
    with pytest.raises(
        RecipeError,
        match=r"zero\.toml, line \d+: arrivals\.rate_hz: expected a number above 0.*; write requests per second",
    ):
        Recipe.load(path)


def test_fifty_thousand_streams_with_twenty_thousand_descriptors(
    call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "read_descriptors", lambda: (20_000, 20_000))
    told = call(REPLAY, trace=closed_loop(50_000, 50_000), run="[replay]\nprocesses = 1")
    assert "loop.slots: 50,000 slots need 50,000 connections in each of 1 worker" in told
    assert "raise the limit to 50,064, set processes = 3 in the run file, or ask for less" in told


def test_a_trace_for_another_api(call: Callable[..., str], tmp_path: Path) -> None:
    path = open_loop(3, 5).write(tmp_path / "other.trace")
    requests = pa.ipc.open_file(str(path / "requests.arrow")).read_all()
    column = requests.schema.get_field_index("api")
    others = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0], pa.int8()), pa.array(["embeddings"]))
    changed = requests.set_column(column, requests.schema.field(column), others)
    with pa.OSFile(str(path / "requests.arrow"), "wb") as sink, pa.ipc.new_file(sink, changed.schema) as file:
        file.write_table(changed)
    told = call(REPLAY.replace("a.trace", "other.trace"))
    assert "requests.api: expected every batch to have the dictionary chat, completions, found embeddings" in told
    assert "shape it anew" in told


def test_an_answer_that_nobody_can_wait_for(call: Callable[..., str]) -> None:
    quoting = [("assistant", (("answer", [0]),))]
    trace = make_trace(ask(session=0), ask(50.0, session=0, turn=1, messages=quoting))
    told = call(REPLAY, trace=trace)
    assert "requests.due_ns: request 1 quotes a live answer and has a due time" in told
    assert "leave due_ns null, so that it waits for its predecessor, or replay with slots" in told


def test_a_manifest_that_is_a_pipe(call: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "pipe.trace"
    folder.mkdir()
    os.mkfifo(folder / NAME)
    assert "manifest.json: cannot be read: not a regular file" in call(REPLAY.replace("a.trace", "pipe.trace"))
    assert "not a regular file" in call("inspect pipe.trace")


def test_explaining_a_metric_needs_no_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["loadshape", "report", "--explain", "ttft"])
    assert cli.main() == 0
    assert "first_token" in capsys.readouterr().out

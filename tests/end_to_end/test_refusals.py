# Mistakes of the user are told in one line before the first packet, and a key is never told at all.

from __future__ import annotations

import base64
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forwarding import Forwarder, forwarding

from loadshape.endpoint import Script, running
from loadshape.errors import InputError, LogError, TargetError, TraceError
from loadshape.log import Log
from loadshape.replayer import Settings, replay
from loadshape.replayer.stage import REFUSED
from loadshape.target import Target
from loadshape.trace import Trace
from traces import ask, closed_loop, make_trace, open_loop

from .conftest import Launch, play, wait_for

pytestmark = pytest.mark.slow
TRACE = open_loop(5, 2)
KEY = "planted-key-7f3a9c"
LOGIN = "tester:planted-word-51c0"
PLANTED = (KEY.encode(), b"planted-word-51c0", base64.b64encode(LOGIN.encode()))


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """Serve those who have the key."""
    with running(Script(ttft_s=0.005, itl_s=0.001), api_key=KEY) as address:
        yield address


@pytest.fixture
def doorman() -> Iterator[Forwarder]:
    """A proxy that wants the password."""
    with forwarding(Forwarder(login=LOGIN)) as proxy:
        yield proxy


@pytest.fixture
def dead_url() -> str:
    """Return an address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def check_refused(path: Path, message: str) -> None:
    """Check that the log of a refused run is complete: every request not sent, with the reason."""
    log = Log.open(path)
    log.verify(TRACE.digest)
    assert (log.manifest.ended, log.manifest.outcomes) == (REFUSED, {"not_sent": 5})
    (reason,) = set(log.requests["error"].to_pylist())
    assert message in reason
    assert log.requests["begun_ns"].null_count == 5
    assert log.requests["due_ns"].to_pylist() == TRACE.requests["due_ns"].to_pylist()


def test_an_endpoint_that_is_not_there_and_then_is(url: str, dead_url: str, tmp_path: Path) -> None:
    message = f"target: nobody answers at {dead_url}: Connection refused"
    with pytest.raises(TargetError) as caught:
        replay(TRACE, Target(dead_url), log=tmp_path / "a.log")
    assert str(caught.value) == message
    check_refused(tmp_path / "a.log", message)
    with pytest.raises(TargetError):  # the log of a refused run may be replaced without force
        replay(TRACE, Target(dead_url), log=tmp_path / "a.log")
    assert play(TRACE, Target(url), tmp_path / "a.log").manifest.outcomes == {"ok": 5}
    with pytest.raises(LogError, match="exists; choose another name, or say --force to replace it"):
        replay(TRACE, Target(url), log=tmp_path / "a.log")
    first = Log.open(tmp_path / "a.log")
    assert first.manifest.outcomes == {"ok": 5}
    assert first.run.targets[0]["model"] == "sim"  # the only one that is served
    assert first.environment["server"]["version"]["version"].startswith("0.")
    (tmp_path / "a.log" / "worker-07").mkdir()
    settings = Settings(body={"x": "y" * 200_000})  # more than a pipe holds
    second = replay(TRACE, Target(url), log=tmp_path / "a.log", force=True, settings=settings)
    second.verify()
    assert second.manifest.outcomes == {"ok": 5}
    assert second.run.run != first.run.run
    assert not (tmp_path / "a.log" / "worker-07").exists()


@pytest.mark.parametrize("key", [None, "env:WRONG_KEY"])
def test_a_wrong_key(locked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.setenv("WRONG_KEY", "wrong-key-5b1d")
    message = r"refused the key .HTTP 401.; give one with --key "
    with pytest.raises(TargetError, match=message) as caught:
        replay(TRACE, Target(locked, key=key), log=tmp_path / "a.log")
    assert "5b1d" not in str(caught.value)
    check_refused(tmp_path / "a.log", "refused the key (HTTP 401)")


def test_a_model_that_is_not_served(url: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="model 'large' is not served; there is: sim"):
        replay(TRACE, Target(url, model="large"), log=tmp_path / "a.log")
    check_refused(tmp_path / "a.log", "model 'large' is not served")


def test_without_asking_first_the_server_says_it_itself(locked: str, tmp_path: Path) -> None:
    log = play(TRACE, Target(locked, model="large"), tmp_path / "a.log", preflight=False)
    assert log.manifest.outcomes == {"http_error": 5}
    assert set(log.requests["status"].to_pylist()) == {401}
    assert set(log.requests["error"].to_pylist()) == {"HTTP 401: Unauthorized"}


@pytest.mark.parametrize(
    ("trace", "options", "error", "message"),
    [
        (closed_loop(9, 3), {"processes": 4}, TraceError, "loop.slots: 3 cannot be split over 4 processes"),
        (open_loop(9, 3, cap=1), {"processes": 2}, TraceError, "loop.cap: 1 cannot be split over 2 processes"),
        ("nowhere.trace", {}, TraceError, "nowhere.trace: expected a trace"),
        (
            make_trace(ask(), ask(60_000, params=[1])),
            {},
            InputError,
            "segments.text: params in segment 1 are no JSON object",
        ),
    ],
)
def test_what_cannot_be_replayed(
    url: str, tmp_path: Path, trace: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("[", "[[]")) as caught:
        replay(trace, Target(url), log=tmp_path / "a.log", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a.log" / "manifest.json").exists()


def test_a_rate_above_the_permission(url: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"the trace asks .* requests/s of 127.0.0.1, --max-rate allows 2"):
        replay(open_loop(100, 10), Target(url, max_rate_hz=2.0), log=tmp_path / "a.log")
    assert not (tmp_path / "a.log").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_no_log_is_never_replaced(url: str, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thesis"
    if kind == "folder":
        path.mkdir()
        (path / "chapter-1.txt").write_text("precious")
    else:
        path.write_text("precious")
    with pytest.raises(LogError, match="is no log but something else, so it is not replaced"):
        replay(TRACE, Target(url), log=path, force=True)
    assert (path / "chapter-1.txt" if kind == "folder" else path).read_text() == "precious"


def test_a_folder_that_cannot_be_made(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match=r"file/a\.log: cannot be made: Not a directory"):
        replay(TRACE, Target(url), log=tmp_path / "file" / "a.log")


# Keys


@pytest.mark.parametrize("source", ["env", "file"])
def test_a_planted_key_and_a_planted_password_are_nowhere(
    locked: str, tmp_path: Path, launch: Launch, source: str, doorman: Forwarder
) -> None:
    folder, secrets = tmp_path / "secrets", {"MODEL_KEY": KEY, "PROXY_LOGIN": LOGIN}
    folder.mkdir()
    for name, secret in secrets.items():
        (folder / name).write_text(f"{secret}\n")
        (folder / name).chmod(stat.S_IRUSR)
    references = {name: f"env:{name}" if source == "env" else f"file:{folder / name}" for name in secrets}
    process = launch(
        f"""
        token = open({str(folder / "MODEL_KEY")!r}).read().strip()
        target = Target({locked!r}, key={references["MODEL_KEY"]!r}, headers={{"X-Token": token}},
                        proxy={doorman.url!r}, proxy_key={references["PROXY_LOGIN"]!r})
        log = replay(open_loop(30, 20), target, log="a.log", processes=2)
        log.verify()
        print(repr(target), log.run, log.environment, log.manifest.outcomes)
        """,
        env=secrets if source == "env" else {},
    )
    wait_for(lambda: (tmp_path / "a.log" / "run.json").exists(), "the start")
    began_s, shown = time.monotonic(), []
    while process.poll() is None and time.monotonic() - began_s < 0.5:
        shown += [command for command in read_commands() if any(word in command for word in PLANTED)]
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "{'ok': 30}" in output
    assert shown == []
    assert not any(word in output.encode() for word in PLANTED)
    shutil.rmtree(folder)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(word in content for word in PLANTED for content in files)
    assert all(PLANTED[2].decode() in head for head in doorman.heads)  # but the proxy was told


def read_commands() -> list[bytes]:
    """Return the command lines of all processes."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.append(Path(f"/proc/{name}/cmdline").read_bytes())
            except OSError:
                continue
    return found


def test_a_trace_is_never_replaced_by_its_own_log(url: str, tmp_path: Path) -> None:
    path = TRACE.write(tmp_path / "a.trace")
    with pytest.raises(LogError, match="is no log but loadshape trace"):
        replay(path, Target(url), log=path, force=True)
    Trace.open(path).verify()

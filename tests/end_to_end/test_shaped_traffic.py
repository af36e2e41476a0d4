# What a trace may ask of the replayer beyond plain prompts, seen from a server that remembers every request: answers
# that are quoted, adapters and tenants, salts; and servers that say everything and then do not end.

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadshape.arrival import Poisson
from loadshape.endpoint import Script, running
from loadshape.errors import TargetError
from loadshape.length import Fixed
from loadshape.log import Log
from loadshape.picture import Images
from loadshape.shape import Shape
from loadshape.target import Target
from loadshape.trace import Loop
from loadshape.wire.openai import Kind
from traces import ask, make_trace, open_loop

from .conftest import play

pytestmark = pytest.mark.slow


class Listener(ThreadingHTTPServer):
    """Answers like vLLM, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.owner = "vllm"
        self.ends_bodies = True
        self.streams = True
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listener

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        models = [{"id": name, "owned_by": self.server.owner} for name in ("tiny", "lora-a")]
        self.reply(200, {"data": models, "heard": self.headers.get("x-token")})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        last = asked["messages"][-1]["content"]
        if last == "refuse":
            self.reply(403, {"error": {"message": f"token {self.headers['x-token']} is not welcome"}})
        elif not self.server.streams:
            self.close_connection = True
            choice = {"index": 0, "message": {"role": "assistant", "content": "all"}, "finish_reason": "stop"}
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [choice]}).encode())
        else:
            self.stream("reasoning" if last == "think" else "content", f'I heard "{last}",\n', "Ω.")

    def reply(self, status: int, page: Any) -> None:
        data = json.dumps(page).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, field: str, *texts: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for text in texts:
            self.chunk(json.dumps({"choices": [{"index": 0, "delta": {field: text}}]}))
        self.chunk(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        self.chunk("[DONE]")
        if self.server.ends_bodies:
            self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))


@pytest.fixture
def server() -> Iterator[Listener]:
    with Listener() as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield listener
        listener.shutdown()
        thread.join()


@pytest.fixture
def run(server: Listener, tmp_path: Path) -> Callable[..., Log]:
    def start(*rows: dict[str, Any], loop: Loop | None = None, headers: Any = None, **settings: Any) -> Log:
        target = Target(server.url, model="tiny", headers=headers or {})
        logs = len(list(tmp_path.glob("*.log")))
        return play(make_trace(*rows, loop=loop or Loop("partly_open")), target, tmp_path / f"{logs}.log", **settings)

    return start


def say(turn: int, *messages: tuple[str, Any], session: int = 0, think: float = 0.0) -> dict[str, Any]:
    """Return a turn of a session; a message is (role, text) or (role, the turn whose answer it is)."""
    parts = [(role, (text if isinstance(text, str) else ("answer", [text]),)) for role, text in messages]
    return ask(None if turn else 0.0, session=session, turn=turn, think=think, messages=parts)


def heard(text: str) -> str:
    return f'I heard "{text}",\nΩ.'


# Live answers


def test_a_later_turn_quotes_what_was_said(server: Listener, run: Callable[..., Log]) -> None:
    history = [("user", "one"), ("assistant", 0), ("user", "two"), ("assistant", 1), ("user", "three")]
    log = run(*(say(turn, *history[: 2 * turn + 1], think=3.0) for turn in range(3)))
    assert log.manifest.outcomes == {"ok": 3}
    assert [[it["content"] for it in asked["messages"]] for asked in server.asked] == [
        ["one"],
        ["one", heard("one"), "two"],
        ["one", heard("one"), "two", heard("two"), "three"],
    ]


def test_what_was_never_said_is_not_quoted(server: Listener, run: Callable[..., Log]) -> None:
    rows = [say(0, ("user", "think")), say(1, ("user", "next")), say(2, ("assistant", 0), ("user", "then"))]
    rows += [say(0, ("user", "think"), session=1), say(1, ("assistant", 0), ("user", "next"), session=1)]
    log = run(*rows)
    assert log.requests["outcome"].to_pylist() == ["ok", "ok", "not_reached", "ok", "not_reached"]
    (reason,) = {text for text in log.requests["error"].to_pylist() if text}
    assert reason == "its predecessor failed or said nothing to quote, or the run ended first"
    assert sorted(asked["messages"][-1]["content"] for asked in server.asked) == ["next", "think", "think"]


def test_slots_take_sessions_that_quote(server: Listener, run: Callable[..., Log]) -> None:
    rows = [
        ask(None, session=at, turn=turn, messages=messages)
        for at in range(8)
        for turn, messages in enumerate(
            ([("user", (f"{at}",))], [("assistant", (("answer", [0]),)), ("user", (f"{at}",))])
        )
    ]
    assert run(*rows, loop=Loop("closed", slots=2)).manifest.outcomes == {"ok": 16}
    quoting = [asked["messages"] for asked in server.asked if len(asked["messages"]) == 2]
    assert sorted(it[0]["content"] for it in quoting) == sorted(heard(it[1]["content"]) for it in quoting)


# Everything was said


def test_a_body_without_an_end_delays_no_turn(server: Listener, run: Callable[..., Log]) -> None:
    server.ends_bodies = False
    log = run(*(say(turn, ("user", "go"), think=2.0) for turn in range(4)))
    assert log.manifest.outcomes == {"ok": 4}
    begun, due, last = (np.asarray(log.requests[f"{name}_ns"]) for name in ("begun", "due", "last_token"))
    assert (due[1:] - last[:-1] < 500_000_000).all()
    assert (begun - due < 500_000_000).all()
    owner, at_ns, kinds = (np.asarray(log.reads[name]) for name in ("request", "at_ns", "kinds"))
    done = {int(owner[it]): int(at_ns[it]) for it in np.flatnonzero(kinds & int(Kind.DONE))}
    assert due[1:].tolist() == [done[turn] + 2_000_000 for turn in range(3)]


def test_a_whole_answer_that_the_end_of_the_connection_ends_has_a_read_with_its_event(
    server: Listener, run: Callable[..., Log]
) -> None:
    server.streams = False
    log = run(ask())
    (row,) = log.requests.to_pylist()
    assert (row["outcome"], row["events"], row["reads"]) == ("ok", 1, log.reads.num_rows)
    last = log.reads.to_pylist()[-1]
    assert (last["bytes"], last["events"], last["deltas"]) == (0, 1, 1)
    assert row["first_token_ns"] == last["at_ns"]


# Models, tenants, and runs kept apart


def test_an_adapter_is_asked_for_as_a_model(server: Listener, run: Callable[..., Log]) -> None:
    log = run(ask(adapter="lora-a", tenant="blue"), ask(2.0, tenant="red"), ask(4.0, model="lora-a"), loop=Loop())
    assert log.manifest.outcomes == {"ok": 3}
    assert [asked["model"] for asked in server.asked] == ["lora-a", "tiny", "lora-a"]
    assert [headers.get("x-tenant") for headers in server.headers] == ["blue", "red", None]
    assert log.run.settings["tenant_header"] == "X-Tenant"


def test_an_adapter_that_is_not_served_is_refused(server: Listener, run: Callable[..., Log]) -> None:
    with pytest.raises(
        TargetError, match=r"the trace asks for lora-b, which .* does not serve; there is: tiny, lora-a"
    ):
        run(ask(adapter="lora-b"))
    assert server.asked == []


def test_vllm_gets_a_salt_and_the_log_has_it(server: Listener, run: Callable[..., Log]) -> None:
    first, second = run(ask()), run(ask())
    assert (
        [asked["cache_salt"] for asked in server.asked]
        == [first.run.run, second.run.run]
        == [
            first.run.salt,
            second.run.salt,
        ]
    )
    assert first.run.salt != second.run.salt
    assert first.run.settings["isolation"] == "cache_salt"


@pytest.mark.parametrize(("owner", "settings"), [("vllm", {"isolation": "none"}), ("somebody", {})])
def test_runs_that_are_not_kept_apart_say_so(
    server: Listener, run: Callable[..., Log], owner: str, settings: dict[str, Any]
) -> None:
    server.owner = owner
    log = run(ask(), **settings)
    assert "cache_salt" not in server.asked[0]
    assert (log.run.salt, log.run.settings["isolation"]) == ("", "none")


def test_a_header_that_a_server_repeats_is_in_no_file(server: Listener, tmp_path: Path) -> None:
    token = "planted-token-4be1"
    trace = open_loop(2, 5, messages=(("user", ("refuse",)),))
    target = Target(server.url, model="tiny", headers={"X-Token": f"Bearer {token}"})
    log = play(trace, target, tmp_path / "a.log", capture=True)
    assert set(log.requests["error"].to_pylist()) == {"HTTP 403: token *** is not welcome"}
    assert log.environment["server"]["models"]["heard"] == "***"
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert holding == []


def test_images_are_counted_by_a_server_that_takes_them(tmp_path: Path) -> None:
    shape = Shape(Poisson(rate_hz=20), Fixed(tokens=40), Fixed(tokens=5), images=Images(width=32, height=32, count=2))
    trace = shape.trace(None, duration_s=1, seed=1)
    for image_tokens, outcome in ((64, "ok"), (0, "http_error")):
        with running(Script(ttft_s=0.01, itl_s=0.002, image_tokens=image_tokens)) as url:
            log = play(trace, Target(url), tmp_path / f"{outcome}.log")
        assert set(log.manifest.outcomes) == {outcome}
    taken = Log.open(tmp_path / "ok.log").requests["prompt_tokens"].to_pylist()
    assert min(taken) >= 40 + 2 * 64

# An OpenAI-compatible server that speaks like vLLM 0.32 and does exactly what its script says.
#
# Law: it is an instrument to calibrate instruments with. It must be right about what it sent and when
# (the truth log), never early, and honest about its estimates: a token of a prompt is four bytes of UTF-8,
# a token of an answer is a word of an invented list. It is no model of a GPU: capacity, prefill cost and
# the prefix cache are plain rules that a reader can check with a pencil.
#
# Theory: aiohttp reads requests and writes heads and whole bodies; the bytes of a stream go from the
# engine to the socket. Forms and errors follow what a vLLM 0.32.0 server was seen to send.
#
#     script   what will happen, as a value          answer   what is said, as bytes
#     engine   when the bytes leave                  here     requests, routes, processes

"""Endpoint: the embedded OpenAI-compatible server; Script says what it does; serve() and running() run it."""

from __future__ import annotations

import asyncio
import hmac
import multiprocessing
import resource
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web

from loadshape.endpoint.answer import ENDINGS, HTML, Answer, build_body, open_frames
from loadshape.endpoint.ask import Ask, Refusal, choose_length, decode_ask
from loadshape.endpoint.engine import Counts, Engine, PrefixCache, Stream, TruthLog, count_tokens, render_metrics
from loadshape.endpoint.script import FAULTS, Part, Script
from loadshape.errors import InputError, LoadshapeError, TargetError
from loadshape.interrupt import shielding_children
from loadshape.units import NS_PER_S, to_ns
from loadshape.version import __version__

try:
    from uvloop import new_event_loop
except ImportError:  # not on every system; the endpoint is then slower, and as exact
    from asyncio import new_event_loop  # type: ignore[assignment]

__all__ = ["FAULTS", "Endpoint", "Script", "running", "serve"]

BODY_LIMIT_BYTES = 64 << 20
KEEP_ALIVE_S = 5.0  # as vLLM under uvicorn: a client that reuses older connections must learn it here
BACKLOG = 4096
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
ABRUPT = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close sends RST (socket(7))
REQUEST_ID = "x-request-id"
SERVER = f"loadshape/{__version__}"
VERSION = f"0.32.0+loadshape.{__version__}"  # the vLLM whose forms these are; and that this is not it
FINISHED_OTHERWISE = {"abort": "abort", "error_event": "error", "tool_calls": "stop"}
ERRORS_ON_PURPOSE = {
    "400": ("BadRequestError", "The request was refused on purpose."),
    "429": ("RateLimitError", "Too many requests. Please try again later."),
    "500": ("InternalServerError", "The engine failed on purpose."),
    "503": ("Service Unavailable", "The engine is currently busy and cannot accept new requests."),
}


class Endpoint:
    """The server, inside a running event loop: `await start()`, then `url`, at last `await stop()`.

    *truth* names a file for the truth log: an Arrow IPC stream with one row for every write of a stream,
    (request, received_ns, write, tokens, due_ns, write_ns, bytes), times of CLOCK_MONOTONIC. Raises
    TargetError where the port cannot be had.
    """

    def __init__(
        self,
        script: Script,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        model: str = "sim",
        api_key: str | None = None,
        truth: Path | str | None = None,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise TargetError(f"endpoint: port: expected 0 to 65535, found {port}")
        self.script, self.model = script, model
        self._host, self._port = host, port
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()
        self._truth = truth
        self._counts = Counts()
        self._cache = PrefixCache(script.cache_blocks, self._counts)
        self._requests = 0
        self._engine: Engine
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The base URL, with /v1; known after start()."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/v1"

    async def start(self) -> None:
        """Listen; port 0 takes a free one."""
        app = web.Application(client_max_size=BODY_LIMIT_BYTES, middlewares=[self._guard])
        app.add_routes(
            [
                web.post("/v1/chat/completions", partial(self._answer, is_chat=True)),
                web.post("/v1/completions", partial(self._answer, is_chat=False)),
                web.get("/v1/models", self._list_models),
                web.get("/version", self._tell_version),
                web.get("/health", self._tell_health),
                web.get("/metrics", self._tell_metrics),
                web.post("/reset_prefix_cache", self._reset_prefix_cache),
            ]
        )
        app.on_response_prepare.append(_sign)
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=0.1,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, backlog=BACKLOG).start()
            truth = None if self._truth is None else TruthLog(Path(self._truth))
        except OSError as problem:
            await runner.cleanup()
            where = problem.filename or f"{self._host}:{self._port}"
            raise TargetError(f"endpoint: cannot open {where}: {problem.strerror}") from None
        self._port = runner.addresses[0][1]
        step_ns = to_ns(self.script.step_s)
        self._engine = Engine(self._counts, max_running=self.script.max_running, step_ns=step_ns, truth=truth)
        self._runner = runner

    async def stop(self) -> None:
        """Cut the streams in progress, close the port and finish the truth log."""
        if self._runner:
            await self._runner.cleanup()
            self._engine.close()
            self._runner = None

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check the key, and give every failure its body in vLLM's form."""
        key = request.headers.get("authorization", "").encode(errors="surrogateescape")
        is_open = self._authorization is None or not request.path.startswith("/v1/")
        if not is_open and not hmac.compare_digest(key, self._authorization or b""):
            return _write_json({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except Refusal as refusal:
            headers = {"retry-after": "1"} if refusal.status == 429 else None
            return _write_json(refusal.body, status=refusal.status, headers=headers)
        except web.HTTPException as problem:
            allow = {"allow": problem.headers["allow"]} if "allow" in problem.headers else None
            return _write_json({"detail": problem.reason}, status=problem.status, headers=allow)

    async def _answer(self, request: web.Request, *, is_chat: bool) -> web.StreamResponse:
        body = await request.read()
        received_ns = time.monotonic_ns()
        request_id = request.headers.get(REQUEST_ID) or self._invent_name()
        try:
            part = self.script.draw(request_id, request.headers)
        except InputError as problem:
            raise Refusal(str(problem)) from None
        if part.fault in ERRORS_ON_PURPOSE:
            kind, message = ERRORS_ON_PURPOSE[part.fault]
            raise Refusal(message, status=int(part.fault), kind=kind)
        if part.fault == "html200":
            return web.Response(text=HTML, content_type="text/html")
        ask = decode_ask(body, is_chat)
        if ask.model not in (None, self.model):
            text = f"The model `{ask.model}` does not exist. Valid aliases: {self.model}."
            raise Refusal(text, param="model", status=404, kind="NotFoundError")
        answer = self._prepare(ask, part, request_id, is_chat)
        response = await _open_stream(request, part, request_id) if ask.stream else None
        stream = Stream(
            request_id=request_id,
            received_ns=received_ns,
            transport=_require_transport(request),
            frames=open_frames(answer, part, is_chunked=request.version >= HttpVersion11),
            is_silent=response is None,
        )
        await self._engine.play(stream)
        if part.fault in ENDINGS:
            _cut_connection(stream.transport, is_abrupt=ENDINGS[part.fault] == "reset")
        else:
            self._counts.finished[FINISHED_OTHERWISE.get(part.fault, answer.finish)] += 1
        if response is None:
            return _write_json(build_body(answer, part), headers={REQUEST_ID: request_id})
        return response

    def _prepare(self, ask: Ask, part: Part, request_id: str, is_chat: bool) -> Answer:
        prompt = ask.encode_prompt(is_chat, self.script.image_tokens)
        prompt_tokens = count_tokens(prompt)
        tokens, finish = choose_length(ask, part, ask.limit_tokens(is_chat), prompt_tokens, self.script.context_tokens)
        cached_tokens, written_tokens = self._cache.admit(prompt, ask.cache_salt)
        self._counts.prompt_tokens += prompt_tokens
        options = ask.stream_options
        return Answer(
            identity=f"{'chatcmpl' if is_chat else 'cmpl'}-{request_id}",
            created=int(time.time()),
            model=self.model,
            is_chat=is_chat,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            written_tokens=written_tokens,
            completion_tokens=tokens,
            finish=finish,
            tokens_per_event=ask.stream_interval or self.script.tokens_per_event,
            has_usage=bool(options and options.include_usage),
            has_continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        )

    async def _list_models(self, request: web.Request) -> web.Response:
        model = {"id": self.model, "object": "model", "created": int(time.time()), "owned_by": "loadshape"}
        model |= {"root": self.model, "parent": None, "max_model_len": self.script.context_tokens}
        return _write_json({"object": "list", "data": [model]})

    async def _tell_version(self, request: web.Request) -> web.Response:
        return _write_json({"version": VERSION})

    async def _tell_health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _tell_metrics(self, request: web.Request) -> web.Response:
        text = render_metrics(self.model, self._engine, self._cache)
        return web.Response(text=text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        self._cache.reset()
        return _write_json({"success": True})

    def _invent_name(self) -> str:
        self._requests += 1
        return f"sim-{self._requests}"


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    """Put our name on every response, and the request's where it has one."""
    response.headers["server"] = SERVER
    if REQUEST_ID in request.headers:
        response.headers[REQUEST_ID] = request.headers[REQUEST_ID]


def _write_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def _open_stream(request: web.Request, part: Part, request_id: str) -> web.StreamResponse:
    """Send the head of an event stream, and return when it has left: frames bypass aiohttp's buffers."""
    if part.fault == "slow_head":
        await asyncio.sleep(part.ttft_ns / NS_PER_S)
    headers = {"content-type": "text/event-stream; charset=utf-8", REQUEST_ID: request_id}
    if part.fault == "gzip_lie":
        headers["content-encoding"] = "gzip"
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    await response.write(b"")  # aiohttp holds the head back until the first write
    await asyncio.sleep(0)  # uvloop holds small writes back until the next turn of the loop
    return response


def _require_transport(request: web.Request) -> asyncio.Transport:
    if request.transport is None:
        raise ConnectionResetError("the client went away")
    return request.transport


def _cut_connection(transport: asyncio.Transport, *, is_abrupt: bool) -> None:
    """Close after what was written, or drop all with a TCP reset."""
    if is_abrupt:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
        transport.abort()
    else:
        transport.close()


def serve(
    script: Script,
    *,
    announce: Callable[[str], None] = print,
    lifeline: Connection | None = None,
    **options: Any,
) -> None:
    """Run an Endpoint until SIGINT or SIGTERM, or until *lifeline* is closed at its other end.

    *announce* gets the base URL as soon as connections are accepted; *options* are those of Endpoint.
    """
    _allow_many_connections()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(Endpoint(script, **options), announce, lifeline))


async def _serve(endpoint: Endpoint, announce: Callable[[str], None], lifeline: Connection | None) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    if lifeline:
        loop.add_reader(lifeline.fileno(), stopped.set)
    await endpoint.start()
    try:
        announce(endpoint.url)
        await stopped.wait()
    finally:
        await endpoint.stop()


def _allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))


@contextmanager
def running(script: Script, **options: Any) -> Iterator[str]:
    """Run an Endpoint in a process of its own and give its base URL; the process never outlives the block.

    It is spawned, so a program that calls this needs the usual `if __name__ == "__main__"`. Raises
    TargetError where the endpoint does not start.

    >>> with running(Script(ttft_s=0.01)) as url:  # doctest: +SKIP
    ...     print(url)
    http://127.0.0.1:40123/v1
    """
    context = multiprocessing.get_context("spawn")
    lifeline, child_end = context.Pipe()
    process = context.Process(target=_serve_child, args=(script, child_end, options), name="endpoint")
    with shielding_children():
        process.start()
    child_end.close()
    try:
        yield _await_url(lifeline)
    finally:
        lifeline.close()
        process.join(STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
        process.join()
        process.close()


def _await_url(lifeline: Connection) -> str:
    """Return the URL that the child announces, or raise what kept it from starting."""
    answer: str | TargetError | None = None
    with suppress(EOFError):
        answer = lifeline.recv() if lifeline.poll(START_TIMEOUT_S) else None
    if isinstance(answer, str):
        return answer
    raise answer or TargetError(f"endpoint: did not start within {START_TIMEOUT_S:.0f} s, or died on the way")


def _serve_child(script: Script, lifeline: Connection, options: dict[str, Any]) -> None:
    try:
        serve(script, announce=lifeline.send, lifeline=lifeline, **options)
    except LoadshapeError as problem:
        lifeline.send(problem)

# One process around a player: a loop, a network, a log, and orders.
#
# Law: the worker makes the parts, joins them, and looks after itself ten times a second; what is played is
# the player's business.
#
#     10 Hz ----> tick ----> health row, work ahead, flush, progress
#     stdin ----> orders --> start, stop; the end of it means that the coordinator is gone
#
# The collector is frozen and off: a full collection stops the loop for 125 ms with 1.4 million objects, and
# after gc.freeze() for 2 us. Nothing here makes cycles, and even a young collection took up to 9 ms with
# 5,000 streams in flight, so none runs.

"""The worker process: replays one share of a trace and writes one share of the log."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadshape.capture import BYTES_NAME, CAPTURE, INDEX_NAME
from loadshape.errors import InputError, LoadshapeError, ReplayError
from loadshape.log import HEALTH, READS, REQUESTS
from loadshape.pacer import make_pacer, tighten_timers
from loadshape.plan import split_total, split_trace
from loadshape.replayer.body import BodyBuilder
from loadshape.replayer.breaker import REASON
from loadshape.replayer.connection import Network
from loadshape.replayer.health import Vitals
from loadshape.replayer.job import Done, Failed, Job, Ready, Report, Start, Stop, read_order, write_line
from loadshape.replayer.player import Player, Share
from loadshape.replayer.portable import Portable
from loadshape.replayer.recorder import RowWriter, Sink, WriterThread, describe_shards
from loadshape.replayer.roads import find_roads
from loadshape.replayer.secured import Secured
from loadshape.replayer.streams import Streams
from loadshape.replayer.tape import Tape
from loadshape.replayer.terms import choose_loop, make_routes
from loadshape.trace import Trace

TICK_NS = 100_000_000
FLUSH_TICKS = 10
TABLE_DESCRIPTORS = 65_536  # 0.5 MB of the kernel's memory
SWITCH_S = 100e-6  # how long the loop waits for the writer thread at most, which holds the interpreter for a moment
JOB_BYTES = 64 << 20  # a job is one line, and its settings may hold tool schemas

Orders = asyncio.Queue[Start | Stop | None]


class Worker:
    """Replays one share of a trace; `run` is its whole life."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop, report: Callable[[Report], None]) -> None:
        self._job = job
        self._loop = loop
        self._report = report
        self._writer = WriterThread()
        self._requests, self._reads, self._health = _make_rows(job, self._writer)
        self._sinks: list[Sink] = [self._requests, self._reads, self._health]
        self._network = _make_network(job, loop)
        self._player = _make_player(job, self._network, (self._requests, self._reads))
        is_portable = self._network.receive == "user" and sys.platform != "linux"
        self._pacer = make_pacer(loop, self._player.fired, portable=is_portable)
        self._ticker = make_pacer(loop, self._tick)
        if job.settings.capture:
            self._player.decoder.tape, index = _make_tape(job, self._writer)
            self._sinks += [self._player.decoder.tape, index]
        self._vitals = Vitals()
        self._notes: list[str] = []
        self._offset_ns = self._network.tune()
        self._ticks = 0
        self._next_tick_ns = 0
        self._over: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(self._break)

    async def run(self, orders: Orders) -> Done:
        """Open ahead, say that we are ready, replay from the epoch on, close the log, and return what was done."""
        self._writer.open(*self._sinks)
        self._player.attach(self._pacer, self._loop.call_soon, self._end)
        await self._player.sender.warm_up()
        planned = self._player.scheduler.planned
        self._report(Ready(receive=self._network.receive, pacing=self._pacer.name, planned=planned))
        order = await orders.get()
        if isinstance(order, Start):
            self._start(order.epoch_ns)
            following = self._loop.create_task(self._follow(orders))
            await self._over
            following.cancel()
        else:
            self._player.stopped = "stopped before the start"
        return self._finish()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _break(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the run when a callback fails: going on would send what nobody counts."""
        loop.default_exception_handler(context)
        if "handle" in context and not self._over.done():
            self._over.set_exception(context.get("exception") or ReplayError(context["message"]))

    def _start(self, epoch_ns: int) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._next_tick_ns = time.monotonic_ns()
        self._ticker.arm(self._next_tick_ns)
        self._player.start(epoch_ns)

    async def _follow(self, orders: Orders) -> None:
        while True:
            order = await orders.get()
            if isinstance(order, Stop):
                self._player.stop(order.reason, order.grace_s)
            elif order is None:
                self._player.stop("the coordinator is gone", 0.0)

    def _tick(self) -> None:
        """Ten times a second: look after ourselves."""
        now_ns = time.monotonic_ns()
        lag_ns = now_ns - self._next_tick_ns
        self._next_tick_ns += TICK_NS * (1 + lag_ns // TICK_NS)
        self._ticker.arm(self._next_tick_ns)
        self._ticks += 1
        if self._ticks % FLUSH_TICKS == 0:
            self._offset_ns = self._network.tune()
            for sink in self._sinks:
                sink.flush()
            self._check_spin()
        self._check_log()
        self._check_load()
        self._player.check_end()
        self._player.work_ahead()
        self._record_health(now_ns, lag_ns)
        self._report(self._player.describe_progress())

    def _check_spin(self) -> None:
        """Stop polling for the last moments before a send once it costs more than it brings."""
        if self._player.spin_ns and (reason := self._vitals.find_strain()):
            self._player.spin_ns = 0
            self._notes.append(f"worker {self._job.worker}: spinning was turned off: {reason}")

    def _check_log(self) -> None:
        if self._writer.behind:
            self._player.stop("stopped: the log could not be written as fast as it grew", 0.0)
        elif self._writer.error is not None:
            self._player.stop(f"stopped: the log cannot be written: {self._writer.reason}", 0.0)

    def _check_load(self) -> None:
        """Stop a run that this worker cannot keep up with, or that its target should be spared."""
        player = self._player
        if player.decoder.is_behind:
            player.stop("stopped: decoding fell behind what arrived", 0.0)
        elif player.ledger.breaker is not None and player.ledger.breaker.is_open(player.sender.now_ns()):
            player.stop(REASON, self._job.settings.interrupt_grace_s)

    def _record_health(self, now_ns: int, lag_ns: int) -> None:
        player = self._player
        values = self._vitals.sample() | {
            "worker": self._job.worker,
            "at_ns": now_ns - player.sender.epoch_ns,
            "loop_lag_ns": lag_ns,
            "decode_lag_ns": player.decoder.worst_lag_ns,
            "realtime_offset_ns": self._offset_ns,
            "in_flight": len(player.ledger) - player.ledger.lingering,
            "connections": player.sender.lines.open,
            "backlog_rows": self._writer.backlog_rows + self._reads.pending + self._requests.pending,
        }
        player.decoder.worst_lag_ns = 0
        if values["at_ns"] >= 0:
            self._health.append(*(values[name] for name in HEALTH.names))

    def _finish(self) -> Done:
        """Give every request its row, close the files, and say what is in them."""
        self._writer.is_patient = True
        ended_ns = self._player.finish()
        for pacer in (self._pacer, self._ticker):
            pacer.close()
        self._vitals.close()
        for sink in self._sinks:
            sink.flush()
        self._writer.close()
        outcomes = {outcome.name: count for outcome, count in self._player.ledger.counts.items()}
        shards = describe_shards(Path(self._job.log), self._sinks)
        notes = self._notes + self._player.ledger.lines.routes.tell(self._job.worker)
        return Done(shards=shards, outcomes=outcomes, ended_ns=ended_ns, stopped=self._player.stopped, notes=notes)


def _make_rows(job: Job, writer: WriterThread) -> list[RowWriter]:
    folder = Path(job.log) / f"worker-{job.worker:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    schemas = {"requests": REQUESTS, "reads": READS, "health": HEALTH}
    return [RowWriter(folder / f"{name}.arrows", schema, writer) for name, schema in schemas.items()]


def _make_tape(job: Job, writer: WriterThread) -> tuple[Tape, RowWriter]:
    folder = Path(job.log) / f"worker-{job.worker:02d}"
    index = RowWriter(folder / INDEX_NAME, CAPTURE, writer)
    secrets = [secret for target in job.targets for secret in target.list_secrets(target.read_key())]
    return Tape(folder / BYTES_NAME, index, writer, secrets), index


def _make_player(job: Job, network: Network, rows: tuple[RowWriter, RowWriter]) -> Player:
    trace, workers, rank = Trace.open(job.trace), job.settings.processes, job.worker % job.settings.workers
    is_clocked, probe_every = job.settings.slots is None, job.settings.probe_every
    plan = split_trace(trace, rank, workers, clocked=is_clocked, probe_every=probe_every)
    loop = choose_loop(trace, job.settings)
    slots, cap = (split_total(total, rank, workers) for total in (loop.slots, loop.cap))
    share = Share((job.worker, job.node), slots, cap, make_routes(trace, plan, job.targets, job.settings))
    keys = [target.read_key() for target in job.targets]
    bodies = BodyBuilder(trace, job.targets, run=job.run, keys=keys, settings=job.settings)
    return Player(plan, network, bodies, rows, job.settings, share=share)


def _make_network(job: Job, loop: asyncio.AbstractEventLoop) -> Network:
    targets, sources = job.targets, job.settings.source_ips
    roads = [find_roads(it, addresses, sources) for it, addresses in zip(targets, job.addresses, strict=True)]
    if job.settings.receive == "user" or sys.platform != "linux":
        return Portable(loop, roads, targets)
    streams = Streams(loop, roads)
    return Secured(streams, loop, targets) if any(target.tls for target in targets) else streams


async def serve_orders() -> int:
    """Read a job from standard input, do it, and report on standard output. Returns the exit code."""
    loop = asyncio.get_running_loop()
    output = os.dup(1)
    os.dup2(2, 1)  # a stray print must not look like a report

    def report(message: Report) -> None:
        with contextlib.suppress(OSError):  # the coordinator is gone: the end of its orders says so too
            os.write(output, write_line(message))

    reader = asyncio.StreamReader(limit=JOB_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        job = read_order(await reader.readline())
        assert isinstance(job, Job)
        orders: Orders = asyncio.Queue()
        reading = loop.create_task(_read_orders(reader, orders))
        report(await Worker(job, loop, report).run(orders))
        reading.cancel()
    except (LoadshapeError, OSError) as error:
        report(Failed(reason=str(error), is_input=isinstance(error, InputError)))
        return 1
    return 0


async def _read_orders(reader: asyncio.StreamReader, orders: Orders) -> None:
    while line := await reader.readline():
        order = read_order(line)
        if not isinstance(order, Job):
            orders.put_nowait(order)
    orders.put_nowait(None)


def make_room() -> None:
    """Allow as many descriptors as permitted, and make the kernel's table of them large at once.

    The table doubles when it is full, and in a process with threads that waits for a grace period of the
    kernel (expand_fdtable: synchronize_rcu): 7 to 19 ms inside one socket() were measured at the 512th.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    with contextlib.suppress(OSError):
        os.close(fcntl.fcntl(0, fcntl.F_DUPFD, min(soft, TABLE_DESCRIPTORS) - 1))


def main() -> int:
    """Run one worker under uvloop, where there is one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    make_room()
    tighten_timers()
    sys.setswitchinterval(SWITCH_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve_orders())
    return uvloop.run(serve_orders())


if __name__ == "__main__":
    sys.exit(main())

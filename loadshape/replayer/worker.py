# One process: a loop, a plan, a network, a log.
#
# Law: the order of importance is send, read, decode, everything else.
#
#     pacer ----> fired ---> sender.wake: scheduler.release -> begin -> network.send
#     sockets --> ready ---> network.drain -> inbox -> decoder.decode_slice -> recorder
#     10 Hz ----> tick ----> health row, connections and bodies ahead, flush, progress
#     stdin ----> orders --> start, stop; the end of it means that the coordinator is gone
#
# The collector is frozen and off: a full collection stops the loop for 125 ms with 1.4 million objects, and
# after gc.freeze() for 2 us. Nothing here makes cycles, and a young collection runs at each tick.

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
from pathlib import Path
from typing import Any

from loadshape.errors import InputError, LoadshapeError
from loadshape.log import HEALTH, READS, REQUESTS, Outcome
from loadshape.pacer import make_pacer, tighten_timers
from loadshape.plan import split_total, split_trace
from loadshape.replayer.body import BodyBuilder
from loadshape.replayer.connection import Network
from loadshape.replayer.decoder import Decoder
from loadshape.replayer.health import Vitals
from loadshape.replayer.job import Done, Failed, Job, Progress, Ready, Report, Start, Stop, read_order, write_line
from loadshape.replayer.ledger import Ledger
from loadshape.replayer.limits import Limits
from loadshape.replayer.portable import Portable
from loadshape.replayer.recorder import RowWriter, WriterThread, describe_shards
from loadshape.replayer.scheduler import NEVER, Scheduler
from loadshape.replayer.sender import Sender
from loadshape.replayer.streams import Streams
from loadshape.trace import Trace
from loadshape.units import to_ns

TICK_NS = 100_000_000
FLUSH_TICKS = 10
TABLE_DESCRIPTORS = 65_536  # 0.5 MB of the kernel's memory
JOB_BYTES = 64 << 20  # a job is one line, and its settings may hold tool schemas


class Worker:
    """Replays one share of a trace; `run` is its whole life."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop
        folder = Path(job.log) / f"worker-{job.worker:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        trace = Trace.open(job.trace)
        workers = job.settings.processes
        self._plan = plan = split_trace(trace, job.worker, workers)
        self._writer = WriterThread()
        self._requests = RowWriter(folder / "requests.arrows", REQUESTS, self._writer)
        self._reads = RowWriter(folder / "reads.arrows", READS, self._writer)
        self._health = RowWriter(folder / "health.arrows", HEALTH, self._writer)
        self._network = _make_network(job, loop)
        spread = {
            name: split_total(getattr(trace.manifest.loop, name), job.worker, workers) for name in ("slots", "cap")
        }
        self._scheduler = Scheduler(plan, **spread)
        key = job.target.read_key()
        bodies = BodyBuilder(trace, job.target, run=job.run, key=key, extra=job.settings.body)
        self._ledger = Ledger(plan, self._scheduler, Limits(job.settings), self._requests, job.worker, key)
        self._sender = Sender(plan, self._scheduler, self._ledger, bodies, self._network)
        self._ledger.lines = self._sender.lines
        self._decoder = Decoder(self._network, self._sender, self._ledger, self._reads)
        self._pacer = make_pacer(
            loop, self._fired, portable=self._network.receive == "user" and sys.platform != "linux"
        )
        self._ticker = make_pacer(loop, self._tick)
        self._vitals = Vitals()
        self._offset_ns = self._network.tune()
        self._ticks = 0
        self._next_tick_ns = 0
        self._cut_at_ns = NEVER
        self._stopped: str | None = None
        self._is_continuing = False
        self._over = loop.create_future()

    async def run(self, orders: asyncio.Queue[Start | Stop | None], report: Any) -> Done:
        """Open ahead, say that we are ready, replay from the epoch on, close the log, and return what was done."""
        self._report = report
        self._writer.open(self._requests, self._reads, self._health)
        self._network.listen(self._sender, self._ready)
        await self._sender.warm_up()
        report(Ready(receive=self._network.receive, pacing=self._pacer.name, planned=len(self._plan)))
        order = await orders.get()
        if isinstance(order, Start):
            _quiet_collector()
            self._sender.epoch_ns = order.epoch_ns
            self._next_tick_ns = time.monotonic_ns()
            self._ticker.arm(self._next_tick_ns)
            self._arm()
            following = self._loop.create_task(self._follow(orders))
            await self._over
            following.cancel()
        else:
            self._stopped = "stopped before the start"
        return self._finish()

    async def _follow(self, orders: asyncio.Queue[Start | Stop | None]) -> None:
        while True:
            order = await orders.get()
            if isinstance(order, Stop):
                self._stop(order.reason, order.grace_s)
            elif order is None:
                self._stop("the coordinator is gone", 0.0)

    def _stop(self, reason: str, grace_s: float) -> None:
        self._stopped = self._stopped or reason
        self._scheduler.stop()
        self._cut_at_ns = min(self._cut_at_ns, self._sender.now_ns() + to_ns(grace_s))
        self._arm()

    # What the loop calls

    def _fired(self) -> None:
        """Act on the pacer: read on until the very instant if asked to, then begin what is due."""
        due_at_ns = self._network.due_at_ns
        if due_at_ns - time.monotonic_ns() <= self._job.settings.spin_us * 1000:
            while time.monotonic_ns() < due_at_ns:
                self._network.drain()
        self._sender.wake()
        if min(self._ledger.next_deadline_ns(), self._cut_at_ns) <= self._sender.now_ns():
            self._loop.call_soon(self._expire)  # after the sockets that are ready together with the pacer
        self._ready()

    def _expire(self) -> None:
        """End what is too late, after a look at all that has arrived: a stall of ours is nobody's silence."""
        self._network.drain()
        while self._decoder.decode_slice():
            pass
        now_ns = self._sender.now_ns()
        self._ledger.expire(now_ns)
        if now_ns >= self._cut_at_ns:
            self._scheduler.stop()
            self._ledger.cut(self._stopped or "cut at the end of the run", now_ns)
        self._arm()

    def _ready(self) -> None:
        """Drain the sockets, decode a slice, and come back for the rest."""
        self._network.drain()
        if self._decoder.decode_slice() and not self._is_continuing:
            self._is_continuing = True
            self._loop.call_soon(self._continue)
        self._arm()

    def _continue(self) -> None:
        self._is_continuing = False
        self._ready()

    def _arm(self) -> None:
        self._sender.look_ahead()
        if len(self._ledger) == 0 and self._scheduler.next_due_ns() == NEVER and not self._over.done():
            self._over.set_result(None)
            return
        next_ns = self._scheduler.next_due_ns() - self._job.settings.spin_us * 1000
        next_ns = min(next_ns, self._ledger.next_deadline_ns(), self._cut_at_ns)
        if next_ns < NEVER // 2:
            self._pacer.arm(next_ns + self._sender.epoch_ns)

    def _tick(self) -> None:
        """Ten times a second: look after ourselves."""
        now_ns = time.monotonic_ns()
        lag_ns = now_ns - self._next_tick_ns
        self._next_tick_ns += TICK_NS * (1 + lag_ns // TICK_NS)
        self._ticker.arm(self._next_tick_ns)
        self._ticks += 1
        if self._ticks % FLUSH_TICKS == 0:
            self._offset_ns = self._network.tune()
            for rows in (self._requests, self._reads, self._health):
                rows.flush()
        self._check_end(now_ns - self._sender.epoch_ns)
        self._sender.lines.close_idle()
        self._work_ahead()
        gc.collect(0)
        self._record_health(now_ns, lag_ns)
        self._report(describe_progress(self._sender, self._ledger, self._decoder))

    def _work_ahead(self) -> None:
        if self._sender.work_ahead(self._sender.now_ns()):
            self._loop.call_soon(self._work_ahead)

    def _check_end(self, now_ns: int) -> None:
        if self._writer.behind:
            self._stop("stopped: the log could not be written as fast as it grew", 0.0)
        elif self._writer.error is not None:
            self._stop(f"stopped: the log cannot be written: {self._writer.reason}", 0.0)
        grace_s = self._job.settings.grace_s
        if grace_s is not None and self._cut_at_ns == NEVER and self._scheduler.drained:
            self._cut_at_ns = now_ns + to_ns(grace_s)
            self._arm()

    # Accounts

    def _record_health(self, now_ns: int, lag_ns: int) -> None:
        values = self._vitals.sample() | {
            "worker": self._job.worker,
            "at_ns": now_ns - self._sender.epoch_ns,
            "loop_lag_ns": lag_ns,
            "decode_lag_ns": self._decoder.worst_lag_ns,
            "realtime_offset_ns": self._offset_ns,
            "in_flight": len(self._ledger),
            "connections": self._sender.lines.open,
            "backlog_rows": self._writer.backlog_rows + self._reads.pending + self._requests.pending,
        }
        self._decoder.worst_lag_ns = 0
        if values["at_ns"] >= 0:
            self._health.append(*(values[name] for name in HEALTH.names))

    def _finish(self) -> Done:
        """Give every request its row, close the files, and say what is in them."""
        now_ns = max(0, self._sender.now_ns())
        self._writer.is_patient = True
        self._ledger.cut(self._stopped or "cut at the end of the run", now_ns)
        self._ledger.close(self._stopped or "its predecessor failed, or the run ended first")
        for pacer in (self._pacer, self._ticker):
            pacer.close()
        self._network.shut()
        self._vitals.close()
        writers = [self._requests, self._reads, self._health]
        for rows in writers:
            rows.flush()
        self._writer.close()
        outcomes = {outcome.name: count for outcome, count in self._ledger.counts.items()}
        shards = describe_shards(Path(self._job.log), writers)
        return Done(shards=shards, outcomes=outcomes, ended_ns=now_ns, stopped=self._stopped)


def _quiet_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()


def describe_progress(sender: Sender, ledger: Ledger, decoder: Decoder) -> Progress:
    """Return the counts so far, and the worst lateness since this was asked last."""
    late_ns, sender.worst_late_ns = sender.worst_late_ns, 0
    ended = ledger.counts.total()
    return Progress(
        begun=sender.begun,
        ended=ended,
        failed=ended - ledger.counts[Outcome.ok],
        in_flight=len(ledger),
        reads=decoder.reads,
        late_ns=late_ns,
    )


def _make_network(job: Job, loop: asyncio.AbstractEventLoop) -> Network:
    exact = sys.platform == "linux" and not job.target.tls
    if job.settings.receive == "user" or not exact:
        return Portable(loop, job.addresses, job.target)
    return Streams(loop, job.addresses, job.target.port)


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
        orders: asyncio.Queue[Start | Stop | None] = asyncio.Queue()
        reading = loop.create_task(_read_orders(reader, orders))
        report(await Worker(job, loop).run(orders, report))
        reading.cancel()
    except (LoadshapeError, OSError) as error:
        report(Failed(reason=str(error), is_input=isinstance(error, InputError)))
        return 1
    return 0


async def _read_orders(reader: asyncio.StreamReader, orders: asyncio.Queue[Start | Stop | None]) -> None:
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
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve_orders())
    return uvloop.run(serve_orders())


if __name__ == "__main__":
    sys.exit(main())

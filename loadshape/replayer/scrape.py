# The server's own numbers, asked for while a run goes on.
#
# Law: looking on must not be felt. Each thing that is watched has a thread of its own in the coordinator, where no
# request passes; questions go over connections of their own, with a time limit; who does not answer is counted and
# told in a note, and costs the run nothing. Rows go to the disk as they come (observation.py).
#
#     watched -> first samples -> T0 -> one every scrape_s -> the last answer -> last samples
#
# Counters are of the server's whole life, so what a run did is a difference: of the last sample, taken after the last
# answer, and the first one, taken before the first packet. Ticks are planned instants: one that takes long is followed
# by the next that is still to come, so a slow server is asked less often and never twice at once.
#
# Names are those of vLLM (vllm/v1/metrics/loggers.py, 0.10 to 0.32), old ones beside new ones.

"""Scraper: samples of servers and GPUs from before T0 until after the last answer."""

from __future__ import annotations

import http.client
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.errors import TargetError
from loadshape.observation import SAMPLES
from loadshape.replayer.question import ask_page, conceal, find_root
from loadshape.replayer.samples import Sample, parse_page
from loadshape.target import Target

TIMEOUT_S = 2.0
PREFIX = "vllm:"
SCALARS = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc"),
    *("num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
    *("external_prefix_cache_queries_total", "external_prefix_cache_hits_total"),
    *("prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total", "request_success_total"),
    *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
    "admission_rejections_total",
)
HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
)
WANTED = frozenset(
    {
        *(PREFIX + name for name in SCALARS),
        *(f"{PREFIX}{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")),
    }
)
FAULTS = (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError, TargetError)


@dataclass(slots=True)
class Watched:
    """Something that gives samples when it is asked: the server of a target, or this host (None)."""

    target: int | None
    take: Callable[[], Iterable[Sample]]
    asked: int = 0
    faults: list[str] = field(default_factory=list)


class Scraper:
    """Takes samples of all *watched* and writes them to *path*; does nothing without any. A context manager.

    The first samples are there when the block begins. `begin` says when T0 is: from then on one is taken every
    *every_s*. At the end of the block the last ones are taken, and `notes` tell what was missed.
    """

    def __init__(self, path: Path, watched: Sequence[Watched], every_s: float) -> None:
        self._path = path
        self._watched = watched
        self._every_ns = round(every_s * 1e9)
        self._epoch_ns = 0
        self._rows: list[pa.RecordBatch] = []  # that were taken before T0 was known
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._sink: pa.NativeFile | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self._fault = ""  # of the disk; nothing is written after it
        self.notes: list[str] = []

    def __enter__(self) -> Scraper:
        if self._watched:
            with ThreadPoolExecutor(len(self._watched)) as pool:
                list(pool.map(self._sample, self._watched))
        return self

    def begin(self, epoch_ns: int) -> None:
        """Go on taking samples; *epoch_ns* is T0 on CLOCK_MONOTONIC."""
        if not self._watched:
            return
        self._epoch_ns = epoch_ns
        with self._noting():
            self._sink = pa.OSFile(str(self._path), "wb")
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            self._stream = pa.ipc.new_stream(self._sink, SAMPLES, options=options)
        with self._writing:
            held, self._rows = self._rows, []
            for batch in held:
                self._write(batch)
        self._threads = [threading.Thread(target=self._watch, args=(it,), daemon=True) for it in self._watched]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        for end in (self._stream, self._sink):
            with self._noting():
                if end is not None:
                    end.close()
        self.notes += [_tell_faults(it) for it in self._watched if it.faults] + ([self._fault] if self._fault else [])

    def _watch(self, watched: Watched) -> None:
        due_ns = self._epoch_ns
        while not self._over.wait(max(0, due_ns - time.monotonic_ns()) / 1e9):
            self._sample(watched)
            missed = max(0, time.monotonic_ns() - due_ns) // self._every_ns
            due_ns += (missed + 1) * self._every_ns
        self._sample(watched)

    def _sample(self, watched: Watched) -> None:
        asked_ns = time.monotonic_ns()
        watched.asked += 1
        try:
            found = list(watched.take())
        except FAULTS as problem:
            watched.faults.append(str(problem) or type(problem).__name__)
            return
        width_ns = time.monotonic_ns() - asked_ns
        batch = make_batch(found, target=watched.target, at_ns=asked_ns + width_ns // 2, width_ns=width_ns)
        with self._writing:
            self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._fault:
            return
        if self._stream is None:
            self._rows.append(batch)
            return
        at_ns = pc.subtract(batch.column("at_ns"), self._epoch_ns)
        with self._noting():
            self._stream.write_batch(batch.set_column(1, SAMPLES.field("at_ns"), at_ns))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep a fault of the disk from ending the run: it is for the log's writers to say that it is full."""
        try:
            yield
        except OSError as problem:
            why = os.strerror(problem.errno) if problem.errno else str(problem).partition("\n")[0]
            self._fault = self._fault or f"{self._path.name}: cannot be written: {why}; later samples are missing"


def watch_targets(
    targets: Sequence[Target], addresses: Sequence[Sequence[str]], chosen: Iterable[int]
) -> list[Watched]:
    """Return the servers of those *targets*, by number, that are *chosen*."""
    return [Watched(number, _ask_metrics(targets[number], addresses[number][0])) for number in chosen]


def make_batch(samples: Sequence[Sample], *, target: int | None, at_ns: int, width_ns: int) -> pa.RecordBatch:
    """Return *samples* that were taken at once as rows of observation.SAMPLES."""
    rows = len(samples)
    labels = [msgspec.json.encode(it.labels, order="deterministic").decode() for it in samples]
    columns = [[target] * rows, [at_ns] * rows, [width_ns] * rows, [it.name for it in samples], labels]
    columns.append([it.value for it in samples])
    return pa.record_batch([pa.array(*it) for it in zip(columns, SAMPLES.types, strict=True)], schema=SAMPLES)


def _ask_metrics(target: Target, address: str) -> Callable[[], Iterable[Sample]]:
    path, secrets = find_root(target) + "/metrics", target.list_secrets(target.read_key())

    def take() -> Iterable[Sample]:
        page = ask_page(target, path, timeout_s=TIMEOUT_S, address=address)
        if page.status != 200:
            raise OSError(f"HTTP {page.status}")
        return parse_page(conceal(page.body.decode(errors="replace"), secrets), WANTED)

    return take


def _tell_faults(watched: Watched) -> str:
    whose = "of this host" if watched.target is None else f"of the server of target {watched.target}"
    return f"{len(watched.faults)} of {watched.asked} samples {whose} are missing: {watched.faults[-1][:200]}"

# The server's side of a run: what it said of itself, beside what was seen of it from here.
#
# Law: of the whole run, from the sample before T0 to the one after the last answer, since counters know no window. Each
# number of the server's stands beside the one of the log that ought to agree, and a remark is made where they cannot be
# of the same traffic:
#
#     warm cache      more tokens from the prefix cache than the trace's own sharing allows, with all that a chat
#                     template may add: an earlier run, or another client, has filled it
#     other clients   requests under way before T0; more tokens counted than were asked for
#     restart         a counter that fell
#
# Less from the cache than declared is no contradiction: blocks are cut at their size, a prompt that is still being read
# cannot be shared, and a full cache evicts. The server's TTFT begins when its front end has the request, so ours is
# longer by the network, HTTP and the way of the first chunk; its quantiles are known to a bucket.
#
# How many requests fit into the KV cache is its tokens over the mean tokens of a planned request: an upper bound, which
# sharing raises and uneven lengths lower.

"""Servers and GPUs of a run: queues, caches, counters and the remarks that they call for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape import metrics
from loadshape.log import Log
from loadshape.observation import read_samples
from loadshape.series import Bracket, Series, bracket_quantile, list_labels, read_histogram, read_series
from loadshape.stats import quantiles

SLACK = 0.02  # of the tokens, by which two counts of the same traffic may differ
THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80  # NVML: power cap, hardware slowdown, heat (twice), power brake
_VLLM = "vllm:"


@dataclass(frozen=True, slots=True)
class Level:
    """A gauge during the run: the mean and the largest of its samples."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """One count from both sides: what the server's counter grew by, and the sum over the log; None if not told."""

    server: float | None
    log: int | None


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The time to the first token by the server's histogram, and from `sent` in the log."""

    p50: Bracket | None
    p95: Bracket | None
    log_p50_s: float | None
    log_p95_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What the server of one target said of itself during a run; None for what it did not say."""

    target: int
    url: str
    samples: int
    running: Level | None
    waiting: Level | None
    kv_usage: Level | None
    preemptions: float | None
    prompt: Tokens
    completion: Tokens
    hit_share: float | None  # of the prompt tokens, from the prefix cache
    declared_share: float | None  # of the planned input tokens, shared with an earlier request of the trace
    acceptance: float | None  # of the tokens that were drafted
    first_token: FirstToken
    capacity_tokens: int | None  # of the KV cache
    capacity_requests: float | None  # of this trace, that fit into it
    limit_sequences: int | None  # that the server's scheduler runs at once
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of the host that measured, during a run."""

    gpu: str
    utilization: Level | None
    memory_bytes: Level | None
    memory_total_bytes: float | None
    power_w: Level | None
    clock_hz: Level | None
    throttled: float | None  # share of the samples in which power or heat slowed it down


def measure_servers(log: Log) -> tuple[Server, ...]:
    """Return what each server said of itself, by target; without those that were not watched."""
    samples = _read(log)
    watched = pc.unique(samples["target"]).drop_null().to_pylist()
    return tuple(_Observed(log, samples, target).describe() for target in sorted(watched))


def measure_gpus(log: Log) -> tuple[Gpu, ...]:
    """Return the GPUs of the host that measured, by index; none where it knows of none."""
    samples = _read(log)
    samples = samples.filter(pc.is_null(samples["target"]))
    return tuple(_describe_gpu(samples, gpu) for gpu in list_labels(samples, "gpu"))


def list_series(log: Log) -> tuple[Series, ...]:
    """Return what is worth drawing on the clock of the run: queues, cache, token rates, GPUs; without empty ones."""
    samples, found = _read(log), []
    for target in sorted(pc.unique(samples["target"]).drop_null().to_pylist()):
        seen = _Observed(log, samples, target)
        found += [seen.running, seen.waiting, seen.kv_usage]
        for name in ("prompt_tokens", "generation_tokens"):
            found.append(seen.count(name).per_second(f"{name}_per_s", "tokens/s"))
        found.append(seen.count("num_preemptions").per_second("preemptions_per_s", "1/s"))
    for name, unit in (("gpu_utilization", "share"), ("gpu_memory_used_bytes", "bytes"), ("gpu_power_w", "W")):
        found.append(read_series(samples, None, name, unit=unit, by="max" if unit == "share" else "sum"))
    return tuple(series for series in found if len(series))


class _Observed:
    """The samples of one target's server beside the requests that it got."""

    def __init__(self, log: Log, samples: pa.Table, target: int) -> None:
        self.log, self.target = log, target
        self.samples = samples.filter(pc.equal(samples["target"], target))
        self.requests = log.requests.filter(
            pc.and_(pc.equal(log.requests["target"], target), pc.is_valid(log.requests["begun_ns"]))
        )
        facts = log.environment.get("server") or {}
        self.url = str(log.run.targets[target].get("url", "")) if target < len(log.run.targets) else ""
        self.facts: dict[str, Any] = facts if len(log.run.targets) < 2 else facts.get(self.url) or {}
        self.running = self.gauge("num_requests_running", unit="requests")
        self.waiting = self.gauge("num_requests_waiting", unit="requests")
        self.kv_usage = self.gauge("kv_cache_usage_perc", "gpu_cache_usage_perc", unit="share", by="max")

    def gauge(self, *names: str, unit: str, by: str = "sum") -> Series:
        return read_series(self.samples, self.target, *(_VLLM + name for name in names), unit=unit, by=by)

    def count(self, name: str) -> Series:
        return read_series(self.samples, self.target, f"{_VLLM}{name}_total")

    def describe(self) -> Server:
        prompt, completion = (self._compare(*pair) for pair in _COUNTED)
        capacity = self._count_capacity()
        need = self._mean_need()
        return Server(
            target=self.target,
            url=self.url,
            samples=len(pc.unique(self.samples["at_ns"])),
            running=_level(self.running),
            waiting=_level(self.waiting),
            kv_usage=_level(self.kv_usage),
            preemptions=self.count("num_preemptions").increase,
            prompt=prompt,
            completion=completion,
            hit_share=_share(self.count("prefix_cache_hits"), self.count("prefix_cache_queries")),
            declared_share=self._declare(0)[0],
            acceptance=_share(*(self.count(f"spec_decode_num_{of}_tokens") for of in ("accepted", "draft"))),
            first_token=self._compare_first_token(),
            capacity_tokens=capacity,
            capacity_requests=capacity / need if capacity and need else None,
            limit_sequences=_number((self.facts.get("engine") or {}).get("scheduler_config", {}).get("max_num_seqs")),
            remarks=tuple(self._remark(prompt)),
        )

    def _compare(self, counter: str, column: str) -> Tokens:
        return Tokens(self.count(counter).increase, pc.sum(self.requests[column]).as_py())

    def _compare_first_token(self) -> FirstToken:
        bounds, counts = read_histogram(self.samples, self.target, f"{_VLLM}time_to_first_token_seconds")
        ours = metrics.measure(self.requests, "service_ttft")
        p50, p95 = (bracket_quantile(bounds, counts, q) for q in (0.5, 0.95))
        return FirstToken(p50, p95, *quantiles(ours[~np.isnan(ours)], (0.5, 0.95)))

    def _declare(self, extra_tokens: float) -> tuple[float | None, float | None]:
        """Return the declared share, and the largest that *extra_tokens* of a chat template may make of it."""
        planned = self._planned()
        inputs = 0 if planned is None else pc.sum(planned["input_tokens"]).as_py() or 0
        if planned is None or not inputs:
            return None, None
        shared = pc.sum(planned["shared_tokens"]).as_py()
        return shared / inputs, (shared + extra_tokens) / (inputs + extra_tokens)

    def _planned(self) -> pa.Table | None:
        """What was planned of the requests that were begun, in their order."""
        if self.log.planned is None or not self.requests.num_rows:
            return None
        return self.log.planned.take(self.requests["request"])

    def _mean_need(self) -> float | None:
        planned = self._planned()
        return None if planned is None else pc.mean(pc.add(planned["input_tokens"], planned["output_tokens"])).as_py()

    def _count_capacity(self) -> int | None:
        cache = self.facts.get("cache") or {}
        blocks, size = (_number(cache.get(name)) for name in ("num_gpu_blocks", "block_size"))
        tokens = _number(cache.get("kv_cache_size_tokens")) or (blocks * size if blocks and size else None)
        return tokens and tokens * max(1, len(list_labels(self.samples, "engine")))

    def _remark(self, prompt: Tokens) -> Iterator[str]:
        counters = [self.count(name) for name in ("prompt_tokens", "generation_tokens")]
        if any(it.restarts for it in counters):
            yield "a counter fell during the run: the server was started anew, and its caches were cold again"
        if len(self.running) and self.running.at_s[0] >= 0:
            yield "no sample from before the first request: what the counters grew by lacks the beginning of the run"
        before = sum(float(it.values[0]) for it in (self.running, self.waiting) if len(it) and it.at_s[0] < 0)
        if before:
            yield f"{before:g} requests were under way before the run began: the server has other clients"
        if self._is_more(prompt):
            yield (
                f"the server read {prompt.server:,.0f} prompt tokens, the requests of this run were {prompt.log:,}: "
                "it has other clients"
            )
        yield from self._remark_cache(prompt)

    def _is_more(self, prompt: Tokens) -> bool:
        """Whether the server counted more than was asked of it; not known where an answer told no tokens."""
        if prompt.server is None or prompt.log is None or self.requests["prompt_tokens"].null_count:
            return False
        resent = self.requests.filter(pc.is_valid(self.requests["resent_ns"]))  # counted twice, perhaps
        return prompt.server > (1 + SLACK) * prompt.log + (pc.sum(resent["prompt_tokens"]).as_py() or 0)

    def _remark_cache(self, prompt: Tokens) -> Iterator[str]:
        hits = _share(self.count("prefix_cache_hits"), self.count("prefix_cache_queries"))
        told = self.requests.filter(pc.is_valid(self.requests["prompt_tokens"]))
        if self.log.planned is None or hits is None or not told.num_rows:
            return
        planned = self.log.planned.take(told["request"])["input_tokens"].cast(pa.int64())
        template = pc.min(pc.subtract(told["prompt_tokens"].cast(pa.int64()), planned)).as_py()  # what every one has
        declared, most = self._declare(max(0, template) * self.requests.num_rows)
        if most is not None and hits > most + SLACK:
            yield (
                f"{hits:.1%} of the prompt tokens came from the prefix cache, the trace shares {declared:.1%} "
                f"({most:.1%} with all of the chat template): the cache was warm from another run or another client"
            )


_COUNTED = (("prompt_tokens", "prompt_tokens"), ("generation_tokens", "completion_tokens"))


def _read(log: Log) -> pa.Table:
    return read_samples(log.path)


def _describe_gpu(samples: pa.Table, gpu: str) -> Gpu:
    own = samples.filter(pc.equal(samples["labels"], f'{{"gpu":"{gpu}"}}'))
    total = read_series(own, None, "gpu_memory_total_bytes")
    reasons = read_series(own, None, "gpu_throttle_reasons").values.astype(np.int64)
    levels = ("gpu_utilization", "gpu_memory_used_bytes", "gpu_power_w", "gpu_clock_hz")
    utilization, memory_bytes, power_w, clock_hz = (_level(read_series(own, None, name)) for name in levels)
    return Gpu(
        gpu=gpu,
        utilization=utilization,
        memory_bytes=memory_bytes,
        memory_total_bytes=float(total.values[0]) if len(total) else None,
        power_w=power_w,
        clock_hz=clock_hz,
        throttled=float(np.mean(reasons & THROTTLED != 0)) if len(reasons) else None,
    )


def _level(series: Series) -> Level | None:
    """The mean and the maximum of the samples since T0; the one after the last answer is none of the run."""
    values = series.values[series.at_s >= 0][:-1]
    return Level(float(values.mean()), float(values.max())) if len(values) else None


def _share(part: Series, whole: Series) -> float | None:
    of = whole.increase
    return part.increase / of if of and part.increase is not None else None


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None

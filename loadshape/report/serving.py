# The server's side of a run, as rows of text and as plain values.
#
# Law: a number of the server's stands beside ours of the same thing, and each remark that server.py makes is told. What
# a server did not say has no row. Layout only: nothing is computed here.

"""Forms of what servers and GPUs said of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from loadshape.report.tables import clean_text
from loadshape.series import Bracket
from loadshape.server import Gpu, Level, Server, measure_gpus, measure_servers
from loadshape.summary import Summary
from loadshape.units import format_duration
from loadshape.validity.finding import show_share

_GIB = float(1 << 30)


def list_serving(summary: Summary) -> list[tuple[str, str]]:
    """Return (label, text) rows; none where no server was watched."""
    servers, gpus = measure_servers(summary.log), measure_gpus(summary.log)
    rows = [row for it in servers for row in _tell_server(it, several=len(summary.log.run.targets) > 1)]
    return rows + [(f"gpu {clean_text(it.gpu)}", _tell_gpu(it)) for it in gpus]


def describe_serving(summary: Summary) -> dict[str, Any]:
    """Return the same as plain values."""
    servers, gpus = measure_servers(summary.log), measure_gpus(summary.log)
    return {"servers": msgspec.to_builtins(servers), "gpus": msgspec.to_builtins(gpus)}


def _tell_server(server: Server, *, several: bool) -> Iterator[tuple[str, str]]:
    if several:
        yield f"target {server.target}", clean_text(server.url)
    if server.running and server.waiting:
        queue = f"running {_tell_level(server.running)}, waiting {_tell_level(server.waiting)}"
        preempted = "" if server.preemptions is None else f"; {server.preemptions:,.0f} preemptions"
        yield "queue", f"{queue}{preempted}; {server.samples} samples"
    yield from _tell_cache(server)
    counted = (("prompt", server.prompt), ("output", server.completion))
    both = [f"{_count(it.server)} {name} (here {_count(it.log)})" for name, it in counted if it.server is not None]
    if both:
        yield "tokens", ", ".join(both)
    if server.acceptance is not None:
        yield "speculation", f"{show_share(server.acceptance)} of the drafted tokens were accepted"
    first = server.first_token
    pairs = [("p50", first.p50, first.log_p50_s), ("p95", first.p95, first.log_p95_s)]
    told = [f"{name} {_tell_bracket(it)}, here {format_duration(ours)}" for name, it, ours in pairs if it is not None]
    if told:
        yield "TTFT", f"{'; '.join(told)} from sent"
    for remark in server.remarks:
        yield "remark", remark


def _tell_cache(server: Server) -> Iterator[tuple[str, str]]:
    if server.kv_usage:
        room = []
        if server.capacity_tokens and server.capacity_requests:
            room.append(f"{server.capacity_tokens:,} tokens, room for {server.capacity_requests:,.0f} such requests")
        if server.limit_sequences:
            room.append(f"at most {server.limit_sequences:,} at once")
        used = f"mean {show_share(server.kv_usage.mean)}, max {show_share(server.kv_usage.max)}"
        yield "KV cache", "; ".join((used, *room))
    if server.hit_share is not None:
        declared = "" if server.declared_share is None else f"; the trace shares {show_share(server.declared_share)}"
        yield "prefix hits", f"{show_share(server.hit_share)} of the prompt tokens{declared}"


def _tell_gpu(gpu: Gpu) -> str:
    parts = []
    if gpu.utilization:
        parts.append(f"busy {show_share(gpu.utilization.mean)} (max {show_share(gpu.utilization.max)})")
    if gpu.memory_bytes:
        of = "" if gpu.memory_total_bytes is None else f" of {gpu.memory_total_bytes / _GIB:.1f}"
        parts.append(f"memory {gpu.memory_bytes.max / _GIB:.1f}{of} GiB")
    if gpu.power_w:
        parts.append(f"{gpu.power_w.mean:.0f} W (max {gpu.power_w.max:.0f})")
    if gpu.clock_hz:
        parts.append(f"{gpu.clock_hz.mean / 1e6:.0f} MHz")
    if gpu.throttled:
        parts.append(f"slowed down by power or heat in {show_share(gpu.throttled)} of the samples")
    return ", ".join(parts) or "no sample during the run"


def _tell_level(level: Level) -> str:
    return f"{level.mean:.3g} (max {level.max:g})"


def _tell_bracket(it: Bracket) -> str:
    return f"{format_duration(it.value_s)} (in {format_duration(it.low_s)} to {format_duration(it.high_s)})"


def _count(tokens: float | None) -> str:
    return "n/a" if tokens is None else f"{tokens:,.0f}"

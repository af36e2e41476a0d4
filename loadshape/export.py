# A trace in the formats of other load generators.
#
# Law: lines out, one a request, in the order of arrivals. A format that cannot say something that the trace
# says refuses it by name, so that nobody compares two tools on two different kinds of traffic without having
# said so: what may be lost is to be named. Times are exact (61.114, not 61.11399999): a float of shortest form.
#
#     name          times   what stands for the prompt          read by
#     mooncake      ms      lengths and 512-token block names   aiperf, and everybody who reads Mooncake's traces
#     timed_trace   s       lengths and 16-token block names    vllm bench serve --dataset-name timed_trace
#     guidellm      s       lengths and 512-token block names   guidellm, kind mooncake
#     aiperf        ms      messages                            aiperf --custom-dataset-type mooncake_trace
#     custom        -       one text                            vllm bench serve --dataset-name custom
#     openai_batch  -       a whole body                        OpenAI's batch API and its imitators
#
# Where lengths and block names stand for prompts, the reader invents other words of the same lengths and the
# same sharing: texts are not compared with texts anywhere, so that is no loss that would be refused.

"""Export a trace for vLLM, Mooncake, aiperf, guidellm, or as an OpenAI batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.blocks import chain_blocks, order_arrivals
from loadshape.bounds import check_choice
from loadshape.errors import TraceError
from loadshape.trace import Trace

Line = dict[str, Any]
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_NS = {"s": 1_000_000_000, "ms": 1_000_000}


@dataclass(frozen=True, slots=True)
class Outlet:
    """A format of others: how a trace's lines are written, and what of a trace they can say."""

    write: Callable[[Trace], Iterator[Line]]
    says: frozenset[str]


def export_trace(
    trace: Trace, path: str | Path, format: str, *, lose: Collection[str] = (), force: bool = False
) -> Path:
    """Write *trace* to *path* in a format of OUTLETS, whole or not at all, and return the path.

    Raises TraceError when the trace has something that the format cannot say and *lose* does not name, and
    when *path* exists, unless *force*.
    """
    path = Path(path)
    check_choice("format", format, OUTLETS)
    for name in lose:
        check_choice("lose", name, _FEATURES)
    outlet = OUTLETS[format]
    lost = {name: count for name, count in list_features(trace).items() if name not in outlet.says}
    unsaid = {name: count for name, count in lost.items() if name not in lose}
    if unsaid:
        told = ", ".join(f"{name} (of {count:,} requests)" for name, count in unsaid.items())
        raise TraceError(
            f"{format}: cannot say {told}; choose another format, or name what may be lost: --lose {','.join(unsaid)}"
        )
    if format == "custom" and path.suffix != ".jsonl":
        raise TraceError(f"{path}: expected a name that ends in .jsonl, as vLLM reads no other")
    if path.exists() and not force:
        raise TraceError(f"{path}: exists; choose another name, or say --force to replace it")
    _write_lines(path, outlet.write(trace))
    return path


def list_features(trace: Trace) -> dict[str, int]:
    """Return what a trace says beside lengths, and of how many requests."""
    found = {name: int(pc.sum(count(trace)).as_py() or 0) for name, count in _FEATURES.items()}
    return {name: count for name, count in found.items() if count}


def _write_lines(path: Path, lines: Iterable[Line]) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            for line in lines:
                file.write(msgspec.json.encode(line) + b"\n")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _has(column: str) -> Callable[[Trace], pa.ChunkedArray]:
    return lambda trace: pc.is_valid(trace.requests[column])


def _holds(*kinds: str) -> Callable[[Trace], pa.Array]:
    """Tell which requests have a segment of one of these kinds among their content."""

    def look(trace: Trace) -> pa.Array:
        segments = np.isin(np.asarray(trace.segments["kind"].to_pylist()), kinds)
        rows = [any(segments[number] for part in it for number in part["segments"]) for it in _list_messages(trace)]
        return pa.array(rows) if segments.any() else pa.array([False])

    return look


def _list_messages(trace: Trace) -> list[list[dict[str, Any]]]:
    return trace.requests["messages"].to_pylist()  # type: ignore[no-any-return]


def _counts_turns(trace: Trace) -> pa.ChunkedArray:
    return pc.greater(trace.requests["turn"], 0)


_FEATURES: dict[str, Callable[[Trace], Any]] = {
    "arrivals": _has("due_ns"),
    "slots": lambda trace: pa.array([trace.manifest.requests if trace.manifest.loop.mode == "closed" else 0]),
    "turns": _counts_turns,
    "sharing": lambda trace: pc.greater(trace.requests["shared_tokens"], 0),
    "roles": lambda trace: pc.not_equal(pc.list_value_length(trace.requests["messages"]), 1),
    "answers": _holds("answer"),
    "images": _holds("image"),
    "token_ids": _holds("token_ids"),
    "params": _has("params"),
    "models": _has("model"),
    "adapters": _has("adapter"),
    "tenants": _has("tenant"),
    "patience": _has("patience"),
}


def _write_blocks(unit: str, block_tokens: int) -> Callable[[Trace], Iterator[Line]]:
    def write(trace: Trace) -> Iterator[Line]:
        chains = chain_blocks(trace, block_tokens)
        for row, request in _list_requests(trace):
            yield {
                "timestamp": _tell_time(request["due_ns"] or 0, unit),
                "input_length": request["input_tokens"],
                "output_length": request["output_tokens"],
                "hash_ids": chains[row],
            }

    return write


def _write_aiperf(trace: Trace) -> Iterator[Line]:
    texts, has_turns = trace.segments["text"].to_pylist(), bool(pc.any(_counts_turns(trace)).as_py())
    for _, request in _list_requests(trace):
        line: Line = {"messages": _join_messages(request, texts), "output_length": request["output_tokens"]}
        if request["due_ns"] is not None:
            line["timestamp"] = _tell_time(request["due_ns"], "ms")
        elif request["turn"]:
            line["delay"] = _tell_time(request["think_ns"], "ms")
        if has_turns:
            line["session_id"] = str(request["session"])
        if request["params"] is not None:
            line["extra"] = msgspec.json.decode(texts[request["params"]])
        yield line


def _write_custom(trace: Trace) -> Iterator[Line]:
    texts = trace.segments["text"].to_pylist()
    for _, request in _list_requests(trace):
        prompt = "\n\n".join(message["content"] for message in _join_messages(request, texts))
        yield {"prompt": prompt, "output_tokens": request["output_tokens"]}


def _write_batch(trace: Trace) -> Iterator[Line]:
    texts = trace.segments["text"].to_pylist()
    for _, request in _list_requests(trace):
        messages = _join_messages(request, texts)
        is_chat = request["api"] == "chat"
        body = {"model": request["model"] or "model", "max_tokens": request["output_tokens"]}
        body |= {"messages": messages} if is_chat else {"prompt": "".join(it["content"] for it in messages)}
        if request["params"] is not None:
            body |= msgspec.json.decode(texts[request["params"]])
        url = PATHS[request["api"]]
        yield {"custom_id": f"request-{request['request']}", "method": "POST", "url": url, "body": body}


def _list_requests(trace: Trace) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row, request) in the order of arrivals."""
    for row in order_arrivals(trace).tolist():
        yield row, trace.requests.slice(row, 1).to_pylist()[0]


def _join_messages(request: dict[str, Any], texts: list[str | None]) -> list[dict[str, str]]:
    return [
        {"role": message["role"], "content": "".join(texts[segment] or "" for segment in message["segments"])}
        for message in request["messages"]
    ]


def _tell_time(time_ns: int, unit: str) -> int | float:
    whole, rest = divmod(time_ns, _NS[unit])
    return time_ns / _NS[unit] if rest else whole


OUTLETS: dict[str, Outlet] = {
    "mooncake": Outlet(_write_blocks("ms", 512), frozenset({"arrivals", "sharing", "roles"})),
    "timed_trace": Outlet(_write_blocks("s", 16), frozenset({"arrivals", "sharing", "roles"})),
    "guidellm": Outlet(_write_blocks("s", 512), frozenset({"arrivals", "sharing", "roles"})),
    "aiperf": Outlet(_write_aiperf, frozenset({"arrivals", "turns", "sharing", "roles", "params"})),
    "custom": Outlet(_write_custom, frozenset({"sharing"})),
    "openai_batch": Outlet(_write_batch, frozenset({"sharing", "roles", "params", "models"})),
}

# Request traces that differ in names and units only: one table.
#
# Law: a format is a row of LAYOUTS, no code. A layout says which column is what, in which unit its times
# are, where their zero lies, and how many tokens a block has; columns are found by name, so an inserted one
# (BurstGPT 3 has two more than BurstGPT 1) changes nothing. A unit is never inferred from the numbers: files
# of mooncake (milliseconds) and timed_trace (seconds) look the same, so those must be named.
#
#     name         time of ...                unit    blocks   whose
#     azure        TIMESTAMP                  clock   -        Azure 2023 and 2024; also what inference-perf reads
#     burstgpt     Timestamp                  s       -        HPMLL/BurstGPT, versions 1 to 3
#     mooncake     timestamp                  ms      512      kvcache-ai/Mooncake
#     timed_trace  timestamp                  s       16       `vllm bench serve --dataset-name timed_trace`
#     qwen         timestamp                  s       16       alibaba-edu/qwen-bailian-usagetraces-anon
#     ragpulse     timestamp                  s       segments flashserve/RAGPulse: times are texts
#     vidur        arrived_at                 s       -        microsoft/vidur, processed traces
#     guidellm     timestamp                  s       -        guidellm's trace_synthetic
#
# A log of one's own is a layout made of a text: "time=ts:ms,input=prompt_tokens,output=completion_tokens".

"""Layouts: which column of a request trace is what, and in which unit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec

from loadshape.errors import SourceError
from loadshape.sources.entry import UNITS, Entry, Fault, Unit, find_cell, to_count, to_time_ns
from loadshape.sources.shredder import Shredder, join_messages

_MEASURED = 0  # of block_tokens: not stated, so taken from the rows


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Names of columns by what they mean; "" is what a format does not have.

    `blocks` holds a list of block hashes, or the segments named by `segments`. `text` is hashed block by
    block and dropped. `status` marks a failed request by 400 or more, or by a text that is no "ok".
    """

    time: str = ""
    unit: Unit = "s"
    input: str = ""
    output: str = ""
    session: str = ""
    parent: str = ""
    kind: str = ""
    model: str = ""
    tenant: str = ""
    status: str = ""
    text: str = ""
    blocks: str = ""
    block_tokens: int = _MEASURED
    segments: tuple[str, ...] = ()
    zero: str = ""
    published: str = ""

    @property
    def required(self) -> tuple[str, ...]:
        """Columns without which a row is not of this layout."""
        first = f"{self.blocks}.{self.segments[0]}" if self.segments else self.blocks
        return tuple(name for name in (self.time, self.input, self.output, self.parent, first) if name)


LAYOUTS: dict[str, Layout] = {
    "azure": Layout(
        time="TIMESTAMP",
        unit="clock",
        input="ContextTokens",
        output="GeneratedTokens",
        zero="wall clock; where no zone is stated, taken as UTC",
        published="Azure/AzurePublicDataset, CC-BY",
    ),
    "burstgpt": Layout(
        time="Timestamp",
        input="Request tokens",
        output="Response tokens",
        session="Session ID",
        kind="Log Type",
        model="Model",
        zero="local midnight of the first day",
        published="HPMLL/BurstGPT, CC-BY-4.0",
    ),
    "mooncake": Layout(
        time="timestamp",
        unit="ms",
        input="input_length",
        output="output_length",
        session="session_id",
        blocks="hash_ids",
        block_tokens=512,
        zero="begin of the recording",
        published="kvcache-ai/Mooncake, Apache-2.0",
    ),
    "timed_trace": Layout(
        time="timestamp",
        input="input_length",
        output="output_length",
        blocks="hash_ids",
        block_tokens=16,
        zero="begin of the recording",
    ),
    "qwen": Layout(
        time="timestamp",
        input="input_length",
        output="output_length",
        session="chat_id",
        parent="parent_chat_id",
        kind="type",
        blocks="hash_ids",
        block_tokens=16,
        zero="begin of the recording",
        published="alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0",
    ),
    "ragpulse": Layout(
        time="timestamp",
        input="input_length",
        output="output_length",
        session="session_id",
        blocks="hash_ids",
        segments=("sys_prompt", "passages_ids", "history", "web_search", "user_input"),
        zero="begin of the recording",
        published="flashserve/RAGPulse, MIT",
    ),
    "vidur": Layout(
        time="arrived_at",
        input="num_prefill_tokens",
        output="num_decode_tokens",
        zero="begin of the recording",
        published="microsoft/vidur, MIT",
    ),
    "guidellm": Layout(time="timestamp", input="input_length", output="output_length", zero="begin of the recording"),
}
_NAMED = ("time", "input", "output", "session", "kind", "model", "tenant", "status", "text", "blocks", "block_tokens")


def parse_columns(text: str) -> Layout:
    """Return the layout of "time=ts:ms,input=prompt_tokens,output=usage.completion_tokens,session=user".

    A time has its unit behind it: clock, s, ms, us or ns. Raises SourceError naming what is not understood.
    """
    named: dict[str, Any] = {}
    for part in text.split(","):
        field, mark, column = (piece.strip() for piece in part.partition("="))
        if not (mark and column) or field not in _NAMED:
            known = ", ".join(_NAMED)
            raise SourceError(f"columns: expected FIELD=COLUMN with a FIELD out of {known}, found {part!r}")
        named[field] = column
    named["time"], _, named["unit"] = named.get("time", "").rpartition(":")
    if not named["time"] or named["unit"] not in get_args(Unit):
        raise SourceError(f"columns: expected time=COLUMN:UNIT with a unit out of {', '.join(UNITS)}, found {text!r}")
    if "blocks" in named and not named.get("block_tokens", "").isdecimal():
        raise SourceError("columns: blocks need their size: block_tokens=16")
    named["block_tokens"] = int(named.get("block_tokens", _MEASURED))
    if "input" not in named and "text" not in named:
        raise SourceError("columns: expected input=COLUMN or text=COLUMN, found neither; how long are the prompts?")
    return Layout(**named, zero="first request")


def read_layout(rows: Iterable[dict[str, Any] | None], layout: Layout) -> Iterator[Entry | Fault]:
    """Yield what each row records. Raises SourceError when the first row has not the columns of *layout*."""
    roots: dict[Hashable, Hashable] = {}
    shredder = Shredder()
    for number, row in enumerate(rows, 1):
        if row is None:
            yield Fault("malformed", f"row {number}: not a row of this format")
            continue
        if number == 1:
            _check_columns(row, layout)
        try:
            yield _read_row(row, layout, roots, shredder)
        except (ValueError, TypeError, OverflowError, AttributeError) as problem:
            yield Fault("malformed", f"row {number}: {_name_problem(row, layout, problem)}")


def _read_row(
    row: dict[str, Any], layout: Layout, roots: dict[Hashable, Hashable], shredder: Shredder
) -> Entry | Fault:
    def cell(name: str) -> Any:
        return find_cell(row, name) if name else None

    input_tokens = to_count(cell(layout.input))
    blocks: Sequence[Hashable] | None = _list_blocks(cell(layout.blocks), layout)
    text = cell(layout.text)
    if text:
        told = join_messages(text)
        blocks = shredder.shred(told)
        input_tokens = shredder.estimate(told) if input_tokens is None else input_tokens
    session = _name_session(cell(layout.session), cell(layout.parent), layout, roots)
    return Entry(
        at_ns=to_time_ns(cell(layout.time), layout.unit),
        input_tokens=input_tokens,
        output_tokens=to_count(cell(layout.output)),
        session=session,
        kind=str(cell(layout.kind) or ""),
        model=cell(layout.model) or None,
        tenant=None if cell(layout.tenant) in (None, "") else str(cell(layout.tenant)),
        failed=_is_failure(cell(layout.status)),
        blocks=blocks,
    )


def _list_blocks(value: Any, layout: Layout) -> list[Hashable] | None:
    if value is None or value == "":
        return None
    if layout.segments:
        value = [block for name in layout.segments for block in value[name]]
    if isinstance(value, str):  # in a cell of CSV
        value = msgspec.json.decode(value)
    if not isinstance(value, list) or not all(isinstance(block, int | str) for block in value):
        raise ValueError("no list of names")
    return value


def _name_session(session: Any, parent: Any, layout: Layout, roots: dict[Hashable, Hashable]) -> Hashable:
    """Return what names the session; with parents, the one that the whole family descends from."""
    if session is None or session == "" or session != session:
        return None
    if not layout.parent:
        return str(session)
    roots[session] = roots.get(parent, session)
    return roots[session]


def _is_failure(status: Any) -> bool:
    if status is None or status == "":
        return False
    text = str(status).strip().lower()
    return int(text) >= 400 if text.isdecimal() else text not in ("ok", "unset", "success")


def _check_columns(row: dict[str, Any], layout: Layout) -> None:
    missing = [name for name in layout.required if find_cell(row, name) is None and name not in row]
    if missing:
        found = ", ".join(list(row)[:12])
        raise SourceError(f"columns: expected {', '.join(missing)}, found {found}; name another format, or the columns")


def _name_problem(row: dict[str, Any], layout: Layout, problem: Exception) -> str:
    """Say which cell is wrong, without its content."""
    if _is_refused(lambda value: to_time_ns(value, layout.unit), find_cell(row, layout.time)):
        return f"{layout.time}: expected a time in the unit {layout.unit}"
    for name in (layout.input, layout.output):
        if name and _is_refused(to_count, find_cell(row, name)):
            return f"{name}: expected a count"
    return f"not a row of this format ({type(problem).__name__})"


def _is_refused(reads: Callable[[Any], object], value: Any) -> bool:
    try:
        reads(value)
    except (ValueError, TypeError, OverflowError):
        return True
    return False

# From a recording to a trace: the same arrivals, lengths, sessions and sharing, in words of nobody.
#
# Law: composing only, as shape.py composes drawn values. What a recording does not say (times, for formats
# without them) must be given, and what it says must not be given again: recorded stamps and a rate exclude
# each other. Everything that was decided stands in the manifest under `recording`.
#
#     texts of the file     each message is a segment; live answers stay live
#     names of blocks       woven: text in which exactly the equal beginnings are equal (content.py)
#     lengths only          composed: different from all others from the first block on
#
# Names of models are counted and left out, since the server that is measured has others; the class of
# traffic (`kind`) is the recorded one, or the name of the format.
#
# Random streams: `arrivals` where a process gives the times, `ticks` where coarse stamps are spread, and
# the author's for the texts.

"""Transcribe a recording into a trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from loadshape.arrival import Arrival, Poisson
from loadshape.assembly import put_column
from loadshape.bounds import check_choice, check_count
from loadshape.content import Author
from loadshape.conversation import ROLES
from loadshape.errors import RecipeError
from loadshape.fixture import Fixture
from loadshape.portrait import measure_shared_tokens, measure_trace
from loadshape.randomness import open_stream
from loadshape.recording import UNKNOWN, WAITS, Recording
from loadshape.stats import Integers
from loadshape.tick import spread_ticks
from loadshape.trace import APIS, REQUESTS, SEGMENT_KINDS, SEGMENTS, Loop, Trace, enumerate_column, pack_messages
from loadshape.units import NS_PER_S, to_ns

Ticks = Literal["keep", "spread"]
STREAMS = ("arrivals", "ticks", "content", "passages")
_USER = ROLES.index("user")
_PACE = re.compile(r"([0-9.]*[0-9])\s*/\s*s|([0-9]+)\s*slots?", re.ASCII)
_MOST_S = 366 * 86_400


def transcribe(
    recording: Recording,
    author: Author,
    *,
    ticks: Ticks = "keep",
    arrivals: Arrival | None = None,
    slots: int | None = None,
    fixture: Fixture | None = None,
    name: str = "",
) -> Trace:
    """Return the trace of a recording, its texts written by *author* in the author's seed.

    *ticks* "spread" puts requests that share a coarse stamp at random places inside of its tick. A recording
    without times needs *arrivals* (of sessions) or *slots* (a closed loop); one with times takes neither.
    *fixture* is where the author's prompts come from. Raises RecipeError.
    """
    check_choice("ticks", ticks, ("keep", "spread"))
    loop = _choose_loop(recording, arrivals, slots)
    due_ns = _place(recording, author.seed, ticks, arrivals)
    script = _Script(recording, author)
    requests = _lay_requests(recording, due_ns, script)
    segments = script.lay_segments()
    shared_tokens = script.shared_tokens
    if (recording.input_tokens == UNKNOWN).any():  # texts of the file share by whole messages
        shared_tokens = np.maximum(shared_tokens, measure_shared_tokens(requests, segments))
    requests = put_column(requests, "shared_tokens", shared_tokens)
    order = np.lexsort((recording.turn, recording.session))
    requests = put_column(requests.take(order), "request", np.arange(len(order)))
    duration_s = recording.duration_s or float(max(0, due_ns.max())) / NS_PER_S
    facts = msgspec.to_builtins(recording.facts)
    return Trace.build(
        requests,
        segments,
        loop=loop,
        duration_s=duration_s,
        name=name,
        seed=author.seed,
        streams=STREAMS,
        fixture=None if fixture is None else _describe(fixture),
        recording={**facts, "ticks": ticks if recording.facts.quantised else "none", "texts": script.origin},
        tokenizer=author.tokenizer.about,
        statistics=measure_trace(requests, duration_s, loop),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def parse_pace(text: str) -> tuple[Arrival | None, int | None]:
    """Return Poisson arrivals from "40/s", or the slots of a closed loop from "8 slots"."""
    pace = _PACE.fullmatch(text.strip())
    if pace is None:
        raise RecipeError(f'pace: expected a rate such as "40/s", or "8 slots", found {text!r}')
    rate, slots = pace.groups()
    return (None, int(slots)) if slots else (Poisson(rate_hz=float(rate)), None)


def _choose_loop(recording: Recording, arrivals: Arrival | None, slots: int | None) -> Loop:
    if recording.due_ns is not None:
        if arrivals is not None or slots is not None:
            raise RecipeError(
                f"arrivals: {recording.facts.provenance.name} has recorded times, so none can be given; "
                "leave them out, or scale the trace afterwards"
            )
        return Loop("partly_open" if (recording.due_ns == WAITS).any() else "open")
    if (arrivals is None) == (slots is None):
        raise RecipeError(
            f"arrivals: {recording.facts.provenance.name} has no times; give either a rate or slots of a closed loop"
        )
    if slots is not None:
        check_count("slots", slots)
        return Loop("closed", slots=slots)
    return Loop("partly_open" if recording.turn.any() else "open")


def _place(recording: Recording, seed: int, ticks: Ticks, arrivals: Arrival | None) -> Integers:
    """Return due times, WAITS for none."""
    due_ns = recording.due_ns
    if due_ns is None:
        due_ns = np.full(len(recording), WAITS, np.int64)
        first = recording.turn == 0
        if arrivals is not None:
            due_ns[first] = _draw_times(arrivals, seed, int(first.sum()))
        return due_ns
    tick_s = recording.facts.tick_s
    if ticks == "spread" and recording.facts.quantised and tick_s is not None:
        clocked = due_ns != WAITS
        due_ns = due_ns.copy()
        due_ns[clocked] = spread_ticks(due_ns[clocked], to_ns(tick_s), open_stream(seed, "ticks"))
    return due_ns


def _draw_times(arrivals: Arrival, seed: int, n: int) -> Integers:
    """Return the first *n* arrivals of a process: a longer run begins with the shorter one."""
    duration_s = 1.0
    while True:
        times_ns = arrivals.times_ns(open_stream(seed, "arrivals"), duration_s)
        if len(times_ns) >= n:
            return times_ns[:n]
        if duration_s > _MOST_S:
            raise RecipeError(
                f"arrivals: expected {n:,} of them within {_MOST_S / 86400:g} days, found {len(times_ns):,}"
            )
        duration_s *= 2


@dataclass(frozen=True, slots=True)
class _Said:
    """What requests say: request i has the next messages[i] messages, each its role and the next counts[j] segments."""

    messages: Integers
    roles: Integers
    counts: Integers
    segments: Integers
    tokens: Integers


class _Script:
    """The segments of a trace and who uses which; requests whose text is written here come first.

    `rows` are the recording's rows in this order, `origin` says where the texts come from. `shared_tokens`,
    in the order of the recording, are what is known to be shared beyond whole segments.
    """

    def __init__(self, recording: Recording, author: Author) -> None:
        self._recording = recording
        self._author = author
        self._segments: list[tuple[str, str | None, list[int] | None]] = []  # kind, text, token ids
        self._tokens: list[int] = []
        self._numbers: dict[tuple[str, Any], int] = {}
        self.shared_tokens = np.zeros(len(recording), np.int64)
        is_told = recording.input_tokens == UNKNOWN
        self.rows = np.argsort(is_told, kind="stable")
        written, told = np.split(self.rows, [int((~is_told).sum())])
        said = [part for part in (self._write(written), self._tell(told)) if part is not None]
        self.said = _Said(*(np.concatenate([getattr(part, it) for part in said]) for it in _Said.__slots__))
        self.params = [self._keep_params(recording.entries[row].params) for row in self.rows.tolist()]
        by_us = "composed" if recording.blocks is None else "woven"
        self.origin = " and ".join(it for it, rows in ((by_us, written), ("of the file", told)) if len(rows))

    def lay_messages(self) -> pa.ListArray:
        """Return the `messages` column in the order of `rows`."""
        said = self.said
        return pack_messages(said.messages, said.roles, said.counts, said.segments)

    def lay_segments(self) -> pa.Table:
        """Return the table of segments."""
        kinds, texts, token_ids = (list(column) for column in zip(*self._segments, strict=True))
        columns = [enumerate_column(kinds, SEGMENT_KINDS), pa.array(texts, pa.large_string())]
        columns += [pa.array(token_ids, pa.list_(pa.int32())), pa.array(self._tokens, pa.uint32())]
        return pa.table(columns, schema=SEGMENTS)

    def _write(self, rows: Integers) -> _Said | None:
        """Write text for requests of which only lengths, or names of blocks, are known."""
        if not len(rows):
            return None
        tokens, blocks = self._recording.input_tokens[rows], self._recording.blocks
        if blocks is None:
            content = self._author.compose(tokens)
        else:
            content = self._author.weave(blocks.names, blocks.counts[rows], tokens, block_tokens=blocks.tokens)
        self._segments += [("text", text, None) for text in content.texts]
        self._tokens += content.text_tokens.tolist()
        self.shared_tokens[rows] = content.shared_tokens
        part = content.prefix.follow(content.own)
        ones = np.ones(len(rows), np.int64)
        return _Said(ones, ones * _USER, part.counts, part.segments, content.input_tokens)

    def _tell(self, rows: Integers) -> _Said | None:
        """Use the texts of the file: a message is a segment, and so is a live answer."""
        if not len(rows):
            return None
        recording, entries = self._recording, [self._recording.entries[row] for row in rows.tolist()]
        texts = list(dict.fromkeys(said for it in entries for _, said in it.messages or () if isinstance(said, str)))
        for text, tokens in zip(texts, self._author.tokenizer.count(texts), strict=True):
            self._number("text", text, text, tokens=tokens)
        turns = zip(recording.session.tolist(), recording.turn.tolist(), strict=True)
        lengths = dict(zip(turns, recording.output_tokens.tolist(), strict=True))
        messages, roles, segments = [], [], []
        for row, entry in zip(rows.tolist(), entries, strict=True):
            told = entry.messages or ()
            messages.append(len(told))
            roles += [ROLES.index(role) for role, _ in told]
            for _, said in told:
                if isinstance(said, str):
                    segments.append(self._numbers["text", said])
                else:
                    tokens = lengths[int(recording.session[row]), said]
                    segments.append(self._number("answer", (said, tokens), None, token_ids=[said], tokens=tokens))
        counted, flat = np.array(messages, np.int64), np.array(segments, np.int64)
        upto = np.r_[0, np.cumsum(np.array(self._tokens, np.int64)[flat])]
        ends = np.cumsum(counted)
        return _Said(counted, np.array(roles, np.int64), np.ones_like(flat), flat, upto[ends] - upto[ends - counted])

    def _keep_params(self, params: dict[str, Any] | None) -> int | None:
        if not params:
            return None
        text = msgspec.json.encode(params, order="deterministic").decode()
        return self._number("json", text, text, tokens=0)

    def _number(
        self, kind: str, what: Any, text: str | None, *, tokens: int, token_ids: list[int] | None = None
    ) -> int:
        number = self._numbers.setdefault((kind, what), len(self._segments))
        if number == len(self._segments):
            self._segments.append((kind, text, token_ids))
            self._tokens.append(tokens)
        return number


def _lay_requests(recording: Recording, due_ns: Integers, script: _Script) -> pa.Table:
    """Return the requests in the order of their arrivals, without the tokens that they share."""
    n, rows = len(recording), script.rows
    entries = [recording.entries[row] for row in rows.tolist()]
    columns: dict[str, Any] = {
        "request": np.zeros(n, np.int64),
        "due_ns": pa.array(due_ns[rows], mask=due_ns[rows] == WAITS),
        "session": recording.session[rows],
        "turn": recording.turn[rows],
        "think_ns": recording.think_ns[rows],
        "kind": [entry.kind or recording.facts.format for entry in entries],
        "api": enumerate_column([entry.api for entry in entries], APIS),
        "messages": script.lay_messages(),
        "input_tokens": script.said.tokens,
        "output_tokens": recording.output_tokens[rows],
        "shared_tokens": np.zeros(n, np.int64),
        "tenant": [entry.tenant for entry in entries],
        "params": script.params,
    }
    arrays = [_fit(columns.get(field.name, [None] * n), field.type) for field in REQUESTS]
    return pa.table(arrays, schema=REQUESTS).take(np.argsort(rows))


def _describe(fixture: Fixture) -> dict[str, Any]:
    about = fixture.manifest
    policy = {"name": about.policy.name, "digest": about.policy.digest}
    return {"digest": fixture.digest, "provenance": msgspec.to_builtins(about.provenance), "policy": policy}


def _fit(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, list):
        return pa.array(values, kind)
    return pa.array(values).cast(kind) if isinstance(values, np.ndarray) else values

# What somebody else's file recorded: when requests came, how long they were, what they shared.
#
# Law: columns of numbers and what is known about them. Nothing is dropped, sorted or moved without being
# counted in `facts`; no unit and no zero is inferred from the numbers; what a column says is the reader's
# (sources). How a recording becomes a trace stands in transcription.py.
#
#     due_ns    offsets from the first request, in order; WAITS for a turn that follows its predecessor
#     blocks    names of the blocks of each prompt: equal numbers are equal prefixes up to there
#
# Names of blocks are numbered anew along their chains, so that hashes of contents and hashes of chains come
# to the same. There are at most as many as the prompt has blocks: what a row has too many is cut, and what
# it lacks is the request's own; where a format states its block size, such rows are counted.

"""Recording: a request trace in columns, with its units, its zero and its odd rows told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadshape.digest import digest_file, digest_json
from loadshape.errors import SourceError
from loadshape.provenance import NOT_STATED, Account, Provenance
from loadshape.sources.container import HUB
from loadshape.sources.entry import Entry, Fault
from loadshape.sources.known import KNOWN_INPUTS
from loadshape.sources.layout import Layout, parse_columns
from loadshape.sources.requests import COLUMNS, SERVEGEN, find_layout, guess_format, open_entries
from loadshape.sources.servegen import read_servegen
from loadshape.stats import Integers
from loadshape.tick import find_tick, is_quantised
from loadshape.units import NS_PER_S

WAITS = -1
UNKNOWN = -1
MAX_TURNS = 1 << 16


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a recording beside its columns; the manifest of a trace made of it repeats them.

    `odd` counts what was kept and is worth knowing. `tick_s` is the step of the stamps, `time_unit` "none"
    says that there are none. `guessed_by` are the columns that gave the format away, if nobody named it.
    """

    format: str
    provenance: Provenance
    account: Account
    odd: dict[str, int]
    models: dict[str, int]
    columns: dict[str, Any]
    time_unit: str
    time_zero: str
    tick_s: float | None
    quantised: bool
    block_tokens: int | None
    guessed_by: str
    first_problem: str


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names of blocks: request i has the next counts[i] of `names`, of `tokens` tokens each but its last."""

    counts: Integers
    names: Integers
    tokens: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded request trace in the order of its arrivals, one entry a request in every column.

    `due_ns` is None where the file has no times, `input_tokens` UNKNOWN where it has a text instead.
    `entries` hold what is no number. `duration_s` is None unless a window was cut.
    """

    due_ns: Integers | None
    session: Integers
    turn: Integers
    think_ns: Integers
    input_tokens: Integers
    output_tokens: Integers
    blocks: BlockNames | None
    entries: Sequence[Entry]
    duration_s: float | None
    facts: Facts

    def __len__(self) -> int:
        return len(self.session)

    @classmethod
    def read(
        cls,
        path: str | Path,
        format: str | None = None,
        *,
        columns: str | None = None,
        window_s: tuple[float, float] | None = None,
        output_tokens: int | None = None,
        seed: int = 0,
    ) -> Recording:
        """Read a request trace in a named format, with named *columns*, or in the only format that it can be.

        Of the file only what lies in *window_s*, seconds after its first row, is taken. A request whose
        answer's length is not said, or is 0 because it failed, is left out and counted unless it is to want
        *output_tokens*. Clients of servegen are no recording: they need a window, and are drawn in *seed*.
        Raises SourceError.
        """
        path, guessed_by = Path(path), ""
        layout = parse_columns(columns) if columns else None
        if layout is not None:
            format = COLUMNS
        elif format is None:
            format, guessed_by = guess_format(path)
        draft = _Draft(window_s, output_tokens)
        if format == SERVEGEN:
            draft.begin_at(window_s)
            entries = read_servegen(path, window_s or (0.0, 0.0), seed)
        else:
            entries = open_entries(format, path, layout)
        for entry in entries:
            draft.add(entry)
        layout = layout or find_layout(format)
        return draft.finish(layout, format=format, provenance=_describe(path, format, layout), guessed_by=guessed_by)


class _Draft:
    """Entries as they come, and what became of them."""

    def __init__(self, window_s: tuple[float, float] | None, output_tokens: int | None) -> None:
        self._window_ns = None if window_s is None else (round(window_s[0] * NS_PER_S), round(window_s[1] * NS_PER_S))
        self._output_tokens = output_tokens
        self._first_ns: int | None = None
        self._kept: list[Entry] = []
        self._read = 0
        self._broken = set[Hashable]()  # sessions that have lost a turn
        self._dropped = Counter[str]()
        self._odd = Counter[str]()
        self._problem = ""

    def begin_at(self, window_s: tuple[float, float] | None) -> None:
        """Expect entries that count from the begin of the window. Raises SourceError where there is none."""
        if window_s is None:
            raise SourceError("window: expected which part of the clients' days to draw, such as 10h-10h10min")
        self._first_ns, self._window_ns = 0, (0, round((window_s[1] - window_s[0]) * NS_PER_S))

    def add(self, entry: Entry | Fault) -> None:
        """Keep an entry, or count why not."""
        self._read += 1
        fault = entry if isinstance(entry, Fault) else self._find_fault(entry) or self._settle_answer(entry)
        if isinstance(entry, Entry) and fault is None:
            self._kept.append(entry)
        elif fault is not None:
            self._drop(fault, entry)

    def _drop(self, fault: Fault, entry: Entry | Fault | None = None) -> None:
        if isinstance(entry, Entry) and entry.session is not None:
            self._broken.add(entry.session)
        self._dropped[fault.reason] += 1
        self._problem = self._problem or fault.why

    def _find_fault(self, entry: Entry) -> Fault | None:
        if self._first_ns is None:
            self._first_ns = entry.at_ns
        if self._window_ns is not None and entry.at_ns is not None and self._first_ns is not None:
            begin, end = self._window_ns
            if not begin <= entry.at_ns - self._first_ns < end:
                return Fault("outside_window", "")
        if entry.session in self._broken and any(isinstance(said, int) for _, said in entry.messages or ()):
            return Fault("follows_dropped", f"request {self._read}: repeats the answer to a turn that was dropped")
        if entry.messages is None and not entry.input_tokens:
            return Fault("no_input", f"request {self._read}: a prompt without a length, or of none")
        return None

    def _settle_answer(self, entry: Entry) -> Fault | None:
        reason = "failed" if entry.failed or entry.output_tokens == 0 else "no_output"
        if reason == "no_output" and entry.output_tokens is not None:
            return None
        if self._output_tokens is None:
            return Fault(reason, f"request {self._read}: failed, or the length of its answer is not said")
        self._odd[reason] += 1
        entry.output_tokens = self._output_tokens
        if reason == "failed":
            entry.kind = f"{entry.kind} failed".strip()
        return None

    def finish(self, layout: Layout, *, format: str, provenance: Provenance, guessed_by: str) -> Recording:
        """Return the columns. Raises SourceError when there is nothing to put in them."""
        at_ns = self._settle_times()
        entries = self._kept
        if not entries:
            why = f"; the first: {self._problem}" if self._problem else ""
            raise SourceError(f"{provenance.name}: no request is left, {dict(self._dropped) or 'it has none'}{why}")
        due_ns, tick_ns = None, None
        if at_ns is not None:
            order, due_ns = self._order(at_ns)
            entries = [entries[row] for row in order.tolist()]
            tick_ns = find_tick(due_ns[due_ns != WAITS])
        session, turn = _number_sessions(entries)
        input_tokens = np.array([UNKNOWN if it.messages else it.input_tokens for it in entries], np.int64)
        blocks = self._name_blocks(entries, input_tokens, layout.block_tokens)
        facts = Facts(
            format=format,
            provenance=provenance,
            account=self._account(int(session.max()) + 1),
            odd={name: count for name, count in sorted(self._odd.items()) if count},
            models=_count(it.model for it in entries),
            columns=_list_columns(layout),
            time_unit="none" if due_ns is None else layout.unit,
            time_zero="" if due_ns is None else layout.zero,
            tick_s=None if tick_ns is None else tick_ns / NS_PER_S,
            quantised=due_ns is not None and is_quantised(due_ns[due_ns != WAITS], tick_ns),
            block_tokens=None if blocks is None else blocks.tokens,
            guessed_by=guessed_by,
            first_problem=self._problem,
        )
        return Recording(
            due_ns=due_ns,
            session=session,
            turn=turn,
            think_ns=np.array([it.think_ns for it in entries], np.int64),
            input_tokens=input_tokens,
            output_tokens=np.array([it.output_tokens for it in entries], np.int64),
            blocks=blocks,
            entries=entries,
            duration_s=None if self._window_ns is None else (self._window_ns[1] - self._window_ns[0]) / NS_PER_S,
            facts=facts,
        )

    def _account(self, sessions: int) -> Account:
        dropped = dict(sorted(self._dropped.items()))
        return Account(self._read, self._read - sum(dropped.values()), dropped, conversations=sessions)

    def _settle_times(self) -> Integers | None:
        """Return the time of each kept entry, WAITS for a turn that follows another; None if the file has no times.

        Where it has some, an entry without one that follows nothing is dropped.
        """
        if all(entry.at_ns is None for entry in self._kept):
            return None
        kept, begun = [], set[Hashable]()
        for entry in self._kept:
            if entry.at_ns is None and (entry.session is None or entry.session not in begun):
                self._drop(Fault("no_time", "a request without a time, among others that have one"))
                continue
            begun.add(entry.session)
            kept.append(entry)
        self._kept = kept
        zero = min(entry.at_ns for entry in kept if entry.at_ns is not None)
        if self._window_ns is not None and self._first_ns is not None:
            zero = self._first_ns + self._window_ns[0]
        return np.array([WAITS if entry.at_ns is None else entry.at_ns - zero for entry in kept], np.int64)

    def _order(self, at_ns: Integers) -> tuple[Integers, Integers]:
        """Return the order of arrival and the times in it; a turn that waits stays behind its predecessor."""
        last: dict[Hashable, int] = {}
        keys = []
        for entry, time in zip(self._kept, at_ns.tolist(), strict=True):
            keys.append(last[entry.session] if time == WAITS else time)
            last[entry.session] = keys[-1]
        moments = np.array(keys, np.int64)
        order = np.argsort(moments, kind="stable")
        clocked = at_ns[at_ns != WAITS]
        self._odd["out_of_order"] = int((clocked < np.maximum.accumulate(clocked)).sum())
        self._odd["same_time"] = len(clocked) - len(np.unique(clocked))
        rows = zip(moments.tolist(), self._kept, strict=True)
        self._odd["duplicate"] = len(self._kept) - len({_identify(time, entry) for time, entry in rows})
        return order, at_ns[order]

    def _name_blocks(self, entries: Sequence[Entry], input_tokens: Integers, tokens: int) -> BlockNames | None:
        listed = [entry.blocks or () for entry in entries]
        if not any(listed):
            return None
        told = np.array([len(names) for names in listed], np.int64)
        is_stated = tokens > 0
        if not is_stated:  # as many tokens to a block as they come to on the whole
            tokens = max(1, round(float(input_tokens[told > 0].sum() / told.sum())))
        fit = np.where(input_tokens == UNKNOWN, 0, -(-input_tokens // tokens))
        numbers: dict[tuple[int, Hashable], int] = {}
        named: list[int] = []
        for names, most in zip(listed, fit.tolist(), strict=True):
            chain = -1
            for name in names[:most]:
                chain = numbers.setdefault((chain, name), len(numbers))
                named.append(chain)
        if is_stated:
            self._odd["blocks_beyond_prompt"] = int((told > fit).sum())
            self._odd["blocks_missing"] = int(((told > 0) & (told < fit)).sum())
        return BlockNames(np.minimum(told, fit), np.array(named, np.int64), tokens)


def _identify(time: int, entry: Entry) -> int:
    """A number that equal rows have in common."""
    return hash(
        (time, entry.input_tokens, entry.output_tokens, entry.session, tuple(entry.blocks or ()), entry.messages)
    )


def _number_sessions(entries: Sequence[Entry]) -> tuple[Integers, Integers]:
    """Return the session of each entry, in the order of their first entries, and its turn."""
    numbers: dict[Hashable, int] = {}
    turns = Counter[int]()
    session, turn = [], []
    for row, entry in enumerate(entries):
        number = numbers.setdefault((row,) if entry.session is None else entry.session, len(numbers))
        session.append(number)
        turn.append(turns[number])
        turns[number] += 1
    if (most := max(turn) + 1) > MAX_TURNS:
        raise SourceError(f"session: expected at most {MAX_TURNS:,} turns, found {most:,}; name a finer column")
    return np.array(session, np.int64), np.array(turn, np.int64)


def _count(names: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(str(name) for name in names if name).items()))


def _list_columns(layout: Layout) -> dict[str, Any]:
    """Return what was read from where, without what every layout has."""
    given = msgspec.to_builtins(layout)
    return {name: value for name, value in given.items() if value and name not in ("unit", "zero", "published")}


def _describe(path: Path, format: str, layout: Layout) -> Provenance:
    if str(path).startswith(HUB):
        return Provenance(source=format, name=str(path), bytes=0, sha256="", note="streamed from the hub: no hash")
    if path.is_dir():
        files = {it.name: digest_file(it) for it in sorted(path.iterdir()) if it.is_file()}
        size = sum((path / name).stat().st_size for name in files)
        note = "the hash is that of the names and hashes of its files"
        return Provenance(source=format, name=path.name, bytes=size, sha256=digest_json(files), note=note)
    sha256 = digest_file(path)
    known = KNOWN_INPUTS.get(sha256)
    like = f"in the format of {layout.published}; whether it is that data set is not known" if layout.published else ""
    return Provenance(
        source=format,
        name=path.name,
        bytes=path.stat().st_size,
        sha256=sha256,
        licence=known.licence if known else NOT_STATED,
        uri=known.uri if known else None,
        revision=known.revision if known else None,
        complete=known.complete if known else True,
        note=known.note if known else like,
    )

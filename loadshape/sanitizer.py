# Conversations in, clean conversations out.
#
# Law: one conversation is cleaned on its own: filter the characters, find, unite, replace. The result
# depends on the conversation and the policy, never on its neighbours, on the number of processes or on
# the order in which they finish. What was found is reported as a kind and a place, never as text.
#
#     text --filter_text--> filtered --find--> spans --unite--> replaced --> clean text
#                               \--------------- locate ------> findings, in the original text
#
# A policy whose text is "synthetic" looks for nothing: each conversation becomes its silhouette (filler.py). That
# is the one thing that depends on what came before, because shared beginnings are numbered in their order.
#
# A turn that has to go takes its exchange with it: a prompt without its answer, or an answer without its
# prompt, would be another conversation than the one that was held.

"""Apply a policy to conversations: `sanitize(conversations, policy)`."""

from __future__ import annotations

import hmac
import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec

from loadshape import characters
from loadshape.characters import Filtered, filter_text
from loadshape.conversation import Conversation, Message
from loadshape.digest import digest_json
from loadshape.errors import InputError
from loadshape.filler import Silhouettes
from loadshape.interrupt import shielding_children
from loadshape.journal import Journal
from loadshape.policy import Action, Policy
from loadshape.provenance import Account, Provenance, Tally
from loadshape.recognizer import Recognizers, list_versions
from loadshape.sources import Source
from loadshape.spans import Span, replace_spans, unite_spans
from loadshape.surrogate import StandIns, check_key
from loadshape.tokenizer import Tokenizer, load_tokenizer
from loadshape.version import __version__

WAITING_PER_PROCESS = 8  # conversations handed out ahead, so that no process waits and memory stays bounded


class Finding(msgspec.Struct, frozen=True):
    """One thing that was removed: what kind, by which recognizer, and where; never the text, unless asked.

    `message` counts the messages of the clean conversation; `start` and `end` are code points of that
    message as its source had it. `text` is None but where `sanitize` was asked to keep it; no fixture has it.
    """

    message: int
    entity: str
    recognizer: str
    score: float
    start: int
    end: int
    placeholder: str
    text: str | None = None


class Clean(msgspec.Struct, frozen=True):
    """A clean conversation and what was removed from it."""

    conversation: Conversation
    findings: tuple[Finding, ...] = ()


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What cleaning did to lengths, in tokens: of kept messages before and after, and of stand-ins.

    `largest_loss` and `largest_gain` are of one stand-in, compared with what it stands for: a loss is never more
    than the policy's tolerance.
    """

    tokenizer: str = "estimate"
    tolerance_tokens: int = 0
    before: int = 0
    after: int = 0
    largest_loss: int = 0
    largest_gain: int = 0

    def add(self, other: Lengths) -> Lengths:
        """Return the lengths of both."""
        return msgspec.structs.replace(
            self,
            before=self.before + other.before,
            after=self.after + other.after,
            largest_loss=max(self.largest_loss, other.largest_loss),
            largest_gain=max(self.largest_gain, other.largest_gain),
        )


class _Outcome(msgspec.Struct, frozen=True):
    rows: int
    clean: Clean | None = None
    reason: str = ""
    turns: dict[str, int] = {}
    filtered: dict[str, int] = {}
    lengths: Lengths = Lengths()


class _Terms(msgspec.Struct, frozen=True):
    """What a process is told: all of it can be sent to another one."""

    policy: Policy
    key: bytes = b""
    with_text: bool = False


class _Equipment(msgspec.Struct, frozen=True):
    """What a process needs to clean conversations."""

    policy: Policy
    recognizers: Recognizers
    tokenizer: Tokenizer
    key: bytes = b""
    with_text: bool = False

    @classmethod
    def load(cls, terms: _Terms) -> _Equipment:
        policy = terms.policy
        tokenizer = load_tokenizer(policy.tokenizer or None)
        return cls(policy, Recognizers(policy), tokenizer, terms.key, terms.with_text)


def sanitize(
    conversations: Iterable[Conversation],
    policy: Policy,
    *,
    processes: int = 1,
    progress: Callable[[int], None] | None = None,
    key: bytes = b"",
    with_text: bool = False,
) -> Sanitized:
    """Return the clean form of *conversations*, made while it is iterated.

    *progress* is called with the number of conversations done. *key* is the secret of the action "hash", 16 bytes
    or more. *with_text* puts what was found into the findings, for looking at a policy: never for keeping. With
    more than one process the calling script needs the usual `if __name__ == "__main__"` guard. Raises MissingExtra
    or PolicyError if the policy needs what is not installed.
    """
    if processes < 1:
        raise InputError(f"processes: expected 1 or more, found {processes}")
    check_key(policy, key)
    return Sanitized(conversations, _Terms(policy, key, with_text), processes, progress)


class Sanitized:
    """Clean conversations, in the order of their source; made by `sanitize`.

    `policy`, `provenance` and `versions` are known at once, `account`, `filtered` (what the control-sequence
    filter removed, by step) and `lengths` after an iteration to the end.
    """

    def __init__(
        self,
        conversations: Iterable[Conversation],
        terms: _Terms,
        processes: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        policy = terms.policy
        self.policy = policy
        self.versions = list_versions(policy)
        self.account = Account()
        self.filtered: dict[str, int] = {}
        self.lengths = Lengths(policy.tokenizer or "estimate", policy.tolerance_tokens)
        self._terms = terms
        self._conversations = conversations
        self._processes = processes
        self._progress = progress
        self._journal: Journal[_Outcome] | None = None

    def keep(self, folder: Path) -> Journal[_Outcome] | None:
        """Keep results in *folder* as they come, and begin with those that a run before left there; return the journal.

        Silhouettes are drawn from the beginning, every time: for them there is none.
        """
        if self._terms.with_text:
            raise InputError("with_text: texts that were found are for looking at, not for keeping")
        if self.policy.text == "synthetic":
            return None
        key = hmac.digest(self._terms.key, b"loadshape journal", "sha256").hex()
        terms = [self.policy.digest, self.versions, characters.VERSION, __version__, key]
        self._journal = Journal(folder, digest_json(terms), _Outcome)
        return self._journal

    @property
    def provenance(self) -> Provenance | None:
        """What the conversations were read from; None if they did not come from a source."""
        return self._conversations.provenance if isinstance(self._conversations, Source) else None

    def __iter__(self) -> Iterator[Clean]:
        lengths = Lengths(self.lengths.tokenizer, self.lengths.tolerance_tokens)
        lost: list[_Outcome] = []
        turns: Counter[str] = Counter()
        filtered: Counter[str] = Counter()
        rows = done = 0
        for outcome in self._clean_all():
            done, rows = done + 1, rows + outcome.rows
            filtered.update(outcome.filtered)
            if outcome.clean is None:
                lost.append(outcome)
            else:
                turns.update(outcome.turns)
                lengths = lengths.add(outcome.lengths)
                yield outcome.clean
            if self._progress is not None and done > (self._journal.resumed if self._journal else 0):
                self._progress(done)
        self.filtered, self.lengths = dict(sorted(filtered.items())), lengths
        self.account = self._settle(Account(rows, rows, conversations=done), lost, turns)

    def _clean_all(self) -> Iterable[_Outcome]:
        clean = _clean_here if self._processes == 1 else _clean_apart
        clean = _draw_silhouettes if self.policy.text == "synthetic" else clean
        if self._journal is None:
            return clean(self._conversations, self._terms, self._processes)
        return self._journal.follow(self._conversations, lambda rest: clean(rest, self._terms, self._processes))

    def _settle(self, seen: Account, lost: Iterable[_Outcome], turns: Counter[str]) -> Account:
        tally = Tally(self._conversations.account if isinstance(self._conversations, Source) else seen)
        for outcome in lost:
            tally.expel(outcome.reason, outcome.rows)
        tally.turns.update(turns)
        return tally.account()


def _clean(conversation: Conversation, equipment: _Equipment) -> _Outcome:
    policy = equipment.policy
    rows = max(1, len(conversation.rows))
    counts: Counter[str] = Counter()
    texts = [filter_text(message.text, counts) for message in conversation.messages]
    found = equipment.recognizers.find([filtered.text for filtered in texts])
    filtered = dict(counts)
    drops = [policy.rules[span.rank].entity for spans in found for span in spans if _drops(policy, span)]
    if drops:
        return _Outcome(rows, None, f"policy:{drops[0]}", {}, filtered)
    turns: Counter[str] = Counter()
    kept = _keep(conversation.messages, [_fault(*pair, policy) for pair in zip(texts, found, strict=True)], turns)
    if not any(conversation.messages[index].role == "user" for index in kept):
        return _Outcome(rows, None, "no_turn_left", {}, filtered)
    clean, lengths = _replace(conversation, kept, texts, found, equipment)
    return _Outcome(rows, clean, "", dict(turns), filtered, lengths)


def _drops(policy: Policy, span: Span) -> bool:
    return policy.rules[span.rank].action == "drop_conversation"


def _fault(text: Filtered, spans: Sequence[Span], policy: Policy) -> str:
    """Return why a message has to go, or nothing."""
    if not text.text.strip():
        return "blank"
    drop: Action = "drop_turn"
    entities = [policy.rules[span.rank].entity for span in spans if policy.rules[span.rank].action == drop]
    return f"policy:{min(entities)}" if entities else ""


def _keep(messages: Sequence[Message], faults: Sequence[str], turns: Counter[str]) -> list[int]:
    """Return the indices of the messages that stay; a prompt and its answer go together."""
    gone = {index: fault for index, fault in enumerate(faults) if fault}
    for index in tuple(gone):
        other = index + 1 if messages[index].role == "user" else index - 1
        roles = {message.role for message in messages[max(0, min(index, other)) : max(index, other) + 1]}
        if roles == {"user", "assistant"}:
            gone.setdefault(other, "other_half")
    turns.update(gone.values())
    return [index for index in range(len(messages)) if index not in gone]


def _replace(
    conversation: Conversation,
    kept: Sequence[int],
    texts: Sequence[Filtered],
    found: Sequence[Sequence[Span]],
    equipment: _Equipment,
) -> tuple[Clean, Lengths]:
    policy = equipment.policy
    names = StandIns(policy, equipment.tokenizer, equipment.key)
    messages: list[Message] = []
    findings: list[Finding] = []
    for place, index in enumerate(kept):
        text = texts[index].text
        spans = unite_spans(found[index], text)
        rules = [policy.rules[span.rank] for span in spans]
        surfaces = [text[span.start : span.end] for span in spans]
        placeholders = [
            names.find(rule.entity, surface, rule.action) for rule, surface in zip(rules, surfaces, strict=True)
        ]
        messages.append(Message(conversation.messages[index].role, replace_spans(text, spans, placeholders)))
        findings += (
            Finding(
                place,
                rule.entity,
                span.recognizer,
                span.score,
                *texts[index].locate(span.start, span.end),
                name,
                surface if equipment.with_text else None,
            )
            for rule, span, name, surface in zip(rules, spans, placeholders, surfaces, strict=True)
        )
    lengths = _measure([texts[index].text for index in kept], messages, names, equipment.tokenizer)
    return Clean(msgspec.structs.replace(conversation, messages=tuple(messages)), tuple(findings)), lengths


def _measure(texts: Sequence[str], messages: Sequence[Message], names: StandIns, tokenizer: Tokenizer) -> Lengths:
    before = sum(tokenizer.count(texts))
    after = sum(tokenizer.count([message.text for message in messages])) if names.changes else before
    loss, gain = -min((0, *names.changes)), max((0, *names.changes))
    return Lengths(before=before, after=after, largest_loss=loss, largest_gain=gain)


def _clean_here(conversations: Iterable[Conversation], terms: _Terms, _: int) -> Iterator[_Outcome]:
    equipment = _Equipment.load(terms)
    for conversation in conversations:
        yield _clean(conversation, equipment)


def _draw_silhouettes(conversations: Iterable[Conversation], terms: _Terms, _: int) -> Iterator[_Outcome]:
    """Replace all text, in order, in this process: beginnings are shared over all conversations."""
    tokenizer = load_tokenizer(terms.policy.tokenizer or None)
    silhouettes = Silhouettes(tokenizer)
    for conversation in conversations:
        rows = max(1, len(conversation.rows))
        turns: Counter[str] = Counter()
        faults = ["" if message.text.strip() else "blank" for message in conversation.messages]
        kept = [conversation.messages[index] for index in _keep(conversation.messages, faults, turns)]
        if not any(message.role == "user" for message in kept):
            yield _Outcome(rows, None, "no_turn_left")
            continue
        drawn = silhouettes.draw(msgspec.structs.replace(conversation, messages=tuple(kept)))
        before, after = (
            sum(tokenizer.count([message.text for message in messages])) for messages in (kept, drawn.messages)
        )
        yield _Outcome(rows, Clean(drawn), "", dict(turns), {}, Lengths(before=before, after=after))


def _clean_apart(conversations: Iterable[Conversation], terms: _Terms, processes: int) -> Iterator[_Outcome]:
    """Clean in spawned processes, in order, with a bounded number of conversations under way."""
    spawn = multiprocessing.get_context("spawn")
    waiting: deque[Future[_Outcome]] = deque()
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_start, initargs=(terms,))
    try:
        for conversation in conversations:
            with shielding_children():  # submitting starts processes
                waiting.append(pool.submit(_clean_one, conversation))
            if len(waiting) >= processes * WAITING_PER_PROCESS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise InputError("a sanitizing process ended early, probably for want of memory; use fewer processes") from None
    finally:
        pool.shutdown(cancel_futures=True)


_equipment: list[_Equipment | InputError] = []  # of a spawned process: one item, by _start


def _start(terms: _Terms) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _equipment.append(_Equipment.load(terms))
    except InputError as problem:  # raised by the first call: an initializer that raises breaks the pool unsaid
        _equipment.append(problem)


def _end_with_parent() -> None:
    """Leave nothing behind a parent that was killed: its workers would wait for work, for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _clean_one(conversation: Conversation) -> _Outcome:
    (equipment,) = _equipment
    if isinstance(equipment, InputError):
        raise equipment
    return _clean(conversation, equipment)

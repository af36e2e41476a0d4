# Conversations in, clean conversations out.
#
# Law: one conversation is cleaned on its own: filter the characters, find, unite, replace. The result
# depends on the conversation and the policy, never on its neighbours, on the number of processes or on
# the order in which they finish. What was found is reported as a kind and a place, never as text.
#
#     text --filter_text--> filtered --find--> spans --unite--> replaced --> clean text
#                               \--------------- locate ------> findings, in the original text
#
# A turn that has to go takes its exchange with it: a prompt without its answer, or an answer without its
# prompt, would be another conversation than the one that was held.

"""Apply a policy to conversations: `sanitize(conversations, policy)`."""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import msgspec

from loadshape.characters import Filtered, filter_text
from loadshape.conversation import Conversation, Message
from loadshape.errors import InputError
from loadshape.interrupt import shielding_children
from loadshape.policy import Action, Policy
from loadshape.provenance import Account, Provenance, Tally
from loadshape.recognizer import Recognizers, list_versions
from loadshape.sources import Source
from loadshape.spans import Placeholders, Span, replace_spans, unite_spans

WAITING_PER_PROCESS = 8  # conversations handed out ahead, so that no process waits and memory stays bounded


class Finding(msgspec.Struct, frozen=True):
    """One thing that was removed: what kind, by which recognizer, and where; never the text.

    `message` counts the messages of the clean conversation; `start` and `end` are code points of that
    message as its source had it.
    """

    message: int
    entity: str
    recognizer: str
    score: float
    start: int
    end: int
    placeholder: str


class Clean(msgspec.Struct, frozen=True):
    """A clean conversation and what was removed from it."""

    conversation: Conversation
    findings: tuple[Finding, ...] = ()


class _Outcome(msgspec.Struct, frozen=True):
    rows: int
    clean: Clean | None = None
    reason: str = ""
    turns: dict[str, int] = {}
    filtered: dict[str, int] = {}


def sanitize(
    conversations: Iterable[Conversation],
    policy: Policy,
    *,
    processes: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Sanitized:
    """Return the clean form of *conversations*, made while it is iterated.

    *progress* is called with the number of conversations done. With more than one process the calling
    script needs the usual `if __name__ == "__main__"` guard. Raises MissingExtra or PolicyError if the
    policy needs what is not installed.
    """
    if processes < 1:
        raise InputError(f"processes: expected 1 or more, found {processes}")
    return Sanitized(conversations, policy, list_versions(policy), processes, progress)


class Sanitized:
    """Clean conversations, in the order of their source; made by `sanitize`.

    `policy`, `provenance` and `versions` are known at once, `account` and `filtered` (what the control-
    sequence filter removed, by step) after an iteration to the end.
    """

    def __init__(
        self,
        conversations: Iterable[Conversation],
        policy: Policy,
        versions: dict[str, str],
        processes: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.policy = policy
        self.versions = versions
        self.account = Account()
        self.filtered: dict[str, int] = {}
        self._conversations = conversations
        self._processes = processes
        self._progress = progress

    @property
    def provenance(self) -> Provenance | None:
        """What the conversations were read from; None if they did not come from a source."""
        return self._conversations.provenance if isinstance(self._conversations, Source) else None

    def __iter__(self) -> Iterator[Clean]:
        outcomes = _clean_here if self._processes == 1 else _clean_apart
        lost: list[_Outcome] = []
        turns: Counter[str] = Counter()
        filtered: Counter[str] = Counter()
        rows = done = 0
        for outcome in outcomes(self._conversations, self.policy, self._processes):
            done, rows = done + 1, rows + outcome.rows
            filtered.update(outcome.filtered)
            if outcome.clean is None:
                lost.append(outcome)
            else:
                turns.update(outcome.turns)
                yield outcome.clean
            if self._progress is not None:
                self._progress(done)
        self.filtered = dict(sorted(filtered.items()))
        self.account = self._settle(Account(rows, rows, conversations=done), lost, turns)

    def _settle(self, seen: Account, lost: Iterable[_Outcome], turns: Counter[str]) -> Account:
        tally = Tally(self._conversations.account if isinstance(self._conversations, Source) else seen)
        for outcome in lost:
            tally.expel(outcome.reason, outcome.rows)
        tally.turns.update(turns)
        return tally.account()


def clean_conversation(conversation: Conversation, policy: Policy, recognizers: Recognizers) -> _Outcome:
    """Apply *policy* to one conversation."""
    rows = max(1, len(conversation.rows))
    counts: Counter[str] = Counter()
    texts = [filter_text(message.text, counts) for message in conversation.messages]
    found = recognizers.find([filtered.text for filtered in texts])
    filtered = dict(counts)
    for span in (span for spans in found for span in spans):
        if policy.rules[span.rank].action == "drop_conversation":
            return _Outcome(rows, None, f"policy:{policy.rules[span.rank].entity}", {}, filtered)
    turns: Counter[str] = Counter()
    kept = _keep(conversation.messages, [_fault(*pair, policy) for pair in zip(texts, found, strict=True)], turns)
    if not any(conversation.messages[index].role == "user" for index in kept):
        return _Outcome(rows, None, "no_turn_left", {}, filtered)
    clean = _replace(conversation, kept, texts, found, policy)
    return _Outcome(rows, clean, "", dict(turns), filtered)


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
    policy: Policy,
) -> Clean:
    names = Placeholders()
    messages: list[Message] = []
    findings: list[Finding] = []
    for place, index in enumerate(kept):
        text = texts[index].text
        spans = unite_spans(found[index], text)
        entities = [policy.rules[span.rank].entity for span in spans]
        placeholders = [
            names.name(entity, text[span.start : span.end]) for entity, span in zip(entities, spans, strict=True)
        ]
        messages.append(Message(conversation.messages[index].role, replace_spans(text, spans, placeholders)))
        findings += (
            Finding(place, entity, span.recognizer, span.score, *texts[index].locate(span.start, span.end), name)
            for entity, span, name in zip(entities, spans, placeholders, strict=True)
        )
    return Clean(msgspec.structs.replace(conversation, messages=tuple(messages)), tuple(findings))


def _clean_here(conversations: Iterable[Conversation], policy: Policy, _: int) -> Iterator[_Outcome]:
    recognizers = Recognizers(policy)
    for conversation in conversations:
        yield clean_conversation(conversation, policy, recognizers)


def _clean_apart(conversations: Iterable[Conversation], policy: Policy, processes: int) -> Iterator[_Outcome]:
    """Clean in spawned processes, in order, with a bounded number of conversations under way."""
    spawn = multiprocessing.get_context("spawn")
    waiting: deque[Future[_Outcome]] = deque()
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_start, initargs=(policy,))
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


_equipment: list[tuple[Policy, Recognizers] | InputError] = []  # of a spawned process: one item, by _start


def _start(policy: Policy) -> None:
    try:
        _equipment.append((policy, Recognizers(policy)))
    except InputError as problem:  # raised by the first call: an initializer that raises breaks the pool unsaid
        _equipment.append(problem)


def _clean_one(conversation: Conversation) -> _Outcome:
    (equipment,) = _equipment
    if isinstance(equipment, InputError):
        raise equipment
    return clean_conversation(conversation, *equipment)

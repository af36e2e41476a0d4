# Who says what in which turn of a session.
#
# Law: numbers of segments and of tokens; no times and no lengths of answers, which are drawn elsewhere. A request
# is the first turn of a session, as content.py wrote it, and sessions of one turn are all there is where
# nobody comes back. A later turn says everything that was said before, and then something new:
#
#     turn 0    system  user
#     turn 1    system  user  assistant  user
#     turn 2    system  user  assistant  user  assistant  user
#
# What is said is stored once, however often it is repeated: a history grows by numbers of segments. It is
# quoted, the successive pairs of a conversation of the fixture, or composed, to the lengths that were drawn. The
# answers in it are texts, or segments of kind "answer", which the replay fills with what the server said.

"""Dialogue: the messages of every turn, each with the history of its session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from loadshape.content import Author, Content, Part
from loadshape.conversation import Conversation
from loadshape.envelope import NO_ENVELOPE, Envelope
from loadshape.passage import spread
from loadshape.randomness import derive_seed
from loadshape.stats import Integers

Exchanges = Sequence[tuple[str, str]]  # what was asked, and what was answered


@dataclass(slots=True)
class Segments:
    """The segments of a trace as they are entered, each once: (kind, text, token ids) and its tokens."""

    rows: list[tuple[str, str | None, tuple[int, ...] | None]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)

    def enter(self, kind: str, text: str | None, tokens: int, *, token_ids: tuple[int, ...] | None = None) -> int:
        """Return the number of a segment, a new one if there was none like it."""
        row = (kind, text, token_ids)
        number = self._numbers.setdefault((row, tokens if kind == "answer" else 0), len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
            self.tokens.append(tokens)
        return number

    def enter_texts(self, texts: Iterable[str], tokens: Iterable[int]) -> Integers:
        """Return the numbers of several texts."""
        pairs = zip(texts, tokens, strict=True)
        return np.array([self.enter("text", text, int(count)) for text, count in pairs], np.int64)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What is said in sessions of so many `turns`, one row a turn, session after session.

    A session has its `prefix`; in a turn something is `asked`, and then `answered`, which later turns repeat.
    `template_tokens` is what the envelope adds to each turn.
    """

    turns: Integers
    prefix: Part
    asked: Part
    answered: Part
    template_tokens: Integers

    @classmethod
    def of(cls, content: Content, numbers: Integers) -> Dialogue:
        """Return sessions of one turn: *content*, whose text k is segment numbers[k]."""
        n = len(content.own.counts)
        prefix, own = (replace(part, segments=numbers[part.segments]) for part in (content.prefix, content.own))
        return cls(np.ones(n, np.int64), prefix, own, Part.none(n), content.template_tokens)

    @property
    def session(self) -> Integers:
        """The session of each row."""
        return np.repeat(np.arange(len(self.turns)), self.turns)

    @property
    def turn(self) -> Integers:
        """The turn of each row in its session, from 0."""
        return np.arange(self.turns.sum()) - self.first

    @property
    def first(self) -> Integers:
        """For each row, the row of the first turn of its session."""
        return np.repeat(np.cumsum(self.turns) - self.turns, self.turns)

    @property
    def input_tokens(self) -> Integers:
        """Tokens of each turn: prefix, history, what is asked, and what the envelope adds."""
        said = np.r_[0, np.cumsum(self.asked.tokens + self.answered.tokens)]
        since = said[1:] - said[self.first] - self.answered.tokens
        return np.asarray(self.prefix.tokens[self.session] + since + self.template_tokens)

    def find_fitting(self, output_tokens: Integers, most_tokens: int) -> Integers:
        """Return the rows before the first one of their session whose input and output exceed *most_tokens*."""
        beyond = np.cumsum((self.input_tokens + output_tokens > most_tokens) & (self.turn > 0))
        return np.flatnonzero(beyond == beyond[self.first])

    def carry_shared(self, shared: Integers) -> Integers:
        """Return the shared tokens of each row: *shared* of first turns, then all of the turn before."""
        rows = np.r_[0, self.input_tokens[:-1]]
        rows[self.turn == 0] = shared
        return np.asarray(rows)

    def lead_with(self, segment: int, tokens: int) -> Dialogue:
        """Return the dialogue with a *segment* at the very front of every session."""
        in_prefix = self.prefix.counts > 0
        in_asked = (self.turn == 0) & ~in_prefix[self.session]
        fronts = (
            Part(np.full(there.sum(), segment), there.astype(np.int64), there * tokens)
            for there in (in_prefix, in_asked)
        )
        prefix, asked = (front.follow(part) for front, part in zip(fronts, (self.prefix, self.asked), strict=True))
        return replace(self, prefix=prefix, asked=asked)

    def show(self, images: Part) -> Dialogue:
        """Return the dialogue with *images* after what is asked in each row."""
        return replace(self, asked=self.asked.follow(images))

    def keep(self, rows: Integers) -> Dialogue:
        """Return the dialogue with some *rows* only: of each session the first turns, at least one."""
        turns = np.bincount(self.session[rows], minlength=len(self.turns))
        parts = {name: take_rows(getattr(self, name), rows) for name in ("asked", "answered")}
        return replace(self, turns=turns, template_tokens=self.template_tokens[rows], **parts)

    def resume(self, turns: Integers, asked: Part, answered: Part, envelope: Envelope) -> Dialogue:
        """Return sessions of so many *turns* that begin like these; *asked* are the later turns, *answered* all."""
        sessions = np.repeat(np.arange(len(turns)), turns)
        turn = np.arange(len(sessions)) - np.repeat(np.cumsum(turns) - turns, turns)
        order = np.empty(len(sessions), np.int64)
        order[turn == 0] = np.arange(len(turns))
        order[turn > 0] = len(turns) + np.arange(len(sessions) - len(turns))
        longer = replace(
            self,
            turns=turns,
            asked=take_rows(append_rows(self.asked, asked), order),
            answered=answered,
            template_tokens=np.zeros(len(sessions), np.int64),
        )
        return replace(longer, template_tokens=longer._count_template(envelope))

    def _count_template(self, envelope: Envelope) -> Integers:
        """Count what surrounds the messages of each row; the same for all rows of equal roles."""
        prefixed = (self.prefix.counts > 0)[self.session]
        shapes, which = np.unique(np.column_stack([self.turn, prefixed]), axis=0, return_inverse=True)
        added = []
        for turn, has_prefix in shapes.tolist():
            roles = ["system"] * has_prefix + ["user", "assistant"] * turn + ["user"]
            added.append(sum(envelope.measure(("user",) if envelope.special else tuple(roles))))
        return np.array(added, np.int64)[which.ravel()]


def find_starts(turns: Integers) -> Integers:
    """Return the rows of first turns."""
    return np.asarray(np.cumsum(turns) - turns)


def list_exchanges(conversation: Conversation) -> list[tuple[str, str]]:
    """Return what users asked in a conversation, each with the answer that follows; empty questions end it."""
    found: list[tuple[str, str]] = []
    for one, other in pairwise(conversation.messages):
        if (one.role, other.role) == ("user", "assistant"):
            if not (one.text and other.text):
                break
            found.append((one.text, other.text))
    return found


def quote_turns(
    opening: Dialogue,
    turns: Integers,
    told: Sequence[Exchanges],
    author: Author,
    segments: Segments,
    *,
    live: Integers | None = None,
) -> Dialogue:
    """Return sessions of so many *turns* that go on like the exchanges *told* in each.

    Answers are the recorded ones, or *live*: the tokens that are wanted in each turn.
    """
    pairs = [pair for exchanges, count in zip(told, turns.tolist(), strict=True) for pair in exchanges[:count]]
    starts = set(find_starts(turns).tolist())
    asked = _cite([question for row, (question, _) in enumerate(pairs) if row not in starts], author, segments)
    if live is None:
        answered = _cite([answer for _, answer in pairs], author, segments)
    else:
        answered = _await(turns, live, segments)
    return opening.resume(turns, asked, answered, author.envelope)


def compose_turns(
    opening: Dialogue,
    turns: Integers,
    lengths: tuple[Integers, Integers],
    author: Author,
    segments: Segments,
    *,
    live: bool,
) -> Dialogue:
    """Return sessions of so many *turns* with messages and answers of the *lengths* (one of each a turn)."""
    asked = _compose("turns", np.delete(lengths[0], find_starts(turns)), author, segments)
    answered = _await(turns, lengths[1], segments) if live else _compose("answers", lengths[1], author, segments)
    return opening.resume(turns, asked, answered, author.envelope)


def take_rows(part: Part, rows: Integers) -> Part:
    """Return some rows of a part, in the order that is given."""
    begins = np.cumsum(part.counts) - part.counts
    counts = part.counts[rows]
    return Part(part.segments[spread(begins[rows], counts)], counts, part.tokens[rows])


def append_rows(part: Part, other: Part) -> Part:
    """Return the rows of both parts, one after the other."""
    names = ("segments", "counts", "tokens")
    return Part(*(np.r_[getattr(part, name), getattr(other, name)] for name in names))


def _compose(name: str, tokens: Integers, author: Author, segments: Segments) -> Part:
    """Return one text of each length, from a stream of its own *name*, so that openings stay as they are."""
    if not len(tokens):
        return Part.none(0)
    content = replace(author, seed=derive_seed(author.seed, name), envelope=NO_ENVELOPE).compose(tokens)
    numbers = segments.enter_texts(content.texts, content.text_tokens)
    return replace(content.own, segments=numbers[content.own.segments])


def _cite(texts: Sequence[str], author: Author, segments: Segments) -> Part:
    distinct = list(dict.fromkeys(texts))
    counted = dict(zip(distinct, author.tokenizer.count(distinct), strict=True))
    tokens = np.array([counted[text] for text in texts], np.int64)
    return Part(segments.enter_texts(texts, tokens), np.ones(len(texts), np.int64), tokens)


def _await(turns: Integers, tokens: Integers, segments: Segments) -> Part:
    """Return answers that are not known yet: of each turn, of so many tokens."""
    turn = np.arange(turns.sum()) - np.repeat(np.cumsum(turns) - turns, turns)
    kinds, which = np.unique(np.column_stack([turn, tokens]), axis=0, return_inverse=True)
    entered = [segments.enter("answer", None, count, token_ids=(at,)) for at, count in kinds.tolist()]
    return Part(np.array(entered, np.int64)[which.ravel()], np.ones(len(turn), np.int64), tokens)

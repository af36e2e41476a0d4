# From the turns of a row to the messages of a conversation.
#
# Law: what is the same for every data set: who is who, what a conversation must have, and what becomes of
# turns that are odd. An answer is never a prompt: a conversation begins with its first user turn, after a
# system turn, if any. What is changed is counted.

"""Turns: names of speakers, and messages that alternate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from loadshape.conversation import Message, Role

ROLES_BY_NAME: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
}


class Spoken(Protocol):
    """A turn as a data set has it."""

    @property
    def speaker(self) -> str:
        """Who, in the data set's words."""

    @property
    def value(self) -> str:
        """What."""


class Turn(NamedTuple):
    """Who, in the data set's words, said what."""

    speaker: str
    value: str


def find_fault(turns: Sequence[Spoken], messages: Sequence[Message]) -> str | None:
    """Return why a conversation of these turns is not kept, if it is not."""
    roles = [ROLES_BY_NAME.get(turn.speaker) for turn in turns]
    if None in roles or "system" in roles[1:]:
        return "wrong_role"
    kept = {message.role for message in messages}
    if "user" not in kept:
        return "no_prompt"
    return None if "assistant" in kept else "no_answer"


def to_messages(turns: Sequence[Spoken]) -> tuple[tuple[Message, ...], dict[str, int]]:
    """Return alternating messages that begin with a user's, and how many turns were changed, by kind.

    Turns without text are left out, assistant turns before the first prompt are left out, and turns of
    one role in a row become one message with a blank line between.
    """
    counts = {"empty": 0, "leading_answer": 0, "joined": 0}
    messages: list[Message] = []
    for turn in turns:
        role = ROLES_BY_NAME.get(turn.speaker, "system")
        if not turn.value.strip():
            counts["empty"] += 1
        elif role == "assistant" and (not messages or messages[-1].role == "system"):
            counts["leading_answer"] += 1
        elif messages and messages[-1].role == role:
            messages[-1] = Message(role, f"{messages[-1].text}\n\n{turn.value}")
            counts["joined"] += 1
        else:
            messages.append(Message(role, turn.value))
    return tuple(messages), {kind: count for kind, count in counts.items() if count}

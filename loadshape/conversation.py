# Two frozen values that every source produces and every sanitizer consumes.
#
# A role is one of ROLES; what a data set calls "human" or "gpt" is translated by its source. Text is
# text: no markup, no template, no tokens.

"""Message and Conversation: what people and models said to each other."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One utterance: who spoke, and the text."""

    role: Role
    text: str


class Conversation(msgspec.Struct, frozen=True):
    """An ordered list of messages, and where they came from.

    `identity` is unique within its source; `rows` are the SHA-256 digests (hex) of the source rows that
    the conversation was put together from; `labels` are the source's own tags.
    """

    identity: str
    messages: tuple[Message, ...]
    rows: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def characters(self) -> int:
        """Length of all texts, in code points."""
        return sum(len(message.text) for message in self.messages)

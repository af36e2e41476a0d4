# A program that is killed in the middle of making a fixture, by tests/test_journal.py.

from __future__ import annotations

import sys
from collections.abc import Iterator

from loadshape.conversation import Conversation, Message
from loadshape.fixture import Fixture
from loadshape.policy import Policy
from loadshape.sanitizer import sanitize

POLICY = """
name = "names"
version = 1

[[rule]]
entity = "NAME"
recognizer = "pattern"
patterns = ['Ada|Bob']

[[rule]]
entity = "FOUR"
recognizer = "pattern"
patterns = ['no 4']
action = "drop_conversation"
"""


def list_conversations() -> list[Conversation]:
    return [
        Conversation(f"X{n}", (Message("user", f"I am Ada,\x00 no {n}."), Message("assistant", "Hello Bob.")))
        for n in range(10)
    ]


def stop_halfway() -> Iterator[Conversation]:
    """Yield five conversations, say so, and wait for what never comes."""
    yield from list_conversations()[:5]
    print("half", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    Fixture.write(sys.argv[1], sanitize(stop_halfway(), Policy.parse(POLICY)), resume=True)

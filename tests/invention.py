# An invented fixture in memory, made by arithmetic: no text of anybody, the same on every Python.

"""InventedFixture: what `Shape.trace` needs of a fixture, without a folder."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from loadshape.conversation import Conversation, Message

_TEXT = (
    "a garden needs water in the morning so ask how much rain fell and write it down before noon then sort the "
    "list by name or size with a small function that returns every third value of its input while café owners "
    "naïve as ever count 12 cups 7 plates and (perhaps) one teapot, explain why; compare both, and tell me which "
    "bridge carries more carts per hour when snow lies on the road for weeks"
)
WORDS = _TEXT.split()


def invent_text(number: int, words: int) -> str:
    """Return an invented sentence of so many words."""
    return " ".join(WORDS[(number * 37 + place * place * 11 + place * 5) % len(WORDS)] for place in range(words))


class InventedFixture:
    """*size* pairs of a question (3 to 42 words) and an answer (5 to 104 words)."""

    digest = "sha256:" + "00" * 32

    def __init__(self, size: int = 60) -> None:
        self.pairs = [
            (invent_text(number, 3 + number * 7 % 40), invent_text(number + 1000, 5 + number * 13 % 100))
            for number in range(size)
        ]
        policy = SimpleNamespace(name="none", digest="00" * 32)
        self.manifest = SimpleNamespace(conversations=size, provenance=None, policy=policy)

    def __iter__(self) -> Iterator[Conversation]:
        """Yield conversations of 1, 2, 3, 4, 1, ... pairs each."""
        begin, number = 0, 0
        while begin < len(self.pairs):
            pairs = self.pairs[begin : begin + 1 + number % 4]
            messages = [part for asked, told in pairs for part in (Message("user", asked), Message("assistant", told))]
            yield Conversation(f"invented-{number}", tuple(messages))
            begin, number = begin + len(pairs), number + 1

    def prompts(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs."""
        return iter(self.pairs)

# Text in, numbers of blocks out: what sharing needs of a text, and nothing that it says.
#
# Law: no text leaves this module, and none stays in it. A text is cut into blocks of equal size; each block
# is hashed together with all before it, under a key that is made of 32 random bytes for this reading and
# never written. Of the hash only a number remains, counted up in the order of first appearance. So equal
# numbers are equal beginnings, which is what a prefix cache sees, and:
#
#   - who holds the numbers cannot guess a text and look whether it was there: the key is gone,
#   - the numbers do not depend on the key, so the same log gives the same trace.
#
# What remains is the shape: lengths, times, and that two requests began alike. Whoever can send requests
# into a log that he later sees as a trace can still learn whether somebody else's began like his own.
#
# Sizes are in bytes, so that no tokenizer is needed: 64 bytes are about 16 tokens of English. How many they
# are in this log is taken from the counts that it records.

"""Shredder: hash texts block by block, and forget them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

BLOCK_BYTES = 64
BLOCK_IDS = 16
_BYTES_PER_TOKEN = 4


class Shredder:
    """Numbers for the blocks of texts, equal where the texts are equal from their beginning to there."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._numbers: dict[bytes, int] = {}

    def shred(self, text: str) -> list[int]:
        """Return the numbers of the blocks of a text."""
        told = text.encode(errors="surrogatepass")
        return self._chain([told[at : at + BLOCK_BYTES] for at in range(0, len(told), BLOCK_BYTES)])

    def shred_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Return the numbers of the blocks of 16 token ids each."""
        blocks = [token_ids[at : at + BLOCK_IDS] for at in range(0, len(token_ids), BLOCK_IDS)]
        return self._chain([repr(list(block)).encode() for block in blocks])

    def estimate(self, text: str) -> int:
        """Return how many tokens a text is where nothing counted them: four bytes each."""
        return -(-len(text.encode(errors="surrogatepass")) // _BYTES_PER_TOKEN)

    def _chain(self, blocks: Sequence[bytes]) -> list[int]:
        numbers, before = [], b""
        for block in blocks:
            before = hashlib.blake2b(before + block, key=self._key, digest_size=16).digest()
            numbers.append(self._numbers.setdefault(before, len(self._numbers)))
        return numbers


def join_messages(said: Any) -> str:
    """Return a prompt, or the messages of a chat, as one text in which a longer chat begins with a shorter one."""
    if isinstance(said, str):
        return said
    if isinstance(said, Mapping):
        content = said.get("content", said.get("parts", said.get("text", "")))
        return f"{said.get('role', '')}\n{join_messages(content)}\n"
    if isinstance(said, Sequence):
        return "".join(join_messages(part) for part in said)
    return "" if said is None else str(said)

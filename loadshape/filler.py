# Text that says nothing, of a wanted number of tokens.
#
# Law: no word here comes from anybody's text. A filler is made of common English words of three letters: with
# its blank each is four bytes, one token of the estimate, and one token of practically every byte-pair
# vocabulary.
#
# Silhouettes keep what a server's load depends on and nothing else: roles, token counts, and which beginnings
# two conversations share. Texts are cut into blocks of 64 bytes (16 tokens of the estimate, vLLM's block); a
# block is known by the block before it and by its own content, as in a prefix cache, and gets the next number
# when it is first seen. Its words write that number. A number says that two beginnings were equal, not what
# they were: there is no hash of the text that a guess could be tried against. So the words of a conversation
# depend on those before it, and on nothing of its own but lengths.

"""Words that say nothing, and conversations as nothing but their silhouettes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from loadshape.conversation import Conversation, Message
from loadshape.tokenizer import Tokenizer

BLOCK_TOKENS, BLOCK_BYTES = 16, 64
_WORDS = """
the and for you not are but can all any had her was one our out day get has him his how man new now old see
two way who boy did its let put say she too use far few got big car end red run set six sun ten top try yes
yet ago air bed bit box buy cut dog dry eye
"""
WORDS = tuple(_WORDS.split())


def write_filler(tokens: int) -> str:
    """Return *tokens* words, a token each, with blanks between them."""
    return " ".join(WORDS[place % len(WORDS)] for place in range(tokens))


class Silhouettes:
    """Conversations with other words: the same beginnings stay the same, over all conversations that it has seen."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._seen = 0

    def draw(self, conversation: Conversation) -> Conversation:
        """Return the silhouette of *conversation*; it has a number for a name, no rows and no labels."""
        self._seen += 1
        texts = [message.text for message in conversation.messages]
        messages, at = [], 0
        for message, tokens in zip(conversation.messages, self._tokenizer.count(texts), strict=True):
            at = self._number(at, message.role.encode())
            text, at = self._replace(message.text, tokens, at)
            messages.append(Message(message.role, text))
        return msgspec.structs.replace(
            conversation, identity=str(self._seen), messages=tuple(messages), rows=(), labels=()
        )

    def _replace(self, text: str, tokens: int, at: int) -> tuple[str, int]:
        """Return the words in the place of *text*, and the number of its last block."""
        content = text.encode("utf-8", "surrogatepass")
        words: list[str] = []
        for start in range(0, len(content), BLOCK_BYTES):
            at = self._number(at, content[start : start + BLOCK_BYTES])
            words.extend(_spell(at))
        more = at
        while len(words) < tokens:
            more = self._number(more, b"")
            words.extend(_spell(more))
        return " ".join(words[:tokens]), at

    def _number(self, before: int, content: bytes) -> int:
        key = (before, hashlib.blake2b(content, digest_size=16).digest())
        return self._numbers.setdefault(key, len(self._numbers) + 1)


def _spell(number: int) -> Iterator[str]:
    """Yield the words of a block: the digits of its number, lowest first, each moved on by the one before it."""
    place = 0
    for step in range(BLOCK_TOKENS):
        number, digit = divmod(number, len(WORDS))
        place = (place + digit + step) % len(WORDS)
        yield WORDS[place]

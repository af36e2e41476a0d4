# Silhouettes: the same roles, lengths and shared beginnings, and no word of anybody's.

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadshape.conversation import Conversation, Message
from loadshape.filler import BLOCK_BYTES, BLOCK_TOKENS, WORDS, Silhouettes, write_filler
from loadshape.policy import Policy
from loadshape.sanitizer import sanitize
from loadshape.tokenizer import Estimate


def talk(*texts: str) -> Conversation:
    return Conversation(
        "who", tuple(Message(("user", "assistant")[n % 2], text) for n, text in enumerate(texts)), ("r",), ("l",)
    )


def test_words_are_one_token_each() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert Estimate().count([write_filler(n) for n in (0, 1, 7, 100)]) == [0, 1, 7, 100]


def test_equal_beginnings_stay_equal_and_others_do_not() -> None:
    shared = "s" * 3 * BLOCK_BYTES
    drawn = Silhouettes(Estimate())
    one, other, third = (
        drawn.draw(talk(text, "same")) for text in (shared + "a" * 99, shared + "b" * 99, "x" + shared)
    )
    words = [conversation.messages[0].text.split() for conversation in (one, other, third)]
    assert words[0][: 3 * BLOCK_TOKENS] == words[1][: 3 * BLOCK_TOKENS]
    assert words[0][3 * BLOCK_TOKENS : 4 * BLOCK_TOKENS] != words[1][3 * BLOCK_TOKENS : 4 * BLOCK_TOKENS]
    assert words[0][:BLOCK_TOKENS] != words[2][:BLOCK_TOKENS]
    assert one.messages[1].text != other.messages[1].text, "the same text after another beginning is another block"
    again = drawn.draw(talk(shared + "a" * 99, "same"))
    assert again.messages == one.messages


def test_nothing_else_is_kept() -> None:
    sanitized = sanitize(
        [talk("My name is Ada Example", "Hello Ada"), talk(" ", "x")], Policy.load("shape-only"), processes=2
    )
    (clean,) = sanitized
    conversation = clean.conversation
    assert (conversation.identity, conversation.rows, conversation.labels, clean.findings) == ("1", (), (), ())
    assert {word for message in conversation.messages for word in message.text.split()} <= set(WORDS)
    assert (sanitized.lengths.before, sanitized.lengths.after) == (9, 9)
    assert sanitized.account.dropped == {"no_turn_left": 1}


@given(st.lists(st.lists(st.text("ab한 \n", min_size=1, max_size=300), min_size=1, max_size=4), max_size=5))
def test_lengths_and_roles_are_kept(conversations: list[list[str]]) -> None:
    drawn = Silhouettes(Estimate())
    for texts in conversations:
        conversation = talk(*texts)
        clean = drawn.draw(conversation)
        assert [message.role for message in clean.messages] == [message.role for message in conversation.messages]
        assert Estimate().count([message.text for message in clean.messages]) == Estimate().count(texts)

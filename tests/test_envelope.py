"""What a server puts around texts: chat templates of a model's folder, and the special tokens of completions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from models import CHAT, STRIPPING, write_model

from loadshape.content import Author
from loadshape.envelope import NO_ENVELOPE, Envelope
from loadshape.errors import MissingExtra, RecipeError
from loadshape.prefix import PrefixTree
from loadshape.tokenizer import Estimate, Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_model(tmp_path_factory.mktemp("model")))


def test_gaps_are_the_tokens_before_between_and_after_texts(tokenizer: Tokenizer) -> None:
    envelope = Envelope.of(tokenizer, "chat")
    [user, system, assistant, newline] = tokenizer.count(["user", "system", "assistant", "\n"])
    opened, closed = 1 + newline, 1 + newline  # <|begin|> role \n, and <|end|> \n
    end = closed + opened + assistant
    assert envelope.measure(("user",)) == (1 + opened + user, end)
    assert envelope.measure(("system", "user")) == (1 + opened + system, closed + opened + user, end)
    assert envelope.measure(("user", "assistant", "user")) == (
        1 + opened + user,
        closed + opened + assistant,
        closed + opened + user,
        end,
    )


@pytest.mark.parametrize("roles", [("user",), ("system", "user"), ("system", "user", "assistant", "user")])
def test_a_request_has_the_tokens_of_its_texts_and_gaps(tokenizer: Tokenizer, roles: tuple[str, ...]) -> None:
    envelope = Envelope.of(tokenizer, "chat")
    texts = [" how much rain fell", " the and for you", " are not but can", " see two"][: len(roles)]
    counted = envelope.count([list(zip(roles, texts, strict=True))])
    assert counted == [sum(tokenizer.count(texts)) + sum(envelope.measure(roles))]


def test_a_completion_begins_with_the_special_tokens_of_the_model(tokenizer: Tokenizer) -> None:
    envelope = Envelope.of(tokenizer, "completions")
    assert envelope.measure(("user",)) == (1, 0)
    assert envelope.count([[("user", " the and")]]) == [1 + tokenizer.count([" the and"])[0]]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_without_a_folder_nothing_is_added(tokenizer: Tokenizer, api: str, tmp_path: Path) -> None:
    write_model(tmp_path)
    for alone in (Estimate(), load_tokenizer(tmp_path / "tokenizer.json")):
        envelope = Envelope.of(alone, api)
        assert envelope.is_empty
        assert envelope.measure(("system", "user")) == (0, 0, 0)
        assert envelope.count([[("system", " the"), ("user", " and for")], []]) == [3, 0]
    assert NO_ENVELOPE.measure(()) == (0,)


def test_a_folder_without_a_template_adds_nothing_to_a_chat(tmp_path: Path) -> None:
    assert Envelope.of(load_tokenizer(write_model(tmp_path, template=None)), "chat").is_empty


WHERE = {
    "chat_template.jinja": CHAT,
    "chat_template.json": json.dumps({"chat_template": CHAT}),
    "tokenizer_config.json": json.dumps(
        {
            "bos_token": "<s>",
            "chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": CHAT}],
        }
    ),
}


@pytest.mark.parametrize("name", WHERE)
def test_templates_are_found_where_models_have_them(tokenizer: Tokenizer, name: str, tmp_path: Path) -> None:
    write_model(tmp_path, template=None)
    (tmp_path / name).write_text(WHERE[name])
    envelope = Envelope.of(load_tokenizer(tmp_path), "chat")
    assert envelope.measure(("user",)) == Envelope.of(tokenizer, "chat").measure(("user",))


def test_a_template_that_strips_its_texts_is_measured_as_it_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    envelope = Envelope.of(load_tokenizer(write_model(tmp_path, STRIPPING)), "chat")
    assert envelope.measure(("system", "user")) == Envelope.of(tokenizer, "chat").measure(("system", "user"))


BROKEN = [
    ("{% for m in messages %}", r": expected a chat template in jinja; "),
    ("{{ raise_exception('no system message') }}", "the chat template refuses messages of user: no system message"),
    ("{{ messages.__class__.__mro__ }}", "the chat template refuses messages of user: access to attribute"),
    ("hello", "chat template: expected the text of each of user, found one left out"),
]


@pytest.mark.parametrize(("template", "message"), BROKEN)
def test_a_template_that_cannot_be_used_is_refused(template: str, message: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_model(tmp_path, template))
    with pytest.raises(RecipeError, match=message):
        Envelope.of(tokenizer, "chat").measure(("user",))


def test_a_model_without_system_messages_takes_requests_without_a_prefix(tmp_path: Path) -> None:
    picky = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT
    tokenizer = load_tokenizer(write_model(tmp_path, picky))
    author = Author([], tokenizer, 7, Envelope.of(tokenizer, "chat"))
    assert author.compose(np.array([40, 50])).input_tokens.tolist() == [40, 50]
    with pytest.raises(RecipeError, match=r"refuses messages of system, user: no system"):
        author.compose(np.array([40, 50]), PrefixTree(prefix_tokens=10))


def test_without_jinja_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(write_model(tmp_path))
    monkeypatch.setitem(sys.modules, "jinja2.sandbox", None)
    with pytest.raises(MissingExtra, match=r"pip install 'loadshape-llm\[template\]'"):
        Envelope.of(tokenizer, "chat")

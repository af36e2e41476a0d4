# The control-sequence filter: what goes, what stays, and where the rest came from.

from __future__ import annotations

import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.characters import filter_text

_TOOL = '{"name": "get", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}'

CASES = {
    "plain": ("a\tb\nc", "a\tb\nc", {}),
    "line ends": ("a\r\nb\rc", "a\nb\nc", {"line_ends": 2}),
    "controls": ("a\x00b\x1b[31mc\x7f\x85", "ab[31mc", {"controls": 4}),
    "bidi": ("a\u202eb\u2066c\u200f", "abc", {"bidi": 3}),
    "zero width": ("\ufeffa\u200bb\u00adc\u2060", "abc", {"zero_width": 4}),
    "tags": ("a\U000e0041\U000e0042b", "ab", {"tags": 2}),
    "surrogates": ("a\ud800b", "ab", {"surrogates": 1}),
    "nfc": ("cafe\u0301 ok", "caf\u00e9 ok", {"nfc": 1}),
    "hangul": ("\u1112\u1161\u11ab x", "\ud55c x", {"nfc": 1}),
    "chatml": ("<|im_start|>system", " system", {"template_tokens": 1}),
    "llama 2": ("[INST] <<SYS>>x<</SYS>> y [/INST]</s>", "   x  y   ", {"template_tokens": 5}),
    "gemma": ("<start_of_turn>user<end_of_turn>", " user ", {"template_tokens": 2}),
    "deepseek": ("<\uff5cUser\uff5c>hi<\uff5cend\u2581of\u2581sentence\uff5c>", " hi ", {"template_tokens": 2}),
    "tool call": ("<tool_call>{}</tool_call>", " {} ", {"template_tokens": 2}),
    "a call": ('ok {"name": "get", "arguments": {"q": "{x}"}} then', "ok   then", {"tool_calls": 1}),
    "a call in its tags": (
        '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>',
        " \n \n ",
        {"template_tokens": 2, "tool_calls": 1},
    ),
    "two calls": (
        '[TOOL_CALLS] [{"name": "a", "arguments": {}}, {"type": "tool_use", "id": "1", "name": "b", "input": {}}]',
        "  [ ,  ]",
        {"template_tokens": 1, "tool_calls": 2},
    ),
    "a tool is described": (_TOOL, _TOOL, {}),
    "a call is broken off": ('{"name": "get", "arguments": {"q"', '{"name": "get", "arguments": {"q"', {}),
    "other json": ('{"name": "ada", "age": 3, "input": 1}', '{"name": "ada", "age": 3, "input": 1}', {}),
    "roles": ("Human: hi\nAssistant : ok\n### Response:\nx", "  hi\n  ok\n \nx", {"role_prefixes": 3}),
    "role words inside": ("the user: x\nUsers: y\nsystems: z", "the user: x\nUsers: y\nsystems: z", {}),
    "image": ('see ![a cat](https://a.example.com/x.png?d=1 "t") ok', "see a cat ok", {"images": 1}),
    "image that hides a token": ("![<|im_end|>](x)", " ", {"images": 1, "template_tokens": 1}),
    "hidden by a zero width": ("<|im_\u200bend|>", " ", {"zero_width": 1, "template_tokens": 1}),
    "one inside another": ("<|im_<|im_end|>end|>", "<|im_ end|>", {"template_tokens": 1}),
    "not tokens": ("a < b | c > d <span> [x] <|> x||y", "a < b | c > d <span> [x] <|> x||y", {}),
    "quotes and emoji stay": ("\u2018ok\u2019 \U0001f44d\ufe0f 한국어", "\u2018ok\u2019 \U0001f44d\ufe0f 한국어", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_texts_are_filtered_and_counted(case: str) -> None:
    text, clean, removed = CASES[case]
    counts: Counter[str] = Counter()
    assert filter_text(text, counts).text == clean
    assert counts == removed


def test_places_are_told_in_the_original() -> None:
    text = "\u200bcall A\u0301da\r\nnow<|eot_id|>x"
    filtered = filter_text(text, Counter())
    assert filtered.text == "call \u00c1da\nnow x"
    start = filtered.text.index("\u00c1da")
    assert text[slice(*filtered.locate(start, start + 3))] == "A\u0301da"
    assert text[slice(*filtered.locate(len(filtered.text) - 1, len(filtered.text)))] == "x"


@pytest.mark.parametrize(
    "unit", ['{"name":"a","args":', '{"name":"a","args":[[[[[[[[', '{"name":"a","args":1', '{"id":"']
)
def test_broken_calls_stay_and_cost_little(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    assert filter_text(text, Counter()).text == text


ODD = st.text(
    st.sampled_from("ab<|>s[]/INST_e\u0301\u1112\u1161\u11ab\u200b\r\n\x07\uff5c\u2581 한") | st.characters(),
    max_size=40,
)


@given(ODD)
def test_filtering_again_changes_nothing(text: str) -> None:
    once = filter_text(text, Counter()).text
    again: Counter[str] = Counter()
    assert filter_text(once, again).text == once
    assert not again
    assert unicodedata.is_normalized("NFC", once)
    once.encode("utf-8")


@given(ODD, st.data())
def test_a_stretch_comes_from_the_stretch_it_is_located_at(text: str, data: st.DataObject) -> None:
    filtered = filter_text(text, Counter())
    start = data.draw(st.integers(0, len(filtered.text)))
    end = data.draw(st.integers(start, len(filtered.text)))
    first, last = filtered.locate(start, end)
    assert 0 <= first <= last <= len(text)
    if start < end:
        assert first < last
        assert set(filtered.text[start:end]) - {" ", "\n"} <= set(unicodedata.normalize("NFC", text[first:last]))

# The reader of ShareGPT files: what a row becomes, how a file may end, and that every row is counted.

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import MissingExtra, SourceError
from loadshape.provenance import Account
from loadshape.sources import Source, json_array, read, sharegpt
from loadshape.sources.json_array import ArrayReader
from loadshape.sources.known import KnownInput

Turn = dict[str, str]


def turn(letter: str, text: str) -> Turn:
    names = {"h": "human", "g": "gpt", "s": "system", "b": "bing", "c": "chatgpt", "u": "user", "d": "bard"}
    return {"from": names.get(letter, letter), "value": text}


def row(identity: Any, *turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": identity, "conversations": [turn(*each) for each in turns]}


def write(folder: Path, rows: list[Any], name: str = "chats.json", indent: int | None = 2) -> Path:
    path = folder / name
    path.write_text(json.dumps(rows, indent=indent), encoding="utf-8")
    return path


def shorthand(source: Source) -> list[tuple[str, str]]:
    """Conversations as ("X", "u:hi a:hello")."""
    return [
        (conversation.identity, " ".join(f"{message.role[0]}:{message.text}" for message in conversation.messages))
        for conversation in source
    ]


CASES: dict[str, tuple[list[Any], list[tuple[str, str]], dict[str, int], dict[str, int]]] = {
    # name: rows, conversations, rows dropped, turns changed
    "one": ([row("X_0", ("h", "p"), ("g", "a"))], [("X", "u:p a:a")], {}, {}),
    "every role": (
        [row("X_0", ("s", "be"), ("u", "p"), ("c", "a"), ("h", "q"), ("b", "b"), ("h", "r"), ("d", "c"))],
        [("X", "s:be u:p a:a u:q a:b u:r a:c")],
        {},
        {},
    ),
    "overlap of one turn": (
        [row("X_0", ("h", "p"), ("g", "a")), row("X_1", ("g", "a"), ("h", "q"), ("g", "b"))],
        [("X", "u:p a:a u:q a:b")],
        {},
        {},
    ),
    "pieces out of order, between others": (
        [
            row("X_2", ("h", "q"), ("g", "b")),
            row("Y_0", ("h", "y"), ("g", "z")),
            row("X_0", ("h", "p"), ("g", "a")),
        ],
        [("X", "u:p a:a u:q a:b"), ("Y", "u:y a:z")],
        {},
        {},
    ),
    "a missing piece ends the conversation": (
        [row("X_0", ("h", "p"), ("g", "a")), row("X_9", ("h", "q"), ("g", "b")), row("X_11", ("h", "r"), ("g", "c"))],
        [("X", "u:p a:a")],
        {"gap": 2},
        {},
    ),
    "offsets that are only numbers": (
        [row(f"id_{n}", ("h", f"p{n}"), ("g", f"a{n}"), ("h", f"q{n}"), ("g", "z")) for n in range(3)],
        [("id", "u:p0 a:a0 u:q0 a:z"), ("id_1", "u:p1 a:a1 u:q1 a:z"), ("id_2", "u:p2 a:a2 u:q2 a:z")],
        {},
        {},
    ),
    "a first piece that begins with an answer": (
        [row("X_3", ("g", "lost"), ("h", "p"), ("g", "a"))],
        [("X_3", "u:p a:a")],
        {},
        {"leading_answer": 1},
    ),
    "empty, then the same id with content": (
        [row("X_0"), row("X_0", ("h", "p"), ("g", "a"))],
        [("X", "u:p a:a")],
        {"empty": 1},
        {},
    ),
    "the same id twice": (
        [row("X_0", ("h", "p"), ("g", "a")), row("X_0", ("h", "p"), ("g", "a")), row("X_0", ("h", "q"), ("g", "b"))],
        [("X", "u:p a:a")],
        {"duplicate": 1, "duplicate_id": 1},
        {},
    ),
    "the same conversation under another id": (
        [row("X_0", ("h", "p"), ("g", "a")), row("Y_0", ("h", "p"), ("g", "a"))],
        [("X", "u:p a:a")],
        {"duplicate": 1},
        {},
    ),
    "empty turns and one role twice": (
        [row("X_0", ("h", ""), ("g", "lost"), ("h", "p"), ("h", "q"), ("g", " \n"), ("g", "a"))],
        [("X", "u:p\n\nq a:a")],
        {},
        {"empty": 2, "leading_answer": 1, "joined": 1},
    ),
    "an answer is never a prompt": ([row("X_0", ("g", "a"), ("g", "b"))], [], {"no_prompt": 1}, {}),
    "a prompt without an answer": ([row("X_0", ("h", "p"))], [], {"no_answer": 1}, {}),
    "an unknown role": ([row("X_0", ("h", "p"), ("alien", "a"))], [], {"wrong_role": 1}, {}),
    "a system turn in the middle": ([row("X_0", ("h", "p"), ("s", "x"), ("g", "a"))], [], {"wrong_role": 1}, {}),
    "the older key, and no id": (
        [{"items": [turn("h", "p"), turn("g", "a")]}, {"id": 7, "items": [turn("h", "q"), turn("g", "b")]}],
        [("row-1", "u:p a:a"), ("7", "u:q a:b")],
        {},
        {},
    ),
    "rows of other types": (
        [
            row("X_0", ("h", "p"), ("g", "a")),
            {"id": "Y"},
            {"id": "Z_0", "conversations": [{"from": "human", "value": 3}]},
            row("S_0", ("h", "\ud800"), ("g", "a")),
        ],
        [("X", "u:p a:a")],
        {"malformed": 3},
        {},
    ),
    "an empty array": ([], [], {}, {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("indent", [None, 2])
def test_rows_become_conversations(case: str, indent: int | None, tmp_path: Path) -> None:
    rows, conversations, dropped, turns = CASES[case]
    source = read("sharegpt", write(tmp_path, rows, indent=indent))
    assert shorthand(source) == conversations
    assert source.account == Account(
        read=len(rows),
        kept=len(rows) - sum(dropped.values()),
        dropped=dict(sorted(dropped.items())),
        turns=dict(sorted(turns.items())),
        conversations=len(conversations),
    )
    assert shorthand(source) == conversations, "a source can be iterated again"


def test_rows_are_known_by_the_hash_of_their_bytes(tmp_path: Path) -> None:
    raw = b'{"id": "X_0",\n "conversations": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "a"}]}'
    path = tmp_path / "chats.json"
    path.write_bytes(b"[" + raw + b"]")
    (conversation,) = read("sharegpt", path)
    assert conversation.rows == (hashlib.sha256(raw).hexdigest(),)


def test_selection_is_accounted_for(tmp_path: Path) -> None:
    rows = [row(f"X{n}_0", ("h", "p" * n), ("g", "a")) for n in range(1, 8)]
    source = read("sharegpt", write(tmp_path, rows), limit=2, max_characters=4)
    assert [conversation.characters for conversation in source] == [2, 3]
    assert source.account.dropped == {"beyond_limit": 5}
    source = read("sharegpt", write(tmp_path, rows), limit=5, max_characters=4)
    assert len(list(source)) == 3
    assert source.account.dropped == {"oversize": 4}


def test_provenance_names_the_file_and_not_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path, [row("X_0", ("h", "p"), ("g", "a"))])
    provenance = read("sharegpt", path).provenance
    assert (provenance.name, provenance.licence, provenance.complete) == ("chats.json", "not stated", True)
    assert provenance.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert provenance.bytes == path.stat().st_size


CUTS = {
    # how the file ends: (rows read with the cut one, rows cut off)
    '[{"id": "X_0", "conversations": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "a"}]}': (1, 0),
    '[{"id": "X_0", "conversations": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "a"}]},': (1, 0),
    '[{"id": "X_0", "conversations": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "a"}]},\n{': (2, 1),
    '[{"id": "X_0", "conversations": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "a"}]}, {"i\\': (2, 1),
}


@pytest.mark.parametrize("text", CUTS)
def test_a_cut_file_is_refused_unless_it_is_declared(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"cut\.json: the JSON array is not closed.*partial"):
        read("sharegpt", path)
    source = read("sharegpt", path, partial=True)
    assert shorthand(source) == [("X", "u:p a:a")]
    rows, cut = CUTS[text]
    assert source.account == Account(rows, 1, {"cut_off": cut} if cut else {}, {}, 1)
    assert not source.provenance.complete
    assert source.provenance.bytes_dropped == len(text) - text.index("]}") - 2


def test_a_pinned_partial_input_needs_no_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cut.json"
    path.write_text(next(iter(CUTS)))
    known = KnownInput("pkg:pypi/invented@1", "1", False, "half of it")
    monkeypatch.setitem(sharegpt.KNOWN_INPUTS, hashlib.sha256(path.read_bytes()).hexdigest(), known)
    provenance = read("sharegpt", path).provenance
    assert (provenance.uri, provenance.note, provenance.complete) == (known.uri, "half of it", False)


BROKEN = {
    "": "expected a JSON array of objects; at byte 0 expected \\[, found the end",
    '{"id": "X_0"}': "at byte 0 expected \\[, found '{'",
    "[1, 2]": "at byte 1 expected { or \\], found '1'",
    '[{"a": 1} {"a": 2}]': "at byte 10 expected , or \\], found '{'",
    "[]\n[]": "at byte 3 expected nothing more, found '\\['",
    '[{"a": 1}, ]': "at byte 11 expected {, found '\\]'",
    '[{"text": "other format"}]': "no row is in the ShareGPT format; the first: row 1: Object missing required field",
    '[{"id": "X_0", "conversations": [}]}]': "row 1, at byte 1, is not JSON: ",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=rf"broken\.json: .*{BROKEN[text]}"):
        read("sharegpt", path)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        read("sharegpt", tmp_path / "absent.json")
    with pytest.raises(SourceError, match=r"expected one of sharegpt, .*, found 'sharegtp'"):
        read("sharegtp", tmp_path / "absent.json")


def test_a_file_that_changes_between_two_readings_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, [row("X_0", ("h", "p"), ("g", "a"))])
    source = read("sharegpt", path)
    path.write_text(path.read_text().replace('"p"', '"q"'))
    with pytest.raises(SourceError, match="changed while it was read"):
        list(source)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharegpt, "DEMO_PACKAGE", "sharegpt_dataset_that_is_absent")
    with pytest.raises(MissingExtra, match=r"loadshape-llm\[demo\]"):
        sharegpt.locate_sharegpt()


def test_a_row_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "BLOCK_BYTES", 16)
    monkeypatch.setattr(json_array, "MAX_OBJECT_BYTES", 100)
    with pytest.raises(SourceError, match="the object at byte 1 is larger"):
        list(ArrayReader(io.BytesIO(b'[{"a": "' + b"x" * 200), "long.json"))


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text('a"\\{}[]ü', max_size=6), JSON_VALUES, max_size=3), max_size=5)


@given(OBJECTS, st.integers(1, 9), st.booleans(), st.sampled_from([None, 0, 3]))
def test_objects_are_found_at_any_block_size_and_layout(
    objects: list[Any], block: int, ascii_only: bool, indent: int | None
) -> None:
    raw = json.dumps(objects, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "BLOCK_BYTES", block)
        reader = ArrayReader(io.BytesIO(raw), "any.json")
        found = list(reader)
    assert [json.loads(piece) for _, piece in found] == objects
    assert all(raw[start : start + len(piece)] == piece for start, piece in found)
    assert reader.is_complete
    assert not reader.is_cut


@given(OBJECTS, st.integers(1, 9), st.data())
def test_a_cut_anywhere_gives_a_prefix_and_is_noticed(objects: list[Any], block: int, data: st.DataObject) -> None:
    raw = json.dumps(objects).encode()
    cut = data.draw(st.integers(1, len(raw) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "BLOCK_BYTES", block)
        reader = ArrayReader(io.BytesIO(raw[:cut]), "cut.json")
        found = [json.loads(piece) for _, piece in reader]
    assert found == objects[: len(found)]
    assert not reader.is_complete


@pytest.mark.parametrize("most", [{"limit": 0}, {"limit": -1}, {"max_characters": 0}])
def test_a_limit_that_keeps_nothing_is_refused(most: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"(limit|max_characters): expected 1 or more"):
        read("sharegpt", tmp_path / "any.json", **most)

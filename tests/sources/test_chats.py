# Conversations that lie whole in a row: what becomes of each, and that every row is counted.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadshape.errors import SourceError
from loadshape.provenance import Account
from loadshape.sources import Source, read


def say(role: str, text: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def node(role: str, text: str, *replies: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
    return {"message_id": text, "role": role, "text": text, "rank": rank, "replies": list(replies)}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def shorthand(source: Source) -> list[tuple[str, str]]:
    return [(it.identity, " ".join(f"{said.role[0]}:{said.text}" for said in it.messages)) for it in source]


TALK = [say("user", "hi"), say("assistant", "hello")]
CASES: dict[str, tuple[str, list[Any], list[tuple[str, str]], dict[str, int]]] = {
    # name: format, rows, conversations, rows dropped
    "lmsys": (
        "lmsys",
        [{"conversation_id": "0f", "model": "m", "conversation": TALK, "language": "English", "redacted": False}],
        [("0f", "u:hi a:hello")],
        {},
    ),
    "wildchat, both of its names": (
        "wildchat",
        [
            {"conversation_hash": "9d", "conversation": [say("user", "a", hashed_ip="x"), say("assistant", "b")]},
            {"conversation_id": "9e", "conversation": [say("user", "c"), say("assistant", "d")]},
        ],
        [("9d", "u:a a:b"), ("9e", "u:c a:d")],
        {},
    ),
    "messages, by other names": (
        "messages",
        [
            {"id": 1, "messages": [say("system", "be"), *TALK]},
            {"conversations": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "q"}]},
        ],
        [("1", "s:be u:hi a:hello"), ("row-2", "u:p a:q")],
        {},
    ),
    "oasst: the best ranked reply, or the first": (
        "oasst",
        [
            {
                "message_tree_id": "t",
                "prompt": node(
                    "prompter",
                    "p",
                    node("assistant", "worse", rank=1),
                    node("assistant", "best", node("prompter", "q", node("assistant", "r")), rank=0),
                ),
            },
            node("prompter", "x", node("assistant", "y"), node("assistant", "z")),
        ],
        [("t", "u:p a:best u:q a:r"), ("x", "u:x a:y")],
        {},
    ),
    "odd rows": (
        "messages",
        [
            {"messages": TALK},
            {"messages": TALK},
            {"messages": []},
            {"messages": [say("wizard", "hi"), say("assistant", "x")]},
            {"messages": [say("assistant", "x")]},
            {"messages": [say("user", "x"), say("assistant", None)]},
            {"messages": [say("user", [{"type": "image_url"}])]},
            {"other": 1},
            7,
            {"messages": [say("user", "y" * 99), say("assistant", "x")]},
        ],
        [("row-1", "u:hi a:hello")],
        {"duplicate": 1, "empty": 1, "malformed": 3, "no_answer": 1, "no_prompt": 1, "oversize": 1, "wrong_role": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_format(tmp_path: Path, name: str) -> None:
    format, rows, conversations, dropped = CASES[name]
    source = read(format, write(tmp_path / "chats.jsonl", rows), max_characters=50)
    assert shorthand(source) == conversations
    account = Account(len(rows), len(conversations), dropped, conversations=len(conversations))
    assert (source.account.read, source.account.kept, source.account.dropped) == (account.read, account.kept, dropped)
    assert shorthand(source) == conversations, "a source can be read again"


def test_parquet_gives_the_same(tmp_path: Path) -> None:
    rows = [{"conversation_id": "0f", "conversation": TALK, "language": "English"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    (packed,) = read("lmsys", tmp_path / "chats.parquet")
    (plain,) = read("lmsys", write(tmp_path / "chats.jsonl", rows))
    assert packed == plain
    assert plain.labels == ("English",)


def test_a_limit_is_an_account(tmp_path: Path) -> None:
    rows = [{"messages": [say("user", str(n)), say("assistant", "x")]} for n in range(5)]
    source = read("messages", write(tmp_path / "chats.jsonl", rows), limit=2)
    assert len(list(source)) == 2
    assert source.account.dropped == {"beyond_limit": 3}


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", [{"prompt": "hi"}, {"prompt": "ho"}])
    with pytest.raises(SourceError, match="expected objects with messages in the format lmsys, found 2 rows and none"):
        list(read("lmsys", path))
    with pytest.raises(SourceError, match=r"nowhere: expected a file in the format lmsys; No such file"):
        read("lmsys", tmp_path / "nowhere")

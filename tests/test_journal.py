# Results that survive a kill: whatever is left of a journal, going on gives what one run would have given.

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadshape.errors import InputError
from loadshape.fixture import Fixture
from loadshape.journal import NAME, Journal
from loadshape.lease import holding
from loadshape.policy import Policy
from loadshape.sanitizer import sanitize
from tests.resumed import POLICY, list_conversations

INPUTS = [f"input {number}" for number in range(6)]
WANTED = [text.upper() for text in INPUTS]


class Maker:
    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, inputs: Iterable[str]) -> Iterator[str]:
        for text in inputs:
            self.made.append(text)
            yield text.upper()


def run(folder: Path, inputs: Iterable[str] = INPUTS, terms: str = "these") -> tuple[list[str], list[str]]:
    """Return the results, and the inputs that were worked on."""
    maker = Maker()
    return list(Journal(folder, terms, str).follow(inputs, maker)), maker.made


def test_what_was_made_is_not_made_again(tmp_path: Path) -> None:
    assert run(tmp_path / "work") == (WANTED, INPUTS)
    assert run(tmp_path / "work") == (WANTED, [])


def test_a_run_that_was_left_goes_on(tmp_path: Path) -> None:
    started = Journal(tmp_path, "these", str).follow(INPUTS, Maker())
    assert [next(started), next(started)] == WANTED[:2]
    started.close()  # type: ignore[attr-defined]
    assert run(tmp_path) == (WANTED, INPUTS[2:])


def test_other_terms_begin_anew(tmp_path: Path) -> None:
    run(tmp_path)
    assert run(tmp_path, terms="others") == (WANTED, INPUTS)
    assert run(tmp_path, terms="others") == (WANTED, [])


def test_another_input_ends_what_is_taken_over(tmp_path: Path) -> None:
    run(tmp_path)
    changed = [*INPUTS[:3], "changed", *INPUTS[4:]]
    assert run(tmp_path, changed) == ([text.upper() for text in changed], changed[3:])
    assert run(tmp_path, INPUTS[:2]) == (WANTED[:2], [])


def test_only_one_is_at_work(tmp_path: Path) -> None:
    with holding(tmp_path), pytest.raises(InputError, match="another process is at work here"):
        run(tmp_path)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_fixture_whose_making_was_killed_is_the_same(processes: int, tmp_path: Path) -> None:
    path = tmp_path / "a.fixture"
    whole = Fixture.write(tmp_path / "whole.fixture", sanitize(list_conversations(), Policy.parse(POLICY)))
    command = [sys.executable, "-m", "tests.resumed", str(path)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        child.kill()
    work = tmp_path / ".a.fixture.work"
    assert not path.exists()
    assert len(list(work.iterdir())) == 2, "the journal, and tables that were begun"

    told: list[int] = []
    clean = sanitize(list_conversations(), Policy.parse(POLICY), processes=processes, progress=told.append)
    resumed = Fixture.write(path, clean, resume=True)
    resumed.verify()
    assert told == [6, 7, 8, 9, 10], "five were there"
    assert resumed.digest == whole.digest
    assert resumed.manifest.account == whole.manifest.account
    assert resumed.manifest.lengths == whole.manifest.lengths
    assert resumed.manifest.filters == whole.manifest.filters
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.fixture", "whole.fixture"]


@settings(max_examples=50)
@given(st.data())
def test_whatever_is_left_of_a_journal_the_results_are_the_same(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder)
        raw = bytearray((folder / NAME).read_bytes())
        if data.draw(st.booleans(), "cut"):
            raw = raw[: data.draw(st.integers(0, len(raw)), "length")]
        else:
            raw[data.draw(st.integers(0, len(raw) - 1), "place")] ^= 1 << data.draw(st.integers(0, 7), "bit")
        (folder / NAME).write_bytes(bytes(raw))
        assert run(folder)[0] == WANTED
        assert run(folder) == (WANTED, [])

# A folder is held while somebody writes into it, also by a child that outlives its parent's descriptor, and by nobody
# once they are gone.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loadshape.lease import holding, is_held


def test_a_folder_is_held_while_the_block_runs(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with holding(tmp_path), holding(tmp_path):
        assert is_held(tmp_path)
        assert is_held(tmp_path)  # asking takes nothing away
    assert not is_held(tmp_path)


def test_what_is_not_there_is_not_held(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert not is_held(tmp_path / "file")


def test_a_child_holds_it_for_as_long_as_it_lives(tmp_path: Path) -> None:
    with holding(tmp_path) as lease:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[lease]
        )
    assert is_held(tmp_path)
    child.kill()
    child.communicate()
    assert not is_held(tmp_path)

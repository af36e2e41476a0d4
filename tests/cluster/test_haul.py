# Logs on their way home, without Ray: nodes that answer at once, and what an interrupt or another hash leaves.

from __future__ import annotations

import hashlib
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadshape.cluster import haul
from loadshape.cluster.agent import File
from loadshape.cluster.haul import fetch_logs
from loadshape.cluster.member import Member
from loadshape.errors import LogError
from loadshape.interrupt import counting_interrupts

PLACE, CONTENT = "worker-00/reads.arrows", b"0123456789"


class Ray:
    """Gives what was returned already."""

    exceptions = SimpleNamespace(RayTaskError=KeyError, RayActorError=KeyError, GetTimeoutError=TimeoutError)

    def __init__(self) -> None:
        self.patience_s = 0.0

    def get(self, call: Any, timeout: float) -> Any:
        self.patience_s = max(self.patience_s, timeout)
        return call


class Hand:
    """A node that has one file."""

    def __init__(self, content: bytes, place: str = PLACE) -> None:
        file = File(place, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        self.list_files = SimpleNamespace(remote=lambda: [file])
        self.read_piece = SimpleNamespace(remote=lambda _path, start, size_bytes: content[start : start + size_bytes])


def fetch(hand: Hand, log: Path) -> tuple[dict[int, str], Member]:
    """Return why a node's log could not be had, and that node."""
    member = Member(0, "192.0.2.1", hand, workers=range(2))
    return fetch_logs(Ray(), [member], log), member


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haul, "PIECE_BYTES", 3)


@pytest.mark.usefixtures("pieces")
def test_a_file_comes_in_pieces_and_whole(tmp_path: Path) -> None:
    reasons, member = fetch(Hand(CONTENT), tmp_path)
    assert (reasons, member.is_home) == ({}, True)
    assert (tmp_path / PLACE).read_bytes() == CONTENT


@pytest.mark.parametrize(("lost", "patience_s"), [("", 600), ("was not heard", 30)])
def test_a_node_has_time_to_hash_what_it_has_unless_it_is_lost(tmp_path: Path, lost: str, patience_s: float) -> None:
    ray = Ray()
    fetch_logs(ray, [Member(0, "192.0.2.1", Hand(CONTENT), workers=range(2), lost=lost)], tmp_path)
    assert ray.patience_s == patience_s


@pytest.mark.usefixtures("pieces")
def test_another_hash_is_not_taken_for_home(tmp_path: Path) -> None:
    reasons, member = fetch(Hand(CONTENT[:-1] + b"X"), tmp_path)
    assert "arrived with another hash" in reasons[0]
    assert not member.is_home


@pytest.mark.parametrize(
    "place", ["../run.json", "worker-00/../run.json", "worker-07/reads.arrows", "/tmp/x", "run.json"]
)
def test_a_node_names_files_of_its_own_workers_only(tmp_path: Path, place: str) -> None:
    reasons, member = fetch(Hand(CONTENT, place), tmp_path / "log")
    assert "which is no file of its workers; refused" in reasons[0]
    assert not member.is_home
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("hurry_s", "is_home"), [(-1.0, False), (60.0, True)])
def test_an_interrupt_leaves_on_the_node_what_takes_long_and_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurry_s: float, is_home: bool
) -> None:
    monkeypatch.setattr(haul, "HURRY_S", hurry_s)
    monkeypatch.setattr(haul, "counting_interrupts", lambda: nullcontext([signal.SIGTERM]))
    with counting_interrupts() as outside:
        reasons, member = fetch(Hand(CONTENT), tmp_path)
    assert reasons == ({} if is_home else {0: "interrupted while it was fetched"})
    assert member.is_home is is_home
    assert outside == [signal.SIGTERM]


def test_what_has_no_room_here_stays_there_and_is_named(tmp_path: Path) -> None:
    (tmp_path / PLACE).mkdir(parents=True)  # no file can be there
    members = [Member(it, f"192.0.2.{it}", Hand(CONTENT), workers=range(2), folder=f"/scratch/{it}") for it in range(2)]
    where = r"node 0 \(192.0.2.0\) in /scratch/0, node 1 \(192.0.2.1\) in /scratch/1"
    with pytest.raises(LogError, match=f"cannot be written: Is a directory; what is not here yet is still on {where}"):
        fetch_logs(Ray(), members, tmp_path)

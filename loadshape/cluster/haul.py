# Logs on their way home from the nodes where they were written.
#
# Law: after the run, file by file, in pieces, and whole or not at all: what arrived is hashed on the way and compared
# with what the node hashed on its own disk. Several nodes are fetched at once, since each has a disk and a way of its
# own. A file stays on its node until all of that node's are here, so whatever breaks on the way can be done again, and
# an interrupt leaves the rest where it is: the log is closed with what there is, and says where that lies. What takes
# less than HURRY_S comes all the same: it may be the second press of one that stopped the sends.
#
# A piece goes through Ray's object store: 64 MiB is far below the smallest that a node has, and large enough that the
# calls do not count.

"""Haul: fetch the files of every node's workers into the log."""

from __future__ import annotations

import hashlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadshape.cluster.agent import File
from loadshape.cluster.member import ANSWER_S, Member, get_answer
from loadshape.errors import LogError, ReplayError
from loadshape.interrupt import counting_interrupts

PIECE_BYTES = 64 << 20
AT_ONCE = 8  # nodes
HURRY_S = 5.0
_PLACE = re.compile(r"worker-(\d+)/\w[\w.]*")
HASH_S = 600.0  # a disk may read 100 MB/s


def fetch_logs(ray: Any, members: Sequence[Member], log: Path) -> dict[int, str]:
    """Fetch the files of all *members* into *log*; returns why those of a node could not be had, by its number.

    Raises LogError when this host cannot take them.
    """
    until_s = time.monotonic() + HURRY_S
    with counting_interrupts() as interrupts, _naming_rest(members, log), ThreadPoolExecutor(AT_ONCE) as pool:

        def is_cut() -> bool:
            return bool(interrupts) and time.monotonic() > until_s

        reasons = list(pool.map(lambda member: _try_fetch(ray, member, log, is_cut), members))
    if interrupts:
        signal.raise_signal(interrupts[0])  # whoever counts them outside is to know
    return {member.node: reason for member, reason in zip(members, reasons, strict=True) if reason}


@contextmanager
def _naming_rest(members: Sequence[Member], log: Path) -> Iterator[None]:
    """Say of what could not be written here where it still is."""
    try:
        yield
    except OSError as problem:
        where = ", ".join(f"{it} in {it.folder}" for it in members if not it.is_home)
        raise LogError(
            f"{log}: cannot be written: {problem.strerror}; what is not here yet is still on {where}: free some space, "
            f"copy the worker folders of the nodes into {log}, then loadshape recover {log} -o NEW.log"
        ) from None


def _try_fetch(ray: Any, member: Member, log: Path, is_cut: Callable[[], bool]) -> str:
    try:
        timeout_s = ANSWER_S if member.lost else HASH_S
        files: list[File] = get_answer(ray, member, member.hand.list_files.remote(), timeout_s=timeout_s)
        for file in files:
            _fetch_file(ray, member, file, log / _check_place(member, file.path), is_cut)
    except ReplayError as problem:
        return str(problem)
    member.is_home = True
    return ""


def _check_place(member: Member, path: str) -> str:
    """Return *path* if it is that of a file of one of the node's own workers. Raises ReplayError for any other."""
    found = _PLACE.fullmatch(path)
    if found is None or int(found[1]) not in member.workers:
        raise ReplayError(f"{member}: names {path!r}, which is no file of its workers; refused")
    return path


def _fetch_file(ray: Any, member: Member, file: File, path: Path, is_cut: Callable[[], bool]) -> None:
    path.parent.mkdir(exist_ok=True)
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for start in range(0, file.size_bytes, PIECE_BYTES):
            if is_cut():
                raise ReplayError("interrupted while it was fetched")
            piece = get_answer(ray, member, member.hand.read_piece.remote(file.path, start, PIECE_BYTES))
            digest.update(piece)
            out.write(piece)
    if digest.hexdigest() != file.sha256:
        raise ReplayError(f"{member}: {file.path} arrived with another hash than it had there")

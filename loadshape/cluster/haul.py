# Logs on their way home from the nodes where they were written.
#
# Law: after the run, file by file, in pieces, and whole or not at all: what arrived is hashed on the way and compared
# with what the node hashed on its own disk. Several nodes are fetched at once, since each has a disk and a way of its
# own. A file stays on its node until all of that node's are here, so whatever breaks on the way can be done again.
#
# A piece goes through Ray's object store: 64 MiB is far below the smallest that a node has, and large enough that the
# calls do not count.

"""Haul: fetch the files of every node's workers into the log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadshape.cluster.agent import File
from loadshape.cluster.member import Member, get_answer
from loadshape.errors import LogError, ReplayError

PIECE_BYTES = 64 << 20
AT_ONCE = 8  # nodes


def fetch_logs(ray: Any, members: Iterable[Member], log: Path) -> dict[int, str]:
    """Fetch the files of all *members* into *log*; returns why those of a node could not be had, by its number.

    Raises LogError when this host cannot take them.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = pool.map(lambda member: _try_fetch(ray, member, log), members)
        return {member.node: reason for member, reason in zip(members, reasons, strict=True) if reason}


def _try_fetch(ray: Any, member: Member, log: Path) -> str:
    try:
        files: list[File] = get_answer(ray, member, member.hand.list_files.remote())
        for file in files:
            _fetch_file(ray, member, file, log / file.path)
    except ReplayError as problem:
        return str(problem)
    except OSError as problem:
        raise LogError(
            f"{log}: cannot be written: {problem.strerror}; what is not here yet is still on {member} in "
            f"{member.folder}: free some space, copy the worker folders of the nodes into {log}, then "
            f"loadshape recover {log} -o NEW.log"
        ) from None
    member.is_home = True
    return ""


def _fetch_file(ray: Any, member: Member, file: File, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for start in range(0, file.size_bytes, PIECE_BYTES):
            piece = get_answer(ray, member, member.hand.read_piece.remote(file.path, start, PIECE_BYTES))
            digest.update(piece)
            out.write(piece)
    if digest.hexdigest() != file.sha256:
        raise ReplayError(f"{member}: {file.path} arrived with another hash than it had there")

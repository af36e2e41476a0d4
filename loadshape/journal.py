# Results of long work, on disk as they come, so that a kill costs seconds and not hours.
#
# Law: results in the order of their inputs, and nothing is decided about them. Each record names its input by a
# digest, and the head names all else that a result depends on. So what is taken from an earlier run is what
# would be computed again, and neither a kill nor the number of processes, before it or after it, changes a result.
#
#     head      32 bytes: SHA-256 of the terms
#     record    length and CRC-32 of what follows; 16 bytes of the input's digest; the result in MessagePack
#
# A record that is cut, damaged or of another input ends what is taken over, as in any write-ahead log; the file is
# cut there and goes on. Every record is handed to the kernel at once: that survives the death of the process. A
# power failure may cost more of them, and the CRC finds where.

"""Journal: begin with the results of a run that was cut, and go on from there."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from loadshape.errors import InputError
from loadshape.lease import holding, is_held

NAME = "results.journal"

_RECORD = struct.Struct("<II")  # length and CRC-32 of the digest and the result
_DIGEST_BYTES = 16

Given = TypeVar("Given")
Result = TypeVar("Result")


class Journal(Generic[Result]):
    """Results of the type *kind* in *folder*, under *terms*; `resumed` counts those that an earlier run had made."""

    def __init__(self, folder: Path, terms: str, kind: type[Result]) -> None:
        self.folder = folder
        self.resumed = 0
        self._head = hashlib.sha256(terms.encode()).digest()
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def follow(self, inputs: Iterable[Given], make: Callable[[Iterable[Given]], Iterable[Result]]) -> Iterator[Result]:
        """Yield a result for each input, in order: first what is here, then what *make* gives for the rest.

        Raises InputError while another process is at it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if is_held(self.folder):
            raise InputError(f"{self.folder}: another process is at work here; wait for its end")
        self.resumed = 0
        with holding(self.folder), (self.folder / NAME).open("a+b") as file:
            self._begin(file)
            rest = iter(inputs)
            for given in rest:
                taken = _read_record(file, _digest(given))
                if taken is None:
                    file.truncate()
                    yield from self._go_on(file, chain((given,), rest), make)
                    return
                self.resumed += 1
                yield self._decode(taken)

    def remove(self) -> None:
        """Remove the folder: its results have been put to their use."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, file: BinaryIO) -> None:
        file.seek(0)
        if file.read(len(self._head)) != self._head:
            file.seek(0)
            file.truncate()
            file.write(self._head)

    def _go_on(
        self, file: BinaryIO, inputs: Iterable[Given], make: Callable[[Iterable[Given]], Iterable[Result]]
    ) -> Iterator[Result]:
        digests: deque[bytes] = deque()  # of inputs whose results are awaited
        for result in make(_note(inputs, digests)):
            body = digests.popleft() + msgspec.msgpack.encode(result)
            file.write(_RECORD.pack(len(body), zlib.crc32(body)) + body)
            file.flush()
            yield result


def _note(inputs: Iterable[Given], digests: deque[bytes]) -> Iterator[Given]:
    for given in inputs:
        digests.append(_digest(given))
        yield given


def _digest(given: Any) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(given, order="deterministic")).digest()[:_DIGEST_BYTES]


def _read_record(file: BinaryIO, digest: bytes) -> bytes | None:
    """Return the result of the next record if it is whole and of this input; else stay before it."""
    start = file.tell()
    left = os.fstat(file.fileno()).st_size - start - _RECORD.size
    head = file.read(_RECORD.size)
    if left >= _DIGEST_BYTES:
        length, crc = _RECORD.unpack(head)
        body = file.read(length) if length <= left else b""
        if zlib.crc32(body) == crc and body.startswith(digest) and body:
            return body[_DIGEST_BYTES:]
    file.seek(start)
    return None

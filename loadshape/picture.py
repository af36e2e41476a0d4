# Images that requests carry, made up.
#
# Law: bytes of pictures, from nothing but a size and a random stream; no file is read. A picture is noise, so
# that no two of them are alike for a cache of images, and what a server spends on one follows from its size.
#
# The format is PNG (RFC 2083) in grey of two bits a pixel, which keeps uploads small: 65 kB for 512 x 512. Its zlib
# stream (RFC 1950) is made of stored blocks (RFC 1951, 3.2.4) and of nothing that a compressor decides: the same
# bytes with every zlib, so a trace of pictures has one digest everywhere.
#
# How many tokens a model makes of a picture is its own affair: it counts as none in `input_tokens`.

"""Images as a value, and PNG files of noise as data URLs."""

from __future__ import annotations

import base64
import struct
import zlib

import msgspec
import numpy as np

from loadshape.bounds import check_count, check_number
from loadshape.stats import Integers

MAX_PIXELS = 8192  # a side; the largest picture has 16 MB
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _BITS = 0, 2
_STORED = 0xFFFF  # bytes of a stored block at most


class Images(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` pictures of `width` x `height` pixels in `share` of the requests, out of `distinct` different ones.

    They stand after the text of the message, so that what texts share stays shared.
    """

    width: int
    height: int
    count: int = 1
    share: float = 1.0
    distinct: int = 16

    def __post_init__(self) -> None:
        check_count("width", self.width, most=MAX_PIXELS, remedy="write pixels")
        check_count("height", self.height, most=MAX_PIXELS, remedy="write pixels")
        check_count("count", self.count, most=100, remedy="write the images of a request")
        check_number("share", self.share, above=0, most=1, remedy="it is the part of requests that have images")
        check_count("distinct", self.distinct, most=10_000, remedy="write how many different ones there are")

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Integers, Integers]:
        """Return how many images each of *n* requests has, and which ones, one request after the other."""
        uniform = rng.random((n, 1 + self.count))
        has = uniform[:, 0] < self.share
        which = (uniform[has, 1:] * self.distinct).astype(np.int64)
        return np.where(has, self.count, 0), which.ravel()

    def draw_urls(self, rng: np.random.Generator) -> list[str]:
        """Return the different images as data URLs."""
        pictures = (draw_png(self.width, self.height, rng) for _ in range(self.distinct))
        return [f"data:image/png;base64,{base64.b64encode(picture).decode()}" for picture in pictures]


def draw_png(width: int, height: int, rng: np.random.Generator) -> bytes:
    """Return a PNG file of grey noise; one double for each four pixels."""
    line = -(-width * _BITS // 8)
    noise = (rng.random((height, line)) * 256).astype(np.uint8)
    rows = np.zeros((height, 1 + line), np.uint8)  # each begins with the number of its filter: none
    rows[:, 1:] = noise
    head = struct.pack(">IIBBBBB", width, height, _BITS, _GREY, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", store_zlib(rows.tobytes())), (b"IEND", b""))
    return _SIGNATURE + b"".join(_write_chunk(name, data) for name, data in chunks)


def store_zlib(data: bytes) -> bytes:
    """Return *data* as a zlib stream of stored blocks."""
    blocks = [data[begin : begin + _STORED] for begin in range(0, len(data), _STORED)] or [b""]
    last = len(blocks) - 1
    stored = (struct.pack("<BHH", at == last, len(it), len(it) ^ _STORED) + it for at, it in enumerate(blocks))
    return b"\x78\x01" + b"".join(stored) + struct.pack(">I", zlib.adler32(data))


def _write_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

"""Pictures: valid PNG files, the same bytes everywhere."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.errors import RecipeError
from loadshape.picture import Images, draw_png, store_zlib
from loadshape.randomness import open_stream


@given(st.binary(max_size=200_000))
def test_any_bytes_come_back_out_of_a_stored_stream(data: bytes) -> None:
    assert zlib.decompress(store_zlib(data)) == data


@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 2), (512, 300)])
def test_a_picture_is_a_png_of_its_size(width: int, height: int) -> None:
    picture = draw_png(width, height, open_stream(7, "images"))
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(picture):
        (size,), name = struct.unpack(">I", picture[at : at + 4]), picture[at + 4 : at + 8]
        data = picture[at + 8 : at + 8 + size]
        assert struct.unpack(">I", picture[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + data)
        chunks[name], at = data, at + 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (width, height, 2, 0, 0, 0, 0)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert rows.shape[1] == 1 + -(-width // 4)
    assert not rows[:, 0].any(), "no filter"


def test_its_bytes_are_published() -> None:
    picture = draw_png(64, 48, open_stream(7, "images"))
    assert hashlib.sha256(picture).hexdigest() == "d184c3fb4337855ee12acaac787e90e2e91d810fbc2f2e36b2b91521f92a5262"


def test_images_are_drawn_out_of_the_distinct_ones() -> None:
    images = Images(width=4, height=4, count=2, share=0.25, distinct=3)
    counts, which = images.draw(open_stream(7, "images"), 4000)
    assert set(counts) == {0, 2}
    assert counts.mean() == pytest.approx(0.5, abs=0.05)
    assert (len(which), set(which)) == (counts.sum(), {0, 1, 2})
    urls = images.draw_urls(open_stream(7, "images.pixels"))
    assert len(set(urls)) == 3
    assert all(base64.b64decode(url.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG") for url in urls)


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="width: expected a number at least 1"):
        Images(width=0, height=4)

# Arrivals that wait to be decoded are bounded, by number and by weight.

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from loadshape.replayer.decoder import INBOX_BYTES, INBOX_READS, WEIGHED_FROM, Decoder

LARGE = bytes(1 << 18)  # the most that one read can hold


@pytest.mark.parametrize(
    ("waiting", "is_behind"),
    [
        ([], False),
        ([b"x"] * INBOX_READS, False),
        ([b"x"] * (INBOX_READS + 1), True),
        ([LARGE] * (INBOX_BYTES // len(LARGE)), False),
        ([LARGE] * (INBOX_BYTES // len(LARGE) + 1), True),
        ([OSError("reset")] * WEIGHED_FROM, False),
    ],
)
def test_more_may_not_wait(waiting: list[Any], is_behind: bool) -> None:
    network: Any = SimpleNamespace(inbox=deque((None, 0, 0, what) for what in waiting))
    unused: Any = None
    assert Decoder(network, unused, unused, unused).is_behind is is_behind


def test_what_is_not_weighed_cannot_be_too_heavy() -> None:
    assert (WEIGHED_FROM - 1) * len(LARGE) <= INBOX_BYTES

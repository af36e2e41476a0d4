# Many integers in little memory.
#
# Law: a column never changes a value. It is 16 or 32 bits wide as long as every value fits and becomes 64 bits
# wide with the first that does not, so that a hundred million gaps between reads cost 400 MB and are still exact to
# the nanosecond. It is filled part by part and read as one array.
#
# Gaps are below 4.29 s, hence 32 bits, in almost every run; a run with a longer one pays the double. The memory for
# as many values as are announced is asked for at once, since a system hands out pages only when they are written.

"""Columns of integers, as narrow as their values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Column:
    """Integers, appended part by part; *expected* is about how many will come."""

    def __init__(self, kind: DTypeLike, expected: int) -> None:
        self._values: NDArray[Any] = np.empty(max(1, expected), kind)
        self._count = 0

    def extend(self, part: NDArray[Any]) -> None:
        """Append *part*."""
        upto = self._count + len(part)
        if len(part) and not self._holds(int(part.min()), int(part.max())):
            self._values = self._values.astype(np.int64)
        if upto > len(self._values):
            self._values = np.resize(self._values, max(upto, 2 * self._count))
        self._values[self._count : upto] = part
        self._count = upto

    def close(self) -> NDArray[Any]:
        """Return the values, without a copy."""
        return self._values[: self._count]

    def _holds(self, least: int, most: int) -> bool:
        room = np.iinfo(self._values.dtype)
        return bool(room.min <= least and most <= room.max)

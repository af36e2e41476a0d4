# Arrivals that happened once, as they were.
#
# Law: nothing is drawn, fitted or smoothed. Recorded stamps are sorted and counted from an origin. A run that is
# longer than the recording is silent after it; a shorter one has its beginning. A recording that has lengths or
# sessions beside its stamps is converted as a whole instead.

"""Recorded: due times from a list, or from a column of a CSV file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from loadshape.arrival.columns import read_rows
from loadshape.arrival.superposition import add
from loadshape.bounds import check_choice, check_count, check_number
from loadshape.errors import RecipeError
from loadshape.stats import Integers
from loadshape.units import NS_PER_S, to_ns

_UNIT_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="recorded", tag_field="process"):
    """Arrivals at `stamps_ns` after the start, or at those in the `column` of the CSV file `path`, in its `unit`.

    Stamps of a file count from `origin`, in the same unit, or where that is not said from the earliest of them.
    """

    stamps_ns: tuple[int, ...] = ()
    path: str = ""
    column: str = "t_s"
    unit: Literal["s", "ms", "us", "ns"] = "s"
    origin: float | None = None

    def __post_init__(self) -> None:
        if bool(self.stamps_ns) == bool(self.path):
            raise RecipeError("stamps_ns: expected either stamps_ns or path, a CSV file with a column of stamps")
        check_choice("unit", self.unit, _UNIT_NS)
        if self.origin is not None:
            check_number("origin", self.origin, remedy="write the stamp at which the run begins")
        if self.stamps_ns:
            check_count("stamps_ns", min(self.stamps_ns), least=0, remedy="write ns after the start of the run")

    __add__ = add

    def offered_hz(self, t_s: float) -> float:
        """Return the mean rate of the recording from the start to its last stamp, 0 after."""
        stamps_ns = self._read_ns()
        span_s = float(stamps_ns[-1]) / NS_PER_S
        return len(stamps_ns) / span_s if span_s > 0 and t_s <= span_s else 0.0

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return the recorded due times in [0, duration_s); nothing is drawn."""
        stamps_ns = self._read_ns()
        return stamps_ns[np.searchsorted(stamps_ns, 0) : np.searchsorted(stamps_ns, to_ns(duration_s))]

    def _read_ns(self) -> Integers:
        """Return the stamps as ns after the start, sorted."""
        if self.stamps_ns:
            return np.sort(np.array(self.stamps_ns, np.int64))
        stamps = np.array(read_rows(Path(self.path), (self.column,)), np.float64)[:, 0]
        origin = float(stamps.min()) if self.origin is None else self.origin
        return np.sort(np.rint((stamps - origin) * _UNIT_NS[self.unit]).astype(np.int64))

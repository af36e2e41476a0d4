# One recorded request, as every reader of request traces hands it on.
#
# Law: values, and the reading of single cells; no file and no format. What a file does not say is None here
# and never a guess. Times are whole nanoseconds on the file's own axis; where its zero lies is the layout's
# to say. A cell is read strictly: "12.0" is a count, "12.5", "nan" and True are none. Faults name the field
# and never quote what stood there, since it may be somebody's words.
#
#     s ms us     numbers or texts of numbers, rounded to whole microseconds where they are no integers
#     ns          integers
#     clock       "2023-11-16 18:17:03.9799600", up to nine decimals, with Z or an offset; without one it is
#                 taken as UTC, which moves the zero and no distance

"""Entry and Fault: a recorded request, or why a row is none."""

from __future__ import annotations

import calendar
import re
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from loadshape.conversation import Role

Unit = Literal["clock", "s", "ms", "us", "ns"]
UNITS: tuple[Unit, ...] = ("clock", "s", "ms", "us", "ns")
Said = str | int  # a text, or the live answer of the turn of this number

_US = {"s": 1e6, "ms": 1e3, "us": 1.0}
_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_MOST_NS = 1 << 62
_MOST_TOKENS = 1 << 32
_CLOCK = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s*(?:(Z|UTC)|([+-])(\d\d):?(\d\d))?", re.ASCII
)


class Entry(msgspec.Struct, kw_only=True):
    """A request as it was recorded; None is what the file does not say.

    `blocks` name the blocks of its prompt in order: an equal beginning is an equal prefix. `messages` are
    (role, text), or (role, k) for the live answer of turn k. `think_ns` is the wait after the session's
    last turn, where the file has that instead of a time.
    """

    at_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    session: Hashable = None
    think_ns: int = 0
    kind: str = ""
    model: str | None = None
    tenant: str | None = None
    failed: bool = False
    blocks: Sequence[Hashable] | None = None
    messages: tuple[tuple[Role, Said], ...] | None = None
    api: str = "chat"
    params: dict[str, Any] | None = None


class Fault(NamedTuple):
    """Why a row is no request: a reason that is counted, and what a person needs to find it."""

    reason: str
    why: str


def find_cell(row: Mapping[str, Any], name: str) -> Any:
    """Return the cell of this name, or at this path ("usage.prompt_tokens"); None if there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for step in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def to_count(value: Any) -> int | None:
    """Return a whole number of 0 or more; None for an empty cell. Raises ValueError for anything else."""
    if value is None or value == "":
        return None
    number = float(value) if isinstance(value, str) and not value.strip().isdecimal() else value
    count = int(number)
    if isinstance(value, bool) or not 0 <= count < _MOST_TOKENS or count != float(number):
        raise ValueError("no whole number of 0 or more")
    return count


def to_time_ns(value: Any, unit: Unit) -> int | None:
    """Return nanoseconds on the file's own axis; None for an empty cell. Raises ValueError for what is no time."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        raise ValueError("no time")
    time_ns = _read_clock(value) if unit == "clock" else _read_number(value, unit)
    if abs(time_ns) >= _MOST_NS:
        raise ValueError("no time of these centuries")
    return time_ns


def _read_number(value: Any, unit: Unit) -> int:
    if isinstance(value, int) or (isinstance(value, str) and value.strip().lstrip("-").isdecimal()):
        return int(value) * _NS[unit]
    if unit == "ns":
        raise ValueError("no integer")
    return round(float(value) * _US[unit]) * 1000


def _read_clock(value: Any) -> int:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return calendar.timegm(moment.timetuple()) * _NS["s"] + moment.microsecond * _NS["us"]
    parts = _CLOCK.fullmatch(value.strip()) if isinstance(value, str) else None
    if parts is None:
        raise ValueError("no date and time")
    date, time, decimals, _, sign, hours, minutes = parts.groups()
    seconds = calendar.timegm(datetime.fromisoformat(f"{date} {time}").timetuple())
    if sign:
        seconds -= int(f"{sign}1") * (int(hours) * 3600 + int(minutes) * 60)
    return seconds * _NS["s"] + int((decimals or "").ljust(9, "0"))

# What we know and must not say.
#
# Law: a key is only ever a reference ("env:NAME" or "file:PATH"); the value is read by the process that sends it, and
# no repr, log, manifest or traceback of ours contains it. Whoever takes in foreign text that may repeat one, covers it
# before the text goes anywhere. A reference that is none may be the key itself, so it is refused without being told.

"""Secret: a value that does not show itself, and how one is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from loadshape.errors import TargetError

SHOWN_AT_MOST = 3  # characters of a key that may be left at the end of a text that was cut
SOURCES = ("env", "file")


class Secret:
    """A string that does not show itself: repr and str give stars, and it cannot be pickled or copied."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value; called where bytes are put on the wire, nowhere else."""
        return self._value

    def conceal(self, text: str) -> str:
        """Return *text* without the value, and without a beginning of it that was cut off at the end.

        Servers echo keys in their error messages, and those go into logs.
        """
        text = text.replace(self._value, "***")
        for length in range(min(len(self._value), len(text)), SHOWN_AT_MOST, -1):
            if text.endswith(self._value[:length]):
                return text[:-length] + "***"
        return text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret does not travel: pass the reference to the key instead")


def check_reference(reference: str | None, field: str) -> None:
    """Raise TargetError, naming the *field*, unless *reference* says where a key is, or is None."""
    if reference is None:
        return
    source, _, name = reference.partition(":")
    if source not in SOURCES or not name:
        raise TargetError(f"{field}: expected env:NAME or file:PATH; a key itself is never given on a command line")


def read_secret(reference: str, field: str) -> Secret:
    """Return the value that *reference* refers to. Raises TargetError naming the reference, never the value."""
    check_reference(reference, field)
    source, _, name = reference.partition(":")
    value = (os.environ.get(name, "") if source == "env" else _read_file(Path(name), field)).strip()
    if not value:
        raise TargetError(f"{field}: {source} {name} is empty or not set")
    if not value.isascii() or not value.isprintable():
        raise TargetError(f"{field}: {source} {name} holds characters that no HTTP header may carry")
    return Secret(value)


def _read_file(path: Path, field: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise TargetError(f"{field}: file {path} cannot be read: {problem}") from None

# Data files that come with loadshape, found by a bare name.
#
# Law: only finding. The folders traces/ and sanitizers/ are documentation by example first, so they lie
# at the top of the checkout; the wheel carries copies under loadshape/data/. A bare name ("default",
# "balanced-chat") means the file of that name which came with this loadshape; anything with a suffix or
# a folder is a path of the user's and is returned as it is, whether it exists or not.

"""Recipes and policies that come with loadshape, in a wheel and in a checkout."""

from __future__ import annotations

import difflib
from pathlib import Path

from loadshape.errors import InputError

_PACKAGE = Path(__file__).parent


def find_packaged(folder: str, name: str | Path, error: type[InputError] = InputError) -> Path:
    """Return the TOML file that *name* stands for: a bare name is looked up in *folder*, a path is a path.

    *folder* is as in the checkout, e.g. "traces/recipes". Raises *error* for a bare name that is not there.
    """
    path = Path(name)
    if path.suffix or len(path.parts) != 1:
        return path
    names = list_packaged(folder)
    if path.name not in names:
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(names) or 'none'}"
        raise error(f"{name}: no file and no name of {folder}; {hint}")
    return _find_folder(folder) / f"{path.name}.toml"


def list_packaged(folder: str) -> list[str]:
    """Return the bare names that *folder* offers, in alphabetical order."""
    return sorted(path.stem for path in _find_folder(folder).glob("*.toml"))


def _find_folder(folder: str) -> Path:
    installed = _PACKAGE / "data" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def find_data(relative: str) -> Path:
    """Return the path of a data file by its path in the checkout, e.g. "traces/golden/demo.json"."""
    folder, _, name = relative.rpartition("/")
    return _find_folder(folder) / name

# What other programs may rely on is a list in a file, so that a change of it is always on purpose.

from __future__ import annotations

import inspect
from types import ModuleType

import loadshape

from .package import ROOT

LISTED = (ROOT / "tests" / "public_api.txt").read_text(encoding="utf-8").split()


def test_the_public_names_are_those_of_the_list() -> None:
    assert sorted(loadshape.__all__) == sorted(LISTED)
    assert len(loadshape.__all__) == len(set(loadshape.__all__)) <= 35


def test_every_public_name_says_what_it_is() -> None:
    silent = [name for name in LISTED if not name.startswith("__") and not inspect.getdoc(getattr(loadshape, name))]
    assert silent == []


def test_every_public_method_says_what_it_does() -> None:
    silent = [
        f"{name}.{inner}"
        for name in LISTED
        if inspect.isclass(owner := getattr(loadshape, name))
        for inner, member in vars(owner).items()
        if not inner.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, property))
        and not inspect.getdoc(member)
    ]
    assert silent == []


def test_no_public_name_hides_a_module() -> None:
    submodules = {path.stem for path in (ROOT / "loadshape").iterdir() if path.suffix == ".py" or path.is_dir()}
    hidden = [name for name in LISTED if name in submodules and not isinstance(getattr(loadshape, name), ModuleType)]
    assert hidden == []

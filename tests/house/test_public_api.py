# What other programs may rely on is a list in a file, so that a change of it is always on purpose.

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

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


def test_names_are_imported_from_where_type_checkers_see_them() -> None:
    tree = ast.parse((ROOT / "loadshape" / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == loadshape._HOMES
    assert {*seen, "__version__"} == set(loadshape.__all__)


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = "import sys, loadshape; print(len({name.partition('.')[0] for name in sys.modules} & {'numpy', 'pyarrow'}))"
    assert subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True).stdout.strip() == "0"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'loadshape' has no attribute 'Nothing'"):
        loadshape.Nothing  # noqa: B018
    assert set(loadshape.__all__) <= set(dir(loadshape))

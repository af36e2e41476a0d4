# The package as text: what the house rules look at.
#
# Nothing is imported here. A module is its file and its syntax tree, an import is an edge, and the height of a
# module is one more than the highest module that it imports. Imports for type checkers alone are no edges.

"""Modules, functions and imports of loadshape, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "loadshape"

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Module:
    """One file: `name` is what an import statement says, `noun` its last word."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def noun(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def header_lines(self) -> int:
        """Lines of the comment block at the top, and of the docstring under it."""
        comments = 0
        for line in self.text.splitlines():
            if line.startswith("#"):
                comments += 1
            elif line:
                break
        docstring = ast.get_docstring(self.tree)
        return comments + (len(docstring.splitlines()) if docstring else 0)

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


@cache
def read_modules() -> dict[str, Module]:
    """Return every module of the package by its name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = Module(name, path)
    return found


def list_imports(module: Module) -> set[str]:
    """Return the modules of the package that *module* imports when it runs, wherever the statement stands."""
    known = read_modules()
    found: set[str] = set()
    for node in _walk_running(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in known else name.rpartition(".")[0] for name in inner)
    return found - {module.name}


def measure_heights() -> dict[str, int]:
    """Return the height of every module; raises ValueError naming the first cycle."""
    heights: dict[str, int] = {}

    def climb(name: str, path: tuple[str, ...]) -> int:
        if name in path:
            raise ValueError(" -> ".join((*path[path.index(name) :], name)))
        if name not in heights:
            below = [climb(other, (*path, name)) for other in sorted(list_imports(read_modules()[name]))]
            heights[name] = 1 + max(below, default=0)
        return heights[name]

    for name in read_modules():
        climb(name, ())
    return heights


def count_lines(function: Function) -> int:
    """Return the length of a function without its docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def measure_nesting(node: ast.AST, depth: int = 0) -> int:
    """Return how deep blocks lie in blocks; an elif is no deeper than its if, an inner function stands alone."""
    deepest = depth
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        is_elif = isinstance(node, ast.If) and field == "orelse" and len(children) == 1
        for child in children:
            if isinstance(child, ast.AST) and not isinstance(child, SCOPES):
                deeper = isinstance(child, BLOCKS) and not (is_elif and isinstance(child, ast.If))
                deepest = max(deepest, measure_nesting(child, depth + deeper))
    return deepest


def list_parameters(function: Function) -> list[ast.arg]:
    """Return the parameters of a function but self and cls."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [parameter for parameter in every if parameter is not None and parameter.arg not in ("self", "cls")]


def _walk_running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _walk_running(child)

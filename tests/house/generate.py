# The parts of the documentation that the program knows better than we do.
#
# A page marks such a part; what stands between the marks is written by this file, run as a program:
#
#     <!-- generated: log.reads -->
#     ...
#     <!-- end -->
#
# Tables of columns and fields have a last cell, the meaning, that people write: it is kept by the name in the
# first cell. test_docs.py fails where a page is stale or a meaning is missing.

"""Write the generated parts of the documentation anew: python tests/house/generate.py"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from loadshape import errors, fixture, log, nodes, observation, trace
from loadshape.cli import app
from loadshape.replayer.job import Settings
from loadshape.runfile import TargetEntry, TargetOptions
from loadshape.version import __version__

ROOT = Path(__file__).parents[2]
PART = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
MISSING = "?"


def list_pages() -> list[Path]:
    """Return every page of the repository that people read."""
    folders = ("docs", "traces", "sanitizers", "benchmarks")
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))])


def refresh(text: str) -> str:
    """Return a page with its generated parts as they should be."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]](part[3])}\n{part[4]}", text)


def write_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def keep_meanings(old: str) -> dict[str, str]:
    """Return {first cell: last cell} of the table that stands there now."""
    cells = [re.split(r"\s*\|\s*", line.strip().strip("|").strip()) for line in old.splitlines()[2:]]
    return {row[0]: row[-1] or MISSING for row in cells if len(row) > 2}


def write_columns(schema: pa.Schema) -> Callable[[str], str]:
    def write(old: str) -> str:
        meanings = keep_meanings(old)
        rows = [(f"`{it.name}`", name_type(it.type) + (", null" if it.nullable else "")) for it in schema]
        return write_table(("column", "type", "meaning"), ((*row, meanings.get(row[0], MISSING)) for row in rows))

    return write


def name_type(kind: pa.DataType) -> str:
    """Return an Arrow type as the documentation writes it."""
    if pa.types.is_dictionary(kind):
        return "enum"
    if pa.types.is_list(kind):
        return f"list of {name_type(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"{{{', '.join(f'{it.name}: {name_type(it.type)}' for it in kind)}}}"
    return {"string": "utf8", "large_string": "large utf8", "float": "float32"}.get(str(kind), str(kind))


def write_fields(*kinds: type[msgspec.Struct]) -> Callable[[str], str]:
    def write(old: str) -> str:
        meanings = keep_meanings(old)
        rows = [(f"`{it.encode_name}`", show_default(it)) for kind in kinds for it in msgspec.structs.fields(kind)]
        return write_table(("key", "default", "meaning"), ((*row, meanings.get(row[0], MISSING)) for row in rows))

    return write


def show_default(field: Any) -> str:
    if field.required:
        return "required"
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    text = msgspec.json.encode(default).decode().replace(__version__, "VERSION")
    return "none" if default is None or default == "" else f"`{text}`"


def write_outcomes(old: str) -> str:
    meanings = keep_meanings(old)
    rows = [(f"`{outcome.name}`", str(outcome.value)) for outcome in log.Outcome]
    return write_table(("outcome", "code", "meaning"), ((*row, meanings.get(row[0], MISSING)) for row in rows))


def write_commands(_: str) -> str:
    names = [name for name in app.resolved_commands() if not name.startswith("-")]
    return "\n\n".join(write_command(name) for name in names)


def write_command(name: str) -> str:
    """Return one command: what it does, how it is called, and what each argument means."""
    command = app[name]
    arguments = command.assemble_argument_collection(parse_docstring=True)
    given = [it for it in arguments if not it.name.startswith("--")]
    flags = [it for it in arguments if it.name.startswith("--")]
    call = " ".join([name, *(it.name if it.required else f"[{it.name}]" for it in given)])
    call += "".join(f" {it.name} ..." for it in flags if it.required)
    rows = [(name_argument(it), describe_default(it), describe(it)) for it in (*given, *flags)]
    table = write_table(("argument", "default", "meaning"), rows)
    return f"## {name}\n\n{command.help.splitlines()[0]}\n\n```sh\nloadshape {call}\n```\n\n{table}"


def name_argument(argument: Any) -> str:
    return ", ".join(f"`{name}`" for name in argument.names)


def describe_default(argument: Any) -> str:
    if argument.required:
        return "required"
    default = argument.field_info.default
    if default in (None, inspect.Parameter.empty):
        return "none"
    return "off" if default is False else "on" if default is True else f"`{default}`"


def describe(argument: Any) -> str:
    text = " ".join((argument.parameter.help or "").split())
    return text[:1].upper() + text[1:].rstrip(".") if text else MISSING


def write_errors(_: str) -> str:
    return write_table(("error", "meaning"), write_family(errors.LoadshapeError, 0))


def write_family(kind: type[BaseException], depth: int) -> Iterator[tuple[str, str]]:
    yield "&emsp;" * depth + f"`{kind.__name__}`", (inspect.getdoc(kind) or MISSING).splitlines()[0]
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from write_family(child, depth + 1)


def write_index(_: str) -> str:
    """Return a link to every page under docs/ but the index, with the first sentence of each."""
    folder = ROOT / "docs"
    parts = []
    for title, pattern in (("Pages", "*.md"), ("Method", "method/*.md"), ("Decisions", "adr/*.md")):
        pages = [page for page in sorted(folder.glob(pattern)) if page.name != "index.md"]
        rows = [f"- [{read_title(page)}]({page.relative_to(folder)})" for page in pages]
        parts += [f"## {title}\n\n" + "\n".join(rows)] if rows else []
    return "\n\n".join(parts)


def read_title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


PARTS: dict[str, Callable[[str], str]] = {
    "cli": write_commands,
    "errors": write_errors,
    "index": write_index,
    "trace.requests": write_columns(trace.REQUESTS),
    "trace.segments": write_columns(trace.SEGMENTS),
    "trace.manifest": write_fields(trace.TraceManifest),
    "fixture.conversations": write_columns(fixture.CONVERSATION_SCHEMA),
    "fixture.findings": write_columns(fixture.FINDING_SCHEMA),
    "fixture.manifest": write_fields(fixture.FixtureManifest),
    "log.requests": write_columns(log.REQUESTS),
    "log.planned": write_columns(log.PLANNED),
    "log.reads": write_columns(log.READS),
    "log.health": write_columns(log.HEALTH),
    "observation.samples": write_columns(observation.SAMPLES),
    "log.run": write_fields(log.Run),
    "log.manifest": write_fields(log.LogManifest),
    "log.node": write_fields(nodes.Node),
    "log.burst": write_fields(nodes.Burst),
    "log.outcomes": write_outcomes,
    "replayer.settings": write_fields(Settings),
    "target.options": write_fields(TargetOptions),
    "target.entries": write_fields(TargetEntry),
}


def main() -> int:
    for page in list_pages():
        old = page.read_text(encoding="utf-8")
        if (new := refresh(old)) != old:
            page.write_text(new, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# From what people write in TOML to frozen values.
#
# Law: decoding only, of any msgspec Struct; nothing is known here about traffic. What cannot be is refused with the
# place, what was found and the nearest right name; nothing is ignored and nothing guessed, since a typing slip that
# silently means "default" is an experiment that was never run.
#
# Units. A field whose name ends in a unit (rate_hz, max_tokens, think_s) takes a plain number, or a text with
# its unit: "40/s", "512 tokens", "1.5 min". With the unit in the value the key may leave it out:
#
#     rate_hz = 40        rate_hz = "40/s"        rate = "2400/min"        but never        rate = 40
#
# A mistake is found in values, and values have no lines; so where it stands in the text is looked up by its place,
# with a scan for headers and keys that is no parser: what it does not find has no line, and is never wrong by much.
#
# Settings (`--set arrivals.rate=80/s`) replace a value, or add one, by its path: keys divided by dots, and an entry
# of an array of tables by its place, as in arrivals[1].rate, or by its name, as in classes.chat.weight.

"""Decode TOML into values: keys, units and choices are checked, each mistake with its place."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from loadshape.bounds import check_choice
from loadshape.errors import InputError, RecipeError
from loadshape.units import parse_duration_s, parse_rate_hz, parse_tokens

T = TypeVar("T", bound=msgspec.Struct)
Table = dict[str, Any]
UNITS: dict[str, tuple[Callable[[str, str], float], str]] = {
    "s": (parse_duration_s, "1.5 s"),
    "hz": (parse_rate_hz, "40/s"),
    "tokens": (parse_tokens, "512 tokens"),
}
_WHERE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_STEP = re.compile(r"([^.\[\]]+)(?:\[(\d+)\])?")
_BARE = re.compile(r"[-+\d.eE_\s]*")
_LONG_TEXT = re.compile(r"(\"\"\"|\'\'\').*?\1", re.DOTALL)
_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]")
_ENTRY = re.compile(r"\s*([\w.-]+)\s*=\s*[\"\']?([^\"\']*)")


def read_toml(text: str) -> Table:
    """Return the table of a TOML text. Raises RecipeError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise RecipeError(f"not valid TOML: {problem}") from None


def put_settings(table: Table, settings: Mapping[str, str]) -> None:
    """Put *settings*, values by their paths, into *table*. Raises RecipeError."""
    for path, value in settings.items():
        _put(table, path, _read_value(value))


def decode(table: Table, kind: type[T], where: str = "") -> T:
    """Return the value of this *kind* that *table* writes, at the place *where*. Raises RecipeError."""
    return _convert(where, _read(where, table, inspect.type_info(kind)), kind)


def find_key(key: str, names: Iterable[str]) -> str | None:
    """Return the one of *names* that *key* means, with its unit or without; None if it is none of them."""
    known = list(names)
    return next((name for name in (key, *(f"{key}_{unit}" for unit in UNITS)) if name in known), None)


def refuse_key(where: str, key: str, names: Iterable[str]) -> NoReturn:
    """Raise RecipeError for a *key* that is none of *names*."""
    known = list(names)
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    raise RecipeError(f"{_join(where, key)}: unknown key; {hint}")


def cite(problem: RecipeError, origin: str, text: str, settings: Mapping[str, str]) -> RecipeError:
    """Return *problem* with the file and, where what it names is written in its *text*, the line."""
    place = _drop_unit(str(problem).partition(": ")[0])
    given = {_drop_unit(path).rpartition(".")[2] for path in settings}
    line = None if place.rpartition(".")[2] in given else find_line(text, place)
    return RecipeError(f"{origin}: {problem}" if line is None else f"{origin}, line {line}: {problem}")


def find_line(text: str, place: str) -> int | None:
    """Return the line of a TOML *text* where *place* is written, or else what holds it; None if neither is."""
    lines: dict[str, int] = {}
    names: dict[str, str] = {}  # places of entries by the name that they give themselves
    section = ""
    for number, line in enumerate(_LONG_TEXT.sub(lambda found: "\n" * found[0].count("\n"), text).split("\n"), 1):
        if header := _HEADER.match(line):
            section = _enter_section(header, lines)
            lines.setdefault(section, number)
        elif entry := _ENTRY.match(line):
            lines.setdefault(_drop_unit(_join(section, entry[1])), number)
            if entry[1] == "name" and section.endswith("]"):
                names[f"{section.rpartition('[')[0]}.{entry[2]}"] = section
    place = _drop_unit(place)
    named = next((name for name in names if place == name or place.startswith(f"{name}.")), None)
    if named is not None:
        place = names[named] + place.removeprefix(named)
    while place and place not in lines:
        place = place.rpartition("[" if place.endswith("]") else ".")[0]
    return lines.get(place)


def _enter_section(header: re.Match[str], lines: Mapping[str, int]) -> str:
    """Return the place that a header begins: below an array of tables that of its last entry."""
    place = ""
    *above, last = header[2].split(".")
    for step in above:
        place = _join(place, step)
        entries = _count_entries(place, lines)
        place += f"[{entries - 1}]" if entries else ""
    place = _join(place, last)
    return f"{place}[{_count_entries(place, lines)}]" if header[1] == "[[" else place


def _count_entries(place: str, lines: Mapping[str, int]) -> int:
    return next(entry for entry in count() if f"{place}[{entry}]" not in lines)


def _drop_unit(place: str) -> str:
    return next((place.removesuffix(f"_{unit}") for unit in UNITS if place.endswith(f"_{unit}")), place)


def _read(where: str, value: Any, kind: Any) -> Any:
    """Return *value* with canonical keys and plain numbers, checked as far as its type says."""
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    structs = [option for option in options if isinstance(option, inspect.StructType)]
    items = [option for option in options if isinstance(option, inspect.VarTupleType | inspect.ListType)]
    if isinstance(value, dict) and structs:
        return _read_table(where, value, _choose(where, value, structs))
    if isinstance(value, list) and items:
        inner = items[0].item_type
        return [_read(f"{where}[{place}]", item, inner) for place, item in enumerate(value)]
    if structs and all(option in (*structs, *items) or isinstance(option, inspect.NoneType) for option in options):
        raise RecipeError(f"{where}: expected a section [{re.sub(r'.[0-9]+.', '', where)}], found {value!r}")
    return value


def _read_table(where: str, table: Table, kind: inspect.StructType) -> Table:
    fields = {field.encode_name: field.type for field in kind.fields}
    read: Table = {}
    for key, value in table.items():
        if key == kind.tag_field:
            read[key] = value
            continue
        name = find_key(key, fields)
        if name is None:
            refuse_key(where, key, [*fields, *filter(None, [kind.tag_field])])
        if name in read:
            raise RecipeError(f"{_join(where, name)}: found twice, with its unit in the key and without; leave one out")
        read[name] = _read_quantity(where, key, name, _read(_join(where, key), value, fields[name]))
    _convert(where, read, kind.cls)  # here, so that an error says in which table it is
    return read


def _read_quantity(where: str, key: str, name: str, value: Any) -> Any:
    parse, example = UNITS.get(name.rpartition("_")[2], (None, ""))
    place = _join(where, key)
    if parse is None:
        return value
    if isinstance(value, str):
        if key != name and _BARE.fullmatch(value):
            raise RecipeError(f"{place}: expected a quantity with its unit, such as {example!r}, found {value!r}")
        try:
            return parse(value, place)
        except InputError as problem:
            raise RecipeError(str(problem)) from None
    if key != name and isinstance(value, int | float):
        raise RecipeError(
            f"{place}: expected a quantity with its unit, such as {example!r}, found {value!r}; or write {name} = "
            f"{value!r}"
        )
    return value


def _choose(where: str, table: Table, kinds: list[inspect.StructType]) -> inspect.StructType:
    by_tag = {str(kind.tag): kind for kind in kinds}
    tag = kinds[0].tag_field
    if tag is None:
        return kinds[0]
    check_choice(_join(where, tag), table.get(tag), by_tag)
    return by_tag[table[tag]]


def _convert(where: str, value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        _refuse(where, str(problem))
    except RecipeError as problem:
        raise RecipeError(_join(where, str(problem))) from None


def _refuse(where: str, message: str) -> NoReturn:
    match = _WHERE.fullmatch(message)
    text, path = match.groups("") if match else (message, "")
    place = f"{where}{path}".lstrip(".") or "recipe"
    raise RecipeError(f"{place}: {text[:1].lower()}{text[1:]}") from None


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _read_value(text: str) -> Any:
    """Return what *text* means in TOML, or itself: a name or a quantity needs no quotes on a command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(table: Table, path: str, value: Any) -> None:
    """Replace the value at *path*, also where its key is written with another unit."""
    *steps, last = path.split(".")
    at: Any = table
    for step in steps:
        at = _enter(at, step, path)
    match = _STEP.fullmatch(last)
    if not isinstance(at, dict) or match is None:
        raise RecipeError(f"{path}: expected a path of keys such as arrivals.rate or classes.chat.weight")
    if match[2] is not None:
        entries, place = at.get(match[1]), int(match[2])
        if not isinstance(entries, list) or place >= len(entries):
            raise RecipeError(f"{path}: expected an entry that is there, found none at this place")
        entries[place] = value
        return
    stem = _drop_unit(last)
    for other in (stem, *(f"{stem}_{unit}" for unit in UNITS)):
        at.pop(other, None)
    at[last] = value


def _enter(at: Any, step: str, path: str) -> Any:
    match = _STEP.fullmatch(step)
    if match is None:
        raise RecipeError(f"{path}: expected a path of keys such as arrivals.rate or classes.chat.weight")
    name, place = match.groups()
    if isinstance(at, list):
        found = next((entry for entry in at if isinstance(entry, dict) and entry.get("name") == name), None)
        if found is None:
            names = [str(entry.get("name", place)) for place, entry in enumerate(at) if isinstance(entry, dict)]
            raise RecipeError(f"{path}: expected the name of an entry, one of {', '.join(names)}, found {name!r}")
        return found
    if not isinstance(at, dict):
        raise RecipeError(f"{path}: {name!r} is below a value that is no table")
    inner = at.setdefault(name, {})
    if place is None:
        return inner
    if not isinstance(inner, list) or int(place) >= len(inner):
        raise RecipeError(f"{path}: expected an entry that is there, found none at {step}")
    return inner[int(place)]

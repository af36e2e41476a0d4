# A shape as a TOML file.
#
# Law: decoding only. A recipe says nothing that a Shape cannot say: its sections are the same frozen values
# ([arrivals] is a Poisson, [inputs] a LogNormal, ...), and the key `process` or `distribution` says which.
# Several [[arrivals]] are superposed. What cannot be is refused with the file, the key, what was found
# and the nearest right name; nothing is ignored and nothing guessed, since a typing slip that silently
# means "default" is an experiment that was never run.
#
# A bare name ("balanced-chat") is a recipe that came with loadshape; anything with a suffix or a folder is
# a path. The text is kept as it is and goes into the trace's manifest.

"""Recipes: `Recipe.load("balanced-chat")` or a path to a TOML file; `Recipe.trace` draws its traffic."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import msgspec

from loadshape.arrival import Arrival, Burst, Constant, Gamma, Poisson, superpose
from loadshape.bounds import check_choice, check_count, check_number
from loadshape.errors import RecipeError
from loadshape.length import Empirical, Fixed, Length, LogNormal, Pairs, Uniform
from loadshape.packaged import find_packaged
from loadshape.prefix import PrefixTree
from loadshape.shape import MAX_DURATION_S, Material, Shape, check_params
from loadshape.tokenizer import Tokenizer, load_tokenizer
from loadshape.trace import APIS, Trace

FOLDER = "traces/recipes"


class OfFixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fixture", tag_field="distribution"):
    """The lengths of the fixture's prompts, or of its answers, drawn apart from one another.

    A recipe without [inputs] and [outputs] keeps them together instead, as pairs.
    """


Process = Constant | Poisson | Gamma | Burst
Distribution = Fixed | Uniform | LogNormal | Empirical | OfFixture
_SECTIONS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "arrivals": get_args(Process),
    "inputs": get_args(Distribution),
    "outputs": get_args(Distribution),
    "prefixes": (PrefixTree,),
}
T = TypeVar("T")
_WHERE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A shape with a name, a duration and a seed.

    `question` says what the traffic is for. `tokenizer` is a name or path for `load_tokenizer`. `params` are
    sampling parameters of every request, sent as they are. `text` is the TOML, verbatim.
    """

    name: str
    question: str = ""
    duration_s: float
    seed: int = 0
    api: str = "chat"
    tokenizer: str | None = None
    max_output_tokens: int | None = None
    arrivals: Process | tuple[Process, ...]
    inputs: Distribution | None = None
    outputs: Distribution | None = None
    prefixes: PrefixTree | None = None
    params: dict[str, Any] = {}
    text: str = ""

    def __post_init__(self) -> None:
        check_number("duration_s", self.duration_s, above=0, most=MAX_DURATION_S, remedy="write seconds, such as 300")
        check_count("seed", self.seed, least=0, remedy="such as 7")
        check_choice("api", self.api, APIS)
        if self.max_output_tokens is not None:
            check_count("max_output_tokens", self.max_output_tokens, remedy="leave it out for no limit")
        check_params(self.params)
        if self.arrivals == ():
            raise RecipeError("arrivals: expected at least one process, found none")

    @classmethod
    def load(cls, name: str | Path) -> Recipe:
        """Return the recipe in a TOML file, or the one that came with loadshape under a bare name.

        Raises RecipeError, naming the file and the key, for anything that is not a recipe.
        """
        path = find_packaged(FOLDER, name, RecipeError)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise RecipeError(f"{path}: expected a recipe in TOML; {problem}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, origin: str = "recipe") -> Recipe:
        """Return the recipe in a TOML text; *origin* names it in errors."""
        try:
            table = tomllib.loads(text)
            _check_keys("", table, (field.name for field in msgspec.structs.fields(cls) if field.name != "text"))
            for name in _SECTIONS.keys() & table.keys():
                _check_section(name, table[name])
            return _convert("", {**table, "text": text}, cls)
        except tomllib.TOMLDecodeError as problem:
            raise RecipeError(f"{origin}: not valid TOML: {problem}") from None
        except RecipeError as problem:
            raise RecipeError(f"{origin}: {problem}") from None

    def shape(self, fixture: Pairs) -> Shape:
        """Return the shape; *fixture* is read only where lengths are to be those of the fixture."""
        tokenizer = load_tokenizer(self.tokenizer)
        processes = self.arrivals if isinstance(self.arrivals, tuple) else (self.arrivals,)
        arrivals: Arrival = processes[0] if len(processes) == 1 else superpose(*processes)
        return Shape(
            arrivals=arrivals,
            inputs=_resolve(self.inputs, Empirical.of_prompts, fixture, tokenizer),
            outputs=_resolve(self.outputs, Empirical.of, fixture, tokenizer),
            prefixes=self.prefixes,
            kind=self.name,
            api=self.api,
            max_output_tokens=self.max_output_tokens,
            params=self.params,
            tokenizer=tokenizer,
        )

    def trace(self, fixture: Material, *, duration_s: float | None = None, seed: int | None = None) -> Trace:
        """Draw the traffic, for another *duration_s* or *seed* than the recipe's own if they are given."""
        return self.shape(fixture).trace(
            fixture,
            duration_s=self.duration_s if duration_s is None else duration_s,
            seed=self.seed if seed is None else seed,
            name=self.name,
            recipe=self.text,
        )


def _resolve(
    length: Length | OfFixture | None,
    observe: Callable[[Pairs, Tokenizer], Length],
    fixture: Pairs,
    tokenizer: Tokenizer,
) -> Length | None:
    return observe(fixture, tokenizer) if isinstance(length, OfFixture) else length


def _check_section(name: str, value: Any) -> None:
    """Decode one section on its own, so that an error can say in which one it is."""
    parts = value if isinstance(value, list) and name == "arrivals" else [value]
    for number, part in enumerate(parts):
        where = f"{name}[{number}]" if isinstance(value, list) else name
        if not isinstance(part, dict):
            raise RecipeError(f"{where}: expected a section [{name}], found {part!r}")
        kind = _choose_kind(where, part, _SECTIONS[name])
        tag = kind.__struct_config__.tag_field
        _check_keys(f"{where}.", part, [*kind.__struct_fields__, *filter(None, [tag])])
        _convert(where, part, kind)


def _choose_kind(where: str, part: dict[str, Any], kinds: tuple[type[msgspec.Struct], ...]) -> type[msgspec.Struct]:
    by_tag = {kind.__struct_config__.tag: kind for kind in kinds}
    if None in by_tag:
        return by_tag[None]
    tag = str(kinds[0].__struct_config__.tag_field)
    check_choice(f"{where}.{tag}", part.get(tag), map(str, by_tag))
    return by_tag[part[tag]]


def _check_keys(prefix: str, table: dict[str, Any], known: Iterable[str]) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(names)}"
            raise RecipeError(f"{prefix}{key}: unknown key; {hint}")


def _convert(where: str, value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        _refuse(where, str(problem))
    except RecipeError as problem:
        raise RecipeError(f"{where}.{problem}" if where else str(problem)) from None


def _refuse(where: str, message: str) -> NoReturn:
    match = _WHERE.fullmatch(message)
    text, path = match.groups("") if match else (message, "")
    place = f"{where}{path}".lstrip(".") or "recipe"
    raise RecipeError(f"{place}: {text[:1].lower()}{text[1:]}") from None

# Traffic as a TOML file.
#
# Law: decoding only. A recipe says nothing that a Shape or a Mix cannot say: its sections are the same frozen values
# ([arrivals] is a Poisson, [inputs] a LogNormal, ...), and the key `process`, `distribution` or `joint` says which.
# Several [[arrivals]] are superposed. A recipe with [[classes]] is a Mix, and then what belongs to a class stands in
# the class; one without is a Shape. How keys and units are read, and mistakes refused, is notation.py.
#
# A bare name ("balanced-chat") is a recipe that came with loadshape; anything with a suffix or a folder is
# a path. The text is kept as it is and goes into the trace's manifest, and beside it the settings that
# were given for this time.

"""Recipes: `Recipe.load("balanced-chat")` or a path to a TOML file; `Recipe.trace` draws its traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import msgspec

from loadshape.arrival import PROCESSES, Arrival, superpose
from loadshape.bounds import check_count, check_number
from loadshape.errors import RecipeError
from loadshape.length import DISTRIBUTIONS, JOINTS, Context, Empirical, Joint, Length, Observed
from loadshape.material import Material
from loadshape.mix import Following, Mix
from loadshape.notation import Table, cite, decode, find_key, put_settings, read_toml, refuse_key
from loadshape.packaged import find_packaged
from loadshape.patience import Patience
from loadshape.picture import Images
from loadshape.population import Population
from loadshape.prefix import PrefixTree
from loadshape.retrieval import Retrieval
from loadshape.session import Sessions
from loadshape.shape import MAX_DURATION_S, Shape
from loadshape.tokenizer import Estimate, Tokenizer, load_tokenizer
from loadshape.trace import Loop, Trace

FOLDER = "traces/recipes"


class OfFixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fixture", tag_field="distribution"):
    """The lengths of the fixture's prompts, or of its answers, drawn apart from one another.

    A recipe without [inputs] and [outputs] keeps them together instead, as pairs.
    """


class PairsOfFixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fixture", tag_field="joint"):
    """The lengths of the fixture's prompts with those of their answers, for texts composed to them."""


if TYPE_CHECKING:
    Process = Arrival
    Distribution = Length | OfFixture
    Pairing = Joint | PairsOfFixture
else:  # what TOML can say: every value that these modules offer
    Process = Union[PROCESSES]  # noqa: UP007
    Distribution = Union[(*DISTRIBUTIONS, OfFixture)]
    Pairing = Union[(*JOINTS, PairsOfFixture)]


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One class of traffic: the values of a Shape under the keys of a recipe, and for a mix when it comes."""

    name: str
    weight: float | None = None
    follows: Following | None = None
    arrivals: Process | tuple[Process, ...] | None = None
    api: str = "chat"
    inputs: Distribution | None = None
    outputs: Distribution | None = None
    lengths: Pairing | None = None
    context: Context | None = None
    max_output_tokens: int | None = None
    prefixes: PrefixTree | None = None
    retrieval: Retrieval | None = None
    sessions: Sessions | None = None
    images: Images | None = None
    patience: Patience | None = None
    models: Population | None = None
    adapters: Population | None = None
    tenants: Population | None = None
    token_ids: bool = False
    params: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.arrivals == ():
            raise RecipeError("arrivals: expected at least one process, found none")

    def shape(self, tokenizer: Tokenizer, fixture: Material | None, *, check: bool = False, **run: Any) -> Shape:
        """Return the shape; *fixture* is read only where lengths are to be its own, and not to *check* the rest."""
        kept = {key: value for key, value in msgspec.structs.asdict(self).items() if key not in _OF_THE_MIX}
        for key in ("inputs", "outputs", "lengths"):
            if isinstance(kept[key], OfFixture | PairsOfFixture):
                kept[key] = _STAND_INS[key] if check else _observe(key, fixture, tokenizer)
        return Shape(arrivals=_add_up(self.arrivals), kind=self.name, tokenizer=tokenizer, **kept, **run)


_OF_THE_MIX = ("name", "weight", "follows", "arrivals")
_STAND_INS = {"inputs": Empirical((1,)), "outputs": Empirical((1,)), "lengths": Observed((1,), (1,))}


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Traffic with a name, a duration and a seed: one class, or several that make a mix.

    `question` says what the traffic is for. `tokenizer` is a name or path for `load_tokenizer`. `traffic` is the one
    class of a recipe without [[classes]]; `arrivals` are what classes with weights have in common. `text` is the
    TOML, verbatim, `origin` the file it is from, and `settings` what was set beside it.
    """

    name: str
    question: str = ""
    duration_s: float
    seed: int = 0
    tokenizer: str | None = None
    isolation: str = "none"
    loop: Loop | None = None
    count: int | None = None
    arrivals: Process | tuple[Process, ...] | None = None
    traffic: Traffic | None = None
    classes: tuple[Traffic, ...] = ()
    text: str = ""
    origin: str = "recipe"
    settings: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_number("duration_s", self.duration_s, above=0, most=MAX_DURATION_S, remedy="write seconds, such as 300")
        check_count("seed", self.seed, least=0, remedy="such as 7")
        if self.count is not None:
            check_count("count", self.count, remedy="write how many sessions there are")

    @classmethod
    def load(cls, name: str | Path, settings: Mapping[str, str] | None = None) -> Recipe:
        """Return the recipe in a TOML file, or the one that came with loadshape under a bare name.

        *settings* are values by their paths, in place of those of the file: {"arrivals.rate": "80/s"}. Raises
        RecipeError, naming the file and the key, for anything that is not a recipe.
        """
        path = find_packaged(FOLDER, name, RecipeError)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise RecipeError(f"{path}: expected a recipe in TOML; {problem}") from None
        return cls.parse(text, str(path), settings)

    @classmethod
    def parse(cls, text: str, origin: str = "recipe", settings: Mapping[str, str] | None = None) -> Recipe:
        """Return the recipe in a TOML text; *origin*, its path, names it in errors, and files are found from there."""
        given = dict(settings or {})
        try:
            table = read_toml(text)
            _find_files(table, Path(origin).parent)
            put_settings(table, given)
            _check_recorded(table)
            table = _divide(table)
            traffic = table.pop("traffic", None)
            recipe = decode(table, cls)
            if traffic is not None:
                recipe = msgspec.structs.replace(recipe, traffic=decode(traffic, Traffic))
            recipe = msgspec.structs.replace(recipe, text=text, origin=origin, settings=given)
            recipe._make(Estimate(), None, check=True)
        except RecipeError as problem:
            raise cite(problem, origin, text, given) from None
        return recipe

    @property
    def needs_fixture(self) -> bool:
        """Whether some prompts or lengths are left to a fixture."""
        classes = self.classes if self.traffic is None else (self.traffic,)
        made = (it.shape(Estimate(), None, check=True) for it in classes if self.count is None)
        named = (isinstance(length, OfFixture) for it in classes for length in (it.inputs, it.outputs))
        return any(shape.needs_fixture for shape in made) or any(named)

    def make(self, fixture: Material | None = None) -> Shape | Mix:
        """Return the shape, or the mix of several; *fixture* is read only where lengths are to be its own."""
        return self._make(load_tokenizer(self.tokenizer), fixture)

    def trace(
        self, fixture: Material | None = None, *, duration_s: float | None = None, seed: int | None = None
    ) -> Trace:
        """Draw the traffic, for another *duration_s* or *seed* than the recipe's own if they are given."""
        try:
            trace = self.make(fixture).trace(
                fixture,
                duration_s=self.duration_s if duration_s is None else duration_s,
                seed=self.seed if seed is None else seed,
                name=self.name,
                recipe=self.text,
            )
        except RecipeError as problem:
            raise cite(problem, self.origin, self.text, self.settings) from None
        return replace(trace, manifest=msgspec.structs.replace(trace.manifest, settings=self.settings))

    def _make(self, tokenizer: Tokenizer, fixture: Material | None, *, check: bool = False) -> Shape | Mix:
        run = {"isolation": self.isolation}
        if self.traffic is not None:
            alone = {"loop": self.loop, "count": self.count}
            return self.traffic.shape(tokenizer, fixture, check=check, **run, **alone)
        return Mix(
            classes=tuple(self._name(it, tokenizer, fixture, check=check, **run) for it in self.classes),
            arrivals=_add_up(self.arrivals),
            weights={it.name: it.weight for it in self.classes if it.weight is not None},
            follows={it.name: it.follows for it in self.classes if it.follows is not None},
            loop=self.loop,
            count=self.count,
        )

    @staticmethod
    def _name(traffic: Traffic, *arguments: Any, **run: Any) -> Shape:
        try:
            return traffic.shape(*arguments, **run)
        except RecipeError as problem:
            raise RecipeError(f"classes.{traffic.name}.{problem}") from None


def _divide(table: Table) -> Table:
    """Return the table of a recipe, with what belongs to its one class apart, as `traffic`, if it has no classes."""
    of_recipe = [name for name in Recipe.__struct_fields__ if name not in ("traffic", "text", "origin", "settings")]
    of_class = [name for name in Traffic.__struct_fields__ if name not in _OF_THE_MIX]
    divided: Table = {"traffic": {}}
    for key, value in table.items():
        if find_key(key, of_recipe):
            divided[key] = value
        elif find_key(key, of_class):
            divided["traffic"][key] = value
        else:
            refuse_key("", key, [*of_recipe, *of_class])
    own = divided.pop("traffic")
    if "classes" in table:
        if own:
            raise RecipeError(f"{next(iter(own))}: expected in a class, since there are [[classes]]; move it there")
        return divided
    arrivals = {"arrivals": divided.pop("arrivals")} if "arrivals" in divided else {}
    return {**divided, "traffic": {"name": str(divided.get("name", "")), **arrivals, **own}}


def _find_files(table: Table, folder: Path) -> None:
    """Make paths that are relative to the recipe's *folder* what they are from here."""
    tokenizer = table.get("tokenizer")
    if isinstance(tokenizer, str) and (folder / tokenizer).exists():  # else it may be a packaged one's name
        table["tokenizer"] = str(folder / tokenizer)
    for _, process in _list_processes(table):
        if isinstance(process.get("path"), str) and process["path"]:
            process["path"] = str(folder / process["path"])


def _check_recorded(table: Table) -> None:
    for place, process in _list_processes(table):
        for key in {"rate", "rate_hz"} & process.keys() if process.get("process") == "recorded" else ():
            raise RecipeError(
                f"{place}.{key}: recorded stamps have a rate of their own; leave it out, or scale a trace"
            )


def _list_processes(table: Table, where: str = "") -> Iterator[tuple[str, Table]]:
    """Return the places and the tables of all arrivals, those of classes, too."""
    arrivals, classes = table.get("arrivals"), table.get("classes")
    if isinstance(arrivals, dict):
        yield f"{where}arrivals", arrivals
    for place, process in enumerate(arrivals if isinstance(arrivals, list) else ()):
        if isinstance(process, dict):
            yield f"{where}arrivals[{place}]", process
    for place, traffic in enumerate(classes if isinstance(classes, list) else ()):
        if isinstance(traffic, dict):
            yield from _list_processes(traffic, f"classes[{place}].")


def _add_up(processes: Process | tuple[Process, ...] | None) -> Arrival | None:
    if not isinstance(processes, tuple):
        return processes
    return processes[0] if len(processes) == 1 else superpose(*processes)


def _observe(key: str, fixture: Material | None, tokenizer: Tokenizer) -> Empirical | Observed:
    if fixture is None:
        raise RecipeError(f"{key}: expected a fixture to take lengths from, found none; name one, or a distribution")
    if key == "lengths":
        return Observed.of(fixture, tokenizer)
    return Empirical.of(fixture, tokenizer) if key == "outputs" else Empirical.of_prompts(fixture, tokenizer)

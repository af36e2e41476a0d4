"""Data files by their bare names, in a checkout and in a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadshape import packaged
from loadshape.errors import InputError, RecipeError
from loadshape.packaged import find_packaged, list_packaged


def test_a_bare_name_is_the_file_that_came_along() -> None:
    assert "balanced-chat" in list_packaged("traces/recipes")
    path = find_packaged("traces/recipes", "balanced-chat")
    assert path.name == "balanced-chat.toml"
    assert path.is_file()


@pytest.mark.parametrize("name", ["a.toml", "folder/a", "./a.toml", "/a/b", "balanced-chat.toml"])
def test_a_path_is_left_as_it_is(name: str) -> None:
    assert find_packaged("traces/recipes", name) == Path(name)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        RecipeError, match="balanced: no file and no name of traces/recipes; did you mean 'balanced-chat'"
    ):
        find_packaged("traces/recipes", "balanced", RecipeError)
    with pytest.raises(InputError, match="known names: none"):
        find_packaged("traces/nothing", "x")


def test_a_wheel_has_its_copies_inside_of_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "loadshape" / "data" / "traces" / "recipes"
    folder.mkdir(parents=True)
    (folder / "other.toml").write_text("")
    monkeypatch.setattr(packaged, "_PACKAGE", tmp_path / "loadshape")
    assert find_packaged("traces/recipes", "other") == folder / "other.toml"
    assert list_packaged("traces/recipes") == ["other"]

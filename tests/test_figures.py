# Published figures belong to exactly one policy.

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadshape import figures
from loadshape.figures import Figures, Share, find_figures
from loadshape.fixture import Fixture
from loadshape.leaflet import write_leaflet
from loadshape.policy import Policy
from loadshape.sanitizer import sanitize


@pytest.mark.parametrize("name", ["default", "strict", "korean", "secrets-only"])
def test_the_policies_that_come_with_loadshape_were_measured_as_they_are(name: str) -> None:
    measured = find_figures(Policy.load(name).digest)
    assert set(measured) == {"shown", "unseen"}, "the policy was changed: run make audit"
    assert all(share.found <= share.asked for each in measured.values() for share in each.recall.values())


def test_a_fixture_carries_the_figures_of_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy.parse('name = "p"\nversion = 1\n[[rule]]\nentity = "A"\nrecognizer = "pattern"\npatterns = ["a"]')
    measured = {"shown": Figures(9, {"A": Share(3, 4)}, Share(2, 2))}
    monkeypatch.setattr(figures, "_load", lambda: {policy.digest: measured})
    fixture = Fixture.write(tmp_path / "a.fixture", sanitize([], policy))
    assert Fixture.open(fixture.path).manifest.figures == measured
    assert "75.0%" in write_leaflet(fixture)
    other = Fixture.write(tmp_path / "b.fixture", sanitize([], msgspec.structs.replace(policy, tolerance_tokens=9)))
    assert other.manifest.figures == "not measured"
    assert Fixture.open(other.path).manifest == other.manifest


def test_a_share_of_nothing_is_whole() -> None:
    assert (Share(1, 4).share, Share(0, 0).share) == (0.25, 1.0)

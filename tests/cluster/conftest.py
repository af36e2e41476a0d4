# One Ray cluster for all tests that need one, since it takes long to form: three nodes with clocks of their own.

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosts import find_obstacle

from .rays import AHEAD_S, Ring, forming


@pytest.fixture(scope="session")
def ring() -> Iterator[Ring]:
    pytest.importorskip("ray", reason="comes with the extra ray")
    obstacle = find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    with forming(AHEAD_S) as made:
        yield made

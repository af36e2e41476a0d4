# What all tests share: no property test fails because the machine is busy, a test that spawns workers leaves
# none behind, and what is known of this host is not.

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("loadshape", deadline=None)
settings.load_profile("loadshape")


@pytest.fixture(scope="session", autouse=True)
def no_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the calibration of this host out of the logs that tests write."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before

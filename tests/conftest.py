# What all tests share: no property test fails because the machine is busy, and a test that spawns workers
# leaves none behind.

from __future__ import annotations

from hypothesis import settings

settings.register_profile("loadshape", deadline=None)
settings.load_profile("loadshape")

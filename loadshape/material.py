# The texts that traffic is made of, as far as shapes are concerned.
#
# Law: a protocol and a description; nothing is read and nothing written. A fixture on disk is one such thing
# (fixture.py), and so is anything that has conversations, a digest and a manifest: shapes do not know
# where it lies or how it was cleaned, only what has to be said of that in the manifest of a trace.

"""What a shape needs of a fixture, and what its trace says of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

from loadshape.conversation import Conversation


class Material(Protocol):
    """What a shape needs of a fixture."""

    @property
    def digest(self) -> str:
        """The name of its content."""
        ...

    @property
    def manifest(self) -> Any:
        """What it says about itself."""
        ...

    def prompts(self) -> Iterable[tuple[str, str]]:
        """Return (prompt, answer) pairs in a fixed order."""
        ...

    def __iter__(self) -> Iterator[Conversation]: ...


def describe_fixture(fixture: Material | None) -> dict[str, Any] | None:
    """Return the fixture's name, what it was made from and how it was cleaned."""
    if fixture is None:
        return None
    manifest = fixture.manifest
    policy = manifest.policy
    return {
        "digest": fixture.digest,
        "conversations": manifest.conversations,
        "provenance": msgspec.to_builtins(manifest.provenance),
        "policy": {"name": policy.name, "digest": policy.digest},
    }

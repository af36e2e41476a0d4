# How much a policy finds, as published: by the digest of the policy that was measured, never by its name.
#
# Law: looking up only. The figures are made by `make audit` (sanitizers/corpus/publish.py), from invented and labelled
# texts, and lie in sanitizers/figures.json. A policy in which one letter was changed is another policy: its figures
# are not there, and nothing stands in for them.
#
# Recall is of whole values: one counts as found when no letter or digit of it is left. A negative is a text with
# nothing to find in it, of the kinds in which recognizers are known to misfire.

"""Published figures of policies."""

from __future__ import annotations

from functools import cache

import msgspec

from loadshape.packaged import find_data

FIGURES = "sanitizers/figures.json"


class Share(msgspec.Struct, frozen=True, array_like=True):
    """So many of so many."""

    found: int
    asked: int

    @property
    def share(self) -> float:
        """The share, between 0 and 1."""
        return self.found / self.asked if self.asked else 1.0


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a policy did on one set: recall by kind, and negatives that it left alone."""

    texts: int
    recall: dict[str, Share]
    negatives_untouched: Share


def find_figures(policy_digest: str) -> dict[str, Figures]:
    """Return the figures of the policy with this digest, by set; nothing if it was not measured."""
    return _load().get(policy_digest, {})


@cache
def _load() -> dict[str, dict[str, Figures]]:
    path = find_data(FIGURES)
    return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Figures]]) if path.is_file() else {}

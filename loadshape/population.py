# Who asks, and for what: models, LoRA adapters and tenants, each a set of names with their popularity.
#
# Law: names and weights. A request of a session asks for what its session asks for, so one name is drawn for a
# session. What a name means is the server's business; that a model is served is checked before a run.
#
# Theory. Popularity of customers and of adapters is skewed. Zipf's law gives the name of rank r the weight
# 1 / r^s: with s = 1 and 100 names the first has 19 % of the traffic, with s = 0 all have the same. Adapters that
# are rarely asked for are those that a server has to load, so the tail of the law is what is measured.

"""Population: names with weights, by hand or by Zipf's law."""

from __future__ import annotations

import msgspec
import numpy as np

from loadshape.bounds import check_count, check_number
from loadshape.errors import RecipeError
from loadshape.length.distribution import check_weights, choose_weighted
from loadshape.stats import Integers

MAX_NAMES = 1_000_000


class Population(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`names`, or `count` of them that are made up, as popular as `weights` say, or as Zipf's law with `zipf`.

    Without weights and Zipf's exponent all are asked for equally often.
    """

    names: tuple[str, ...] = ()
    count: int | None = None
    weights: tuple[float, ...] | None = None
    zipf: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.names) is (self.count is not None):
            found = "both" if self.names else "neither"
            raise RecipeError(f"names: expected names, or a count of them to make up, found {found}")
        if self.count is not None:
            check_count("count", self.count, most=MAX_NAMES, remedy="write how many there are")
        if len(set(self.names)) < len(self.names) or "" in self.names:
            raise RecipeError(f"names: expected different names, none of them empty, found {list(self.names)!r}")
        check_number("zipf", self.zipf, least=0, most=10, remedy="0 is uniform popularity, 1 is usual")
        if self.weights is not None:
            if self.zipf:
                raise RecipeError("weights: expected weights or zipf, found both; leave out one of them")
            check_weights("weights", self.weights, len(self))

    def __len__(self) -> int:
        return self.count if self.count is not None else len(self.names)

    def list_names(self, stem: str) -> list[str]:
        """Return the names; those that are made up begin with *stem*."""
        return list(self.names) or [f"{stem}-{number}" for number in range(len(self))]

    def draw(self, rng: np.random.Generator, n: int) -> Integers:
        """Return *n* numbers of names; one double for each."""
        weights = self.weights or (np.arange(1, len(self) + 1, dtype=np.float64) ** -self.zipf).tolist()
        return choose_weighted(weights, rng.random(n))

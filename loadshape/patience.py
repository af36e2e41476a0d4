# When clients give up.
#
# Law: which requests are ended by their client, and after what; nothing is ended here. The trace says it of each
# request, the replay closes the connection then, and its outcome is "cancelled", as planned: neither a failure of
# the server nor of ours. What a server does with the work that nobody waits for any more is what is measured.
#
# All requests draw, whether they give up or not, so that another share leaves the waits of the others alone.

"""Patience: the part of the requests that is ended by its client, after a time or a number of tokens."""

from __future__ import annotations

import msgspec
import numpy as np

from loadshape.bounds import check_number
from loadshape.errors import RecipeError
from loadshape.length import Empirical, Fixed, Histogram, LogNormal, Normal, ParetoMix, Uniform
from loadshape.stats import Integers
from loadshape.wait import AnyWait


class Patience(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`share` of the requests are ended by their client: when `after` is over, or when `tokens` have come.

    With both, whichever is first. The time counts from the instant that the request is due.
    """

    share: float = 1.0
    after: AnyWait | None = None
    tokens: Fixed | Uniform | Normal | LogNormal | ParetoMix | Histogram | Empirical | None = None

    def __post_init__(self) -> None:
        check_number("share", self.share, above=0, most=1, remedy="it is the part that gives up, such as 0.1")
        if self.after is None and self.tokens is None:
            raise RecipeError("after: expected a wait, or tokens to give up after, found neither")

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Integers, Integers | None, Integers | None]:
        """Return which of *n* requests give up (numbers), and for those the ns and the tokens after which."""
        order, waiting, counting = rng.spawn(3)
        rows = np.flatnonzero(order.random(n) < self.share)
        after_ns = None if self.after is None else self.after.draw_ns(waiting, n)[rows]
        tokens = None if self.tokens is None else self.tokens.draw(counting, n)[rows]
        return rows, after_ns, tokens

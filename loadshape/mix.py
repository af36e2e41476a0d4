# Several classes of traffic in one run.
#
# Law: composing shapes only. Each class is a Shape with arrivals of one of three kinds, and the trace is that of all
# classes, superposed (algebra.py). A class draws from streams of a seed of its own, derived from the seed of the mix
# and its name: to add, to drop or to change a class leaves what the others say and want as it was.
#
#     its own       a process of the class's; other classes do not matter
#     a weight      a part of the common arrivals: each is given to one class in proportion to the weights. What is
#                   given away at random from a Poisson process is one again, with the part of its rate
#     following     so many requests after each session of another class begins, each after a wait
#
# The last is a cluster process (Neyman & Scott, 1958): agents whose tool call is followed by a handful of short
# requests at once. They come by the clock, from the due time of what they follow and not from its answer: why is
# said in docs/adr/0011-fan-out-follows-due-times.md.
#
# Random streams of the mix itself: `arrivals` (common), `classes` (who gets which), `following.NAME`.

"""Mix: classes of traffic with their weights or arrivals; `Mix.trace` draws them into one trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec
import numpy as np

from loadshape.algebra import superpose
from loadshape.arrival import Arrival, measure_offered_hz
from loadshape.bounds import check_choice, check_number
from loadshape.errors import RecipeError
from loadshape.length.distribution import choose_weighted
from loadshape.material import Material, describe_fixture
from loadshape.randomness import derive_seed, open_stream
from loadshape.session import Number, check_numbers, draw_numbers
from loadshape.shape import MAX_DURATION_S, STREAMS, Shape
from loadshape.stats import Integers
from loadshape.trace import Loop, Trace
from loadshape.units import to_ns
from loadshape.wait import AnyWait, FixedWait


class Following(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`requests` after each session of `name` begins, each after a wait of its own; none after the run's end."""

    name: str
    requests: Number = 1
    after: AnyWait = FixedWait(wait_s=1.0)

    def __post_init__(self) -> None:
        check_numbers("requests", self.requests)

    def draw_ns(self, leaders_ns: Integers, rng: np.random.Generator, duration_s: float) -> Integers:
        """Return when followers of sessions that begin at *leaders_ns* are due, sorted, in [0, duration_s)."""
        counting, waiting = rng.spawn(2)
        begins = np.repeat(leaders_ns, draw_numbers(self.requests, counting, len(leaders_ns)))
        times_ns = np.sort(begins + self.after.draw_ns(waiting, len(begins)))
        return times_ns[times_ns < to_ns(duration_s)]


@dataclass(frozen=True, slots=True)
class Mix:
    """Classes of traffic, each known by its `kind`: with arrivals of its own, a weight of the common ones, or a leader.

    A closed `loop` has a `count` of sessions, given to the classes by weight, in place of all arrivals.
    """

    classes: tuple[Shape, ...]
    arrivals: Arrival | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    follows: Mapping[str, Following] = field(default_factory=dict)
    loop: Loop | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        names = [shape.kind for shape in self.classes]
        if not names or len(set(names)) < len(names):
            raise RecipeError(f"classes: expected at least one, all with different names, found {names!r}")
        for name, weight in self.weights.items():
            check_choice("weights", name, names)
            check_number(f"classes.{name}.weight", weight, above=0, remedy="write its part of the common arrivals")
        for name, following in self.follows.items():
            check_choice(f"classes.{name}.follows.name", following.name, [it for it in names if it != name])
        for shape in self.classes:
            self._check_times(shape)
        if self.is_closed is (self.count is None) or (self.is_closed and self.arrivals is not None):
            raise RecipeError("count: expected with a closed loop, in place of arrivals, and with no other")
        if bool(self.weights) is not (self.arrivals is not None or self.is_closed):
            raise RecipeError("arrivals: expected common arrivals where classes have weights, and only there")

    @property
    def is_closed(self) -> bool:
        """Whether slots take the next session, rather than a clock."""
        return self.loop is not None and self.loop.mode == "closed"

    def trace(
        self, fixture: Material | None = None, *, duration_s: float, seed: int, name: str = "", recipe: str = ""
    ) -> Trace:
        """Draw the traffic of all classes, as `Shape.trace` does that of one; a class without requests is left out."""
        check_number("duration_s", duration_s, above=0, most=MAX_DURATION_S, remedy="write seconds, such as 300")
        loop = self.loop or self._choose_loop()
        shapes = self._close(seed) if self.is_closed else self._place(duration_s, seed)
        traces = [
            _draw(replace(shape, loop=loop), fixture, duration_s, derive_seed(seed, shape.kind)) for shape in shapes
        ]
        if not traces:
            raise RecipeError(f"arrivals: none in {duration_s:g} s; lengthen the duration or raise the rate")
        merged = superpose(*traces)
        common = {} if self.arrivals is None else {"offered_hz": measure_offered_hz(self.arrivals, duration_s)}
        apart = {shape.kind: trace.manifest.statistics for shape, trace in zip(shapes, traces, strict=True)}
        return Trace.build(
            merged.requests,
            merged.segments,
            loop=loop,
            duration_s=float(duration_s),
            name=name,
            seed=seed,
            streams=self._list_streams(),
            recipe=recipe or None,
            fixture=describe_fixture(fixture),
            tokenizer=merged.manifest.tokenizer,
            statistics={**common, **merged.manifest.statistics, "classes": apart},
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _check_times(self, shape: Shape) -> None:
        kinds = {
            "arrivals": shape.arrivals is not None,
            "weight": shape.kind in self.weights,
            "follows": shape.kind in self.follows,
        }
        given = [kind for kind, is_given in kinds.items() if is_given]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RecipeError(f"classes.{shape.kind}: expected one of arrivals, weight and follows, found {found}")
        if self.is_closed and given != ["weight"]:
            raise RecipeError(f"classes.{shape.kind}.{given[0]}: a closed loop has no arrivals; write a weight")
        if shape.loop is not None or shape.count is not None:
            raise RecipeError(f"classes.{shape.kind}.loop: expected one loop for all classes; give it to the mix")

    def _choose_loop(self) -> Loop:
        return Loop("open" if all(shape.sessions is None for shape in self.classes) else "partly_open")

    def _close(self, seed: int) -> list[Shape]:
        """Return the classes that get sessions of the count, with how many."""
        assert self.count is not None, "checked"
        counts = np.bincount(self._choose(self.count, seed), minlength=len(self.weights)).tolist()
        numbers = dict(zip(self.weights, counts, strict=True))
        loop = self.loop
        return [replace(shape, loop=loop, count=numbers[shape.kind]) for shape in self.classes if numbers[shape.kind]]

    def _place(self, duration_s: float, seed: int) -> list[Shape]:
        """Return the classes that are due at all, with their due times in place of their arrivals."""
        times_ns: dict[str, Integers] = {}
        if self.arrivals is not None:
            common_ns = self.arrivals.times_ns(open_stream(seed, "arrivals"), duration_s)
            chosen = self._choose(len(common_ns), seed)
            times_ns = {name: common_ns[chosen == place] for place, name in enumerate(self.weights)}
        for shape in self.classes:
            if shape.arrivals is not None:
                stream = open_stream(derive_seed(seed, shape.kind), "arrivals")
                times_ns[shape.kind] = shape.arrivals.times_ns(stream, duration_s)
        self._follow(times_ns, duration_s, seed)
        placed = ((shape, times_ns[shape.kind]) for shape in self.classes)
        return [replace(shape, arrivals=_Placed(due_ns, duration_s)) for shape, due_ns in placed if len(due_ns)]

    def _follow(self, times_ns: dict[str, Integers], duration_s: float, seed: int) -> None:
        """Add the due times of the classes that follow others, leaders first."""
        waiting = dict(self.follows)
        while waiting:
            ready = [name for name, following in waiting.items() if following.name in times_ns]
            if not ready:
                raise RecipeError(f"follows: expected a class to begin with, found a circle of {', '.join(waiting)}")
            for name in ready:
                following, stream = waiting.pop(name), open_stream(seed, f"following.{name}")
                times_ns[name] = following.draw_ns(times_ns[following.name], stream, duration_s)

    def _choose(self, n: int, seed: int) -> Integers:
        """Return which of the weighted classes gets each of *n* sessions."""
        return choose_weighted(list(self.weights.values()), open_stream(seed, "classes").random(n))

    def _list_streams(self) -> tuple[str, ...]:
        return (
            "arrivals",
            "classes",
            *(f"following.{name}" for name in self.follows),
            *map("CLASS: {}".format, STREAMS),
        )


def _draw(shape: Shape, fixture: Material | None, duration_s: float, seed: int) -> Trace:
    try:
        return shape.trace(fixture, duration_s=duration_s, seed=seed)
    except RecipeError as problem:
        raise RecipeError(f"classes.{shape.kind}.{problem}") from None


@dataclass(frozen=True, slots=True)
class _Placed:
    """Arrivals that are known already; nothing is drawn."""

    due_ns: Integers
    duration_s: float

    def offered_hz(self, t_s: float) -> float:
        return len(self.due_ns) / self.duration_s

    def times_ns(self, rng: np.random.Generator, duration_s: float) -> Integers:
        return self.due_ns

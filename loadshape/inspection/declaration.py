# What the recipe of a trace declares, held against the trace.
#
# Law: reading only. The recipe stands in the manifest as it was written, with the settings of the time; it is decoded
# as it was then and asked for its values: nothing here knows a process or a distribution. A trace that
# declares nothing, a converted or a derived one, is described and not judged.
#
#     arrivals     of first turns: those of the trace, of the classes that share them, of a class with its own
#     lengths      where they are drawn: prompts of first turns, answers
#     prefixes     share or hit rate, of first turns
#     weights      how many sessions each class got

"""Declaration: a recipe's claims about its trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.arrival import Arrival, superpose
from loadshape.errors import InputError
from loadshape.inspection.claim import Claim, claim_arrivals, claim_lengths, claim_share
from loadshape.inspection.traffic import read_due_s
from loadshape.length import Joint, Length
from loadshape.portrait import read_integers
from loadshape.prefix import TOLERANCE, PrefixTree
from loadshape.randomness import open_stream
from loadshape.recipe import Recipe, Traffic
from loadshape.reuse import Reuse, measure_reuse
from loadshape.sharing import measure_hits
from loadshape.stats import Integers
from loadshape.trace import Trace

Drawn = tuple[Integers | None, Integers | None]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The recipe that a trace was drawn from; without one, `silence` says why nothing is judged."""

    recipe: Recipe | None = None
    silence: str = ""

    @classmethod
    def of(cls, trace: Trace) -> Declaration:
        """Return what *trace* declares."""
        manifest = trace.manifest
        if manifest.derivation is not None:
            return cls(silence=f"nothing is declared: derived from other traces ({manifest.derivation.operation})")
        if manifest.recipe is None:
            made = "converted from a recording" if manifest.recording else "made without a recipe"
            return cls(silence=f"nothing is declared: {made}")
        try:
            return cls(Recipe.parse(manifest.recipe, "recipe", manifest.settings))
        except InputError as problem:
            return cls(silence=f"what is declared cannot be read any more: {problem}")

    @property
    def block_tokens(self) -> int | None:
        """The block size of the first prefix tree with a hit rate, None without one."""
        trees = (traffic.prefixes for traffic in self._list_classes())
        return next((tree.block_tokens for tree in trees if tree is not None and tree.hit_rate is not None), None)

    def list_claims(self, trace: Trace, reuse: Reuse | None = None) -> list[Claim]:
        """Return everything that the recipe says in numbers, with what came out; *reuse* of *trace*, if it is known."""
        if self.recipe is None:
            return []
        claims = [*self._claim_common(trace)]
        classes = self._list_classes()
        for traffic in classes:
            rows = _select(trace, [traffic.name] if len(classes) > 1 else None)
            label = f"{traffic.name}: " if len(classes) > 1 else ""
            if rows.requests.num_rows:
                known = reuse if rows is trace else None
                claims += [replace(claim, name=label + claim.name) for claim in _claim_class(traffic, rows, known)]
        return claims

    def _list_classes(self) -> tuple[Traffic, ...]:
        if self.recipe is None:
            return ()
        return self.recipe.classes if self.recipe.traffic is None else (self.recipe.traffic,)

    def _claim_common(self, trace: Trace) -> Iterator[Claim]:
        """What classes with weights have in common: their arrivals, and each its part of them."""
        assert self.recipe is not None, "declared"
        weights = {it.name: it.weight for it in self.recipe.classes if it.weight is not None}
        rows = _select(trace, list(weights))
        sessions = rows.requests.num_rows
        if not sessions:
            return
        if self.recipe.arrivals is not None:
            yield from _claim_process(_add_up(self.recipe.arrivals), rows)
        if len(weights) > 1:
            for name, weight in weights.items():
                found = pc.sum(pc.equal(rows.requests["kind"], name)).as_py() / sessions
                declared = weight / sum(weights.values())
                yield claim_share(f"{name}: part of the sessions", declared, found, trials=sessions)


def _claim_class(traffic: Traffic, rows: Trace, reuse: Reuse | None) -> Iterator[Claim]:
    if traffic.arrivals is not None:
        yield from _claim_process(_add_up(traffic.arrivals), rows)
    for place, name in enumerate(("input_tokens", "output_tokens")):
        if _draw_lengths(traffic, 1)[place] is None:
            continue

        def draw(n: int, place: int = place) -> Integers:
            drawn = _draw_lengths(traffic, n)[place]
            assert drawn is not None, "looked at before"
            return drawn

        yield from claim_lengths(name.replace("_", " "), read_integers(rows.requests[name]), draw)
    if traffic.prefixes is not None:
        tree = traffic.prefixes
        if reuse is None or reuse.block_tokens != tree.block_tokens:
            reuse = measure_reuse(rows, tree.block_tokens)
        yield from _claim_prefixes(tree, rows, reuse)


def _claim_process(process: Arrival, rows: Trace) -> Iterator[Claim]:
    if rows.manifest.loop.mode != "closed":
        yield from claim_arrivals(process, read_due_s(rows.requests), rows.manifest.duration_s)


def _claim_prefixes(tree: PrefixTree, rows: Trace, found: Reuse) -> Iterator[Claim]:
    """Tokens that are shared, or served; by the columns of the format where a chat template takes part."""
    stated, shared = (read_integers(rows.requests[name]) for name in ("input_tokens", "shared_tokens"))
    total, has_template = int(stated.sum()), found.input_tokens != int(stated.sum())
    if tree.hit_rate is not None:
        served = int(measure_hits(shared, stated, tree.block_tokens).sum()) if has_template else found.served_tokens
        name = f"hit rate in blocks of {tree.block_tokens} tokens"
        yield claim_share(name, tree.hit_rate, served / total, slack=TOLERANCE)
    if tree.share is not None:
        part = int(shared.sum()) if has_template else found.shared_tokens
        yield claim_share("share of tokens that came before", tree.share, part / total, slack=TOLERANCE)


def _draw_lengths(traffic: Traffic, n: int) -> Drawn:
    """Draw prompts and answers again as the recipe bounds them; None what it leaves to a fixture."""
    rng = open_stream(0, "inspection")
    inputs, outputs = None, None
    if isinstance(traffic.lengths, Joint):
        inputs, outputs = traffic.lengths.draw_pairs(rng, n)
    if isinstance(traffic.inputs, Length):
        inputs = traffic.inputs.draw(rng, n)
    if isinstance(traffic.outputs, Length):
        outputs = traffic.outputs.draw(rng, n)
    if outputs is not None:
        outputs = np.clip(outputs, 1, traffic.max_output_tokens)
    if traffic.context is None:
        return inputs, outputs
    if inputs is None or outputs is None:
        return None, None
    return traffic.context.fit(inputs, outputs)


def _add_up(arrivals: Arrival | tuple[Arrival, ...]) -> Arrival:
    return superpose(*arrivals) if isinstance(arrivals, tuple) else arrivals


def _select(trace: Trace, kinds: list[str] | None) -> Trace:
    """Return the first turns, of some classes or of all: rows to look at and no trace to play."""
    chosen = pc.equal(trace.requests["turn"], 0)
    if kinds is not None:
        chosen = pc.and_(chosen, pc.is_in(trace.requests["kind"], pa.array(kinds, pa.string())))
    if pc.all(chosen).as_py():
        return trace
    return replace(trace, requests=trace.requests.filter(chosen))

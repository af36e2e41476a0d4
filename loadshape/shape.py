# From values to a trace: arrivals x inputs x outputs x prefixes x sessions x the text of a fixture.
#
# Law: composing only. What a process, a length, a prefix tree or a session is, its own module says; here they are
# given their random streams and their draws are laid side by side. The same shape, fixture, duration and seed
# give the same tables, on every machine.
#
# Content comes in two ways. Without `inputs` and `lengths` a request is a prompt of the fixture as it is, and
# without `outputs` it wants as many tokens as the recorded answer has: pairs stay pairs. Prompts are taken in a
# random order, each once before any comes again; a second use is a prefix shared with the first, and
# `shared_tokens` says so. Otherwise a request is text of exactly the drawn length, composed of passages of the
# fixture or of neutral words, different from all others from its head on (passage.py). Shared prefixes stand before
# it either way. With `sessions` all this is said of first turns, and dialogue.py goes on from there.
#
# Every decision has a random stream of its own, see STREAMS, so that changing one leaves the others as they were.

"""Shape: what traffic looks like, before it is drawn; `Shape.trace` draws it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from loadshape.arrival import Arrival, measure_offered_hz
from loadshape.assembly import put_column
from loadshape.bounds import check_choice, check_count, check_number
from loadshape.content import Author, Content, Part
from loadshape.dialogue import Dialogue, Exchanges, Segments, compose_turns, find_starts, list_exchanges, quote_turns
from loadshape.envelope import Envelope
from loadshape.errors import RecipeError
from loadshape.layout import lay_tables, mark_patience, name_rows, recount, time_turns
from loadshape.length import Context, Joint, Length
from loadshape.material import Material, describe_fixture
from loadshape.patience import Patience
from loadshape.picture import Images
from loadshape.population import Population
from loadshape.portrait import measure_shared_tokens, measure_trace
from loadshape.prefix import PrefixTree
from loadshape.randomness import open_stream
from loadshape.retrieval import Retrieval
from loadshape.session import Sessions
from loadshape.stats import Integers
from loadshape.tokenizer import Estimate, Tokenizer
from loadshape.trace import APIS, RESERVED, Loop, Trace

STREAMS = (
    *("arrivals", "content", "passages", "prefix", "prefix.text", "documents", "documents.text"),
    *("lengths.inputs", "lengths.outputs", "lengths.pairs", "lengths.turns"),
    *("turns", "think", "answers", "images", "patience", "routing.model", "routing.adapter", "routing.tenant"),
)
ISOLATIONS = ("none", "slot")
SLOT_TOKENS = 8
MAX_DURATION_S = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Shape:
    """Arrivals x inputs x outputs x prefixes; a value, nothing is drawn until `trace`.

    `inputs` and `outputs` None leave both to the fixture's pairs; `lengths` draws both together. `max_output_tokens`
    caps what a request wants, `context` prompt and answer together. A closed `loop` has a `count` of sessions
    in place of arrivals. `params` are parameters of every request, sent as they are.
    """

    arrivals: Arrival | None = None
    inputs: Length | None = None
    outputs: Length | None = None
    prefixes: PrefixTree | None = None
    _: KW_ONLY
    lengths: Joint | None = None
    context: Context | None = None
    retrieval: Retrieval | None = None
    sessions: Sessions | None = None
    images: Images | None = None
    patience: Patience | None = None
    models: Population | None = None
    adapters: Population | None = None
    tenants: Population | None = None
    kind: str = "chat"
    api: str = "chat"
    token_ids: bool = False
    max_output_tokens: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    loop: Loop | None = None
    count: int | None = None
    isolation: str = "none"
    tokenizer: Tokenizer = field(default_factory=Estimate)

    def __post_init__(self) -> None:
        check_choice("api", self.api, APIS)
        check_choice("isolation", self.isolation, ISOLATIONS)
        if self.max_output_tokens is not None:
            check_count("max_output_tokens", self.max_output_tokens, remedy="leave it out for no limit")
        check_params(self.params)
        _check_together(self)

    @property
    def is_composed(self) -> bool:
        """Whether lengths are drawn and texts made to them, rather than quoted from the fixture."""
        return self.inputs is not None or self.lengths is not None

    @property
    def needs_fixture(self) -> bool:
        """Whether prompts or lengths are left to a fixture."""
        return not self.is_composed or (self.lengths is None and self.outputs is None)

    def trace(
        self, fixture: Material | None = None, *, duration_s: float, seed: int, name: str = "", recipe: str = ""
    ) -> Trace:
        """Draw the traffic of *duration_s* seconds. The same arguments give a trace of the same digest.

        Without a *fixture* texts are of neutral words. *recipe* is the text that this shape was decoded from, kept in
        the manifest. Raises RecipeError when the values contradict each other or the fixture has no prompts.
        """
        check_number("duration_s", duration_s, above=0, most=MAX_DURATION_S, remedy="write seconds, such as 300")
        loop = self.choose_loop()
        starts_ns = self._draw_starts(duration_s, seed)
        traffic = _Draft(self, fixture, len(starts_ns), seed)
        requests, segments = traffic.lay(starts_ns, loop)
        statistics: dict[str, Any] = {} if self.arrivals is None else {
            "offered_hz": measure_offered_hz(self.arrivals, duration_s)
        }  # fmt: skip
        statistics |= measure_trace(requests, duration_s, loop)
        if self.is_composed or self.prefixes is not None or self.sessions is not None:
            statistics["input_tokens_error"] = recount(requests, segments, traffic.author.envelope)
        return Trace.build(
            requests,
            segments,
            loop=loop,
            duration_s=float(duration_s),
            name=name,
            seed=seed,
            streams=STREAMS,
            recipe=recipe or None,
            fixture=describe_fixture(fixture),
            tokenizer=self.tokenizer.about,
            statistics=statistics,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def choose_loop(self) -> Loop:
        """Return the loop: the one that is given, else open, or partly open for sessions."""
        return self.loop or Loop("open" if self.sessions is None else "partly_open")

    def _draw_starts(self, duration_s: float, seed: int) -> Integers:
        if self.arrivals is None:
            if self.count is None:
                raise RecipeError("arrivals: expected a process, such as Poisson, found none; or a closed loop")
            return np.zeros(self.count, np.int64)
        starts_ns = self.arrivals.times_ns(open_stream(seed, "arrivals"), duration_s)
        if len(starts_ns) == 0:
            raise RecipeError(f"arrivals: none in {duration_s:g} s; lengthen the duration or raise the rate")
        return starts_ns


class _Draft:
    """One drawing of a shape: the texts that there are, and what is said, wanted and shared in every row."""

    def __init__(self, shape: Shape, fixture: Material | None, n: int, seed: int) -> None:
        self.shape, self.seed, self.n = shape, seed, n
        self.segments = Segments()
        self.told: list[Exchanges] = []  # what may be quoted: pairs, or conversations of them
        prompts = self._read(fixture)
        self.author = Author(prompts, shape.tokenizer, seed, Envelope.of(shape.tokenizer, shape.api))
        tenants = shape.tenants
        self.tenants = None if tenants is None else tenants.draw(open_stream(seed, "routing.tenant"), n)

    def lay(self, starts_ns: Integers, loop: Loop) -> tuple[pa.Table, pa.Table]:
        """Return the tables of sessions that begin at *starts_ns*."""
        shape, turns = self.shape, self._draw_turns()
        dialogue, output_tokens, shared = self._compose(turns) if shape.is_composed else self._quote(turns)
        if shape.sessions is not None and shape.context is not None:
            rows = dialogue.find_fitting(output_tokens, shape.context.tokens)
            dialogue, output_tokens = dialogue.keep(rows), output_tokens[rows]
        if shape.isolation == "slot":
            words = msgspec.json.encode(self.author.list_slot_words()).decode()
            dialogue = dialogue.lead_with(self.segments.enter("slot", words, SLOT_TOKENS), SLOT_TOKENS)
            shared = shared + SLOT_TOKENS * (np.arange(self.n) > 0)
        if shape.images is not None:
            dialogue = dialogue.show(self._draw_images(shape.images, len(output_tokens)))
        params = None
        if shape.params:
            params = self.segments.enter("json", msgspec.json.encode(shape.params, order="deterministic").decode(), 0)
        columns = self._place(dialogue, starts_ns, loop) | self._route(dialogue)
        columns |= {"output_tokens": output_tokens, "shared_tokens": dialogue.carry_shared(shared)}
        requests, segments = lay_tables(dialogue, self.segments, api=shape.api, params=params, columns=columns)
        if shape.sessions is not None:  # conversations that come again share more than their own history
            shared = np.maximum(columns["shared_tokens"], measure_shared_tokens(requests, segments))
            requests = put_column(requests, "shared_tokens", shared)
        return requests, segments

    def _read(self, fixture: Material | None) -> list[str]:
        """Find what may be quoted, and return the prompts that texts are made of: first questions."""
        shape = self.shape
        if fixture is None:
            if shape.needs_fixture:
                missing = "outputs" if shape.is_composed else "inputs"
                raise RecipeError(f"{missing}: expected lengths, since there is no fixture to take them from; name one")
            return []
        if shape.sessions is None or shape.is_composed:
            self.told = [[(prompt, answer)] for prompt, answer in fixture.prompts() if prompt]
        else:
            self.told = [found for conversation in fixture if (found := list_exchanges(conversation))]
        if not self.told:
            raise RecipeError("fixture: no prompt with an answer in it; make it of more conversations")
        return [exchanges[0][0] for exchanges in self.told]

    def _draw_turns(self) -> Integers:
        sessions, rng = self.shape.sessions, open_stream(self.seed, "turns")
        if sessions is None:
            return np.ones(self.n, np.int64)
        if self.shape.is_composed:
            return sessions.draw_turns(rng, self.n)
        available = np.array([len(self.told[row]) for row in self.author.choose(self.n).tolist()], np.int64)
        return sessions.draw_turns(rng, self.n, available)

    def _quote(self, turns: Integers) -> tuple[Dialogue, Integers, Integers]:
        """Return what is said, the tokens that are wanted, and those that first turns share: all of the fixture."""
        shape, chosen = self.shape, self.author.choose(self.n)
        content = self.author.quote(chosen, shape.prefixes, tenants=self._branches)
        told = [self.told[row] for row in chosen.tolist()]
        answers = [answer for some, count in zip(told, turns.tolist(), strict=True) for _, answer in some[:count]]
        output_tokens = self._draw_outputs(answers)
        dialogue = self._open(content)
        if shape.context is not None:
            first = find_starts(turns)
            inputs, output_tokens[first] = shape.context.fit(content.input_tokens, output_tokens[first])
            if (inputs < content.input_tokens).any():
                raise RecipeError("context.beyond: prompts of a fixture are quoted whole; write cut_outputs, or inputs")
        if shape.sessions is not None:
            live = output_tokens if shape.sessions.history == "live" else None
            dialogue = quote_turns(dialogue, turns, told, self.author, self.segments, live=live)
        return dialogue, output_tokens, content.shared_tokens

    def _compose(self, turns: Integers) -> tuple[Dialogue, Integers, Integers]:
        """Return the same, composed to lengths that are drawn."""
        shape, first = self.shape, find_starts(turns)
        inputs, output_tokens = self._draw_lengths(turns)
        if shape.context is not None:
            inputs[first], output_tokens[first] = shape.context.fit(inputs[first], output_tokens[first])
        spare = SLOT_TOKENS if shape.isolation == "slot" else 0
        content = self.author.compose(
            np.maximum(inputs[first] - spare, 1), shape.prefixes, retrieval=shape.retrieval, tenants=self._branches
        )
        dialogue = self._open(content)
        if shape.sessions is not None:
            live = shape.sessions.history == "live"
            dialogue = compose_turns(dialogue, turns, (inputs, output_tokens), self.author, self.segments, live=live)
        return dialogue, output_tokens, content.shared_tokens

    def _draw_lengths(self, turns: Integers) -> tuple[Integers, Integers]:
        """Return the tokens of the message and of the answer of every turn, all in the order of the rows."""
        shape, rows = self.shape, int(turns.sum())
        first, later = find_starts(turns), shape.inputs
        if shape.lengths is not None:
            inputs, outputs = shape.lengths.draw_pairs(open_stream(self.seed, "lengths.pairs"), rows)
            output_tokens = np.clip(outputs, 1, shape.max_output_tokens)
            inputs = inputs.copy()
        else:
            assert shape.inputs is not None, "composed"
            inputs = np.zeros(rows, np.int64)
            inputs[first] = shape.inputs.draw(open_stream(self.seed, "lengths.inputs"), self.n)
            chosen = self.author.choose(rows).tolist() if shape.outputs is None else []
            output_tokens = self._draw_outputs([self.told[row][0][1] for row in chosen], rows)
        if shape.sessions is not None:
            later = shape.sessions.inputs or later
            follows = np.delete(np.arange(rows), first)
            if later is not None and len(follows):
                inputs[follows] = later.draw(open_stream(self.seed, "lengths.turns"), len(follows))
        return inputs, output_tokens

    def _draw_outputs(self, answers: Sequence[str], rows: int | None = None) -> Integers:
        shape = self.shape
        if shape.outputs is None:
            distinct = list(dict.fromkeys(answers))
            counts = dict(zip(distinct, shape.tokenizer.count(distinct), strict=True))
            tokens = np.array([counts[answer] for answer in answers], np.int64)
        else:
            tokens = shape.outputs.draw(open_stream(self.seed, "lengths.outputs"), rows or len(answers))
        return np.clip(tokens, 1, shape.max_output_tokens)

    @property
    def _branches(self) -> Integers | None:
        """Which branch of the prefix tree each session takes: that of its tenant, where there are branches."""
        tree = self.shape.prefixes
        return self.tenants if tree is not None and tree.tenants > 1 else None

    def _open(self, content: Content) -> Dialogue:
        if not self.shape.token_ids:
            return Dialogue.of(content, self.segments.enter_texts(content.texts, content.text_tokens))
        numbers = [
            self.segments.enter("token_ids", None, len(ids), token_ids=tuple(ids))
            for ids in self.author.encode(content)
        ]
        return Dialogue.of(content, np.array(numbers, np.int64))

    def _draw_images(self, images: Images, rows: int) -> Part:
        counts, which = images.draw(open_stream(self.seed, "images"), rows)
        urls = images.draw_urls(open_stream(self.seed, "images.pixels"))
        numbers = np.array([self.segments.enter("image", url, 0) for url in urls], np.int64)
        return Part(numbers[which], counts, np.zeros_like(counts))

    def _place(self, dialogue: Dialogue, starts_ns: Integers, loop: Loop) -> dict[str, Any]:
        """Return when requests are due, or what they wait for."""
        think_ns = np.zeros(len(dialogue.turn), np.int64)
        if self.shape.sessions is not None:
            think_ns = self.shape.sessions.draw_think_ns(open_stream(self.seed, "think"), len(think_ns))
        return {**time_turns(dialogue, starts_ns, think_ns, loop), "kind": pa.repeat(self.shape.kind, len(think_ns))}

    def _route(self, dialogue: Dialogue) -> dict[str, Any]:
        """Return for whom requests are, what they ask for, and when their client gives up."""
        shape, columns = self.shape, dict[str, Any]()
        for column, names in (("model", shape.models), ("adapter", shape.adapters)):
            if names is not None:
                drawn = names.draw(open_stream(self.seed, f"routing.{column}"), self.n)
                columns[column] = name_rows(names.list_names(column), drawn[dialogue.session])
        if shape.tenants is not None and self.tenants is not None:
            columns["tenant"] = name_rows(shape.tenants.list_names("tenant"), self.tenants[dialogue.session])
        if shape.patience is not None:
            rows = len(dialogue.asked.counts)
            columns["patience"] = mark_patience(rows, *shape.patience.draw(open_stream(self.seed, "patience"), rows))
        return columns


def check_params(params: Mapping[str, Any]) -> None:
    """Raise RecipeError for a sampling parameter that is no number, or that the trace says elsewhere."""
    for key, value in params.items():
        if key in RESERVED:
            raise RecipeError(f"params.{key}: expected only what the trace does not say itself; set lengths by outputs")
        _check_finite(f"params.{key}", value)


def _check_finite(field: str, value: Any) -> None:
    """JSON has no nan and no infinity: they would be sent as null."""
    if isinstance(value, float):
        check_number(field, value)
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        _check_finite(f"{field}.{key}", part)


def _check_together(shape: Shape) -> None:
    """Raise RecipeError for values that are right one by one and impossible together."""
    for problem in (*_find_contradictions(shape), *_find_unfilled_blocks(shape.prefixes, shape.inputs)):
        raise RecipeError(problem)


def _find_contradictions(shape: Shape) -> Iterator[str]:
    is_closed = shape.loop is not None and shape.loop.mode == "closed"
    if is_closed and (shape.arrivals is not None or shape.count is None):
        yield "count: a closed loop has no arrivals; expected a count of sessions in their place"
    if shape.count is not None and not is_closed:
        yield "count: only a closed loop has a count of sessions; expected arrivals and a duration"
    if shape.lengths is not None and (shape.inputs is not None or shape.outputs is not None):
        yield "lengths: draws inputs and outputs together; expected no others beside it"
    if shape.retrieval is not None and not shape.is_composed:
        yield "retrieval: documents are part of a length; expected inputs or lengths"
    if shape.images is not None and shape.api != "chat":
        yield f"images: expected api chat, found {shape.api}; completions take no images"
    if shape.token_ids and (shape.api != "completions" or shape.sessions is not None or shape.isolation == "slot"):
        yield "token_ids: only completions take them, of one turn and without a slot; expected text"
    if shape.isolation == "slot" and shape.prefixes is not None and shape.prefixes.hit_rate is not None:
        yield "isolation: a slot moves the blocks of a hit rate; expected share, prefix_tokens, or cache_salt at replay"
    if shape.sessions is None:
        return
    if shape.sessions.turns is None and shape.is_composed:
        yield "sessions.turns: expected a number, since lengths are drawn and no conversation has any"
    if shape.sessions.history == "live" and shape.choose_loop().mode == "open":
        yield "sessions.history: live answers need turns that wait; expected a partly_open or a closed loop"


def _find_unfilled_blocks(tree: PrefixTree | None, inputs: Length | None) -> Iterator[str]:
    if tree is None:
        return
    level_tokens = tree.prefix_tokens // tree.depth if tree.prefix_tokens is not None else tree.block_tokens
    if level_tokens < tree.block_tokens:
        of_what = "the prefix" if tree.depth == 1 else f"each of its {tree.depth} levels"
        yield (
            f"prefixes.block_tokens: expected at most the {level_tokens} tokens of {of_what}, found "
            f"{tree.block_tokens}; what fills no block is never served: lower block_tokens or depth, or lengthen it"
        )
    longest = getattr(inputs, "tokens", getattr(inputs, "max_tokens", None))
    if tree.hit_rate is not None and longest is not None and longest <= tree.block_tokens:
        yield (
            f"prefixes.block_tokens: expected less than the {longest} tokens of the longest prompt, found "
            f"{tree.block_tokens}; such a prompt fills no block"
        )

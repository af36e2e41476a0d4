# From values to a trace: arrivals x inputs x outputs x prefixes x the text of a fixture.
#
# Law: composing only. What a process, a length or a prefix tree is, its own module says; here they are
# given their random streams and their draws are laid side by side in tables. The same shape, fixture,
# duration and seed give the same tables, on every machine.
#
# Content comes in two ways. Without `inputs` a request is a prompt of the fixture as it is, and without
# `outputs` it wants as many tokens as the recorded answer has: pairs stay pairs. Prompts are taken in a
# random order, each once before any comes again; a second use is a prefix shared with the first, and
# `shared_tokens` says so. With `inputs` a request is text of exactly the drawn length, composed of
# passages of the fixture, different from all others from its head on (passage.py). Either way shared
# prefixes stand before it, in the system message of a chat.
#
# Every decision has a random stream of its own, so that changing one leaves the others as they were:
#
#     arrivals           due times
#     content            which prompts, or which passages a prompt is composed of
#     passages           where passages are cut out of the fixture
#     lengths.inputs     prompt lengths
#     lengths.outputs    answer lengths
#     prefix             paths through the tree of shared prefixes
#     prefix.text        what its nodes say

"""Shape: what traffic looks like, before it is drawn; `Shape.trace` draws it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from loadshape.arrival import Arrival, measure_offered_hz
from loadshape.bounds import check_choice, check_count, check_number
from loadshape.content import Author, Content
from loadshape.conversation import ROLES
from loadshape.errors import RecipeError
from loadshape.length import Length
from loadshape.prefix import PrefixTree
from loadshape.randomness import open_stream
from loadshape.stats import Integers, dispersion, variation
from loadshape.tokenizer import Estimate, Tokenizer
from loadshape.trace import APIS, REQUESTS, RESERVED, SEGMENT_KINDS, SEGMENTS, Trace, enumerate_column, pack_messages
from loadshape.units import NS_PER_S

STREAMS = ("arrivals", "content", "passages", "lengths.inputs", "lengths.outputs", "prefix", "prefix.text")
MAX_DURATION_S = 366 * 86_400
WINDOWS_S = (0.1, 1.0, 10.0, 60.0)
CHECKED = 256  # finished prompts whose tokens are counted again


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


@dataclass(frozen=True, slots=True)
class Shape:
    """Arrivals x inputs x outputs x prefixes; a value, nothing is drawn until `trace`.

    `inputs` and `outputs` None leave both to the fixture's pairs. `max_output_tokens` caps what a request
    wants. `params` are sampling parameters of every request, sent as they are.
    """

    arrivals: Arrival
    inputs: Length | None = None
    outputs: Length | None = None
    prefixes: PrefixTree | None = None
    _: KW_ONLY
    kind: str = "chat"
    api: str = "chat"
    max_output_tokens: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer = field(default_factory=Estimate)

    def __post_init__(self) -> None:
        check_choice("api", self.api, APIS)
        if self.max_output_tokens is not None:
            check_count("max_output_tokens", self.max_output_tokens, remedy="leave it out for no limit")
        check_params(self.params)

    def trace(self, fixture: Material, *, duration_s: float, seed: int, name: str = "", recipe: str = "") -> Trace:
        """Draw the traffic of *duration_s* seconds. The same arguments give a trace of the same digest.

        *recipe* is the text that this shape was decoded from, kept in the manifest. Raises RecipeError when
        the values contradict each other or the fixture has no prompts.
        """
        check_number("duration_s", duration_s, above=0, most=MAX_DURATION_S, remedy="write seconds, such as 300")
        due_ns = self.arrivals.times_ns(open_stream(seed, "arrivals"), duration_s)
        if len(due_ns) == 0:
            raise RecipeError(f"arrivals: none in {duration_s:g} s; lengthen the duration or raise the rate")
        pairs = [(prompt, answer) for prompt, answer in fixture.prompts() if prompt]
        if not pairs:
            raise RecipeError("fixture: no prompt with an answer in it; make it of more conversations")
        author = Author([prompt for prompt, _ in pairs], self.tokenizer, seed)
        chosen = author.choose(len(due_ns))
        content = self._fill(author, chosen)
        output_tokens = self._draw_outputs([pairs[row][1] for row in chosen.tolist()], seed)
        return Trace.build(
            _lay_requests(self, due_ns, content, output_tokens),
            _lay_segments(self, content),
            duration_s=float(duration_s),
            name=name,
            seed=seed,
            streams=STREAMS,
            recipe=recipe or None,
            fixture=_describe(fixture),
            tokenizer=self.tokenizer.about,
            statistics=_measure(self, due_ns, duration_s, content, output_tokens),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _fill(self, author: Author, chosen: Integers) -> Content:
        if self.inputs is None:
            return author.quote(chosen, self.prefixes)
        tokens = self.inputs.draw(open_stream(author.seed, "lengths.inputs"), len(chosen))
        return author.compose(tokens, self.prefixes)

    def _draw_outputs(self, answers: list[str], seed: int) -> Integers:
        if self.outputs is None:
            distinct = list(dict.fromkeys(answers))
            counts = dict(zip(distinct, self.tokenizer.count(distinct), strict=True))
            tokens = np.array([counts[answer] for answer in answers], np.int64)
        else:
            tokens = self.outputs.draw(open_stream(seed, "lengths.outputs"), len(answers))
        return np.clip(tokens, 1, self.max_output_tokens)


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


def _lay_requests(shape: Shape, due_ns: Integers, content: Content, output_tokens: Integers) -> pa.Table:
    n = len(due_ns)
    number = np.arange(n)
    columns = {
        "request": number,
        "due_ns": due_ns,
        "session": number,
        "turn": np.zeros(n),
        "think_ns": np.zeros(n),
        "kind": pa.repeat(shape.kind, n),
        "api": _repeat_name(shape.api, APIS, n),
        "messages": _lay_messages(shape, content),
        "input_tokens": content.input_tokens,
        "output_tokens": output_tokens,
        "shared_tokens": content.shared_tokens,
        "params": np.full(n, len(content.texts)) if shape.params else None,
    }
    return pa.table([_fit(columns.get(field.name), field.type, n) for field in REQUESTS], schema=REQUESTS)


def _lay_messages(shape: Shape, content: Content) -> pa.ListArray:
    """A chat has the prefix in its system message; a completion has one text."""
    prefix, own = content.prefix, content.own
    counts = np.column_stack([prefix.counts, own.counts])
    starts = np.column_stack([np.cumsum(prefix.counts), len(prefix.segments) + np.cumsum(own.counts)]) - counts
    flat = np.repeat(starts.ravel(), counts.ravel()) + _count_up(counts.ravel())
    segments = np.r_[prefix.segments, own.segments][flat]
    if shape.api == "completions":
        counts = counts.sum(axis=1, keepdims=True)
    roles = np.tile([ROLES.index(role) for role in ("system", "user")[-counts.shape[1] :]], (len(counts), 1))
    there = counts > 0
    return pack_messages(there.sum(axis=1), roles[there], counts[there], segments)


def _lay_segments(shape: Shape, content: Content) -> pa.Table:
    texts, kinds = list(content.texts), ["text"] * len(content.texts)
    tokens = content.text_tokens
    if shape.params:
        texts.append(msgspec.json.encode(shape.params, order="deterministic").decode())
        kinds.append("json")
        tokens = np.r_[tokens, 0]
    columns = [enumerate_column(kinds, SEGMENT_KINDS), pa.array(texts, pa.large_string())]
    columns += [pa.nulls(len(texts), pa.list_(pa.int32())), pa.array(tokens, pa.uint32())]
    return pa.table(columns, schema=SEGMENTS)


def _fit(values: Any, kind: pa.DataType, n: int) -> pa.Array:
    if values is None:
        return pa.nulls(n, kind)
    return values if isinstance(values, pa.Array) else pa.array(values).cast(kind)


def _repeat_name(name: str, names: tuple[str, ...], n: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(names.index(name), pa.int8()), n), pa.array(names))


def _count_up(counts: Integers) -> Integers:
    """Return 0, 1, ..., counts[0] - 1, 0, 1, ..., counts[1] - 1, ..."""
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) - np.repeat(ends - counts, counts)


def _describe(fixture: Material) -> dict[str, Any]:
    """The fixture's name, what it was made from and how it was cleaned."""
    manifest = fixture.manifest
    policy = manifest.policy
    return {
        "digest": fixture.digest,
        "conversations": manifest.conversations,
        "provenance": msgspec.to_builtins(manifest.provenance),
        "policy": {"name": policy.name, "digest": policy.digest},
    }


def _measure(
    shape: Shape, due_ns: Integers, duration_s: float, content: Content, output_tokens: Integers
) -> dict[str, Any]:
    """What came out, beside what was asked."""
    due_s = due_ns / NS_PER_S
    inputs, shared = content.input_tokens, content.shared_tokens
    statistics = {
        "offered_hz": measure_offered_hz(shape.arrivals, duration_s),
        "rate_hz": len(due_ns) / duration_s,
        "gap_cv": variation(np.diff(due_s)),
        "dispersion": {f"{window:g} s": dispersion(due_s, window, duration_s=duration_s) for window in WINDOWS_S},
        "input_tokens": _summarize(inputs),
        "output_tokens": _summarize(output_tokens),
        "shared_share": float(shared.sum() / max(1, inputs.sum())),
        "distinct_prompts": int((shared < inputs).sum()),
    }
    if shape.inputs is not None or shape.prefixes is not None:
        statistics["input_tokens_error"] = _recount(shape, content)
    return statistics


def _summarize(tokens: Integers) -> dict[str, float]:
    p50, p95 = np.quantile(tokens, (0.5, 0.95), method="inverted_cdf")
    return {"mean": float(tokens.mean()), "p50": int(p50), "p95": int(p95), "max": int(tokens.max())}


def _recount(shape: Shape, content: Content) -> dict[str, float]:
    """Count finished prompts again: passages are to add up, and this says whether they do."""
    rows = np.unique(np.linspace(0, len(content.own.counts) - 1, CHECKED).astype(np.int64)).tolist()
    texts = [content.join_texts(part, rows) for part in (content.prefix, content.own)]
    if shape.api == "completions":  # one text, so there is one seam more
        texts = [[prefix + own for prefix, own in zip(*texts, strict=True)]]
    counted = np.sum([shape.tokenizer.count(part) for part in texts], axis=0)
    error = counted - content.input_tokens[rows]
    return {
        "prompts": len(rows),
        "exact": int((error == 0).sum()),
        "mean": float(error.mean()),
        "least": int(error.min()),
        "most": int(error.max()),
    }

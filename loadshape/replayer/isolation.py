# A run on a server that remembers: how the prompts of one run are kept apart from those of the run before.
#
# Law: decided once, before the first packet, and written down with the run. Prefix caches survive a run, so a trace
# that is played twice against one server measures the cache the second time. What makes a run's prompts its own is
# its name, 8 hex digits drawn for it; the traffic and its lengths are the same in every run.
#
#     cache_salt   a field of the request that vLLM mixes into the hash of the first block: same bytes, same tokens
#     slot         a segment at the very front of the prompts: 16 one-token words, one of which stands for each digit
#     none         what an earlier run left in the cache counts; recorded, and told in every report
#
# `auto` is cache_salt where every server says that it is vLLM, else slot where the trace has one, else none. Where
# runs are not kept apart, a slot is filled as if the run were named 00000000, the same in each.
#
# Source: vLLM, "Automatic Prefix Caching", cache isolation (cache_salt).

"""Isolation: the salt or the slot that keeps one run's prompts out of another's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.errors import InputError, TraceError
from loadshape.trace import Trace

KIND = "slot"
KEEPING = ("cache_salt", KIND)  # what keeps runs apart
WORDS = 16
DIGITS = 8
NO_RUN = "0" * DIGITS


def choose_isolation(asked: str, trace: Trace, servers: Sequence[dict[str, Any]]) -> str:
    """Return what is in force for *asked* (Settings.isolation) on servers that said this in the preflight.

    Raises InputError where a slot is asked for and the trace has none.
    """
    has_slot = bool(pc.any(pc.equal(trace.segments["kind"].cast(pa.string()), KIND)).as_py())
    if asked == "slot" and not has_slot:
        raise InputError(
            "isolation: slot needs a trace with a reserved slot, and this one has none; shape it with "
            'isolation = "slot" in the recipe, or use cache_salt (vLLM) or none'
        )
    if asked != "auto":
        return asked
    if servers and all(is_vllm(server) for server in servers):
        return "cache_salt"
    return "slot" if has_slot else "none"


def is_vllm(server: dict[str, Any]) -> bool:
    """Return whether a server's list of models says that vLLM owns them."""
    models = server.get("models")
    entries = models.get("data") if isinstance(models, dict) else None
    return any(isinstance(it, dict) and it.get("owned_by") == "vllm" for it in entries or ())


def choose_salt(isolation: str, run: str) -> dict[str, Any]:
    """Return the fields that every request of *run* gets."""
    return {"cache_salt": run} if isolation == "cache_salt" else {}


def choose_digits(isolation: str, run: str) -> str:
    """Return the digits that fill a slot in *run*."""
    return run if isolation == KIND else NO_RUN


def fill_slot(text: str | None, digits: str, *, place: int) -> str:
    """Return the words of *digits* by the list in *text*, a JSON array. Raises TraceError naming segment *place*."""
    try:
        words = msgspec.json.decode(text or "", type=list[str])
    except msgspec.DecodeError as problem:
        raise TraceError(f"segments.text: slot {place}: expected a JSON array of {WORDS} words: {problem}") from None
    if len(set(words)) != WORDS:
        raise TraceError(f"segments.text: slot {place}: expected {WORDS} different words, found {len(set(words))}")
    return "".join(words[int(digit, 16)] for digit in digits)

# What a comparison found, for a terminal and for a program.
#
# Law: the contract first (what was changed, and what was not), then every reading of both sides with the change, its
# interval and the decision, then the same requests paired, the shift of the distribution, and for what all of it
# holds. An effect is printed as people say it: -12.3 %, and for a share +0.4 points. Layout only.

"""Forms of a comparison: text and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from loadshape.comparison import Comparison, Pairing, Scaling, Shift
from loadshape.contract import Change
from loadshape.effect import Effect
from loadshape.interval import Interval
from loadshape.reading import show_value
from loadshape.report.document import describe_reading, encode
from loadshape.report.lines import align_rows, wrap_text
from loadshape.units import format_duration

_INDENT = " " * 4
_HEAD = ("", "before", "after", "change", "95 % interval", "decision")
_DECISIONS = ("better", "worse", "equivalent", "inconclusive", "unknown")
LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}


def write_text(comparison: Comparison) -> str:
    """Return the comparison as text."""
    sections = [
        [tell_headline(comparison)],
        ["Contract", *_write_changes(comparison.changes)],
        ["Readings", *align_rows([_HEAD, *map(list_cells, comparison.effects)])],
        *([["Scaling", *wrap_text(tell_scaling(comparison.scaling), _INDENT, "  ")]] if comparison.scaling else []),
        *([["Same requests", *map(_write_pairing, comparison.pairings)]] if comparison.pairings else []),
        *([["Shift", *_write_shifts(comparison)]] if any(comparison.shifts.values()) else []),
        ["Holds", *(line for text in comparison.conditions for line in wrap_text(text, _INDENT, "  "))],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def write_document(comparison: Comparison) -> str:
    """Return the comparison as JSON."""
    return encode(
        {
            "schema": "loadshape comparison",
            "version": 1,
            "headline": tell_headline(comparison),
            "before": [str(it.log.path) for it in comparison.before],
            "after": [str(it.log.path) for it in comparison.after],
            "by_runs": comparison.by_runs,
            "margin": comparison.margin,
            "changes": [
                {"subject": it.subject, "fact": it.fact, "before": it.before, "after": it.after}
                for it in comparison.changes
            ],
            "effects": [_describe(it) for it in comparison.effects],
            "scaling": comparison.scaling and comparison.scaling._asdict(),
            "pairings": [
                {"metric": it.metric, "pairs": it.pairs, "ratio": it.ratio, "improved": it.improved}
                | {"interval": it.interval and [it.interval.low, it.interval.high]}
                for it in comparison.pairings
            ],
            "shifts": {name: [it._asdict() for it in rows] for name, rows in comparison.shifts.items()},
            "conditions": list(comparison.conditions),
        }
    )


def show_size(size: float | None, *, is_share: bool) -> str:
    """Return an effect as people say it: "-12.3 %" of a ratio, "+0.4 pt" of a share."""
    if size is None or math.isnan(size):
        return "n/a"
    if math.isinf(size) or (size == 0 and not is_share):  # nothing to nought: an end that was not seen
        return "no bound"
    return f"{100 * size:+.2f} pt" if is_share else f"{100 * (size - 1):+.1f} %"


def tell_scaling(found: Scaling) -> str:
    """Return the scaling efficiency as a sentence, with what it takes to mean anything."""
    between = "" if found.interval is None else f" ({found.interval.low:.1%} to {found.interval.high:.1%})"
    return (
        f"{found.after_gpus:g} GPUs against {found.before_gpus:g}: {found.speedup:.2f} times the output tokens, an "
        f"efficiency of {found.efficiency:.1%}{between}; it says something only if the load filled both sides"
    )


def tell_headline(comparison: Comparison) -> str:
    """Return how many readings came to which decision, and what was changed."""
    counts = Counter(it.decision for it in comparison.effects)
    told = ", ".join(f"{counts[name]} {name}" for name in _DECISIONS if counts[name])
    changes = [it for it in comparison.changes if it.subject != "cost"]
    changed = str(changes[0]) if len(changes) == 1 else f"{len(changes)} changed facts"
    return f"{told}  ({changed if changes else 'no changed fact'})"


def _describe(effect: Effect) -> dict[str, Any]:
    return {
        "reading": effect.name,
        "decision": effect.decision,
        "size": effect.size,
        "kind": "difference" if effect.is_share else "ratio",
        "interval": effect.interval and [effect.interval.low, effect.interval.high],
        "before": describe_reading(effect.before),
        "after": describe_reading(effect.after),
    }


def list_cells(effect: Effect) -> tuple[str, ...]:
    """Return an effect as cells: its name, before, after, change, interval and decision."""
    metric, _, statistic = effect.name.partition(".")
    return (
        f"{LABELS.get(metric, metric)} {statistic}".rstrip(),
        *(show_value(it.value, it.unit) for it in (effect.before, effect.after)),
        show_size(effect.size, is_share=effect.is_share),
        _show_interval(effect.interval, is_share=effect.is_share),
        effect.decision,
    )


def _show_interval(interval: Interval | None, *, is_share: bool) -> str:
    if interval is None:
        return "-"
    return " to ".join(show_size(end, is_share=is_share) for end in (interval.low, interval.high))


def _write_changes(changes: Sequence[Change]) -> Iterator[str]:
    if not changes:
        yield "  no difference in traffic, model, server or client that the runs know of"
    for change in changes:
        yield from wrap_text(str(change), _INDENT, "  ")


def tell_pairing(pairing: Pairing) -> str:
    """Return what became of one and the same request, as a sentence without its subject."""
    between = _show_interval(pairing.interval, is_share=False)
    return (
        f"median change {show_size(pairing.ratio, is_share=False)} ({between}); "
        f"{pairing.improved:.0%} of {pairing.pairs:,} requests faster"
    )


def _write_pairing(pairing: Pairing) -> str:
    return f"  {LABELS[pairing.metric]:<6}{tell_pairing(pairing)}"


def _write_shifts(comparison: Comparison) -> Iterator[str]:
    for metric, rows in comparison.shifts.items():
        if rows:
            yield f"  {LABELS[metric]:<6}" + "   ".join(map(_show_shift, rows))


def _show_shift(shift: Shift) -> str:
    change = shift.after_s - shift.before_s
    sign = "+" if change >= 0 else "-"
    return f"p{100 * shift.q:g} {sign}{format_duration(abs(change))}"

# What is said about a trace, as sections of short texts and series of numbers, before anybody decides how they look.
#
# Law: numbers become text here, once, for the terminal and the page alike; a cell is "n/a" where nothing is known.
# Names that a trace brought (kinds, tenants) are cleaned of control characters; escaping for HTML is the page's.
# The order: what was declared and what came out, then arrivals, lengths, prefixes, load, and who asks.

"""Sections of an inspection: tables, notes and series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadshape.inspection.claim import Claim
from loadshape.inspection.load import Load
from loadshape.inspection.traffic import MOST_NAMES, QUANTILES, Arrivals, Histogram, Lengths, Sessions, Traffic
from loadshape.reuse import Reuse
from loadshape.stats import Floats, Integers
from loadshape.units import format_duration, format_rate

Row = tuple[str, ...]
_PARTS = (0.25, 0.5, 0.75, 0.9, 0.99)  # of what an infinite cache finds
_TEXT_LIMIT = 60


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers to draw: `y` at `x`, or in the bins between the bounds `x`, which is then one longer."""

    title: str
    x_title: str
    x: Floats
    y: Floats
    is_log: bool = False
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """Counts in cells: `rows` and `columns` are the lower bounds of theirs."""

    row_title: str
    column_title: str
    rows: Floats
    columns: Floats
    counts: Integers


@dataclass(frozen=True, slots=True)
class Section:
    """A title, a table (with a head, or of pairs), what can be drawn, and notes."""

    title: str
    rows: Sequence[Row] = ()
    head: Row = ()
    notes: Sequence[str] = ()
    series: Sequence[Series] = ()
    grid: Grid | None = None


def list_sections(
    traffic: Traffic, claims: Sequence[Claim], *, silence: str = "", kv_tokens: int | None = None
) -> list[Section]:
    """Return everything that there is to say; *silence* is why there are no claims, *kv_tokens* a server's capacity."""
    return [
        _say_claims(claims, silence),
        _say_arrivals(traffic.arrivals),
        *([_say_dispersion(traffic.arrivals)] if traffic.arrivals.count > 1 else []),
        _say_lengths(traffic.inputs, traffic.outputs),
        _say_joint(traffic),
        _say_reuse(traffic.reuse),
        *([_say_curve(traffic.reuse)] if len(traffic.reuse.distances) else []),
        _say_load(traffic.load, kv_tokens),
        _say_sessions(traffic.sessions),
        *(_say_names(role, names) for role, names in traffic.populations.items() if role != "kind" or len(names) > 1),
    ]


def list_head(traffic: Traffic) -> list[Row]:
    """Return what the trace is, in pairs."""
    manifest = traffic.trace.manifest
    made = manifest.recording or {}
    loop = manifest.loop.mode.replace("_", " ")
    slots = f" of {manifest.loop.slots} slots" if manifest.loop.slots else ""
    size = f"{manifest.requests:,} requests, {manifest.sessions:,} sessions, {format_duration(manifest.duration_s)}"
    rows: list[Row] = [
        ("trace", f"{_clean(manifest.name) or 'unnamed'}  {manifest.digest[:19]}"),
        ("size", f"{size}, {loop} loop{slots}"),
        *([("recorded", f"{_clean(str(made.get('format')))}, stamps in {made.get('time_unit')}")] if made else []),
        ("tokens", _clean(f"{manifest.tokenizer.get('name', 'unknown')}: {manifest.tokenizer.get('rule', '')}", 100)),
    ]
    if made.get("quantised"):
        rows.append(("stamps", f"in steps of {made.get('tick_s'):g} s: gaps and short windows show the steps"))
    return rows


def show_number(value: float | None, unit: str = "") -> str:
    """Return three or four digits, "n/a" for None; a share as a percentage where *unit* is "%"."""
    if value is None:
        return "n/a"
    if unit == "%":
        return f"{100 * value:.1f} %"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{4 if abs(value) >= 10 else 3}g}"
    return ("0" if text == "-0" else text) + unit


def _say_claims(claims: Sequence[Claim], silence: str) -> Section:
    title = "Declared and come out"
    known = [claim for claim in claims if claim.found is not None]
    if not known:
        return Section(title, notes=[silence or "nothing is declared that numbers can be held against"])
    rows = [
        (
            claim.name,
            *(show_number(value, claim.unit) if value is not None else "-" for value in (claim.declared, claim.found)),
            _show_range(claim),
            claim.verdict,
        )
        for claim in known
    ]
    judged = [claim for claim in known if claim.verdict != "not judged"]
    off = [claim.name for claim in judged if claim.verdict == "off"]
    told = f"{len(judged) - len(off)} of {len(judged)} as declared" + (f"; off: {', '.join(off)}" if off else "")
    notes = [told, "range: where 999 of 1000 draws lie, for each line alone; declared: what theory says, if it does"]
    return Section(title, rows, ("", "declared", "came out", "range", "verdict"), notes)


def _show_range(claim: Claim) -> str:
    if claim.low is None or claim.high is None:
        return "-"
    return f"{show_number(claim.low, claim.unit)} to {show_number(claim.high, claim.unit)}"


def _say_arrivals(found: Arrivals) -> Section:
    if found.rate_hz is None:
        return Section("Arrivals", notes=["none by the clock: whichever slot is free takes the next session"])
    scaled = "" if found.exponential_scaled is None else f" (scaled {show_number(found.exponential_scaled)})"
    middle_s = np.asarray((np.arange(len(found.slices_hz)) + 0.5) * found.slice_s, np.float64)
    rows = [
        ("rate", format_rate(found.rate_hz)),
        ("by slice", f"{_show_spread(found.slices_hz)}/s in slices of {format_duration(found.slice_s)}"),
        ("CV of gaps", show_number(found.gap_cv)),
        ("autocorrelation", f"{show_number(found.gap_autocorrelation)} between a gap and the next"),
        ("KS distance", f"{show_number(found.exponential_distance)} from exponential gaps{scaled}"),
        ("gaps of zero", f"{found.zero_gaps:,} of {max(found.count - 1, 0):,}"),
    ]
    series = [
        Series("requests/s", "s", middle_s, found.slices_hz),
        *([_draw_histogram("gaps", "s", found.gaps_s)] if found.count > 1 else []),
    ]
    return Section("Arrivals", rows, series=series)


def _say_dispersion(found: Arrivals) -> Section:
    head = ("window", *found.dispersion)
    note = "variance / mean of the counts in windows: 1 for Poisson at every length; n/a below ten windows"
    return Section("Dispersion", [("index", *map(show_number, found.dispersion.values()))], head, [note])


def _say_lengths(inputs: Lengths, outputs: Lengths) -> Section:
    head = ("tokens", "mean", *(f"p{100 * q:g}" for q in QUANTILES), "max")
    rows = [
        (name, *(f"{value:,.0f}" for value in (found.mean, *found.quantiles, found.longest)))
        for name, found in (("input", inputs), ("output", outputs))
    ]
    series = [
        _draw_histogram(name, "tokens", found.histogram) for name, found in (("input", inputs), ("output", outputs))
    ]
    return Section("Lengths", rows, head, series=series)


def _say_joint(traffic: Traffic) -> Section:
    rows, columns = (found.histogram.bounds[:-1] for found in (traffic.inputs, traffic.outputs))
    note = f"rank correlation (Spearman) {traffic.joint.rank_correlation:+.2f}"
    grid = Grid("input", "output", rows, columns, traffic.joint.counts)
    return Section("Input and output together", notes=[note], grid=grid)


def _say_reuse(found: Reuse) -> Section:
    p50, p90 = np.quantile(found.request_hits, (0.5, 0.9))
    none, every = (int((found.request_hits == part).sum()) for part in (0, 1))
    rows = [
        ("hit rate", f"{show_number(found.hit_rate, '%')} of {found.blocks:,} blocks, in a cache without limit"),
        (
            "served",
            f"{show_number(found.served_share, '%')} of {found.input_tokens:,} tokens: whole blocks, not the last",
        ),
        ("shared", f"{show_number(found.shared_share, '%')} of tokens, whatever the block"),
        ("by request", f"p50 {p50:.0%}, p90 {p90:.0%} of its blocks; {none:,} find nothing, {every:,} all"),
        ("longest", f"{found.longest_shared_tokens:,} tokens shared with an earlier request"),
        ("distinct", f"{found.distinct_prompts:,} of {found.requests:,} prompts, {found.distinct_blocks:,} blocks"),
        ("used once", f"{found.once_blocks:,} blocks"),
    ]
    note = "by what segments say and where; a chat template is not in the trace and not counted"
    return Section(f"Prefixes, in blocks of {found.block_tokens:,} tokens", rows, notes=[note])


def _say_curve(found: Reuse) -> Section:
    sizes = [found.find_cache_blocks(part) for part in _PARTS]
    rows = [
        ("blocks", *(f"{size:,}" for size in sizes)),
        ("tokens", *(f"{size * found.block_tokens:,}" for size in sizes)),
        ("hit rate", *(show_number(found.find_hit_rate(size), "%") for size in sizes)),
    ]
    curve = found.draw_curve()
    series = Series(
        "hit rate",
        "tokens",
        np.array([float(size * found.block_tokens) for size, _ in curve]),
        np.array([rate for _, rate in curve]),
        is_log=True,
    )
    note = "of a cache that forgets the least recently used block, one request after the other"
    head = ("of that", *(f"{part:.0%}" for part in _PARTS))
    return Section("Cache size", rows, head, [note], [series] if len(curve) > 1 else [])


def _say_load(found: Load, kv_tokens: int | None) -> Section:
    service = found.service
    rows = [
        ("in flight", f"{show_number(found.mean_in_flight)} on average, at most {found.peak_in_flight:,}"),
        ("KV tokens", f"{show_number(float(found.kv_tokens.mean()))} on average, at most {found.peak_kv_tokens:,}"),
    ]
    if kv_tokens is not None:
        share, since_s = found.find_excess(kv_tokens)
        told = f"{kv_tokens:,}: " + ("never exceeded" if since_s is None else f"exceeded {share:.1%} of the time")
        told += "" if since_s is None else f", first at {format_duration(since_s)}"
        rows.append(("capacity", f"{told}; the peak is {found.peak_kv_tokens / kv_tokens:.0%} of it"))
    ttft, tpot = format_duration(service.ttft_s), format_duration(service.tpot_s)
    notes = ["assumed, not measured: no queue, no cap, nobody gives up; what requests share is counted for each"]
    series = [
        Series("in flight", "s", found.at_s, found.in_flight),
        Series("KV tokens", "s", found.at_s, found.kv_tokens, limit=kv_tokens),
    ]
    return Section(f"Load, if TTFT were {ttft} and TPOT {tpot}", rows, notes=notes, series=series)


def _say_sessions(found: Sessions) -> Section:
    rows = [
        ("sessions", f"{found.count:,}, {found.alone:,} of one turn"),
        ("turns", f"{show_number(found.mean_turns)} a session, p50 {found.median_turns}, at most {found.most_turns:,}"),
    ]
    if found.think_p50_s is not None:
        pauses = f"p50 {format_duration(found.think_p50_s)}, p90 {format_duration(found.think_p90_s)}"
        rows.append(("pauses", f"{pauses} before a later turn"))
    return Section("Sessions", rows)


def _say_names(role: str, names: Mapping[str, int]) -> Section:
    total = sum(names.values())
    told = list(names.items())[:MOST_NAMES]
    rows = [(_clean(name) or "(none)", f"{count:,}", show_number(count / total, "%")) for name, count in told]
    left = total - sum(count for _, count in told)
    others = len(names) - len(told)
    rows += [(f"{others:,} others", f"{left:,}", show_number(left / total, "%"))] if others else []
    return Section(f"{role.capitalize()}s", rows, (role, "requests", "share"))


def _draw_histogram(title: str, unit: str, found: Histogram) -> Series:
    return Series(title, unit, found.bounds, found.counts.astype(np.float64), is_log=True)


def _show_spread(values: Floats) -> str:
    return f"{show_number(float(values.min()))} to {show_number(float(values.max()))}"


def _clean(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Return foreign text on one line, without control and formatting characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def shrink(values: Floats, width: int, *, by: str = "mean") -> Iterator[float]:
    """Yield at most *width* values: the mean, or the sum, of neighbours."""
    for part in np.array_split(values, min(width, len(values))):
        yield float(part.mean() if by == "mean" else part.sum())

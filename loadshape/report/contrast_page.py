# A comparison as one HTML file.
#
# Law: the contract first, then what was decided, then every effect as an interval against the margin of
# indifference, the shift of the distributions, and the same requests paired. A point without an interval is drawn
# hollow: nobody knows how sure it is. Layout only: what was changed, and whether that is sure, comparison.py and
# effect.py say.
#
# The plot of effects is a forest plot (S. Lewis and M. Clarke, "Forest plots: trying to see the wood and the trees",
# BMJ 322, 2001). Ratios are drawn on a logarithmic axis, where half and double are equally far from no change;
# effects that leave the plot end in an arrow-less line at its edge, and the table has their numbers.

"""HTML form of comparisons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from loadshape.comparison import Comparison, pair_changes
from loadshape.effect import Effect
from loadshape.interval import Interval
from loadshape.reading import draw_sample
from loadshape.report import contrast
from loadshape.report.figure import (
    QUARTERS,
    SMALLEST_S,
    Figure,
    Mark,
    count_decades,
    draw_line,
    mark_value,
    scale_time,
    shade_range,
    style_line,
)
from loadshape.report.skeleton import (
    explain_label,
    write_figures,
    write_folded,
    write_page,
    write_pairs,
    write_section,
    write_texts,
)
from loadshape.report.tables import clean_text
from loadshape.stats import Floats
from loadshape.summary import Summary

_COLORS = {"better": "--good", "worse": "--bad", "equivalent": "--ok", "inconclusive": "--muted", "unknown": "--muted"}
_FORESTS = 2  # figures that belong above the table of effects
_DRAWN = 200_000  # values from which a curve is drawn
_WIDEST = math.log(8.0)  # a plot of ratios shows at most an eighth to eight times


def write_comparison(comparison: Comparison) -> str:
    """Return the comparison as one page. Raises MissingExtra when plotly is not installed."""
    figures = draw_comparison(comparison)
    headline, places, scaling = contrast.tell_headline(comparison), write_figures(figures), comparison.scaling
    sections = [
        "<h1>Comparison</h1>",
        f"<p class='lead'>{escape(_name_sides(comparison))}</p>",
        f'<section class="verdict">{_write_decisions(comparison)}</section>',
        write_section("Contract: what was changed", _write_changes(comparison)),
        *places[:_FORESTS],
        write_section("Effects", _write_effects(comparison.effects)),
        write_section("Scaling", f"<p>{escape(contrast.tell_scaling(scaling))}</p>" if scaling else ""),
        *places[_FORESTS:],
        write_section("For what this holds", _write_items(comparison.conditions)),
        write_folded("Runs", write_pairs(_list_runs(comparison))),
        "<footer>This file needs no network.</footer>",
    ]
    return write_page(f"Comparison: {headline}", sections, figures)


def draw_comparison(comparison: Comparison) -> list[Figure]:
    """Return the figures of a comparison, without those that would be empty."""
    shares, ratios = ([it for it in comparison.effects if it.is_share is of] for of in (True, False))
    figures = [
        _draw_ratios(ratios, comparison.margin),
        _draw_shares(shares, comparison.margin),
        _draw_shifts(comparison),
        *(_draw_distributions(comparison, name) for name in ("ttft", "e2e")),
        _draw_pairings(comparison),
    ]
    return [figure for figure in figures if figure.data]


def _draw_ratios(effects: Sequence[Effect], margin: float) -> Figure:
    caption = (
        "The change of every reading, after against before, with its 95 % interval. Shaded: the margin of "
        "indifference. Better or worse is what lies beyond it altogether; equivalent what lies within; a hollow mark "
        "has no interval."
    )
    known = [it for it in effects if it.size and 0 < it.size < math.inf]
    reach = max((abs(math.log(value)) for it in known for value in _list_ends(it) if 0 < value < math.inf), default=0.0)
    reach = min(max(1.15 * reach, 3 * math.log1p(margin)), _WIDEST)
    layout = _lay_forest(known) | {
        "xaxis": _scale_ratios("change", reach),
        "shapes": [shade_range(1 / (1 + margin), 1 + margin), mark_value(1.0)],
    }
    return Figure("Effects against the margin", caption, _draw_forest(known), layout)


def _draw_shares(effects: Sequence[Effect], margin: float) -> Figure:
    caption = "The same of shares, in points of a hundred. Shaded: a fifth of the margin."
    known = [it for it in effects if it.size is not None]
    layout = _lay_forest(known) | {
        "xaxis": {"title": {"text": "change"}, "tickformat": "+.2~%", "nticks": 7},
        "shapes": [shade_range(-margin / 5, margin / 5), mark_value(0.0)],
    }
    return Figure("Effects on shares", caption, _draw_forest(known), layout)


def _draw_forest(effects: Sequence[Effect]) -> list[Mark]:
    """One group of marks a decision, so that the legend names them."""
    return [
        _draw_group(decision, group)
        for decision in _COLORS
        if (group := [it for it in effects if it.decision == decision])
    ]


def _draw_group(decision: str, effects: Sequence[Effect]) -> Mark:
    sizes = [it.size or 0.0 for it in effects]
    ends = [_bound_ends(it) for it in effects]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [_finite(high - size) for size, (_, high) in zip(sizes, ends, strict=True)],
        "arrayminus": [_finite(size - low) for size, (low, _) in zip(sizes, ends, strict=True)],
        "thickness": 2,
        "width": 4,
        "color": _COLORS[decision],
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "name": decision,
        "x": sizes,
        "y": [contrast.list_cells(it)[0] for it in effects],
        "error_x": bars,
        "customdata": [", 95 %: ".join(contrast.list_cells(it)[3:5]) for it in effects],
        "hovertemplate": "%{y}: %{customdata}<extra></extra>",
        "marker": {
            "color": _COLORS[decision],
            "size": 9,
            "symbol": ["circle" if it.interval else "circle-open" for it in effects],
        },
    }


def _list_ends(effect: Effect) -> tuple[float, ...]:
    return (effect.size or 0.0, *_bound_ends(effect))


def _bound_ends(effect: Effect) -> tuple[float, float]:
    sure = effect.interval or Interval(effect.size or 0.0, effect.size or 0.0, 0.0)
    floor = -1.0 if effect.is_share else math.exp(-2 * _WIDEST)  # what leaves the plot leaves it visibly
    return max(sure.low, floor), min(sure.high, 1.0 if effect.is_share else math.exp(2 * _WIDEST))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) and value > 0 else None  # none is drawn, not one of no length


def _lay_forest(effects: Sequence[Effect]) -> dict[str, Any]:
    names = [contrast.list_cells(it)[0] for it in effects]
    order = {"type": "category", "categoryorder": "array", "categoryarray": names[::-1]}
    return {
        "height": 130 + 26 * len(effects),
        "yaxis": order | {"range": [-0.7, len(effects) - 0.3]},
        "showlegend": True,
    }


def _scale_ratios(title: str, reach: float) -> dict[str, Any]:
    """A logarithmic axis from 1 / e^reach to e^reach, with ticks at round percentages, or at halves and doubles."""
    step = next((it for it in (0.01, 0.02, 0.05, 0.1) if math.expm1(reach) <= 5.5 * it), None)
    at = [1 + step * place for place in range(-5, 6)] if step else [2.0**power for power in range(-3, 4)]
    ticks = {"tickmode": "array", "tickvals": at, "ticktext": [f"{100 * (value - 1):+.3g} %" for value in at]}
    ends = [-reach / math.log(10), reach / math.log(10)]
    return {"title": {"text": title}, "type": "log", "range": ends} | ticks


def _draw_shifts(comparison: Comparison) -> Figure:
    caption = (
        "Where in the distribution the change lies: the change of each percentile. A line that is level moved as a "
        "whole; one that leaves the margin at its right end alone is a matter of the tail."
    )
    data, looks = [], {"ttft": "--ok", "itl": "--warn", "e2e": "--good"}
    for metric, rows in comparison.shifts.items():
        kept = [it for it in rows if it.before_s > 0]
        if kept:
            style = style_line(looks.get(metric, "--ink")) | {"mode": "lines+markers", "hovertemplate": "%{y:+.1%}"}
            change = [it.after_s / it.before_s - 1 for it in kept]
            data.append(draw_line(range(len(kept)), change, contrast.LABELS[metric], style))
            data[-1]["x"] = [f"p{100 * it.q:g}" for it in kept]
    margin = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "layer": "below", "fillcolor": "--shade"}
    within = {"y0": 1 / (1 + comparison.margin) - 1, "y1": comparison.margin, "line": {"width": 0}}
    layout = {
        "height": 340,
        "xaxis": {"type": "category", "title": {"text": "percentile"}},
        "yaxis": {"title": {"text": "change"}, "tickformat": "+.0%"},
        "shapes": [margin | within, mark_value(0.0, across=True)],
    }
    return Figure("Shift", caption, data, layout)


def _draw_distributions(comparison: Comparison, metric: str) -> Figure:
    label, ladder = contrast.LABELS[metric], np.r_[np.linspace(0, 0.99, 100), 0.995, 0.999, 1.0]
    caption = f"Cumulative share of requests by {label}; one line a run."
    data: list[Mark] = []
    ends: list[float] = []
    sides = (("before", comparison.before, "--muted", "dot"), ("after", comparison.after, "--ok", "solid"))
    for name, runs, color, dash in sides:
        samples = [values for it in runs if len(values := _draw_values(it, metric))]
        ends += [end for values in samples for end in (float(values.min()), float(values.max()))]
        style = style_line(color, dash) | {"legendgroup": name, "hovertemplate": "%{x:.3s}s: %{y:.1%}"}
        data += [
            draw_line(np.maximum(np.quantile(values, ladder), SMALLEST_S), ladder, name, style | {"showlegend": not at})
            for at, values in enumerate(samples)
        ]
    layout = {
        "height": 340,
        "xaxis": scale_time(label, decades=count_decades(ends)),
        "yaxis": {"title": {"text": "share of requests"}, "range": [0, 1.02]} | QUARTERS,
    }
    return Figure(f"Distribution of {label}, before and after", caption, data, layout, metric)


def _draw_values(summary: Summary, metric: str) -> Floats:
    values = draw_sample(summary, metric)
    return values[:: 1 + len(values) // _DRAWN]


def _draw_pairings(comparison: Comparison) -> Figure:
    data, ladder, looks = [], np.linspace(0, 1, 201), {"ttft": "--ok", "tpot": "--warn", "e2e": "--good"}
    told, reach = [], 2 * math.log1p(comparison.margin)
    for it in comparison.pairings:
        change = np.exp(pair_changes(comparison.before, comparison.after, it.metric))
        style = style_line(looks[it.metric]) | {"hovertemplate": "at most %{x:.2f} times: %{y:.0%} of requests"}
        data.append(draw_line(np.quantile(change, ladder), ladder, contrast.LABELS[it.metric], style))
        reach = max(reach, *np.abs(np.log(np.quantile(change, (0.01, 0.99)))))
        told.append(f"{contrast.LABELS[it.metric]}: {contrast.tell_pairing(it)}")
    layout = {
        "height": 340,
        "xaxis": _scale_ratios("change of one request", min(float(reach), _WIDEST)),
        "yaxis": {"title": {"text": "share of requests"}, "range": [0, 1.02]} | QUARTERS,
        "shapes": [shade_range(1 / (1 + comparison.margin), 1 + comparison.margin), mark_value(1.0)],
    }
    return Figure("The same requests, before and after", f"{'. '.join(told)}.", data, layout)


def _write_changes(comparison: Comparison) -> str:
    rows = [
        tuple(clean_text("not known" if value is None else str(value)) for value in (it.name, it.before, it.after))
        for it in comparison.changes
    ]
    none = "<p>No difference in traffic, model, server or client that the runs know of.</p>"
    return write_texts(("fact", "before", "after"), rows) or none


def _write_effects(effects: Sequence[Effect]) -> str:
    names = ("", "before", "after", "change", "95 % interval", "decision")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = "\n".join(
        f"<tr><th>{explain_label(contrast.list_cells(it)[0], it.name.partition('.')[0])}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in contrast.list_cells(it)[1:-1])
        + f'<td><span class="decision {it.decision}">{it.decision}</span></td></tr>'
        for it in effects
    )
    return (
        '<div class="scroll"><table class="numbers">'
        f"<thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table></div>"
    )


def _write_items(texts: Sequence[str]) -> str:
    items = "\n".join(f"<li>{escape(clean_text(text, 400))}</li>" for text in texts)
    return f"<ul>\n{items}\n</ul>" if items else ""


def _list_runs(comparison: Comparison) -> list[tuple[str, str]]:
    sides = (("before", comparison.before), ("after", comparison.after))
    return [(name, f"{clean_text(str(it.log.path))}: {it.verdict.status}") for name, runs in sides for it in runs]


def _name_sides(comparison: Comparison) -> str:
    paths = [
        side[0].log.path.parent if len(side) > 1 else side[0].log.path for side in (comparison.before, comparison.after)
    ]
    names = [clean_text(it.name) for it in paths]
    runs = f"{len(comparison.before)} and {len(comparison.after)} runs"
    return f"{names[0]} before, {names[1]} after; {runs}"


def _write_decisions(comparison: Comparison) -> str:
    counts = Counter(it.decision for it in comparison.effects)
    return " ".join(f'<span class="decision {name}">{counts[name]} {name}</span>' for name in _COLORS if counts[name])

# What a report says, as rows of short texts, before anybody decides how they look.
#
# Law: numbers become text here, once, for the terminal and the page alike: a cell is "n/a" where the
# summary has None, never an empty or a made-up number. Every text that a server or a file brought is
# cleaned of control characters (an error message may hold a terminal escape or a bidi override) and cut;
# escaping for HTML is the page's business.

"""Rows of a report: conditions, latencies, rates and outcomes, as cells of text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from loadshape.log import Log, Run
from loadshape.metrics import DEFINITIONS, STALL
from loadshape.reading import Reading, draw_sample, show_interval, take_reading
from loadshape.stats import count_floor
from loadshape.summary import Distribution, Objectives, Summary
from loadshape.units import format_duration, format_rate
from loadshape.validity.arrivals import Arrivals
from loadshape.validity.finding import show_number, show_share
from loadshape.validity.host import measure_ceiling_share
from loadshape.validity.sending import count_resent

TARGET_HEAD = ("", "requests", "ok", "TTFT p50", "TTFT p99", "E2E p50", "E2E p99", "output")
LATENCY_HEAD = ("", "p50", "p95", "p99", "max", "count")
SURE_HEAD = ("", "", "95 % interval", "worth")
SURE = ("ttft", "tpot", "e2e")  # whose percentiles get an interval
_LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "icl": "ICL",
    "longest_gap": "longest gap",
    "e2e": "E2E",
    "ttft_with_failures": "TTFT, failed = inf",
    "e2e_with_failures": "E2E, failed = inf",
    "service_ttft": "TTFT from sent",
    "service_e2e": "E2E from sent",
    "lateness": "lateness",
    "connect": "connect",
}
_TEXT_LIMIT = 160


class Row(NamedTuple):
    """A line of a table: the metric's name in DEFINITIONS (or ""), its label, its cells."""

    metric: str
    label: str
    cells: tuple[str, ...]


def clean_text(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Return foreign text on one line, without control and formatting characters, at most *limit* long."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def list_conditions(summary: Summary) -> list[tuple[str, str]]:
    """Return (label, text) of everything that the numbers depend on."""
    run, manifest = summary.log.run, summary.log.manifest
    when = datetime.fromtimestamp(run.epoch_realtime_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    rows = [
        ("trace", f"{clean_text(run.trace_name) or 'unnamed'}  {shorten_digest(run.trace_digest)}"),
        *(zip(_label_targets(len(run.targets)), map(_describe_target, run.targets), strict=True)),
        ("traffic", f"{_describe_loop(run.loop, run.settings)}; {_describe_rates(summary)}"),
        *([("arrivals", _describe_arrivals(summary.arrivals))] if summary.arrivals else []),
        *([("isolation", _describe_isolation(run))] if "isolation" in run.settings else []),
        ("state", clean_text(describe_state(summary.log))),
        *_list_declared(summary.log),
        ("window", _describe_window(summary)),
        ("instrument", f"{_count_workers(run)}, {clean_text(run.pacing)} pacing"),
        ("stamps", _describe_stamps(summary)),
        *_describe_load(summary),
        ("run", f"{clean_text(run.run)} on {when}, {clean_text(manifest.ended)}, {clean_text(run.tool)}"),
    ]
    changed = ", ".join(f"{name} {value:g}" for name, value in summary.verdict.limits.changed.items())
    rows += [("limits", f"of the verdict, not the default ones: {changed}")] if changed else []
    return rows + [("note", clean_text(note)) for note in manifest.notes]


def describe_state(log: Log) -> str:
    """Return what is known of the server's state before the run: as declared, and whether its cache was reset."""
    state = (log.environment.get("declared") or {}).get("cache_state")
    resets = [note for note in log.manifest.notes if note.startswith("reset_cache")]
    told = [*([f"{state}, as declared"] if state else []), *resets]
    return "; ".join(told) or "of the server not declared: cold, warm or with any cache (cache_state, reset_cache)"


def _list_declared(log: Log) -> list[tuple[str, str]]:
    facts = {key: it for key, it in (log.environment.get("declared") or {}).items() if key != "cache_state"}
    return [("declared", clean_text(", ".join(f"{key} {value}" for key, value in facts.items())))] if facts else []


def list_latencies(summary: Summary) -> list[Row]:
    """Return the latency table; rows that charge failures only where there are any."""
    failed = summary.ttft_with_failures.count != summary.ttft.count
    chosen = {name: label for name, label in _LATENCIES.items() if failed or not name.endswith("_with_failures")}
    if not summary.connect.count:
        del chosen["connect"]
    return [Row(name, label, _spread(getattr(summary, name))) for name, label in chosen.items()]


def list_targets(summary: Summary) -> list[Row]:
    """Return a row for each of several targets: outcomes of the whole run, latencies and tokens/s of the window."""
    return [
        Row(
            "",
            f"target {it.target}",
            (
                *(f"{count:,}" for count in (it.requests, it.outcomes.get("ok", 0))),
                *(format_duration(value) for of in (it.ttft, it.e2e) for value in (of.p50_s, of.p99_s)),
                format_rate(it.output_tokens_per_s, "tok"),
            ),
        )
        for it in summary.by_target
    ]


def list_rates(summary: Summary) -> list[Row]:
    """Return throughputs and goodput; those of the whole run beside those of a window that is not the whole."""
    rates, tokens = summary.throughput, "as the server counted them"
    if rates.counted < rates.completed:
        tokens = f"the server counted them for {rates.counted:,} of {rates.completed:,} requests"
    met = "n/a" if summary.attainment is None else show_share(summary.attainment)
    good = f"{describe_objectives(summary.objectives)}; met by {met}"
    rows = [
        _rate(summary, "request_hz", "requests", "ok and done inside the window"),
        _rate(summary, "input_tokens_per_s", "input tokens", tokens),
        *_list_cached(summary),
        _rate(summary, "output_tokens_per_s", "output tokens", tokens),
        _rate(summary, "total_tokens_per_s", "total tokens", tokens),
        _rate(summary, "user_tokens_per_s", "tokens a user", "after the first one, of the requests due in the window"),
        Row("goodput_hz", "goodput", (format_rate(summary.good_hz), good)),
        Row(
            "goodput_tokens_per_s", "goodput, tokens", (format_rate(summary.goodput_tokens_per_s), "of these requests")
        ),
    ]
    if summary.stalled is not None:
        told = f"of the time of answers, in gaps over {STALL:g} x the median one"
        rows.append(Row("stalled", "stalled", (show_share(summary.stalled), told)))
    return rows


def _rate(summary: Summary, name: str, label: str, told: str) -> Row:
    rate, of_run = (getattr(it, name) for it in (summary.throughput, summary.throughput_of_run))
    whole = "" if summary.throughput_of_run is summary.throughput else f"{format_rate(of_run)} over the whole run; "
    return Row(name, label, (format_rate(rate), whole + told))


def list_sureness(summary: Summary) -> list[Row]:
    """Return the percentiles that have an interval, and how many independent values each of them is worth."""
    rows = []
    for it in take_sure_readings(summary):
        metric, _, statistic = it.name.partition(".")
        rows.append(Row(metric, f"{_LATENCIES[metric]} {statistic}", (str(it), show_interval(it), _worth(it))))
    return rows


def take_sure_readings(summary: Summary) -> list[Reading]:
    """Return the percentiles of SURE that have an interval."""
    samples = {name: draw_sample(summary, name) for name in SURE}
    found = [take_reading(summary, f"{name}.{of}", samples[name]) for name in SURE for of in ("p50", "p95", "p99")]
    return [it for it in found if it.interval is not None]


def _worth(reading: Reading) -> str:
    return f"{reading.interval.effective:,.0f} of {reading.count:,}" if reading.interval else ""


def _list_cached(summary: Summary) -> Iterator[Row]:
    """Rows that only some servers have something to say to."""
    rates = summary.throughput
    if rates.cached_share is not None:
        told = f"without the {show_share(rates.cached_share)} from the server's prefix cache"
        yield _rate(summary, "uncached_input_tokens_per_s", "computed input", told)
    if rates.reasoning_tokens_per_s:
        yield _rate(summary, "reasoning_tokens_per_s", "reasoning tokens", "of the output")


def list_outcomes(summary: Summary) -> list[Row]:
    """Return each outcome that occurred with its count, its share of the planned requests and what was said."""
    said = {it.outcome: it.messages for it in summary.failures}
    planned = max(summary.planned, 1)
    return [
        Row("", name, (f"{count:,}", show_share(count / planned), *(_say(*pair) for pair in said.get(name, ()))))
        for name, count in summary.outcomes.items()
    ]


def list_notes(summary: Summary) -> Iterator[str]:
    """Yield the footnotes that the tables need."""
    shown = [getattr(summary, name) for name in _LATENCIES]
    if any(None in (it.p50_s, it.p95_s, it.p99_s) for it in shown):
        floors = ", ".join(f"p{q * 100:g} {count_floor(q)}" for q in (0.5, 0.95, 0.99))
        yield f"n/a: too few values for this percentile (needed: {floors}), or none at all."
    if summary.intervals.reads:
        shared = summary.intervals.shared
        yield f"ITL spreads a gap over the tokens of its read: {summary.intervals.token_rule}."
        if shared:
            share = f"{shared:,} of {summary.intervals.reads:,} reads ({show_share(shared / summary.intervals.reads)})"
            yield f"{share} held several token events: their ICL is an interval."
    if resent := count_resent(summary.log):
        yield (
            f"{_count(resent, 'request')} sent twice, since the connection of the first time was stale: a server may "
            "count them twice. Their times begin with the first."
        )
    if summary.throughput.counted == 0 and summary.throughput.completed:
        yield "TPOT and tokens/s are n/a: the server did not count tokens (no usage in its answers)."


def describe_objectives(objectives: Objectives) -> str:
    """Return the objectives as "TTFT <= 1.00 s, TPOT <= 50.0 ms"."""
    limits = msgspec.structs.asdict(objectives)
    told = [f"{name.removesuffix('_s').upper()} <= {format_duration(s)}" for name, s in limits.items() if s is not None]
    return ", ".join(told) or "no objective"


def shorten_digest(digest: str) -> str:
    """Return enough of a digest to recognize it."""
    kind, _, value = clean_text(digest).partition(":")
    return f"{kind}:{value[:12]}" if value else kind


def list_definitions() -> list[tuple[str, str, str]]:
    """Return (name, formula with unit, rows and explanation) of every metric."""
    return [
        (name, f"{it.formula}  [{it.unit}]", f"Over {it.rows}. {it.explanation}") for name, it in DEFINITIONS.items()
    ]


def _spread(found: Distribution) -> tuple[str, ...]:
    cells = (format_duration(value) for value in (found.p50_s, found.p95_s, found.p99_s, found.max_s))
    return (*cells, f"{found.count:,}")


def _say(text: str, count: int) -> str:
    return f"{count:,} x {clean_text(text)}"


def _label_targets(count: int) -> list[str]:
    return ["target"] if count == 1 else [f"target {number}" for number in range(count)]


def _describe_target(target: dict[str, Any]) -> str:
    url, model, proxy = clean_text(str(target.get("url", "not recorded"))), target.get("model"), target.get("proxy")
    told = [url, *([f"model {clean_text(str(model))}"] if model else [])]
    if proxy:
        told.append(f"through the proxy {clean_text(str(proxy.get('url')))}")
    if (target.get("tls") or {}).get("verify") is False:
        told.append("certificate not verified")
    return ", ".join(told)


def _describe_loop(loop: dict[str, Any], settings: dict[str, Any]) -> str:
    mode = clean_text(str(loop.get("mode", "open"))).replace("_", " ")
    limits = [
        f"{loop[name]} {word}" for name, word in (("slots", "slots"), ("cap", "at most in flight")) if loop.get(name)
    ]
    ends = {"requests": "the first {:,} requests", "duration_s": "to end after {:g} s"}
    limits += [told.format(settings[name]) for name, told in ends.items() if settings.get(name)]
    asked = " as set for this run" if settings.get("slots") or settings.get("cap") else ""
    return ", ".join([f"{mode} loop{asked}", *limits])


def _describe_rates(summary: Summary) -> str:
    rates = summary.throughput
    return (
        f"{format_rate(rates.offered_hz, 'requests')} offered, {format_rate(rates.achieved_hz)} begun"
        f"{_describe_slices(summary)}; {summary.planned:,} planned"
    )


def _describe_slices(summary: Summary) -> str:
    known = [it for it in summary.slices if it.offered_hz > 0]
    if len(known) < 2:
        return ""
    worst = max(known, key=lambda it: abs(it.achieved_hz / it.offered_hz - 1))
    share = show_share(worst.achieved_hz / worst.offered_hz)
    return f", {share} of the offered in the worst 10 s (from {worst.start_s:g} s)"


def _describe_window(summary: Summary) -> str:
    window, run_s = summary.window, summary.log.duration_s
    length = format_duration(window.length_s)
    if window.start_s == 0 and window.end_s >= run_s:
        return f"the whole run of {length}"
    return f"{length}: from {window.start_s:g} s to {window.end_s:g} s of the run, by due time"


def _describe_arrivals(found: Arrivals) -> str:
    sides = [
        f"{name} CV {show_number(it.gap_cv)}, dispersion {'/'.join(map(show_number, it.dispersion.values()))}"
        for name, it in (("sent", found.sent), ("planned", found.planned))
    ]
    declared = "" if found.exponential_distance is None else f"; {show_share(found.exponential_distance)} from Poisson"
    distance = "n/a" if found.gap_distance is None else show_share(found.gap_distance)
    return f"{'; '.join(sides)} (0.1/1/10 s); gaps differ by {distance}{declared}"


def _describe_isolation(run: Run) -> str:
    told = {"cache_salt": "cache_salt {} in every request", "slot": "slots filled with {}"}
    none = "none: what an earlier run left in the server's prefix cache counts"
    return told.get(run.settings["isolation"], none).format(clean_text(run.salt))


def _count_workers(run: Run) -> str:
    probe = " and a probe" if run.settings.get("probe_share") else ""
    on_each = f" on each of {run.nodes} nodes" if run.nodes > 1 else ""
    return f"{_count(run.processes, 'process')}{probe}{on_each}"


def _describe_stamps(summary: Summary) -> str:
    lag = summary.receive_lag
    if summary.log.run.receive != "kernel":
        return "our own: a read is stamped when the process comes to it; the check of the loop lag says how late"
    bar = f"p50 {format_duration(lag.p50_s)}, p99 {format_duration(lag.p99_s)}, max {format_duration(lag.max_s)}"
    return f"the kernel's; our own are later by {bar}" if lag.count else "the kernel's"


def _describe_load(summary: Summary) -> list[tuple[str, str]]:
    share = measure_ceiling_share(summary.log)
    if share is None:
        return []
    made_at = clean_text(str(summary.log.environment["client"]["calibration"].get("made_at", "")))[:10]
    return [("load", f"{show_share(share)} of this host's ceiling as calibrated on {made_at}, in the busiest second")]


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"

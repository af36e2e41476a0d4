# Traffic made of traffic: functions from traces to a trace.
#
# Law: pure. No text is written and no length drawn; what requests say stays as it is, and when they are due
# is decided here. Sessions stay whole and keep the delays between their turns unless an argument says
# otherwise, since a server's cache and a person's thinking know nothing of our time scale. Random choices
# come from the stream "thin" or "scale" of a seed, and each is rounded to a microsecond.
#
# Scaling is not neutral, so it has no default method. `warp` divides the start of each session by the factor:
# counts in a window are those of a longer one, and a bursty trace keeps its bursts, only faster. `superpose`
# lays copies over one another, each turned by a random part of the run: independent bursts even out, the
# dispersion of one source stays, and the rhythm of the day is lost. `replicate` gives every session
# twins that begin within a jitter: bursts grow, and the dispersion in windows longer than that is multiplied.
# Which one is right depends on why there is more traffic: shorter pauses, more users of the same kind, or
# users who act together (Sajal et al., "TraceSplitter", EuroSys 2021, and "TraceUpscaler", EuroSys 2024).
# Copies say what their originals say: `shared_share` of the result tells how warm a cache they meet.
#
# To make less of a trace, thin it: a Poisson process that is thinned at random is a Poisson process again, and
# (dispersion - 1) shrinks by the part that is kept (Cox & Isham, "Point Processes", 1980, section 4.3).

"""The algebra of traces: superpose, splice, repeat, shift, window, thin and scale, each from traces to a trace."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.assembly import NEVER_NS, Part, assemble, derive, find_starts, put_column, read_due
from loadshape.bounds import check_choice, check_count, check_number
from loadshape.errors import TraceError
from loadshape.randomness import open_stream
from loadshape.stats import Floats, Integers
from loadshape.trace import Loop, Trace
from loadshape.units import to_ns

METHODS = ("warp", "superpose", "replicate")
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def superpose(*traces: Trace) -> Trace:
    """Return the requests of all *traces* in one run; equal segments are stored once.

    Their loops must agree; an open loop goes with a partly open one. In a closed loop the sessions interleave
    evenly and share the slots.
    """
    if not traces:
        raise TraceError("superpose: expected at least one trace, found none")
    duration_s = max(trace.manifest.duration_s for trace in traces)
    return assemble(_take_all(traces), derive("superpose", traces), loop=_agree(traces), duration_s=duration_s)


def splice(first: Trace, second: Trace, *, at_s: float) -> Trace:
    """Return the sessions of *first* that begin before *at_s*, then all of *second*, begun at *at_s*."""
    _need_clock("splice", first, second)
    check_number("at_s", at_s, above=0, remedy="write the second at which the second trace takes over")
    early = _keep(first.requests, _start_rows(first) < to_ns(at_s))
    parts = [Part(early, first.segments), Part(_move(second.requests, to_ns(at_s)), second.segments)]
    about = derive("splice", (first, second), at_s=at_s)
    return assemble(parts, about, loop=_agree((first, second)), duration_s=at_s + second.manifest.duration_s)


def repeat(trace: Trace, times: int, *, gap_s: float = 0.0) -> Trace:
    """Return *trace* played *times* times one after another, with *gap_s* seconds between them."""
    _need_clock("repeat", trace)
    check_count("times", times, remedy="write how often in all")
    check_number("gap_s", gap_s, least=0, remedy="write seconds")
    step_s = trace.manifest.duration_s + gap_s
    parts = [Part(_move(trace.requests, to_ns(copy * step_s)), trace.segments) for copy in range(times)]
    about = derive("repeat", (trace,), times=times, gap_s=gap_s)
    return assemble(parts, about, loop=trace.manifest.loop, duration_s=times * step_s - gap_s)


def shift(trace: Trace, by_s: float) -> Trace:
    """Return *trace* begun *by_s* seconds later, or earlier where that leaves no due time before the start."""
    _need_clock("shift", trace)
    check_number("by_s", by_s, remedy="write seconds; below 0 is earlier")
    first_ns = int(read_due(trace.requests).min())
    if first_ns + to_ns(by_s) < 0:
        raise TraceError(f"by_s: expected at least {-first_ns / 1e9:g}, found {by_s:g}; the first request is due then")
    parts = [Part(_move(trace.requests, to_ns(by_s)), trace.segments)]
    duration_s = max(0.0, trace.manifest.duration_s + by_s)
    return assemble(parts, derive("shift", (trace,), by_s=by_s), loop=trace.manifest.loop, duration_s=duration_s)


def window(trace: Trace, start_s: float, end_s: float, *, sessions: Literal["whole", "cut"] = "whole") -> Trace:
    """Return what is due in [*start_s*, *end_s*), with due times counted from *start_s*.

    `whole` takes the sessions that begin inside, with all of their turns. `cut` takes single requests: a session
    that is under way at either end loses turns, which needs due times of all of them.
    """
    _need_clock("window", trace)
    check_choice("sessions", sessions, ("whole", "cut"))
    check_number("start_s", start_s, least=0, remedy="write seconds from the start of the trace")
    check_number("end_s", end_s, above=start_s, remedy="the window is to end after it begins")
    if sessions == "cut":
        _need_single_turns("window: sessions = cut", trace)
    times_ns = _start_rows(trace) if sessions == "whole" else read_due(trace.requests)
    inside = (times_ns >= to_ns(start_s)) & (times_ns < to_ns(end_s))
    parts = [Part(_move(_keep(trace.requests, inside), -to_ns(start_s)), trace.segments)]
    about = derive("window", (trace,), start_s=start_s, end_s=end_s, sessions=sessions)
    return assemble(parts, about, loop=trace.manifest.loop, duration_s=end_s - start_s)


def thin(trace: Trace, keep: float, *, by: Literal["session", "tenant", "request"] = "session", seed: int) -> Trace:
    """Return *trace* with each session, tenant or request kept with probability *keep*, independently.

    What a smaller `keep` keeps, a larger one of the same seed keeps too. By request, a session loses single turns;
    that is refused where later turns rely on them.
    """
    check_number("keep", keep, above=0, most=1, remedy="it is the part to keep, such as 0.25")
    check_choice("by", by, ("session", "tenant", "request"))
    if by == "request":
        _need_single_turns("thin: by = request", trace)
    draw = {"session": _draw_by_session, "tenant": _draw_by_tenant, "request": _draw_by_request}[by]
    parts = [Part(_keep(trace.requests, draw(trace.requests, seed) < keep), trace.segments)]
    about = derive("thin", (trace,), keep=keep, by=by, seed=seed)
    return assemble(parts, about, loop=trace.manifest.loop, duration_s=trace.manifest.duration_s)


def scale(
    trace: Trace,
    factor: float,
    *,
    method: Literal["warp", "superpose", "replicate"],
    seed: int = 0,
    jitter_s: float = 0.5,
) -> Trace:
    """Return *trace* with *factor* times its rate of sessions, by a *method* that has to be named.

    `warp` shortens the pauses between sessions (and the run); `superpose` adds copies turned by random parts of
    the run; `replicate` adds copies of each session that begin within *jitter_s* seconds of it. The two
    last need a factor of 1 or more (thin a trace to make less), whose fraction is a random part of the sessions.
    """
    _need_clock("scale", trace)
    check_choice("method", method, METHODS)
    check_number("factor", factor, above=0, remedy="2 is twice the rate")
    check_number("jitter_s", jitter_s, least=0, remedy="write seconds")
    if method != "warp":
        check_number("factor", factor, least=1, remedy=f"{method} only adds; thin the trace, or warp it")
    duration_s = trace.manifest.duration_s
    if method == "warp":
        arguments: dict[str, Any] = {}
        tables = [_warp(trace.requests, factor)]
        duration_s /= factor
    elif method == "superpose":
        arguments = {"seed": seed}
        tables = _turn_copies(trace, factor, seed)
    else:
        arguments = {"seed": seed, "jitter_s": jitter_s}
        tables = _jitter_copies(trace, factor, seed, jitter_s)
    parts = [Part(table, trace.segments) for table in tables]
    about = derive("scale", (trace,), factor=factor, method=method, **arguments)
    return assemble(parts, about, loop=trace.manifest.loop, duration_s=duration_s)


def _warp(requests: pa.Table, factor: float) -> pa.Table:
    session, starts = find_starts(requests)
    return _move(requests, (np.rint(starts / factor / 1000).astype(np.int64) * 1000 - starts)[session])


def _turn_copies(trace: Trace, factor: float, seed: int) -> list[pa.Table]:
    rng = open_stream(seed, "scale")
    length_ns = max(1, to_ns(trace.manifest.duration_s))
    tables = [trace.requests]
    for rows in _choose_copies(trace.requests, factor, rng):
        copy = _forget_shared(trace.requests.filter(pa.array(rows)))
        session, starts = find_starts(copy)
        turned = (starts + _draw_whole_us(rng, length_ns, 1)) % length_ns
        tables.append(_move(copy, (turned - starts)[session]))
    return tables


def _jitter_copies(trace: Trace, factor: float, seed: int, jitter_s: float) -> list[pa.Table]:
    rng = open_stream(seed, "scale")
    tables = [trace.requests]
    for rows in _choose_copies(trace.requests, factor, rng):
        copy = _keep(trace.requests, rows)
        session, starts = find_starts(copy)
        tables.append(_move(copy, _draw_whole_us(rng, to_ns(jitter_s), len(starts))[session]))
    return tables


def _choose_copies(requests: pa.Table, factor: float, rng: np.random.Generator) -> list[Bools]:
    """Return the rows of each further copy: all, and in the last one those of a random part of the sessions."""
    session, starts = find_starts(requests)
    whole, part = int(factor), factor - int(factor)
    copies = [np.ones(len(session), bool)] * (whole - 1)
    return [*copies, (rng.random(len(starts)) < part)[session]] if part else copies


def _draw_whole_us(rng: np.random.Generator, below_ns: int, n: int) -> Integers:
    return np.floor(rng.random(n) * (below_ns / 1000)).astype(np.int64) * 1000


def _draw_by_session(requests: pa.Table, seed: int) -> Floats:
    session, starts = find_starts(requests)
    return np.asarray(open_stream(seed, "thin").random(len(starts))[session])


def _draw_by_request(requests: pa.Table, seed: int) -> Floats:
    return np.asarray(open_stream(seed, "thin").random(requests.num_rows))


def _draw_by_tenant(requests: pa.Table, seed: int) -> Floats:
    """Draw for each tenant from a stream of its own, so that whether one stays does not depend on the others."""
    if requests["tenant"].null_count:
        raise TraceError("thin: by = tenant: requests.tenant is null in some rows; thin by session")
    tenants = requests["tenant"].combine_chunks().dictionary_encode()
    draws = [open_stream(seed, f"thin.{tenant}").random() for tenant in tenants.dictionary.to_pylist()]
    return np.asarray(np.array(draws)[np.asarray(tenants.indices)])


def _keep(requests: pa.Table, rows: Bools) -> pa.Table:
    """Return some rows; what they share with those left out is forgotten."""
    return requests if rows.all() else _forget_shared(requests.filter(pa.array(rows)))


def _forget_shared(requests: pa.Table) -> pa.Table:
    return put_column(requests, "shared_tokens", np.zeros(requests.num_rows, np.int64))


def _move(requests: pa.Table, by_ns: int | Integers) -> pa.Table:
    by = by_ns if isinstance(by_ns, int) else pa.array(by_ns)
    return put_column(requests, "due_ns", pc.add(requests["due_ns"].combine_chunks(), by))


def _start_rows(trace: Trace) -> Integers:
    session, starts = find_starts(trace.requests)
    return np.asarray(starts[session])


def _take_all(traces: tuple[Trace, ...]) -> list[Part]:
    return [Part(trace.requests, trace.segments) for trace in traces]


def _agree(traces: tuple[Trace, ...]) -> Loop:
    loops = [trace.manifest.loop for trace in traces]
    partly = Loop("partly_open", cap=loops[0].cap)
    if all(loop == loops[0] for loop in loops):
        return loops[0]
    if all(loop in (partly, Loop("open", cap=partly.cap)) for loop in loops):
        return partly
    told = ", ".join(dict.fromkeys(f"{loop.mode} (slots {loop.slots}, cap {loop.cap})" for loop in loops))
    raise TraceError(f"loop: expected traces that are driven alike, found {told}; make them with one loop")


def _need_clock(operation: str, *traces: Trace) -> None:
    if any(trace.manifest.loop.mode == "closed" for trace in traces):
        raise TraceError(f"{operation}: a closed loop has no due times; superpose it, thin it, or make another trace")


def _need_single_turns(operation: str, trace: Trace) -> None:
    """A turn can be left out alone only if no other waits for it or quotes its answer."""
    has_answers = pc.any(pc.equal(trace.segments["kind"], "answer")).as_py()
    if read_due(trace.requests).max() == NEVER_NS or has_answers:
        raise TraceError(f"{operation}: later turns rely on earlier ones in this trace; keep sessions whole")

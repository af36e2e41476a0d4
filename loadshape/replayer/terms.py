# The terms of a run: what a trace, its targets and the settings come to together.
#
# Law: settled, checked and told before the first packet. The trace says how it wants to be driven; settings may
# say otherwise, and what is in force afterwards is stored with the run and stands in every report. Totals are
# of all workers, whose parts add up to them. What cannot work is refused here in one line that names the field
# and the remedy.

"""Terms: the loop in force, the length of the run, and the refusals that need more than one of its parts."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from loadshape.errors import InputError, TargetError
from loadshape.plan import Plan, check_loop, split_total
from loadshape.replayer.answers import check_answers
from loadshape.replayer.isolation import choose_isolation
from loadshape.replayer.job import Settings
from loadshape.replayer.routing import Routes, Routing, route_trace
from loadshape.target import Target
from loadshape.trace import Loop, Trace
from loadshape.units import NS_PER_S

PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def choose_loop(trace: Trace, settings: Settings) -> Loop:
    """Return the loop in force: slots of the settings close any loop, a cap of theirs replaces the trace's."""
    loop = trace.manifest.loop
    cap = loop.cap if settings.cap is None else settings.cap
    return Loop(loop.mode, loop.slots, cap) if settings.slots is None else Loop("closed", settings.slots, cap)


def plan_duration_s(trace: Trace, settings: Settings) -> float:
    """Return how long the run is to be; 0 where that is known only afterwards, as in a closed loop without an end."""
    planned_s = 0.0 if settings.slots is not None else trace.manifest.duration_s
    if planned_s and settings.requests is not None and settings.requests < trace.requests.num_rows:
        due_ns = trace.requests["due_ns"].slice(0, settings.requests)
        planned_s = (pc.max(due_ns).as_py() or 0) / NS_PER_S
    limits_s = [limit_s for limit_s in (planned_s, settings.duration_s) if limit_s]
    return min(limits_s, default=0.0)


def make_routes(trace: Trace, plan: Plan, targets: Sequence[Target], settings: Settings) -> Routes:
    """Return where the requests of one worker's *plan* go."""
    if len(targets) == 1 and settings.on_dead is None:
        return Routes.to_one(len(plan))
    weights = [target.weight for target in targets]
    routing = route_trace(trace, settings.routing, weights)
    share = Routing([routing.home[row] for row in plan.row], [routing.key[row] for row in plan.row])
    dead_after = None if settings.on_dead is None else settings.dead_after
    return Routes(share, weights, dead_after=dead_after, moves=settings.on_dead == "move")


def check_terms(trace: Trace, targets: Sequence[Target], settings: Settings, *, nodes: int = 1) -> None:
    """Raise InputError or one of its children when the parts of a run do not go together."""
    if not targets:
        raise TargetError("target: expected at least one")
    loop = choose_loop(trace, settings)
    check_loop(loop, settings.processes * nodes)
    if settings.probe_share and (loop.slots is not None or loop.cap is not None):
        raise InputError("probe_share: a probe has no part of slots or of a cap; use an open loop, or leave it out")
    check_models(targets)
    check_answers(trace, clocked=settings.slots is None)
    choose_isolation(settings.isolation, trace, ())
    weights = {target.weight for target in targets}
    if settings.routing == "round_robin" and len(weights) > 1:
        raise InputError("routing: round_robin does not look at weights, and those of the targets differ; use weighted")
    if settings.on_dead == "move" and len(targets) == 1:
        raise InputError("on_dead: move needs several targets, found one; use end, or give more with --target")
    _check_rates(trace, targets, settings)


def check_models(targets: Sequence[Target]) -> None:
    """Raise TargetError unless all targets that name a model name the same one."""
    models = {target.model: target.url for target in targets if target.model is not None}
    if len(models) > 1:
        told = ", ".join(f"{model!r} at {url}" for model, url in models.items())
        raise TargetError(
            f"target.model: expected one model for all targets, found {told}: "
            "their latencies do not belong into one distribution; replay once for each and compare the logs"
        )


def tell_terms(trace: Trace, targets: Sequence[Target], settings: Settings, *, nodes: int = 1) -> list[str]:
    """Return lines that state every value in force, for a person to read before the start."""
    asked, planned = min(settings.requests or trace.requests.num_rows, trace.requests.num_rows), trace.requests.num_rows
    count = f"{planned:,} requests" if asked == planned else f"{asked:,} of {planned:,} requests"
    duration_s = plan_duration_s(trace, settings)
    end = f"over {duration_s:g} s" if duration_s else "until all have ended"
    spread = f", on {nodes} nodes" if nodes > 1 else ""
    lines = [
        f"{count} {end}, {tell_loop(choose_loop(trace, settings), settings.processes * nodes)}{spread}",
        settings.tell(),
    ]
    if len(targets) > 1:
        lines.append(f"{len(targets)} targets, routing {settings.routing}: {', '.join(map(_tell_target, targets))}")
        lines.append(f"a lost target: {_tell_loss(settings)}")
    if settings.source_ips:
        lines.append(f"connections come from {', '.join(settings.source_ips)} in turn")
    return lines + _tell_proxies(targets)


def tell_loop(loop: Loop, processes: int) -> str:
    """Return the loop in a few words, its totals with the parts of the workers."""
    totals = {"slots": loop.slots, "at most in flight": loop.cap}
    told = [f"{total} {noun}{_tell_parts(total, processes)}" for noun, total in totals.items() if total is not None]
    return ", ".join([f"{loop.mode.replace('_', ' ')} loop", *told])


def _tell_parts(total: int, processes: int) -> str:
    parts = sorted({split_total(total, worker, processes) or 0 for worker in range(processes)})
    return f" ({' or '.join(map(str, parts))} a worker)" if processes > 1 else ""


def _tell_target(target: Target) -> str:
    return target.url if target.weight == 1 else f"{target.url} (weight {target.weight:g})"


def _tell_proxies(targets: Sequence[Target]) -> list[str]:
    """Return what is between us and the targets, or that what the environment names is not."""
    proxies = dict.fromkeys(target.via.name for target in targets if target.via is not None)
    if proxies:
        return [f"connections go through the proxy {', '.join(proxies)}: what it takes is in every latency"]
    named = [name for name in PROXY_VARIABLES if os.environ.get(name)]
    return [f"{', '.join(named)} of the environment: not used, only --proxy names a proxy"] if named else []


def _tell_loss(settings: Settings) -> str:
    if settings.on_dead is None:
        return "its requests go on failing"
    then = "end" if settings.on_dead == "end" else "move to the others"
    return f"after {settings.dead_after} connection failures in a row its requests {then}"


def _check_rates(trace: Trace, targets: Sequence[Target], settings: Settings) -> None:
    """Refuse to load a target faster than the permission for it says."""
    if all(target.max_rate_hz is None for target in targets):
        return
    if choose_loop(trace, settings).mode == "closed":
        raise TargetError("target: a closed loop goes as fast as the server, so no --max-rate can be kept; use a cap")
    home = route_trace(trace, settings.routing, [target.weight for target in targets]).home
    shares = np.bincount(home, minlength=len(targets)) / max(trace.manifest.duration_s, 1e-9)
    for target, share_hz in zip(targets, shares.tolist(), strict=True):
        rate_hz = float(shares.sum()) if settings.on_dead == "move" else share_hz
        if target.max_rate_hz is not None and rate_hz > target.max_rate_hz:
            raise TargetError(
                f"target: the trace asks {rate_hz:.1f} requests/s of {target.host}, "
                f"--max-rate allows {target.max_rate_hz:g}"
            )

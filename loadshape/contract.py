# What two runs have in common, and what was changed between them.
#
# Law: a comparison is of one changed thing. The conditions of a run, as its log tells them, are flattened into
# facts, each with a subject:
#
#     traffic      the trace's digest, the loop, and the settings that shape what the server gets
#     model        what was asked for
#     server       what the server said of itself, and the facts that its owner declared (flags, GPUs, ...)
#     client       the host and the software that measured
#     instrument   what was done to the server beside the traffic: whether it profiled itself
#     cost         what the server costs, as declared: never a cause of what it does, so a change of it is no second one
#
# Facts that always differ and mean nothing for a number (ids, creation times, paths, load averages, addresses) are not
# facts here. A run says nothing of what it does not know: equal facts are necessary, not sufficient, for equal
# conditions, and the comparison says so.

"""Contracts: the facts of a run, and the changes between those of two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loadshape.log import Log

SUBJECTS = ("traffic", "model", "server", "client", "instrument", "cost")
_COSTS = ("price_per_hour", "power_kw")
_TRAFFIC_SETTINGS = ("duration_s", "requests", "slots", "cap", "routing", "body", "breaker", "isolation", "grace_s")
_CLIENT_SETTINGS = ("processes", "receive", "spin_us", "probe_share", "capture")
_VOLATILE = (
    *("created", "id", "permission", "load_average", "calibration", "models_status", "object", "parent", "root"),
    *("num_gpu_blocks", "kv_cache_size_tokens", "memory_free_percent", "swap", "metrics"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One fact that differs between two runs; None where a run does not know it."""

    subject: str
    fact: str
    before: Any
    after: Any

    @property
    def name(self) -> str:
        """Subject and fact: "server.version", "traffic.trace"."""
        return f"{self.subject}.{self.fact}"

    def __str__(self) -> str:
        return f"{self.name}: {_show(self.before)} -> {_show(self.after)}"


def list_facts(log: Log) -> dict[tuple[str, str], Any]:
    """Return {(subject, fact): value} of one run."""
    run, environment = log.run, log.environment
    facts: dict[tuple[str, str], Any] = {("traffic", "trace"): run.trace_digest}
    facts |= {("traffic", f"loop.{key}"): value for key, value in run.loop.items()}
    facts |= {("traffic", key): value for key, value in run.settings.items() if key in _TRAFFIC_SETTINGS}
    facts |= {("client", key): value for key, value in run.settings.items() if key in _CLIENT_SETTINGS}
    facts |= {("client", key): value for key, value in _list_nodes(log)}
    facts[("client", "loadshape")] = run.tool
    facts[("instrument", "profiled")] = bool(run.settings.get("profile"))
    facts[("client", "retry_stale")] = bool(run.settings.get("retry_stale"))
    facts[("client", "proxies")] = [(target.get("proxy") or {}).get("url") for target in run.targets]
    facts[("model", "name")] = [target.get("model") for target in run.targets]
    facts[("server", "targets")] = len(run.targets)
    facts[("server", "cache_reset")] = bool(run.settings.get("reset_cache"))
    for subject in ("server", "client"):
        facts |= {(subject, key): value for key, value in _flatten(environment.get(subject) or {})}
    declared = dict(_flatten(environment.get("declared") or {}))
    return facts | {("cost" if key in _COSTS else "server", key): value for key, value in declared.items()}


def compare_facts(before: Log, after: Log) -> tuple[Change, ...]:
    """Return what differs between two runs, by subject."""
    old, new = list_facts(before), list_facts(after)
    changes = [Change(*key, old.get(key), new.get(key)) for key in old | new if old.get(key) != new.get(key)]
    return tuple(sorted(changes, key=lambda change: (SUBJECTS.index(change.subject), change.fact)))


def _list_nodes(log: Log) -> Iterator[tuple[str, Any]]:
    """Yield how many machines measured, and what they are: one value where all are alike, else each that occurs."""
    yield "nodes", log.run.nodes
    told = [dict(_flatten(it.environment)) | {"niceness": it.niceness} for it in log.nodes]
    for key in dict.fromkeys(key for facts in told for key in facts):
        values = list(dict.fromkeys(str(facts.get(key)) for facts in told))
        yield f"nodes.{key}", values[0] if len(values) == 1 else sorted(values)


def _flatten(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, part in value.items():
        if key in _VOLATILE:
            continue
        if isinstance(part, dict):
            yield from _flatten(part, f"{prefix}{key}.")
        elif isinstance(part, list) and part and all(isinstance(item, dict) for item in part):
            for number, item in enumerate(part):
                yield from _flatten(item, f"{prefix}{key}[{number}].")
        else:
            yield f"{prefix}{key}", part


def _show(value: Any) -> str:
    text = "not known" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

# What is asked of a server before the first planned request: are you there, is it you, and what are you?
#
# Law: a few questions, bounded in time, none of which generates a token. Their answers go into environment.json,
# and an obvious mistake (nobody listens, wrong key, unknown model) is told in one line instead of ten
# thousand failed requests. A server that has no /models is not a mistake, and what it keeps to itself is none either.
#
#     /models, /version            whether it is there
#     /metrics, /server_info       what it discloses (disclosure.py), and whether it can be watched (scrape.py)
#     POST /reset_prefix_cache     on request: the run begins with an empty prefix cache

"""Ask the target what it is, and refuse the obvious mistakes."""

from __future__ import annotations

import http.client
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

from loadshape.errors import TargetError
from loadshape.replayer.disclosure import pick_cache, pick_engine
from loadshape.replayer.question import Facts, Page, ask_page, conceal, find_root
from loadshape.replayer.scrape import PREFIX
from loadshape.replayer.terms import check_models
from loadshape.target import Target
from loadshape.trace import Trace

TIMEOUT_S = 5.0
UNREACHABLE = (502, 504)  # what a proxy says of a server that it cannot reach
DISCLOSURE_S = 30.0  # vLLM looks at its whole system when it is first asked


def ask_targets(targets: Sequence[Target], named: Set[str] = frozenset()) -> tuple[list[Target], list[Facts]]:
    """Return the targets with their models filled in, and what each server says of itself.

    *named* are the models and adapters that the trace asks for. Raises TargetError for what ask_target refuses,
    and when they serve different models.
    """
    asked, facts = zip(*(ask_target(target, named) for target in targets), strict=True)
    check_models(asked)
    return list(asked), list(facts)


def list_names(trace: Trace) -> set[str]:
    """Return the models and adapters that the requests of *trace* name."""
    columns = (trace.requests[name].unique().drop_null().to_pylist() for name in ("model", "adapter"))
    return {name for column in columns for name in column}


def ask_target(target: Target, named: Set[str] = frozenset()) -> tuple[Target, Facts]:
    """Return the target with its model filled in, and what the server says of itself.

    Raises TargetError when nobody listens, the key is refused, or a model of the target or of *named* is not served.
    """
    answer = _ask(target, target.path + "/models")
    status, models = answer.status, answer.value
    _check_status(target, status)
    version = _ask(target, find_root(target) + "/version").value
    served = _list_models(models)
    model = _choose_model(target, served)
    if missing := sorted(named - set(served)) if served else []:
        raise TargetError(
            f"target: the trace asks for {', '.join(missing[:20])}, which {target.url} does not serve; there is: "
            f"{', '.join(served[:20])}; serve it (vLLM: --lora-modules), or shape a trace without it"
        )
    facts = {"models": models if served else None, "models_status": status, "version": version, "tls": answer.tls}
    facts |= _ask_disclosures(target)
    return replace(target, model=model), conceal(facts, target.list_secrets(target.read_key()))


def _check_status(target: Target, status: int) -> None:
    """Raise TargetError for a status that says that no request will be answered either."""
    proxy = f"the proxy {target.via.name}" if target.via is not None and target.is_relayed else ""
    if status in (401, 403):
        who = f"{target.url}, or {proxy}," if proxy else target.url
        raise TargetError(
            f"target: {who} refused the key (HTTP {status}); give one with --key env:NAME or --key file:PATH"
        )
    if status == 407:
        raise TargetError(
            f"target: {proxy or 'a proxy'} wants a user and a password (HTTP 407): say where they are, proxy_key in "
            "the section [target] of the run file"
        )
    if proxy and status in UNREACHABLE:
        raise TargetError(f"target: nobody answers at {target.url}: {proxy} says HTTP {status}")


def reset_caches(targets: Sequence[Target]) -> list[str]:
    """Ask each server for an empty prefix cache; return a note on what each answered."""
    return [f"reset_cache: target {number}: {_reset_cache(target)}" for number, target in enumerate(targets)]


def _reset_cache(target: Target) -> str:
    try:
        answer = ask_page(target, find_root(target) + "/reset_prefix_cache", method="POST", timeout_s=TIMEOUT_S)
    except (OSError, http.client.HTTPException) as problem:
        return str(problem) or type(problem).__name__
    if answer.status == 404:
        return "the server does not offer it (vLLM does with VLLM_SERVER_DEV_MODE=1); its cache is as it was"
    said = conceal(answer.body.decode(errors="replace"), target.list_secrets(target.read_key()))
    return f"HTTP {answer.status} {' '.join(said.split())[:80]}".rstrip()


def _ask_disclosures(target: Target) -> Facts:
    """Return what the server tells of its engine; "metrics" says whether it has those of vLLM."""
    facts: Facts = {"metrics": False, "cache": None, "engine": None}
    with suppress(OSError, http.client.HTTPException):
        page = ask_page(target, find_root(target) + "/metrics", timeout_s=TIMEOUT_S)
        text = page.body.decode(errors="replace") if page.status == 200 else ""
        facts |= {"metrics": f"\n{PREFIX}" in text, "cache": pick_cache(text)}
        info = ask_page(target, find_root(target) + "/server_info?config_format=json", timeout_s=DISCLOSURE_S)
        facts["engine"] = pick_engine(info.value) if info.status == 200 else None
    return facts


def _choose_model(target: Target, served: list[str]) -> str | None:
    if target.model is None:
        if len(served) > 1:
            raise TargetError(f"target: serves several models, choose one with --model: {', '.join(served[:20])}")
        return served[0] if served else None
    if served and target.model not in served:
        raise TargetError(f"target: model {target.model!r} is not served; there is: {', '.join(served[:20])}")
    return target.model


def _list_models(answer: Any) -> list[str]:
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _ask(target: Target, path: str) -> Page:
    """Return one page. Raises TargetError where nobody answers."""
    try:
        return ask_page(target, path, timeout_s=TIMEOUT_S)
    except TimeoutError:
        raise TargetError(
            f"target: {target.url} did not answer within {TIMEOUT_S:.0f} s; "
            "preflight = false in the run file replays all the same"
        ) from None
    except (OSError, http.client.HTTPException) as problem:
        reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        raise TargetError(f"target: nobody answers at {target.url}: {reason}") from None

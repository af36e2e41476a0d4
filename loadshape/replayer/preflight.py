# One question to the server before the first planned request: are you there, and is it you?
#
# Law: two GETs, bounded in time, none of which generates a token. Their answers go into environment.json,
# and an obvious mistake (nobody listens, wrong key, unknown model) is told in one line instead of ten
# thousand failed requests. A server that has no /models is not a mistake. Redirects are not followed: a
# key would follow them.

"""Ask the target what it is, and refuse the obvious mistakes."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import msgspec

from loadshape.errors import TargetError
from loadshape.replayer.portable import make_tls
from loadshape.replayer.terms import check_models
from loadshape.target import Secret, Target
from loadshape.trace import Trace
from loadshape.version import __version__

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 20

Facts = dict[str, Any]


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
    status, models, tls = _get(target, target.path + "/models")
    if status in (401, 403):
        raise TargetError(
            f"target: {target.url} refused the key (HTTP {status}); give one with --key env:NAME or --key file:PATH"
        )
    _, version, _ = _get(target, "/version")
    served = _list_models(models)
    model = _choose_model(target, served)
    if missing := sorted(named - set(served)) if served else []:
        raise TargetError(
            f"target: the trace asks for {', '.join(missing[:20])}, which {target.url} does not serve; there is: "
            f"{', '.join(served[:20])}; serve it (vLLM: --lora-modules), or shape a trace without it"
        )
    facts = {"models": models if served else None, "models_status": status, "version": version, "tls": tls}
    return replace(target, model=model), _conceal(facts, target.list_secrets(target.read_key()))


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


def _get(target: Target, path: str) -> tuple[int, Any, dict[str, str | None] | None]:
    """Return the status and the JSON of one page, None where it is no JSON, and what TLS was agreed upon."""
    key = target.read_key()
    headers = {"User-Agent": f"loadshape/{__version__}", "Accept": "application/json", **target.headers}
    if key is not None:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    connection: http.client.HTTPConnection | None = None
    try:
        connection = _connect(target)
        tls = _describe_tls(connection.sock)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read(MAX_ANSWER_BYTES)), tls
    except (msgspec.DecodeError, RecursionError):
        return answer.status, None, tls
    except TimeoutError:
        raise TargetError(
            f"target: {target.url} did not answer within {TIMEOUT_S:.0f} s; "
            "preflight = false in the run file replays all the same"
        ) from None
    except (OSError, http.client.HTTPException) as problem:
        reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        raise TargetError(f"target: nobody answers at {target.url}: {reason}") from None
    finally:
        if connection is not None:
            connection.close()


def _conceal(page: Any, secrets: Sequence[Secret]) -> Any:
    """Return a page without our secrets: it goes into the log, and a server may repeat what it was told."""
    if not secrets:
        return page
    if isinstance(page, str):
        for secret in secrets:
            page = secret.conceal(page)
        return page
    if isinstance(page, list):
        return [_conceal(item, secrets) for item in page]
    if isinstance(page, dict):
        return {_conceal(name, secrets): _conceal(item, secrets) for name, item in page.items()}
    return page


def _describe_tls(sock: socket.socket) -> dict[str, str | None] | None:
    """Return the version, the cipher and the protocol that the server chose; all connections of a run are alike."""
    if not isinstance(sock, ssl.SSLSocket):
        return None
    cipher = sock.cipher()
    return {"version": sock.version(), "cipher": cipher and cipher[0], "alpn": sock.selected_alpn_protocol()}


def _connect(target: Target) -> http.client.HTTPConnection:
    """Connect to an address that was checked, not to whatever the name means by now."""
    sock: socket.socket = socket.create_connection((target.resolve()[0], target.port), TIMEOUT_S)
    context = make_tls(target)
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname=target.host)
    connection = http.client.HTTPConnection(target.host, target.port)
    connection.sock = sock
    return connection

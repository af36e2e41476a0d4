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
from dataclasses import replace
from typing import Any

import msgspec

from loadshape.errors import TargetError
from loadshape.replayer.portable import make_tls
from loadshape.target import Target
from loadshape.version import __version__

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 20


def ask_target(target: Target) -> tuple[Target, dict[str, Any]]:
    """Return the target with its model filled in, and what the server says of itself.

    Raises TargetError when nobody listens, the key is refused, or the model is not served.
    """
    status, models = _get(target, target.path + "/models")
    if status in (401, 403):
        raise TargetError(
            f"target: {target.url} refused the key (HTTP {status}); give one with --key env:NAME or --key file:PATH"
        )
    _, version = _get(target, "/version")
    served = _list_models(models)
    facts = {"models": models if served else None, "models_status": status, "version": version}
    return replace(target, model=_choose_model(target, served)), facts


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


def _get(target: Target, path: str) -> tuple[int, Any]:
    """Return the status and the JSON of one page; None where it is no JSON."""
    key = target.read_key()
    headers = {"User-Agent": f"loadshape/{__version__}", "Accept": "application/json", **target.headers}
    if key is not None:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    connection: http.client.HTTPConnection | None = None
    try:
        connection = _connect(target)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read(MAX_ANSWER_BYTES))
    except msgspec.DecodeError:
        return answer.status, None
    except TimeoutError:
        raise TargetError(
            f"target: {target.url} did not answer within {TIMEOUT_S:.0f} s; --no-preflight replays all the same"
        ) from None
    except (OSError, http.client.HTTPException) as problem:
        reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        raise TargetError(f"target: nobody answers at {target.url}: {reason}") from None
    finally:
        if connection is not None:
            connection.close()


def _connect(target: Target) -> http.client.HTTPConnection:
    """Connect to an address that was checked, not to whatever the name means by now."""
    sock: socket.socket = socket.create_connection((target.resolve()[0], target.port), TIMEOUT_S)
    context = make_tls(target)
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname=target.host)
    connection = http.client.HTTPConnection(target.host, target.port)
    connection.sock = sock
    return connection

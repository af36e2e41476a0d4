# One question to the server before the first planned request: are you there, and is it you?
#
# Law: a few GETs, bounded in time, none of which generates a token. Their answers go into
# environment.json, and an obvious mistake (nobody listens, wrong key, unknown model) is told in one line
# instead of ten thousand failed requests. A server that has no /models is not a mistake.

"""Ask the target what it is, and refuse the obvious mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from loadshape.errors import TargetError
from loadshape.replayer.portable import make_tls
from loadshape.target import Target
from loadshape.version import __version__

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 20


async def ask_target(target: Target) -> tuple[Target, dict[str, Any]]:
    """Return the target with its model filled in, and what the server says of itself.

    Raises TargetError when nobody listens, the key is refused, or the model is not served.
    """
    key = target.read_key()
    headers = {"User-Agent": f"loadshape/{__version__}", **target.headers}
    if key is not None:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(ssl=make_tls(target) or True)
    async with aiohttp.ClientSession(timeout=limit, headers=headers, connector=connector) as session:
        status, models = await _get(session, target, target.url.rstrip("/") + "/models")
        root = urlunsplit((*urlsplit(target.url)[:2], "", "", ""))
        _, version = await _get(session, target, root + "/version")
    if status in (401, 403):
        raise TargetError(
            f"target: {target.url} refused the key (HTTP {status}); give one with --key-env or --key-file"
        )
    served = _list_models(models)
    facts = {"models": models if served else None, "version": version, "models_status": status}
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


async def _get(session: aiohttp.ClientSession, target: Target, url: str) -> tuple[int, Any]:
    try:
        async with session.get(url, allow_redirects=False) as response:
            raw = await response.content.read(MAX_ANSWER_BYTES)
            return response.status, msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return response.status, None
    except TimeoutError:
        raise TargetError(
            f"target: {target.url} did not answer within {TIMEOUT_S:.0f} s; --no-preflight replays all the same"
        ) from None
    except aiohttp.ClientError as problem:
        raise TargetError(f"target: nobody answers at {target.url}: {_first_line(problem)}") from None


def _first_line(problem: Exception) -> str:
    cause = getattr(problem, "os_error", None) or problem
    return (getattr(cause, "strerror", None) or str(cause) or type(problem).__name__).splitlines()[0]

# What a replay and its report need beyond a dozen flags: a TOML file with a few sections.
#
# Law: decoding only. [replay] is Settings, [target] is what a Target has beside its URL, model and key, [[targets]]
# are several of them, [limits] are those of the verdict, [declared] are facts of the server that only its owner knows:
# any key is one. Elsewhere unknown keys are refused with the file and the key. The text goes into the log as it is, but
# for the values of the headers and of what looks like a secret: a key may be among them.
#
#     [replay]                        [target]
#     timeout_first_s = 60            ca_file = "ca.pem"
#     grace_s = 30                    headers = { x-tenant = "a" }
#
#     [limits]                        [[targets]]
#     cpu = 0.9                       url = "http://10.0.0.5:8000/v1"
#
#     [declared]
#     gpus = 2
#     cache_state = "empty"           cold, empty, warm, eviction, or other words
#
#     [cluster]                       spread over so many nodes (RayLauncher)
#     nodes = 3

"""RunFile: the settings of a replay as TOML."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from loadshape.cluster.launcher import RayLauncher
from loadshape.environment import HIDDEN, list_secrets
from loadshape.errors import InputError
from loadshape.replayer.job import Settings
from loadshape.target import Target
from loadshape.validity import Limits


class TargetOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run file may say of the target."""

    headers: dict[str, str] = {}
    ca_file: str | None = None
    insecure: bool = False
    proxy: str | None = None
    proxy_key: str | None = None


class TargetEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several targets. What is missing is taken from the command line."""

    url: str
    model: str | None = None
    key: str | None = None
    weight: float = 1.0


_UNKNOWN = re.compile(r"unknown field `(\w+)`(?: - at `\$\.?([^`]*)`)?")
_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "replay": Settings, "target": TargetOptions, "limits": Limits, "targets": TargetEntry,
    "cluster": RayLauncher,
}  # fmt: skip


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one replay."""

    replay: Settings = Settings()
    target: TargetOptions = TargetOptions()
    limits: Limits = Limits()
    targets: list[TargetEntry] = []
    declared: dict[str, Any] = {}
    cluster: RayLauncher | None = None

    @classmethod
    def load(cls, path: Path) -> RunFile:
        """Return the run file at *path*; its text is kept in replay.verbatim. Raises InputError."""
        try:
            text = path.read_text(encoding="utf-8")
            loaded = msgspec.convert(tomllib.loads(text), cls)
        except OSError as problem:
            raise InputError(f"{path}: cannot be read: {problem.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise InputError(f"{path}: not valid TOML: {problem}") from None
        except InputError as problem:
            raise InputError(f"{path}: {problem}") from None
        except msgspec.ValidationError as problem:
            raise InputError(f"{path}: {problem}{_suggest_key(str(problem))}") from None
        declared = loaded.replay.declared | loaded.declared
        replay = msgspec.structs.replace(
            loaded.replay, verbatim=_conceal(text, loaded.target.headers, declared), declared=declared
        )
        return msgspec.structs.replace(loaded, replay=replay)

    def make_launcher(self, address: str | None, nodes: int | None) -> RayLauncher | None:
        """Return what spreads the run over a cluster, as this file, *address* and *nodes* say; None for this host."""
        if self.cluster is None and address is None and nodes is None:
            return None
        known = {} if self.cluster is None else msgspec.structs.asdict(self.cluster)
        given = {name: it for name, it in (("address", address), ("nodes", nodes)) if it is not None}
        if "nodes" not in known | given:
            raise InputError("nodes: expected how many machines of the cluster are to send (--nodes N), found nothing")
        return RayLauncher(**known | given)

    def make_targets(self, urls: list[str], *, model: str | None, key: str | None, **given: Any) -> list[Target]:
        """Return the targets at *urls*, or those of this file; *given* are options of all that outrank the file's.

        Raises InputError when there are none, or both.
        """
        if bool(urls) is bool(self.targets):
            found = "both" if urls else "neither"
            raise InputError(f"target: expected --target URL or [[targets]] in the run file, found {found}")
        entries = [TargetEntry(url) for url in urls] or self.targets
        options = msgspec.structs.asdict(self.target) | {name: it for name, it in given.items() if it is not None}
        return [
            Target(it.url, it.model or model, it.key or key, weight=it.weight, **options)  # one key serves them all
            for it in entries
        ]


def _suggest_key(problem: str) -> str:
    """Return what may have been meant by a key that msgspec does not know, for the end of its message."""
    found = _UNKNOWN.search(problem)
    if found is None:
        return ""
    key, section = found[1], (found[2] or "").partition("[")[0]
    keys = {name: [it.encode_name for it in msgspec.structs.fields(kind)] for name, kind in _SECTIONS.items()}
    for name, known in keys.items():
        if key in known:
            return f"; {key} belongs into the section {'[[targets]]' if name == 'targets' else f'[{name}]'}"
    near = difflib.get_close_matches(key, keys.get(section, list(keys)), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _conceal(text: str, headers: dict[str, str], declared: dict[str, Any]) -> str:
    """Return the text of a run file without the values of *headers* and the secrets of *declared*.

    It is "" where one of them cannot be found in it, however it is written there.
    """
    for value in filter(None, headers.values()):
        for quote in ('"', "'"):
            text = text.replace(f"{quote}{value}{quote}", f"{quote}{HIDDEN}{quote}")
    for secret in sorted(filter(None, list_secrets(declared)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    try:
        left = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ""
    values = {*left.get("target", {}).get("headers", {}).values()}
    values |= {*list_secrets(left.get("declared", {})), *list_secrets(left.get("replay", {}).get("declared", {}))}
    return text if values <= {HIDDEN, ""} else ""

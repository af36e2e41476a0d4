# What a replay needs beyond a dozen flags: a TOML file with two sections.
#
# Law: decoding only. [replay] is Settings, [target] is what a Target has beside its URL, model and key.
# Unknown keys are refused with the file and the key. The text goes into the log as it is.
#
#     [replay]                        [target]
#     timeout_first_s = 60            ca_file = "ca.pem"
#     grace_s = 30                    headers = { x-tenant = "a" }

"""RunFile: the settings of a replay as TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from loadshape.errors import InputError
from loadshape.replayer.job import Settings


class TargetOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run file may say of the target."""

    headers: dict[str, str] = {}
    ca_file: str | None = None
    insecure: bool = False


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one replay."""

    replay: Settings = Settings()
    target: TargetOptions = TargetOptions()

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
        except msgspec.ValidationError as problem:
            raise InputError(f"{path}: {problem}") from None
        replay = msgspec.structs.replace(loaded.replay, verbatim=text)
        return cls(replay, loaded.target)

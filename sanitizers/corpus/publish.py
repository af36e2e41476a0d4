# Publish what the packaged policies find: sanitizers/figures.json, from which every fixture's manifest takes the
# figures of its own policy.
#
# Law: by the digest of what was measured; figures of policies that are no longer here go. A policy that needs packages
# which are not installed is left out, and keeps what was published for it before.
#
#     python sanitizers/corpus/publish.py [POLICY ...]

"""Measure policies on the invented corpus and write sanitizers/figures.json; print the figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from measure import measure, read_set

from loadshape.errors import MissingExtra
from loadshape.figures import Figures
from loadshape.packaged import list_packaged
from loadshape.policy import Policy

PUBLISHED = Path(__file__).parents[1] / "figures.json"
POLICIES = ("default", "strict", "korean", "secrets-only", "thorough")
SETS = ("shown", "unseen")


def measure_policy(policy: Policy) -> dict[str, Figures]:
    """Return the figures of a policy, by set."""
    figures = {}
    for name in SETS:
        texts = read_set(name)
        found = measure(policy, texts)
        print(json.dumps({"policy": policy.name, "set": name, **found}))
        raw: dict[str, Any] = {
            "texts": len(texts),
            "recall": {kind: pair[:2] for kind, pair in found["recall"].items()},
            "negatives_untouched": found["negatives_untouched"][:2],
        }
        figures[name] = msgspec.convert(raw, Figures)
    return figures


def main() -> int:
    """Measure, merge and write."""
    current = {Policy.load(name).digest for name in list_packaged("sanitizers")}
    before = json.loads(PUBLISHED.read_bytes()) if PUBLISHED.exists() else {}
    published: dict[str, Any] = {digest: figures for digest, figures in before.items() if digest in current}
    for name in sys.argv[1:] or POLICIES:
        policy = Policy.load(name)
        try:
            published[policy.digest] = measure_policy(policy)
        except MissingExtra as problem:
            print(f"{name}: not measured: {problem}", file=sys.stderr)
    text = msgspec.json.encode(published, order="sorted")
    PUBLISHED.write_bytes(msgspec.json.format(text, indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

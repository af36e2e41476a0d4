# How much of what it should find does a policy find, and how much does it touch that it should not?
#
# Law: recall is of whole values: one counts as found when no letter or digit of it is outside of all findings,
# under whatever name. Precision on negatives is of whole texts: one counts as untouched when nothing in it was
# found. A policy that drops the conversation has found everything in it.
#
#     python sanitizers/corpus/measure.py [POLICY ...] [--set shown|unseen|FILE] [--misses]
#
# A FILE is presidio-research's JSON (full_text, spans), WNUT's CoNLL (token, tag) or KLUE's TSV (character, tag),
# judged by what the policies claim to find, or lines of JSON (text, spans).

"""Measure policies on labelled sets, as JSON: recall by kind, and the share of negative texts left untouched."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from invention import Label, Labelled, invent

from loadshape.policy import Policy
from loadshape.recognizer import Recognizers
from loadshape.spans import Span

SEED, TEXTS = 7, 750

GROUPS = {  # kinds of a set: the line they are counted in
    "GPE": "LOCATION",
    "location": "LOCATION",
    "person": "PERSON",
    "PS": "PERSON",
    "LC": "LOCATION",
}
COUNTED = (  # of foreign sets: what the policies claim to find
    "PERSON",
    "LOCATION",
    "STREET_ADDRESS",
    "EMAIL_ADDRESS",
    "PHONE_NUMBER",
    "CREDIT_CARD",
    "IBAN_CODE",
    "US_SSN",
    "IP_ADDRESS",
)


def read_set(name: str) -> list[Labelled]:
    """Return a set by name, or one that others published, from its file."""
    if name in ("shown", "unseen"):
        return list(invent(name, seed=SEED, n=TEXTS))
    path = Path(name)
    return list(
        _read_json(path)
        if path.suffix == ".json"
        else _read_lines(path)
        if path.suffix == ".jsonl"
        else _read_klue(path)
        if path.suffix == ".tsv"
        else _read_conll(path)
    )


def _read_json(path: Path) -> Iterator[Labelled]:
    for row in json.loads(path.read_text(encoding="utf-8")):
        spans = [
            (it["start_position"], it["end_position"], GROUPS.get(it["entity_type"], it["entity_type"]))
            for it in row["spans"]
        ]
        yield Labelled(row["full_text"], tuple(Label(*it) for it in spans if it[2] in COUNTED), False)


def _read_lines(path: Path) -> Iterator[Labelled]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        labels = tuple(Label(it["start"], it["end"], it["type"]) for it in row["spans"])
        yield Labelled(row["text"], labels, row["carrier"].startswith("neg"))


def _read_conll(path: Path) -> Iterator[Labelled]:
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        text, labels = "", list[Label]()
        for line in block.splitlines():
            token, _, tag = line.partition("\t")
            start = len(text) + (1 if text else 0)
            text = f"{text} {token}" if text else token
            kind = GROUPS.get(tag[2:], "")
            if tag[:1] == "I" and kind and labels and labels[-1].end == start - 1:
                labels[-1] = labels[-1]._replace(end=len(text))
            elif kind:
                labels.append(Label(start, len(text), kind))
        yield Labelled(text, tuple(labels), False)


def _read_klue(path: Path) -> Iterator[Labelled]:
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        text, labels = "", list[Label]()
        for line in block.splitlines():
            character, _, tag = line.partition("\t")
            if line.startswith("##"):
                continue
            kind = GROUPS.get(tag[2:], "")
            if tag[:1] == "I" and kind and labels and labels[-1].end == len(text):
                labels[-1] = labels[-1]._replace(end=len(text) + len(character))
            elif kind:
                labels.append(Label(len(text), len(text) + len(character), kind))
            text += character
        if text:
            yield Labelled(text, tuple(labels), False)


def measure(policy: Policy, texts: Iterable[Labelled], misses: list[str] | None = None) -> dict[str, Any]:
    """Return recall by kind, what became of the negatives and, by entity, how much of what was found is labelled."""
    recognizers = Recognizers(policy)
    asked, found, touched, right = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    negatives = clean = 0
    for item in texts:
        (spans,) = recognizers.find([item.text])
        covered = {place for span in spans for place in range(span.start, span.end)}
        dropped = any(policy.rules[span.rank].action.startswith("drop") for span in spans)
        for span in spans:
            entity = policy.rules[span.rank].entity
            touched[entity] += 1
            right[entity] += any(label.start < span.end and span.start < label.end for label in item.labels)
        if item.negative:
            negatives, clean = negatives + 1, clean + (not spans)
            if spans and misses is not None:
                misses.append(f"touched {_show(policy, spans, item.text)} in {item.text!r}")
        for label in item.labels:
            asked[label.kind] += 1
            whole = dropped or all(at in covered for at in range(label.start, label.end) if item.text[at].isalnum())
            found[label.kind] += whole
            if not whole and misses is not None:
                misses.append(f"missed {label.kind} {item.text[label.start : label.end]!r} in {item.text!r}")
    return {
        "recall": {kind: [found[kind], asked[kind], round(found[kind] / asked[kind], 4)] for kind in sorted(asked)},
        "overlap_a_label": {entity: [right[entity], touched[entity]] for entity in sorted(touched)},
        "negatives_untouched": [clean, negatives, round(clean / negatives, 4)] if negatives else None,
    }


def _show(policy: Policy, spans: Iterable[Span], text: str) -> list[tuple[str, str]]:
    return [(policy.rules[span.rank].entity, text[span.start : span.end]) for span in spans]


def main() -> int:
    """Print one line of JSON for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policies", nargs="*", default=["default"])
    parser.add_argument("--set", default="shown")
    parser.add_argument("--misses", action="store_true")
    given = parser.parse_args()
    texts = read_set(given.set)
    for name in given.policies:
        misses: list[str] | None = [] if given.misses else None
        policy = Policy.load(name)
        figures = measure(policy, texts, misses)
        print(
            json.dumps(
                {"policy": name, "digest": policy.digest, "set": Path(given.set).name, "texts": len(texts), **figures}
            )
        )
        for line in sorted(set(misses or ())):
            print(line, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

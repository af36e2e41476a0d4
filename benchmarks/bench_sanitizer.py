# How many characters does one core sanitize in a second, with names and without?
#
# Limits: invented prose and code, repeated with other names and numbers, so the figures say how the cost
# moves between versions and machines, not what a given data set will take; pass a ShareGPT file to know
# that. CPU seconds of this process (time.process_time), one process; what a process pays once, to load and to read
# a first conversation, stands apart (start_cpu_s), and so does what the cache of turns adds. Run it alone: a
# second busy core next to it lowers the figure. The invented prose has a phone number in every prompt, about
# one a thousand characters, and phones are the dearest pattern: without models real talk is several times faster.
#
#     python benchmarks/bench_sanitizer.py [sharegpt.json]

from __future__ import annotations

import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from loadshape import recognizer
from loadshape.characters import filter_text
from loadshape.conversation import Conversation, Message, Role
from loadshape.errors import MissingExtra
from loadshape.policy import NER, Policy
from loadshape.recognizer import Recognizers, list_versions
from loadshape.sources import read

KEPT_SPANS = recognizer.KEPT_SPANS
CONVERSATIONS = 60
MAX_CHARACTERS = 8000

PROMPT = """Hello, I am John Smith from Norway. Please review order {n} for me: my address is
user{n}@example.com, and you can call (212) 555-01{n:02d}. What does the function below do, and
how would you test it? I have read the documentation twice and still do not see it.
"""
ANSWER = """Certainly. The function reads every line of the file, splits it at the comma, and adds the
third field to a running total. A good test would use an empty file, a file with one line, and a file
with a line that has too few fields. Here is a version with a clear error:

```python
def total(path: str) -> float:
    with open(path) as file:
        return sum(float(line.split(",")[{n}]) for line in file)
```

If the file is large, reading it line by line as above keeps the memory small. In practice most people
in Berlin or London would use a library for this, and so would I.
"""

PAIR: tuple[tuple[Role, str], ...] = (("user", PROMPT), ("assistant", ANSWER))


def invent() -> list[Conversation]:
    return [
        Conversation(
            f"invented-{n}",
            tuple(Message(role, text.format(n=n + turn)) for turn in range(4) for role, text in PAIR),
        )
        for n in range(CONVERSATIONS)
    ]


def measure(conversations: Sequence[Conversation], policy: Policy, *, keep: bool = False) -> dict[str, float]:
    recognizer.KEPT_SPANS = KEPT_SPANS if keep else -1  # -1: nothing is kept, every text is looked at
    texts = [[message.text for message in conversation.messages] for conversation in conversations]
    begun = time.process_time()
    recognizers = Recognizers(policy)
    recognizers.find(texts[0])  # first use compiles patterns
    start_s = time.process_time() - begun
    begun = time.process_time()
    for each in texts:
        recognizers.find(each)
    cpu_s = time.process_time() - begun
    characters = sum(conversation.characters for conversation in conversations)
    return {
        "characters": characters,
        "cpu_s": round(cpu_s, 3),
        "characters_per_cpu_s": round(characters / cpu_s),
        "start_cpu_s": round(start_s, 3),
    }


def measure_filter(conversations: Sequence[Conversation]) -> float:
    texts = [message.text + "\u2019" for conversation in conversations for message in conversation.messages]
    begun = time.process_time()
    for text in texts:
        filter_text(text, Counter())
    return round(sum(map(len, texts)) / (time.process_time() - begun))


def try_thorough(conversations: Sequence[Conversation]) -> dict[str, float] | None:
    try:
        list_versions(policy := Policy.load("thorough"))
    except MissingExtra:
        return None
    return measure(conversations, policy)


def main() -> None:
    if len(sys.argv) > 1:
        source = read("sharegpt", sys.argv[1], limit=CONVERSATIONS, max_characters=MAX_CHARACTERS)
        conversations = list(source)
    else:
        conversations = invent()
    policy = Policy.load("default")
    nameless = tuple(rule for rule in policy.rules if not rule.recognizer.startswith(NER))
    figures = {
        "default": measure(conversations, policy),
        "default_with_the_cache_of_turns": measure(conversations, policy, keep=True),
        "default_without_models": measure(conversations, msgspec.structs.replace(policy, models=(), rules=nameless)),
        "secrets_only": measure(conversations, Policy.load("secrets-only")),
        "thorough": try_thorough(conversations),
        "control_sequence_filter_characters_per_cpu_s": measure_filter(conversations),
        "versions": {"python": platform.python_version(), **list_versions(policy)},
        "machine": platform.machine(),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

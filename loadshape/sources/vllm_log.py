# The shape of traffic in the log of a vLLM server, without its texts.
#
# Law: lines of `--enable-log-requests` (and `--enable-log-outputs`) become requests; other lines are not
# looked at. Of prompts only the sharing is taken (shredder.py). Nothing is decided by the wording of other
# lines, so a log of several servers behind one another reads as one.
#
#     Received request ID: prompt: '...', params: SamplingParams(..., max_tokens=N, ...), prompt_token_ids: [...], ...
#     Received request ID: params: SamplingParams(...), lora_request: None.                       since vLLM 0.10
#     Request ID details: prompt: '...', prompt_token_ids: [...], ...                             at level DEBUG
#     Generated response ID (streaming ...): output: '...', output_token_ids: [...], ...
#     Generated response ID details: output_token_ids: [...]                                      at level DEBUG
#
# The length of a prompt is that of its token ids, or four bytes a token of its text. The length of an
# answer is what was generated where outputs are logged; else what was asked for, max_tokens, which is the
# most that it can have been. Stamps have whole seconds and no year: a log that passes New Year goes on.

"""Reader of vLLM's request log."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from loadshape.sources.entry import Entry, Fault
from loadshape.sources.shredder import Shredder
from loadshape.units import NS_PER_S

_STAMP = re.compile(r"\b(?:DEBUG|INFO) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_EVENT = re.compile(r"\] (Received request|Request|Generated response) (\S+?)(?: \(streaming (\w+)\))?(?: details)?: ")
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PROMPT = re.compile(r"\bprompt: " + _QUOTED, re.DOTALL)
_OUTPUT = re.compile(r"\boutput: " + _QUOTED, re.DOTALL)
_PROMPT_IDS = re.compile(r"\bprompt_token_ids: \[([\d, ]*)\]")
_OUTPUT_IDS = re.compile(r"\boutput_token_ids: \[([\d, ]*)\]")
_WANTED = re.compile(r"\bmax_tokens=(\d+)")
_FIRST_YEAR = 2000  # a leap year: no stamp is impossible


def read_vllm_log(lines: Iterable[str]) -> Iterator[Entry | Fault]:
    """Yield the requests of a log in the order in which they came."""
    shredder, clock = Shredder(), _Calendar()
    entries: dict[str, Entry] = {}
    generated: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        event = _EVENT.search(line)
        if event is None:
            continue
        verb, request, stream = event.groups()
        told = line[event.end() :]
        try:
            if verb == "Generated response":
                count, before = _count_output(told, shredder), generated.get(request, 0)
                generated[request] = before + count if stream == "delta" else max(before, count)
            else:
                _add_prompt(entries.setdefault(request, Entry(at_ns=clock.read_ns(line))), told, shredder)
        except (ValueError, SyntaxError):
            yield Fault("malformed", f"line {number}: not as vLLM writes it")
    for request, entry in entries.items():
        entry.output_tokens = generated.get(request) or entry.output_tokens
        yield entry


def _add_prompt(entry: Entry, told: str, shredder: Shredder) -> None:
    ids, quoted, wanted = _PROMPT_IDS.search(told), _PROMPT.search(told), _WANTED.search(_PROMPT.sub("", told))
    if wanted:
        entry.output_tokens = int(wanted[1])
    if ids and ids[1].strip():
        token_ids = [int(token) for token in ids[1].split(",")]
        entry.input_tokens, entry.blocks = len(token_ids), shredder.shred_ids(token_ids)
    elif quoted:
        prompt = str(ast.literal_eval(quoted[1]))
        entry.input_tokens, entry.blocks = shredder.estimate(prompt), shredder.shred(prompt)


def _count_output(told: str, shredder: Shredder) -> int:
    if (ids := _OUTPUT_IDS.search(told)) and ids[1].strip():
        return ids[1].count(",") + 1
    quoted = _OUTPUT.search(told)
    return shredder.estimate(str(ast.literal_eval(quoted[1]))) if quoted else 0


class _Calendar:
    """Stamps without a year: it is another one where the month falls back by more than half a year."""

    def __init__(self) -> None:
        self._year, self._month = _FIRST_YEAR, 0

    def read_ns(self, line: str) -> int | None:
        stamp = _STAMP.search(line)
        if stamp is None:
            return None
        month, day, hour, minute, second = map(int, stamp.groups())
        self._year += month < self._month - 6
        self._month = month
        return round(datetime(self._year, month, day, hour, minute, second, tzinfo=UTC).timestamp()) * NS_PER_S

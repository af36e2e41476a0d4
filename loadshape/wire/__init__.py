# The wire: what an endpoint sends, from bytes to facts.
#
# Law: sans-I/O. Nothing here owns a socket, reads a clock, or imports from the rest of PLAY; bytes go in, facts
# come out, and the one who fed the bytes knows when they came. Four layers, each ignorant of those above it:
#
#     http1      bytes          -> pieces of body, status, headers, how it ended   (RFC 9110, 9112)
#     sse        pieces of body -> events                                          (WHATWG event streams)
#     openai     one event      -> facts: kinds, deltas, finish, usage, error      (OpenAI API)
#     response   one request    -> what each read contained, totals, the outcome
#
# The replayer uses `Response` alone; the layers are public for tests and for tools that need only a part.

"""Sans-I/O parsing of streamed answers: HTTP/1.1, server-sent events, OpenAI chunks."""

from __future__ import annotations

from loadshape.wire.http1 import ResponseParser
from loadshape.wire.openai import Facts, Kind, Usage, read_answer, read_error, read_event
from loadshape.wire.response import NOTHING, Gain, Outcome, Response
from loadshape.wire.sse import Event, EventStream

__all__ = [
    "NOTHING",
    "Event",
    "EventStream",
    "Facts",
    "Gain",
    "Kind",
    "Outcome",
    "Response",
    "ResponseParser",
    "Usage",
    "read_answer",
    "read_error",
    "read_event",
]

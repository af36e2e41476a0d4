# Request bytes, prepared before they are due.
#
# Law: at the due instant nothing is encoded, joined or measured; the parts below are handed to sendmsg.
#
# A segment is JSON-escaped once and its bytes are shared by all requests that name it. A body is a list
# of byte strings (scatter-gather), so a 200 kB shared prefix is never copied per request:
#
#     head (static, then Content-Length and X-Request-Id) | {"model":...,"messages":[{"role":"user","content":"
#     | segment | segment | "}] | ,"max_tokens":64,"stream":true,... | }
#
# A key in the request's `params` segment replaces ours: whoever writes max_tokens there means it. An adapter takes the
# place of the model, as vLLM wants it; a tenant goes into a header, since the API has no field for one.
#
# Three kinds of segments are text on the wire: `text` is the same in every run, `slot` is filled once per run, `answer`
# once per request, when the turn that it quotes has ended (answers.py).

"""Request bytes of a trace's rows for its targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from loadshape.errors import InputError, TraceError
from loadshape.replayer.answers import Answers
from loadshape.replayer.isolation import choose_digits, choose_salt, fill_slot
from loadshape.replayer.job import Settings
from loadshape.secret import Secret
from loadshape.target import Target, check_header
from loadshape.trace import Trace
from loadshape.version import __version__

PATHS = {"chat": "/chat/completions", "completions": "/completions"}
TEXTS = {"text", "slot", "answer"}  # kinds that are text on the wire
WRITTEN = {"text", "slot", "json", "image"}  # kinds that stand in the column `text`
PARTS = {"chat": TEXTS | {"json", "image"}, "completions": TEXTS | {"token_ids"}}
SHARED_FROM = 2  # escaped bytes are kept for segments that this many requests name


@dataclass(frozen=True, slots=True)
class Prepared:
    """One request's bytes, in the order of the wire."""

    parts: list[bytes]
    size_bytes: int


class BodyBuilder:
    """Turns rows of a trace into HTTP/1.1 requests for *targets*, each with its key."""

    def __init__(
        self,
        trace: Trace,
        targets: Sequence[Target],
        *,
        run: str,
        keys: Sequence[Secret | None],
        settings: Settings,
    ) -> None:
        self.secrets = [it for target, key in zip(targets, keys, strict=True) for it in target.list_secrets(key)]
        self.answers = Answers(trace)
        self._rows = _Rows(trace)
        self._kinds = trace.segments["kind"].cast(pa.string()).to_pylist()
        self._texts = trace.segments["text"].combine_chunks()
        self._token_ids = trace.segments["token_ids"].combine_chunks()
        self._targets = targets
        self._run = run
        self._digits = choose_digits(settings.isolation, run)
        self._extra = choose_salt(settings.isolation, run) | settings.body
        self._tenant_header = settings.tenant_header
        self._heads = [
            {api: _write_head(target, path, key) for api, path in PATHS.items()}
            for target, key in zip(targets, keys, strict=True)
        ]
        self._shared = _count_uses(trace)
        self._escaped: dict[int, bytes] = {}
        self._params: dict[int, dict[str, Any]] = {}
        self._check(trace)

    def prepare(self, row: int, target: int = 0) -> Prepared:
        """Return the bytes of the request in *row* of the trace for one of the targets."""
        rows = self._rows
        api, messages = rows.api[row], rows.messages(row)
        content = self._chat(row, messages) if api == "chat" else self._prompt(row, messages)
        body = [b"{", *content, b"," + msgspec.json.encode(self._fields(row, target))[1:]]
        size = sum(map(len, body))
        head = b"%b%bContent-Length: %d\r\nX-Request-Id: %b\r\n\r\n" % (
            self._heads[target][api],
            self._name_tenant(row),
            size,
            name_request(self._run, rows.request[row]).encode(),
        )
        return Prepared([head, *body], size + len(head))

    def _check(self, trace: Trace) -> None:
        """Refuse what no request can be made of before the first one is sent."""
        for api in trace.requests["api"].cast(pa.string()).unique().to_pylist():
            if api not in PATHS:
                raise TraceError(f"requests.api: expected one of {', '.join(PATHS)}, found {api!r}")
        for segment in trace.requests["params"].unique().drop_null().to_pylist():
            self._read_params(segment)
        for api, parts in PARTS.items():
            rows = trace.requests.filter(pc.equal(trace.requests["api"].cast(pa.string()), api))
            for segment in _list_segments(rows).unique().to_pylist():
                if self._kinds[segment] not in parts:
                    found = f"{self._kinds[segment]!r} (segment {segment})"
                    raise TraceError(f"segments.kind: {found} cannot be part of a {api} request; use {sorted(parts)}")
                self._check_segment(segment)
        self._check_prompts()
        self._check_tenants()

    def _check_segment(self, segment: int) -> None:
        """Refuse a segment that would break the JSON around it."""
        kind = self._kinds[segment]
        if kind in WRITTEN and not self._texts[segment].is_valid:
            raise TraceError(f"segments.text: segment {segment} is of kind {kind} and has none")
        if kind == "token_ids" and not self._token_ids[segment].is_valid:
            raise TraceError(f"segments.token_ids: segment {segment} is of that kind and has none")
        if kind == "slot":
            fill_slot(self._texts[segment].as_py(), self._digits, place=segment)
        if kind == "json":
            try:
                msgspec.json.decode(self._texts[segment].as_py(), type=dict[str, Any])
            except msgspec.DecodeError as problem:
                raise TraceError(f"segments.text: segment {segment} is no JSON object: {problem}") from None

    def _check_prompts(self) -> None:
        """Refuse prompts of text and token ids mixed: the API has no such thing."""
        if "token_ids" not in self._kinds:
            return
        for row, api in enumerate(self._rows.api):
            kinds = {self._kinds[segment] for _, segments in self._rows.messages(row) for segment in segments}
            if api == "completions" and "token_ids" in kinds and len(kinds) > 1:
                raise TraceError(
                    f"segments.kind: {sorted(kinds)} cannot make one completions prompt (request "
                    f"{self._rows.request[row]}); use text or token_ids"
                )

    def _check_tenants(self) -> None:
        """Refuse tenants that no header may carry, or whose header is taken."""
        tenants = {tenant for tenant in self._rows.tenant if tenant is not None}
        if not (tenants and self._tenant_header):
            return
        for tenant in tenants:
            check_header("requests.tenant", self._tenant_header, tenant)
        if any(self._tenant_header.lower() == name.lower() for target in self._targets for name in target.headers):
            raise InputError(
                f"tenant_header: {self._tenant_header!r} is among the target's own headers, and the trace names "
                'tenants; choose another one, or tenant_header = "" to send no tenant'
            )

    def _name_tenant(self, row: int) -> bytes:
        tenant = self._rows.tenant[row]
        if tenant is None or not self._tenant_header:
            return b""
        return f"{self._tenant_header}: {tenant}\r\n".encode("latin-1")

    def _fields(self, row: int, target: int) -> dict[str, Any]:
        model = self._rows.adapter[row] or self._rows.model[row] or self._targets[target].model
        fields: dict[str, Any] = {} if model is None else {"model": model}
        fields |= {
            "max_tokens": self._rows.output_tokens[row],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        given = self._extra | self._read_params(self._rows.params[row])
        if not given.get("stream", True):
            del fields["stream_options"]  # servers refuse it where nothing is streamed
        return fields | given

    def _chat(self, row: int, messages: list[tuple[str, list[int]]]) -> list[bytes]:
        parts = [b'"messages":[']
        for index, (role, segments) in enumerate(messages):
            parts.append(b'%b{"role":"%b","content":' % (b"," if index else b"", role.encode()))
            parts += self._content(row, segments)
            parts.append(b"}")
        parts.append(b"]")
        return parts

    def _content(self, row: int, segments: list[int]) -> list[bytes]:
        if all(self._kinds[segment] in TEXTS for segment in segments):
            return [b'"', *(self._say(row, segment) for segment in segments), b'"']
        parts = [b"["]
        for is_text, some in groupby(segments, lambda segment: self._kinds[segment] in TEXTS):
            if is_text:  # one part: between two, servers put a line break
                parts += [b'{"type":"text","text":"', *(self._say(row, segment) for segment in some), b'"}', b","]
            else:
                parts += [piece for segment in some for piece in (self._content_part(segment), b",")]
        parts[-1] = b"]"
        return parts

    def _content_part(self, segment: int) -> bytes:
        text = self._texts[segment].as_py()
        if self._kinds[segment] == "json":
            return bytes(text, "utf-8")
        return msgspec.json.encode({"type": "image_url", "image_url": {"url": text}})

    def _prompt(self, row: int, messages: list[tuple[str, list[int]]]) -> list[bytes]:
        segments = [segment for _, message in messages for segment in message]
        if any(self._kinds[segment] == "token_ids" for segment in segments):
            ids = [token for segment in segments for token in self._token_ids[segment].as_py()]
            return [b'"prompt":' + msgspec.json.encode(ids)]
        return [b'"prompt":"', *(self._say(row, segment) for segment in segments), b'"']

    def _say(self, row: int, segment: int) -> bytes:
        """Return a segment as it stands inside of a JSON string."""
        if self._kinds[segment] == "answer":
            return self.answers.quote(row, self._token_ids[segment].as_py()[0])
        escaped = self._escaped.get(segment)
        if escaped is None:
            text = self._texts[segment].as_py()
            if self._kinds[segment] == "slot":
                text = fill_slot(text, self._digits, place=segment)
            escaped = msgspec.json.encode(text)[1:-1]
            if segment in self._shared:
                self._escaped[segment] = escaped
        return escaped

    def _read_params(self, segment: int | None) -> dict[str, Any]:
        if segment is None:
            return {}
        if segment not in self._params:
            try:
                self._params[segment] = msgspec.json.decode(self._texts[segment].as_py(), type=dict[str, Any])
            except (msgspec.DecodeError, TypeError) as problem:
                raise TraceError(f"segments.text: params in segment {segment} are no JSON object: {problem}") from None
        return self._params[segment]


class _Rows:
    """The columns that a request is built from, as lists and flat arrays: a row costs a few slices."""

    def __init__(self, trace: Trace) -> None:
        requests = trace.requests
        self.request: list[int] = requests["request"].to_pylist()
        self.api: list[str] = requests["api"].cast(pa.string()).to_pylist()
        self.output_tokens: list[int] = requests["output_tokens"].to_pylist()
        self.model: list[str | None] = _list_values(requests["model"])
        self.adapter: list[str | None] = _list_values(requests["adapter"])
        self.tenant: list[str | None] = _list_values(requests["tenant"])
        self.params: list[int | None] = _list_values(requests["params"])
        messages = requests["messages"].combine_chunks()
        parts = messages.values  # values keep the offsets valid, whatever slice this is
        segments = parts.field("segments")
        self._message_ends: list[int] = messages.offsets.to_pylist()
        self._roles: list[str] = parts.field("role").cast(pa.string()).to_pylist()
        self._segment_ends: list[int] = segments.offsets.to_pylist()
        self._segments: list[int] = segments.values.to_pylist()

    def messages(self, row: int) -> list[tuple[str, list[int]]]:
        """Return [(role, segment numbers)] of one request."""
        return [
            (self._roles[part], self._segments[self._segment_ends[part] : self._segment_ends[part + 1]])
            for part in range(self._message_ends[row], self._message_ends[row + 1])
        ]


def _list_values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as a list; most traces leave the ones that this is for empty."""
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


def name_request(run: str, request: int) -> str:
    """Return the x-request-id of a request: ls-<run>-<request>, 40 bytes at most."""
    return f"ls-{run}-{request}"


def _write_head(target: Target, path: str, key: Secret | None) -> bytes:
    fields = {
        "Host": target.authority,
        "User-Agent": f"loadshape/{__version__}",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",  # a compressed stream would hold tokens back
        "Content-Type": "application/json",
    }
    if key is not None:
        fields["Authorization"] = f"Bearer {key.reveal()}"
    given = {name.lower() for name in target.headers}
    fields = {name: value for name, value in fields.items() if name.lower() not in given} | target.headers
    fields |= target.list_proxy_fields()
    first = f"POST {target.write_path(target.path + path)} HTTP/1.1"
    lines = [first, *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")


def _count_uses(trace: Trace) -> frozenset[int]:
    """Return the segments that several requests name."""
    counts = _list_segments(trace.requests).value_counts()
    return frozenset(row["values"] for row in counts.to_pylist() if row["counts"] >= SHARED_FROM)


def _list_segments(requests: pa.Table) -> pa.Array:
    """Return the segments that the messages name, one entry a mention."""
    return requests["messages"].combine_chunks().flatten().field("segments").flatten()

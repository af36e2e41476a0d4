# What a server says when it fails, in one line that a log may hold.
#
# Law: foreign text is cut, put on one line and freed of control characters here, and of a redirect only the host is
# kept: paths and queries may carry secrets. Nothing is decided; what became of the request says response.py.
#
# Sources: RFC 9110 15 (status codes), 10.2.3 (Retry-After); OpenAI API reference, errors.

"""One line about a failed response, and foreign text made fit for a log."""

from __future__ import annotations

from urllib.parse import urlsplit

from loadshape.wire.http1 import ResponseParser
from loadshape.wire.openai import read_error
from loadshape.wire.sse import EventStream

MAX_ERROR_CHARACTERS = 200


def trim_text(text: str) -> str:
    """Return at most 200 printable characters on one line: what a log may hold of a stranger's text."""
    if len(text) <= MAX_ERROR_CHARACTERS and text.isprintable():
        return " ".join(text.split())
    # Taking ten times as many first bounds the work; isprintable() is false for controls and surrogates.
    spaced = "".join(c if c.isprintable() else " " for c in text[: 10 * MAX_ERROR_CHARACTERS])
    return " ".join(spaced.split())[:MAX_ERROR_CHARACTERS]


def read_media_type(http: ResponseParser) -> str:
    """Return the media type of a response, in lower case, without its parameters; empty where there is none."""
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


def describe_failure(http: ResponseParser, body: bytes) -> str:
    """Return one line about a status that is not 2xx, with the server's message if it has one."""
    headers, media_type = http.headers, read_media_type(http)
    title = f"HTTP {http.status}"
    if "location" in headers and http.status < 400:
        return f"{title}: redirect to {_host(headers['location'])}, not followed"
    if "retry-after" in headers:
        title += f" (retry-after: {headers['retry-after']})"
    if not body.strip():
        return f"{title} with an empty body"
    if http.coding or media_type == "text/html":
        return f"{title} with a body of {http.coding or media_type}"
    if media_type == "text/event-stream":
        events = EventStream().feed(body + b"\n\n")
        body = events[0].data if events else body
    return f"{title}: {read_error(body)}"


def _host(location: str) -> str:
    """Return the host of a redirect only: paths and queries may carry secrets."""
    try:
        return urlsplit(location).hostname or "the same host"
    except ValueError:
        return "an unreadable location"

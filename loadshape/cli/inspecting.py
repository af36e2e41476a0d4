# The command that looks at any folder, and closely at a trace.
#
# Law: one short function a command, with nothing in it that the library does not have. The docstring is the
# help text, and docs/cli.md is made from it.

"""The command `inspect`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from loadshape.cli.console import AsJson, print_about
from loadshape.errors import InputError
from loadshape.inspection import describe_folder, open_folder
from loadshape.inspection.declaration import Declaration
from loadshape.inspection.document import describe_traffic
from loadshape.inspection.load import Service
from loadshape.inspection.page import write_page
from loadshape.inspection.section import list_head, list_sections
from loadshape.inspection.text import choose_marks, write_text
from loadshape.inspection.traffic import measure_traffic
from loadshape.progress import Teller
from loadshape.trace import Trace
from loadshape.units import parse_duration_s


def inspect(
    path: Path,
    /,
    *,
    ttft: str = "500ms",
    tpot: str = "30ms",
    kv_tokens: int | None = None,
    block_tokens: int | None = None,
    html: Path | None = None,
    json: AsJson = False,
) -> int:
    """Say what a fixture, a trace or a log is; of a trace, what came out of what its recipe declares.

    Parameters
    ----------
    path
        A folder of any of the three.
    ttft
        Of a trace: the time to the first token to assume, for requests in flight.
    tpot
        The time for each token after it to assume.
    kv_tokens
        How many tokens the server's KV cache holds, to compare with.
    block_tokens
        The block of the prefix cache; without it the recipe's or the recording's, else 16.
    html
        Also write a page with plots.
    """
    folder = open_folder(path)
    if not isinstance(folder, Trace):
        if html is not None:
            raise InputError(f"--html: expected a trace, found {path}; `loadshape report` has the page of a log")
        print_about(folder, as_json=json)
        return 0
    _check_capacity(kv_tokens)
    service = Service(parse_duration_s(ttft, "--ttft"), parse_duration_s(tpot, "--tpot"))
    teller = Teller(quiet=json)
    with teller.task("inspect", 2) as task:
        declaration = Declaration.of(folder)
        traffic = measure_traffic(folder, service=service, block_tokens=block_tokens or declaration.block_tokens)
        task.update(1, "what is declared")
        claims = declaration.list_claims(folder, traffic.reuse)
    sections = list_sections(traffic, claims, silence=declaration.silence, kv_tokens=kv_tokens)
    if html is not None:
        html.write_text(write_page(folder.manifest.name or path.name, list_head(traffic), sections), encoding="utf-8")
        teller.say(f"page: {html}")
    if json:
        told = describe_traffic(traffic, claims, silence=declaration.silence, kv_tokens=kv_tokens)
        print(msgspec.json.encode(describe_folder(folder) | {"traffic": told}).decode())
    else:
        marks = choose_marks(sys.stdout.encoding, is_terminal=sys.stdout.isatty())
        print(write_text(list_head(traffic), sections, marks=marks), end="")
    return 0


def _check_capacity(kv_tokens: int | None) -> None:
    if kv_tokens is not None and kv_tokens < 1:
        raise InputError(f"--kv-tokens: expected at least 1, found {kv_tokens}; it is how much the KV cache holds")

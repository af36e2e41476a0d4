# Commands between formats: from the recordings of others to a trace, and from a trace to the inputs of others.
#
# Law: one short function a command, with nothing in it that the library does not have. The docstring is the
# help text, and docs/cli.md is made from it.

"""The commands `convert` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from loadshape.attestation import export_fixture
from loadshape.cli.console import AsJson, Force, Output, print_about
from loadshape.content import Author
from loadshape.export import export_trace, list_features
from loadshape.fixture import Fixture
from loadshape.inspection import open_folder
from loadshape.log import Log
from loadshape.recording import Recording
from loadshape.results import export_log
from loadshape.summary import summarize
from loadshape.tokenizer import load_tokenizer
from loadshape.transcription import Ticks, parse_pace, transcribe
from loadshape.units import parse_span_s


def convert(
    path: Path,
    /,
    *,
    output: Output,
    format: str | None = None,
    columns: str | None = None,
    window: str | None = None,
    ticks: Ticks = "keep",
    output_tokens: int | None = None,
    pace: str | None = None,
    seed: int = 0,
    fixture: Path | None = None,
    tokenizer: str | None = None,
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Convert a recorded request trace, or the shape of a log, into a hashed trace.

    Parameters
    ----------
    path
        The file, plain or packed (.gz, .zst); of servegen, the folder of clients.
    output
        The trace to write, NAME.trace.
    format
        Of the file: azure, mooncake, otel...; without it, only what its columns say for sure.
    columns
        Of a log of your own: time=ts:ms,input=prompt_tokens,output=completion_tokens,session=user.
    window
        Only this part of the file: 10min-20min.
    ticks
        Of coarse stamps: keep them, or spread what shares one.
    output_tokens
        What a request is to want whose answer failed, or has no length.
    pace
        For formats without times: 40/s, or 8 slots.
    seed
        Of everything that is drawn.
    fixture
        Texts to make prompts of; without it, neutral words.
    tokenizer
        A tokenizer.json, or a packaged tokenizer's name; without it, the estimate.
    """
    window_s = None if window is None else parse_span_s(window, "--window")
    recording = Recording.read(path, format, columns=columns, window_s=window_s, output_tokens=output_tokens, seed=seed)
    texts = None if fixture is None else Fixture.open(fixture)
    prompts = [] if texts is None else [prompt for prompt, _ in texts.prompts() if prompt]
    author = Author(prompts, load_tokenizer(tokenizer), seed)
    arrivals, slots = parse_pace(pace) if pace else (None, None)
    trace = transcribe(recording, author, ticks=ticks, arrivals=arrivals, slots=slots, fixture=texts)
    trace.write(output, force=force)
    print_about(trace, as_json=json)
    return 0


def export(
    folder: Path,
    /,
    *,
    output: Output,
    format: str,
    lose: Annotated[str, Parameter(help="what may be lost: arrivals,turns,params")] = "",
    with_text: Annotated[bool, Parameter(negative="")] = False,
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Write a trace or the results of a log in the format of other tools, or a fixture as metadata or messages.

    Parameters
    ----------
    folder
        The trace, log or fixture to read.
    output
        The file to write; a folder for a log as parquet, csv or aiperf.
    format
        Of a trace: mooncake, timed_trace, guidellm, aiperf, custom or openai_batch; of a log: parquet, csv, vllm or
        aiperf; of a fixture: croissant, in-toto or messages.
    with_text
        Write messages although no licence is stated.
    """
    opened = open_folder(folder)
    if isinstance(opened, Fixture):
        path = export_fixture(opened, output, format, with_text=with_text, force=force)
        about = {"path": str(path), "format": format, "conversations": len(opened)}
        print(msgspec.json.encode(about).decode() if json else f"{path}: {len(opened):,} conversations, {format}")
        return 0
    if isinstance(opened, Log):
        path = export_log(summarize(opened), output, format, force=force)
        about = {"path": str(path), "format": format, "requests": opened.run.planned}
        print(msgspec.json.encode(about).decode() if json else f"{path}: {opened.run.planned:,} requests, {format}")
        return 0
    path = export_trace(opened, output, format, lose=[name for name in lose.split(",") if name], force=force)
    about = {"path": str(path), "format": format, "requests": opened.manifest.requests, "says": list_features(opened)}
    print(msgspec.json.encode(about).decode() if json else f"{path}: {about['requests']:,} requests, {format}")
    return 0

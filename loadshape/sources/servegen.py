# ServeGen: clients of a production service, each with rates, variations and histograms of lengths over time.
#
# Law: this is a model and no recording, so requests are drawn: a client's arrivals by Windows (arrival.rate),
# its lengths from the histograms of the hour, in random streams of its own. What the files say is used, and
# nothing is fitted. A folder holds, for each client N:
#
#     chunk-N-trace.csv      begin (s), rate (1/s), cv, Gamma | Weibull | "", two parameters; every 600 s, no header
#     chunk-N-dataset.json   {begin (s): {"input_tokens": "{45: 0.01, ...}", "output_tokens": "{...}"}}, every 21,600 s
#
# The histograms are texts of Python literals. Inputs and outputs are drawn apart from one another, since the
# files do not say what goes together. Where the histograms of an interval are empty, the nearest earlier ones
# serve, else the nearest later ones. A client without histograms is one fault: its requests cannot be made.
#
# Source: alibaba/ServeGen; Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language
# Model Serving in Production", 2025.

"""Reader of ServeGen clients."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadshape.arrival import Window, Windows
from loadshape.errors import SourceError
from loadshape.randomness import open_stream
from loadshape.sources.entry import Entry, Fault
from loadshape.stats import Floats, Integers
from loadshape.units import NS_PER_S

_TRACE = re.compile(r"chunk-(\d+)-trace\.csv")
_WINDOW_S = 600.0
_CVS = (0.02, 30.0)  # what a window of arrivals can have
_FAMILIES = {"Gamma": "gamma", "Weibull": "weibull"}

Histogram = tuple[Integers, Floats]  # lengths in order, and their cumulated shares
Hours = list[tuple[float, Histogram]]


def read_servegen(folder: Path, window_s: tuple[float, float], seed: int) -> Iterator[Entry | Fault]:
    """Yield the requests of all clients of *folder* in *window_s*, counted from its begin, in order of time."""
    entries: list[Entry] = []
    for number, path in list_clients(folder):
        windows = _read_windows(path, window_s)
        if windows is None:
            continue
        lengths = path.with_name(f"chunk-{number}-dataset.json")
        if not lengths.is_file():
            yield Fault("client_without_lengths", f"client {number}: {lengths.name} is missing")
            continue
        inputs, outputs = _read_hours(lengths)
        if not (inputs and outputs):
            yield Fault("client_without_lengths", f"client {number}: {lengths.name} holds no lengths")
            continue
        length_s = window_s[1] - window_s[0]
        times_ns = windows.times_ns(open_stream(seed, f"servegen.{number}.arrivals"), length_s)
        times_s = window_s[0] + times_ns / NS_PER_S
        drawn = [
            _draw(hours, times_s, open_stream(seed, f"servegen.{number}.{name}"))
            for name, hours in (("inputs", inputs), ("outputs", outputs))
        ]
        for at_ns, input_tokens, output_tokens in zip(times_ns.tolist(), *(it.tolist() for it in drawn), strict=True):
            entry = Entry(
                at_ns=at_ns, input_tokens=input_tokens, output_tokens=output_tokens, tenant=f"client-{number}"
            )
            entries.append(entry)
    yield from sorted(entries, key=lambda entry: entry.at_ns or 0)


def list_clients(folder: Path) -> list[tuple[int, Path]]:
    """Return (number, path of its rates) of every client in a folder, by number."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _TRACE.fullmatch(path.name))]
    if not found:
        raise SourceError(f"{folder}: expected clients of ServeGen (chunk-N-trace.csv), found none")
    return sorted(found)


def _read_windows(path: Path, window_s: tuple[float, float]) -> Windows | None:
    """Return the arrivals of a client from the begin of *window_s* on, or None where it is silent."""
    begin_s, end_s = window_s
    windows: list[Window] = []
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            try:
                start_s, rate_hz, cv = (float(cell) for cell in row[:3])
                family = _FAMILIES.get(row[3], "gamma")
            except (ValueError, IndexError):
                raise SourceError(f"{path}: line {number}: expected begin, rate, cv and a family") from None
            if start_s >= end_s or start_s + _WINDOW_S <= begin_s:
                continue
            cv = min(max(cv, _CVS[0]), _CVS[1]) if rate_hz > 0 else 1.0
            windows.append(Window(max(0.0, start_s - begin_s), rate_hz, cv, family))  # type: ignore[arg-type]
    if not any(window.rate_hz for window in windows):
        return None
    return Windows(tuple(windows), end_s=windows[-1].start_s + _WINDOW_S)


def _read_hours(path: Path) -> tuple[Hours, Hours]:
    """Return the histograms of inputs and of outputs, those that are empty left out."""
    try:
        given: dict[str, dict[str, Any]] = msgspec.json.decode(path.read_bytes())
        return _read_histograms(given, "input_tokens"), _read_histograms(given, "output_tokens")
    except (msgspec.DecodeError, SyntaxError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise SourceError(f"{path}: expected histograms of lengths by time; {type(problem).__name__}") from None


def _read_histograms(given: dict[str, dict[str, Any]], name: str) -> Hours:
    told = sorted((float(begin), ast.literal_eval(histograms[name])) for begin, histograms in given.items())
    return [(begin, _cumulate(shares)) for begin, shares in told if shares]


def _cumulate(shares: dict[int, float]) -> Histogram:
    lengths = sorted(length for length, share in shares.items() if share > 0 and length > 0)
    upto = np.cumsum([float(shares[length]) for length in lengths])
    return np.array(lengths, np.int64), upto / upto[-1]


def _draw(hours: Hours, times_s: Floats, rng: np.random.Generator) -> Integers:
    """Return a length for each of the times, drawn from the histogram of its interval."""
    begins = np.array([begin for begin, _ in hours])
    which = np.maximum(np.searchsorted(begins, times_s, side="right") - 1, 0)
    draws = rng.random(len(times_s))
    drawn = np.zeros(len(times_s), np.int64)
    for number in np.unique(which).tolist():
        lengths, upto = hours[number][1]
        rows = which == number
        drawn[rows] = lengths[np.searchsorted(upto[:-1], draws[rows], side="right")]
    return drawn

# Clients of ServeGen: what is drawn follows their rates and their histograms, and the same seed draws the same.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadshape.errors import SourceError
from loadshape.recording import Recording
from loadshape.sources.requests import guess_format


def write_client(
    folder: Path, number: int, rates: list[tuple[float, float, str]], hours: dict[str, tuple[str, str]] | None
) -> None:
    lines = [f"{600 * n},{rate},{cv},{family},0.5,1" for n, (rate, cv, family) in enumerate(rates)]
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(lines))
    if hours is not None:
        told = {begin: {"input_tokens": one, "output_tokens": other} for begin, (one, other) in hours.items()}
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(told))


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    busy = [(0.5, 1.0, "Gamma"), (0.0, 0.0, ""), (2.0, 3.0, "Weibull")]
    hours = {"0": ("{10: 0.25, 30: 0.75}", "{5: 1.0}"), "600": ("{}", "{}"), "1200": ("{70: 1.0}", "{7: 0.5, 9: 0.5}")}
    write_client(tmp_path, 0, busy, hours)
    write_client(tmp_path, 3, [(0.1, 1.0, "Gamma")] * 3, None)
    write_client(tmp_path, 12, [(0.0, 0.0, "")] * 3, None)
    return tmp_path


def test_a_window_of_clients(clients: Path) -> None:
    recording = Recording.read(clients, window_s=(0, 1800), seed=7)
    assert recording.due_ns is not None
    assert (recording.due_ns[1:] >= recording.due_ns[:-1]).all()
    due_s = recording.due_ns / 1e9
    quarters = [int(((due_s >= begin) & (due_s < begin + 600)).sum()) for begin in (0, 600, 1200)]
    assert quarters[1] == 0
    assert 220 <= quarters[0] <= 380  # 300 expected, CV 1
    assert 800 <= quarters[2] <= 1600  # 1,200 expected, CV 3
    early = due_s < 600
    assert set(recording.input_tokens[early].tolist()) == {10, 30}
    assert 0.6 < (recording.input_tokens[early] == 30).mean() < 0.9
    assert set(recording.input_tokens[~early].tolist()) == {70}
    assert set(recording.output_tokens[~early].tolist()) == {7, 9}
    assert {entry.tenant for entry in recording.entries} == {"client-0"}
    assert recording.facts.account.dropped == {"client_without_lengths": 1}
    assert recording.facts.first_problem == "client 3: chunk-3-dataset.json is missing"


def test_the_seed_decides(clients: Path) -> None:
    one, same, other = (Recording.read(clients, window_s=(0, 600), seed=seed).due_ns for seed in (7, 7, 8))
    assert one is not None
    assert same is not None
    assert one.tolist() == same.tolist() != (other.tolist() if other is not None else None)


def test_a_later_window_counts_from_its_begin(clients: Path) -> None:
    recording = Recording.read(clients, "servegen", window_s=(1500, 1600), seed=7)
    assert recording.due_ns is not None
    assert recording.due_ns.max() < 100 * 10**9
    assert recording.duration_s == 100


WRONG: dict[str, tuple[str, str, str]] = {
    "a line that is none": ("chunk-0-trace.csv", "0,fast,1,Gamma", "line 1: expected begin, rate, cv and a family"),
    "a histogram that is code": (
        "chunk-0-dataset.json",
        '{"0": {"input_tokens": "exit()", "output_tokens": "{}"}}',
        "expected histograms of lengths by time",
    ),
    "no JSON": ("chunk-0-dataset.json", "{", "expected histograms of lengths by time"),
}


@pytest.mark.parametrize("name", WRONG)
def test_damaged_clients_are_named(clients: Path, name: str) -> None:
    file, text, message = WRONG[name]
    (clients / file).write_text(text)
    with pytest.raises(SourceError, match=rf"{file}: {message}"):
        Recording.read(clients, window_s=(0, 600))


def test_other_refusals(clients: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert guess_format(clients) == ("servegen", "chunk-0-trace.csv")
    with pytest.raises(SourceError, match="window: expected which part"):
        Recording.read(clients, "servegen")
    with pytest.raises(SourceError, match=r"expected clients of ServeGen .* found none"):
        Recording.read(tmp_path_factory.mktemp("empty"), "servegen", window_s=(0, 600))

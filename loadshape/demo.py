# The main job from end to end, on real text, against the embedded endpoint.
#
# Law: the demo does nothing that the commands cannot do; it strings them together and says what it does.
# Its input is pinned, so its fixture and its trace have published digests (traces/golden/demo.json). Where
# they are not met, it says which conversations differ, and goes on: the recognizer of names computes in
# floats, which can differ between CPUs.

"""The demo: ShareGPT text to a verdict, in six steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from loadshape.endpoint import Script, running
from loadshape.errors import InputError
from loadshape.fixture import Fixture
from loadshape.live import watch_replay
from loadshape.packaged import find_data
from loadshape.policy import Policy
from loadshape.progress import Teller
from loadshape.recipe import Recipe
from loadshape.replayer import choose_processes, replay
from loadshape.replayer.job import Settings
from loadshape.report import render
from loadshape.sanitizer import sanitize
from loadshape.sources import read
from loadshape.sources.sharegpt import locate_sharegpt
from loadshape.summary import Objectives, Summary, summarize
from loadshape.target import Target
from loadshape.trace import Trace
from loadshape.units import format_bytes

CONVERSATIONS = 100
MAX_CHARACTERS = 8_000
RECIPE = "balanced-chat"
GOLDEN = "traces/golden/demo.json"
SCRIPT = Script(ttft_s=0.06, itl_s=0.012, ttft_jitter=0.5, itl_jitter=0.3, prefill_s_per_token=0.00005)
OBJECTIVES = Objectives(ttft_s=0.2, tpot_s=0.02)


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The digests that the demo's pinned input gave when this version was released."""

    fixture: str
    trace: str
    conversations: dict[str, str]


def run_demo(folder: Path, teller: Teller, *, processes: int = 2) -> Summary:
    """Do the six steps inside *folder*, which is made; return the summary of the replay."""
    folder.mkdir(parents=True, exist_ok=True)
    fixture = make_fixture(folder, teller, processes=processes)
    trace = shape_trace(folder, fixture, teller)
    compare_published(fixture, trace, teller)
    with start_endpoint(teller) as url:
        summary = play(folder, url, trace, teller)
    (folder / "demo.html").write_text(render(summary, "html"), encoding="utf-8")
    teller.say(f"6/6 report: {folder / 'demo.html'}")
    return summary


def make_fixture(folder: Path, teller: Teller, *, processes: int) -> Fixture:
    """Read, sanitize and store the first conversations of the packaged ShareGPT file."""
    path = locate_sharegpt()
    teller.say(f"1/6 read {path.name} ({format_bytes(path.stat().st_size)}, a declared partial input)")
    source = read("sharegpt", path, limit=CONVERSATIONS, max_characters=MAX_CHARACTERS)
    policy = Policy.load("default")
    teller.say(f"2/6 sanitize {CONVERSATIONS} conversations under policy {policy.name!r}")
    with teller.task("sanitize", CONVERSATIONS) as task:
        clean = sanitize(
            source,
            policy,
            processes=processes,
            progress=lambda done: task.update(done, f"{done} of {CONVERSATIONS} conversations"),
        )
        fixture = Fixture.write(folder / "demo.fixture", clean, force=True)
    account = fixture.manifest.account
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(account.dropped.items()))
    teller.say(f"    rows: {account.read:,} read = {account.kept:,} kept + dropped ({dropped})")
    found = ", ".join(f"{entity} {count}" for entity, count in sorted(fixture.findings.items()))
    teller.say(f"    removed: {found or 'nothing'}")
    return fixture


def shape_trace(folder: Path, fixture: Fixture, teller: Teller) -> Trace:
    """Draw the recipe's traffic over the fixture and store it."""
    trace = Recipe.load(RECIPE).trace(fixture)
    trace.write(folder / "demo.trace", force=True)
    about = trace.manifest
    teller.say(f"3/6 shape {RECIPE}: {about.requests:,} requests over {about.duration_s:g} s, Poisson")
    return trace


def compare_published(fixture: Fixture, trace: Trace, teller: Teller) -> None:
    """Say whether the digests are the published ones, and if not, which conversations differ."""
    published = msgspec.json.decode(find_data(GOLDEN).read_bytes(), type=Published)
    if (fixture.digest, trace.digest) == (published.fixture, published.trace):
        teller.say(f"    fixture {_short(fixture.digest)} and trace {_short(trace.digest)}: the published digests")
        return
    teller.say(f"    fixture {_short(fixture.digest)}, published {_short(published.fixture)}")
    teller.say(f"    trace   {_short(trace.digest)}, published {_short(published.trace)}")
    differing = fixture.difference(published.conversations)
    told = ", ".join(differing) or "none, so the policy or the recipe is another"
    teller.say(f"    not the published ones; conversations that differ: {told}")


@contextmanager
def start_endpoint(teller: Teller) -> Iterator[str]:
    """Run the embedded endpoint in a process of its own while the block runs; give its URL."""
    with running(SCRIPT, model="demo") as url:
        teller.say(f"4/6 endpoint at {url}: TTFT {SCRIPT.ttft_s * 1e3:g} ms, a token every {SCRIPT.itl_s * 1e3:g} ms")
        yield url


def play(folder: Path, url: str, trace: Trace, teller: Teller) -> Summary:
    """Replay the trace and judge the log."""
    processes = choose_processes()
    teller.say(f"5/6 replay, {processes} worker process{'es' if processes > 1 else ''}")
    with watch_replay(teller, trace, Settings()) as watch:
        log = replay(folder / "demo.trace", Target(url), log=folder / "demo.log", watch=watch, force=True)
    return summarize(log, objectives=OBJECTIVES)


def publish(folder: Path) -> Published:
    """Return the digests of a demo that was run in *folder*; how traces/golden/demo.json is made."""
    fixture, trace = Fixture.open(folder / "demo.fixture"), Trace.open(folder / "demo.trace")
    if not len(fixture):
        raise InputError(f"{folder}: the demo's fixture is empty")
    return Published(fixture.digest, trace.digest, fixture.conversation_digests())


def _short(digest: str) -> str:
    return digest.partition(":")[2][:12]

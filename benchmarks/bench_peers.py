# What do other load generators report of the same work, and what does it cost them?
#
#     setsid -w python benchmarks/bench_peers.py --peers FOLDER --server PATH [--tools NAME ...] [--works NAME ...]
#     python benchmarks/bench_peers.py --table LINES.json
#
# Every tool that is installed below FOLDER (benchmarks/peers.py says where) gets the same work from its own command
# line, with its defaults. The server (benchmarks/truth.py, --server) runs on core 0 and logs when it had each request
# and wrote each chunk; the tool runs on core 1; their sessions have the highest weight. An error is the statistic that
# the tool reports minus the same statistic of the server's log. Prints a JSON line a run, then one
# Markdown table of medians; --table makes the table of lines that were kept.
#
# Limits: loopback; one client core, which suits one process and holds back those that would use ten; 10 s or two
# rounds a run. A tool's own summary is compared, so what it defines otherwise differs by definition: vllm bench takes
# the role chunk for the first token, one more gap a request; loadshape's TTFT is service_ttft, from the send, as the
# others have it, and that from the due instant stands beside it. CPU is of all processes from start to exit, importing
# and judging included (for loadshape: shape and replay; making the fixture and any installing are in no row), memory
# the peak of the sum of their PSS, sampled at most ten times a second. Only root keeps the core from others: without
# it the rows measure the neighbours too.

"""Run loadshape and other load generators on the same work and compare what they report with the truth."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from peers import TOOLS, Place, Tool, Work, make_fixture, make_tokenizer
from truth import RECORD, serving

from loadshape.environment import describe_host

ARRIVED, WRITE, ENDED, CONTENT = 1, 3, 4, 2  # kinds of records in the server's log; the flag of a write with a token
TICK_S, CLIENT_CORE, SERVER_CORE = 1 / os.sysconf("SC_CLK_TCK"), 1, 0
LIMIT_S = 75.0  # then the run is ended, and counts as not finished

WORKS = {
    "start": Work("start", 10, 16, 0.01, rate_hz=10),
    "200/s": Work("200/s", 2000, 16, 0.01, rate_hz=200),
    "500/s": Work("500/s", 5000, 16, 0.01, rate_hz=500),
    "1000/s": Work("1000/s", 10000, 16, 0.01, rate_hz=1000),
    "2000/s": Work("2000/s", 20000, 16, 0.01, rate_hz=2000),
    "1000 streams": Work("1000 streams", 2000, 128, 0.02, streams=1000),
    "2000 streams": Work("2000 streams", 4000, 128, 0.02, streams=2000),
}


@dataclass
class Usage:
    """What a command and everything that it started used."""

    exit: int | None = None
    timed_out: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    pss_mb: float = 0.0
    processes: int = 0


def run_metered(words: list[str], environment: dict[str, str], output: Path, limit_s: float) -> Usage:
    """Run a command on the client's core, and account for it and for all that it starts."""
    began, usage, cpu_s = time.monotonic(), Usage(), dict[int, float]()
    with output.open("wb") as stdout, output.with_suffix(".err").open("wb") as stderr:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1", **environment},
            start_new_session=True,
            preexec_fn=_take_core,
        )
    try:
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            _sample(process.pid, usage, cpu_s)
            if not usage.timed_out and time.monotonic() - began > limit_s:
                usage.timed_out = True
                _end(cpu_s)
            time.sleep(0.5 if time.monotonic() - began > 5 else 0.1)
    finally:
        _end(cpu_s)  # and whatever it left behind
    usage.exit = process.returncode = os.waitstatus_to_exitcode(ended[1])
    usage.wall_s = time.monotonic() - began
    usage.cpu_s = max(sum(cpu_s.values()), ended[2].ru_utime + ended[2].ru_stime)
    return usage


def _take_core() -> None:
    os.sched_setaffinity(0, {CLIENT_CORE})
    with suppress(OSError):  # not root
        os.setpriority(os.PRIO_PROCESS, 0, -15)


def _weigh(pid: int) -> None:
    """Give the session of a process the highest weight against other sessions; a niceness counts only inside one."""
    with suppress(OSError):  # not root, or no such kernel
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def _family(known: Iterable[int]) -> dict[int, list[str]]:
    """Return {process: fields of its stat after the name} of the processes that are known and all their children."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    family, more = set[int](), set(known) & set(stats)
    while more:
        family |= more
        more = {pid for pid, fields in stats.items() if pid not in family and int(fields[1]) in family}
    return {pid: stats[pid] for pid in family}


def _sample(leader: int, usage: Usage, cpu_s: dict[int, float]) -> None:
    now, pss_kb = _family({leader, *cpu_s}), 0
    for pid, fields in now.items():
        if pid not in cpu_s:
            _weigh(pid)
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            pss_kb += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
        cpu_s[pid] = (int(fields[11]) + int(fields[12])) * TICK_S
    usage.pss_mb = max(usage.pss_mb, pss_kb / 1e3)
    usage.processes = max(usage.processes, len(now))


def _end(pids: Iterable[int]) -> None:
    for pid in _family(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run_tool(tool: Tool, work: Work, tools: Path, server: str) -> dict[str, Any]:
    """Give one tool one piece of work; return its cost, what it reported, the truth, and the differences."""
    with tempfile.TemporaryDirectory() as name:
        folder, usages, left_s = Path(name), list[Usage](), LIMIT_S
        with serving(folder, work.ttft_s, work.itl_s, server=server) as truth:
            place = Place(tools.resolve(), folder, truth.url.removesuffix("/v1"))
            for number, words in enumerate(tool.prepare(place, work)):
                output = folder / f"{number}.out"
                usages.append(run_metered(words, tool.environment, output, left_s))
                left_s -= usages[-1].wall_s
        true = read_truth(truth.truth, work)
        row = {"tool": tool.name, "work": work.name, "load": os.getloadavg()[0], **_add(usages), **true}
        try:
            reported = tool.read(folder)
        except (OSError, ValueError, LookupError, TypeError) as problem:
            said = output.with_suffix(".err").read_text(errors="replace") or output.read_text(errors="replace")
            return row | {"problem": f"no report: {type(problem).__name__}: {problem}", "said": said[-500:]}
        errors = {name: _subtract(reported.get(name), true["true_ms"][name]) for name in true["true_ms"]}
        errors["ttft_from_due"] = _subtract(reported.get("ttft_from_due"), true["true_ms"]["ttft"])
        return row | {"reported": reported, "error_ms": errors}


def _subtract(reported: dict[str, float] | None, true: dict[str, float]) -> dict[str, float]:
    return {name: round(value - true[name], 4) for name, value in (reported or {}).items()}


def _add(usages: list[Usage]) -> dict[str, Any]:
    return {
        "exits": [usage.exit for usage in usages],
        "timed_out": any(usage.timed_out for usage in usages),
        "wall_s": round(sum(usage.wall_s for usage in usages), 2),
        "cpu_s": round(sum(usage.cpu_s for usage in usages), 2),
        "pss_mb": round(max(usage.pss_mb for usage in usages), 1),
        "processes": max(usage.processes for usage in usages),
    }


def read_truth(path: Path, work: Work) -> dict[str, Any]:
    """Return what the server saw: requests, their rate and gaps, streams at once, and the latencies that it made."""
    rows = np.frombuffer(path.read_bytes()[64:], RECORD)
    asked = rows[(rows["kind"] == ARRIVED) & (rows["request"] > 0)]
    if len(asked) < 2:
        return {"requests": len(asked), "true_ms": {}}
    arrived_ns = np.zeros(int(asked["request"].max()) + 1, np.int64)
    arrived_ns[asked["request"]] = asked["after"]
    writes = rows[(rows["kind"] == WRITE) & (rows["flags"] & CONTENT > 0)]
    writes = writes[np.argsort(writes["request"], kind="stable")]
    edges = np.flatnonzero(np.r_[True, np.diff(writes["request"]) != 0, True])
    first, last = writes["before"][edges[:-1]], writes["before"][edges[1:] - 1]
    gaps_ns = np.delete(np.diff(writes["before"]), edges[1:-1] - 1)
    at_ns = np.sort(asked["after"])
    ended = rows[(rows["kind"] == ENDED) & np.isin(rows["request"], asked["request"])]["before"]
    steps = np.r_[np.c_[at_ns, np.ones(len(at_ns))], np.c_[ended, -np.ones(len(ended))]]
    return {
        "requests": len(asked),
        "achieved_hz": round((len(at_ns) - 1) / float(at_ns[-1] - at_ns[0]) * 1e9, 1),
        "gap_distance": round(_distance(np.diff(at_ns) / 1e9, work.rate_hz), 4) if work.rate_hz else None,
        "streams": int(np.cumsum(steps[np.argsort(steps[:, 0], kind="stable"), 1]).max()),
        "server_late_p99_ms": round(float(np.percentile(writes["before"] - writes["due"], 99)) / 1e6, 3),
        "true_ms": {
            "ttft": _describe(first - arrived_ns[writes["request"][edges[:-1]]]),
            "icl": _describe(gaps_ns),
            "itl": _describe((last - first) / np.maximum(np.diff(edges) - 1, 1)),
        },
    }


def _distance(gaps_s: np.ndarray[Any, Any], rate_hz: float) -> float:
    """Return the largest distance of the gaps' distribution from the exponential of the asked rate (KS)."""
    expected, steps = 1 - np.exp(-rate_hz * np.sort(gaps_s)), np.arange(len(gaps_s) + 1) / len(gaps_s)
    return float(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()))


def _describe(values_ns: np.ndarray[Any, Any]) -> dict[str, float]:
    p50, p99 = np.percentile(values_ns, [50, 99]) / 1e6
    return {"mean": float(values_ns.mean()) / 1e6, "p50": float(p50), "p99": float(p99)}


COLUMNS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "work": lambda rows: rows[0]["work"],
    "tool": lambda rows: rows[0]["tool"],
    "got /s": lambda rows: f"{_median(rows, 'achieved_hz'):.0f}",
    "KS": lambda rows: f"{_median(rows, 'gap_distance'):.2f}",
    "streams": lambda rows: f"{_median(rows, 'streams'):.0f}",
    "TTFT error mean, p50, p99": lambda rows: _errors(rows, "ttft"),
    "from due": lambda rows: _errors(rows, "ttft_from_due"),
    "ICL error mean, p50, p99": lambda rows: _errors(rows, "icl"),
    "ITL error mean, p50, p99": lambda rows: _errors(rows, "itl"),
    "CPU ms a request": lambda rows: f"{statistics.median(1e3 * row['cpu_s'] / row['requests'] for row in rows):.2f}",
    "CPU s": lambda rows: f"{_median(rows, 'cpu_s'):.1f}",
    "wall s": lambda rows: f"{_median(rows, 'wall_s'):.1f}",
    "PSS MB": lambda rows: f"{_median(rows, 'pss_mb'):.0f}",
    "processes": lambda rows: f"{_median(rows, 'processes'):.0f}",
    "runs": lambda rows: f"{len(rows)}" + "".join(", 1 ended at the limit" for row in rows if row["timed_out"]),
}


def _median(rows: list[dict[str, Any]], key: str) -> float:
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else float("nan")


def _errors(rows: list[dict[str, Any]], name: str) -> str:
    found = [row["error_ms"][name] for row in rows if row.get("error_ms", {}).get(name)]
    values = [_median(found, key) for key in ("mean", "p50", "p99")] if found else []
    return ", ".join(f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}" for value in values) or "-"


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table: a row a work and tool, medians over its runs; errors in ms."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS)]
    for work in WORKS:
        for tool in TOOLS:
            runs = [row for row in rows if (row["work"], row["tool"]) == (work, tool.name) and row.get("requests")]
            if runs:
                lines.append([str(column(runs)).replace("nan", "-") for column in COLUMNS.values()])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> None:
    """Run what was asked for; print a JSON line a run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="the folder that the tools are installed in")
    parser.add_argument("--server", default=os.environ.get("LOADSHAPE_TRUTH_SERVER"), help="the truth server's program")
    parser.add_argument("--tools", nargs="*", choices=[tool.name for tool in TOOLS])
    parser.add_argument("--works", nargs="*", choices=list(WORKS))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--lock", type=Path, help="a file to lock during each run, for those who share this machine")
    parser.add_argument("--table", type=Path, help="run nothing; make the table of these JSON lines")
    given = parser.parse_args()
    if given.table:
        lines = given.table.read_text().splitlines()
        print(make_table([json.loads(line) for line in lines if line.startswith('{"tool"')]))
        return
    if not given.peers or not given.server:
        parser.error("--peers and --server are needed")
    for name, make in {"tokenizer": make_tokenizer, "peers.fixture": make_fixture}.items():
        if not (given.peers / name).exists():
            make(given.peers / name)
    print(json.dumps({"host": describe_host(), "load": os.getloadavg()}), flush=True)
    os.sched_setaffinity(0, {SERVER_CORE})
    if os.getsid(0) == os.getpid():  # a session of our own, which the server shares
        _weigh(os.getpid())
    tools = [tool for tool in TOOLS if not given.tools or tool.name in given.tools]
    for tool in tools:
        if not (given.peers / tool.needs).exists():
            print(json.dumps({"skipped": tool.name, "why": f"{given.peers / tool.needs} is missing"}), flush=True)
    ready = [tool for tool in tools if (given.peers / tool.needs).exists()]
    rows = []
    for _, name, tool in product(range(given.repeats), given.works or WORKS, ready):  # tools side by side in time
        with (given.lock or Path(os.devnull)).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            rows.append(run_tool(tool, WORKS[name], given.peers, given.server))
        print(json.dumps(rows[-1]), flush=True)
    print(make_table(rows))


if __name__ == "__main__":
    main()

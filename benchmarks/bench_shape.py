# How many requests a second can be shaped, and how soon is the first one of a large trace at hand?
#
# Traffic of an invented fixture in memory: lognormal inputs, empirical outputs and a prefix tree of three levels, for
# a share (`composed`) or a hit rate in blocks (`blocks`); a tenth as many requests with one prompt of 8,192 tokens
# (`shared_prompt`); or the fixture's pairs as they are (`pairs`). Shaping includes the digest and the statistics,
# so it is what `loadshape shape` does without writing. Writing, opening and verifying are measured apart, on --folder.
# With --sharegpt the pairs are those of real conversations, each once, and the time is set against what the tokenizer
# alone takes to count the same texts in one batch: `over_tokenizer` is the ratio.
# Limits: one process, one run of each; seconds are of the clock, cpu_s of this process, which is what to compare on a
# machine that others share (the tokenizer has threads, there it may be more than the seconds); the file cache is warm,
# so opening is mapping and checking, not reading from a disk. With --tokenizer counts are those of a tokenizer.json.

"""Shape traffic, write it, open it, and print seconds, sizes and peak memory as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from invention import InventedFixture

from loadshape.arrival import Constant, Poisson
from loadshape.length import Empirical, LogNormal
from loadshape.prefix import PrefixTree
from loadshape.shape import Shape
from loadshape.sources import read
from loadshape.tokenizer import load_tokenizer
from loadshape.trace import Trace

RATE_HZ = 1000


def measure(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return what *call* returns, the seconds it took, and the CPU seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, round(time.perf_counter() - start, 3), round(time.process_time() - cpu, 3)


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1_000_000 if sys.platform == "darwin" else 1000)


def measure_shape(shape: Shape, fixture: Any, requests: int, folder: Path) -> dict[str, Any]:
    trace, shape_s, cpu_s = measure(lambda: shape.trace(fixture, duration_s=requests / RATE_HZ, seed=7))
    path, write_s, _ = measure(lambda: trace.write(folder / "bench.trace", force=True))
    (opened, first), open_s, _ = measure(lambda: (opened := Trace.open(path), opened.requests.slice(0, 1).to_pylist()))
    _, verify_s, _ = measure(opened.verify)
    assert first[0]["request"] == 0
    return {
        "requests": trace.requests.num_rows,
        "input_tokens": int(pa.compute.sum(trace.requests["input_tokens"]).as_py()),
        "shape_s": shape_s,
        "cpu_s": cpu_s,
        "requests_per_s": round(trace.requests.num_rows / shape_s),
        "requests_per_cpu_s": round(trace.requests.num_rows / cpu_s),
        "write_s": write_s,
        "open_to_first_request_s": open_s,
        "verify_s": verify_s,
        "bytes_on_disk": sum(file.stat().st_size for file in path.iterdir()),
        "shared_share": round(trace.manifest.statistics["shared_share"], 4),
        "input_tokens_error": trace.manifest.statistics.get("input_tokens_error"),
        "peak_rss_mb": peak_mb(),
    }


class Conversations:
    """The pairs of a ShareGPT file in memory, unsanitized: nothing of it leaves this process."""

    digest = "sha256:" + "00" * 32

    def __init__(self, path: Path) -> None:
        source = read("sharegpt", path, partial=True)
        found = [
            (prompt.text, answer.text)
            for conversation in source
            for prompt, answer in pairwise(conversation.messages)
            if (prompt.role, answer.role) == ("user", "assistant")
        ]
        self.pairs = [pair for pair in found if pair[0]]
        policy = SimpleNamespace(name="none", digest="00" * 32)
        self.manifest = SimpleNamespace(conversations=len(self.pairs), provenance=None, policy=policy)

    def prompts(self) -> list[tuple[str, str]]:
        return self.pairs


def measure_tokenizer(path: Path, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Shape every pair of a ShareGPT file once, and count the same texts with the tokenizer alone, before and after."""
    material = Conversations(path)
    texts = list(dict.fromkeys(text for pair in material.pairs for text in pair))
    shape = Shape(Constant(rate_hz=RATE_HZ), tokenizer=tokenizer)
    before, alone_s, alone_cpu_s = measure(lambda: sum(tokenizer.count(texts)))
    found = measure_shape(shape, material, len(material.pairs), folder)
    after, again_s, again_cpu_s = measure(lambda: sum(tokenizer.count(texts)))
    assert before == after
    return found | {
        "tokenizer_s": [alone_s, again_s],
        "tokenizer_cpu_s": [alone_cpu_s, again_cpu_s],
        "over_tokenizer": round(2 * found["cpu_s"] / (alone_cpu_s + again_cpu_s), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tokenizer", help="a tokenizer.json, or a name that load_tokenizer knows; else the estimate")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--sharegpt", type=Path, help="a ShareGPT file, whole or cut, to set against the tokenizer")
    parser.add_argument("--only", nargs="*", help="names of the shapes to measure")
    wanted = parser.parse_args()
    fixture, tokenizer = InventedFixture(1000), load_tokenizer(wanted.tokenizer)
    arrivals, inputs = Poisson(rate_hz=RATE_HZ), LogNormal(median_tokens=512, sigma=0.9)
    outputs = Empirical.of(fixture, tokenizer)
    trees = {"composed": PrefixTree(share=0.6, depth=3), "blocks": PrefixTree(hit_rate=0.6, depth=3)}
    shapes = {"pairs": Shape(arrivals, tokenizer=tokenizer)}
    shapes |= {name: Shape(arrivals, inputs, outputs, tree, tokenizer=tokenizer) for name, tree in trees.items()}
    long, prompt = LogNormal(median_tokens=8_600, sigma=0.02), PrefixTree(prefix_tokens=8_192)
    shapes["shared_prompt"] = Shape(arrivals, long, outputs, prompt, tokenizer=tokenizer)
    found: dict[str, Any] = {"tokenizer": tokenizer.about["name"]}
    with tempfile.TemporaryDirectory(dir=wanted.folder) as folder:
        for name, shape in shapes.items():
            if wanted.only is None or name in wanted.only:
                requests = wanted.requests // 10 if name == "shared_prompt" else wanted.requests
                found[name] = measure_shape(shape, fixture, requests, Path(folder))
        if wanted.sharegpt:
            found["sharegpt"] = measure_tokenizer(wanted.sharegpt, tokenizer, Path(folder))
    found["machine"] = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
    found["versions"] = {"numpy": np.__version__, "pyarrow": pa.__version__}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

# How many requests a second can be shaped, and how soon is the first one of a large trace at hand?
#
# Traffic of an invented fixture in memory: lognormal inputs, empirical outputs and a prefix tree of three levels
# (`composed`), or the fixture's pairs as they are (`pairs`). Shaping includes the digest and the statistics, so it
# is what `loadshape shape` does without writing. Writing, opening and verifying are measured apart, on --folder.
# Limits: one process, one run of each, whatever else the machine does counts; the file cache is warm, so opening
# is mapping and checking, not reading from a disk. With --tokenizer counts are those of a tokenizer.json.

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
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from invention import InventedFixture

from loadshape.arrival import Poisson
from loadshape.length import Empirical, LogNormal
from loadshape.prefix import PrefixTree
from loadshape.shape import Shape
from loadshape.tokenizer import load_tokenizer
from loadshape.trace import Trace

RATE_HZ = 1000


def measure(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, round(time.perf_counter() - start, 3)


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1_000_000 if sys.platform == "darwin" else 1000)


def measure_shape(shape: Shape, fixture: InventedFixture, requests: int, folder: Path) -> dict[str, Any]:
    trace, shape_s = measure(lambda: shape.trace(fixture, duration_s=requests / RATE_HZ, seed=7))
    path, write_s = measure(lambda: trace.write(folder / "bench.trace", force=True))
    (opened, first), open_s = measure(lambda: (opened := Trace.open(path), opened.requests.slice(0, 1).to_pylist()))
    _, verify_s = measure(opened.verify)
    assert first[0]["request"] == 0
    return {
        "requests": trace.requests.num_rows,
        "input_tokens": int(pa.compute.sum(trace.requests["input_tokens"]).as_py()),
        "shape_s": shape_s,
        "requests_per_s": round(trace.requests.num_rows / shape_s),
        "write_s": write_s,
        "open_to_first_request_s": open_s,
        "verify_s": verify_s,
        "bytes_on_disk": sum(file.stat().st_size for file in path.iterdir()),
        "shared_share": round(trace.manifest.statistics["shared_share"], 4),
        "input_tokens_error": trace.manifest.statistics.get("input_tokens_error"),
        "peak_rss_mb": peak_mb(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tokenizer", help="a tokenizer.json, or a name that load_tokenizer knows; else the estimate")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    wanted = parser.parse_args()
    fixture, tokenizer = InventedFixture(1000), load_tokenizer(wanted.tokenizer)
    shapes = {
        "pairs": Shape(Poisson(rate_hz=RATE_HZ), tokenizer=tokenizer),
        "composed": Shape(
            arrivals=Poisson(rate_hz=RATE_HZ),
            inputs=LogNormal(median_tokens=512, sigma=0.9),
            outputs=Empirical.of(fixture, tokenizer),
            prefixes=PrefixTree(share=0.6, depth=3),
            tokenizer=tokenizer,
        ),
    }
    found: dict[str, Any] = {"tokenizer": tokenizer.about["name"]}
    with tempfile.TemporaryDirectory(dir=wanted.folder) as folder:
        for name, shape in shapes.items():
            found[name] = measure_shape(shape, fixture, wanted.requests, Path(folder))
    found["machine"] = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
    found["versions"] = {"numpy": np.__version__, "pyarrow": pa.__version__}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

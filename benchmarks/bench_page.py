# How large is the page of a report, and how fast does a browser open it?
#
# A synthetic run of a million requests (four reads each) is judged in memory and rendered; then a Chromium without a
# window opens the file several times. Opened means that the document is loaded and its scripts have run; figures are
# drawn when they come into view, which is measured apart: until all of them are there, scrolled through.
# Limits: the file lies in the page cache; a window on a screen also paints. Seconds on the clock grow with whatever
# else the machine does.

"""Render a synthetic run, open the page in Chromium, and print sizes and seconds as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from chromium import browsing, find_chromium
from logs import synthesize_log
from pages import plan

from loadshape.report import render
from loadshape.summary import summarize

READS_EACH = 4
OPENINGS = 5


async def open_page(program: str, path: Path) -> dict[str, float]:
    opened, drawn = [], []
    async with browsing(program, path.parent / "profile") as page:
        for _ in range(OPENINGS):
            await page.open(path)
            opened.append(page.opened_s)
            start = time.perf_counter()
            await page.draw_all()
            drawn.append(time.perf_counter() - start)
    return {"opened_s": median(opened), "opened_max_s": max(opened), "drawn_s": median(drawn)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    wanted = parser.parse_args()
    log = plan(synthesize_log(wanted.requests, READS_EACH, duration_s=max(20.0, wanted.requests / 1000)))
    summary = summarize(log)
    start = time.perf_counter()
    page = render(summary, "html")
    found = {"requests": wanted.requests, "bytes": len(page.encode()), "rendered_s": time.perf_counter() - start}
    program = find_chromium()
    with tempfile.TemporaryDirectory(prefix="bench-page-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "report.html"
        path.write_text(page, encoding="utf-8")
        seen = asyncio.run(open_page(program, path)) if program else {"browser": "none found"}
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
    print(json.dumps(found | seen | {"machine": machine, "load_average": os.getloadavg()[0]}, indent=2))


if __name__ == "__main__":
    main()

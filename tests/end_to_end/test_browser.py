"""Every page in a real browser, without a window: its figures are drawn, nothing is asked for, nothing complains.

LOADSHAPE_CHROMIUM names the browser where it has another name.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chromium import browsing, find_chromium
from pages import make_comparison, make_curve, make_found, make_summary

from loadshape.report import render

PROGRAM = find_chromium()
PAGES = {"report": make_summary, "comparison": make_comparison, "sweep": make_curve, "search": make_found}
VIEWS = {"day, wide": (1280, False), "night, narrow": (390, True)}
LOOK = """({
  places: document.querySelectorAll(".plot").length,
  overflow: document.documentElement.scrollWidth - innerWidth,
  paper: getComputedStyle(document.body).backgroundColor,
  empty: [...document.querySelectorAll(".plot")].filter((it) => !it.querySelector(
    ".scatterlayer path, .scatterlayer .point, .heatmaplayer image, .barlayer .point path")).map((it) => it.id),
  clipped: [...document.querySelectorAll(".legendtext, .g-xtitle text, .g-ytitle text")].filter((it) => {
    const own = it.getBoundingClientRect(), plot = it.closest(".plot").getBoundingClientRect();
    return own.right > plot.right + 1 || own.left < plot.left - 1;
  }).map((it) => it.textContent),
})"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PROGRAM is None, reason="needs a Chromium on this machine (Debian: apt install chromium), and found none"
    ),
]


async def look(path: Path, folder: Path, width: int, dark: bool) -> dict[str, Any]:
    async with browsing(str(PROGRAM), folder, width=width, dark=dark) as page:
        await page.open(path)
        drawn = await page.draw_all()
        seen: dict[str, Any] = await page.evaluate(LOOK)
        return seen | {"drawn": drawn, "problems": page.problems}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_a_browser_draws_every_figure(name: str, view: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.html"
    path.write_text(render(PAGES[name](), "html"), encoding="utf-8")
    width, dark = VIEWS[view]
    seen = asyncio.run(look(path, tmp_path / "profile", width, dark))
    assert seen["problems"] == []
    assert seen["drawn"] == seen["places"] > 0
    assert seen["empty"] == []
    assert seen["clipped"] == []
    assert seen["overflow"] <= 0
    assert seen["paper"] == ("rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)")


def test_the_browser_would_see_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<img src='http://192.0.2.1/x.png'><script>console.warn('odd'); undefined.name</script>")
    seen = asyncio.run(look(path, tmp_path / "profile", 800, False))
    told = "\n".join(seen["problems"])
    assert [word for word in ("192.0.2.1", "odd", "TypeError") if word not in told] == []


def test_the_waterfall_can_be_laid_out_in_the_run(tmp_path: Path) -> None:
    async def press() -> list[float]:
        async with browsing(str(PROGRAM), tmp_path / "profile") as page:
            await page.open(path)
            await page.draw_all()
            script = """(async () => {
              const plot = [...document.querySelectorAll(".plot")].find((it) => it.querySelector(".barlayer path"));
              const before = plot.layout.xaxis.range[1];
              plot.querySelectorAll(".updatemenu-button")[1].dispatchEvent(new MouseEvent("click", {bubbles: true}));
              await new Promise((go) => setTimeout(go, 500));
              return [before, plot.layout.xaxis.range[1]];
            })()"""
            found: list[float] = await page.evaluate(script)
            return found

    path = tmp_path / "report.html"
    path.write_text(render(make_summary(), "html"), encoding="utf-8")
    since_due_s, in_run_s = asyncio.run(press())
    assert since_due_s < 10 < in_run_s

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

PRESS = """(async () => {
  const plot = [...document.querySelectorAll(".plot")].find((it) => it.querySelector(".barlayer path"));
  const before = plot.layout.xaxis.range[1];
  plot.querySelectorAll(".updatemenu-button")[1].dispatchEvent(new MouseEvent("click", {bubbles: true}));
  for (let frame = 0; frame < 600 && plot.layout.xaxis.range[1] === before; frame++)
    await new Promise(requestAnimationFrame);
  return [before, plot.layout.xaxis.range[1]];
})()"""
BAD = "<img src='http://192.0.2.1/x.png'><script>console.warn('odd'); undefined.name</script>"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a browser on a busy machine takes its time
    pytest.mark.skipif(
        PROGRAM is None, reason="needs a Chromium on this machine (Debian: apt install chromium), and found none"
    ),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one browser saw of every page in every view, of the waterfall's button, and of a page that is bad."""
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(render(make(), "html"), encoding="utf-8")
    (folder / "bad.html").write_text(BAD, encoding="utf-8")
    return asyncio.run(look_at_all(folder))


async def look_at_all(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with browsing(str(PROGRAM), folder / "profile") as page:
        for name in PAGES:
            for view, (width, dark) in VIEWS.items():
                await page.open(folder / f"{name}.html", width=width, dark=dark)
                drawn = await page.draw_all()
                found[f"{name}: {view}"] = await page.evaluate(LOOK) | {"drawn": drawn, "problems": page.problems}
        await page.open(folder / "report.html")
        await page.draw_all()
        found["waterfall"] = await page.evaluate(PRESS)
        await page.open(folder / "bad.html")
        found["bad"] = page.problems
    return found


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_a_browser_draws_every_figure(seen: dict[str, Any], name: str, view: str) -> None:
    page = seen[f"{name}: {view}"]
    assert page["problems"] == []
    assert page["drawn"] == page["places"] > 0
    assert page["empty"] == []
    assert page["clipped"] == []
    assert page["overflow"] <= 0
    assert page["paper"] == ("rgb(18, 22, 28)" if VIEWS[view][1] else "rgb(255, 255, 255)")


def test_the_waterfall_can_be_laid_out_in_the_run(seen: dict[str, Any]) -> None:
    since_due_s, in_run_s = seen["waterfall"]
    assert since_due_s < 10 < in_run_s


def test_the_browser_would_see_a_problem(seen: dict[str, Any]) -> None:
    told = "\n".join(seen["bad"])
    assert [word for word in ("192.0.2.1", "odd", "TypeError") if word not in told] == []

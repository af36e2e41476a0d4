# A real browser that shows a page and tells what it saw, over the DevTools protocol.
#
# Chromium runs without a window; one WebSocket carries commands (by number) and events. A page that asked for
# an address, threw an error or wrote to the console has a problem, and `problems` holds it.

"""Headless Chromium: open a page by day or by night, wide or narrow, and look at it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 60.0
_FLAGS = ("--headless=new", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0", "--hide-scrollbars")
_WATCHED = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.requestWillBeSent")
_LOADED = "new Promise((go) => document.readyState === 'complete' ? go() : addEventListener('load', go))"
_SHOW_ALL = """(async () => {
  const places = [...document.querySelectorAll(".plot")];
  for (const place of places) {
    place.scrollIntoView();
    for (let frame = 0; frame < 600 && !place.querySelector("svg.main-svg"); frame++)
      await new Promise(requestAnimationFrame);
  }
  scrollTo(0, 0);
  return places.filter((place) => place.querySelector("svg.main-svg")).length;
})()"""


def find_chromium() -> str | None:
    """Return the path of a Chromium on this machine; LOADSHAPE_CHROMIUM names another."""
    return os.environ.get("LOADSHAPE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One open page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket, self._session = socket, session
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self.opened_s = 0.0

    @property
    def problems(self) -> list[str]:
        """Errors, console messages, and addresses that are not the page itself."""
        own = [it for it in self._events if it["method"] in _WATCHED]
        return [str(it["params"]) for it in own if not _is_harmless(it)]

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that come before it are kept."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "sessionId": self._session, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json(timeout=PATIENCE_S)
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            if "method" in message:
                self._events.append(message)

    async def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Show the file by day or by night; `opened_s` is how long that took, until all of it was read and run."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.ask("Emulation.setDeviceMetricsOverride", **metrics)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[theme])
        self._events.clear()
        start = time.perf_counter()
        await self.ask("Page.navigate", url=path.as_uri())
        await self.evaluate(_LOADED)
        self.opened_s = time.perf_counter() - start

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def draw_all(self) -> int:
        """Scroll through the page and return how many figures were drawn."""
        return int(await self.evaluate(_SHOW_ALL))

    async def photograph(self) -> bytes:
        """Return a PNG of the whole page."""
        size = (await self.ask("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = await self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])


def _is_harmless(event: dict[str, Any]) -> bool:
    url = event["params"].get("request", {}).get("url", "")
    return event["method"] == "Network.requestWillBeSent" and url.startswith(("file:", "data:", "blob:"))


@asynccontextmanager
async def browsing(program: str, folder: Path) -> AsyncIterator[Page]:
    """Run a browser with its files in *folder* and one empty page."""
    command = [program, *_FLAGS, "--no-sandbox", f"--user-data-dir={folder}", "about:blank"]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        port, path = await _read_address(folder / "DevToolsActivePort", process)
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0) as socket,
        ):
            page = await _attach(socket)
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.ask(f"{domain}.enable")
            yield page
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)


async def _read_address(path: Path, process: asyncio.subprocess.Process) -> tuple[str, str]:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.returncode is None:
        words = await asyncio.to_thread(_read_words, path)
        if len(words) == 2:
            return words[0], words[1]
        await asyncio.sleep(0.05)
    raise RuntimeError("the browser did not start")


def _read_words(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split() if path.exists() else []


async def _attach(socket: aiohttp.ClientWebSocketResponse) -> Page:
    targets = await _ask_browser(socket, 1, "Target.getTargets")
    (target,) = (it["targetId"] for it in targets["targetInfos"] if it["type"] == "page")
    attached = await _ask_browser(socket, 2, "Target.attachToTarget", targetId=target, flatten=True)
    return Page(socket, attached["sessionId"])


async def _ask_browser(
    socket: aiohttp.ClientWebSocketResponse, number: int, method: str, **params: Any
) -> dict[str, Any]:
    await socket.send_json({"id": number, "method": method, "params": params})
    while True:
        message = await socket.receive_json(timeout=PATIENCE_S)
        if message.get("id") == number:
            return dict(message["result"])

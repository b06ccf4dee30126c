"""A headless Chromium for tests, driven over its DevTools protocol (Chrome DevTools Protocol, domains Page, Runtime,
Emulation). Debian's package `chromium` brings it."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.harness import PATIENCE_S

PROGRAM = shutil.which("chromium")
NEEDED = pytest.mark.skipif(PROGRAM is None, reason="no browser here: chromium not found")
PLANT = "<img src=x onerror=\"document.title='planted'\"><script>document.title='planted'</script>"
"""What a hostile run puts into its texts: a page that runs it changes its title."""
_CONTRAST = """((texts) => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (one) => { for (; one; one = one.parentElement) {
    const c = parse(getComputedStyle(one).backgroundColor);
    if (c.length && (c.length < 4 || c[3] > 0.99)) return c; } return [255, 255, 255]; };
  return texts.filter((one) => one.checkVisibility()).map((one) => {
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), one.outerHTML.slice(0, 80)]; }).filter(([ratio]) => ratio < 4.5);
})"""
DEADLINE_S = 60.0


def low_contrast(texts: str) -> str:
    """An expression: those of an array of elements whose text has less contrast than 4.5 : 1 (WCAG 2.2, 1.4.3)."""
    return f"{_CONTRAST}({texts})"


class Tab:
    """A tab of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        """Errors on its console, uncaught exceptions, and breaches of the page's Content-Security-Policy."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; returns its result."""
        number = next(self._numbers)
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": parameters}))
        async with asyncio.timeout(DEADLINE_S):
            while True:
                message = json.loads(await self._socket.receive_str())
                self._note(message)
                if message.get("id") == number:
                    assert "error" not in message, f"{method}: {message['error']}"
                    return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(message["params"]["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.problems.append(message["params"]["entry"]["text"])

    async def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression: str, limit_s: float = PATIENCE_S) -> None:
        """Wait until the expression is true; until then it may raise, as the page may not be there yet."""
        tried = f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        try:
            async with asyncio.timeout(limit_s):
                while not await self.value(tried):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            page_text = await self.value("document.body.innerText.slice(0, 3000)")
            raise AssertionError(f"never true: {expression}\n{page_text}\n{self.problems}") from None

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Make the window that large, and light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if dark else "light"
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def picture(self, path: Path) -> None:
        """Write what the tab shows as PNG."""
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"]))


@asynccontextmanager
async def open_tab(address: str) -> AsyncIterator[Tab]:
    """A fresh browser with one tab at that address."""
    assert PROGRAM is not None, "Chromium is installed"
    with tempfile.TemporaryDirectory(prefix="everstep-chromium-", ignore_cleanup_errors=True) as home:
        flags = [
            "--headless=new",
            "--disable-gpu",
            "--no-first-run",
            "--remote-debugging-port=0",
            "--disable-dev-shm-usage",
        ]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        process = await asyncio.create_subprocess_exec(
            PROGRAM, *flags, f"--user-data-dir={home}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(home, "DevToolsActivePort"))
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [page for page in await answer.json() if page["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=1 << 28) as socket:
                    tab = Tab(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.call(f"{domain}.enable")
                    await tab.call("Page.navigate", url=address)
                    yield tab
        finally:
            process.kill()
            await process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(DEADLINE_S):
        while not (file.exists() and (lines := file.read_text().split())):
            await asyncio.sleep(0.05)
    return int(lines[0])

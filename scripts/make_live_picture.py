"""Renew docs/live.png: examples/live.py in a browser, just after its leader was killed and another took over.

    make live-picture            # needs chromium (Debian: apt-get install chromium) and a server at REDIS_URL

It starts the example, opens it in headless Chromium, presses "kill -9" in the leader's box, and takes the picture when
the page itself shows another leader. `make_live_picture.py TARGET --dark` takes it by night.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "live.png"
PORT = "8765"
LEADS = "document.querySelectorAll('.stands').length == {stands} && !!document.querySelector('.leads')"
DEAD = "!!document.querySelector('.dead')"
KILL = "document.querySelector('.leads .kill').click()"


class Browser:
    """A page in Chromium, by the protocol of its developer tools."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == self._calls:
                result: dict[str, Any] = message["result"]
                return result

    async def run(self, script: str) -> object:
        """What a piece of JavaScript gives."""
        return (await self.call("Runtime.evaluate", expression=script))["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until it gives true."""
        while not await self.run(script):  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.05)


async def take(socket: aiohttp.ClientWebSocketResponse, *, dark: bool) -> bytes:
    """Open the page, kill, wait, and look."""
    browser = Browser(socket)
    await browser.call("Emulation.setDeviceMetricsOverride", width=960, height=580, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await browser.call("Emulation.setEmulatedMedia", features=[scheme])
    await browser.call("Page.navigate", url=f"http://127.0.0.1:{PORT}")
    await browser.until(LEADS.format(stands=2))
    await asyncio.sleep(2)  # so that it has done something
    await browser.run(KILL)
    await browser.until(DEAD)
    await browser.until(LEADS.format(stands=1))
    await asyncio.sleep(1)
    return base64.b64decode((await browser.call("Page.captureScreenshot"))["data"])


async def main(*, dark: bool) -> bytes:
    """Start the example and the browser, and end both."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("there is no chromium: apt-get install chromium")
    box = await asyncio.create_subprocess_exec(sys.executable, ROOT / "examples" / "live.py", PORT, stdout=PIPE)
    assert box.stdout is not None
    await box.stdout.readline()
    await box.stdout.readline()  # it serves by now: something has happened
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless=new",
            "--hide-scrollbars",
            "--no-sandbox",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
        ]
        chromium = await asyncio.create_subprocess_exec(program, *options, stdout=DEVNULL, stderr=PIPE)
        try:
            assert chromium.stderr is not None
            async with asyncio.timeout(60), aiohttp.ClientSession() as session:
                while not (line := (await chromium.stderr.readline()).decode()).startswith("DevTools listening on "):
                    pass
                tools = line.split("/")[2]
                async with session.put(f"http://{tools}/json/new") as answer:
                    url = (await answer.json())["webSocketDebuggerUrl"]
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    picture = await take(socket, dark=dark)
        finally:
            chromium.terminate()
            box.send_signal(signal.SIGINT)
            await asyncio.gather(chromium.communicate(), box.communicate())
    return picture


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    print(f"{place}: {place.write_bytes(asyncio.run(main(dark='--dark' in sys.argv)))} bytes")

"""Renew docs/live.png: examples/live.py in a browser, just after its leader was killed and another took over.

    make live-picture            # needs chromium (Debian: apt-get install chromium) and a server at REDIS_URL

It starts the example, presses "kill -9" of the leader as the page would, waits until another leads, and has headless
Chromium open the page and take the picture. `make_live_picture.py TARGET --dark` takes it by night.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = "http://127.0.0.1:8765"


def states() -> Iterator[dict[str, Any]]:
    """What the page is told."""
    with urllib.request.urlopen(f"{PAGE}/events", timeout=30) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def leader(besides: str | None = None) -> str:
    """Who leads, as soon as somebody else does and none is about to start."""
    for state in states():
        leads = [one["identity"] for one in state["copies"] if one["state"] == "leads"]
        starting = [one for one in state["copies"] if one["state"] == "starts"]
        if leads == [state["leader"]] != [besides] and not starting:
            return leads[0]
    raise RuntimeError("the stream has ended")


def picture(target: Path, options: list[str]) -> None:
    """What a browser shows after following the stream for a second."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("there is no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *(browser, "--headless=new", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}"),
                *("--window-size=960,560", "--timeout=1000", f"--screenshot={target}", *options, PAGE),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )


def main() -> None:
    """Start it, kill, wait, and look."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "live.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if "--dark" in sys.argv else []
    command = [sys.executable, ROOT / "examples" / "live.py", PAGE.rpartition(":")[2]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as box:
        try:
            assert box.stdout is not None
            box.stdout.readline()
            first = None
            while first is None:
                with suppress(urllib.error.URLError):
                    first = leader()
            urllib.request.urlopen(urllib.request.Request(f"{PAGE}/{first}/kill", method="POST"), timeout=10).close()
            leader(besides=first)
            picture(target, dark)
        finally:
            box.send_signal(signal.SIGINT)
    print(f"{target}: {target.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()

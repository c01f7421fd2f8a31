"""Servers whose wall clock is wrong: libfaketime, if it is at hand (make faketime)."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

HOW = "make faketime (Debian), or install your system's package faketime"


def library() -> Path | None:
    """Find what is to be loaded before a server."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aioelect" / "faketime"
    return next(
        (
            hit
            for folder in (cache, *Path("/usr/lib").glob("*/faketime"))
            if (hit := folder / "libfaketime.so.1").exists()
        ),
        None,
    )


class WrongClock:
    """A wall clock that is ahead of the real one by some seconds, for the servers that get its `environment`."""

    def __init__(self) -> None:
        found = library()
        if found is None:
            raise LookupError(f"no libfaketime at hand: {HOW}")
        # Where every user may read: PostgreSQL does not run as root.
        self._folder = Path(tempfile.mkdtemp(prefix="aioelect-clock-"))
        self._folder.chmod(0o755)
        self._file = self._folder / "time"
        self.ahead = 0.0
        self.step(0.0)
        self.environment = {
            "LD_PRELOAD": str(shutil.copy(found, self._folder)),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: float) -> None:
        """Set it forward."""
        self.ahead += seconds
        # By a rename: a reader never meets half of it.
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self.ahead:+.3f}s\n")
        fresh.chmod(0o644)
        fresh.replace(self._file)

    @asynccontextmanager
    async def running(self, speed: float) -> AsyncIterator[None]:
        """Let it run that many times as fast as it should."""

        async def run() -> None:
            last = time.monotonic()
            while True:
                await asyncio.sleep(0.01)
                now = time.monotonic()
                self.step((now - last) * (speed - 1))
                last = now

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def close(self) -> None:
        """Remove its files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for left in Path("/dev/shm").glob("*faketime_*"):  # noqa: S108 - only what is there is removed
            # A server that was killed did not tidy up.
            if not Path("/proc", left.name.rpartition("_")[2]).exists():
                left.unlink(missing_ok=True)

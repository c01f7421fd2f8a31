"""A pod that writes a stock figure under a lock: `python -m aioelect.cli.demo.pod`, settings by stdin.

It does all that a holder can do by itself: the lock is renewed in the background, and `check()` proves it right before
the write. The pause falls between the two.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import closing

from aioelect import FencedLock, LeaseLost, Term
from aioelect.cli.address import connected
from aioelect.cli.demo.lines import PodSettings, emit, receive
from aioelect.cli.demo.stock import Stock


async def update(settings: PodSettings) -> None:
    """Take the lock, think, write."""
    async with connected(settings.redis) as redis:
        lock = FencedLock(
            redis, settings.lock, ttl=settings.ttl, identity=settings.identity, fence_retention=settings.retention
        )
        emit("waits")
        try:
            async with lock as term:
                emit("holds", token=term.token)
                with closing(Stock(settings.database)) as stock:
                    await asyncio.sleep(settings.thinks)  # the lock is renewed meanwhile
                    write(settings, stock, term)
        except LeaseLost as error:
            emit("lost", error=type(error).__name__)


def write(settings: PodSettings, stock: Stock, term: Term) -> None:
    """Check, then write. Nothing here awaits: from the check to the write no other code of this process runs."""
    term.check()
    checked = time.monotonic()
    emit("about to write", qty=settings.qty, left=term.remaining())
    if settings.hesitates:
        # Holds the moment open until the demo has sent SIGSTOP. The line is in the pipe as soon as that is sent, so it
        # is the stopped process, not the missing line, that makes the time pass.
        sys.stdin.readline()
    woke = time.monotonic()
    rows = stock.write(settings.qty, term.token, fenced=settings.fenced)
    emit("wrote", qty=settings.qty, rows=rows, paused=woke - checked, valid=term.is_valid)


if __name__ == "__main__":
    emit("up")
    asyncio.run(update(receive(PodSettings)))

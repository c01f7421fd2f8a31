"""One of the copies of a service, of which one leads: `python -m aioelect.cli.demo.worker`, settings by stdin.

As a real service would: one `Elector.run` for its whole life, and SIGTERM cancels it. That stops the work, waits for
it, and releases the claim, so that another copy leads a round trip later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from aioelect import Elector, Term
from aioelect.cli.address import connected
from aioelect.cli.demo.lines import ElectionSettings, emit, receive

JOB_INTERVAL = 0.5
REPORT_INTERVAL = 0.1


async def work(term: Term) -> None:
    """What only the leader does."""
    emit("elected", token=term.token)
    try:
        job = 0
        async for _ in term.every(JOB_INTERVAL):
            term.check()  # before a side effect
            job += 1
            emit("work", job=job)
    finally:
        emit("stopped")


async def serve(settings: ElectionSettings) -> None:
    """Stand until SIGTERM."""
    async with connected(settings.redis) as redis:
        elector = Elector(
            redis,
            settings.election,
            ttl=settings.ttl,
            identity=settings.identity,
            fence_retention=settings.retention,
        )
        life = asyncio.ensure_future(elector.run(work))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, life.cancel)
        reports = asyncio.ensure_future(report(elector))
        emit("stands", pid=os.getpid())
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await life
        finally:
            reports.cancel()


async def report(elector: Elector) -> None:
    """Say again and again where we stand: local reads, no traffic."""
    while True:
        term = elector.term
        if term is None:
            emit("status", leads=False)
        else:
            emit("status", leads=True, token=term.token, left=term.remaining())
        await asyncio.sleep(REPORT_INTERVAL)


if __name__ == "__main__":
    emit("up")
    asyncio.run(serve(receive(ElectionSettings)))

"""A scheduler of which one copy works at a time.

Start it in several terminals, stop the one that works by Ctrl-C or SIGTERM, and see another go on at once:

    python examples/scheduler.py [redis://localhost]
"""

import asyncio
import signal
import sys
import time

from redis.asyncio import Redis

from aioelect import Elector, Term, aclose


async def run_due_jobs() -> None:
    """Stands for your own: claim each due job atomically, so that a double run does no harm."""
    print(f"{time.strftime('%H:%M:%S')} runs the jobs that are due", flush=True)
    await asyncio.sleep(0.1)


async def work(term: Term) -> None:
    """Runs while we lead, and is cancelled when that ends."""
    print(f"leads, with token {term.token}", flush=True)
    async for _ in term.every(1):
        term.check()  # by the clock, right before the side effect
        await run_due_jobs()


async def main(url: str) -> None:
    """Stand for the whole life of the process."""
    redis = Redis.from_url(url)
    life = asyncio.ensure_future(Elector(redis, "example-scheduler", ttl=15).run(work))
    for number in (signal.SIGTERM, signal.SIGINT):
        # Cancelling run() stops the work, waits for it, and then releases: the next leads a round trip later.
        asyncio.get_running_loop().add_signal_handler(number, life.cancel)
    print("stands for election", flush=True)
    try:
        await life
    except asyncio.CancelledError:
        print("has stepped down", flush=True)
    finally:
        await aclose(redis)
        await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "redis://localhost"))

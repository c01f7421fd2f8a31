"""A nightly clean-up: once a day for the whole cluster, minutes long, though the claim lives for 30 s only.

    python examples/nightly.py [shop.db]

Start it in three terminals. At 03:00 the leader goes through the steps, and proves to the server before each of them
that it still leads. Kill it half-way, and the next leader starts over; the steps bear that. Once the night's run is
finished nobody repeats it, whoever leads by then.

From the environment: REDIS_URL, TTL (30) and STEP (60; how long a step takes), both in seconds, and AT (03:00, in UTC).
"""

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime

from redis.asyncio import Redis

from aioelect import Daily, Elector, StoreUnavailable, Term, aclose
from aioelect.fencing import SqliteGuard

SCHEMA = """
CREATE TABLE IF NOT EXISTS rubbish (id INTEGER PRIMARY KEY, kind TEXT);
CREATE TABLE IF NOT EXISTS log (day TEXT, token INTEGER, what TEXT);
"""
KINDS = ("sessions", "carts", "uploads", "orphans")


async def prove(term: Term) -> None:
    """Prove to the server that we lead. A short silence is waited out; a long one ends the term, and this with it."""
    while True:
        try:
            return await term.renew()
        except StoreUnavailable:
            await asyncio.sleep(1)


async def clean_up(term: Term, guard: SqliteGuard, day: datetime) -> None:
    """All steps of one night; from the first one again, if the leader before has died in the middle of it."""
    for kind in KINDS:
        await asyncio.sleep(float(os.environ.get("STEP", "60")))  # stands for what takes long and changes nothing
        await prove(term)  # LeaseLost ends this term, and the next leader starts over
        with guard.transaction(term) as db:  # and the database refuses who has been overtaken since
            gone = db.execute("DELETE FROM rubbish WHERE kind = ?", (kind,)).rowcount
            db.execute("INSERT INTO log VALUES (?, ?, ?)", (f"{day:%F}", term.token, kind))
        print(f"{kind}: {gone} removed", flush=True)


async def main(path: str) -> None:
    """Stand for the whole life of the process."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)

    redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    night = Daily(os.environ.get("AT", "03:00"), UTC)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)
        guard = SqliteGuard(db)

        async def work(term: Term) -> None:
            print(f"leads with token {term.token}; next run: {night.after(datetime.now(UTC))}", flush=True)
            async for day in term.once(night, key="clean-up"):
                print(f"cleans up for {day:%F}", flush=True)
                await clean_up(term, guard, day)
                print(f"finished {day:%F}", flush=True)

        print("stands for election", flush=True)
        try:
            await Elector(redis, "example-nightly", ttl=float(os.environ.get("TTL", "30"))).run(work)
        except asyncio.CancelledError:
            print("has stepped down", flush=True)
        finally:
            await aclose(redis)
            await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "shop.db"))

"""A scheduler: of three copies one looks for due jobs every 5 s. Each job is claimed in the database before it is run.

    python examples/scheduler.py [jobs.db]

Start it in three terminals; stop the one that works, by Ctrl-C, SIGTERM or `kill -9`, and another goes on: at once, or
within one ttl after `kill -9`. A job that was cut off is run again: its claim bears the token of a term that is over.

From the environment: REDIS_URL, TTL (15) and EVERY (5), both in seconds.
"""

import asyncio
import os
import signal
import sqlite3
import sys
import time
from contextlib import closing

from redis.asyncio import Redis

from aioelect import Elector, Term, aclose
from aioelect.fencing import SqliteGuard

EVERY = float(os.environ.get("EVERY", "5"))
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, due REAL, claimed_by INTEGER DEFAULT 0, done REAL);
CREATE TABLE IF NOT EXISTS log (job INTEGER, token INTEGER, what TEXT);
"""
CLAIM = """
UPDATE jobs SET claimed_by = :token WHERE id = (
    SELECT id FROM jobs WHERE done IS NULL AND due <= :now AND claimed_by < :token ORDER BY due LIMIT 1
) RETURNING id
"""


def claim(guard: SqliteGuard, term: Term) -> int | None:
    """Take one due job that nobody has claimed in this term. A holder that is out of date gets StaleToken instead."""
    with guard.transaction(term) as db:
        row = db.execute(CLAIM, {"token": term.token, "now": time.time()}).fetchone()
        if row is None:
            return None
        db.execute("INSERT INTO log VALUES (?, ?, 'begun')", (row[0], term.token))
        return int(row[0])


def finish(guard: SqliteGuard, term: Term, job: int) -> None:
    """Note that it is done: refused as well, if a newer leader has come."""
    with guard.transaction(term) as db:
        db.execute("UPDATE jobs SET done = ? WHERE id = ?", (time.time(), job))
        db.execute("INSERT INTO log VALUES (?, ?, 'done')", (job, term.token))


async def run(job: int) -> None:
    """Stands for your own job. It may be cut off and run again, so it has to bear that."""
    await asyncio.sleep(0.1 * EVERY)
    print(f"ran job {job}", flush=True)


async def main(path: str) -> None:
    """Stand for the whole life of the process."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        # Cancelling run() stops the work, waits for it, and then releases: the next leads a round trip later.
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)

    redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)
        jobs = [(number, time.time() + number * EVERY / 2) for number in range(1, 13)]  # something to do
        with db:
            db.executemany("INSERT OR IGNORE INTO jobs (id, due) VALUES (?, ?)", jobs)
        guard = SqliteGuard(db)

        async def work(term: Term) -> None:
            print(f"leads with token {term.token}", flush=True)
            async for _ in term.every(EVERY):
                while (job := claim(guard, term)) is not None:
                    print(f"runs job {job}", flush=True)
                    await run(job)
                    finish(guard, term, job)

        print("stands for election", flush=True)
        try:
            await Elector(redis, "example-scheduler", ttl=float(os.environ.get("TTL", "15"))).run(work)
        except asyncio.CancelledError:
            print("has stepped down", flush=True)
        finally:
            await aclose(redis)
            await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "jobs.db"))

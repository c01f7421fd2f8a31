"""A FastAPI service: all workers answer requests, one of them leads, and writes are fenced.

    pip install fastapi uvicorn
    uvicorn --app-dir examples fastapi_app:app --workers 4

    curl localhost:8000/leader
    curl -X PUT 'localhost:8000/stock/SKU-001?qty=95'

SIGTERM to the leader's process (/leader tells its pid behind the host's name) hands over at once, and uvicorn starts
another in its place. The others go on answering.

From the environment: REDIS_URL, TTL (15) and EVERY (5), both in seconds; DATABASE_URL, a PostgreSQL (with
`pip install asyncpg`); without it the stock lies in SQLite, in the file STOCK (stock.db).
"""

import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

from fastapi import FastAPI, HTTPException
from redis.asyncio import Redis

from aioelect import Elector, FencedLock, NotAcquired, StaleToken, Term, aclose
from aioelect.fencing import PostgresGuard, SqliteGuard

SCHEMA = "CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, qty BIGINT, fence_token BIGINT)"
ADD = "INSERT INTO stock (sku) VALUES ({}) ON CONFLICT DO NOTHING"

Write = Callable[[Term, str, int], Awaitable[int]]


async def work(term: Term) -> None:
    """Runs beside the app while this worker leads, and is stopped before another may lead."""
    async for _ in term.every(float(os.environ.get("EVERY", "5"))):
        print(f"process {os.getpid()} does the leader's work with token {term.token}", flush=True)


@asynccontextmanager
async def stock(redis: Redis) -> AsyncIterator[Write]:
    """How a quantity is written: with the term's token, which the database compares."""
    if dsn := os.environ.get("DATABASE_URL"):
        import asyncpg  # noqa: PLC0415 - only who has PostgreSQL needs it

        async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
            async with FencedLock(redis, "example-app-schema"):  # four workers start at the same time
                await pool.execute(SCHEMA)

            async def write(term: Term, sku: str, qty: int) -> int:
                await pool.execute(ADD.format("$1"), sku)
                return await PostgresGuard(pool).update(term, "stock", {"sku": sku}, {"qty": qty})

            yield write
    else:
        with closing(sqlite3.connect(os.environ.get("STOCK", "stock.db"), isolation_level=None)) as db:
            db.execute(SCHEMA)

            async def write(term: Term, sku: str, qty: int) -> int:
                db.execute(ADD.format("?"), (sku,))
                return SqliteGuard(db).update(term, "stock", {"sku": sku}, {"qty": qty})

            yield write


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Stand from the start of the app to its end; the end stops the work, waits for it, and releases."""
    redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    elector = Elector(redis, "example-app", ttl=float(os.environ.get("TTL", "15")))
    try:
        async with stock(redis) as write, elector.running(work):
            app.state.redis, app.state.write, app.state.elector = redis, write, elector
            yield
    finally:
        await aclose(redis)
        await redis.aclose()


app = FastAPI(lifespan=lifespan)


@app.get("/leader")
async def leader() -> dict[str, Any]:
    """Who leads, as far as this worker has heard; no I/O, so it may be asked as often as you like."""
    elector: Elector = app.state.elector
    known = elector.leader
    return {
        "asked": os.getpid(),
        "is_leader": elector.is_leader,
        "leader": known and known.identity,
        "token": known and known.token,
    }


@app.put("/stock/{sku}")
async def put_stock(sku: str, qty: int) -> dict[str, Any]:
    """Write a quantity, one request at a time for each article, whichever worker gets it."""
    try:
        async with FencedLock(app.state.redis, f"example-stock:{sku}", ttl=10, wait=5) as term:
            await app.state.write(term, sku, qty)
            return {"sku": sku, "qty": qty, "token": term.token}
    except NotAcquired as error:
        raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from error
    except StaleToken as error:  # this worker was paused; a newer holder has written
        raise HTTPException(409, str(error)) from error

"""What a guard adds to a write, on servers of its own: `python benchmarks/guards.py [seconds per case]`.

The cases of one target take turns, a slice at a time, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import psycopg_pool
from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from aioelect.fencing import PostgresGuard, RedisGuard, SqliteGuard, fence_table
from support import servers
from support.postgres import Postgres, execute
from support.servers import Server

Write = Callable[[], Awaitable[object]]

TOKEN = 1_796_175_489_333_738
STOCK = "CREATE TABLE stock (sku TEXT PRIMARY KEY, qty INTEGER, fence_token BIGINT)"
KEY = {"sku": "SKU-001"}
SET = "UPDATE stock SET qty = qty + 1 WHERE sku = 'SKU-001'"


async def compare(target: str, seconds: float, cases: dict[str, Write]) -> None:
    """Print the median of each case, and what it is beside the first."""
    took: dict[str, list[float]] = {name: [] for name in cases}
    until = time.monotonic() + seconds * len(cases)
    for name, write in itertools.cycle(cases.items()):
        slice_over = time.monotonic() + 0.1
        while time.monotonic() < slice_over:
            began = time.perf_counter()
            await write()
            took[name].append(time.perf_counter() - began)
        if time.monotonic() > until:
            break
    first = statistics.median(next(iter(took.values())))
    for name, times in took.items():
        median = statistics.median(times)
        print(f"{target:12} {name:24} {median * 1e6:7.0f} us {(median - first) * 1e6:+7.0f} us")


async def postgres(url: str, seconds: float) -> None:
    """Through each driver's pool."""
    for statement in (fence_table(), STOCK, "INSERT INTO stock VALUES ('SKU-001', 100, 0)"):
        execute(url, statement)
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with (
        asyncpg.create_pool(url, min_size=1) as pool,
        psycopg_pool.AsyncConnectionPool(url, open=False) as psycopg,
    ):

        async def asyncpg_transaction() -> None:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(SET)

        async def psycopg_write() -> None:
            async with psycopg.connection() as connection:
                await connection.execute(SET)

        async def sqlalchemy_write() -> None:
            async with engine.begin() as connection:
                await connection.execute(text(SET))

        def update(target: object) -> Write:
            return lambda: PostgresGuard(target).update(TOKEN, "stock", KEY, {"qty": 95})

        def transaction(target: object, statement: object) -> Write:
            guard = PostgresGuard(target)

            async def write() -> None:
                async with guard.transaction(TOKEN, resource="stock", limit=10) as connection:
                    await connection.execute(statement)

            return write

        guarded = {"guard.update": update(pool), "guard.transaction": transaction(pool, SET)}
        plain: dict[str, Write] = {"plain": lambda: pool.execute(SET), "transaction": asyncpg_transaction}
        await compare("asyncpg", seconds, plain | guarded)
        guarded = {"guard.update": update(psycopg), "guard.transaction": transaction(psycopg, SET)}
        await compare("psycopg", seconds, {"transaction": psycopg_write} | guarded)
        guarded = {"guard.update": update(engine), "guard.transaction": transaction(engine, text(SET))}
        await compare("sqlalchemy", seconds, {"transaction": sqlalchemy_write} | guarded)
    await engine.dispose()


async def main(seconds: float) -> None:
    """All targets."""
    with Postgres() as server:
        await postgres(server.url, seconds)
    with Server(servers.newest()) as server_of_redis:
        async with Redis.from_url(server_of_redis.url) as redis:
            plain: Write = lambda: redis.set("qty", 95)  # noqa: E731
            guarded: Write = lambda: RedisGuard(redis).set(TOKEN, "qty", 95)  # noqa: E731
            await compare("redis", seconds, {"plain": plain, "guard.set": guarded})
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(f"{folder}/stock.db", isolation_level=None)
        database.execute(STOCK)
        database.execute("INSERT INTO stock VALUES ('SKU-001', 100, 0)")

        numbers = itertools.count()

        async def write() -> None:
            database.execute(SET)

        async def update() -> None:
            SqliteGuard(database).update(TOKEN, "stock", KEY, {"qty": next(numbers)})

        await compare("sqlite", seconds, {"plain": write, "guard.update": update})
        database.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0))

"""A write that a stale holder can't do: the token goes into the row, and a lower one is refused by the database.

    python examples/fenced_write_sqlite.py [redis://localhost] [stock.db]

A lock alone can't promise this: its holder may be paused after its last check, for longer than the ttl, and then write.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing

from redis.asyncio import Redis

from aioelect import FencedLock, StaleToken, Term, aclose
from aioelect.fencing import SqliteGuard


async def set_stock(redis: Redis, guard: SqliteGuard, sku: str, qty: int) -> Term:
    """One at a time for each article; returns the term, for the sake of the example."""
    async with FencedLock(redis, f"example-stock:{sku}", ttl=10, wait=5) as term:
        guard.update(term, "stock", {"sku": sku}, {"qty": qty})
    return term


async def main(url: str, path: str) -> None:
    """Two holders, one after the other; then the first, which was paused somewhere, tries once more."""
    redis = Redis.from_url(url)
    try:
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS stock (sku PRIMARY KEY, qty, fence_token INTEGER)")
            database.execute("INSERT OR IGNORE INTO stock VALUES ('SKU-001', 100, 0)")
            database.commit()
            guard = SqliteGuard(database)
            first = await set_stock(redis, guard, "SKU-001", 120)
            print(f"wrote 120 with token {first.token}")
            second = await set_stock(redis, guard, "SKU-001", 95)
            print(f"wrote 95 with token {second.token}")
            try:
                guard.update(first, "stock", {"sku": "SKU-001"}, {"qty": 120})
            except StaleToken as error:
                print(f"refused: {error}")
            print("qty =", database.execute("SELECT qty FROM stock WHERE sku = 'SKU-001'").fetchone()[0])
    finally:
        await aclose(redis)
        await redis.aclose()


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    asyncio.run(main(arguments.get(1, "redis://localhost"), arguments.get(2, ":memory:")))

"""A payment: a critical section around a call that moves money, and a payment service that refuses who is out of date.

    python examples/critical_section.py [order] [amount] [shop.db]

Start several at once: one pays, the others find the order paid (exit code 0), or give up waiting (75). To see why the
lock alone is not enough, let one stop after its last check for longer than the ttl, as a garbage collection or a VM's
pause may stop it, and pay in another terminal meanwhile:

    PAUSE=15 python examples/critical_section.py 17 120
    python examples/critical_section.py 17 95

The first wakes up, calls the payment service with its old token, and is refused (exit code 1).

From the environment: REDIS_URL, TTL (5), WAIT (20) and PAUSE (0), in seconds.
"""

import asyncio
import os
import sqlite3
import sys
import time
from contextlib import closing

from redis.asyncio import Redis

from aioelect import FencedLock, LeaseLost, NotAcquired, StaleToken, Term, aclose
from aioelect.fencing import SqliteGuard

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, paid INTEGER, fence_token INTEGER);
CREATE TABLE IF NOT EXISTS charges (id TEXT PRIMARY KEY, amount INTEGER, token INTEGER);
"""


class PaymentService:
    """Stands for another's service: a real one gets the token in a header (docs/fencing.md), and has its own database.

    The token keeps those out who have been overtaken; the order's id, as an idempotency key, keeps out a second call.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._guard = SqliteGuard(db)

    def charge(self, order: str, amount: int, token: int) -> int:
        """What was charged, now or by the first call; StaleToken if a newer holder has called."""
        with self._guard.transaction(token, resource=f"charge:{order}") as db:
            db.execute("INSERT OR IGNORE INTO charges VALUES (?, ?, ?)", (order, amount, token))
            return int(db.execute("SELECT amount FROM charges WHERE id = ?", (order,)).fetchone()[0])


def pay(db: sqlite3.Connection, term: Term, order: str, amount: int) -> str:
    """What may be done by one at a time."""
    if db.execute("SELECT paid FROM orders WHERE id = ?", (order,)).fetchone()[0]:
        return "was paid already"
    term.check()  # the last look at the clock; but a pause may come after it
    if pause := float(os.environ.get("PAUSE", "0")):
        print("pauses", flush=True)
        time.sleep(pause)  # on purpose not asyncio.sleep: the whole process stands still, renewals too
    charged = PaymentService(db).charge(order, amount, term.token)
    SqliteGuard(db).update(term, "orders", {"id": order}, {"paid": charged})
    return f"paid {charged} with token {term.token}"


async def main(order: str, amount: int, path: str) -> int:
    """Wait for the order's lock, pay, and say how it went."""
    ttl, wait = float(os.environ.get("TTL", "5")), float(os.environ.get("WAIT", "20"))
    redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    try:
        with closing(sqlite3.connect(path)) as db:
            db.executescript(SCHEMA)
            with db:
                db.execute("INSERT OR IGNORE INTO orders (id) VALUES (?)", (order,))
            async with FencedLock(redis, f"example-order:{order}", ttl=ttl, wait=wait) as term:
                print(pay(db, term, order, amount))
    except StaleToken as error:
        print(f"refused, nothing was charged: {error}")
        return 1
    except LeaseLost as error:  # the section had ended, but the lock had run out meanwhile
        print(f"the lock was lost: {error}")
        return 1
    except NotAcquired as error:
        print(f"gave up: {error}")
        return os.EX_TEMPFAIL
    finally:
        await aclose(redis)
        await redis.aclose()
    return 0


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    sys.exit(asyncio.run(main(given.get(1, "17"), int(given.get(2, "120")), given.get(3, "shop.db"))))

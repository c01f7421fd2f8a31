"""Orders in four Redis Streams, spread over all copies that run; each stream is worked off in its own order.

Start it in several terminals, put orders in from another one, and stop copies as you like, also by `kill -9`:

    python examples/partitions.py [redis://localhost]
    python examples/partitions.py [redis://localhost] 1000

What an order does, and how far its stream is worked off, are written in one step that a newer consumer's token guards:
nothing is left out, done twice or done late, whatever happens to a copy half-way.
"""

import asyncio
import signal
import sys
from typing import Any

from redis.asyncio import Redis

from aioelect import Partition, Partitions, aclose
from aioelect.fencing import RedisGuard

COUNT = 4

# KEYS: how far the stream is worked off; what has been done. ARGV: the order's id and text.
APPLY = """
redis.call('SET', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[2])
"""


def keys(number: int) -> list[str]:
    """The stream, how far it is worked off, and what has been done (stands for your own data)."""
    return [f"example:{{orders:{number}}}:{what}" for what in ("stream", "position", "done")]


async def consume(redis: Redis, partition: Partition) -> None:
    """Runs for each partition that this copy holds, and is cancelled when that ends."""
    print(f"partition {partition.number}: consumed here, with token {partition.term.token}", flush=True)
    stream, position, done = keys(partition.number)
    guard = RedisGuard(redis)
    try:
        last = await redis.get(position) or "0"
        while True:
            found: Any = await redis.xread({stream: last}, count=10, block=1000)
            for identifier, order in found[0][1] if found else ():
                # StaleToken: another has this partition, and we were too slow to notice.
                await guard.run(partition.term, APPLY, [position, done], [identifier, order["text"]])
                last = identifier
    finally:
        print(f"partition {partition.number}: let go", flush=True)


async def produce(redis: Redis, orders: int) -> None:
    """Orders of one customer go into one partition, so that they keep their order."""
    for number in range(orders):
        customer = number % 10
        await redis.xadd(keys(customer % COUNT)[0], {"text": f"order {number} of customer {customer}"})
    print(f"{orders} orders are in", flush=True)


async def main(url: str, orders: int | None) -> None:
    """Take part for the whole life of the process, or put orders in."""
    redis = Redis.from_url(url, decode_responses=True)
    try:
        if orders is not None:
            await produce(redis, orders)
            return
        partitions = Partitions(redis, "example-orders", count=COUNT, ttl=6)
        life = asyncio.ensure_future(partitions.run(lambda partition: consume(redis, partition)))
        for signum in (signal.SIGTERM, signal.SIGINT):
            # Cancelling run() stops the consumers, waits for them and releases: the others go on at once.
            asyncio.get_running_loop().add_signal_handler(signum, life.cancel)
        try:
            await life
        except asyncio.CancelledError:
            print("has left", flush=True)
    finally:
        await aclose(redis)
        await redis.aclose()


if __name__ == "__main__":
    asyncio.run(
        main(
            sys.argv[1] if len(sys.argv) > 1 else "redis://localhost",
            int(sys.argv[2]) if len(sys.argv) > 2 else None,
        )
    )

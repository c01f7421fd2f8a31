"""`aioelect bench`: what locks cost on a given server, from here."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from aioelect import AioelectError, FencedLock, _clock
from aioelect._redis import wire
from aioelect._redis.runtime import runtime_of
from aioelect._redis.store import origin_of
from aioelect.cli.address import connected, masked, redis_option
from aioelect.cli.asking import ask
from aioelect.cli.doctor.ttl import percentile
from aioelect.cli.exits import ended_by

if TYPE_CHECKING:
    from aioelect.cli.address import AnyRedis

__all__ = ["bench"]

_WAIT = 10.0  # seconds for a lock before the bench gives up
_HOLD = 0.01  # seconds at least, and three times what a lock takes: the other is back in line by then
_INTERRUPTED = 130
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_TITLES = {
    "round_trip": "PING",
    "acquire_release": "acquire and release",
    "crowd": "the same, many at once",
    "hand_over": "from a release to the next holder",
}


@click.command()
@redis_option
@click.option("--prefix", default="aioelect", show_default=True, help="Of the keys in the store.")
@click.option("--rounds", type=click.IntRange(10, 100_000), default=200, show_default=True, help="Of each measurement.")
@click.option("--coroutines", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Of the crowd.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, with fields that stay.")
def bench(url: str, prefix: str, rounds: int, coroutines: int, as_json: bool) -> None:
    """Measure round trips, locks, a crowd of locks and hand-overs on this server, from here.

    Takes some seconds. The names are its own, and are removed at the end.
    """
    try:
        found = asyncio.run(_measured(url, prefix, rounds, coroutines))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except AioelectError as error:
        sys.exit(ended_by(error))
    if as_json:
        click.echo(json.dumps({"address": masked(url), "rounds": rounds, "coroutines": coroutines, **found}))
    else:
        _show(found)


async def _measured(url: str, prefix: str, rounds: int, coroutines: int) -> dict[str, dict[str, float]]:
    name = f"bench-{secrets.token_hex(6)}"
    crowd = [f"{name}-{number}" for number in range(coroutines)]
    async with connected(url) as redis:
        route = runtime_of(origin_of(redis)[0]).route
        claim = wire.keys_of(prefix, name).claim
        await ask(route, claim, (b"PING",))  # is it there at all?
        try:
            pair = _pair(redis, name, prefix)
            await pair()  # loads the scripts
            trips = await _times(lambda: ask(route, claim, (b"PING",)), rounds)
            pairs = await _times(pair, rounds)
            began = _clock.now()
            together = [_times(_pair(redis, one, prefix), -(-rounds // coroutines)) for one in crowd]
            crowded = [time for times in await asyncio.gather(*together) for time in times]
            rate = len(crowded) / (_clock.now() - began)
            hold = max(_HOLD, 3 * percentile(pairs, 0.5))
            handed = await _hand_overs(url, redis, name, prefix, rounds, hold)
            return {
                "round_trip": _spread(trips),
                "acquire_release": _spread(pairs),
                "crowd": {**_spread(crowded), "per_second": rate},
                "hand_over": _spread(handed),
            }
        finally:
            for one in (name, *crowd):
                keys = wire.keys_of(prefix, one)
                await ask(route, keys.claim, (b"DEL", *keys.record))


def _pair(redis: AnyRedis, name: str, prefix: str) -> Callable[[], Awaitable[None]]:
    lock = FencedLock(redis, name, wait=_WAIT, prefix=prefix, observers=[])

    async def pair() -> None:
        async with lock:
            pass

    return pair


async def _times(once: Callable[[], Awaitable[object]], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        began = _clock.now()
        await once()
        times.append(_clock.now() - began)
    return times


async def _hand_overs(url: str, redis: AnyRedis, name: str, prefix: str, rounds: int, hold: float) -> list[float]:
    """Two hold the lock in turn, from event loops of their own: in one, a release would go no way at all."""
    moments: list[tuple[float, str, bool]] = []
    given_up = threading.Event()  # Ctrl-C cancels this loop only, and a thread is waited for

    async def holds(redis: AnyRedis, who: str) -> None:
        lock = FencedLock(redis, name, wait=_WAIT, prefix=prefix, observers=[])
        for _ in range(rounds // 2):
            if given_up.is_set():
                return
            async with lock:
                moments.append((_clock.now(), who, True))
                await asyncio.sleep(hold)
                moments.append((_clock.now(), who, False))

    async def elsewhere() -> None:
        async with connected(url) as other:
            await holds(other, "other")

    there = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    try:
        await asyncio.gather(holds(redis, "this"), asyncio.shield(there))
    finally:
        given_up.set()
        await asyncio.wait([there])
    moments.sort()
    return [at - left for (left, one, began), (at, two, _) in pairwise(moments) if not began and one != two]


def _spread(times: Sequence[float]) -> dict[str, float]:
    return {name: percentile(times, share) for name, share in _SHARES.items()}


def _show(found: dict[str, dict[str, float]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - takes a while
    from rich.table import Table  # noqa: PLC0415

    table = Table("", *_SHARES, box=None, pad_edge=False)
    for name, figures in found.items():
        rate = f", {figures['per_second']:,.0f} a second" if "per_second" in figures else ""
        table.add_row(_TITLES[name] + rate, *(f"{figures[share] * 1000:.2f} ms" for share in _SHARES))
    Console(highlight=False).print(table)

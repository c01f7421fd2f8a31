"""P10: the next one of a process asks right behind a release, without waiting for its answer; the server decides."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aioelect import FencedLock, Term, aclose
from conftest import Connect
from support.proxy import Proxy
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

ACQUIRE, RELEASE = "EVALSHA", "PUBLISH"  # the newest server gives up by DELEX and PUBLISH


class Two:
    """Two that want one lock: the first has it, the second stands in line."""

    def __init__(self, redis: Redis, ttl: float = 3.0) -> None:
        self.lock = FencedLock(redis, "name", ttl=ttl)
        self.terms: list[Term] = []
        self.go = asyncio.Event()
        self.at_work = 0

    async def work(self) -> None:
        """One critical section."""
        async with self.lock as term:
            self.at_work += 1
            assert self.at_work == 1
            term.check()
            self.terms.append(term)
            await self.go.wait()
            self.at_work -= 1

    async def begin(self) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        """The first is at work, and the second waits for it."""
        first = asyncio.create_task(self.work())
        await until(lambda: len(self.terms) == 1)
        second = asyncio.create_task(self.work())
        await asyncio.sleep(0)
        return first, second


async def test_p10_the_next_one_asks_while_the_release_is_not_answered(proxy: Proxy, connect: Connect) -> None:
    redis = connect(proxy)
    async with FencedLock(redis, "warm"):
        pass
    two = Two(redis)
    first, second = await two.begin()
    held = proxy.reply(RELEASE).hold()
    asked = len(proxy.names(ACQUIRE))
    two.go.set()
    await until(lambda: len(proxy.names(ACQUIRE)) == asked + 1)
    assert not first.done() and len(two.terms) == 1, "nobody works before the server has answered"
    held.remove()
    await asyncio.gather(first, second)
    assert two.terms[0].token < two.terms[1].token
    await aclose(redis)


async def test_p10_where_the_release_never_arrives_the_next_one_waits_for_the_ttl(
    proxy: Proxy, connect: Connect, server: Server
) -> None:
    redis = connect(proxy)
    async with FencedLock(redis, "warm"):
        pass
    two = Two(redis, ttl=1.5)
    first, second = await two.begin()
    proxy.request("DELEX", times=None).drop()
    proxy.request("EVALSHA", nth=2, times=None).drop()  # the first is the next one's; then it is given up by the script
    two.go.set()
    await until(first.done, limit=10.0)
    proxy.clear()
    await asyncio.gather(first, second)
    assert two.terms[0].token < two.terms[1].token
    await aclose(redis)


async def test_p10_another_process_that_waits_is_not_passed_over(proxy: Proxy, connect: Connect, redis: Redis) -> None:
    here = connect(proxy)
    theirs = FencedLock(redis, "name", ttl=3.0)
    ours = FencedLock(here, "name", ttl=3.0)
    served: list[str] = []

    async def work(who: str, lock: FencedLock, times: int) -> None:
        for _ in range(times):
            async with lock:
                served.append(who)
                await asyncio.sleep(0.005)

    crowd = [asyncio.create_task(work("ours", ours, 20)) for _ in range(5)]
    other = asyncio.create_task(work("theirs", theirs, 20))
    await asyncio.gather(other, *crowd)
    last = len(served) - served[::-1].index("theirs")
    assert last <= 90, f"20 sections took the other process until the {last}th of 120"
    await aclose(here)

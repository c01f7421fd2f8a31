"""A server that answers at once is waited for awake; no other is, and no processor is kept busy for one."""

from __future__ import annotations

import asyncio
import math
from typing import cast

import pytest
from redis.asyncio import Redis

from aioelect._redis.links import Links
from aioelect._redis.pipeline import Link
from aioelect._redis.runtime import runtime_of
from aioelect._redis.store import RedisStore, open_store
from conftest import Connect
from store.conftest import a_claim, granted
from support.proxy import Proxy
from support.wait import until


async def the_link(redis: Redis) -> Link:
    """Open a store's connection, and give it."""
    store = cast("RedisStore", open_store(redis, "aioelect"))
    await granted(store, a_claim("warm"))
    return await cast("Links", runtime_of(store._origin).route).link(asyncio.get_running_loop().time() + 5.0)


@pytest.fixture
async def link(proxy: Proxy, connect: Connect) -> Link:
    """Make a connection through the proxy."""
    return await the_link(connect(proxy))


def echo(link: Link) -> asyncio.Future[list[object]]:
    """Ask something that changes nothing."""
    return link.call([(b"ECHO", b"hello")], asyncio.get_running_loop().time() + 5.0)


async def test_a_server_that_answers_at_once_and_is_asked_again_is_waited_for_awake(redis: Redis) -> None:
    link = await the_link(redis)

    async def awake() -> bool:
        seen = False
        for _ in range(20):
            asking = echo(link)
            seen |= link._awake
            await asking
        return seen

    await until(awake)  # on a busy machine it may take longer than that now and then
    await until(lambda: not link._awake)


async def test_a_server_that_is_farther_away_is_not_waited_for_awake(link: Link, proxy: Proxy) -> None:
    link._brisk_until = 0.0
    proxy.reply("ECHO", times=None).delay(0.002)
    for _ in range(3):
        asking = echo(link)
        assert not link._awake
        assert await asking == [b"hello"]


async def test_a_server_that_has_become_silent_is_not_waited_for_awake_any_longer(link: Link, proxy: Proxy) -> None:
    link._brisk_until = math.inf
    held = proxy.reply("ECHO").hold()
    asking = echo(link)
    assert link._awake
    await until(lambda: not link._awake)
    await held.reached()
    assert not asking.done()
    held.release()
    assert await asking == [b"hello"]

    asking = echo(link)
    assert link._awake
    link._wrote_at = math.inf
    await asking
    await until(lambda: not link._awake)

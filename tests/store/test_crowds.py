"""Many calls in one turn of the loop, and calls for which the loop had no time left."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from redis.asyncio import Redis

from aioelect._errors import StoreUnavailable
from aioelect._redis.runtime import runtime_of
from aioelect._redis.store import RedisStore, open_store
from aioelect._store import Granted
from store.conftest import a_claim, granted
from support.servers import Server

LIMIT = 5.0


async def test_a_crowd_that_asks_in_one_turn_of_the_loop_is_not_sent_when_it_ends(redis: Redis, server: Server) -> None:
    store = open_store(redis, "aioelect")
    await granted(store, a_claim("warm"))

    async def look() -> object:
        return server.call("EXISTS", *(f"aioelect:{{name-{n}}}" for n in range(600)))  # blocks the loop

    crowd = [asyncio.create_task(store.acquire(a_claim(f"name-{n}"), limit=LIMIT)) for n in range(600)]
    looked = asyncio.create_task(look())  # in the same turn, as its last
    assert all(isinstance(answer, Granted) for answer in await asyncio.gather(*crowd))
    assert cast("int", await looked) > 16


async def test_no_time_at_all_is_told_as_such(redis: Redis) -> None:
    store = open_store(redis, "aioelect")
    with pytest.raises(StoreUnavailable, match="within 0 s"):
        await store.acquire(a_claim(), limit=-0.5)
    loop = asyncio.get_running_loop()
    with pytest.raises(StoreUnavailable, match="no connection from the server within 0 s"):
        await runtime_of(cast("RedisStore", store)._origin).route.exchange(b"name", lambda _: [], loop.time() - 1)

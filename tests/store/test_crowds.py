"""Many calls in one turn of the loop, and calls for which the loop had no time left."""

from __future__ import annotations

import asyncio
import re
from typing import cast

import pytest
from redis.asyncio import Redis

from aioelect import aclose
from aioelect._errors import StoreUnavailable
from aioelect._redis import pipeline
from aioelect._redis.links import Links
from aioelect._redis.runtime import runtime_of
from aioelect._redis.store import RedisStore, open_store
from aioelect._store import Granted
from store.conftest import a_claim, granted
from support.proxy import ThreadedProxy
from support.servers import Server
from support.wait import until, until_sync

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


async def test_p4_answers_that_arrived_while_the_loop_was_blocked_count_though_they_are_read_in_pieces(
    redis: Redis, server: Server
) -> None:
    store = open_store(redis, "aioelect")
    await granted(store, a_claim("warm"))
    server.call("SET", "some", "x" * 200, "PX", 60_000)  # 1.3 MB in all: five pieces and more
    loop, route = asyncio.get_running_loop(), runtime_of(cast("RedisStore", store)._origin).route
    server.call("CONFIG", "RESETSTAT")
    asked = 1 + 100 * pipeline._ENOUGH_CALLS  # all of them are sent before this turn of the loop ends
    limit = loop.time() + 0.1
    crowd = [route.exchange(b"name", lambda _: [(b"GET", b"some")], limit) for _ in range(asked)]

    def answered() -> bool:
        done = server.info("commandstats").get("cmdstat_get", "").startswith(f"calls={asked},")
        return done and set(re.findall(rb" omem=(\d+)", server.call("CLIENT", "LIST"))) == {b"0"}

    until_sync(lambda: answered() and loop.time() > limit + 0.1)  # blocks the loop: all is in the socket, and late
    assert [reply for (reply,) in await asyncio.gather(*crowd)] == [b"x" * 200] * asked


async def test_p4_a_limit_that_passed_while_the_loop_was_blocked_is_not_put_off_as_long_as_an_answer_trickles_in(
    server: Server,
) -> None:
    server.call("SET", "some", "x" * 10_000, "PX", 60_000)
    with ThreadedProxy(server) as proxy:  # it goes on while this loop is blocked
        redis = proxy.client()
        store = open_store(redis, "aioelect")
        await granted(store, a_claim("warm"))
        trickling = proxy.reply("GET").trickle(0.001)
        loop, route = asyncio.get_running_loop(), runtime_of(cast("RedisStore", store)._origin).route
        limit = loop.time() + 0.1
        asking = route.exchange(b"name", lambda _: [(b"GET", b"some")], limit)
        until_sync(lambda: trickling.hits and loop.time() > limit + 0.05)  # blocks the loop
        with pytest.raises(StoreUnavailable, match="no answer from the server"):
            await asking
        assert loop.time() < limit + 3.0, "it waited on while the answer came in, which takes 10 s"
        await aclose(redis)
        await redis.aclose()


async def test_a_connection_that_each_of_a_crowd_gives_up_takes_note_of_that_once(redis: Redis) -> None:
    store = open_store(redis, "aioelect")
    await granted(store, a_claim("warm"))
    loop, route = asyncio.get_running_loop(), cast("Links", runtime_of(cast("RedisStore", store)._origin).route)
    link = await route.link(loop.time() + LIMIT)
    notes = 0
    settle = link._settle

    def noted(_: object = None) -> None:
        nonlocal notes
        notes += 1
        settle()

    link._settle = noted  # type: ignore[method-assign]
    crowd = [link.call([(b"ECHO", b"hello")], loop.time() + LIMIT) for _ in range(100)]
    for _ in crowd:  # in this turn of the loop none can have been answered
        link.retire()
    assert await asyncio.gather(*crowd) == [[b"hello"]] * 100
    await until(lambda: link.state.value == "closed")
    assert notes == 101, "the work is the square of their number"


async def test_who_asks_in_company_shares_one_write_from_the_second_time_on(redis: Redis) -> None:
    store = open_store(redis, "aioelect")
    claims = [a_claim(f"name-{number}") for number in range(50)]
    for claim in claims:
        await granted(store, claim)
    links = cast("Links", runtime_of(cast("RedisStore", store)._origin).route)
    link = await links.link(asyncio.get_running_loop().time() + LIMIT)
    writing = Counted(link._transport)
    link._transport = cast("asyncio.Transport", writing)

    async def renewed() -> int:
        writing.writes = 0
        await asyncio.gather(*(store.renew(claim, limit=LIMIT) for claim in claims))
        return writing.writes

    await renewed()  # the first one does not know of the others; and the server may not know the script
    assert [await renewed() for _ in range(3)] == [1, 1, 1]
    await store.renew(claims[0], limit=LIMIT)  # nobody comes along, and the next one does not wait for company
    writing.writes = 0
    alone = asyncio.create_task(store.renew(claims[0], limit=LIMIT))
    asyncio.get_running_loop().call_soon(lambda: seen.append(writing.writes))
    seen: list[int] = []
    await alone
    assert seen == [1]


class Counted:
    """A transport whose writes are counted."""

    def __init__(self, transport: object) -> None:
        self._transport = transport
        self.writes = 0

    def write(self, data: bytes) -> None:
        """Pass it on."""
        self.writes += 1
        self._transport.write(data)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

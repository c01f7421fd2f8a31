"""Tokens through the loss of what Redis knew: minted by Redis as far as clocks agree, from a sequence in any case."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg
import pytest
from redis.asyncio import Redis

from aioelect import FencedLock, StaleToken, StoreUnavailable, _tokens, aclose
from aioelect._floors import Floors
from aioelect._redis import store as store_module
from aioelect.fencing import PostgresSequence
from conftest import Connect, MakeServer
from fencing.conftest import KINDS, MakeWay, Way, article
from support.postgres import Postgres, execute

pytestmark = pytest.mark.faults

KEY = {"sku": "SKU-001"}


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go on as a process that has seen no token."""

    def forget() -> None:
        monkeypatch.setattr(store_module, "_floors", Floors(100))
        monkeypatch.setattr(_tokens, "_floors", Floors(100))

    forget()
    return forget


async def test_p9_tokens_rise_through_flushall_and_an_old_snapshot_also_for_processes_that_remember_nothing(
    make_server: MakeServer, connect: Connect, pool: Way, stocked: str, forget: Callable[[], None]
) -> None:
    server = make_server()
    redis = connect(server)
    tokens: list[int] = []

    async def write() -> None:
        forget()
        async with FencedLock(redis, "stock", ttl=5, wait=30) as term:
            await pool.guard().update(term, "stock", KEY, {"qty": len(tokens)})
            tokens.append(term.token)

    for _ in range(3):
        await write()
    server.save()
    for _ in range(3):
        await write()
    server.call("FLUSHALL")
    await write()
    server.save()
    for _ in range(3):
        await write()
    server.kill()
    server.start()  # with what was saved: a snapshot from before the last three
    counter = int(server.call("HGET", "aioelect:{stock}:fence", "token"))
    assert counter == tokens[-4], "the old snapshot was to come back"
    await write()
    await server.arestart(keep_data=False)
    await write()
    assert tokens == sorted(set(tokens)) and len(tokens) == 12
    assert article(stocked) == (11, tokens[-1])
    with pytest.raises(StaleToken):
        await pool.guard().update(tokens[-2], "stock", KEY, {"qty": 0})
    await aclose(redis)


async def test_p9_a_clock_that_was_fast_and_a_lost_counter_let_tokens_fall_and_a_sequence_does_not(
    make_server: MakeServer, connect: Connect, pool: Way, stocked: str, forget: Callable[[], None]
) -> None:
    """What the page says of clocks, held from both sides: minted tokens rise only as far as the clocks agree."""
    redis = connect(make_server())
    hour = 3600 * 10**6
    async with FencedLock(redis, "stock", ttl=5) as term:
        minted = term.token
    # As a server would have left it whose clock was an hour fast.
    await redis.hset("aioelect:{stock}:fence", "token", str(minted + hour))  # type: ignore[misc,unused-ignore]
    async with FencedLock(redis, "stock", ttl=5) as term:
        fast = term.token
        await pool.guard().update(term, "stock", KEY, {"qty": 1})
    assert fast == minted + hour + 1
    await redis.flushall()
    async with FencedLock(redis, "stock", ttl=5) as term:
        assert term.token == fast + 1, "this process has seen it"
    await redis.flushall()
    forget()
    async with FencedLock(redis, "stock", ttl=5) as term:
        assert term.token < fast
        with pytest.raises(StaleToken):  # nobody gets in until the clock has caught up: safe, and of no use
            await pool.guard().update(term, "stock", KEY, {"qty": 2})

    # From here on the database hands them out, beginning above what it has seen.
    execute(stocked, "SELECT setval('aioelect_token', (SELECT max(fence_token) FROM stock))")
    sequence = PostgresSequence(pool.target)
    for number in range(1, 4):
        forget()
        await redis.flushall()
        async with FencedLock(redis, "stock", ttl=5, tokens=sequence) as term:
            assert term.token == fast + number
            await pool.guard().update(term, "stock", KEY, {"qty": number})
    await aclose(redis)


@pytest.mark.parametrize("kind", KINDS)
async def test_p9_a_sequence_serves_through_every_driver(stocked: str, make_way: MakeWay, kind: str) -> None:
    way = await make_way(kind, stocked)
    source = PostgresSequence(way.target)
    assert [await source("a"), await source("b"), await source("a")] == [1, 2, 3]
    await way.commit()
    execute(stocked, "SELECT setval('aioelect_token', %s)", 2**53 + 1)
    assert await source("a") == 2**53 + 2


async def test_p9_of_many_who_stand_at_once_each_term_has_a_higher_token_than_the_one_before(
    redis: Redis, pool: Way, forget: Callable[[], None], stocked: str, make_way: MakeWay
) -> None:
    lock = FencedLock(redis, "stock", ttl=5, tokens=PostgresSequence(pool.target))
    tokens: list[int] = []

    async def hold() -> None:
        async with lock as term:
            tokens.append(term.token)

    await asyncio.gather(*(hold() for _ in range(20)))
    assert tokens == list(range(1, 21))
    await aclose(redis)


async def test_p5_while_the_database_is_away_nobody_holds_the_name_and_who_waits_goes_on_afterwards(
    make_postgres: Callable[..., Postgres], redis: Redis, forget: Callable[[], None]
) -> None:
    server = make_postgres()
    execute(server.url, "CREATE SEQUENCE aioelect_token")
    async with asyncpg.create_pool(server.url, min_size=1) as pool:
        sequence = PostgresSequence(pool)
        async with FencedLock(redis, "stock", ttl=2, tokens=sequence) as term:
            assert term.token == 1
        server.crash()
        with pytest.raises(StoreUnavailable, match="the token source failed"):
            async with FencedLock(redis, "stock", ttl=2, wait=0, tokens=sequence):
                pytest.fail("it began without a token")
        assert await redis.exists("aioelect:{stock}") == 0
        waiting = asyncio.create_task(_token_of(FencedLock(redis, "stock", ttl=2, wait=30, tokens=sequence)))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await asyncio.to_thread(server.start)
        assert await waiting > 1
    await aclose(redis)


async def _token_of(lock: FencedLock) -> int:
    async with lock as term:
        return term.token

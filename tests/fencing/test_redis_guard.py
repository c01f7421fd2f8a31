"""Writes to Redis under a guard, on every server: compared and written in one step, and remembered for longer."""

from __future__ import annotations

import asyncio
import random

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aioelect import ConfigurationError, Lease, StaleToken, aclose
from aioelect.fencing import Gate, RedisGuard
from aioelect.fencing.redis import _beside
from conftest import Connect
from fencing.conftest import TOKEN
from support import servers
from support.servers import Server
from support.topologies import Cluster

LASTING = pytest.mark.leaves_keys("data without a ttl has a fence without a ttl")


@LASTING
async def test_a_write_with_an_older_token_is_refused_with_both_numbers(any_server: Server, redis: Redis) -> None:
    guard = RedisGuard(redis)
    assert isinstance(guard, Gate)
    await guard.set(TOKEN, "qty", 120)
    await guard.set(TOKEN + 1, "qty", 95)
    await guard.set(TOKEN + 1, "qty", 96)
    with pytest.raises(StaleToken, match=f"qty: token {TOKEN} is older than {TOKEN + 1}") as caught:
        await guard.set(TOKEN, "qty", 120)
    assert (caught.value.token, caught.value.newest, caught.value.resource) == (TOKEN, TOKEN + 1, "qty")
    assert await redis.get("qty") == b"96"
    await guard.set(33, "another", b"\x00\xff")
    assert await redis.get("another") == b"\x00\xff"
    with pytest.raises(StaleToken):  # 9 digits are older than 10, whatever the first is
        await guard.set(999_999_999, "qty", 1)


async def test_the_fence_outlives_the_data(any_server: Server, redis: Redis) -> None:
    guard = RedisGuard(redis, retention=60)
    await guard.set(TOKEN + 1, "qty", 95, ttl=100)
    of_the_fence = any_server.call("PTTL", _beside("aioelect:seen", "qty"))
    assert 100_000 < any_server.call("PTTL", "qty") + 60_000 <= of_the_fence <= 160_000
    any_server.call("DEL", "qty")
    with pytest.raises(StaleToken):
        await guard.set(TOKEN, "qty", 120)
    await guard.admit("qty", TOKEN + 1)
    assert 0 < any_server.call("PTTL", _beside("aioelect:seen", "qty")) <= 60_000
    await guard.set(TOKEN + 1, "qty", 95)
    assert any_server.call("PTTL", _beside("aioelect:seen", "qty")) == -1, "data for ever, and a fence that ends"
    await guard.run(TOKEN + 1, "redis.call('PEXPIRE', KEYS[1], 5000)", ["qty"])
    assert 60_000 < any_server.call("PTTL", _beside("aioelect:seen", "qty")) <= 65_000


async def test_a_piece_of_lua_runs_with_its_own_keys_and_arguments_or_not_at_all(
    any_server: Server, redis: Redis, connect: Connect
) -> None:
    guard = RedisGuard(redis)
    piece = """
    -- a comment
    redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
    redis.call('PEXPIRE', KEYS[1], 10000)
    redis.call('SET', KEYS[2], #KEYS .. ' ' .. #ARGV, 'PX', 10000)
    return redis.call('HGET', KEYS[1], ARGV[1])
    """
    assert await guard.run(TOKEN, piece, ["stock", "seen"], ["SKU-001", 5]) == b"5"
    assert await guard.run(TOKEN, piece, ["stock", "seen"], ["SKU-001", 5]) == b"10"
    assert await redis.get("seen") == b"2 2"
    with pytest.raises(StaleToken):
        await guard.run(TOKEN - 1, piece, ["stock", "seen"], ["SKU-001", 5])
    assert await redis.hget("stock", "SKU-001") == b"10"  # type: ignore[misc,unused-ignore]
    assert await guard.run(TOKEN, "return nil", ["stock"]) is None
    text = connect(any_server, decode_responses=True)
    assert await RedisGuard(text).run(TOKEN, piece, ["stock", "seen"], ["SKU-001", 5]) == "15"
    with pytest.raises(StaleToken):
        await RedisGuard(text).admit("stock", TOKEN - 1)


async def test_a_piece_that_fails_comes_out_as_the_servers_error_and_counts_as_a_write(
    any_server: Server, redis: Redis
) -> None:
    guard = RedisGuard(redis)
    with pytest.raises(ResponseError, match=r"(?i)wrong number|wrong kind|WRONGTYPE|value is not an integer"):
        await guard.run(TOKEN, "redis.call('SET', KEYS[1], 'x', 'PX', 9000) redis.call('INCR', KEYS[1])", ["qty"])
    assert await redis.get("qty") == b"x", "half of it was done"
    with pytest.raises(StaleToken):
        await guard.set(TOKEN - 1, "qty", 1)


@LASTING
async def test_of_many_writers_at_once_the_newest_has_the_last_word(server: Server, redis: Redis) -> None:
    async def write(token: int) -> None:
        await asyncio.sleep(random.random() * 0.02)
        try:
            await RedisGuard(redis).set(token, "qty", token)
        except StaleToken as stale:
            refused.append((stale.token, stale.newest))

    refused: list[tuple[int | None, int | None]] = []
    tokens = [TOKEN + number for number in range(100)]
    random.shuffle(tokens)
    await asyncio.gather(*map(write, tokens))
    assert await redis.get("qty") == str(TOKEN + 99).encode()
    assert all(newest is not None and token is not None and newest > token for token, newest in refused)


@LASTING
async def test_the_token_of_a_term_is_used_and_its_name_and_the_keys_of_the_lock_are_left_alone(
    server: Server, redis: Redis
) -> None:
    term = await Lease(redis, "qty", ttl=5).try_acquire()
    assert term is not None
    await RedisGuard(redis).set(term, "qty", 95)
    assert int(server.call("GET", "aioelect:seen:{qty}")) == term.token
    await term.renew()
    await term.release()
    await aclose(redis)


@pytest.mark.parametrize(
    ("key", "fence"),
    [
        ("qty", "p:{qty}"),
        ("stock:SKU-001", "p:{stock:SKU-001}"),
        ("{SKU-001}:qty", "p:{SKU-001}:{SKU-001}:qty"),
        ("a{b}c{d}", "p:{b}:a{b}c{d}"),
        ("a{b", "p:{a{b}"),
    ],
)
async def test_the_fence_lies_in_the_slot_of_its_data(key: str, fence: str) -> None:
    from redis.crc import key_slot

    assert _beside("p", key) == fence
    assert key_slot(key.encode()) == key_slot(fence.encode())


async def test_p14_what_cannot_work_is_refused(redis: Redis) -> None:
    guard = RedisGuard(redis)
    for key in ("a}b", "{}a", "a{}b}"):
        with pytest.raises(ConfigurationError, match="has a brace but no hash tag"):
            await guard.set(TOKEN, key, 1)
    with pytest.raises(ConfigurationError, match="keys="):
        await guard.run(TOKEN, "return 1", [])
    with pytest.raises(ConfigurationError, match="token=0"):
        await guard.set(0, "a", 1)
    with pytest.raises(ConfigurationError, match="ttl=0 is too short"):
        await guard.set(1, "a", 1, ttl=0)
    with pytest.raises(ConfigurationError, match="prefix="):
        RedisGuard(redis, prefix="{a}")


@pytest.mark.slow
async def test_in_a_cluster_plain_keys_and_tagged_ones_are_guarded() -> None:
    with Cluster(servers.newest()) as cluster:
        client = cluster.client()
        guard = RedisGuard(client)
        for key in ("qty", "{SKU-001}:qty", "stock:SKU-001"):
            await guard.set(TOKEN, key, 95, ttl=60)
            with pytest.raises(StaleToken):
                await guard.set(TOKEN - 1, key, 120)
            assert await client.get(key) == b"95"
        await client.aclose()

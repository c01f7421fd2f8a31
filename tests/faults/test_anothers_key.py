"""P5, P6: a key that is gone or another's is never created, prolonged or removed by a holder that has lost it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from aioelect import FencedLock, Lease, LeaseTaken, ReleaseOutcome, Term, aclose
from conftest import Connect
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

KEY = "aioelect:{name}"
FENCE = "aioelect:{name}:fence"
TTL = 2.0


@pytest.fixture
async def mine(redis: Redis) -> AsyncIterator[Redis]:
    """A client with nothing left open."""
    yield redis
    await aclose(redis)


async def acquired(redis: Redis) -> Term:
    """A term that nobody renews."""
    term = await Lease(redis, "name", ttl=TTL).try_acquire()
    assert term is not None
    return term


def take(server: Server) -> None:
    """Another's claim takes the place of ours."""
    server.call("SET", KEY, "another's", "PX", 700)


async def test_p6_a_renewal_of_anothers_key_leaves_it_alone(any_server: Server, mine: Redis) -> None:
    term = await acquired(mine)
    take(any_server)
    with pytest.raises(LeaseTaken):
        await term.renew()
    assert any_server.call("GET", KEY) == b"another's"
    assert any_server.call("PTTL", KEY) <= 700
    assert not term.is_valid


async def test_p6_a_renewal_of_a_key_that_is_gone_does_not_create_it(any_server: Server, mine: Redis) -> None:
    term = await acquired(mine)
    fence = any_server.call("PTTL", FENCE)
    any_server.call("DEL", KEY)
    await asyncio.sleep(0.005)
    with pytest.raises(LeaseTaken):
        await term.renew()
    assert any_server.call("EXISTS", KEY) == 0
    assert any_server.call("PTTL", FENCE) < fence


@pytest.mark.parametrize("repeat", [False, True], ids=["first", "second"])
async def test_p6_a_release_of_anothers_key_leaves_it_alone(any_server: Server, mine: Redis, repeat: bool) -> None:
    term = await acquired(mine)
    if repeat:
        # A second release of the same term is compared just the same.
        assert await term.release() is ReleaseOutcome.RELEASED
    take(any_server)
    await term.release()
    assert any_server.call("GET", KEY) == b"another's"
    assert any_server.call("PTTL", KEY) <= 700


async def test_p6_a_release_of_a_key_that_is_gone_says_so_and_creates_nothing(any_server: Server, mine: Redis) -> None:
    term = await acquired(mine)
    any_server.call("DEL", KEY)
    assert await term.release() is ReleaseOutcome.ALREADY_LOST
    assert any_server.call("EXISTS", KEY) == 0


@pytest.mark.leaves_keys("a foreign program's key")
async def test_p6_a_key_of_another_type_is_left_alone(any_server: Server, mine: Redis) -> None:
    term = await acquired(mine)
    any_server.call("DEL", KEY)
    any_server.call("LPUSH", KEY, "another's")
    await term.release()
    assert any_server.call("LRANGE", KEY, 0, -1) == [b"another's"]
    assert any_server.call("PTTL", KEY) == -1


async def test_p6_the_background_renewal_stops_at_anothers_key(any_server: Server, mine: Redis) -> None:
    with pytest.raises(LeaseTaken):
        async with FencedLock(mine, "name", ttl=TTL):
            any_server.call("SET", KEY, "another's", "PX", 60_000)
            await asyncio.sleep(10)
    assert any_server.call("GET", KEY) == b"another's"
    assert 50_000 < any_server.call("PTTL", KEY) <= 60_000


async def test_p5_the_life_in_the_server_is_never_longer_than_the_ttl(
    any_server: Server, mine: Redis, connect: Connect
) -> None:
    """Not by acquiring, not by renewing in the background or by hand, not by a waiter's tries."""
    seen: list[int] = []
    other = connect(any_server, unix=True)
    waiting = asyncio.create_task(acquire_and_release(other))
    async with FencedLock(mine, "name", ttl=0.5) as term:
        for _ in range(40):
            await asyncio.sleep(0.02)
            await term.renew()
            seen.append(any_server.call("PTTL", KEY))
        assert max(seen) <= 500
        assert min(seen) > 0
    await waiting
    await until(lambda: any_server.call("EXISTS", KEY) == 0)
    await aclose(other)


async def acquire_and_release(redis: Redis) -> None:
    async with FencedLock(redis, "name", ttl=0.5):
        pass

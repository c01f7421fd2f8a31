"""P4, P10: how long an acquisition waits: one try, a limit, no limit."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from aioelect import AcquireTimeout, FencedLock, Lease, NotAcquired, StoreUnavailable, Term, aclose
from aioelect._core.campaign import Campaign
from conftest import Connect
from support.proxy import Proxy
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults


@pytest.fixture
async def mine(proxy: Proxy, connect: Connect) -> AsyncIterator[Redis]:
    """A client through the proxy, with nothing left open."""
    redis = connect(proxy)
    yield redis
    proxy.clear()
    await aclose(redis)


async def holding(server: Server, name: str, ttl: float) -> None:
    """Somebody on another machine holds the name: in the server, not in this process's line."""
    server.call("SET", f"aioelect:{{{name}}}", "another's", "PX", int(ttl * 1000))


@pytest.mark.parametrize("primitive", ["lease", "lock"])
async def test_p4_wait_zero_is_one_try(proxy: Proxy, server: Server, mine: Redis, primitive: str) -> None:
    await holding(server, "name", 30)
    section = Lease(mine, "name") if primitive == "lease" else FencedLock(mine, "name", wait=0)
    for _ in range(3):
        proxy.commands.clear()
        with pytest.raises(NotAcquired) as caught:
            async with section:
                pytest.fail("it is held")
        assert not isinstance(caught.value, AcquireTimeout)
    # The last one knew the script already: one command, and no subscription.
    assert proxy.names("EVALSHA", "EVAL", "SUBSCRIBE", "GET", "SET") == ["EVALSHA"]


async def test_p4_a_wait_too_short_to_ask_does_not_say_that_another_holds_it(server: Server, mine: Redis) -> None:
    with pytest.raises(AcquireTimeout, match="not asked for in time") as caught:
        async with FencedLock(mine, "name", wait=1e-6):
            pytest.fail("there was no time to ask")
    assert (caught.value.reason, caught.value.holder) == ("late", None)
    assert server.call("EXISTS", "aioelect:{name}") == 0


async def test_p4_a_wait_that_runs_out_says_how_long_it_waited(server: Server, mine: Redis) -> None:
    await holding(server, "name", 30)
    started = time.monotonic()
    with pytest.raises(AcquireTimeout) as caught:
        async with FencedLock(mine, "name", wait=0.3):
            pytest.fail("it is held")
    assert isinstance(caught.value, TimeoutError)
    lasted = time.monotonic() - started
    assert caught.value.waited is not None
    assert 0.29 <= caught.value.waited <= lasted + 0.01


async def test_p11_a_last_try_without_time_for_an_answer_does_not_hide_who_holds_it(
    server: Server, proxy: Proxy, mine: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rest = Campaign.time_for_try, iter([0.0005])
    monkeypatch.setattr(Campaign, "time_for_try", lambda self, now: real(self, now) or next(rest, 0.0))
    await holding(server, "name", 30)
    proxy.reply("EVALSHA", times=None).delay(0.02)
    with pytest.raises(AcquireTimeout) as caught:
        async with FencedLock(mine, "name", wait=0.3):
            pytest.fail("it is held")
    assert caught.value.reason == "held"
    assert next(rest, None) is None, "the last try was made"


async def test_p4_no_limit_waits_on_and_can_be_cancelled(server: Server, mine: Redis) -> None:
    await holding(server, "name", 30)

    async def wait() -> None:
        async with FencedLock(mine, "name", wait=None):
            pytest.fail("it is held")

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0.5)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert server.call("GET", "aioelect:{name}") == b"another's"
    # Nobody stands in line any more: the next one is served as soon as the name is free.
    server.call("DEL", "aioelect:{name}")
    async with FencedLock(mine, "name", wait=5) as term:
        term.check()


async def test_p4_a_short_wait_ends_in_time_on_a_slow_server(proxy: Proxy, server: Server, mine: Redis) -> None:
    async with FencedLock(mine, "warm"):
        pass
    # One after the other, as replies on one connection come.
    slow = proxy.reply(lambda command: command.name.startswith("EVAL"), times=None).delay(1.0)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        async with FencedLock(mine, "name", ttl=1.0, wait=0.05):
            pytest.fail("there was no answer in time")
    # The undoing gets a moment of its own, and then goes on detached.
    assert time.monotonic() - started < 0.9, "it waited for the server"
    assert caught.value.waited is not None and caught.value.waited < 0.9
    slow.remove()
    await until(lambda: server.call("EXISTS", "aioelect:{name}") == 0, limit=3)


@pytest.mark.parametrize("held_for", [0.4, 1.5])
async def test_p1_the_winner_after_a_long_wait_has_its_full_ttl(server: Server, mine: Redis, held_for: float) -> None:
    """Its life counts from the try that succeeded, not from the first one."""
    ttl = 1.0
    await holding(server, "name", held_for)
    started = time.monotonic()
    async with FencedLock(mine, "name", ttl=ttl, wait=10) as term:
        left, in_server = term.remaining(), server.call("PTTL", "aioelect:{name}") / 1000
        assert time.monotonic() - started >= held_for - 0.05
        assert 0.6 * ttl < left < ttl
        assert left - 0.05 < in_server <= ttl


async def test_p10_a_waiter_gets_in_after_the_holders_death_and_not_before(server: Server, mine: Redis) -> None:
    entered: list[Term] = []

    async def wait() -> None:
        async with FencedLock(mine, "name", ttl=5, wait=5) as term:
            entered.append(term)

    await holding(server, "name", 0.6)
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0.3)
    server.call("PEXPIRE", "aioelect:{name}", 600)  # the holder renews
    await asyncio.sleep(0.4)
    assert entered == []
    await waiting
    assert len(entered) == 1

"""P11: held, unreachable, rejected and lost are four different answers; each says whose word it is and what to do."""

import asyncio
import pickle
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from aioelect import (
    AcquireTimeout,
    AioelectError,
    FencedLock,
    Lease,
    LeaseExpired,
    LeaseLost,
    LeaseTaken,
    NotAcquired,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    Term,
    aclose,
)
from conftest import Connect, MakeServer
from support.proxy import Proxy
from support.servers import Server, free_port

pytestmark = pytest.mark.faults

FOUR = (NotAcquired, StoreUnavailable, StoreRejected, LeaseLost)


@pytest.fixture
async def mine(redis: Redis) -> AsyncIterator[Redis]:
    """A client with nothing left open."""
    yield redis
    await aclose(redis)


def check(error: AioelectError, kind: type[AioelectError], *, reason: str | tuple[str, ...], says: str) -> None:
    """It is of its own kind only, and carries name, cause and seconds waited."""
    assert [other for other in FOUR if isinstance(error, other)] == [kind]
    assert error.name == "name"
    assert error.reason in (reason if isinstance(reason, tuple) else (reason,))
    assert error.waited is not None and error.waited >= 0
    assert says in str(error), str(error)
    # It travels between processes with all that.
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.name, again.reason, again.waited) == (
        type(error),
        str(error),
        error.name,
        error.reason,
        error.waited,
    )


async def acquire(redis: Redis, wait: float, ttl: float = 1.0) -> None:
    async with FencedLock(redis, "name", ttl=ttl, wait=wait):
        pass


async def test_p11_held_by_another_names_the_holder(server: Server, mine: Redis, connect: Connect) -> None:
    other = connect(server, unix=True)
    held = await Lease(other, "name", ttl=30, identity="somebody").try_acquire()
    assert held is not None
    with pytest.raises(NotAcquired) as at_once:
        await acquire(mine, 0)
    check(at_once.value, NotAcquired, reason="held", says="do without it, or wait")
    with pytest.raises(AcquireTimeout) as after_a_while:
        await acquire(mine, 0.3)
    check(after_a_while.value, NotAcquired, reason="held", says="or allow a longer wait")
    assert after_a_while.value.waited is not None and after_a_while.value.waited >= 0.29
    # Also for whoever only stood in line behind the one that asked.
    head = asyncio.create_task(acquire(mine, 20))
    await asyncio.sleep(0)
    with pytest.raises(AcquireTimeout) as behind:
        await acquire(mine, 1)
    check(behind.value, NotAcquired, reason="held", says=f"held by somebody (token {held.token}); gave up")
    head.cancel()
    await asyncio.wait({head})
    for error in (at_once.value, after_a_while.value):
        assert (error.holder, error.token, error.term_id) == ("somebody", held.token, held.id)
        assert f"'name' is held by somebody (token {held.token})" in str(error)
    await held.release()
    await aclose(other)


@pytest.mark.parametrize("way", ["refused", "silent", "cut"])
async def test_p11_unreachable_says_how_and_for_how_long(proxy: Proxy, connect: Connect, way: str) -> None:
    redis = connect(proxy)
    if way == "refused":
        proxy.refuse()
    elif way == "silent":
        proxy.black_hole()
    else:
        proxy.request("EVALSHA", times=None).cut()
    started = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        await acquire(redis, 0.5)
    waited = caught.value.waited
    assert waited is not None and 0.4 <= waited <= time.monotonic() - started
    check(
        caught.value,
        StoreUnavailable,
        reason="timeout" if way == "silent" else "connection",
        says="no answer from the server" if way == "silent" else "no connection to the server",
    )
    assert "check" in str(caught.value) or "try again" in str(caught.value)
    proxy.heal(deliver=False)
    await aclose(redis)


async def test_p11_a_refused_address_is_in_the_message() -> None:
    port = free_port()
    redis = Redis(port=port)
    with pytest.raises(StoreUnavailable, match=f":{port}"):
        await acquire(redis, 0)
    await aclose(redis)
    await redis.aclose()


async def test_p11_rejected_says_what_to_change(make_server: MakeServer, connect: Connect) -> None:
    server = make_server(requirepass="right")
    cases = {
        ("noauth", "give the client one"): {},
        ("wrongpass", "correct the client's credentials"): {"password": "wrong"},
    }
    for (reason, says), credentials in cases.items():
        redis = connect(server, **credentials)
        started = time.monotonic()
        with pytest.raises(StoreRejected) as caught:
            await acquire(redis, 10)
        assert time.monotonic() - started < 5, "it was tried again and again"
        check(caught.value, StoreRejected, reason=reason, says=says)
        assert not caught.value.passing
        await aclose(redis)


@pytest.mark.leaves_keys("foreign programs' keys")
async def test_p11_a_foreign_key_is_rejected_with_what_to_do(any_server: Server, mine: Redis) -> None:
    any_server.call("SET", "aioelect:{name}", "something else")
    with pytest.raises(StoreRejected) as caught:
        await acquire(mine, 10)
    check(caught.value, StoreRejected, reason="foreign key", says="delete it, or choose another name or prefix")
    any_server.call("DEL", "aioelect:{name}")
    any_server.call("LPUSH", "aioelect:{name}", "something else")
    with pytest.raises(StoreRejected) as caught:
        await acquire(mine, 10)
    check(caught.value, StoreRejected, reason="wrongtype", says="choose another name or prefix, or remove that key")
    any_server.call("DEL", "aioelect:{name}")
    any_server.call("SET", "aioelect:{name}:fence", "something else")
    with pytest.raises(StoreRejected) as caught:
        await acquire(mine, 10)
    check(caught.value, StoreRejected, reason="wrongtype", says="choose another name or prefix, or remove that key")
    assert any_server.call("GET", "aioelect:{name}:fence") == b"something else"


async def test_p11_lost_to_another_names_the_successor(server: Server, mine: Redis, connect: Connect) -> None:
    other = connect(server, unix=True)
    terms: list[Term] = []
    successors: list[Term] = []
    with pytest.raises(LeaseTaken) as caught:
        async with FencedLock(mine, "name", ttl=3.0) as term:
            terms.append(term)
            server.call("DEL", "aioelect:{name}")
            if (won := await Lease(other, "name", ttl=30, identity="successor").try_acquire()) is not None:
                successors.append(won)
            await asyncio.sleep(20)
    (successor,) = successors
    check(caught.value, LeaseLost, reason="taken", says="write nothing more")
    assert (caught.value.token, caught.value.term_id) == (terms[0].token, terms[0].id)
    assert caught.value.holder == "successor"
    assert f"successor holds it (token {successor.token})" in str(caught.value)
    assert caught.value.__cause__ is None
    await successor.release()
    await aclose(other)


async def test_p11_lost_by_the_clock_has_its_cause_and_the_seconds_without_a_word(
    proxy: Proxy, connect: Connect
) -> None:
    redis = connect(proxy)
    terms: list[Term] = []
    with pytest.raises(LeaseExpired) as caught:
        async with FencedLock(redis, "name", ttl=1.0) as term:
            terms.append(term)
            proxy.refuse()
            proxy.cut()
            await asyncio.sleep(20)
    check(caught.value, LeaseLost, reason="expired", says="write nothing more")
    assert (caught.value.token, caught.value.term_id) == (terms[0].token, terms[0].id)
    assert caught.value.waited == pytest.approx(0.8), "so long no renewal was confirmed"
    cause = caught.value.__cause__
    assert isinstance(cause, StoreError) and cause.name == "name"
    assert str(cause) in str(caught.value)
    proxy.heal()
    await aclose(redis)

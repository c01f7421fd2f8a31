"""Crowds of acquisitions at once: few tries at a time, nobody held up by those that are hung or wait in line."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from aioelect import FencedLock, Lease, StoreUnavailable, Term
from aioelect._gate import _ABREAST, gate
from aioelect._redis.links import Links
from aioelect._redis.runtime import runtime_of
from aioelect._redis.store import RedisStore, open_store
from conftest import MakeServer
from faults.conftest import MakePeer, Peer
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

CROWD = 10 * _ABREAST


def in_flight(peer: Peer) -> int:
    """Calls that wait for an answer of the server."""
    route = runtime_of(cast("RedisStore", open_store(peer.redis, "aioelect"))._origin).route
    return sum(len(link._sent) + len(link._queue) for link in cast("Links", route)._links)


async def test_of_a_crowd_few_ask_at_a_time_and_all_win(make_peer: MakePeer, server: Server) -> None:
    peer = await make_peer()
    most = 0

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, in_flight(peer))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    terms = await asyncio.gather(*(Lease(peer.redis, f"name-{n}").try_acquire() for n in range(CROWD)))
    looking.cancel()
    held = cast("list[Term]", terms)
    assert len({term.token for term in held}) == CROWD
    assert 1 < most <= _ABREAST
    await asyncio.gather(*(term.release() for term in held))


async def test_p5_a_crowd_that_is_cancelled_before_its_turn_has_asked_for_nothing(
    make_peer: MakePeer, server: Server
) -> None:
    peer = await make_peer()
    held = peer.proxy.request("EVALSHA", times=None).hold()
    crowd = [asyncio.create_task(peer.lock(f"name-{n}").__aenter__()) for n in range(CROWD)]
    await held.reached()
    for task in crowd:
        task.cancel()
    peer.proxy.clear()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*crowd, return_exceptions=True))
    assert len(held.hits) <= 2 * _ABREAST  # what was asked, and its undoing
    assert server.call("KEYS", "aioelect:{name-*}") == []


async def test_p4_a_hung_server_holds_up_no_acquisition_at_another(
    make_peer: MakePeer, make_server: MakeServer
) -> None:
    hung, other = await make_peer(), await make_peer(make_server())
    hung.proxy.black_hole()
    loop = asyncio.get_running_loop()
    started = loop.time()
    ttl = 6.0
    limit = Lease(hung.redis, "name", ttl=ttl)._session.timing.response_limit
    crowd = [asyncio.create_task(Lease(hung.redis, f"name-{n}", ttl=ttl).try_acquire()) for n in range(CROWD)]
    await asyncio.sleep(0)
    async with other.lock("name", ttl=ttl):
        assert loop.time() < started + limit  # before the first of the others is out
        assert not any(task.done() for task in crowd)
    ends = await asyncio.gather(*crowd, return_exceptions=True)
    assert {type(end) for end in ends} == {StoreUnavailable}


async def test_p10_whoever_waits_for_a_name_is_in_nobodys_way(make_peer: MakePeer) -> None:
    holder, waiting = await make_peer(), await make_peer()
    names = [f"name-{n}" for n in range(2 * _ABREAST)]
    terms = await asyncio.gather(*(Lease(holder.redis, name, ttl=30).try_acquire() for name in names))
    waiters = [asyncio.create_task(waiting.lock(name, ttl=30).__aenter__()) for name in (*names, *names)]
    await until(lambda: len(waiting.proxy.names("SUBSCRIBE")) >= len(names))
    await until(lambda: not gate()._inside)
    async with waiting.lock("another", wait=0):
        pass
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, *(term.release() for term in terms if term), return_exceptions=True)


async def test_p4_those_that_have_little_time_get_half_of_it_for_their_try(make_peer: MakePeer) -> None:
    """Whatever others do in the gate."""
    peer = await make_peer()
    passage = gate()
    for _ in range(_ABREAST):
        assert passage.enter()
    stir = asyncio.create_task(_stir())
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with FencedLock(peer.redis, "name", wait=0.4):
        assert started + 0.2 <= loop.time() + 0.001
    stir.cancel()
    for _ in range(_ABREAST):
        passage.leave()


async def _stir() -> None:
    """As if others came and went all the time."""
    while True:
        gate()._quiet = 0
        await asyncio.sleep(0)

"""Crowds of acquisitions at once: whoever is put off loses nothing by it, and nobody's promise suffers."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import pytest

from aioelect import FencedLock, Lease, StoreUnavailable, Term
from aioelect._gate import _ABREAST, gate
from conftest import MakeServer
from faults.conftest import MakePeer, Peer
from support.servers import Server

pytestmark = pytest.mark.faults

CROWD = 10 * _ABREAST


@pytest.mark.parametrize("wait", [0, 30.0, None], ids=["one-try", "limited", "ever"])
async def test_all_of_a_crowd_win_if_their_names_are_free(make_peer: MakePeer, wait: float | None) -> None:
    peer = await make_peer()

    async def take(name: str) -> int:
        async with FencedLock(peer.redis, name, wait=wait) as term:
            return term.token

    tokens = await asyncio.gather(*(take(f"name-{n}") for n in range(CROWD)))
    assert len(set(tokens)) == CROWD


async def test_p5_a_crowd_that_is_cancelled_before_its_turn_has_asked_for_nothing(
    make_peer: MakePeer, server: Server
) -> None:
    peer = await make_peer()
    async with peer.lock("warm"):
        pass
    before = len(peer.proxy.names("EVALSHA"))
    crowd = [asyncio.create_task(peer.lock(f"name-{n}").__aenter__()) for n in range(CROWD)]
    await asyncio.sleep(0)
    for task in crowd:
        task.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*crowd, return_exceptions=True))
    assert len(peer.proxy.names("EVALSHA")) - before <= 2 * _ABREAST  # what was asked, and its undoing
    assert server.call("KEYS", "aioelect:{name-*}") == []


async def test_p4_tries_that_hang_hold_up_no_acquisition_at_another_server(
    make_peer: MakePeer, make_server: MakeServer
) -> None:
    hung, other = await make_peer(), await make_peer(make_server())
    async with other.lock("warm"):
        pass
    hung.proxy.black_hole()
    crowd = [asyncio.create_task(Lease(hung.redis, f"name-{n}", ttl=6).try_acquire()) for n in range(CROWD)]
    await asyncio.sleep(0)
    async with other.lock("name", ttl=6):
        assert not any(task.done() for task in crowd)  # before the first of the others is out
    ends = await asyncio.gather(*crowd, return_exceptions=True)
    assert {type(end) for end in ends} == {StoreUnavailable}


async def test_p4_claims_are_renewed_while_a_crowd_comes_and_goes(make_peer: MakePeer) -> None:
    """Their loop is busy, but its turns are short."""
    peer = await make_peer()
    terms = [cast("Term", await Lease(peer.redis, f"held-{n}", ttl=30).try_acquire()) for n in range(10)]
    coming = [asyncio.create_task(_take_and_leave(peer, f"name-{n}")) for n in range(CROWD)]
    await asyncio.gather(*(term.renew() for term in terms))
    assert not all(task.done() for task in coming)  # nobody waits for the last of the crowd
    await asyncio.gather(*coming, *(term.release() for term in terms))


async def _take_and_leave(peer: Peer, name: str) -> None:
    async with peer.lock(name):
        pass


async def test_p4_a_wait_counts_from_when_a_crowd_lets_one_ask(make_peer: MakePeer) -> None:
    peer = await make_peer()
    async with peer.lock("warm"):
        pass
    passage, limit = gate(), 0.1
    for _ in range(_ABREAST):
        assert passage.enter()
    late = asyncio.create_task(FencedLock(peer.redis, "name", wait=limit).__aenter__())
    asyncio.get_running_loop().call_soon(time.sleep, 2 * limit)  # right behind its first step
    term = await late
    for _ in range(_ABREAST):
        passage.leave()
    await term.release()

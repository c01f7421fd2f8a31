"""Nodes of a quorum that lost their data, all or some of it: they abstain until nobody can need what they forgot."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from aioelect import Elector, FencedLock, Lease, QuorumStore, StoreUnavailable, aclose
from conftest import MakeServer
from faults.conftest import MakeQuorum
from faults.test_acl import PASSWORD, USER, native, set_user
from support.proxy import Proxy
from support.quorums import commissioned
from support.servers import Server

pytestmark = pytest.mark.faults

TTL = 3.0


async def elected(store: QuorumStore, ttl: float = TTL) -> int:
    """Wait in line, and return the token."""
    async with FencedLock(store, "name", ttl=ttl, wait=30) as term:
        return term.token


async def one_way_each(
    nodes: list[Server], make_quorum: MakeQuorum, stack: AsyncExitStack
) -> tuple[QuorumStore, QuorumStore]:
    """Two processes: the first has no way to the third node."""
    cut = await stack.enter_async_context(Proxy(nodes[2]))
    cut.refuse()
    return make_quorum(nodes[0], nodes[1], cut), make_quorum(*nodes)


async def test_a_node_that_lost_its_data_does_not_help_a_second_holder_in(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    async with AsyncExitStack() as stack:
        store, other = await one_way_each(nodes, make_quorum, stack)
        async with FencedLock(store, "name", ttl=20.0) as term:
            nodes[0].restart(keep_data=False)
            assert await Lease(other, "name", ttl=20.0).try_acquire() is None
            assert term.is_valid
            # Honest both ways: were it allowed to vote, two would hold the name.
            commissioned(nodes)
            second = await Lease(other, "name", ttl=20.0).try_acquire()
            assert second is not None and second.is_valid and term.is_valid
            assert second.token > term.token
            await second.release()
            await term.release()


async def test_after_flushall_on_every_node_they_vote_when_the_longest_ttl_has_passed_and_tokens_rise(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    store, other = make_quorum(*nodes, longest_ttl=2.0), make_quorum(*nodes, longest_ttl=2.0)
    for node in nodes:
        node.call("FLUSHALL")
    commissioned(nodes, 2.0)
    first = await elected(store, 2.0)
    for node in nodes:
        node.call("FLUSHALL")
    began = time.monotonic()
    # Several notice it at once; the nodes remember when.
    tokens = await asyncio.gather(*(elected(one, 2.0) for one in (store, other)))
    assert 1.9 < time.monotonic() - began < 15
    assert min(tokens) > first and len(set(tokens)) == 2


async def test_a_fresh_quorum_votes_after_the_longest_ttl_without_anybodys_help(
    make_server: MakeServer, make_quorum: MakeQuorum
) -> None:
    nodes = [make_server() for _ in range(3)]
    store = make_quorum(*nodes, longest_ttl=1.5)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="is new"):
        await Lease(store, "name", ttl=1.0).try_acquire()
    await Elector(store, "name", ttl=1.0).run(_nothing)
    assert 1.4 < time.monotonic() - began < 15


async def _nothing(_: object) -> None:
    pass


async def test_a_node_that_restarts_with_old_data_abstains_too_unless_it_may_not_read_its_run_id(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    store = make_quorum(*nodes)
    first = await elected(store)
    nodes[0].kill()
    for rights, abstains in (("+info", True), ("-info", False)):
        nodes[1].restart(keep_data=True)
        nodes[1].call("ACL", "SETUSER", "default", rights)
        if abstains:
            with pytest.raises(StoreUnavailable, match="may have forgotten claims"):
                await Lease(store, "name", ttl=20.0).try_acquire()
            commissioned(nodes[1:])
        assert await elected(store) > first


async def test_the_wait_counts_from_the_start_of_a_node_that_kept_its_register(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    nodes[0].kill()
    commissioned(nodes[1:], 2.0)
    store = make_quorum(*nodes, longest_ttl=2.0)
    for node in nodes[1:]:
        for key in ("run", "since"):
            assert node.call("HEXISTS", "aioelect:quorum", key) == 1
        node.call("HSET", "aioelect:quorum", "longest", 2000)
    nodes[1].restart(keep_data=True)
    await asyncio.sleep(3.1)  # the uptime is told in whole seconds
    async with Lease(store, "name", ttl=2.0) as term:
        assert term.is_leader


async def test_the_one_who_sets_a_quorum_up_may_let_it_vote_at_once(
    make_server: MakeServer, make_quorum: MakeQuorum
) -> None:
    nodes = [make_server() for _ in range(3)]
    store = make_quorum(*nodes)
    await store.commission()
    async with Lease(store, "name", ttl=TTL) as term:
        assert term.is_leader
    nodes[2].kill()
    with pytest.raises(StoreUnavailable, match=f":{nodes[2].port}: "):
        await store.commission()


@pytest.mark.parametrize("extra", [["+info"], []], ids=["with-info", "without-info"])
async def test_p11_the_documented_rights_are_enough_and_without_info_it_works_too(
    extra: list[str], nodes: list[Server]
) -> None:
    for node in nodes:
        set_user(node, *native(node.binary), *extra)
        node.call("ACL", "LOG", "RESET")
    clients = [node.client(username=USER, password=PASSWORD) for node in nodes]
    store = QuorumStore(clients, longest_ttl=60)
    async with FencedLock(store, "name", ttl=TTL) as term:
        await term.renew()
        assert await Lease(store, "name", ttl=TTL).try_acquire() is None
    assert await elected(store) > term.token
    await store.commission()
    denied = {entry[entry.index(b"object") + 1] for node in nodes for entry in node.call("ACL", "LOG")}
    assert denied == (set() if extra else {b"info"})
    await aclose(store)
    for client in clients:
        await client.aclose()

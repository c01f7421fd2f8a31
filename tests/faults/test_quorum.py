"""Claims on a majority of real servers: a minority may do whatever it likes, a majority decides."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import Sentinel

from aioelect import (
    ConfigurationError,
    Elector,
    FencedLock,
    Lease,
    LeaseExpired,
    LeaseTaken,
    NotAcquired,
    QuorumStore,
    ReleaseOutcome,
    StoreRejected,
    StoreUnavailable,
    aclose,
)
from aioelect._store import Claim, Contended, Granted, Released
from faults.conftest import MakeQuorum
from support.proxy import Proxy
from support.quorums import commissioned
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

TTL = 3.0


def claims(name: str, nodes: list[Server]) -> int:
    """On how many of the nodes the name is taken."""
    return sum(node.call("EXISTS", f"aioelect:{{{name}}}") for node in nodes)


def token_at(node: Server, name: str) -> int:
    return int(node.call("HGET", f"aioelect:{{{name}}}:fence", "token") or 0)


async def elected_again(store: QuorumStore, name: str) -> int:
    async with FencedLock(store, name, ttl=TTL, wait=30) as term:
        return term.token


# -- who makes a quorum ------------------------------------------------------------------------------------------------


def test_p14_clients_that_make_no_quorum_are_refused_with_the_reason() -> None:
    def at(*ports: int) -> list[Redis]:
        return [Redis(port=port) for port in ports]

    for clients, why in (
        (at(1), "at least 3"),
        (at(1, 2), "at least 3"),
        (at(1, 2, 3, 4), "take 3 or 5"),
        (at(1, 2, 2), "127.0.0.1:2|localhost:2"),
        ([*at(1, 2), Redis(port=2, db=3)], "two votes"),
        ([*at(1, 2), RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", 3)])], "a RedisCluster; wanted"),
        ([*at(1, 2), Sentinel([("127.0.0.1", 3)]).master_for("main")], "has not heard of a claim"),  # type: ignore[no-untyped-call,unused-ignore]
    ):
        with pytest.raises(ConfigurationError, match=why):
            QuorumStore(clients)  # type: ignore[arg-type,unused-ignore]
    for longest in (0.0, float("nan"), True, 100_000):
        with pytest.raises(ConfigurationError, match="longest_ttl"):
            QuorumStore(at(1, 2, 3), longest_ttl=longest)


def test_p14_a_ttl_above_the_longest_is_refused_where_it_enters() -> None:
    store = QuorumStore([Redis(port=port) for port in (1, 2, 3)], longest_ttl=20)
    with pytest.raises(ConfigurationError, match="longest_ttl=20 s"):
        Lease(store, "name", ttl=21)
    Lease(store, "name", ttl=20)


async def test_p14_one_server_under_two_names_is_found_out_and_leaves_nothing(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    class Alias:
        def client(self, **options: object) -> Redis:
            return Redis(host="localhost", port=nodes[0].port, **options)  # type: ignore[arg-type]

    store = make_quorum(nodes[0], Alias(), nodes[1])
    nodes[1].kill()  # so that the two are the majority
    with pytest.raises(StoreRejected, match="are one server"):
        await Lease(store, "name", ttl=TTL).try_acquire()
    await until(lambda: claims("name", nodes[:1]) == 0)


# -- a minority may do what it likes -----------------------------------------------------------------------------------


async def test_a_term_has_its_claim_and_its_token_on_all_nodes_and_leaves_none(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    async with FencedLock(make_quorum(*nodes), "name", ttl=TTL) as term:
        await until(lambda: [token_at(node, "name") for node in nodes] == [term.token] * 3)
        assert claims("name", nodes) == 3
        with pytest.raises(NotAcquired) as caught:
            async with Lease(make_quorum(*nodes), "name", ttl=TTL):
                pytest.fail("it is held")
        assert (caught.value.token, caught.value.term_id, caught.value.holder) == (term.token, term.id, term.identity)
    await until(lambda: claims("name", nodes) == 0)


async def test_a_minority_that_is_killed_is_not_missed(
    nodes: list[Server], make_quorum: MakeQuorum, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_quorum(*nodes)
    async with FencedLock(store, "name", ttl=TTL) as term:
        nodes[0].kill()
        await term.renew()
        await asyncio.sleep(TTL)
        assert term.is_leader
    assert await elected_again(store, "name") > term.token
    assert warnings(caplog) == [f"{nodes[0].port}, does not answer"]
    nodes[0].start()
    await elected_again(store, "name")
    port = nodes[0].port
    await until(lambda: warnings(caplog)[1:] == [f"{port}, answers again", f"{port}, abstains"], limit=5)
    commissioned(nodes)
    await elected_again(store, "name")
    await until(lambda: warnings(caplog)[3:] == [f"{port}, votes again"], limit=5)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of nodes, without the reasons."""
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    return [line.split("127.0.0.1:")[1].split(": ")[0] for line in said]


async def test_p4_a_node_that_hangs_stalls_nobody(nodes: list[Server], make_quorum: MakeQuorum) -> None:
    store, other = make_quorum(*nodes), make_quorum(*nodes)
    await elected_again(store, "name")
    await elected_again(other, "name")
    nodes[1].pause()
    took: list[float] = []
    for _ in range(10):
        began = time.monotonic()
        async with FencedLock(store, "name", ttl=20.0) as term:
            await term.renew()
            assert await Lease(other, "name", ttl=20.0).try_acquire() is None
        took.append(time.monotonic() - began)
    # A try of this ttl may take 2.3 s; one that waited for the node could not be over before.
    assert sorted(took)[5] < 0.3, took
    nodes[1].resume()
    await until(lambda: claims("name", nodes) == 0)


async def liar(said: bytes) -> asyncio.Server:
    """A server that answers everything with the same words."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(said * max(1, data.count(b"EVALSHA")))
        writer.close()

    return await asyncio.start_server(talk, "127.0.0.1", 0)


@pytest.mark.parametrize("said", [b":42\r\n", b"+OK\r\n", b"*1\r\n:1\r\n", b"-WHATEVER it is\r\n", b"nonsense\r\n"])
async def test_p11_a_node_that_lies_has_no_say(said: bytes, nodes: list[Server], make_quorum: MakeQuorum) -> None:
    async with await liar(said) as strange:
        port = strange.sockets[0].getsockname()[1]

        class Strange:
            def client(self, **options: object) -> Redis:
                return Redis(port=port)

        store = make_quorum(nodes[0], nodes[1], Strange())
        async with FencedLock(store, "name", ttl=TTL, wait=5) as term:
            await term.renew()
            assert await Lease(make_quorum(nodes[0], nodes[1], Strange()), "name", ttl=TTL).try_acquire() is None
        await aclose(store)


async def test_p11_a_node_that_refuses_has_no_say_and_a_majority_that_refuses_is_told(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    store = make_quorum(*nodes)
    nodes[0].call("ACL", "SETUSER", "default", "-evalsha", "-eval")
    first = await elected_again(store, "name")
    nodes[1].call("ACL", "SETUSER", "default", "-evalsha", "-eval")
    with pytest.raises(StoreRejected, match="permission") as caught:
        await Lease(store, "name", ttl=TTL).try_acquire()
    assert f":{nodes[1].port}: " in str(caught.value) and caught.value.reason == "noperm"
    await until(lambda: claims("name", nodes) == 0)
    nodes[1].call("ACL", "SETUSER", "default", "+evalsha", "+eval")
    assert await elected_again(store, "name") > first


async def test_without_a_majority_nobody_gets_in_nothing_is_left_and_the_error_names_the_nodes(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    store = make_quorum(*nodes)
    await elected_again(store, "name")
    nodes[0].kill()
    nodes[2].kill()
    with pytest.raises(StoreUnavailable, match="majority of 3 nodes") as caught:
        await Lease(store, "name", ttl=TTL).try_acquire()
    assert caught.value.reason == "no majority"
    assert f":{nodes[0].port}: " in str(caught.value) and f":{nodes[2].port}: " in str(caught.value)
    await until(lambda: claims("name", [nodes[1]]) == 0)


async def test_p3_a_holder_whose_majority_is_away_is_doubtful_and_stopped_at_the_renew_deadline(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    with pytest.raises(LeaseExpired):
        async with FencedLock(make_quorum(*nodes), "name", ttl=TTL) as term:
            nodes[0].pause()
            nodes[1].pause()
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="no majority"):
                await term.renew()
            assert term.is_leader
            await asyncio.sleep(3 * TTL)
    assert time.monotonic() - began < TTL


# -- what counts as a loss ---------------------------------------------------------------------------------------------


async def test_p6_a_claim_that_is_gone_from_a_minority_is_kept_and_not_made_again_there(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    async with FencedLock(make_quorum(*nodes), "name", ttl=TTL) as term:
        await until(lambda: claims("name", nodes) == 3)
        nodes[2].call("DEL", "aioelect:{name}")
        await term.renew()
        await term.renew()
        assert term.is_leader and claims("name", nodes) == 2


async def test_a_claim_that_is_gone_from_a_majority_is_lost(nodes: list[Server], make_quorum: MakeQuorum) -> None:
    with pytest.raises(LeaseTaken):
        async with FencedLock(make_quorum(*nodes), "name", ttl=TTL) as term:
            for node in nodes[:2]:
                node.call("DEL", "aioelect:{name}")
            with pytest.raises(LeaseTaken):
                await term.renew()
            assert not term.is_leader
            await asyncio.sleep(10)
    await until(lambda: claims("name", nodes) <= 1)


async def test_a_refusal_and_a_silence_are_no_loss(nodes: list[Server], make_quorum: MakeQuorum) -> None:
    async with FencedLock(make_quorum(*nodes), "name", ttl=20.0) as term:
        nodes[0].call("DEL", "aioelect:{name}")
        nodes[1].pause()
        with pytest.raises(StoreUnavailable):
            await term.renew()
        assert term.is_leader
        nodes[1].resume()
        await term.renew()


async def test_p6_a_release_reaches_the_node_that_hung_when_it_was_sent(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    async with FencedLock(make_quorum(*nodes), "name", ttl=20.0) as term:
        await until(lambda: claims("name", nodes) == 3)
        nodes[2].pause()
        assert await term.release() is ReleaseOutcome.RELEASED
    await asyncio.sleep(0.5)
    nodes[2].resume()
    await until(lambda: claims("name", nodes) == 0)


async def test_p5_an_acquisition_that_is_cancelled_anywhere_leaves_nothing_on_any_node(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    store = make_quorum(*nodes)
    await elected_again(store, "name")
    for turns in range(30):
        task = asyncio.create_task(Lease(store, "name", ttl=TTL).try_acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        if not task.cancel():
            break
        await asyncio.wait({task})
        if task.cancelled():
            await until(lambda: claims("name", nodes) == 0, limit=2.5)
        else:
            term = task.result()
            assert term is not None
            await term.release()


# -- taking turns ------------------------------------------------------------------------------------------------------


async def test_candidates_that_split_the_vote_agree_before_long(nodes: list[Server], make_quorum: MakeQuorum) -> None:
    async with AsyncExitStack() as stack:
        # Each candidate is near to one node and far from the others, so each gets one vote at first.
        ways = [[await stack.enter_async_context(Proxy(node)) for node in nodes] for _ in nodes]
        stores = [make_quorum(*way) for way in ways]
        for store in stores:
            await elected_again(store, "warm-up")
        far = [
            way.request("EVALSHA", times=None).delay(0.03)
            for n, row in enumerate(ways)
            for m, way in enumerate(row)
            if n != m
        ]

        async def stand(store: QuorumStore, name: str) -> bool:
            return await Lease(store, name, ttl=20.0).try_acquire() is not None

        for turn in range(5):
            won = await asyncio.gather(*(stand(store, f"name-{turn}") for store in stores))
            assert won.count(True) == 1
        assert len(far[0].hits) > 5, "the vote was never split"


async def test_a_try_that_has_won_nothing_takes_its_votes_back_by_itself(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    store = make_quorum(*nodes)
    await elected_again(store, "warm-up")
    for node in nodes[1:]:  # another's, but not for long, and known to nobody as a term
        node.call("SET", "aioelect:{name}", "another's", "PX", 400)
    nodes[2].kill()
    claim = Claim("name", "mine", "me", ttl=20.0, retention=3600.0)
    answer = await store.acquire(claim, limit=0.2)
    assert isinstance(answer, Contended)
    assert answer.holder.remaining is not None and answer.holder.remaining < 0.5
    await until(lambda: claims("name", nodes[:2]) == 0)


async def test_a_release_right_after_the_win_is_a_release(nodes: list[Server], make_quorum: MakeQuorum) -> None:
    store = make_quorum(*nodes)
    for turn in range(100):
        claim = Claim("name", f"value-{turn}", "me", ttl=20.0, retention=3600.0)
        assert isinstance(await store.acquire(claim, limit=5.0), Granted)
        assert isinstance(await store.release(claim, limit=5.0), Released)


async def test_p10_a_waiter_is_told_of_a_release_also_while_a_minority_is_away(
    nodes: list[Server], make_quorum: MakeQuorum
) -> None:
    store, other = make_quorum(*nodes), make_quorum(*nodes)
    await elected_again(store, "name")
    await elected_again(other, "name")
    for away in (None, nodes[0]):
        if away is not None:
            away.kill()
        async with FencedLock(store, "name", ttl=20.0) as term:
            waiting = asyncio.create_task(elected_again(other, "name"))
            await asyncio.sleep(0.5)
        assert await asyncio.wait_for(waiting, 5) > term.token


async def test_p13_electors_take_turns_and_tokens_rise(nodes: list[Server], make_quorum: MakeQuorum) -> None:
    tokens: list[int] = []

    async def serve(store: QuorumStore) -> None:
        for _ in range(10):
            async with Elector(store, "name", ttl=TTL).lead() as term:
                tokens.append(term.token)

    await asyncio.gather(*(serve(make_quorum(*nodes)) for _ in range(3)))
    assert tokens == sorted(set(tokens)) and len(tokens) == 30

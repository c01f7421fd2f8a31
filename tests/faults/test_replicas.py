"""Replicas that have, or have not, heard of a claim: what waiting for them gives, and what it doesn't."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest
from redis.asyncio import Redis

from aioelect import (
    ConfigurationError,
    Elector,
    FencedLock,
    Lease,
    LeaseTaken,
    ReplicatedStore,
    StoreRejected,
    Term,
    aclose,
)
from conftest import Connect, MakeServer
from support.proxy import Proxy
from support.servers import Server
from support.topologies import start_replica_of
from support.wait import until

pytestmark = pytest.mark.faults

TTL = 3.0
CLAIM = "aioelect:{name}"

MakeReplica = Callable[[Server], Server]


@pytest.fixture
def master(make_server: MakeServer) -> Server:
    """A master; replicas get its data at once."""
    return make_server(repl_diskless_sync_delay=0)


@pytest.fixture
def make_replica() -> Iterator[MakeReplica]:
    """Start replicas that are in step."""
    with ExitStack() as stack:

        def make(master: Server) -> Server:
            replica = start_replica_of(master)
            stack.callback(replica.close)
            return replica

        yield make


@pytest.fixture
async def store(master: Server) -> AsyncIterator[ReplicatedStore]:
    """Claims that one replica has to confirm."""
    client = master.client()
    store = ReplicatedStore(client, min_replicas=1)
    yield store
    await aclose(store)
    await client.aclose()


# -- waiting for replicas ----------------------------------------------------------------------------------------------


async def test_a_claim_that_counts_is_on_a_replica(
    store: ReplicatedStore, make_replica: MakeReplica, master: Server
) -> None:
    replica = make_replica(master)
    for _ in range(20):
        async with FencedLock(store, "name", ttl=TTL) as term:
            assert replica.call("EXISTS", CLAIM) == 1
            assert int(replica.call("HGET", f"{CLAIM}:fence", "token")) == term.token
            await term.renew()


async def test_with_the_replica_stopped_the_acquisition_fails_and_leaves_nothing(
    store: ReplicatedStore, make_replica: MakeReplica, master: Server
) -> None:
    make_replica(master).pause()
    with pytest.raises(StoreRejected, match="not confirmed in time, so it was undone") as caught:
        await Lease(store, "name", ttl=TTL).try_acquire()
    assert (caught.value.reason, caught.value.passing, caught.value.claimed) == ("noreplicas", True, True)
    assert master.call("EXISTS", CLAIM) == 0
    with pytest.raises(StoreRejected, match="undone"):
        async with FencedLock(store, "name", ttl=TTL, wait=1.0):
            pytest.fail("nobody has confirmed it")
    assert master.call("EXISTS", CLAIM) == 0


async def test_a_candidate_waits_for_the_replica_and_is_no_holder_meanwhile(
    store: ReplicatedStore, make_replica: MakeReplica, master: Server
) -> None:
    replica = make_replica(master)
    replica.pause()
    led: list[Term] = []

    async def work(term: Term) -> None:
        led.append(term)
        await asyncio.Event().wait()

    async with Proxy(master) as elsewhere, Elector(store, "name", ttl=15.0).running(work):
        await until(lambda: master.call("EXISTS", CLAIM) == 1)
        # What is undone between the tries is free for others, who may be content with less; long before the ttl.
        other = elsewhere.client()
        async with FencedLock(other, "name", ttl=TTL, wait=8):
            assert not led
        await aclose(other)
        await other.aclose()
        replica.resume()
        await until(lambda: led, limit=20)
        assert led[0].is_leader and replica.call("EXISTS", CLAIM) == 1


async def test_p4_waiting_for_a_replica_holds_up_no_renewal_of_another_claim(
    store: ReplicatedStore, make_replica: MakeReplica, master: Server
) -> None:
    replica = make_replica(master)
    async with FencedLock(store, "held", ttl=20.0) as term:
        replica.pause()
        waiting = asyncio.create_task(Lease(store, "name", ttl=20.0).try_acquire())
        await until(lambda: master.call("EXISTS", CLAIM) == 1)
        began = time.monotonic()
        for _ in range(20):
            await term.renew()
        assert not waiting.done()
        assert time.monotonic() - began < 1.0
        with pytest.raises(StoreRejected):
            await waiting


async def test_p5_an_acquisition_that_is_cancelled_while_it_waits_leaves_nothing(
    store: ReplicatedStore, make_replica: MakeReplica, master: Server
) -> None:
    make_replica(master).pause()
    waiting = asyncio.create_task(Lease(store, "name", ttl=20.0).try_acquire())
    await until(lambda: master.call("EXISTS", CLAIM) == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert master.call("EXISTS", CLAIM) == 0


async def test_more_replicas_than_there_are_is_told_with_both_numbers(
    make_replica: MakeReplica, master: Server, connect: Connect
) -> None:
    make_replica(master)
    store = ReplicatedStore(connect(master), min_replicas=2)
    with pytest.raises(StoreRejected, match="1 replicas have it; wanted: 2"):
        await Lease(store, "name", ttl=8.0).try_acquire()
    await aclose(store)


def test_p14_what_makes_no_sense_is_refused() -> None:
    client = Redis()
    for replicas in (0, -1, True, 1.0, "1"):
        with pytest.raises(ConfigurationError, match="min_replicas="):
            ReplicatedStore(client, min_replicas=replicas)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="wanted"):
        ReplicatedStore(ReplicatedStore(client))  # type: ignore[arg-type]
    assert ReplicatedStore(client, min_replicas=0, fsync=True).key == ReplicatedStore(client).key


# -- waiting for the disk ----------------------------------------------------------------------------------------------


async def test_a_claim_with_fsync_survives_the_death_of_the_server(make_server: MakeServer, connect: Connect) -> None:
    server = make_server(appendonly="yes", appendfsync="always")
    store = ReplicatedStore(connect(server), min_replicas=0, fsync=True)
    async with FencedLock(store, "name", ttl=20.0) as term:
        server.kill()
        server.start()
        await until(lambda: _renewed(term), limit=10)
    assert server.call("EXISTS", CLAIM) == 0
    await aclose(store)


async def _renewed(term: Term) -> bool:
    try:
        await term.renew()
    except LeaseTaken:
        raise
    except Exception:
        return False
    return True


async def test_p11_a_server_that_can_not_fsync_says_so_and_keeps_nothing(any_server: Server, connect: Connect) -> None:
    store = ReplicatedStore(connect(any_server), min_replicas=0, fsync=True)
    with pytest.raises(StoreRejected, match=r"set appendonly yes|unknown command .WAITAOF") as caught:
        await Lease(store, "name", ttl=TTL).try_acquire()
    assert not caught.value.passing
    assert any_server.call("EXISTS", CLAIM) == 0
    await aclose(store)


async def test_p11_a_user_who_may_not_wait_is_told_and_with_the_right_it_works(
    any_server: Server, connect: Connect
) -> None:
    from faults.test_acl import PASSWORD, USER, native, set_user

    store = ReplicatedStore(connect(any_server, username=USER, password=PASSWORD))
    set_user(any_server, *native(any_server.binary))
    with pytest.raises(StoreRejected, match="permission"):
        await Lease(store, "name", ttl=TTL).try_acquire()
    assert any_server.call("EXISTS", CLAIM) == 0
    set_user(any_server, *native(any_server.binary), "+wait")
    with pytest.raises(StoreRejected, match="undone"):
        await Lease(store, "name", ttl=TTL).try_acquire()
    await aclose(store)
    any_server.call("ACL", "DELUSER", USER)


# -- failover ----------------------------------------------------------------------------------------------------------


class Stock:
    """A place that is written to, which keeps the newest token that it has seen."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.execute("CREATE TABLE stock (sku TEXT, qty INT, fence_token INT)")
        self._db.execute("INSERT INTO stock VALUES ('A', 0, 0)")

    def write(self, qty: int, token: int) -> int:
        """How many rows took it."""
        guarded = "UPDATE stock SET qty = ?, fence_token = ? WHERE sku = 'A' AND fence_token <= ?"
        return self._db.execute(guarded, (qty, token, token)).rowcount

    @property
    def qty(self) -> int:
        found: int = self._db.execute("SELECT qty FROM stock").fetchone()[0]
        return found


@pytest.mark.parametrize("confirmed", [False, True], ids=["plain", "confirmed-by-another-replica"])
async def test_after_the_promotion_of_a_replica_that_had_not_heard_two_may_hold_it_and_the_older_one_is_fenced(
    confirmed: bool, make_replica: MakeReplica, master: Server
) -> None:
    """Also where a replica has confirmed the claim: it need not be the one that is promoted."""
    behind = make_replica(master)
    if confirmed:
        make_replica(master)
    stock = Stock()
    async with Proxy(master) as here, Proxy(master) as there:  # as names that are moved to another server
        old, new = here.client(), there.client()
        holder = ReplicatedStore(old, min_replicas=1) if confirmed else old
        behind.call("REPLICAOF", "NO", "ONE")  # from here on it hears nothing
        with pytest.raises(LeaseTaken) as lost:
            async with FencedLock(holder, "name", ttl=20.0) as first:
                assert stock.write(1, first.token) == 1
                for address in (here, there):
                    address.upstream = behind
                    address.cut()
                async with FencedLock(new, "name", ttl=20.0, wait=5) as second:
                    # Both believe, and rightly by all that they can know.
                    assert first.is_valid and second.is_valid
                    assert second.token > first.token
                    assert stock.write(95, second.token) == 1
                    assert stock.write(120, first.token) == 0
                    await until(lambda: _renewed(first), limit=10)
        assert lost.value.token == first.token
        assert stock.qty == 95
        for client in (holder, old, new):
            await aclose(client)
        await old.aclose()
        await new.aclose()


async def test_after_the_promotion_of_a_replica_that_has_confirmed_the_claim_its_holder_goes_on(
    make_replica: MakeReplica, master: Server
) -> None:
    replica = make_replica(master)
    async with Proxy(master) as address:
        client = address.client()
        store = ReplicatedStore(client, min_replicas=1)
        async with FencedLock(store, "name", ttl=20.0) as term:
            master.kill()
            replica.call("REPLICAOF", "NO", "ONE")
            address.upstream = replica
            await until(lambda: _renewed(term), limit=10)
            assert await Lease(client, "name", ttl=20.0).try_acquire() is None
        assert replica.call("EXISTS", CLAIM) == 0
        await aclose(store)
        await client.aclose()

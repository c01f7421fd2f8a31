"""P11: another node takes over. Holders go on or are stopped, candidates recover by themselves; slots move or fail."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis, RedisCluster

from aioelect import Elector, FencedLock, Lease, LeaseLost, ReleaseOutcome, StoreUnavailable, Term, aclose
from support import servers
from support.topologies import Cluster, SentinelGroup
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

SHORT, LONG = 1.0, 20.0
"""A ttl that a failover outlasts, and one that outlasts it."""


class Service:
    """A copy of a service that stands for election and notes its terms."""

    def __init__(self, redis: Redis | RedisCluster, name: str, ttl: float):
        self.terms: list[Term] = []
        self.elector = Elector(redis, name, ttl=ttl)

    async def work(self, term: Term) -> None:
        """Until told to stop."""
        self.terms.append(term)
        await asyncio.Event().wait()

    @property
    def tokens(self) -> list[int]:
        """Tokens of its terms so far."""
        return [term.token for term in self.terms]


async def check_failover(
    redis: Redis | RedisCluster, other: Redis | RedisCluster, names: tuple[str, str, str], fail: "Failover"
) -> None:
    """Two services of a short ttl, one holder of a long one, a waiter; then the master goes."""
    short, long, waited = names
    service, rival = Service(redis, short, SHORT), Service(other, short, SHORT)
    both = service, rival
    async with (
        service.elector.running(service.work),
        rival.elector.running(rival.work),
        FencedLock(redis, long, ttl=LONG) as held,
    ):
        await until(lambda: any(one.elector.is_leader for one in both))
        first = next(one for one in both if one.elector.is_leader).terms[0]
        waiting = asyncio.create_task(pass_through(other, long))
        await held.renew()
        await fail.begin()
        await until(lambda: not first.is_leader)  # stopped before anybody can know who is next
        assert not any(one.elector.is_leader for one in both)
        with pytest.raises(StoreUnavailable):
            await Lease(redis, waited, ttl=SHORT).try_acquire()
        await fail.promoted()
        await until(lambda: any(one.elector.is_leader for one in both), limit=15)
        tokens = sorted(service.tokens + rival.tokens)
        assert len(set(tokens)) == len(tokens) >= 2
        assert next(one for one in both if one.elector.is_leader).tokens[-1] == tokens[-1] > first.token
        # The new master knows the claim from its predecessor: the long term has survived.
        await renewed(held)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 15)
    async with FencedLock(redis, waited, wait=10) as term:
        assert await term.release() is ReleaseOutcome.RELEASED


class Failover:
    """How the master fails, and how one sees that it has a successor."""

    async def begin(self) -> None:
        raise NotImplementedError

    async def promoted(self) -> None:
        raise NotImplementedError


async def pass_through(redis: Redis | RedisCluster, name: str) -> None:
    async with FencedLock(redis, name, ttl=LONG, wait=60) as term:
        term.check()


async def renewed(term: Term) -> None:
    async def once() -> bool:
        try:
            await term.renew()
        except StoreUnavailable:
            return False
        return True

    await until(once, limit=10)


# -- Sentinel ----------------------------------------------------------------------------------------------------------


class SentinelFailover(Failover):
    def __init__(self, group: SentinelGroup, kill: bool):
        self.group, self.kill = group, kill

    async def begin(self) -> None:
        self.group.master.kill() if self.kill else self.group.master.pause()

    async def promoted(self) -> None:
        await self.group.promoted()


@pytest.fixture
def sentinels() -> Iterator[SentinelGroup]:
    """A master, a replica and three sentinels."""
    with SentinelGroup(servers.newest()) as group:
        yield group


@pytest.fixture
async def masters(sentinels: SentinelGroup) -> AsyncIterator[list[Redis]]:
    """Two clients of Sentinel.master_for that share nothing; of both protocols."""
    async with AsyncExitStack() as stack:
        clients: list[Redis] = []
        for protocol in (2, 3):
            sentinel = sentinels.sentinel(socket_timeout=0.5)
            client = sentinel.master_for(sentinels.name, protocol=protocol)
            stack.push_async_callback(client.aclose)
            stack.push_async_callback(aclose, client)
            for monitor in sentinel.sentinels:
                stack.push_async_callback(monitor.aclose)
            clients.append(client)
        yield clients


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "frozen"])
async def test_p11_through_a_sentinel_failover_a_holder_goes_on_or_is_stopped_and_a_candidate_recovers(
    sentinels: SentinelGroup, masters: list[Redis], kill: bool
) -> None:
    failover = SentinelFailover(sentinels, kill)
    await check_failover(masters[0], masters[1], ("short", "long", "waited"), failover)
    if not kill:
        # The old master wakes up and believes that it still is one, for the 8 s until it is demoted: nobody asks it.
        sentinels.master.resume()
        assert sentinels.master.info("replication")["role"] == "master"
        async with FencedLock(masters[0], "after", wait=5) as term:
            await term.renew()
        assert int(sentinels.replica.call("HGET", "aioelect:{after}:fence", "token")) == term.token


# -- Cluster -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """One for the tests that leave it whole."""
    with Cluster(servers.newest()) as cluster:
        yield cluster


@pytest.fixture
async def clients() -> AsyncIterator[AsyncExitStack]:
    """Where clusters' clients are kept until they are closed."""
    async with AsyncExitStack() as stack:
        yield stack


def cluster_client(cluster: Cluster, stack: AsyncExitStack, **options: object) -> RedisCluster:
    """A client that is closed after the test."""
    client = cluster.client(**options)
    stack.push_async_callback(client.aclose)
    stack.push_async_callback(aclose, client)
    return client


class ClusterFailover(Failover):
    def __init__(self, cluster: Cluster):
        self.cluster = cluster

    async def begin(self) -> None:
        self.cluster.masters[0].kill()

    async def promoted(self) -> None:
        await self.cluster.promoted()


async def test_p11_through_the_death_of_a_cluster_master_a_holder_goes_on_or_is_stopped_and_a_candidate_recovers(
    clients: AsyncExitStack,
) -> None:
    # With this setting the other masters go on serving their slots.
    with Cluster(servers.newest(), cluster_require_full_coverage="no") as cluster:
        redis, other = cluster_client(cluster, clients), cluster_client(cluster, clients, protocol=3)
        dying = cluster.masters[0]
        names = [name for name in (f"name-{n}" for n in range(200)) if cluster.owner(f"aioelect:{{{name}}}") is dying]
        safe = next(f"safe-{n}" for n in range(200) if cluster.owner(f"aioelect:{{safe-{n}}}") is cluster.masters[1])
        async with FencedLock(other, safe, ttl=SHORT) as elsewhere:
            await check_failover(redis, other, (names[0], names[1], names[2]), ClusterFailover(cluster))
            elsewhere.check()  # another node's claim never noticed
            assert elsewhere.is_leader
        await clients.aclose()


async def test_p11_while_the_cluster_is_down_who_waits_waits_and_one_try_says_so(
    shared_cluster: Cluster, clients: AsyncExitStack
) -> None:
    redis = cluster_client(shared_cluster, clients)
    node = shared_cluster.masters[2]
    slot = node.call("CLUSTER", "KEYSLOT", "aioelect:{name}")
    owner = shared_cluster.owner("aioelect:{name}")
    plain = owner.client()
    async with FencedLock(redis, "name"):
        pass
    # A slot that nobody serves brings the whole cluster down.
    owner.call("CLUSTER", "DELSLOTS", slot)
    try:
        await until(lambda: b"cluster_state:fail" in owner.call("CLUSTER", "INFO"))
        for client in (redis, plain):
            with pytest.raises(StoreUnavailable) as caught:
                await Lease(client, "name", ttl=2.0).try_acquire()
            assert caught.value.reason in ("clusterdown", "connection", "timeout")
        waiting = asyncio.create_task(pass_through(redis, "name"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
    finally:
        owner.call("CLUSTER", "ADDSLOTS", slot)
        await until(lambda: all(b"cluster_state:ok" in n.call("CLUSTER", "INFO") for n in shared_cluster.nodes), 20)
    await asyncio.wait_for(waiting, 15)
    await aclose(plain)
    await plain.aclose()


async def test_p11_a_slot_that_is_being_moved_is_waited_for_and_a_holder_of_it_goes_on(
    shared_cluster: Cluster, clients: AsyncExitStack
) -> None:
    """Half of a name's keys are on the one node and half on the other: TRYAGAIN; then it is another's: MOVED."""
    redis = cluster_client(shared_cluster, clients)
    claim, fence = "aioelect:{moving}", "aioelect:{moving}:fence"
    source = shared_cluster.owner(claim)
    target = next(node for node in shared_cluster.masters if node is not source)
    slot = source.call("CLUSTER", "KEYSLOT", claim)
    ids = {node: node.call("CLUSTER", "MYID") for node in (source, target)}
    async with FencedLock(redis, "moving", ttl=8.0) as held:
        token = held.token
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        source.call("MIGRATE", "127.0.0.1", target.port, fence, 0, 5000)
        with pytest.raises(StoreUnavailable) as caught:
            await held.renew()
        assert caught.value.reason == "tryagain"
        waiting = asyncio.create_task(pass_through(redis, "moving"))
        assert held.is_leader
        source.call("MIGRATE", "127.0.0.1", target.port, claim, 0, 5000)
        for node in shared_cluster.masters:
            node.call("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        await renewed(held)
        assert (held.is_leader, held.token) == (True, token)
        assert shared_cluster.owner(claim) is target
    await asyncio.wait_for(waiting, 15)


async def test_p11_a_plain_client_of_one_node_is_told_that_the_name_lives_elsewhere(shared_cluster: Cluster) -> None:
    owner = shared_cluster.owner("aioelect:{elsewhere}")
    node = next(node for node in shared_cluster.masters if node is not owner)
    redis = node.client()
    with pytest.raises(StoreUnavailable) as caught:
        await Lease(redis, "elsewhere").try_acquire()
    assert caught.value.reason == "moved"
    await aclose(redis)
    await redis.aclose()


async def test_p9_tokens_rise_through_a_cluster(shared_cluster: Cluster, clients: AsyncExitStack) -> None:
    pair = [cluster_client(shared_cluster, clients) for _ in range(2)]
    for name in ("one", "two", "three"):
        tokens = []
        for turn in range(6):
            async with FencedLock(pair[turn % 2], name) as term:
                await term.renew()
                tokens.append(term.token)
        assert tokens == sorted(set(tokens))
    with pytest.raises(LeaseLost):
        async with FencedLock(pair[0], "one") as term:
            shared_cluster.owner("aioelect:{one}").call("DEL", "aioelect:{one}")
            await term.renew()

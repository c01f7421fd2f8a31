"""Every kind of client that may be handed in, and those that may not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import redis as sync_redis
from redis import CredentialProvider
from redis._parsers import _AsyncRESP2Parser
from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool, Redis, RedisCluster
from redis.asyncio.connection import SSLConnection

from aioelect import Partition, Partitions, aclose
from aioelect._errors import ConfigurationError, StoreError, StoreRejected, StoreUnavailable
from aioelect._redis.runtime import runtime_of
from aioelect._redis.store import RedisStore, open_store
from aioelect._store import Contended, Granted, NoticeKind, Refused, Released, Renewed, Store
from aioelect.testing import MemoryStore
from conftest import Connect, MakeServer
from store.conftest import PASSWORD, a_claim, granted
from support import servers
from support.proxy import Proxy
from support.servers import Server
from support.tls import Certificates
from support.topologies import Cluster, SentinelGroup
from support.wait import until

LIMIT = 5.0


async def full_round(store: Store, name: str = "name") -> None:
    """Use all that there is."""
    watch = store.watch(name)
    assert await watch.ready(LIMIT)
    claim = a_claim(name, identity="ünï")
    token = await granted(store, claim)
    while (notice := await watch.next(LIMIT)) and notice.holder and notice.holder.id != claim.id:
        pass  # of an earlier round: from one node of a cluster to another it takes its time
    assert notice is not None
    assert notice.kind is NoticeKind.ACQUIRED
    answer = await store.acquire(a_claim(name), limit=LIMIT)
    assert isinstance(answer, Contended)
    assert (answer.holder.identity, answer.holder.token) == ("ünï", token)
    assert await granted(store, claim) == token
    assert await store.renew(claim, limit=LIMIT) == Renewed()
    assert await store.release(claim, limit=LIMIT) == Released(0)
    assert await store.renew(claim, limit=LIMIT) == Refused(None)
    watch.close()


class Mine(Connection):
    """Somebody's own connection class."""

    made = 0

    def __init__(self, *, mine: str, **settings: Any) -> None:
        super().__init__(**settings)
        assert mine == "yes"
        type(self).made += 1


class Provider(CredentialProvider):
    """Credentials from elsewhere."""

    def get_credentials(self) -> tuple[str, str]:
        """Give them."""
        return "default", PASSWORD


CLIENTS: dict[str, Callable[[Server], Redis]] = {
    "plain": lambda server: server.client(),
    "unix": lambda server: server.client(unix=True),
    "db 3": lambda server: server.client(db=3),
    "url": lambda server: Redis.from_url(f"{server.url}/2?socket_timeout=1&health_check_interval=1"),
    "decoding": lambda server: server.client(decode_responses=True, encoding="latin-1"),
    "RESP2": lambda server: server.client(protocol=2),
    "RESP3": lambda server: server.client(protocol=3),
    "patient settings": lambda server: Redis.from_pool(
        ConnectionPool(host="127.0.0.1", port=server.port, retry_on_timeout=True, health_check_interval=1)
    ),
    "impatient settings": lambda server: server.client(socket_timeout=0.0001, socket_connect_timeout=1),
    "named": lambda server: server.client(client_name="app"),
    "python parser": lambda server: Redis.from_pool(
        ConnectionPool(host="127.0.0.1", port=server.port, parser_class=_AsyncRESP2Parser)
    ),
    "python parser, RESP3 asked": lambda server: Redis.from_pool(
        ConnectionPool(host="127.0.0.1", port=server.port, parser_class=_AsyncRESP2Parser, protocol=3)
    ),
    "blocking pool": lambda server: Redis.from_pool(
        BlockingConnectionPool(host="127.0.0.1", port=server.port, max_connections=1, timeout=1)
    ),
    "single connection": lambda server: server.client(single_connection_client=True),
    "own class": lambda server: Redis.from_pool(
        ConnectionPool(connection_class=Mine, host="127.0.0.1", port=server.port, mine="yes")
    ),
}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_every_plain_client_will_do(server: Server, kind: str) -> None:
    async with CLIENTS[kind](server) as client:
        store = open_store(client, "aioelect")
        try:
            await full_round(store)
        finally:
            await aclose(client)


async def test_every_server_will_do_behind_a_unix_socket(any_server: Server) -> None:
    async with any_server.client(unix=True, db=1) as client:
        store = open_store(client, "aioelect")
        await full_round(store)
        await store.aclose()


async def test_databases_do_not_contend(server: Server, connect: Connect) -> None:
    one, two = (open_store(connect(server, db=db), "aioelect") for db in (1, 2))
    assert one.key != two.key
    await granted(one, a_claim())
    await granted(two, a_claim())


async def test_credentials_of_every_kind(make_server: MakeServer) -> None:
    server = make_server(requirepass=PASSWORD)
    for options in (
        {"password": PASSWORD},
        {"username": "default", "password": PASSWORD},
        {"credential_provider": Provider()},
    ):
        async with server.client(**options) as client:
            store = open_store(client, "aioelect")
            await full_round(store)
            assert PASSWORD not in repr(store) + repr(store.key)
            await store.aclose()


async def test_a_credential_provider_that_fails_is_unavailable_without_its_words(server: Server) -> None:
    class Broken(CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            raise LookupError("the secret is 1234")

    async with server.client(credential_provider=Broken()) as client:
        store = open_store(client, "aioelect")
        with pytest.raises(StoreUnavailable, match="LookupError") as caught:
            await store.acquire(a_claim(), limit=LIMIT)
        assert "1234" not in str(caught.value)
        await store.aclose()


async def test_a_connect_function_is_called(server: Server) -> None:
    called = []

    async def on_connect(connection: Any) -> None:
        called.append(connection)
        await connection.on_connect()

    async with Redis.from_pool(
        ConnectionPool(host="127.0.0.1", port=server.port, redis_connect_func=on_connect)
    ) as client:
        store = open_store(client, "aioelect")
        await full_round(store)
        assert called
        await store.aclose()


async def test_tls(server: Server, certificates: Certificates) -> None:
    async with Proxy(server, tls=certificates.server) as proxy:
        options = {"ssl": True, "ssl_ca_certs": str(certificates.ca_file), "ssl_check_hostname": False}
        async with proxy.client(**options) as client:
            assert issubclass(client.connection_pool.connection_class, SSLConnection)
            store = open_store(client, "aioelect")
            await full_round(store)
            proxy.cut(reset=True)
            await until(lambda: not proxy.connections)
            await full_round(store)
            await store.aclose()
        async with proxy.client(ssl=True) as untrusting:
            store = open_store(untrusting, "aioelect")
            with pytest.raises(StoreUnavailable, match="certificate verify failed"):
                await store.acquire(a_claim(), limit=LIMIT)
            await store.aclose()


# -- what will not do -------------------------------------------------------------------------------------------------


def test_a_store_is_passed_through(server: Server) -> None:
    store = open_store(server.client(), "aioelect")
    assert open_store(store, "other") is store


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (sync_redis.Redis, "blocks the event loop"),
        (lambda: Redis().pipeline(), "Pipeline"),
        (lambda: "redis://localhost", "builtins.str"),
        (lambda: None, "NoneType"),
        (lambda: Redis, "is not a client"),
        (lambda: Redis.from_pool(ConnectionPool(connection_class=cast(Any, dict))), "no connection class"),
    ],
)
def test_p14_what_is_no_client_is_refused_where_it_enters(what: Callable[[], object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        open_store(what(), "aioelect")


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a\nb", "\x7f", 5, ["a"]])
def test_p14_a_prefix_that_would_break_the_slot_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        open_store(Redis(), prefix)
    with pytest.raises(ConfigurationError, match="prefix"):
        open_store(MemoryStore(), prefix)


# -- sentinels --------------------------------------------------------------------------------------------------------


async def insist(question: Callable[[], Any], limit: float = 20.0) -> Any:
    """Ask until there is an answer."""
    give_up = time.monotonic() + limit
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await question()
        assert time.monotonic() < give_up
        await asyncio.sleep(0.05)


def role_of(server: servers.Server) -> str:
    """A server that is just being demoted cuts its connections."""
    with contextlib.suppress(ConnectionError):
        return server.info("replication")["role"]
    return "changing"


@pytest.mark.parametrize("key", ["redis-6.2", "redis-8.10", "valkey-9.1"])
@pytest.mark.slow
async def test_a_master_behind_sentinels_and_its_successor(key: str) -> None:
    if key not in servers.found():
        pytest.skip(f"no {key} at hand")
    with SentinelGroup(servers.found()[key]) as group:
        sentinel = group.sentinel()
        client = sentinel.master_for(group.name)
        store = open_store(client, "aioelect")
        await full_round(store)
        assert str(group.sentinels[0].port) in str(store.key)
        claim = a_claim("held", ttl=30.0)
        token = await granted(store, claim)
        await until(lambda: group.replica.call("EXISTS", "aioelect:{held}") == 1)
        group.master.kill()
        with pytest.raises(StoreUnavailable):
            await store.renew(claim, limit=0.5)
        successor = await group.promoted()
        assert await insist(lambda: store.renew(claim, limit=0.5)) == Renewed()
        assert int(successor.info("replication")["connected_slaves"]) >= 0
        assert await store.release(claim, limit=LIMIT) == Released(0)
        assert await granted(store, a_claim("held")) > token
        await full_round(store, "again")
        await store.aclose()
        await client.aclose()
        for one in sentinel.sentinels:
            await one.aclose()


@pytest.mark.slow
async def test_a_master_that_was_demoted_is_left_for_the_new_one() -> None:
    with SentinelGroup(servers.newest()) as group:
        sentinel = group.sentinel()
        client = sentinel.master_for(group.name)
        store = open_store(client, "aioelect")
        claim = a_claim(ttl=30.0)
        await granted(store, claim)
        await until(lambda: group.replica.call("EXISTS", "aioelect:{name}") == 1)
        group.sentinels[0].call("SENTINEL", "failover", group.name)
        await group.promoted()
        assert await insist(lambda: store.renew(claim, limit=0.5)) == Renewed()
        await until(lambda: role_of(group.master) == "slave", limit=20.0)
        await full_round(store, "other")
        await store.aclose()
        await client.aclose()
        for one in sentinel.sentinels:
            await one.aclose()


async def test_sentinels_that_are_away_are_unavailable_and_leave_nothing_open(make_server: MakeServer) -> None:
    from redis.asyncio.sentinel import Sentinel

    sentinel = Sentinel([("127.0.0.1", servers.free_port())])  # type: ignore[no-untyped-call,unused-ignore]
    client = sentinel.master_for("main")
    store = open_store(client, "aioelect")
    with pytest.raises(StoreUnavailable, match="No master found"):
        await store.acquire(a_claim(), limit=LIMIT)
    replicas = sentinel.slave_for("main")
    with pytest.raises(ConfigurationError, match="replicas"):
        open_store(replicas, "aioelect")
    await store.aclose()


# -- clusters ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["redis-6.2", "redis-8.10", "valkey-9.1"])
def cluster(request: pytest.FixtureRequest) -> Any:
    """Start a cluster that several tests may share."""
    if request.param not in servers.found():
        pytest.skip(f"no {request.param} at hand")
    with Cluster(servers.found()[request.param]) as cluster:
        yield cluster


async def cluster_store(client: RedisCluster) -> RedisStore:
    """Make a store over a cluster client."""
    store = open_store(client, "aioelect")
    assert isinstance(store, RedisStore)
    return store


@pytest.mark.slow
async def test_a_cluster_is_reached_slot_by_slot(cluster: Cluster) -> None:
    store = await cluster_store(cluster.client())
    for n in range(20):
        await full_round(store, f"name-{n}")
    nodes = runtime_of(store._origin).route._nodes  # type: ignore[attr-defined]
    assert {port for _, port in nodes} == {master.port for master in cluster.masters}
    await store.aclose()


@pytest.mark.slow
async def test_partitions_are_shared_on_a_cluster_whatever_nodes_they_lie_on(cluster: Cluster) -> None:
    clients = [cluster.client() for _ in range(3)]
    ended: list[int] = []

    async def consume(partition: Partition) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(partition.number)

    async with contextlib.AsyncExitStack() as stack:
        members = [Partitions(client, "orders", count=8, ttl=3, identity=str(n)) for n, client in enumerate(clients)]
        for member in members:
            await stack.enter_async_context(member.running(consume))
        await until(lambda: sorted(len(member.held) for member in members) == [2, 3, 3], 20)
        held = [partition.number for member in members for partition in member.held]
        assert sorted(held) == list(range(8))
    assert set(ended) == set(range(8))
    for client in clients:
        await aclose(client)
        await client.aclose()


@pytest.mark.slow
async def test_a_cluster_needs_one_node_that_answers(cluster: Cluster) -> None:
    from redis.asyncio.cluster import ClusterNode

    nodes = [ClusterNode("127.0.0.1", port) for port in (servers.free_port(), cluster.masters[2].port)]
    store = await cluster_store(RedisCluster(startup_nodes=nodes, protocol=3, decode_responses=True))
    await full_round(store)
    await store.aclose()
    nobody = await cluster_store(RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", servers.free_port())]))
    with pytest.raises(StoreUnavailable, match="no node of the cluster"):
        await nobody.acquire(a_claim(), limit=LIMIT)
    await nobody.aclose()


@pytest.mark.slow
async def test_addresses_are_remapped_as_the_client_says(cluster: Cluster) -> None:
    async with contextlib.AsyncExitStack() as stack:
        proxies = {node.port: await stack.enter_async_context(Proxy(node)) for node in cluster.nodes}
        client = RedisCluster(
            host="127.0.0.1",
            port=cluster.masters[0].port,
            address_remap=lambda address: (address[0], proxies[address[1]].port),
        )
        store = await cluster_store(client)
        for n in range(10):
            await full_round(store, f"name-{n}")
        assert all(proxies[master.port].names("EVALSHA") for master in cluster.masters)
        await store.aclose()


@pytest.mark.slow
async def test_a_slot_that_moves_is_followed(cluster: Cluster) -> None:
    store = await cluster_store(cluster.client())
    name, key, fence = "moving", "aioelect:{moving}", "aioelect:{moving}:fence"
    claim = a_claim(name, ttl=30.0)
    await granted(store, claim)
    source = cluster.owner(key)
    target = next(master for master in cluster.masters if master is not source)
    slot = source.call("CLUSTER", "KEYSLOT", key)
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.call("CLUSTER", "MYID"))
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.call("CLUSTER", "MYID"))
    assert await store.renew(claim, limit=LIMIT) == Renewed()
    source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 1000)
    with pytest.raises(StoreUnavailable) as caught:
        await store.renew(claim, limit=LIMIT)
    assert caught.value.reason == "tryagain"
    source.call("MIGRATE", "127.0.0.1", target.port, fence, 0, 1000)
    assert await store.renew(claim, limit=LIMIT) == Renewed()  # ASK
    for node in cluster.masters:
        node.call("CLUSTER", "SETSLOT", slot, "NODE", target.call("CLUSTER", "MYID"))
    assert await store.renew(claim, limit=LIMIT) == Renewed()  # MOVED
    assert await store.release(claim, limit=LIMIT) == Released(0)
    await full_round(store, name)
    await store.aclose()


@pytest.mark.slow
async def test_a_master_of_a_cluster_that_dies_is_replaced(cluster: Cluster) -> None:
    # The last of the tests that share the cluster: it is not whole afterwards.
    store = await cluster_store(cluster.client())
    name = next(f"name-{n}" for n in range(100) if cluster.owner(f"aioelect:{{name-{n}}}") is cluster.masters[0])
    claim = a_claim(name, ttl=60.0)
    await granted(store, claim)
    await until(lambda: cluster.replica.call("CLUSTER", "COUNTKEYSINSLOT", _slot(cluster, name)) >= 2)
    cluster.masters[0].kill()
    with pytest.raises(StoreError):
        await store.renew(claim, limit=0.5)
    await cluster.promoted()
    assert await insist(lambda: store.renew(claim, limit=0.5)) == Renewed()
    await store.aclose()


def _slot(cluster: Cluster, name: str) -> int:
    slot: int = cluster.replica.call("CLUSTER", "KEYSLOT", f"aioelect:{{{name}}}")
    return slot


async def test_a_prefix_keeps_all_keys_of_a_name_in_one_slot(server: Server, connect: Connect) -> None:
    store = open_store(connect(server), "some:prefix")
    claim = a_claim("a name")
    await granted(store, claim)
    assert sorted(server.call("KEYS", "*")) == [b"some:prefix:{a name}", b"some:prefix:{a name}:fence"]
    assert isinstance(await store.acquire(claim, limit=LIMIT), Granted)
    with pytest.raises(StoreRejected):
        server.call("SET", "other:{x}", "y", "PX", 1000)
        server.call("PERSIST", "other:{x}")
        try:
            await open_store(connect(server), "other").acquire(a_claim("x"), limit=LIMIT)
        finally:
            server.call("DEL", "other:{x}")

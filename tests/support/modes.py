"""Every mode in which claims are kept, behind one face: how a participant connects, and what may go wrong there.

A `Mode` is a deployment of real servers. Faults are its methods: `restart`, `empty`, `evict`, `forget_scripts`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode

import aioelect
from support import servers
from support.lines import Network
from support.postgres import Postgres, execute
from support.quorums import commissioned
from support.servers import Server
from support.topologies import Cluster, SentinelGroup, start_replica_of

REDIS = ("redis", "replica", "wait", "sentinel", "cluster")
QUORUMS = ("quorum-3", "quorum-5")
POSTGRES = ("postgres", "advisory")
MODES = (*REDIS, *QUORUMS, *POSTGRES)
LONGEST_TTL = 60.0

Store = Any  # a client of Redis, or a store
Port = Callable[[int], int]


class _Sentinel(Sentinel):
    """Tells of the master where the participant's own line to it begins."""

    def __init__(self, ports: list[int], port: Port) -> None:
        super().__init__([("127.0.0.1", port(one)) for one in ports], socket_timeout=0.5)  # type: ignore[no-untyped-call,unused-ignore]  # untyped in redis-py
        self._port = port

    async def discover_master(self, service_name: str) -> Any:
        host, port = await super().discover_master(service_name)
        return host, self._port(port)


def connect(kind: str, place: list[int] | str, name: str, port: Port) -> tuple[Store, list[Any]]:
    """Make one participant's store, and say what else is to be closed; `port`: where its line to a server begins."""
    if isinstance(place, str):
        parts = urlsplit(place)
        url = place.replace(f":{parts.port}/", f":{port(parts.port or 0)}/") + f"?application_name={name}"
        if kind == "advisory":
            return aioelect.AdvisoryStore(url, sequence="fence"), []
        return aioelect.PostgresStore(url), []
    if kind == "sentinel":
        sentinel = _Sentinel(place, port)
        master = sentinel.master_for(SentinelGroup.name, client_name=name)
        return master, [master, *sentinel.sentinels]
    if kind == "cluster":
        cluster = RedisCluster(
            startup_nodes=[ClusterNode("127.0.0.1", port(one)) for one in place],
            address_remap=lambda address: (address[0], port(address[1])),
            client_name=name,
        )
        return cluster, [cluster]
    clients = [Redis(host="127.0.0.1", port=port(one), client_name=name) for one in place]
    if kind in QUORUMS:
        return aioelect.QuorumStore(clients, longest_ttl=LONGEST_TTL), clients
    if kind == "wait":
        return aioelect.ReplicatedStore(clients[0], min_replicas=1), clients
    return clients[0], clients


@asynccontextmanager
async def connected(kind: str, place: list[int] | str, name: str, port: Port = lambda p: p) -> AsyncIterator[Store]:
    """Do the same, and close it all."""
    store, others = connect(kind, place, name, port)
    try:
        yield store
    finally:
        await aioelect.aclose(store)
        for client in others:
            await client.aclose()


@dataclass
class Mode:
    """One deployment."""

    kind: str
    place: list[int] | str
    """Where participants begin: ports, or a URL."""
    ports: list[int]
    """All that they may talk to."""
    nodes: list[Server] = field(default_factory=list)
    """Servers of Redis that keep claims."""
    database: Postgres | None = None
    group: SentinelGroup | Cluster | None = None
    replica: Server | None = None
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def prepare(self) -> None:
        """Before a test: nodes of a quorum vote."""
        if self.kind in QUORUMS:
            commissioned(self.nodes, LONGEST_TTL)

    def name(self) -> str:
        """A name that nobody has used, in a cluster one that is kept by the node with the replica."""
        names = (f"name-{number}" for number in self.numbers)
        if isinstance(self.group, Cluster):
            group = self.group
            return next(name for name in names if group.owner(f"aioelect:{{{name}}}") is group.masters[0])
        return next(names)

    @asynccontextmanager
    async def participant(self, name: str) -> AsyncIterator[tuple[Store, Network]]:
        """A participant with lines of its own."""
        async with Network(self.ports) as network, connected(self.kind, self.place, name, network.port) as store:
            yield store, network

    # -- faults -----------------------------------------------------------------------------------------------------

    def restart(self, *, keep_data: bool) -> None:
        """Kill what keeps claims, and start it again, with its log or without."""
        for node in self.nodes:
            node.kill()
            if not keep_data:
                node.wipe_data()
            node.start()
        if self.database is not None:
            self.database.crash()
            self.database.start()

    def empty(self) -> None:
        """Remove all that it knows: FLUSHALL, TRUNCATE, or, where claims are sessions, their end."""
        for node in self.nodes:
            node.call("FLUSHALL")
        if self.kind == "postgres":
            self._execute("TRUNCATE aioelect.leases")
        if self.kind == "advisory":
            self.end_sessions()

    def evict(self, name: str) -> None:
        """Do to a claim what a full server does, where there is such a thing; else have dead rows cleaned up."""
        for node in self.nodes:
            node.call("UNLINK", f"aioelect:{{{name}}}")
        if self.kind == "postgres":
            self._execute("SELECT aioelect.greet()")
            self._execute("VACUUM aioelect.leases")

    def forget_scripts(self) -> None:
        """Empty the cache of scripts; on PostgreSQL, where those are functions, install them anew."""
        for node in self.nodes:
            node.call("SCRIPT", "FLUSH")
        if self.kind == "postgres":
            self._execute(aioelect.PostgresStore(str(self.place)).ddl)

    def end_sessions(self) -> None:
        """End all sessions of participants."""
        self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        assert isinstance(self.place, str)
        return execute(self.place, statement)


@contextmanager
def deployed(kind: str, environment: Mapping[str, str] | None = None, *, minority: bool = False) -> Iterator[Mode]:
    """Start what a mode on Redis needs: servers that keep a log of every write, so that they know what they knew.

    `environment`: variables for the servers, or for a minority of a quorum's.
    """
    settings: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "environment": environment}
    with ExitStack() as stack:
        binary = servers.newest()
        if kind == "sentinel":
            sentinels = stack.enter_context(SentinelGroup(binary, **settings))
            ports = [one.port for one in sentinels.sentinels]
            everything = [*ports, sentinels.master.port, sentinels.replica.port]
            yield Mode(kind, ports, everything, [sentinels.master], group=sentinels, replica=sentinels.replica)
            return
        if kind == "cluster":
            cluster = stack.enter_context(Cluster(binary, cluster_require_full_coverage="no", **settings))
            ports = [node.port for node in cluster.nodes]
            yield Mode(kind, ports, ports, [cluster.masters[0]], group=cluster, replica=cluster.replica)
            return
        count = int(kind.rpartition("-")[2]) if kind in QUORUMS else 1
        concerned = (count - 1) // 2 if minority else count
        several = [settings] * concerned + [settings | {"environment": None}] * (count - concerned)
        nodes = [stack.enter_context(Server(binary, **each)) for each in several]
        replica = None
        if kind in ("replica", "wait"):
            replica = start_replica_of(nodes[0], environment=environment)
            stack.callback(replica.close)
        ports = [node.port for node in nodes]
        yield Mode(kind, ports, ports, nodes, replica=replica)


def on_postgres(kind: str, server: Postgres) -> Mode:
    """Make what a mode needs on a server that is there."""
    execute(server.url, "CREATE SEQUENCE IF NOT EXISTS fence")
    execute(server.url, aioelect.PostgresStore(server.url).ddl)
    return Mode(kind, server.url, [server.port], database=server)


async def until_reached(what: Callable[[], Awaitable[Any]], limit: float = 20.0) -> Any:
    """Ask again while there is no usable answer, and return the first that is not None."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + limit
    while True:
        try:
            if (answer := await what()) is not None:
                return answer
        except aioelect.StoreError:
            if loop.time() > give_up:
                raise
        assert loop.time() < give_up, "no usable answer"
        await asyncio.sleep(0.02)

"""More than one server: a replica, a Sentinel deployment, a cluster; with timeouts short enough for tests.

Everything is set up by commands, so no redis-cli is needed and Redis 6.2 will do.
"""

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode

from support.servers import Binary, Server, ServerFailed
from support.wait import until, until_sync

SLOTS = 16384


def start_replica_of(master: Server, binary: Binary | None = None, **settings: Any) -> Server:
    """Start a replica, with the same binary unless another is given; return when it is in step; close it yourself."""
    replica = Server(binary or master.binary, replicaof=f"127.0.0.1 {master.port}", **settings)
    replica.start()
    until_sync(lambda: _in_step(replica), limit=15)
    return replica


def _in_step(replica: Server) -> bool:
    return replica.info("replication").get("master_link_status") == "up"


class _Group:
    """Servers that start and end together."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.push(self._stack)
            self._start()
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _start(self) -> None:
        raise NotImplementedError

    def _add(self, server: Server) -> Server:
        self._stack.callback(server.close)
        return server


class SentinelGroup(_Group):
    """One master, one replica and three sentinels; blocks for one to three seconds at its start.

    `kill` or `pause` the `master`, then `await promoted()`. The masters' order of failing over is up to the sentinels:
    they need about two seconds.
    """

    name = "main"

    def __init__(self, binary: Binary, *, successor: Binary | None = None, **settings: Any):
        super().__init__()
        self._binary, self._successor, self._settings = binary, successor, settings
        self.master: Server
        self.replica: Server
        self.sentinels: list[Server] = []

    def sentinel(self, **options: Any) -> Sentinel:
        """Make redis-py's Sentinel client; `.master_for(group.name)` gives the client to hand out."""
        addresses = [("127.0.0.1", sentinel.port) for sentinel in self.sentinels]
        return Sentinel(addresses, **options)  # type: ignore[no-untyped-call,unused-ignore]  # untyped in redis-py

    async def promoted(self, limit: float = 20.0) -> Server:
        """Wait until the replica has become the master and every sentinel says so; return it."""
        await until(lambda: all(self._has_moved(sentinel) for sentinel in self.sentinels if sentinel.running), limit)
        return self.replica

    def _start(self) -> None:
        self.master = self._add(Server(self._binary, **self._settings))
        self.master.start()
        self.replica = self._add(start_replica_of(self.master, self._successor, **self._settings))
        lines = (
            f"sentinel monitor {self.name} 127.0.0.1 {self.master.port} 2",
            f"sentinel down-after-milliseconds {self.name} 1000",
            f"sentinel failover-timeout {self.name} 3000",
        )
        for _ in range(3):
            sentinel = self._add(Server(self._binary, *lines, mode="sentinel"))
            sentinel.start()
            self.sentinels.append(sentinel)
        # Sentinels find each other through the master, every two seconds.
        until_sync(lambda: all(self._knows_all(sentinel) for sentinel in self.sentinels), limit=20)

    def _facts(self, sentinel: Server) -> dict[bytes, bytes]:
        words = sentinel.call("SENTINEL", "master", self.name)
        return dict(zip(words[::2], words[1::2], strict=True))

    def _knows_all(self, sentinel: Server) -> bool:
        facts = self._facts(sentinel)
        return (facts[b"flags"], facts[b"num-slaves"], facts[b"num-other-sentinels"]) == (b"master", b"1", b"2")

    def _has_moved(self, sentinel: Server) -> bool:
        # Clients refuse a master with other flags: that it is down, or still being promoted.
        facts = self._facts(sentinel)
        return (facts[b"flags"], int(facts[b"port"])) == (b"master", self.replica.port)


class Cluster(_Group):
    """Three masters and a replica of the first; blocks for two to four seconds at its start."""

    def __init__(self, binary: Binary, **settings: Any):
        super().__init__()
        self._binary = binary
        self._settings: dict[str, Any] = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": 1000,
            # The replica stands whatever the age of its data: tests kill masters soon after the start.
            "cluster_replica_validity_factor": 0,
            **settings,
        }
        self.masters: list[Server] = []
        self.replica: Server

    @property
    def nodes(self) -> list[Server]:
        """All four."""
        return [*self.masters, self.replica]

    def client(self, **options: Any) -> RedisCluster:
        """Make redis-py's cluster client; use it with `async with`."""
        nodes = [ClusterNode("127.0.0.1", node.port) for node in self.nodes]
        return RedisCluster(startup_nodes=nodes, **options)

    def node_client(self, node: Server, **options: Any) -> Redis:
        """Make a plain client for one node."""
        return node.client(**options)

    def owner(self, key: str) -> Server:
        """Find the node that serves a key now."""
        slot = int(self._any().call("CLUSTER", "KEYSLOT", key))
        for first, last, master, *_ in self._any().call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == master[1])
        raise LookupError(f"nobody serves slot {slot}")

    def key_on(self, node: Server, pattern: str = "{%d}") -> str:
        """Make a key (or name) that a node serves, by counting up in `pattern`."""
        return next(key for key in (pattern % n for n in range(10_000)) if self.owner(key) is node)

    async def promoted(self, limit: float = 20.0) -> Server:
        """Wait until the replica serves the slots of the first master, for every node that runs."""
        await until(
            lambda: (
                self.replica.info("replication")["role"] == "master"
                and all(self._healthy(node) for node in self.nodes if node.running)
            ),
            limit,
        )
        return self.replica

    def _start(self) -> None:
        servers = [self._add(Server(self._binary, **self._settings)) for _ in range(4)]
        for server in servers:
            server.start()
        self.masters, self.replica = servers[:3], servers[3]
        for number, master in enumerate(self.masters):
            # Not ADDSLOTSRANGE: Redis 6.2 doesn't have it.
            master.call("CLUSTER", "ADDSLOTS", *range(number * SLOTS // 3, (number + 1) * SLOTS // 3))
            master.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in servers[1:]:
            server.call("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        until_sync(lambda: all(self._known(server) == 4 for server in servers), limit=20)
        first = self.masters[0].call("CLUSTER", "MYID")
        # The replica may have met the first master only by hearsay so far.
        until_sync(lambda: self._replicates(first), limit=20)
        until_sync(lambda: _in_step(self.replica) and all(map(self._sees_replica, servers)), limit=20)
        until_sync(lambda: all(self._healthy(server) for server in servers), limit=20)

    def _any(self) -> Server:
        return next(node for node in self.nodes if node.running)

    def _known(self, node: Server) -> int:
        return int(self._cluster_info(node)["cluster_known_nodes"])

    def _healthy(self, node: Server) -> bool:
        return self._cluster_info(node)["cluster_state"] == "ok"

    def _sees_replica(self, node: Server) -> bool:
        text: bytes = node.call("CLUSTER", "NODES")
        return text.count(b"slave ") == 1 and b"handshake" not in text

    def _replicates(self, master_id: bytes) -> bool:
        try:
            self.replica.call("CLUSTER", "REPLICATE", master_id)
        except ServerFailed:
            return False
        return True

    @staticmethod
    def _cluster_info(node: Server) -> dict[str, str]:
        text: str = node.call("CLUSTER", "INFO").decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

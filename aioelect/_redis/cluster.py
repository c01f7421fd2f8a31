"""The way through a cluster: by hash slot to the node that serves a name, with connections of our own to each node.

The map of slots is asked from whichever node answers, when it is first needed and whenever a node redirects or fails.
Redirections are followed within one call's limit; a node that failed is the next try's business, by a newer map.
"""

from __future__ import annotations

import asyncio
import random
from binascii import crc_hqx
from collections.abc import Callable, Hashable, Iterable, Sequence

from redis.asyncio import RedisCluster

from aioelect._errors import StoreError

from .ending import silence
from .links import Links
from .pipeline import Link, RawConnection
from .recipe import Recipe
from .refusals import Fault, Trouble, timed_out
from .wire import Command

__all__ = ["ClusterOrigin", "ClusterRoute"]

Address = tuple[str, int]

_SLOTS = 16384
_HOPS = 5  # a resharding may redirect more than once, a loop must end
_ASK_LIMIT = 1.0  # one node's answer to where the slots are
_ASK_AT_ONCE = 2  # so that one node which hangs does not hold up the others


class ClusterOrigin:
    """A cluster, by the nodes that are known of it, and the settings to reach them."""

    def __init__(self, redis: RedisCluster) -> None:
        settings = dict(redis.connection_kwargs)
        connection_class = settings.pop("connection_class")
        if getattr(settings.get("redis_connect_func"), "__self__", None) is redis:
            del settings["redis_connect_func"]  # READONLY, for reading from replicas: nothing that claims should do
        manager = redis.nodes_manager
        nodes = {**manager.startup_nodes, **manager.nodes_cache}
        seeds = sorted({(str(node.host), int(node.port)) for node in nodes.values()})
        self.place: Hashable = ("cluster", tuple(seeds))
        self.seeds = seeds
        self._remap: Callable[[Address], Address] = manager.address_remap or (lambda address: address)
        self._recipe = Recipe(connection_class, settings)
        self.key: Hashable = (self.place, self._recipe.key)

    def at(self, host: str, port: int) -> Recipe:
        """How to reach one node of it."""
        return self._recipe.at(*self._remap((host, port)))

    def open(self) -> tuple[ClusterRoute, Callable[[], RawConnection]]:
        """Open nothing yet; return the way in, and what makes a connection to any node for the subscription."""
        route = ClusterRoute(self._recipe, self.seeds, self._remap)
        return route, route.make_any


class ClusterRoute:
    """Connections to the nodes of one cluster, in one event loop."""

    def __init__(self, recipe: Recipe, seeds: Iterable[Address], remap: Callable[[Address], Address]) -> None:
        self._recipe = recipe
        self._remap = remap
        self._loop = asyncio.get_running_loop()
        self._seeds = frozenset(seeds)
        self._known = sorted(self._seeds)
        self._owners: dict[int, Address] = {}
        self._nodes: dict[Address, Links] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False

    async def exchange(
        self, key: bytes, commands: Callable[[Link], Sequence[Command]], deadline: float, /
    ) -> list[object]:
        """Ask the node that serves the key, following redirections."""
        slot = _slot(key)
        address = await self._owner(slot, deadline)
        asking = False
        link: Link | None = None

        def ask(over: Link) -> Sequence[Command]:
            nonlocal link
            link = over
            return [(b"ASKING",), *commands(over)] if asking else commands(over)

        for _ in range(_HOPS):
            try:
                node = self._node(address)
                replies = await node.exchange(key, ask, deadline)
            except StoreError:
                self._refresh()  # the next try may find another owner
                raise
            if asking:
                replies = replies[1:]
            match replies[0]:
                case Fault(code="MOVED", text=text):
                    if link is not None:
                        link.probed = False  # what it was tried with went astray
                    address = self._owners[slot] = self._target(text, address)
                    self._refresh()
                    asking = False
                case Fault(code="ASK", text=text):
                    address = self._target(text, address)
                    asking = True
                case Fault(code="CLUSTERDOWN"):
                    self._refresh()
                    return replies
                case _:
                    return replies
        raise Trouble("moved", "the nodes of the cluster redirect in a circle").error()

    async def nodes(self, deadline: float) -> list[Links]:
        """The nodes that serve some slot, for questions that concern no key."""
        await self._owner(0, deadline)
        return [self._node(address) for address in sorted(set(self._owners.values()))]

    def drop(self, key: bytes, /) -> None:
        """Find the node of a key anew."""
        if address := self._owners.get(_slot(key)):
            self._node(address).drop(key)
        self._refresh()

    async def aclose(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        await asyncio.gather(*(node.aclose() for node in self._nodes.values()))

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        if self._refreshing is not None:
            silence(self._refreshing)
        for node in self._nodes.values():
            node.abandon()

    def make_any(self) -> RawConnection:
        """Make a connection to any node: a message published on one reaches the subscribers of all."""
        serving = sorted(set(self._owners.values()))
        return self._recipe.at(*random.choice(serving or self._known)).maker()()

    def _node(self, address: Address) -> Links:
        if self._closed:
            raise Trouble("closed", "the connections of this store were closed").error()
        if address not in self._nodes:
            self._nodes[address] = Links(self._recipe.at(*address).maker())
        return self._nodes[address]

    async def _owner(self, slot: int, deadline: float) -> Address:
        if slot not in self._owners:
            limit = deadline - self._loop.time()
            await asyncio.wait([self._refresh()], timeout=limit)
            if slot not in self._owners:
                if self._loop.time() >= deadline:
                    raise timed_out(limit, "no map of the cluster").error()
                raise Trouble("clusterdown", "no node of the cluster could say who serves the hash slot").error()
        return self._owners[slot]

    def _target(self, redirection: str, asked: Address) -> Address:
        # "3999 127.0.0.1:6381"; without a host, the node's own is meant.
        host, _, port = redirection.rpartition(" ")[2].rpartition(":")
        return self._remap((host or asked[0], int(port)))

    # -- the map of slots -------------------------------------------------------------------------------------------

    def _refresh(self) -> asyncio.Task[None]:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._loop.create_task(self._ask_around(), name="aioelect-cluster")
        return self._refreshing

    async def _ask_around(self) -> None:
        candidates = random.sample(self._known, len(self._known))
        for first in range(0, len(candidates), _ASK_AT_ONCE):
            asked = [self._loop.create_task(self._ask(node)) for node in candidates[first : first + _ASK_AT_ONCE]]
            try:
                for answer in asyncio.as_completed(asked):
                    if owners := await answer:
                        self._take(owners)
                        return
            finally:
                for task in asked:
                    task.cancel()

    async def _ask(self, address: Address) -> dict[int, Address]:
        """Ask one node for the map; empty if it has none to give."""
        deadline = self._loop.time() + _ASK_LIMIT
        try:
            (reply,) = await self._node(address).exchange(b"", lambda _: [(b"CLUSTER", b"SLOTS")], deadline)
        except StoreError:
            return {}
        owners: dict[int, Address] = {}
        for part in reply if isinstance(reply, list) else ():
            match part:
                case [int(start), int(end), [host, int(port), *_], *_]:
                    # A node that does not know its own address leaves it out.
                    name = host.decode() if isinstance(host, bytes) and host not in (b"", b"?") else address[0]
                    owners |= dict.fromkeys(range(start, end + 1), self._remap((name, port)))
        return owners

    def _take(self, owners: dict[int, Address]) -> None:
        self._owners = owners
        serving = set(owners.values())
        self._known = sorted(serving | self._seeds)
        for address in [address for address in self._nodes if address not in serving]:
            self._nodes.pop(address).drop(b"")  # its connections close when nobody waits in them


def _slot(key: bytes) -> int:
    # Our keys hold the name in braces, and only that counts.
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return crc_hqx(key[start + 1 : end], 0) % _SLOTS
